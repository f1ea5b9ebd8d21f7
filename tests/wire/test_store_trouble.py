"""A store that cannot say now, or cannot say at all: the caller is told, and everything else goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from harness.http import serving
from harness.rpc import EVERYTHING, INTERNAL_ERROR, INVALID_PARAMS, Tasking, accept, text_of
from harness.server import QUICK, Desk, Name, build
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.memory import MemoryStore
from tests.push.listening import listening

pytestmark = pytest.mark.anyio


class MoodyStore(MemoryStore):
    """A store whose reads fail while told to, all of them or those of one task, whose row is torn."""

    def __init__(self) -> None:
        super().__init__()
        self.is_out_of_order = False
        self.torn: str | None = None
        self.owner: str | None = None

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.is_out_of_order:
            raise StoreUnavailable("not now")
        if task_id == self.torn:
            raise TaskUnreadable(task_id, "its row is torn", owner=self.owner)
        return await super().get(task_id)


async def test_a_call_whose_task_cannot_be_read_now_is_answered_with_the_task_and_asked_in_it() -> None:
    store, begun, may_ask = MoodyStore(), asyncio.Event(), asyncio.Event()
    tasks = Tasks(store, settings=QUICK)
    server: MCPServer[Any] = MCPServer("moody", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task(recover="rerun")
    async def ask(ctx: Context) -> str | InputRequiredResult:
        begun.set()
        await may_ask.wait()
        if ctx.input_responses is None:
            form = ElicitRequestFormParams(message="Who?", requested_schema=Name.model_json_schema())
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=form)})
        return "answered"

    async with serving(server) as wire:
        client = Tasking(wire, EVERYTHING)
        store.is_out_of_order = True
        # The task is kept and its tool at work: an error would have the client start it a second time.
        task_id = await client.create("ask")
        store.is_out_of_order = False
        await begun.wait()
        may_ask.set()
        [key] = (await client.until(task_id, "input_required"))["inputRequests"]
        await client.update(task_id, **{key: accept(name="Ada")})
        assert text_of((await client.until(task_id, "completed"))["result"]) == "answered"


async def test_a_task_that_cannot_be_read_answers_with_an_error_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store, desk = MoodyStore(), Desk()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        bad, good = await client.create("gated"), await client.create("gated")
        store.torn = bad
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            reply = await client.ask(method, {"taskId": bad, "inputResponses": {}})
            assert reply.code == INTERNAL_ERROR
            assert reply.error["message"] == "This task cannot be read; the server's log says why"
        async with listening(wire, [bad, good]) as stream:
            assert await stream.acknowledged() == {"taskIds": [good]}
        store.owner = "somebody else"
        assert (await client.ask("tasks/get", {"taskId": bad})).code == INVALID_PARAMS
        # The run of it goes on, and ends.
        store.torn = None
        desk.gate.set()
        await client.until(bad, "completed")
    assert "its row is torn" in caplog.text
