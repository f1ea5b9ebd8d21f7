"""Streams straight at the app: those of the short way beside the same ones through the SDK, and readers of every kind.

Nobody can tell the two ways apart.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp_types import SubscriptionsListenRequestParams
from starlette.types import ASGIApp

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.rpc import EVERYTHING, PATIENCE, Reply, Tasking, accept, loads
from harness.server import QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.server.fast_path.requests import Handover
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.clock import FakeClock
from tests.push.asgi import Peer, app_of, at
from tests.push.listening import listen, listening

METHOD = "subscriptions/listen"
LINES = 'Grüße\r\n\u2028\u2029\x85\x0b\x0c\x1c\U0001f600 \\ "'


@dataclass
class Door:
    app: ASGIApp
    tasks: Tasks
    user: str = "ada"

    async def send(self, message: Any, *, capabilities: Any = None) -> Reply:
        async with at(self.app, message, [("x-user", self.user)]) as peer:
            await peer.until(lambda seen: seen.is_complete)
            assert peer.status is not None
            text = b"".join(peer.sent)
            return Reply(message=loads(text) if text[:1] == b"{" else peer.frames[-1], status=peer.status)

    @property
    def answered(self) -> int:
        return self.tasks.short_way.answered[METHOD]


@asynccontextmanager
async def door(store: MemoryStore, desk: Desk, clock: FakeClock, **options: Any) -> AsyncGenerator[Door]:
    tasks = Tasks(store, settings=QUICK, clock=clock, principal=lambda caller: caller.headers.get("x-user"), **options)
    async with app_of(build(tasks, desk)) as app:
        yield Door(app, tasks)


@asynccontextmanager
async def both(desk: Desk, clock: FakeClock) -> AsyncGenerator[tuple[Door, Door]]:
    """One server in two processes, as far as they can tell; one has no short way."""
    store = MemoryStore()
    async with (
        door(store, desk, clock, default_ttl=timedelta(minutes=5)) as short,
        door(store, desk, clock, default_ttl=timedelta(minutes=5), short_way=False) as long,
    ):
        yield short, long


def alike(one: Peer, other: Peer) -> None:
    assert (one.status, one.headers) == (other.status, other.headers)
    assert [event for event in one.events if event.startswith(":")] == []
    assert one.frames == other.frames
    assert all(event.startswith("event: message\r\ndata: ") for event in one.events)
    # A client may split lines wherever Unicode has a line break.
    assert all(len(event.splitlines()) == 2 and event.isascii() for event in one.events)


async def every_kind(short: Door, desk: Desk, clock: FakeClock) -> list[str]:
    """Tasks of every kind there is, and what is none."""
    ada, bob = Tasking(short, EVERYTHING), Tasking(Door(short.app, short.tasks, "bob"), EVERYTHING)
    expired = await ada.finish("echo", value="long ago")
    clock.advance(timedelta(minutes=6))
    return [
        expired["taskId"],
        (await ada.finish("point", x=1))["taskId"],
        (await ada.until(await ada.create("breaks"), "failed"))["taskId"],
        "task_unknown",
        (await bob.finish("echo", value="not yours"))["taskId"],
        (await ada.finish("echo", value=LINES))["taskId"],
        (await ada.until(await ada.create("ask_both"), "input_required"))["taskId"],
        await ada.create("progressing", steps=2, total=3, message="höher"),
        "x" * 1_000,
    ]


async def test_every_frame_is_the_same_from_the_first_to_the_last(desk: Desk) -> None:
    clock = FakeClock()
    async with both(desk, clock) as (short, long):
        ids = await every_kind(short, desk, clock)
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        clock.advance(timedelta(seconds=7))
        message, user = listen([*ids, ids[1]]), [("x-user", "ada")]
        honoured = [ids[1], ids[2], ids[5], ids[6], ids[7]]
        async with at(short.app, message, user) as one, at(long.app, message, user) as other:
            for peer in (one, other):
                await peer.until(lambda seen: len(seen.frames) == 1 + len(honoured))
            assert one.frames[0]["params"]["notifications"] == {"taskIds": honoured}
            alike(one, other)
            # A change that is made here, and one that is made there.
            desk.gate.set()
            for peer in (one, other):
                await peer.until(lambda seen: seen.statuses(ids[7])[-1] == "completed")
            alike(one, other)
            await Tasking(long, EVERYTHING).cancel(ids[6])
            for peer in (one, other):
                await peer.until(lambda seen: seen.statuses(ids[6])[-1] == "cancelled")
            alike(one, other)
        assert (short.answered, long.answered) == (1, 0)


async def test_over_a_real_connection_a_client_that_hangs_up_leaves_nothing_behind(desk: Desk) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    async with serving(build(tasks, desk)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("ask_name")
        async with listening(wire, [task_id]) as stays:
            async with listening(wire, [task_id]) as leaves:
                for stream in (stays, leaves):
                    await stream.acknowledged()
                await leaves.until("input_required")
                *_, asking = await stays.until("input_required")
                assert tasks.short_way.listeners == 2
            await eventually(lambda: tasks.short_way.listeners == 1)
            [key] = asking["inputRequests"]
            await Tasking(wire, EVERYTHING).update(task_id, **{key: accept(name="Ada")})
            await stays.until("completed")
        assert tasks.short_way.answered == {"tools/call": 1, METHOD: 2, "tasks/update": 1}


@pytest.mark.parametrize("whose", ["the author's", "the server's"])
async def test_closing_a_listen_handler_closes_every_stream_that_the_sdk_has(desk: Desk, whose: str) -> None:
    room: dict[str, Any] = {} if whose == "the author's" else {"max_listeners": 0}
    tasks = Tasks("memory://", settings=QUICK, **room)
    handler = ListenHandler(InMemorySubscriptionBus())
    if whose == "the author's":
        server = build_lowlevel(tasks)
        server.add_request_handler(METHOD, SubscriptionsListenRequestParams, handler)
    else:
        server = build(tasks, desk)
    async with app_of(server) as app, at(app, listen([])) as peer:
        await peer.until(lambda seen: seen.frames)
        if isinstance(server, MCPServer):
            entry = server.session_manager.app.get_request_handler(METHOD)
            assert entry is not None
            assert isinstance(entry.handler, ListenHandler)
            handler = entry.handler
        handler.close()
        await peer.until(lambda seen: seen.is_complete)
    assert tasks.short_way.handed_over == {Handover.LISTENERS if room else Handover.SERVER: 1}
