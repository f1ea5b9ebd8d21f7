"""Calls that could not be answered, and what becomes of their tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from mcp_tasks import Tasks
from mcp_tasks.core import TaskRecord
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.memory import MemoryStore
from tests.helpers.http import serving
from tests.helpers.rpc import EVERYTHING, INTERNAL_ERROR, Tasking, accept, text_of
from tests.helpers.server import QUICK, Name

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


async def test_a_tool_whose_call_was_answered_with_an_error_asks_in_its_task_and_not_on_the_call() -> None:
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
        reply = await client.ask("tools/call", {"name": "ask", "arguments": {}})
        assert reply.code == INTERNAL_ERROR
        store.is_out_of_order = False
        await begun.wait()
        may_ask.set()
        # Nobody was told its id; whoever looks into the store finds it asking, and can answer.
        [record] = (await store.list()).records
        [key] = (await client.until(record.id, "input_required"))["inputRequests"]
        await client.update(record.id, **{key: accept(name="Ada")})
        assert text_of((await client.until(record.id, "completed"))["result"]) == "answered"
