"""`tasks/result` of 2025-11-25 waits for as long as its connection lives, whatever else ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, http_client
from harness.rpc import PATIENCE
from harness.serving import ServerProcess
from mcp_tasks.legacy.shapes import RESULT_INTERRUPTED
from tests.legacy.http_session import RELATED, HttpSession, Message, open_session

pytestmark = pytest.mark.anyio

LONG = 3600.0


@asynccontextmanager
async def draining(way: str, *, drain: float) -> AsyncGenerator[tuple[ServerProcess, HttpSession]]:
    async with ServerProcess("tests.legacy.draining", "{port}", way, str(drain)) as server, http_client() as http:
        yield server, await open_session(HttpWire(server.url, http))


@asynccontextmanager
async def awaiting(client: HttpSession, task_id: str) -> AsyncGenerator[asyncio.Task[Message]]:
    """A request for a result that the server waits for. With JSON there are no headers before the answer."""
    waiting = asyncio.create_task(client.ask("tasks/result", taskId=task_id))
    await anyio.sleep(0.3)  # sleep: nobody is told when a request is taken up
    try:
        with anyio.fail_after(PATIENCE):
            yield waiting
    finally:
        waiting.cancel()


async def until_ended(server: ServerProcess) -> float:
    """When the process has ended."""
    with anyio.fail_after(PATIENCE):
        assert await anyio.to_thread.run_sync(server.process.wait, PATIENCE) in (0, -signal.SIGTERM)
    return time.monotonic()


@pytest.mark.parametrize("way", ["stream", "json", "resumable"])
async def test_a_task_that_ends_while_its_server_drains_gives_its_result(way: str) -> None:
    async with draining(way, drain=PATIENCE) as (server, client):
        task_id = await client.create("work", {"seconds": 2})
        async with awaiting(client, task_id) as waiting:
            told = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answer = await waiting
        assert answer["result"]["content"][0]["text"] == "worked"
        # And nothing keeps the process when there is nothing more to wait for.
        assert await until_ended(server) - told < PATIENCE


@pytest.mark.parametrize("way", ["stream", "json"])
async def test_a_server_that_has_to_exit_says_so_in_an_error_that_no_tool_has_raised(way: str) -> None:
    async with draining(way, drain=0.5) as (server, client):
        task_id = await client.create("work", {"seconds": LONG})
        async with awaiting(client, task_id) as waiting:
            server.process.send_signal(signal.SIGTERM)
            error: Any = (await waiting)["error"]
        assert error["code"] == RESULT_INTERRUPTED
        assert error["data"] == {"reason": "server_stopping", "_meta": {RELATED: {"taskId": task_id}}}
        await until_ended(server)


async def test_a_stream_that_can_be_resumed_ends_without_an_answer() -> None:
    async with draining("resumable", drain=0.5) as (server, client):
        task_id = await client.create("work", {"seconds": LONG})
        async with client.open_result(task_id) as waiting:
            server.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                while not waiting.is_over:  # noqa: ASYNC110 - the end of a stream is no message
                    await anyio.sleep(0.02)
            assert waiting.messages == []
        await until_ended(server)


async def test_a_second_signal_ends_the_wait() -> None:
    async with draining("json", drain=LONG) as (server, client):
        task_id = await client.create("work", {"seconds": LONG})
        async with awaiting(client, task_id) as waiting:
            server.process.send_signal(signal.SIGTERM)
            await anyio.sleep(0.3)  # sleep: two signals at once are one
            server.process.send_signal(signal.SIGTERM)
            assert (await waiting)["error"]["code"] == RESULT_INTERRUPTED
        server.kill()
