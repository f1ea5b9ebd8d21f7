"""`tasks/result` of 2025-11-25 waits for as long as its connection lives, whatever else ends."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from harness.http import HttpWire, http_client
from harness.older import RELATED, Pending, http_session
from harness.rpc import PATIENCE, text_of
from harness.serving import ServerProcess
from harness.waiting import eventually

RESULT_INTERRUPTED = -32802

pytestmark = pytest.mark.slow


@asynccontextmanager
async def stopping(way: str, end: Path, *, drain: float) -> AsyncGenerator[tuple[ServerProcess, str, Pending]]:
    """A server that stops while a client waits for the result of a task whose tool works until there is a file."""
    async with (
        ServerProcess("tests.legacy.draining", "{port}", way, str(drain)) as server,
        http_client() as http,
        http_session(HttpWire(server.url, http)) as client,
    ):
        task_id = await client.start("work", until=str(end))
        waiting = client.begin_result(task_id)
        # Polls are answered after the request before them was taken up.
        for _ in range(3):
            await client.get(task_id)
        server.process.send_signal(signal.SIGTERM)
        await eventually(Path(f"{end}.told").exists)
        yield server, task_id, waiting
        with anyio.fail_after(PATIENCE):
            assert await anyio.to_thread.run_sync(server.process.wait, PATIENCE) in (
                0,
                -signal.SIGTERM,
                -signal.SIGKILL,
            )


@pytest.mark.parametrize("way", ["stream", "json", "resumable"])
async def test_a_task_that_ends_while_its_server_drains_gives_its_result(way: str, tmp_path: Path) -> None:
    async with stopping(way, tmp_path / "end", drain=PATIENCE) as (_, _, waiting):
        (tmp_path / "end").touch()
        assert text_of((await waiting.reply()).result) == "worked"


@pytest.mark.parametrize("way", ["stream", "json"])
async def test_a_server_that_has_to_exit_says_so_in_an_error_that_no_tool_has_raised(way: str, tmp_path: Path) -> None:
    async with stopping(way, tmp_path / "never", drain=0.1) as (_, task_id, waiting):
        error = (await waiting.reply()).error
        assert error["code"] == RESULT_INTERRUPTED
        assert error["data"] == {"reason": "server_stopping", "_meta": {RELATED: {"taskId": task_id}}}


async def test_a_stream_that_can_be_resumed_ends_without_an_answer(tmp_path: Path) -> None:
    async with stopping("resumable", tmp_path / "never", drain=0.1) as (_, _, waiting):
        with pytest.raises(AssertionError, match="ended without an answer"):
            await waiting.reply()


async def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    async with stopping("json", tmp_path / "never", drain=3600) as (server, _, waiting):
        server.process.send_signal(signal.SIGTERM)
        assert (await waiting.reply()).error["code"] == RESULT_INTERRUPTED
        server.kill()
