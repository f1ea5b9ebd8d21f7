"""What the pages say in tables, between their code blocks and of the examples, as real processes."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequestParams, ElicitResult
from pydantic import BaseModel

from harness.ports import free_port, mcp_url
from harness.processes import ENVIRONMENT, ROOT, end, python, run, running
from mcp_tasks import Fallback, Host, Tasks
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http
from mcp_tasks.server import ToolOptions
from tests.deploy.recipes import LIMIT, answers, connected, started

DOCS = ROOT / "docs"
SAID_BY_THE_SDK = {
    "Task group is not initialized. Make sure to use run().",
    "Cannot send 'elicitation/create': this transport context has no back-channel",
    "Error executing tool X",
}
WITH_A_NAME_FILLED_IN = {"the server has a tool 'task_status'", "asks with elicitation/create"}


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


def _code_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


async def _answers(url: str, process: subprocess.Popen[bytes]) -> None:
    def is_alive() -> None:
        assert process.poll() is None, "the server ended by itself"

    await answers(url, is_alive)


@asynccontextmanager
async def _served(folder: Path, code: str) -> AsyncGenerator[str]:
    """The URL of a server of some page, as a process of its own."""
    port = free_port()
    (folder / "server.py").write_text(code.replace('"streamable-http"', f'"streamable-http", port={port}'))
    command, environment = [sys.executable, "server.py"], {**ENVIRONMENT, "MCP_TASKS_URL": "memory://"}
    with running(command, cwd=folder, env=environment, polite=True) as process:
        await _answers(mcp_url(port), process)
        yield mcp_url(port)
        assert process.poll() is None, "the server ended by itself"


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


EXAMPLES_PAGE = (ROOT / "docs" / "examples.md").read_text()
SHOWN = dict(re.findall(r"^\$ python (examples/\w+\.py)\n((?:(?!\$|```).*\n)+)", EXAMPLES_PAGE, flags=re.MULTILINE))


@pytest.mark.parametrize("script", SHOWN)
def test_an_example_does_what_its_page_shows(script: str) -> None:
    done = run([sys.executable, script], env=ENVIRONMENT, limit=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == SHOWN[script]


def test_every_example_is_on_the_page() -> None:
    parts_of_others = {"demo_server", "server_process"}
    for script in (ROOT / "examples").glob("*.py"):
        named = f"examples/{script.name}" if script.stem != "demo" else "make demo"
        assert script.stem in parts_of_others or named in EXAMPLES_PAGE
    assert len(SHOWN) == 4


HOSTS_PAGE = (ROOT / "docs" / "hosts.md").read_text()
MOMENT = timedelta(milliseconds=300)


class Publish(BaseModel):
    publish: bool


def _farm() -> tuple[MCPServer[Any], anyio.Event]:
    """A server whose tools need longer than the caller waits."""
    tasks = Tasks("memory://", fallback=Fallback(wait=MOMENT, legs=1), hosts={"mcp": Host(limit=2 * MOMENT)})
    server = MCPServer[Any]("render-farm", **tasks.wiring())
    done = anyio.Event()

    @server.tool()
    @tasks.task()
    async def render(frames: int, ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        await ctx.report_progress(12, frames, f"frame 12 of {frames}")
        await done.wait()
        return "scene.mp4"

    @server.tool()
    @tasks.task(fallback=Fallback(wait=MOMENT, model_may_answer=True))
    async def publish(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        answer = await ctx.elicit("Publish it?", Publish)
        return answer.action

    return server, done


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_model_reads_what_the_page_shows(mode: str) -> None:
    running, waiting, cancelled = (
        _without_id(text) for text in re.findall(r"^```text\n(.*?)\n```", HOSTS_PAGE, re.M | re.S)
    )
    server, done = _farm()
    async with Client(server, mode=mode) as client:
        answer = await client.call_tool("render", {"frames": 24})
        assert _read(answer) == running
        assert answer.structured_content is not None
        assert answer.structured_content.keys() == {"taskId", "status", "statusMessage"}
        done.set()
        result = await client.call_tool("task_status", {"task_id": answer.structured_content["taskId"]})
        assert result.structured_content == {"result": "scene.mp4"}
        answer = await client.call_tool("publish", {})
        assert _read(answer) == waiting
        assert answer.structured_content is not None
        task = {"task_id": answer.structured_content["taskId"]}
        await client.call_tool("task_cancel", task)
        answer = await client.call_tool("task_status", task)
        assert answer.is_error
        assert _read(answer) == cancelled


async def _agrees(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"publish": True})


@pytest.mark.parametrize(("mode", "has_tasks"), [("auto", True), ("legacy", False)])
async def test_the_tool_that_can_do_without_an_answer_does(mode: str, has_tasks: bool) -> None:
    names = _names_of(DOCS / "hosts.md")
    said: list[str] = []
    for callback in (None, _agrees):
        extensions = [TasksClient()] if has_tasks else []
        client = Client(names["server"], mode=mode, extensions=extensions, elicitation_callback=callback)
        async with client:
            result = await client.call_tool("archive", {"film": "Metropolis"})
            assert not result.is_error
            said.append(_read(result))
    assert "nobody could be asked" in said[0]
    assert said[1] == "Metropolis is archived and published"


def _read(result: Any) -> str:
    (content,) = result.content
    return _without_id(content.text)


def _without_id(text: str) -> str:
    return re.sub(r"task_[\w-]{27}", "ID", text)


# The recipes with two kinds of processes, as they stand on their pages

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the recipe is for POSIX")
RECIPES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("running", "scale")}
COMMANDS = [command for page in RECIPES.values() for command in re.findall(r"^\$ (.*)$", page, flags=re.MULTILINE)]


@contextmanager
def _recipe(command: str, folder: Path, *more: str) -> Generator[subprocess.Popen[bytes]]:
    """A command of a page in a folder with its files; told to stop at the end of the block."""
    assert command in COMMANDS
    program, *arguments = shlex.split(command)
    words = python(program.replace("-", "_"), *arguments, *more)
    url = f"sqlite:///{folder / 'tasks.db'}"
    environment = {**ENVIRONMENT, "TASKS_URL": url, "MCP_TASKS_URL": url, "RUNS_TOOLS": "no"}
    with running(words, cwd=folder, env=environment) as process:
        yield process
        end(process, limit=LIMIT)


@asynccontextmanager
async def _server_of(page: str, folder: Path) -> AsyncGenerator[str]:
    """The URL of the server of a page, whose files are put where its commands are run."""
    for text, name in re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", RECIPES[page], flags=re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text)
    port = free_port()
    with _recipe("uvicorn farm:app", folder, "--port", str(port)) as process:
        await _answers(mcp_url(port), process)
        yield mcp_url(port)


@POSIX
async def test_one_process_serves_and_another_runs_the_tools(tmp_path: Path) -> None:
    async with _server_of("running", tmp_path) as url, connected(url) as client:
        handle = await started(client, "render", frames=1)
        assert (await handle.status()).status == "working"
        with _recipe("mcp-tasks worker farm:server", tmp_path) as worker:
            result = await handle.result(timeout=LIMIT)
            async with Client(url) as without_tasks:
                waited_for = await without_tasks.call_tool("render", {"frames": 1})
    assert result.structured_content == {"result": f"1 frames, by process {worker.pid}"}
    assert waited_for.structured_content == result.structured_content
    # The worker ends in order when it is told to.
    assert worker.returncode == 0


@POSIX
async def test_each_pool_of_workers_runs_what_is_in_its_queue(tmp_path: Path) -> None:
    async with _server_of("scale", tmp_path) as url:
        with (
            _recipe("mcp-tasks worker farm:server --queues default", tmp_path) as usual,
            _recipe("mcp-tasks worker farm:server --queues gpu --concurrency 2", tmp_path) as gpu,
        ):
            async with connected(url) as client:
                rendered = await started(client, "render", frames=1)
                previewed = await started(client, "preview", scene="forest")
                assert (await rendered.result(timeout=LIMIT)).structured_content == {
                    "result": f"1 frames, by process {gpu.pid}"
                }
                assert (await previewed.result(timeout=LIMIT)).structured_content == {
                    "result": f"forest in small, by process {usual.pid}"
                }
    assert (usual.returncode, gpu.returncode) == (0, 0)
