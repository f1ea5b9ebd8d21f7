"""What the pages say in tables and between their code blocks, where it would be wrong without anybody noticing."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.server import MCPServer

from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient
from mcp_tasks.errors import WiringError
from mcp_tasks.server import ToolOptions
from tests.helpers.process import ROOT

pytestmark = pytest.mark.anyio

DOCS = ROOT / "docs"


@asynccontextmanager
async def mine(_: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
    """A lifespan of the author's own."""
    yield {}


def _names_of(page: Path) -> dict[str, Any]:
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_table_of_options_has_every_option_of_a_tool() -> None:
    table = (DOCS / "tools.md").read_text().partition("## Which option goes where")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert {row[1].strip("`") for row in rows[2:]} - {""} == ToolOptions.__annotations__.keys()


async def test_a_server_that_cannot_be_reached_is_caught_as_the_client_page_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"
        await _names_of(DOCS / "client.md")["connect"](url)
    said = capsys.readouterr().out
    assert "no connection" in said
    assert url in said


def test_the_wirings_that_troubleshooting_lists_are_refused_as_it_says() -> None:
    tasks = Tasks("memory://")
    with pytest.raises(WiringError):
        MCPServer("a", extensions=[tasks])
    with pytest.raises(TypeError, match="got multiple values for keyword argument 'lifespan'"):
        MCPServer("a", lifespan=mine, **tasks.wiring())  # pyright: ignore[reportCallIssue]


async def test_a_lifespan_that_was_replaced_is_told_of_at_the_first_call_that_would_be_a_task() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("a", extensions=tasks.wiring()["extensions"], lifespan=mine)

    @server.tool()
    @tasks.task()
    async def greet() -> str:  # pyright: ignore[reportUnusedFunction]
        return "hello"

    async with Client(server, extensions=[TasksClient()]) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["greet"]
        with pytest.raises(MCPError, match="tasks are not running"):
            await client.call_tool("greet")
