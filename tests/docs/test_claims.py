"""What the pages say in tables and between their code blocks, where it would be wrong without anybody noticing."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.server import MCPServer

from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient
from mcp_tasks.errors import WiringError
from mcp_tasks.server import ToolOptions
from tests.deploy.recipes import answers
from tests.helpers.process import ENVIRONMENT, ROOT

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


async def test_the_server_and_the_client_of_the_page_on_hosted_tasks_work_together(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "client-tasks.md").read_text(), re.DOTALL | re.MULTILINE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serving, hosting = (text for text in blocks if "__main__" in text)
    (tmp_path / "server.py").write_text(serving.replace('"streamable-http"', f'"streamable-http", port={port}'))
    (tmp_path / "client.py").write_text(hosting.replace("8000", str(port)))
    environment = {**ENVIRONMENT, "MCP_TASKS_URL": "memory://"}

    async with await anyio.open_process(
        [sys.executable, "server.py"], cwd=tmp_path, env=environment, stdout=None, stderr=None
    ) as server:

        def is_alive() -> None:
            assert server.returncode is None, "the server ended by itself"

        await answers(f"http://127.0.0.1:{port}/mcp", is_alive)
        done = await anyio.run_process([sys.executable, "client.py"], cwd=tmp_path, env=environment)
        server.terminate()
    assert done.stdout.decode() == "accept\n"
    assert (tmp_path / "hosted.db").exists()
