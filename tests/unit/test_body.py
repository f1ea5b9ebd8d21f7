"""Runs of tools, from their records."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks import Tasks
from mcp_tasks.core import TaskRequest
from mcp_tasks.testing import TaskTester

pytestmark = pytest.mark.anyio

MEBIBYTE = 2**20


async def test_a_result_that_is_not_valid_unicode_fails_the_task_and_says_so() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("files", **tasks.wiring(), log_level="ERROR")

    @server.tool()
    @tasks.task()
    def name_of_a_file() -> str:
        return "half a character: \ud800"

    async with TaskTester(server, tasks) as tester:
        with pytest.raises(MCPError, match="not valid Unicode"):
            await tester.result(await tester.call("name_of_a_file"))


async def test_tasks_of_many_talkative_clients_leave_no_memory_behind() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("polite", **tasks.wiring(), log_level="ERROR")

    @server.tool()
    @tasks.task()
    async def tool() -> str:
        return "done"

    async with TaskTester(server, tasks) as tester:

        async def call(version: str) -> None:
            request = TaskRequest(
                name="tool",
                arguments={},
                protocol_version=LATEST_MODERN_VERSION,
                client_info={"name": "x" * MEBIBYTE, "version": version},
            )
            record = await tester.runtime.launch(request, owner=None, ttl=None)
            await tester.runtime.discard(await tester.finish(record.id))

        await call("first")
        tracemalloc.start()
        try:
            for number in range(64):
                await call(str(number))
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 16 * MEBIBYTE
