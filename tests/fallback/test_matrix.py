"""Every kind of client calls every kind of tool: what its model reads, and how often the tool's body was started.

Each client runs its rows at once, and several clients do: the rows mostly wait. How long calls wait by
default is in `test_patience`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ErrorData

from harness.http import serving
from harness.rpc import LEGACY, METHOD_NOT_FOUND, MISSING_CAPABILITY, MODERN, PATIENCE
from harness.server import CUSTOM_ERROR
from mcp_tasks.client import TasksClient
from tests.fallback.scenes import Person, Place, chat, facts, handle, place, text
from tests.fallback.server import Jobs, Served, build

SDK: Final = "mcp"
"""How the SDK's client calls itself where nobody gives it a name. It is known to wait as long as it takes."""

UNKNOWN: Final = "a-host-that-nobody-knows"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A client as a server sees it; `door` is how it reaches the server."""

    door: str
    version: str
    tasks: bool = False
    asks: bool = True
    """Whether it has elicitation."""
    progress: bool = False
    name: str = UNKNOWN

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN

    @property
    def waits(self) -> bool:
        """Whether a call of it lasts as long as the tool, in one request or as a task."""
        knows = self.name == SDK and not self.door.startswith("stateless")
        return self.tasks or (not self.is_modern and knows)

    @property
    def can_be_asked(self) -> bool:
        """Whether what a tool asks reaches its person."""
        return self.asks and (self.is_modern or self.door in ("sse", "stdio", "memory"))


KINDS = {
    "modern-tasks": Kind(door="sse", version=MODERN, tasks=True),
    "modern": Kind(door="sse", version=MODERN, progress=True),
    "modern-sdk": Kind(door="memory", version=MODERN, asks=False, progress=True, name=SDK),
    "modern-json": Kind(door="json", version=MODERN),
    "modern-stdio": Kind(door="stdio", version=MODERN, progress=True),
    "2025": Kind(door="sse", version=LEGACY, progress=True),
    "2025-sdk": Kind(door="sse", version=LEGACY, asks=False, progress=True, name=SDK),
    "2025-memory": Kind(door="memory", version=LEGACY),
    "2025-json": Kind(door="json", version=LEGACY, progress=True),
    "2025-stateless": Kind(door="stateless", version=LEGACY, progress=True, name=SDK),
    "2025-stdio": Kind(door="stdio", version=LEGACY, progress=True),
}


# --- clients --------------------------------------------------------------------------------------------------------


_jobs = count(1)


@dataclass
class Visit:
    kind: Kind
    client: Any
    jobs: Jobs
    person: Person
    progress: dict[str, list[tuple[float, float | None, str | None]]] = field(default_factory=dict[str, Any])

    def job(self) -> str:
        return f"job-{next(_jobs)}"

    async def call(self, tool: str, job: str | None = None, **arguments: Any) -> CallToolResult:
        """Call a tool as the host of this client would; progress is kept by job or task."""
        if job is not None:
            arguments["job"] = job
        seen = self.progress.setdefault(job or arguments["task_id"], [])

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        return await self.client.call_tool(tool, arguments, progress_callback=report if self.kind.progress else None)

    async def error(self, tool: str, job: str, **arguments: Any) -> ErrorData:
        with pytest.raises(MCPError) as refused:
            await self.call(tool, job, **arguments)
        return refused.value.error


@dataclass
class World:
    """The servers: one of this process with several doors, and those of processes that serve their pipes."""

    served: Served
    doors: dict[str, Any]
    place: Place

    @asynccontextmanager
    async def visit(self, kind: Kind) -> AsyncGenerator[Visit]:
        """Connect a client; it lists the tools first, as hosts do, and so checks results against their schemas."""
        person, is_piped = Person(), kind.door == "stdio"
        jobs = self.place.jobs if is_piped else self.served.jobs
        async with chat(
            self.place.command() if is_piped else self.doors[kind.door],
            MODERN if kind.is_modern else "legacy",
            name=kind.name,
            person=person if kind.asks else None,
            extensions=[TasksClient()] if kind.tasks else None,
        ) as client:
            with anyio.fail_after(PATIENCE):
                await client.list_tools()
            yield Visit(kind, client, jobs, person)


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    served = build()
    with place() as here:
        async with (
            serving(served.server) as sse,
            serving(served.server, json_response=True) as json,
            serving(served.server, stateless=True) as stateless,
        ):
            doors = {"memory": served.server, "sse": sse.url, "json": json.url, "stateless": stateless.url}
            yield World(served, doors, here)


# --- the rows -------------------------------------------------------------------------------------------------------

Row = Callable[[Visit], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(function: Row) -> Row:
    ROWS[function.__name__] = function
    return function


def assert_handle(result: CallToolResult, tool: str, status: str = "working") -> str:
    """The result says that the tool has not finished, and cannot be misread; gives the task's id."""
    task_id, said = handle(result, status), text(result)
    doing = "is still running" if status == "working" else "is still running: it waits for an answer"
    assert f'The tool "{tool}" {doing}. It has not finished, and this is not its result.' in said
    assert f'Do not call "{tool}" again' in said
    assert f'call the tool "task_status" with {{"task_id": "{task_id}"}}' in said
    return task_id


async def fetched(visit: Visit, result: CallToolResult, tool: str) -> CallToolResult:
    """The tool's own result, fetched as the text of a handle says, as often as it takes."""
    task_id = assert_handle(result, tool)
    with anyio.fail_after(PATIENCE):
        while "taskId" in (result.structured_content or {}):
            assert assert_handle(result, tool) == task_id
            result = await visit.call("task_status", task_id=task_id, wait_seconds=5)
    again = await visit.client.call_tool("task_status", {"task_id": task_id})
    assert (again.content, again.structured_content) == (result.content, result.structured_content)
    return result


def assert_result(visit: Visit, result: CallToolResult, job: str) -> None:
    """The tool's own result, of which the client has checked the structure, and one start of its body."""
    assert (text(result), result.structured_content) == (f"{job} is done", {"result": f"{job} is done"})
    assert not result.is_error
    assert visit.jobs.count("start", job) == 1


@row
async def quick(visit: Visit) -> None:
    assert_result(visit, await visit.call("quick", job := visit.job()), job)
    assert visit.jobs.count("request", job) == 1


@row
async def slow(visit: Visit) -> None:
    result = await visit.call("slow", job := visit.job())
    last = job
    if visit.kind.is_modern or visit.kind.waits:
        assert_result(visit, result, job)
        assert (visit.jobs.count("request", job) > 1) == (visit.kind.is_modern and not visit.kind.tasks)
    else:
        last = assert_handle(result, "slow")
        assert_result(visit, await fetched(visit, result, "slow"), job)
        assert visit.jobs.count("request", job) == 1
    if visit.kind.progress and visit.kind.door != "json":
        # On the call, or on that which fetched the result. Not every report finds a call open that has several.
        for seen in (visit.progress[job], visit.progress[last]):
            values = [progress for progress, _, _ in seen]
            assert values == sorted(set(values))
            assert all(total is None or progress <= total for progress, total, _ in seen)
        assert visit.progress[last][-1] == (4, 4, "step 4 of 4")


@row
async def longer_than_all_waits(visit: Visit) -> None:
    calling = asyncio.create_task(visit.call("long", job := visit.job()))
    if visit.kind.waits:
        await visit.jobs.until("start", job)
        await anyio.sleep(0.6)  # sleep: longer than the call of anybody else waits
        visit.jobs.open(job)
        assert_result(visit, await calling, job)
        return
    result = await calling
    assert visit.jobs.count("request", job) == (3 if visit.kind.is_modern else 1)
    visit.jobs.open(job)
    assert_result(visit, await fetched(visit, result, "long"), job)


@row
async def cancelled_by_its_caller(visit: Visit) -> None:
    if visit.kind.waits:
        return
    task_id = assert_handle(await visit.call("long", job := visit.job()), "long")
    told = await visit.call("task_cancel", task_id=task_id)
    assert not told.is_error
    assert "cancelled" in text(told)
    after = await visit.call("task_status", task_id=task_id)
    assert after.is_error
    assert 'The tool "long" was cancelled, and has no result' in text(after)
    await visit.jobs.until("stopped", job)
    assert visit.jobs.count("start", job) == 1


@row
async def asks_in_the_middle(visit: Visit) -> None:
    job = visit.job()
    if not visit.kind.asks:
        if visit.kind.door == "stateless":
            return
        # As in a plain call: the tool is told, and this one does not mind the error.
        error = await visit.error("asks", job)
        assert "did not declare the elicitation capability" in error.message
        assert visit.jobs.counts(job, "start", "two") == (1, 0)
        return
    result = await visit.call("asks", job)
    if visit.kind.can_be_asked:
        assert (text(result), result.structured_content) == ("Hello, Ada!", {"result": "Hello, Ada!"})
    else:
        # Nothing can be asked on the call: whoever has the id may be asked elsewhere. No model may answer.
        task_id = assert_handle(result, "asks", "input_required")
        assert 'It asks: "What is your name?"' in text(result)
        assert "task_answer" not in text(result)
        refused = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": "Model"})
        assert refused.is_error
        assert text(refused).startswith('What the tool "asks" asks is for the user alone')
        told = await visit.call("task_status", task_id=task_id, wait_seconds=0)
        assert assert_handle(told, "asks", "input_required") == task_id
    assert visit.jobs.counts(job, "start", "one", "two") == (1, 1, int(visit.kind.can_be_asked))


@row
async def asks_the_client(visit: Visit) -> None:
    if visit.kind.can_be_asked:
        result = await visit.call("asks_the_client", job := visit.job())
        assert text(result) == "42 in file:///home"
        assert visit.jobs.count("start", job) == 1
        assert text(await visit.call("asks_to_visit", visit.job())) == "accept"


@row
async def asks_more_often_than_anybody_comes_back(visit: Visit) -> None:
    if not visit.kind.can_be_asked:
        return
    result = await visit.call("asks_often", job := visit.job())
    if visit.kind.is_modern and not visit.kind.tasks:
        assert_handle(result, "asks_often", "input_required")
        assert visit.jobs.count("request", job) == 9
    while "taskId" in (result.structured_content or {}):
        # Or the time of the call was over, on a busy machine.
        result = await visit.call("task_status", task_id=facts(result)["taskId"])
    assert text(result) == ", ".join(["Ada"] * 12)
    assert visit.jobs.count("start", job) == 1
    asked = [asked for asked in visit.person.asked if asked.startswith("Name number")]
    assert sorted(asked) == sorted(f"Name number {number}?" for number in range(1, 13))


@row
async def a_model_answers_where_nobody_else_can(visit: Visit) -> None:
    if visit.kind.tasks:
        return
    result = await visit.call("asks_anybody", job := visit.job())
    if visit.kind.can_be_asked:
        assert text(result) == "Hello, Ada!"
        return
    task_id = assert_handle(result, "asks_anybody", "input_required")
    assert 'call the tool "task_answer" with' in text(result)
    for name, is_taken in ((5, False), ("Model", True), ("Late", False)):
        told = await visit.call("task_answer", task_id=task_id, action="accept", content={"name": name})
        assert told.is_error is not is_taken
        if is_taken:
            assert text(await visit.call("task_status", task_id=task_id)) == "Hello, Model!"
    assert visit.jobs.count("start", job) == 1


@row
async def asks_before_the_body(visit: Visit) -> None:
    for tool in ("asks_before", "asks_by_returning"):
        visit.jobs.open(job := visit.job())
        if visit.kind.can_be_asked:
            assert text(await visit.call(tool, job)).startswith(f"Ada: {job} is done")
        elif visit.kind.asks:
            assert_handle(await visit.call(tool, job), tool, "input_required")
        else:
            error = await visit.error(tool, job)
            assert tool != "asks_before" or error.code == MISSING_CAPABILITY
        assert visit.jobs.count("start", job) == int(visit.kind.can_be_asked)


@row
async def fails(visit: Visit) -> None:
    result = await visit.call("fails", job := visit.job())
    assert result.is_error
    assert text(result) == f"Error executing tool fails: {job} did not work out"
    errs = await visit.call("errs", visit.job())
    assert errs.is_error
    assert "went wrong" in text(errs)
    error = await visit.error("fails", refused := visit.job(), protocol=True)
    assert (error.code, error.message, error.data) == (CUSTOM_ERROR, f"{refused} may not", {"hint": "ask again"})
    assert visit.jobs.counts(job, "start") == visit.jobs.counts(refused, "start") == (1,)


@row
async def fails_after_all_waits(visit: Visit) -> None:
    if visit.kind.waits:
        return
    for protocol, expected in ((False, "did not work out"), (True, "may not")):
        task_id = assert_handle(await visit.call("fails", job := visit.job(), late=True, protocol=protocol), "fails")
        visit.jobs.open(job)
        for _ in range(2):
            result = await visit.call("task_status", task_id=task_id)
            assert result.is_error
            assert f"{job} {expected}" in text(result)
        assert visit.jobs.count("start", job) == 1


@row
async def structured(visit: Visit) -> None:
    expected = {"corners": [{"x": 1.0, "y": 2.0}], "title": None}
    assert (await visit.call("shape", visit.job(), late=False)).structured_content == expected
    if not visit.kind.waits:
        # The client has the schemas, and would raise for a handle that does not fit.
        result = await visit.call("shape", job := visit.job(), late=True)
        visit.jobs.open(job)
        assert facts(await fetched(visit, result, "shape")) == expected


@row
async def required_is_refused(visit: Visit) -> None:
    job = visit.job()
    if visit.kind.tasks:
        assert_result(visit, await visit.call("required", job), job)
        return
    error = await visit.error("required", job)
    assert error.code == (MISSING_CAPABILITY if visit.kind.is_modern else METHOD_NOT_FOUND)
    assert visit.jobs.count("start", job) == 0


@row
async def inline_and_unmarked_tools_are_plain_calls(visit: Visit) -> None:
    for tool in ("inline", "unmarked"):
        calling = asyncio.create_task(visit.call(tool, job := visit.job()))
        await visit.jobs.until("start", job)
        await anyio.sleep(0.3)  # sleep: longer than the call of a task may wait
        assert not calling.done()
        visit.jobs.open(job)
        assert_result(visit, await calling, job)
        assert visit.jobs.count("request", job) == 1


# --- how they are run -----------------------------------------------------------------------------------------------


async def test_every_client_gets_a_good_answer() -> None:
    problems, turn = list[Exception](), asyncio.Semaphore(3)

    async def one(name: str, each: str, visit: Visit) -> None:
        try:
            with anyio.fail_after(2 * PATIENCE):
                await ROWS[each](visit)
        except Exception as exc:
            exc.add_note(f"{name}: {each}")
            problems.append(exc)

    async def run(all_of: World, name: str) -> None:
        async with turn, all_of.visit(KINDS[name]) as visit, anyio.create_task_group() as group:
            for each in ROWS:
                group.start_soon(one, name, each, visit)

    async with world() as all_of, anyio.create_task_group() as group:
        for name in KINDS:
            group.start_soon(run, all_of, name)
    if problems:
        raise ExceptionGroup(f"{len(problems)} rows", problems)
