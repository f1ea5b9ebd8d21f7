"""The recipes with two kinds of processes, as they stand on their pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp import Client

from harness.ports import free_port
from harness.processes import ENVIRONMENT, ROOT, end, python, running
from tests.deploy.recipes import LIMIT, answers, connected, started

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="the recipe is for POSIX"),
]

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("running", "scale")}
COMMANDS = [command for page in PAGES.values() for command in re.findall(r"^\$ (.*)$", page, flags=re.MULTILINE)]


def _write_files(page: str, folder: Path) -> None:
    """Put the files of a page where its commands are run."""
    for text, name in re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text)


@contextmanager
def _running(command: str, folder: Path, *more: str) -> Generator[subprocess.Popen[bytes]]:
    """A command of a page in a folder with its files; told to stop at the end of the block."""
    assert command in COMMANDS
    program, *arguments = shlex.split(command)
    words = python(program.replace("-", "_"), *arguments, *more)
    url = f"sqlite:///{folder / 'tasks.db'}"
    environment = {**ENVIRONMENT, "TASKS_URL": url, "MCP_TASKS_URL": url, "RUNS_TOOLS": "no"}
    with running(words, cwd=folder, env=environment) as process:
        yield process
        end(process, limit=LIMIT)


async def test_one_process_serves_and_another_runs_the_tools(tmp_path: Path) -> None:
    _write_files("running", tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _running("uvicorn farm:app", tmp_path, "--port", str(port)) as serving:

        def is_alive() -> None:
            assert serving.poll() is None, "the server ended by itself"

        await answers(url, is_alive)
        async with connected(f"{url}/mcp") as client:
            handle = await started(client, "render", frames=1)
            assert (await handle.status()).status == "working"
            with _running("mcp-tasks worker farm:server", tmp_path) as worker:
                result = await handle.result(timeout=LIMIT)
                async with Client(f"{url}/mcp") as without_tasks:
                    waited_for = await without_tasks.call_tool("render", {"frames": 1})
    assert result.structured_content == {"result": f"1 frames, by process {worker.pid}"}
    assert waited_for.structured_content == result.structured_content
    # The worker ends in order when it is told to.
    assert worker.returncode == 0


async def test_each_pool_of_workers_runs_what_is_in_its_queue(tmp_path: Path) -> None:
    _write_files("scale", tmp_path)
    port = free_port()
    with (
        _running("uvicorn farm:app", tmp_path, "--port", str(port)) as serving,
        _running("mcp-tasks worker farm:server --queues default", tmp_path) as usual,
        _running("mcp-tasks worker farm:server --queues gpu --concurrency 2", tmp_path) as gpu,
    ):

        def is_alive() -> None:
            assert serving.poll() is None, "the server ended by itself"

        await answers(f"http://127.0.0.1:{port}", is_alive)
        async with connected(f"http://127.0.0.1:{port}/mcp") as client:
            rendered = await started(client, "render", frames=1)
            previewed = await started(client, "preview", scene="forest")
            assert (await rendered.result(timeout=LIMIT)).structured_content == {
                "result": f"1 frames, by process {gpu.pid}"
            }
            assert (await previewed.result(timeout=LIMIT)).structured_content == {
                "result": f"forest in small, by process {usual.pid}"
            }
    assert (usual.returncode, gpu.returncode) == (0, 0)
