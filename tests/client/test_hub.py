"""Notifications instead of polls: one stream for many tasks, and what happens when streams fail."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from itertools import chain
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from harness.rpc import PATIENCE, notification
from harness.server import Desk
from harness.waiting import eventually
from mcp_tasks.client import TasksClient, resume_task
from mcp_tasks.client import backend as push_module
from mcp_tasks.client.backend import Mailbox
from mcp_tasks.client.poller import BACKSTOP
from mcp_tasks.model import TaskStatus
from mcp_tasks.protocol.shapes import parse_task
from tests.client.connecting import LONG, SHORT, begin, connect, seen, text
from tests.client.peer import (
    OUT_OF_ORDER,
    TASK_ID,
    Answer,
    Frames,
    Peer,
    asking,
    completed,
    pushed,
    stream_of,
    task,
    told,
    working,
)

pytestmark = pytest.mark.anyio

RARELY = 60_000
"""Milliseconds of a poll interval that no test waits for: what comes sooner was pushed."""


def listen_ids(peer: Peer) -> list[list[str]]:
    """The task ids of each stream that was asked for."""
    return [params["notifications"]["taskIds"] for params in peer.asked("subscriptions/listen")]


# Mailbox


def test_a_mailbox_keeps_the_newest_state_and_says_that_it_is_live() -> None:
    box = Mailbox()
    assert not box.live
    box.put(parse_task(working(2)))
    box.put(parse_task(working(1)))
    assert box.live
    assert box.changed.is_set()
    assert box.take() == parse_task(working(2))
    assert not box.changed.is_set()


def test_a_mailbox_gives_each_state_once() -> None:
    box = Mailbox()
    box.put(parse_task(working(1)))
    box.take()
    box.end()
    assert box.changed.is_set()
    assert box.take() is None
    assert not box.live


def test_a_mailbox_does_not_go_back_behind_the_end() -> None:
    box = Mailbox()
    box.put(parse_task(completed()))
    box.put(parse_task(working(59, createdAt="2026-08-02T10:00:00Z")))
    assert (newest := box.take()) is not None
    assert newest.status is TaskStatus.COMPLETED


# Streams


async def test_a_pushed_state_ends_the_wait_long_before_the_next_poll(peer: Peer, peer_url: str) -> None:
    done = asyncio.Event()

    async def frames() -> AsyncGenerator[Mapping[str, Any]]:
        for message in pushed(1, working(1, pollIntervalMs=RARELY)):
            yield message
        await done.wait()
        yield told(completed("pushed"))
        await anyio.sleep_forever()

    peer.on("subscriptions/listen", Frames(frames()))
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer_url) as client:
        handle = await begin(client, "x")
        async with anyio.create_task_group() as group:
            group.start_soon(handle.result)
            await eventually(lambda: listen_ids(peer))
            done.set()
            with anyio.fail_after(PATIENCE):
                assert text(await handle.result()) == "pushed"
    assert len(peer.asked("tasks/get")) <= 2


async def test_a_stream_that_says_nothing_is_not_relied_on(peer: Peer, peer_url: str) -> None:
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1))))
    peer.on("tasks/get", task(), task(), completed("polled"))
    async with connect(peer_url) as client:
        assert text(await client.call_tool("x", {})) == "polled"


async def test_while_a_stream_is_live_the_server_is_not_polled(peer: Peer, peer_url: str) -> None:
    assert BACKSTOP >= 30
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1)))))
    peer.on("tasks/get", task())
    async with connect(peer_url, on_abandon="leave") as client, anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "x")
        await eventually(lambda: listen_ids(peer))
        looks = len(peer.asked("tasks/get"))
        # The stream needs one of them to prove itself.
        await anyio.sleep(0.4)  # sleep: eight times the interval of a poll
        assert len(peer.asked("tasks/get")) <= looks + 1
        group.cancel_scope.cancel()


async def test_when_a_stream_ends_the_server_is_polled_again(peer: Peer, peer_url: str) -> None:
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1)), hold=False)))
    peer.on("tasks/get", working(1), working(1), working(2), completed("polled"))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "polled"


async def test_a_stream_that_was_lost_is_opened_again(peer: Peer, peer_url: str) -> None:
    peer.on(
        "subscriptions/listen",
        Frames(stream_of(pushed(1, working(1, pollIntervalMs=RARELY)), hold=False)),
        Frames(stream_of(pushed(2, completed("on the second stream")))),
    )
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "on the second stream"
    assert len(listen_ids(peer)) == 2


async def test_a_server_that_does_not_push_is_asked_for_it_once(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task(), task(), completed())
    async with connect(peer_url) as client:
        for _ in range(3):
            await client.call_tool("x", {})
            peer.on("tasks/get", task(), task(), completed())
    assert len(listen_ids(peer)) == 1


async def test_streams_that_end_at_once_are_not_opened_in_a_loop(peer: Peer, peer_url: str) -> None:
    async def ends_at_once(params: Mapping[str, Any]) -> Answer:
        return Frames(stream_of([], hold=False), last={"resultType": "complete"})

    peer.handlers["subscriptions/listen"] = ends_at_once
    peer.on("tasks/get", task())
    async with connect(peer_url, on_abandon="leave") as client:
        with anyio.move_on_after(1):
            await client.call_tool("x", {})
    assert 1 <= len(listen_ids(peer)) <= 4


async def test_tasks_that_are_waited_for_at_once_share_a_stream(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handles = [await begin(client, "gated") for _ in range(20)]
        hub = _hub(client)
        async with anyio.create_task_group() as group:
            for handle in handles:
                group.start_soon(handle.result)
            await eventually(lambda: _streams(hub))
            assert _streams(hub) == [20]
            desk.gate.set()
        await eventually(lambda: not _streams(hub))


async def test_waits_that_begin_one_after_another_end_up_on_few_streams(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        hub = _hub(client)
        async with anyio.create_task_group() as group:
            for number in range(1, 17):
                handle = await begin(client, "gated")
                group.start_soon(handle.result)
                await eventually(lambda wanted=number: sum(_streams(hub)) == wanted)
            assert len(_streams(hub)) <= 5
            desk.gate.set()
        await eventually(lambda: not _streams(hub))


def _streams(hub: push_module.PushHub) -> list[int]:
    """How many tasks there are on each stream that is not being closed."""
    streams = hub._streams  # pyright: ignore[reportPrivateUsage]
    return [len(ids) for stream, ids in streams.items() if not stream.cancelling()]


def _hub(client: Client) -> push_module.PushHub:
    [tasks] = client.extensions or [None]
    assert isinstance(tasks, TasksClient)
    hub = tasks._switchboard.connection(client.session).hub  # pyright: ignore[reportPrivateUsage]
    assert hub is not None
    return hub


async def test_more_tasks_than_fit_on_one_stream_get_several(
    peer: Peer, peer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "MAX_IDS_PER_STREAM", 3)

    async def listen(_params: Mapping[str, Any]) -> Answer:
        # One each: a stream that broke would be opened again.
        return Frames(stream_of([]))

    async def get(params: Mapping[str, Any]) -> Answer:
        return task(taskId=params["taskId"])

    peer.handlers["subscriptions/listen"] = listen
    peer.handlers["tasks/get"] = get
    async with connect(peer_url) as client, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(resume_task(client, f"t{number}").result)
        await eventually(lambda: len(listen_ids(peer)) >= 3)
        group.cancel_scope.cancel()
    assert sorted(map(len, listen_ids(peer))) == [2, 3, 3]
    assert sorted(chain.from_iterable(listen_ids(peer))) == [f"t{number}" for number in range(8)]


async def test_notifications_that_are_no_tasks_or_not_ours_are_ignored(peer: Peer, peer_url: str) -> None:
    odd: list[dict[str, Any]] = [
        told(task("paused")),
        told(task(lastUpdatedAt="yesterday")),
        told(completed("not ours", taskId="another")),
        told({"taskId": TASK_ID}),
        told({}),
        notification("notifications/tasks", {"taskId": ["x"]}),
        notification("notifications/tasks"),
        notification("notifications/unheard-of", {}),
    ]
    peer.on("subscriptions/listen", Frames(stream_of([*pushed(1), *odd, told(completed("ours"))])))
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "ours"


async def test_a_flood_of_notifications_ends_with_the_newest_state(peer: Peer, peer_url: str) -> None:
    flood = [told(working(number % 50)) for number in range(3_000)]
    peer.on("subscriptions/listen", Frames(stream_of([*pushed(1), *flood, told(completed("after the flood"))])))
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "after the flood"


@pytest.mark.requirement("client/answers-what-is-pushed")
async def test_a_question_that_is_pushed_again_and_again_is_put_once(peer: Peer, peer_url: str) -> None:
    asked: list[str] = []

    async def person(context: object, params: Any) -> Any:
        asked.append(params.message)
        await anyio.sleep_forever()

    states = [asking("a"), asking("a"), asking("a"), completed("done elsewhere")]
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, *states))))
    peer.on("tasks/get", asking("a"))
    async with connect(peer_url, person=person) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "done elsewhere"
    assert len(asked) <= 1


# Streams that fail


async def _first_then_failing(peer: Peer, first: Mapping[str, Any]) -> None:
    """A stream that tells one state and ends; every later one is refused for now."""
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, first), hold=False)), OUT_OF_ORDER)


async def test_watch_never_goes_back_to_an_older_state(
    peer: Peer, peer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "backoff", _no_pause)
    await _first_then_failing(peer, working(1))
    peer.on("tasks/get", working(1), *[working(2)] * 8, completed())
    steps: list[str | None] = []
    async with connect(peer_url, patience=LONG) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE):
            async for snapshot in handle.watch():
                steps.append(snapshot.message)
    assert steps == [None, "step 1", "step 2", None]


async def test_streams_that_fail_do_not_feed_patience(
    peer: Peer, peer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "backoff", _no_pause)
    await _first_then_failing(peer, working(1))
    peer.on("tasks/get", working(1), OUT_OF_ORDER)
    async with connect(peer_url, patience=SHORT) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="try again later"):
            await client.call_tool("x", {})


def _no_pause(attempt: int, **limits: timedelta) -> timedelta:
    return timedelta(milliseconds=100)


# Many waits, one after another


async def test_a_wait_right_after_another_one_is_pushed_too(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        quick, slow = await begin(client, "echo", value=1), await begin(client, "gated")
        await seen(quick, lambda snapshot: snapshot.is_final)

        async def wait_for_both() -> None:
            await quick.result()
            await slow.result()

        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_both)
            await eventually(lambda: _streams(_hub(client)) == [1])
            desk.gate.set()


async def test_waits_that_begin_one_after_another_leave_room_for_other_calls(url: str, desk: Desk) -> None:
    # The pool of the SDK's HTTP client has a hundred connections; here it has eight.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=8), timeout=PATIENCE, trust_env=False)
    async with (
        http,
        connect(streamable_http_client(url, http_client=http)) as client,
        anyio.create_task_group() as group,
    ):
        for number in range(1, 17):
            handle = await begin(client, "gated")
            group.start_soon(handle.result)
            await eventually(lambda wanted=number: sum(_streams(_hub(client))) == wanted)
        with anyio.fail_after(PATIENCE):
            await client.list_tools()
        desk.gate.set()


async def test_a_connection_that_is_over_is_not_held(url: str) -> None:
    tasks = TasksClient()
    async with connect(url, tasks=tasks) as client:
        await client.call_tool("echo", {"value": 1})
        session = weakref.ref(client.session)
    del client
    gc.collect()
    assert session() is None
