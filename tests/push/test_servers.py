"""The same frames over every transport, from several processes, and until the server stops."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.furnished import http_process
from harness.http import HttpWire, http_client, serving
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.schema import check_message
from harness.server import QUICK, Desk, build
from harness.serving import ServerProcess
from harness.stdio import StdioWire, stdio_process
from mcp_tasks import Tasks
from tests.push.listening import SUBSCRIPTION, Stream, as_pushed, listen, listening, timeless

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("how", [{"json_response": True}, {"stateless": True}], ids=["json", "stateless"])
async def test_a_server_that_answers_otherwise_streams_all_the_same(desk: Desk, how: dict[str, bool]) -> None:
    async with serving(build(Tasks("memory://", settings=QUICK), desk), **how) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        async with listening(wire, [task_id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task_id]}
            desk.gate.set()
            *_, done = await stream.until("completed")
        assert done == as_pushed(await client.get(task_id))


# Over stdio every stream shares the one channel; its frames are told apart by their subscription id.


def _frames(wire: StdioWire, request_id: Any) -> list[dict[str, Any]]:
    return [frame for frame in wire.others if frame.get("params", {}).get("_meta", {}).get(SUBSCRIPTION) == request_id]


async def _frames_of(wire: StdioWire, request_id: Any) -> AsyncGenerator[dict[str, Any]]:
    told = 0
    while True:
        for frame in _frames(wire, request_id)[told:]:
            told += 1
            yield frame
        await wire.wait_for(lambda _, told=told: len(_frames(wire, request_id)) > told)


async def _open(wire: StdioWire, ids: Sequence[str]) -> Stream:
    message = listen(list(ids))
    await wire.write(json.dumps(message))
    return Stream(message["id"], _frames_of(wire, message["id"]))


async def test_over_stdio_streams_share_the_channel_and_end_one_by_one() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        done = await client.finish("point", x=1)
        first, second = [await client.create("ask_name") for _ in range(2)]
        one, both = await _open(wire, [first]), await _open(wire, [done["taskId"], first, second])
        assert await one.acknowledged() == {"taskIds": [first]}
        assert await both.acknowledged() == {"taskIds": [done["taskId"], first, second]}
        assert await both.task() == as_pushed(done)
        await one.until("input_required")
        # Ended by the client, in the way of this transport; the other stream goes on.
        await wire.notify("notifications/cancelled", {"requestId": one.id})
        # What the server reads later is answered later: once it answers, it has seen the cancellation.
        await client.get(first)
        before = _frames(wire, one.id)
        await client.cancel(first)
        while (await both.until("cancelled"))[-1]["taskId"] != first:
            pass
        assert _frames(wire, one.id) == before
        # The process must end although a stream is open.


async def test_changes_made_by_another_process_arrive(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    with http_process("--store", store) as url:
        async with http_client() as http, serving(build(Tasks(store, settings=QUICK))) as here:
            there = Tasking(HttpWire(url, http), EVERYTHING)
            asking, other = await there.create("ask_name"), await there.create("ask_name")
            async with listening(here, [asking]) as stream:
                assert await stream.acknowledged() == {"taskIds": [asking]}
                *_, asked = await stream.until("input_required")
                assert timeless(asked) == timeless(as_pushed(await there.get(asking)))
                # Answered here, run there (or here), and told here.
                [key] = asked["inputRequests"]
                await Tasking(here, EVERYTHING).update(asking, **{key: accept(name="Ada")})
                *_, done = await stream.until("completed")
            assert done == as_pushed(await there.get(asking))
            assert text_of(done["result"]) == "Hello, Ada!"
            # And the other way round: cancelled there, told here.
            async with listening(here, [other]) as stream:
                await stream.acknowledged()
                await there.cancel(other)
                await stream.until("cancelled")


# --- servers that stop ----------------------------------------------------------------------------------------------

SOON = 10.0
"""Seconds in which a server that was told to stop has stopped: nothing is running that it would wait for."""


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_ends_gracefully_when_the_server_is_told_to_stop(short_way: bool) -> None:
    server = ServerProcess("tests.push.processes", "serve", "{port}", str(short_way))
    async with server, http_client() as http:
        wire = HttpWire(server.url, http)
        task_id = await Tasking(wire, EVERYTHING).create("confirm_delete", filename="x")
        async with listening(wire, [task_id]) as stream, listening(wire, []) as unread:
            await stream.acknowledged()
            await unread.acknowledged()
            await stream.until("input_required")
            server.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(SOON):
                *_, last = await stream.rest()
            check_message("subscriptions/listen", last)
            assert last["id"] == stream.id
            assert last["result"]["_meta"][SUBSCRIPTION] == stream.id
            # A client that listens and does not read on keeps nobody from stopping.
            assert await anyio.to_thread.run_sync(server.process.wait, SOON) in (0, -signal.SIGTERM)
