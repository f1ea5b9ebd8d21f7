"""What the pages say in tables and between their code blocks, where it would be wrong without anybody noticing."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp_types import INVALID_PARAMS, ElicitRequestParams, ElicitResult

from harness.ports import closed_port, free_port, mcp_url
from harness.processes import ENVIRONMENT, ROOT, run, running
from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http
from mcp_tasks.errors import WiringError
from mcp_tasks.server import ToolOptions
from tests.deploy.recipes import answers

pytestmark = pytest.mark.anyio

DOCS = ROOT / "docs"
SAID_BY_THE_SDK = {
    "Task group is not initialized. Make sure to use run().",
    "Cannot send 'elicitation/create': this transport context has no back-channel",
    "Error executing tool X",
}
WITH_A_NAME_FILLED_IN = {"the server has a tool 'task_status'", "asks with elicitation/create"}


@asynccontextmanager
async def mine(_: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
    """A lifespan of the author's own."""
    yield {}


def _names_of(page: Path) -> dict[str, Any]:
    code = "\n\n".join(_code_of(page))
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_table_of_options_has_every_option_of_a_tool() -> None:
    table = (DOCS / "tools.md").read_text().partition("## Which option goes where")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert {row[1].strip("`") for row in rows[2:]} - {""} == ToolOptions.__annotations__.keys()


def test_messages_that_troubleshooting_explains_are_said_by_the_code() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    explained = {quoted.strip("… ") for heading in headings for quoted in re.findall(r'"([^"]*)"', heading)}
    ours = explained - SAID_BY_THE_SDK - WITH_A_NAME_FILLED_IN
    nodes = (node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert "gave no connection in time" in ours
    assert {words for words in ours if not any(words in text for text in said)} == set()


async def test_a_server_that_cannot_be_reached_is_caught_as_the_client_page_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with closed_port() as port:
        url = mcp_url(port)
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


def _code_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@asynccontextmanager
async def _served(folder: Path, code: str) -> AsyncGenerator[str]:
    """The URL of a server of some page, as a process of its own."""
    port = free_port()
    (folder / "server.py").write_text(code.replace('"streamable-http"', f'"streamable-http", port={port}'))
    command, environment = [sys.executable, "server.py"], {**ENVIRONMENT, "MCP_TASKS_URL": "memory://"}
    with running(command, cwd=folder, env=environment, polite=True) as process:

        def is_alive() -> None:
            assert process.poll() is None, "the server ended by itself"

        url = mcp_url(port)
        await answers(url, is_alive)
        yield url
        is_alive()


async def test_the_server_and_the_client_of_the_page_on_hosted_tasks_work_together(tmp_path: Path) -> None:
    serving, hosting = (text for text in _code_of(DOCS / "client-tasks.md") if "__main__" in text)
    async with _served(tmp_path, serving) as url:
        (tmp_path / "client.py").write_text(hosting.replace("http://127.0.0.1:8000/mcp", url))
        client = [sys.executable, "client.py"]
        done = await anyio.to_thread.run_sync(lambda: run(client, cwd=tmp_path, env=ENVIRONMENT, check=True))
    assert done.stdout == "accept\n"
    assert (tmp_path / "hosted.db").exists()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_is_answered_by_hand_as_the_client_page_does(tmp_path: Path, mode: str) -> None:
    approve = _names_of(DOCS / "client.md")["approve"]
    async with _served(tmp_path, _code_of(ROOT / "README.md")[0]) as url:
        tasks = TasksClient()
        async with Client(
            reconnecting_http(url), mode=mode, extensions=[tasks], elicitation_callback=_nobody_is_asked
        ) as client:
            handle = await tasks.start(client, "render", {"frames": 2})
            assert isinstance(handle, TaskHandle)
            await approve(handle)
            assert (await handle.result(timeout=60)).structured_content == {"result": "published"}


async def _nobody_is_asked(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError(params)


async def test_arguments_that_do_not_fit_are_said_in_the_way_of_each_era(tmp_path: Path) -> None:
    async with _served(tmp_path, _code_of(ROOT / "README.md")[0]) as url:
        async with Client(reconnecting_http(url), extensions=[TasksClient()]) as client:
            assert (await client.call_tool("render", {"frames": "many"})).is_error
        tasks = TasksClient()
        async with Client(reconnecting_http(url), mode="legacy", extensions=[tasks]) as client:
            for refused in (
                lambda: client.call_tool("render", {"frames": "many"}),
                lambda: tasks.call(client, "render", {"frames": "many"}),
                lambda: tasks.start(client, "render", {"frames": "many"}),
            ):
                with pytest.raises(MCPError) as caught:
                    await refused()
                assert caught.value.error.code == INVALID_PARAMS


async def test_the_child_of_a_clients_task_is_in_the_clients_list(tmp_path: Path) -> None:
    code = _code_of(DOCS / "local.md")[0] + '\n\nserver.run("streamable-http")\n'
    async with _served(tmp_path, code) as url:
        tasks = TasksClient()
        async with Client(
            reconnecting_http(url), mode="legacy", extensions=[tasks], elicitation_callback=_decline
        ) as client:
            handle = await tasks.start(client, "release", {"id": 1})
            assert isinstance(handle, TaskHandle)
            assert (await handle.result(timeout=60)).structured_content == {"result": "release 1 is ready, decline"}
            listed = [snapshot.id async for snapshot in tasks.list(client)]
    assert handle.id in listed
    assert len(listed) == 2


async def _decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="decline")
