"""Every kind of client calls every kind of tool: what its model reads, and how often the tool's body was started.

Each client runs its rows at once, and several clients do, in the background of the first test: the rows mostly wait.
Limits are scaled down in the server; what they are by default is in `test_hosts_in_time`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

import anyio
import pytest
from mcp_types import CallToolResult

from harness.rpc import LEGACY, METHOD_NOT_FOUND, MISSING_CAPABILITY, MODERN, PATIENCE
from tests.fallback.matrix.clients import NOBODY_KNOWS, Kind, Visit, text_of, visit
from tests.fallback.matrix.server import CUSTOM_ERROR
from tests.fallback.matrix.serving import HttpServers, Place, place

OLDER = "2025-06-18"

KINDS = {
    "modern-tasks": Kind(door="sse", version=MODERN, tasks=True, asks=True),
    "modern": Kind(door="sse", version=MODERN, progress=True),
    "modern-asks": Kind(door="sse", version=MODERN, asks=True, progress=True),
    "modern-unknown": Kind(door="sse", version=MODERN, asks=True, name=NOBODY_KNOWS),
    "modern-json": Kind(door="json", version=MODERN, asks=True),
    "modern-stateless": Kind(door="stateless", version=MODERN, asks=True, progress=True),
    "modern-stdio": Kind(door="stdio", version=MODERN, asks=True, progress=True),
    "2025": Kind(door="sse", version=LEGACY),
    "2025-progress": Kind(door="sse", version=LEGACY, progress=True),
    "2025-asks": Kind(door="sse", version=LEGACY, asks=True),
    "2025-unknown": Kind(door="sse", version=LEGACY, name=NOBODY_KNOWS),
    "2025-unknown-asks": Kind(door="sse", version=LEGACY, asks=True, progress=True, name=NOBODY_KNOWS),
    "2025-json": Kind(door="json", version=LEGACY, asks=True, progress=True),
    "2025-stateless": Kind(door="stateless", version=LEGACY, asks=True, progress=True),
    "2025-stateless-json": Kind(door="stateless-json", version=LEGACY, asks=True),
    "2025-stdio": Kind(door="stdio", version=LEGACY, asks=True, progress=True),
    "2025-06-stdio": Kind(door="stdio", version=OLDER, asks=True, progress=True, name=NOBODY_KNOWS),
}

Row = Callable[[Visit], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(function: Row) -> Row:
    """One line of the matrix."""
    ROWS[function.__name__] = function
    return function


# --- what a model does --------------------------------------------------------------------------------------------


def assert_handle(result: CallToolResult, tool: str, status: str = "working") -> str:
    """The result says that the tool has not finished, and cannot be misread; gives the task's id."""
    assert not result.is_error
    told: dict[str, Any] = result.structured_content or {}
    assert set(told) == {"taskId", "status", "statusMessage"}
    assert told["status"] == status
    task_id = told["taskId"]
    text = text_of(result)
    doing = "is still running" if status == "working" else "is still running: it waits for an answer"
    assert f'The tool "{tool}" {doing}. It has not finished, and this is not its result.' in text
    assert f'Do not call "{tool}" again' in text
    assert f'call the tool "task_status" with {{"task_id": "{task_id}"}}' in text
    return task_id


async def fetched(visit: Visit, result: CallToolResult, tool: str) -> CallToolResult:
    """The tool's own result, fetched as the text of a handle says, as often as it takes."""
    task_id = assert_handle(result, tool)
    with anyio.fail_after(PATIENCE):
        while result.structured_content is not None and "taskId" in result.structured_content and not result.is_error:
            assert assert_handle(result, tool) == task_id
            result = await visit.call("task_status", progress_of=task_id, task_id=task_id, wait_seconds=5)
    again = await visit.call("task_status", task_id=task_id)
    assert (again.content, again.structured_content) == (result.content, result.structured_content)
    return result


def assert_result(visit: Visit, result: CallToolResult, job: str) -> None:
    """The tool's own result, of which the client has checked the structure, and one start of its body."""
    assert (text_of(result), result.structured_content) == (f"{job} is done", {"result": f"{job} is done"})
    assert not result.is_error
    assert visit.starts(job) == 1


async def open_later(visit: Visit, job: str) -> None:
    """Let a job go on that has begun some time ago."""
    await visit.place.until("start", job)
    await anyio.sleep(1)  # sleep: work that takes longer than a call waits
    visit.place.open(job)


# --- the rows -----------------------------------------------------------------------------------------------------


@row
async def quick(visit: Visit) -> None:
    result = await visit.call("quick", job := visit.job())
    assert_result(visit, result, job)
    assert visit.requests(job) == 1


@row
async def slow(visit: Visit) -> None:
    result = await visit.call("slow", job := visit.job())
    if visit.kind.sees_to_the_end:
        assert_result(visit, result, job)
        assert (visit.requests(job) > 1) == (visit.kind.is_modern and not visit.kind.tasks)
    else:
        assert_result(visit, await fetched(visit, result, "slow"), job)
        assert visit.requests(job) == 1
    assert visit.place.count("step", job) == 4
    if visit.kind.progress and visit.kind.has_stream:
        assert_progress(visit, job, result)


def assert_progress(visit: Visit, job: str, first: CallToolResult) -> None:
    """Progress on the call, or on that which fetched the result: the tool reports four times, and there is time for two
    signs of life before each of them. Not every report finds a call open, where it takes several requests."""
    told: dict[str, Any] = first.structured_content or {}
    fetched = told.get("taskId")
    for seen in (visit.progress[job], visit.progress.get(fetched or "", [])):
        values = [progress for progress, _, _ in seen]
        assert values == sorted(set(values))
        assert all(total is None or progress <= total for progress, total, _ in seen)
    last = visit.progress[fetched or job]
    assert len(last) >= (6 if visit.kind.waits else 4)
    assert last[-1] == (4, 4, "step 4 of 4")


@row
async def longer_than_all_waits(visit: Visit) -> None:
    job = visit.job()
    if visit.kind.waits or visit.kind.tasks:
        async with anyio.create_task_group() as group:
            group.start_soon(open_later, visit, job)
            assert_result(visit, await visit.call("long", job), job)
        return
    result = await visit.call("long", job)
    assert_handle(result, "long")
    assert visit.requests(job) == (3 if visit.kind.is_modern else 1)
    visit.place.open(job)
    assert_result(visit, await fetched(visit, result, "long"), job)


@row
async def cancelled_by_its_caller(visit: Visit) -> None:
    if visit.kind.waits or visit.kind.tasks:
        return
    task_id = assert_handle(await visit.call("long", job := visit.job()), "long")
    told = await visit.call("task_cancel", task_id=task_id)
    assert not told.is_error
    assert "cancelled" in text_of(told)
    after = await visit.call("task_status", task_id=task_id)
    assert after.is_error
    assert 'The tool "long" was cancelled, and has no result' in text_of(after)
    await visit.place.until("stopped", job)
    assert visit.starts(job) == 1


@row
async def cancelled_by_an_operator(visit: Visit) -> None:
    if visit.kind.waits or visit.kind.tasks:
        return
    task_id = assert_handle(await visit.call("long", job := visit.job()), "long")
    waiting = asyncio.create_task(visit.call("task_status", task_id=task_id))
    await visit.call("operator_cancel", task_id=task_id)
    after = await waiting
    assert after.is_error
    assert 'The tool "long" was cancelled, and has no result' in text_of(after)
    assert visit.starts(job) == 1


@row
async def cancelled_while_its_call_is_open(visit: Visit) -> None:
    if visit.kind.tasks:
        return
    calling = asyncio.create_task(visit.call("long", job := visit.job()))
    await visit.place.until("start", job)
    await visit.call("operator_cancel", task_id=visit.place.task_of(job))
    result = await calling
    if not result.is_error:
        # The call was over before: that is told instead, and the rest is told later.
        result = await visit.call("task_status", task_id=assert_handle(result, "long"))
    assert result.is_error
    assert 'The tool "long" was cancelled, and has no result' in text_of(result)
    assert visit.starts(job) == 1


@row
async def asks_in_the_middle(visit: Visit) -> None:
    job = visit.job()
    if not visit.kind.asks:
        # As in a plain call: the tool is told, and this one does not mind the error.
        error = await visit.error("asks", job)
        assert "did not declare the elicitation capability" in error.error.message
        assert (visit.starts(job), visit.place.count("two", job)) == (1, 0)
        return
    result = await visit.call("asks", job)
    if visit.kind.can_be_asked:
        assert (text_of(result), result.structured_content) == ("Hello, Ada!", {"result": "Hello, Ada!"})
        assert visit.place.count("two", job) == 1
    else:
        # Nothing can be asked on the call: whoever has the id may be asked elsewhere.
        assert_handle(result, "asks", "input_required")
        assert 'It asks: "What is your name?"' in text_of(result)
        assert visit.place.count("two", job) == 0
    assert visit.place.count("one", job) == 1
    assert visit.starts(job) == 1


@row
async def asks_the_client(visit: Visit) -> None:
    if visit.kind.can_be_asked:
        result = await visit.call("asks_the_client", job := visit.job())
        assert text_of(result) == "42 in file:///home"
        assert visit.starts(job) == 1


@row
async def asks_more_often_than_anybody_comes_back(visit: Visit) -> None:
    if not visit.kind.can_be_asked or visit.kind.door == "stateless":
        return
    result = await visit.call("asks_often", job := visit.job())
    if visit.kind.is_modern and not visit.kind.tasks:
        task_id = assert_handle(result, "asks_often", "input_required")
        assert visit.requests(job) == 9
        result = await visit.call("task_status", task_id=task_id)
    assert text_of(result) == ", ".join(["Ada"] * 12)
    assert visit.starts(job) == 1
    assert sorted(asked for asked in visit.person.asked if asked.startswith("Name number")) == sorted(
        f"Name number {number}?" for number in range(1, 13)
    )


@row
async def a_model_answers_where_nobody_else_can(visit: Visit) -> None:
    if visit.kind.tasks:
        return
    result = await visit.call("asks_anybody", job := visit.job())
    if visit.kind.can_be_asked:
        assert text_of(result) == "Hello, Ada!"
        return
    task_id = assert_handle(result, "asks_anybody", "input_required")
    assert 'call the tool "task_answer" with' in text_of(result)
    misfit = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": 5})
    assert misfit.is_error
    taken = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": "Model"})
    assert not taken.is_error
    assert text_of(await visit.call("task_status", task_id=task_id)) == "Hello, Model!"
    late = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": "Late"})
    assert late.is_error
    assert visit.starts(job) == 1


@row
async def a_model_may_not_answer_unless_that_is_allowed(visit: Visit) -> None:
    if visit.kind.tasks or visit.kind.can_be_asked or not visit.kind.asks:
        return
    result = await visit.call("asks", visit.job())
    task_id = assert_handle(result, "asks", "input_required")
    assert "task_answer" not in text_of(result)
    refused = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": "Model"})
    assert refused.is_error
    assert assert_handle(await visit.call("task_status", task_id=task_id), "asks", "input_required") == task_id


@row
async def asks_before_the_body(visit: Visit) -> None:
    job = visit.job()
    if visit.kind.can_be_asked:
        result = await visit.call("asks_before", job)
        assert text_of(result) == "Hello, Ada!"
        assert visit.starts(job) == 1
        return
    if visit.kind.asks:
        assert_handle(await visit.call("asks_before", job), "asks_before", "input_required")
    else:
        error = await visit.error("asks_before", job)
        assert error.error.code == MISSING_CAPABILITY
    assert visit.starts(job) == 0


@row
async def asks_by_returning(visit: Visit) -> None:
    job = visit.job()
    if visit.kind.can_be_asked:
        result = await visit.call("asks_by_returning", job)
        assert text_of(result) == f"Hello, Ada of {job}!"
        assert visit.starts(job) == 1
    elif visit.kind.asks:
        assert_handle(await visit.call("asks_by_returning", job), "asks_by_returning", "input_required")
        assert visit.starts(job) == 0
    else:
        await visit.error("asks_by_returning", job)
        assert visit.starts(job) == 0
    assert visit.place.count("asked", job) == 1


@row
async def fails(visit: Visit) -> None:
    result = await visit.call("fails", job := visit.job())
    assert result.is_error
    assert text_of(result) == f"Error executing tool fails: {job} did not work out"
    assert visit.starts(job) == 1


@row
async def returns_an_error(visit: Visit) -> None:
    result = await visit.call("errs", job := visit.job())
    assert result.is_error
    assert text_of(result) == f"{job} went wrong"
    assert visit.starts(job) == 1


@row
async def raises_a_protocol_error(visit: Visit) -> None:
    error = await visit.error("breaks", job := visit.job())
    assert (error.error.code, error.error.message) == (CUSTOM_ERROR, f"{job} may not")
    assert error.error.data == {"hint": "ask again"}
    assert visit.starts(job) == 1


@row
async def fails_after_all_waits(visit: Visit) -> None:
    if visit.kind.waits or visit.kind.tasks:
        return
    for protocol, expected in ((False, "did not work out"), (True, "may not")):
        handle = await visit.call("fails_late", job := visit.job(), protocol=protocol)
        task_id = assert_handle(handle, "fails_late")
        visit.place.open(job)
        for _ in range(2):
            result = await visit.call("task_status", task_id=task_id)
            assert result.is_error
            assert f"{job} {expected}" in text_of(result)
        assert visit.starts(job) == 1


@row
async def structured(visit: Visit) -> None:
    shape = await visit.call("shape", job := visit.job(), late=False)
    assert shape.structured_content == {"corners": [{"x": 1.0, "y": 2.0}], "title": None}
    assert visit.starts(job) == 1
    numbers = await visit.call("numbers", visit.job(), late=False)
    assert numbers.structured_content == {"result": [1, 2, 3]}


@row
async def structured_and_late(visit: Visit) -> None:
    if visit.kind.waits or visit.kind.tasks:
        return
    for tool, expected in (
        ("shape", {"corners": [{"x": 1.0, "y": 2.0}], "title": None}),
        ("numbers", {"result": [1, 2, 3]}),
    ):
        # The client has the schemas, and would raise for a handle that does not fit.
        handle = await visit.call(tool, job := visit.job(), late=True)
        assert_handle(handle, tool)
        visit.place.open(job)
        assert (await fetched(visit, handle, tool)).structured_content == expected
        assert visit.starts(job) == 1


@row
async def an_unknown_id(visit: Visit) -> None:
    if visit.kind.tasks:
        return
    for companion in ("task_status", "task_cancel"):
        result = await visit.call(companion, task_id="no-such-task")
        assert result.is_error
        assert "no-such-task" in text_of(result)


@row
async def required_is_refused(visit: Visit) -> None:
    job = visit.job()
    if visit.kind.tasks:
        assert_result(visit, await visit.call("required", job), job)
        return
    error = await visit.error("required", job)
    assert error.error.code == (MISSING_CAPABILITY if visit.kind.is_modern else METHOD_NOT_FOUND)
    assert visit.starts(job) == 0


@row
async def inline_is_a_plain_call(visit: Visit) -> None:
    result = await visit.call("inline", job := visit.job())
    assert_result(visit, result, job)
    assert visit.requests(job) == 1


# --- how they are run ---------------------------------------------------------------------------------------------

AT_A_TIME = 4
"""Clients that run their rows together: two processors are common, and each has some twenty rows."""

UNHURRIED = ("slow",)
"""Rows that count what happens in a time, and so come when the others are done."""

Outcomes = dict[tuple[str, str], BaseException | None]


@pytest.fixture(scope="module")
def outcomes() -> Generator[Outcomes]:
    """How every row ended for every client."""
    with place() as here:
        servers = here.serve("sse", "json", "stateless", "stateless-json")
        yield asyncio.run(_all(here, servers))


async def _all(here: Place, servers: HttpServers) -> Outcomes:
    outcomes: Outcomes = {}
    busy, calm = set(KINDS), asyncio.Event()
    turn = asyncio.Semaphore(AT_A_TIME)

    async def run(name: str) -> None:
        try:
            async with visit(KINDS[name], here, servers) as visitor:
                try:
                    async with turn:
                        await _together(outcomes, name, visitor, [each for each in ROWS if each not in UNHURRIED])
                finally:
                    busy.discard(name)
                    if not busy:
                        calm.set()
                await calm.wait()
                await _together(outcomes, name, visitor, UNHURRIED)
        except Exception as exc:
            for each in ROWS:
                outcomes.setdefault((name, each), exc)

    async with anyio.create_task_group() as group:
        for name in KINDS:
            group.start_soon(run, name)
    return outcomes


async def _together(outcomes: Outcomes, name: str, visitor: Visit, rows: Iterable[str]) -> None:
    async with anyio.create_task_group() as group:
        for each in rows:
            group.start_soon(_one, outcomes, name, each, visitor)


async def _one(outcomes: Outcomes, name: str, each: str, visitor: Visit) -> None:
    try:
        with anyio.fail_after(2 * PATIENCE):
            await ROWS[each](visitor)
    except Exception as exc:
        outcomes[name, each] = exc
    else:
        outcomes[name, each] = None


@pytest.mark.parametrize("each", ROWS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_client_gets_a_good_answer(outcomes: Outcomes, kind: str, each: str) -> None:
    problem = outcomes[kind, each]
    if problem is not None:
        raise problem
