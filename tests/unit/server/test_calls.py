"""What a call that becomes a task is answered with, and what becomes of the task, seen over the wire."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from harness.http import serving
from harness.official import in_memory
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    PATIENCE,
    TASKS,
    Tasking,
    accept,
    text_of,
)
from harness.server import QUICK, Desk, Name, build, resolve_name
from harness.stored import all_tasks
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.sqlite import SqliteStore
from tests.push.listening import listening
from tests.unit.running import MeddledStore

NAME = "answering"
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=5)
AWAY = StoreUnavailable("not now")
RACES = 40
"""Calls whose grace ends about when the tool asks."""


def furnished(tasks: Tasks, desk: Desk) -> MCPServer[Any]:
    """A server with a tool for every way in which a call can be answered."""
    server: MCPServer[Any] = MCPServer(NAME, **tasks.wiring(), log_level="CRITICAL")

    async def asks(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses:
            return "known"
        question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state="asked")

    async def asks_later(ctx: Context) -> str | InputRequiredResult:
        await waits()
        return await asks(ctx)

    async def works_and_asks(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses:
            return "known"
        await ctx.report_progress(1, 2)
        return await asks_later(ctx)

    async def elicits(ctx: Context) -> str:
        return (await ctx.elicit("Well?", Name)).action

    async def quick() -> str | InputRequiredResult:
        return "done"

    async def waits() -> str:
        desk.started.set()
        try:
            await desk.gate.wait()
        except asyncio.CancelledError:
            desk.stopped.set()
            raise
        return "waited"

    def greets(who: Annotated[Name, Resolve(resolve_name)]) -> str:
        return f"Hello, {who.name}"

    async def fails() -> str:
        raise ToolError("as tools fail")

    async def breaks() -> str:
        raise MCPError(code=INVALID_PARAMS, message="no such thing", data={"hint": "another"})

    def add(name: str, tool: Callable[..., Any], **options: Any) -> None:
        server.add_tool(tasks.task(name=name, **options)(tool), name=name)

    for tool in (asks, asks_later, works_and_asks, quick, waits, greets):
        add(tool.__name__, tool)
    for tool in (asks, asks_later, elicits, quick, waits, fails, breaks):
        add(f"{tool.__name__}_in_grace", tool, asks_first=False, grace=HOUR)
    add("waits_longer", waits, grace=4 * SOON)
    add("quick_without_grace", quick, grace=timedelta(0))
    for number in range(RACES):
        grace = timedelta(milliseconds=0.2 * 1.2**number)
        add(f"asks_{number}", asks, asks_first=False, grace=grace)
    return server


async def nobody(context: Any, params: Any) -> Any:
    raise AssertionError("tests answer themselves")


@dataclass
class Served:
    client: Tasking
    store: Any
    desk: Desk

    async def tasks(self) -> list[TaskRecord]:
        return await all_tasks(self.store, NAME)

    async def answer(self, task_id: str) -> dict[str, Any]:
        asking = await self.client.until(task_id, "input_required")
        await self.client.update(task_id, **dict.fromkeys(asking["inputRequests"], accept(name="Ada")))
        return await self.client.until(task_id, "completed")


@asynccontextmanager
async def served(store: Store, desk: Desk | None = None, **options: Any) -> AsyncGenerator[Served]:
    desk = desk or Desk()
    server = furnished(Tasks(store, settings=QUICK, **options), desk)
    async with in_memory(server, elicitation_callback=nobody) as wire:
        yield Served(Tasking(wire), store, desk)


@pytest.fixture
async def server() -> AsyncGenerator[Served]:
    async with served(MeddledStore()) as seen:
        yield seen


@pytest.fixture(params=["in one process", "in two"])
async def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Served]:
    """The same, and one that serves, of tools that another one runs; the two share nothing but a file."""
    if request.param == "in one process":
        async with served(MeddledStore()) as seen:
            yield seen
        return
    desk, here, there = Desk(), *(SqliteStore(tmp_path / "tasks.db", poll_interval=SOON) for _ in range(2))
    async with served(there, desk), served(here, desk, runs_tools=False) as seen:
        yield seen


@pytest.mark.parametrize(
    ("tool", "asks"), [("asks", "Who is it?"), ("asks_in_grace", "Who is it?"), ("greets", "Who goes there?")]
)
async def test_a_question_before_the_announcement_is_the_answer_and_no_task_is_left(
    anywhere: Served, tool: str, asks: str
) -> None:
    asked = await anywhere.client.call(tool)
    assert asked["resultType"] == "input_required"
    assert [question["params"]["message"] for question in asked["inputRequests"].values()] == [asks]
    assert await anywhere.tasks() == []


async def test_a_question_that_comes_after_the_announcement_is_asked_in_the_task(anywhere: Served) -> None:
    # It is at work, as its progress shows, so it is not waited for any longer.
    task = await anywhere.client.create("works_and_asks")
    anywhere.desk.gate.set()
    await anywhere.answer(task)


async def test_whoever_is_first_a_question_is_asked_exactly_once(anywhere: Served) -> None:
    async def call(number: int) -> str | None:
        answer = await anywhere.client.call(f"asks_{number}")
        if answer["resultType"] == "input_required":
            return None
        await anywhere.answer(answer["taskId"])
        return answer["taskId"]

    announced = set(await asyncio.gather(*map(call, range(RACES)))) - {None}
    assert {task.id for task in await anywhere.tasks()} == announced


async def test_a_question_that_the_client_cannot_answer_is_refused_on_the_call_and_no_task_is_left() -> None:
    store = MeddledStore()
    async with serving(furnished(Tasks(store, settings=QUICK), Desk())) as wire:
        cases: list[tuple[dict[str, Any], Any]] = [({}, {}), ({"elicitation": {"url": {}}}, {"form": {}})]
        for declared, missing in cases:
            client = Tasking(wire, {**TASKS, **declared})
            error = (await client.ask("tools/call", {"name": "asks", "arguments": {}})).error
            assert error["code"] == MISSING_CAPABILITY
            assert error["data"] == {"requiredCapabilities": {"elicitation": missing}}
            assert await all_tasks(store, NAME) == []


async def test_a_quick_tool_that_might_have_asked_is_still_answered_with_a_task(server: Served) -> None:
    assert text_of((await server.client.finish("quick"))["result"]) == "done"


# Within the grace


async def test_a_tool_that_ends_within_the_grace_is_answered_inline_and_no_task_is_left(anywhere: Served) -> None:
    assert text_of(await anywhere.client.call("quick_in_grace")) == "done"
    assert (await anywhere.client.call("fails_in_grace"))["isError"] is True
    error = (await anywhere.client.ask("tools/call", {"name": "breaks_in_grace", "arguments": {}})).error
    assert error == {"code": INVALID_PARAMS, "message": "no such thing", "data": {"hint": "another"}}
    assert await anywhere.tasks() == []


async def test_a_tool_has_the_grace_of_its_server_unless_it_has_one_of_its_own() -> None:
    async with served(MeddledStore(), grace=HOUR) as server:
        answers = [await server.client.call(tool) for tool in ("quick", "quick_without_grace")]
    assert [answer["resultType"] for answer in answers] == ["complete", "task"]


async def test_a_tool_that_outlasts_the_grace_is_announced(anywhere: Served) -> None:
    task = await anywhere.client.create("waits_longer")
    assert [record.announced for record in await anywhere.tasks()] == [True]
    anywhere.desk.gate.set()
    await anywhere.client.until(task, "completed")


async def test_the_grace_ends_when_the_tool_asks_and_the_question_is_asked_in_the_task(server: Served) -> None:
    with anyio.fail_after(PATIENCE):
        task = await server.client.create("elicits_in_grace")
    assert text_of((await server.answer(task))["result"]) == "accept"


async def test_a_task_cancelled_within_the_grace_is_announced_as_one(server: Served) -> None:
    calling = asyncio.create_task(server.client.call("waits_in_grace"))
    await server.desk.started.wait()
    [record] = await server.tasks()
    await server.client.cancel(record.id)
    created = await calling
    assert (created["resultType"], created["taskId"]) == ("task", record.id)
    assert (await server.client.get(record.id))["status"] == "cancelled"


# A caller that goes away


async def gives_up(server: Served, tool: str, before: Callable[[], None] = lambda: None) -> TaskRecord:
    """Call a tool and go away while it is at work; gives its task."""
    calling = asyncio.create_task(server.client.call(tool))
    await server.desk.started.wait()
    before()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    [record] = await server.tasks()
    return record


async def test_a_caller_that_goes_away_before_the_announcement_takes_the_task_with_it(server: Served) -> None:
    record = await gives_up(server, "asks_later")
    ended = await server.client.until(record.id, "cancelled")
    assert ended["statusMessage"] == "The caller went away before the task was announced"
    await asyncio.wait_for(server.desk.stopped.wait(), PATIENCE)


async def test_a_caller_that_goes_away_within_the_grace_leaves_the_task(server: Served) -> None:
    record = await gives_up(server, "waits_in_grace")
    server.desk.gate.set()
    await server.client.until(record.id, "completed")


async def test_a_tool_that_nobody_waits_for_any_more_ends_where_it_asks(server: Served) -> None:
    def no_writes() -> None:
        server.store.calls.clear()
        server.store.refuse(AWAY, "save")

    record = await gives_up(server, "asks_later", no_writes)
    await eventually(lambda: server.store.calls["save"])
    server.store.before.clear()
    assert (await server.store.get(record.id)).status is TaskStatus.WORKING
    server.desk.gate.set()
    await server.client.until(record.id, "cancelled")


# A store that is away


async def test_a_call_whose_result_cannot_be_read_may_have_been_made(server: Served) -> None:
    server.store.refuse(AWAY, "outcome")
    error = (await server.client.ask("tools/call", {"name": "quick_in_grace", "arguments": {}})).error
    assert "may have been carried out" in error["message"]


OPEN = pytest.mark.parametrize("tool", ["asks_later", "asks_later_in_grace"], ids=["asks first", "grace"])


@OPEN
async def test_a_store_that_cannot_be_read_while_the_call_is_open_does_not_have_the_tool_started_twice(
    server: Served, tool: str
) -> None:
    server.store.refuse(AWAY, "get")
    task = await server.client.create(tool)
    server.store.before.clear()
    server.desk.gate.set()
    await server.answer(task)


@OPEN
async def test_a_task_is_announced_however_long_the_store_takes_to_be_there_again(server: Served, tool: str) -> None:
    server.store.refuse(AWAY, "get", "save")
    calling = asyncio.create_task(server.client.create(tool))
    await server.desk.started.wait()
    server.store.calls.clear()
    await eventually(lambda: server.store.calls["get"] + server.store.calls["save"] > 2)
    assert not calling.done()
    server.store.before.clear()
    task = await calling
    assert [(record.id, record.announced) for record in await server.tasks()] == [(task, True)]


async def test_a_task_that_cannot_be_read_answers_with_an_error_that_says_so_to_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, desk = MeddledStore(), Desk()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        bad, good = await client.create("gated"), await client.create("gated")
        torn = TaskUnreadable(bad, "its row is torn", owner=None)
        store.refuse(torn, "get", when=lambda task_id, _: task_id == bad)  # pyright: ignore[reportUnnecessaryComparison]
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            reply = await client.ask(method, {"taskId": bad, "inputResponses": {}})
            assert reply.code == INTERNAL_ERROR
            assert reply.error["message"] == "This task cannot be read; the server's log says why"
        async with listening(wire, [bad, good]) as stream:
            assert await stream.acknowledged() == {"taskIds": [good]}
        # The run of it goes on, and ends.
        store.before.clear()
        desk.gate.set()
        await client.until(bad, "completed")
    assert "its row is torn" in caplog.text
