"""What a call that becomes a task is answered with, and what becomes of the task, seen over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
)

from harness.http import serving
from harness.official import in_memory
from harness.rpc import PATIENCE, TASKS, Tasking, accept, text_of
from harness.server import QUICK, Name, resolve_name
from harness.stored import all_tasks
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.record import Outcome
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

NAME = "answering"
LONG = timedelta(seconds=PATIENCE)
SOON = timedelta(milliseconds=5)


@dataclass
class Gate:
    """Where a tool says that it has begun, and waits for its test."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise


def who_is_it() -> InputRequiredResult:
    """A question that a tool asks by returning."""
    question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
    return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state="asked")


def furnished(tasks: Tasks, gate: Gate) -> MCPServer[Any]:
    """A server with a tool for every way in which a call can be answered."""
    server: MCPServer[Any] = MCPServer(NAME, **tasks.wiring(), log_level="CRITICAL")

    async def asks(ctx: Context) -> str | InputRequiredResult:
        return "known" if ctx.input_responses else who_is_it()

    async def asks_later(ctx: Context) -> str | InputRequiredResult:
        await gate.pass_through()
        return await asks(ctx)

    async def works_and_asks(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses:
            return "known"
        await ctx.report_progress(1, 2)
        return await asks_later(ctx)

    async def quick() -> str | InputRequiredResult:
        return "done"

    async def waits() -> str:
        await gate.pass_through()
        return "waited"

    def greets(who: Annotated[Name, Resolve(resolve_name)]) -> str:
        return f"Hello, {who.name}"

    async def breaks() -> str:
        raise MCPError(code=INVALID_PARAMS, message="no such thing", data={"hint": "another"})

    def add(name: str, tool: Callable[..., Any], **options: Any) -> None:
        server.add_tool(tasks.task(name=name, **options)(tool), name=name)

    for tool in (asks, asks_later, works_and_asks, quick, waits, greets):
        add(tool.__name__, tool)
    for tool in (asks, asks_later, quick, waits, breaks):
        add(f"{tool.__name__}_in_grace", tool, asks_first=False, grace=LONG)
    add("waits_longer", waits, grace=4 * SOON)
    for number in range(RACES):
        grace = timedelta(milliseconds=0.2 * 1.2**number)
        add(f"asks_{number}", asks, asks_first=False, grace=grace)
    return server


RACES = 40
"""Calls whose grace ends about when the tool asks."""


async def nobody(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("tests answer themselves")


@dataclass
class Served:
    """A client of the server, its store and its gate."""

    client: Tasking
    store: Store
    gate: Gate

    async def tasks(self) -> list[TaskRecord]:
        return await all_tasks(self.store, NAME)

    async def answer(self, task_id: str) -> dict[str, Any]:
        asking = await self.client.until(task_id, "input_required")
        await self.client.update(task_id, **dict.fromkeys(asking["inputRequests"], accept(name="Ada")))
        return await self.client.until(task_id, "completed")


@asynccontextmanager
async def served(store: Store, gate: Gate | None = None, **options: Any) -> AsyncGenerator[Served]:
    gate = gate or Gate()
    server = furnished(Tasks(store, settings=QUICK, **options), gate)
    async with in_memory(server, elicitation_callback=nobody) as wire:
        yield Served(Tasking(wire), store, gate)


@asynccontextmanager
async def in_one_process(tmp_path: Path) -> AsyncGenerator[Served]:
    """A server that serves and runs tools."""
    async with served(MemoryStore()) as seen:
        yield seen


@asynccontextmanager
async def in_two_processes(tmp_path: Path) -> AsyncGenerator[Served]:
    """A server that serves, of tools that another one runs; they share nothing but a file."""
    gate, here, there = Gate(), *(SqliteStore(tmp_path / "tasks.db", poll_interval=SOON) for _ in range(2))
    async with served(there, gate), served(here, gate, runs_tools=False) as seen:
        yield seen


WHERE = pytest.mark.parametrize("where", [in_one_process, in_two_processes], ids=["in one process", "in two"])


@WHERE
@pytest.mark.parametrize("tool", ["asks", "asks_in_grace"])
async def test_a_question_before_the_announcement_is_the_answer_and_no_task_is_left(
    where: Any, tmp_path: Path, tool: str
) -> None:
    async with where(tmp_path) as server:
        asked = await server.client.call(tool)
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["who"]["params"]["message"] == "Who is it?"
        assert await server.tasks() == []


async def test_a_parameter_of_a_plain_function_is_asked_for_on_the_call(tmp_path: Path) -> None:
    async with in_one_process(tmp_path) as server:
        asked = await server.client.call("greets")
        [question] = asked["inputRequests"].values()
        assert question["params"]["message"] == "Who goes there?"
        assert await server.tasks() == []


@WHERE
async def test_a_question_that_comes_after_the_announcement_is_asked_in_the_task(where: Any, tmp_path: Path) -> None:
    async with where(tmp_path) as server:
        # It is at work, as its progress shows, so it is not waited for any longer.
        task = await server.client.create("works_and_asks")
        server.gate.opened.set()
        await server.answer(task)


@WHERE
async def test_whoever_is_first_a_question_is_asked_exactly_once(where: Any, tmp_path: Path) -> None:
    async with where(tmp_path) as server:

        async def call(number: int) -> str | None:
            answer = await server.client.call(f"asks_{number}")
            if answer["resultType"] == "input_required":
                return None
            await server.answer(answer["taskId"])
            return answer["taskId"]

        announced = set(await asyncio.gather(*map(call, range(RACES)))) - {None}
        assert {task.id for task in await server.tasks()} == announced


async def test_a_question_that_the_client_cannot_answer_is_refused_on_the_call_and_no_task_is_left() -> None:
    store = MemoryStore()
    async with serving(furnished(Tasks(store, settings=QUICK), Gate())) as wire:
        cases: list[tuple[dict[str, Any], Any]] = [({}, {}), ({"elicitation": {"url": {}}}, {"form": {}})]
        for declared, missing in cases:
            client = Tasking(wire, {**TASKS, **declared})
            error = (await client.ask("tools/call", {"name": "asks", "arguments": {}})).error
            assert error["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert error["data"] == {"requiredCapabilities": {"elicitation": missing}}
            assert await all_tasks(store, NAME) == []


async def test_a_quick_tool_that_might_have_asked_is_still_answered_with_a_task(tmp_path: Path) -> None:
    async with in_one_process(tmp_path) as server:
        assert text_of((await server.client.finish("quick"))["result"]) == "done"


# Within the grace


@WHERE
async def test_a_tool_that_ends_within_the_grace_is_answered_inline_and_no_task_is_left(
    where: Any, tmp_path: Path
) -> None:
    async with where(tmp_path) as server:
        assert text_of(await server.client.call("quick_in_grace")) == "done"
        error = (await server.client.ask("tools/call", {"name": "breaks_in_grace", "arguments": {}})).error
        assert error == {"code": INVALID_PARAMS, "message": "no such thing", "data": {"hint": "another"}}
        assert await server.tasks() == []


@WHERE
async def test_a_tool_that_outlasts_the_grace_is_announced(where: Any, tmp_path: Path) -> None:
    async with where(tmp_path) as server:
        task = await server.client.create("waits_longer")
        assert [record.announced for record in await server.tasks()] == [True]
        server.gate.opened.set()
        await server.client.until(task, "completed")


# A caller that goes away


async def gives_up(server: Served, tool: str, before: Callable[[], None] = lambda: None) -> TaskRecord:
    """Call a tool and go away while it is at work; gives its task."""
    calling = asyncio.create_task(server.client.call(tool))
    await server.gate.begun.wait()
    before()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    [record] = await server.tasks()
    return record


async def test_a_caller_that_goes_away_before_the_announcement_takes_the_task_with_it(tmp_path: Path) -> None:
    async with in_one_process(tmp_path) as server:
        record = await gives_up(server, "asks_later")
        ended = await server.client.until(record.id, "cancelled")
        assert ended["statusMessage"] == "The caller went away before the task was announced"
        await asyncio.wait_for(server.gate.stopped.wait(), PATIENCE)


async def test_a_caller_that_goes_away_within_the_grace_leaves_the_task(tmp_path: Path) -> None:
    async with in_one_process(tmp_path) as server:
        record = await gives_up(server, "waits_in_grace")
        server.gate.opened.set()
        await server.client.until(record.id, "completed")


# A store that is away


class MoodyStore(MemoryStore):
    """A store whose reads or writes fail while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = frozenset[str]()
        self.failures = 0

    def _may_fail(self, what: str) -> None:
        if what in self.fails:
            self.failures += 1
            raise StoreUnavailable("not now")

    async def get(self, task_id: str) -> TaskRecord | None:
        self._may_fail("get")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        self._may_fail("outcome")
        return await super().outcome(task_id)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        self._may_fail("save")
        return await super().save(record, **options)


async def test_a_tool_that_nobody_waits_for_any_more_ends_where_it_asks() -> None:
    store = MoodyStore()
    async with served(store) as server:

        def no_writes() -> None:
            store.fails = frozenset({"save"})

        record = await gives_up(server, "asks_later", no_writes)
        await eventually(lambda: store.failures)
        store.fails = frozenset()
        assert (await store.get(record.id) or record).status is TaskStatus.WORKING
        server.gate.opened.set()
        await server.client.until(record.id, "cancelled")


async def test_a_call_whose_result_cannot_be_read_may_have_been_made() -> None:
    store = MoodyStore()
    async with served(store) as server:
        store.fails = frozenset({"outcome"})
        error = (await server.client.ask("tools/call", {"name": "quick_in_grace", "arguments": {}})).error
        assert "may have been carried out" in error["message"]


OPEN = pytest.mark.parametrize("tool", ["asks_later", "asks_later_in_grace"], ids=["asks first", "grace"])


@OPEN
async def test_a_store_that_cannot_be_read_while_the_call_is_open_does_not_have_the_tool_started_twice(
    tool: str,
) -> None:
    store = MoodyStore()
    async with served(store) as server:
        store.fails = frozenset({"get"})
        task = await server.client.create(tool)
        store.fails = frozenset()
        server.gate.opened.set()
        await server.client.until(task, "input_required")


@OPEN
async def test_a_task_is_announced_however_long_the_store_takes_to_be_there_again(tool: str) -> None:
    store = MoodyStore()
    async with served(store) as server:
        store.fails = frozenset({"get", "save"})
        calling = asyncio.create_task(server.client.create(tool))
        await server.gate.begun.wait()
        await eventually(lambda: store.failures > 2)
        assert not calling.done()
        store.fails = frozenset()
        task = await calling
        assert [(record.id, record.announced) for record in await server.tasks()] == [(task, True)]
