"""Calls that are answered while the store fails, and what becomes of their tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from harness.http import serving
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.server import QUICK, Name
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


class MoodyStore(MemoryStore):
    """A store whose reads fail while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_out_of_order = False

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.is_out_of_order:
            raise StoreUnavailable("not now")
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
