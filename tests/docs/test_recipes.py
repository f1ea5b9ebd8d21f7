"""The recipe with two kinds of processes, as it stands on its page."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp import Client

from tests.deploy.recipes import LIMIT, answers, connected, started
from tests.helpers.process import ENVIRONMENT, ROOT

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="the recipe is for POSIX"),
]

PAGE = (ROOT / "docs" / "operate.md").read_text()
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, flags=re.MULTILINE)


@contextmanager
def _running(command: str, folder: Path, *more: str) -> Generator[subprocess.Popen[bytes]]:
    """A command of the page in a folder with its files; told to stop at the end of the block."""
    assert command in COMMANDS
    program, *arguments = shlex.split(command)
    module = program.replace("-", "_")
    process = subprocess.Popen([sys.executable, "-m", module, *arguments, *more], cwd=folder, env=ENVIRONMENT)
    try:
        yield process
        process.terminate()
        process.wait(LIMIT)
    finally:
        process.kill()
        process.wait()


async def test_one_process_serves_and_another_runs_the_tools(tmp_path: Path) -> None:
    for text, name in re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
