"""What a call that becomes a task is answered with, and what becomes of the task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequiredResult

from harness.waiting import eventually
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import InputRequest, JsonObject, TaskRecord, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import NOBODY, Outcome
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.creation import CallAnswer, InlineResult, Question, answer_call
from mcp_tasks.server.tool_runner import require_capability
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.tooling import (
    CAN_BE_ASKED,
    LIMIT,
    all_tasks,
    answer_the_question,
    call_of,
    new_server,
    running_tools,
    until_status,
    who_is_it,
)

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=LIMIT)
SOON = timedelta(milliseconds=5)


class Gate:
    """Where a tool says that it has begun, and waits for its test."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self.stopped = asyncio.Event()

    async def pass_through(self) -> None:
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise


def furnished(gate: Gate | None = None) -> MCPServer[Any]:
    """A server with a tool for every way in which a call can be answered."""
    server, held_up = new_server(), gate or Gate()

    @server.tool()
    async def asks(ctx: Context) -> str | InputRequiredResult:
        return "known" if ctx.input_responses else who_is_it()

    @server.tool()
    async def asks_after_a_while(ctx: Context) -> str | InputRequiredResult:
        await held_up.pass_through()
        return "known" if ctx.input_responses else who_is_it()

    @server.tool()
    async def works_and_asks(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses:
            return "known"
        await ctx.report_progress(1, 2)
        await held_up.pass_through()
        return who_is_it()

    @server.tool()
    async def ends() -> str:
        return "done"

    @server.tool()
    async def waits() -> str:
        await held_up.pass_through()
        return "waited"

    @server.tool()
    async def breaks() -> str:
        raise MCPError(code=INVALID_PARAMS, message="no such thing", data={"hint": "another"})

    @server.tool()
    async def elicits(ctx: Context) -> str:
        await ctx.session.elicit_form("Well?", {"type": "object", "properties": {}})
        return "answered"

    return server


async def call(
    runtime: TaskRuntime,
    tool: str,
    *,
    asks_first: bool = False,
    grace: timedelta | None = None,
    capabilities: JsonObject = CAN_BE_ASKED,
) -> CallAnswer:
    with anyio.fail_after(LIMIT):
        request = call_of(tool, capabilities=capabilities)
        return await answer_call(runtime, request, owner="ada", retention=None, asks_first=asks_first, grace=grace)


async def test_a_call_is_answered_with_its_task_at_once() -> None:
    gate = Gate()
    async with running_tools(furnished(gate)) as runtime:
        created = await call(runtime, "waits")
        assert isinstance(created, TaskRecord)
        assert (created.status, created.announced, created.owner) == (TaskStatus.WORKING, True, "ada")
        gate.opened.set()
        await until_status(runtime, created.id, TaskStatus.COMPLETED)


# Asking on the call


@asynccontextmanager
async def in_one_process(server: MCPServer[Any], tmp_path: Path) -> AsyncGenerator[TaskRuntime]:
    """One runtime that serves and runs tools."""
    async with running_tools(server) as runtime:
        yield runtime


@asynccontextmanager
async def in_two_processes(server: MCPServer[Any], tmp_path: Path) -> AsyncGenerator[TaskRuntime]:
    """A runtime that serves, of tools that another one runs; they share nothing but a file."""
    here, there = (SqliteStore(tmp_path / "tasks.db", poll_interval=SOON) for _ in range(2))
    async with (
        running_tools(server, store=here, runs_tools=False) as serving,
        running_tools(server, store=there, sweep_interval=SOON),
    ):
        yield serving


WHERE = pytest.mark.parametrize("serving", [in_one_process, in_two_processes], ids=["in one process", "in two"])


@WHERE
async def test_a_question_that_comes_before_the_announcement_is_the_answer_and_no_task_is_left(
    serving: Any, tmp_path: Path
) -> None:
    async with serving(furnished(), tmp_path) as runtime:
        asked = await call(runtime, "asks", asks_first=True)
        assert isinstance(asked, Question)
        assert asked.question["inputRequests"]["who"]["params"]["message"] == "Who is it?"
        assert asked.question["requestState"] == "asked"
        assert "resultType" not in asked.question
        assert await all_tasks(runtime) == []


@WHERE
async def test_a_question_that_comes_after_the_announcement_is_asked_in_the_task(serving: Any, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(furnished(gate), tmp_path) as runtime:
        # It is at work, as its progress shows, so it is not waited for any longer.
        created = await call(runtime, "works_and_asks", asks_first=True)
        assert isinstance(created, TaskRecord)
        gate.opened.set()
        await answer_the_question(runtime, created.id)
        await until_status(runtime, created.id, TaskStatus.COMPLETED)


@WHERE
async def test_within_the_grace_a_question_is_asked_on_the_call_too(serving: Any, tmp_path: Path) -> None:
    async with serving(furnished(), tmp_path) as runtime:
        assert isinstance(await call(runtime, "asks", grace=LONG), Question)
        assert await all_tasks(runtime) == []


@WHERE
async def test_whoever_is_first_a_question_is_asked_exactly_once(serving: Any, tmp_path: Path) -> None:
    async with serving(furnished(), tmp_path) as runtime:

        async def call_with(grace: timedelta) -> CallAnswer:
            answer = await call(runtime, "asks", grace=grace)
            if isinstance(answer, TaskRecord):
                await answer_the_question(runtime, answer.id)
                await until_status(runtime, answer.id, TaskStatus.COMPLETED)
            return answer

        calls = (call_with(timedelta(milliseconds=0.2 * 1.2**number)) for number in range(40))
        answers = await asyncio.gather(*calls)
        announced = {answer.id for answer in answers if isinstance(answer, TaskRecord)}
        assert {task.id for task in await all_tasks(runtime)} == announced


async def test_a_question_that_the_client_cannot_answer_is_refused_on_the_call_and_no_task_is_left() -> None:
    async with running_tools(furnished()) as runtime:
        with pytest.raises(RpcError, match="did not declare the elicitation capability") as refused:
            await call(runtime, "asks", asks_first=True, capabilities={})
        assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert await all_tasks(runtime) == []


async def test_a_quick_tool_that_might_have_asked_is_still_answered_with_a_task() -> None:
    async with running_tools(furnished()) as runtime:
        created = await call(runtime, "ends", asks_first=True)
        assert isinstance(created, TaskRecord)
        await until_status(runtime, created.id, TaskStatus.COMPLETED)


async def test_a_tool_that_nobody_waits_for_any_more_ends_where_it_asks_on_the_call() -> None:
    gate, store = Gate(), MemoryStore()
    server = furnished(gate)
    async with running_tools(server, store=store) as runtime:
        # As if the process that took the call had died while the call was open.
        record = await runtime.launch(call_of("asks_after_a_while"), owner=None, retention=None, announced=False)
        gate.opened.set()
        ended = await until_status(runtime, record.id, TaskStatus.CANCELLED)
        assert not ended.announced
        assert ended.inputs.outstanding == {}


# A caller that goes away


async def test_a_caller_that_goes_away_before_the_announcement_takes_the_task_with_it() -> None:
    gate = Gate()
    async with running_tools(furnished(gate)) as runtime:
        calling = asyncio.create_task(call(runtime, "asks_after_a_while", asks_first=True))
        await gate.begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        [record] = await all_tasks(runtime)
        assert record.status is TaskStatus.CANCELLED
        assert record.status_message == "The caller went away before the task was announced"
        await asyncio.wait_for(gate.stopped.wait(), LIMIT)


class MoodyStore(MemoryStore):
    """A store whose reads or writes fail while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_fail = False
        self.outcomes_fail = False
        self.writes_fail = False
        self.failures = 0

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.reads_fail:
            self.failures += 1
            raise StoreUnavailable("not now")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        if self.outcomes_fail:
            raise StoreUnavailable("not now")
        return await super().outcome(task_id)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if self.writes_fail:
            self.failures += 1
            raise StoreUnavailable("not now")
        return await super().save(record, **options)


async def test_a_caller_may_go_away_while_the_store_is_out_of_order() -> None:
    gate, store = Gate(), MoodyStore()
    async with running_tools(furnished(gate), store=store) as runtime:
        calling = asyncio.create_task(call(runtime, "asks_after_a_while", asks_first=True))
        await gate.begun.wait()
        store.writes_fail = True
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        store.writes_fail = False
        [record] = await all_tasks(runtime)
        gate.opened.set()
        await until_status(runtime, record.id, TaskStatus.CANCELLED)


async def test_a_call_whose_result_cannot_be_read_may_have_been_made() -> None:
    store = MoodyStore()
    async with running_tools(furnished(), store=store) as runtime:
        store.outcomes_fail = True
        with pytest.raises(StoreUnavailable) as failed:
            await call(runtime, "ends", grace=LONG)
    assert failed.value.may_have_happened


async def test_a_caller_that_goes_away_within_the_grace_leaves_the_task() -> None:
    gate = Gate()
    async with running_tools(furnished(gate)) as runtime:
        calling = asyncio.create_task(call(runtime, "waits", grace=LONG))
        await gate.begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        gate.opened.set()
        [record] = await all_tasks(runtime)
        await until_status(runtime, record.id, TaskStatus.COMPLETED)


# Within the grace


@WHERE
async def test_a_tool_that_ends_within_the_grace_is_answered_inline_and_no_task_is_left(
    serving: Any, tmp_path: Path
) -> None:
    async with serving(furnished(), tmp_path) as runtime:
        answer = await call(runtime, "ends", grace=LONG)
        assert isinstance(answer, InlineResult)
        assert decode_json(answer.outcome.body)["structuredContent"] == {"result": "done"}
        with pytest.raises(RpcError, match="no such thing") as refused:
            await call(runtime, "breaks", grace=LONG)
        assert (refused.value.code, refused.value.data) == (INVALID_PARAMS, {"hint": "another"})
        assert await all_tasks(runtime) == []


@WHERE
async def test_a_tool_that_outlasts_the_grace_is_announced(serving: Any, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(furnished(gate), tmp_path) as runtime:
        created = await call(runtime, "waits", grace=timedelta(milliseconds=20))
        assert isinstance(created, TaskRecord)
        assert (await runtime.get(created.id, owner="ada")).announced
        gate.opened.set()
        await until_status(runtime, created.id, TaskStatus.COMPLETED)


async def test_the_grace_ends_when_the_tool_asks_in_its_task() -> None:
    async with running_tools(furnished()) as runtime:
        created = await call(runtime, "elicits", grace=timedelta(hours=1))
        assert isinstance(created, TaskRecord)
        assert (await runtime.get(created.id, owner="ada")).announced


async def test_a_task_that_is_cancelled_while_its_call_is_open_is_the_answer() -> None:
    gate = Gate()
    async with running_tools(furnished(gate)) as runtime:
        calling = asyncio.create_task(call(runtime, "waits", grace=LONG))
        await gate.begun.wait()
        [record] = await all_tasks(runtime)
        await runtime.cancel(record, "enough", actor=NOBODY)
        answer = await calling
        assert isinstance(answer, TaskRecord)
        assert (await runtime.get(answer.id, owner="ada")).status is TaskStatus.CANCELLED


@pytest.mark.parametrize("options", [{"asks_first": True}, {"grace": LONG}], ids=["asks first", "grace"])
async def test_a_store_that_cannot_be_read_while_the_call_is_open_does_not_have_the_tool_started_twice(
    options: dict[str, Any],
) -> None:
    gate, store = Gate(), MoodyStore()
    async with running_tools(furnished(gate), store=store) as runtime:
        store.reads_fail = True
        created = await call(runtime, "asks_after_a_while", **options)
        store.reads_fail = False
        assert isinstance(created, TaskRecord)
        gate.opened.set()
        await until_status(runtime, created.id, TaskStatus.INPUT_REQUIRED)


@pytest.mark.parametrize("options", [{"asks_first": True}, {"grace": LONG}], ids=["asks first", "grace"])
async def test_a_task_is_announced_however_long_the_store_takes_to_be_there_again(options: dict[str, Any]) -> None:
    gate, store = Gate(), MoodyStore()
    async with running_tools(furnished(gate), store=store) as runtime:
        store.reads_fail = store.writes_fail = True
        calling = asyncio.create_task(call(runtime, "asks_after_a_while", **options))
        await gate.begun.wait()
        await eventually(lambda: store.failures > 2)
        assert not calling.done()
        store.reads_fail = store.writes_fail = False
        created = await calling
        assert isinstance(created, TaskRecord)
        assert (await runtime.get(created.id, owner="ada")).announced


@pytest.mark.parametrize(("mode", "declared"), [("url", {"form": {}}), ("form", {"url": {}}), ("url", {})])
def test_what_is_said_to_be_missing_is_the_mode_where_others_are_declared(mode: str, declared: dict[str, Any]) -> None:
    question = InputRequest(method="elicitation/create", params={"mode": mode, "message": "?"})
    with pytest.raises(RpcError, match=rf"did not declare the elicitation\.{mode} capability") as refused:
        require_capability(question, {"elicitation": declared})
    assert refused.value.data == {"requiredCapabilities": {"elicitation": {mode: {}}}}
