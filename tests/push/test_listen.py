"""What comes on a stream that names tasks, over every transport, and what refuses or ends one; the wire's own rules are
in `tests/spec`."""

import json
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ToolsListChanged
from mcp.server import MCPServer

from harness.auth import USERS
from harness.furnished import http_process
from harness.http import HttpWire, http_client, serving
from harness.lowlevel import build_lowlevel
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    NOTHING,
    PATIENCE,
    Tasking,
    accept,
    text_of,
)
from harness.schema import check_message, check_notification
from harness.server import QUICK, Desk, build
from harness.serving import ServerProcess
from harness.stdio import StdioWire, stdio_process
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.server.fast_path.requests import Handover
from mcp_tasks.stores.memory import MemoryStore
from tests.push.listening import SUBSCRIPTION, TASKS, TOOLS_CHANGED, Stream, as_pushed, listen, listening, timeless


async def test_finished_tasks_are_told_with_their_outcome_in_the_order_asked(client: Tasking, wire: HttpWire) -> None:
    done = await client.finish("point", x=2)
    broken = await client.until(await client.create("breaks"), "failed")
    gone = await client.create("gated")
    await client.cancel(gone)
    more = [(await client.finish("echo", value=number))["taskId"] for number in range(20)]
    ids = [gone, broken["taskId"], *more, done["taskId"]]
    # As many as one stream may name.
    async with listening(wire, [*ids, *(f"task_unknown_{number}" for number in range(100 - len(ids)))]) as stream:
        assert await stream.acknowledged() == {"taskIds": ids}
        states = [await stream.task() for _ in ids]
        assert [timeless(state) for state in states] == [timeless(as_pushed(await client.get(each))) for each in ids]


async def test_after_the_end_nothing_more_is_told(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    ended, other = await client.create("stubborn"), await client.create("gated")
    await desk.started.wait()
    async with listening(wire, [ended, other]) as stream:
        await stream.acknowledged()
        await client.cancel(ended)
        states = [await stream.task()]
        while states[-1]["taskId"] != ended or states[-1]["status"] != "cancelled":
            states.append(await stream.task())
        assert states[-1]["statusMessage"] == "Cancelled by the client"
        await desk.stopped.wait()
        desk.gate.set()
        assert {state["taskId"] for state in await stream.until("completed")} == {other}


# --- beside the SDK's own -------------------------------------------------------------------------------------------


async def test_one_stream_carries_tasks_and_changes_of_the_server(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("gated")
    message = listen([task_id], toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=["memo://x"])
    async with listening(wire, [task_id]) as quiet, wire.stream(message) as frames:
        stream = Stream(message["id"], frames)
        assert await stream.acknowledged() == {
            "taskIds": [task_id],
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourceSubscriptions": ["memo://x"],
        }
        await quiet.acknowledged()
        await client.finish("grow")
        seen = [await stream.frame()]
        while seen[-1]["method"] != TOOLS_CHANGED:
            seen.append(await stream.frame())
        check_notification("ToolListChangedNotification", seen[-1])
        desk.gate.set()
        await stream.until("completed")
        # One that did not ask for it takes nothing but states of tasks.
        await quiet.until("completed")
    assert {frame["method"] for frame in seen} == {TASKS, TOOLS_CHANGED}


async def test_the_sdks_listen_works_beside_waits_for_tasks(wire: HttpWire) -> None:
    async with Client(wire.url, extensions=[TasksClient()]) as client, client.listen(tools_list_changed=True) as events:
        await client.call_tool("grow", {})
        with anyio.fail_after(PATIENCE):
            assert isinstance(await anext(aiter(events)), ToolsListChanged)


# --- owners ---------------------------------------------------------------------------------------------------------


async def test_only_tasks_of_the_caller_are_honoured_and_told_of(desk: Desk) -> None:
    async with serving(build(Tasks("memory://", settings=QUICK), desk, verifier=USERS)) as guarded:
        tasks = {token: await Tasking(guarded.as_user(token), EVERYTHING).create("gated") for token in ("alice", "bob")}
        asked = [tasks["bob"], tasks["alice"], "task_unknown"]
        async with (
            listening(guarded.as_user("alice"), asked) as to_alice,
            # The owner is the user, and not the token.
            listening(guarded.as_user("alice-again"), asked) as to_alice_again,
            listening(guarded.as_user("bob"), asked) as to_bob,
            listening(guarded.as_user("robot"), asked) as to_nobody,
        ):
            assert await to_nobody.acknowledged() == {"taskIds": []}
            desk.gate.set()
            for stream, token in ((to_alice, "alice"), (to_alice_again, "alice"), (to_bob, "bob")):
                assert await stream.acknowledged() == {"taskIds": [tasks[token]]}
                assert {state["taskId"] for state in await stream.until("completed")} == {tasks[token]}
        for nobody in (guarded, guarded.as_user("nobody")):
            refused = await nobody.raw_post(b"{}", [("mcp-method", "subscriptions/listen")])
            assert refused.status_code == 401


# --- refused, before anything was sent ------------------------------------------------------------------------------


async def test_no_ids_at_all_is_a_stream_like_any_other(wire: HttpWire) -> None:
    for message in (listen(None, toolsListChanged=True), listen(toolsListChanged=True, capabilities=NOTHING)):
        async with wire.stream(message) as frames:
            assert await Stream(message["id"], frames).acknowledged() == {"toolsListChanged": True}


@pytest.mark.parametrize("kind", ["low-level", "deaf"])
async def test_a_server_that_offers_no_streams_offers_none_for_tasks(kind: str) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("deaf", **tasks.wiring(), log_level="CRITICAL", subscriptions=False)
    async with serving(build_lowlevel(tasks) if kind == "low-level" else server) as wire:
        reply = await wire.send(listen([]))
    assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)
    assert tasks.short_way.handed_over == {Handover.SERVER: 1}


class MoodyStore(MemoryStore):
    failures = 0
    """Reads that are still to fail."""

    async def _read(self, task_id: str, *part: Any, **options: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now")
        return await super()._read(task_id, *part, **options)


async def test_a_store_that_is_away_for_a_moment_refuses_a_stream_for_now_and_does_not_end_one(desk: Desk) -> None:
    store = MoodyStore()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("gated")
        await desk.started.wait()
        store.failures = 1
        reply = await wire.send(listen([task_id]))
        assert reply.code == INTERNAL_ERROR
        assert "try again later" in reply.error["message"]
        async with listening(wire, [task_id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task_id]}
            await stream.task()
            # A run ends without reading; so the read that fails is the one for the stream.
            store.failures = 1
            desk.gate.set()
            await eventually(lambda: store.failures == 0)
            *_, done = await stream.until("completed")
    assert text_of(done["result"]) == "through"


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
    server = ServerProcess("tests.push.processes", "{port}", str(short_way))
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
