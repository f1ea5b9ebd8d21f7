"""A server that stops while clients listen."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import anyio
import httpx2
import pytest

from harness.furnished import http_process
from harness.http import HttpWire, http_client
from harness.rpc import EVERYTHING, PATIENCE, Tasking
from harness.schema import check_message
from harness.serving import ServerProcess
from tests.client.processes import server_process
from tests.push.listening import SUBSCRIPTION, listening

pytestmark = pytest.mark.anyio

SOON = 4.0
"""Seconds in which a server that was told to stop has stopped: nothing is running that it would wait for."""


async def test_a_stream_ends_gracefully_when_the_server_is_told_to_stop(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server, http_client() as http:
        wire = HttpWire(server.url, http)
        task_id = await Tasking(wire, EVERYTHING).create("confirm_delete", filename="x")
        async with listening(wire, [task_id]) as stream:
            await stream.acknowledged()
            await stream.until("input_required")
            server.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(SOON):
                *_, last = await stream.rest()
            check_message("subscriptions/listen", last)
            assert last["id"] == stream.id
            assert last["result"]["_meta"][SUBSCRIPTION] == stream.id
        assert server.process.wait(SOON) in (0, -signal.SIGTERM)


async def test_a_client_that_listens_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server, http_client() as http:
        wire = HttpWire(server.url, http)
        task_id = await Tasking(wire, EVERYTHING).create("confirm_delete", filename="x")
        async with listening(wire, [task_id]) as stream:
            await stream.acknowledged()
            server.process.send_signal(signal.SIGTERM)
            try:
                await anyio.to_thread.run_sync(server.process.wait, SOON)
            except subprocess.TimeoutExpired:
                pytest.fail("the server goes on")


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_server_whose_tasks_ran_before_it_was_served_stops_as_well(short_way: bool) -> None:
    async with (
        ServerProcess("tests.push.inside", "{port}", str(short_way)) as server,
        http_client() as http,
        listening(HttpWire(server.url, http), []) as stream,
    ):
        await stream.acknowledged()
        server.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(SOON):
            *_, last = await stream.rest()
        assert last["id"] == stream.id
        assert await anyio.to_thread.run_sync(server.process.wait, SOON) in (0, -signal.SIGTERM)


async def test_with_a_limit_on_its_shutdown_the_server_stops_and_the_task_stays(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with http_client() as http:
        with http_process("--store", store) as url:
            wire = HttpWire(url, http)
            task_id = await Tasking(wire, EVERYTHING).create("ask_name")
            streaming = listening(wire, [task_id])
            stream = await streaming.__aenter__()
            await stream.acknowledged()
            await stream.until("input_required")
        # The process has ended by now; leaving the block above waited for it.
        with anyio.fail_after(PATIENCE):
            with contextlib.suppress(httpx2.TransportError):
                await stream.rest()
            await streaming.__aexit__(None, None, None)
        with http_process("--store", store) as url:
            again = Tasking(HttpWire(url, http), EVERYTHING)
            assert (await again.get(task_id))["status"] == "input_required"
