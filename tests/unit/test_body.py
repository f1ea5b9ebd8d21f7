"""Results of tools, as a task keeps them."""

from __future__ import annotations

import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from mcp_tasks import Tasks
from mcp_tasks.testing import TaskTester

pytestmark = pytest.mark.anyio


async def test_a_result_that_is_not_valid_unicode_fails_the_task_and_says_so() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("files", extensions=[tasks], lifespan=tasks.lifespan, log_level="ERROR")

    @server.tool()
    @tasks.task()
    def name_of_a_file() -> str:
        return "half a character: \ud800"

    async with TaskTester(server, tasks) as tester:
        with pytest.raises(MCPError, match="not valid Unicode"):
            await tester.result(await tester.call("name_of_a_file"))
