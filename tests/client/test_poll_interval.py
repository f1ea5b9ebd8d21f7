"""A server says how often it wants to be asked about a task, and every way of waiting keeps to that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp import Client

from harness.rpc import PATIENCE
from mcp_tasks.client import Followed, Follower, Hooks, Question, TaskHandle, call_tool
from tests.client import old_peer
from tests.client.connecting import Person, accepted, begin, connect
from tests.client.old_peer import RELATED, OldPeer
from tests.client.peer import Peer, asking, completed, working

pytestmark = pytest.mark.anyio

INTERVAL = 300
"""Milliseconds. No limit of ours is near."""

LOOKS = 4

ANSWERING = ["call_tool", "call", "handle", "by hand", "command line"]
WAYS = [*ANSWERING, "watch"]


class Clerk(Hooks):
    """Answers every question at once."""

    can_answer = True

    async def on_question(self, followed: Followed, question: Question) -> Mapping[str, Any]:
        return accepted().model_dump(mode="json", exclude_none=True)


async def wait(client: Client, way: str) -> None:
    """Call a tool, and wait for its task to end, answering what it asks."""
    match way:
        case "call_tool":
            await client.call_tool("x")
        case "call":
            await call_tool(client, "x")
        case "handle":
            await (await begin(client, "x")).result()
        case "watch":
            async for _ in (await begin(client, "x")).watch():
                pass
        case "by hand":
            handle = await begin(client, "x")
            while asked := await next_questions(handle):
                await handle.answer(dict.fromkeys(asked, accepted()))
        case _:
            assert (await Follower(Clerk()).call(client, "x", server="peer")).status == "completed"


async def next_questions(handle: TaskHandle) -> Collection[str]:
    """The keys of what the task asks next; none if it ends."""
    async with aclosing(handle.watch()) as states:
        async for snapshot in states:
            if snapshot.input_requests:
                return snapshot.input_requests.keys()
    return ()


def check(began: float, looks: list[float], *, at_once: int = 0) -> None:
    """The looks kept to the interval, but for the last ones, when the task was known to be over."""
    paced = [began, *looks[: len(looks) - at_once]]
    gaps = [round((later - earlier) * 1000) for earlier, later in pairwise(paced)]
    # Requests may be overtaken on their way: what counts is that none comes at once.
    assert min(gaps, default=INTERVAL) > INTERVAL * 0.8, gaps


@pytest.mark.requirement("client/poll-interval")
@pytest.mark.parametrize(("way", "asks"), [*((way, False) for way in WAYS), *((way, True) for way in ANSWERING)])
async def test_polls_of_2026_07_28_keep_to_the_interval(peer: Peer, peer_url: str, way: str, asks: bool) -> None:
    looks: list[float] = []
    pace = {"pollIntervalMs": INTERVAL}
    given: list[Any] = []

    async def get(params: Mapping[str, Any]) -> Any:
        looks.append(anyio.current_time())
        if asks and len(given) < LOOKS - 1:
            return {**asking(f"q{len(given)}"), **pace, "lastUpdatedAt": working(len(given))["lastUpdatedAt"]}
        return completed() if asks or len(looks) == LOOKS else working(len(looks), **pace)

    async def update(params: Mapping[str, Any]) -> Any:
        given.append(params)
        return {"resultType": "complete"}

    async def create(params: Mapping[str, Any]) -> Any:
        nonlocal began
        began = anyio.current_time()
        return {**working(0, **pace), "resultType": "task"}

    began = 0.0
    peer.handlers.update({"tasks/get": get, "tasks/update": update, "tools/call": create})
    async with connect(peer_url, person=Person()) as client:
        with anyio.fail_after(PATIENCE):
            await wait(client, way)
    assert len(given) == (LOOKS - 1 if asks else 0)
    check(began, looks)


@asynccontextmanager
async def slow_old_peer(looks: list[float], *, asks: bool) -> AsyncGenerator[tuple[OldPeer, list[float]]]:
    peer, ended = OldPeer(), anyio.Event()
    began: list[float] = []
    pace: dict[str, Any] = {"pollInterval": INTERVAL}

    async def create(params: Mapping[str, Any]) -> Any:
        began.append(anyio.current_time())
        return {"task": old_peer.task(**pace)}

    async def get(params: Mapping[str, Any]) -> Any:
        looks.append(anyio.current_time())
        if not asks and len(looks) == LOOKS:
            ended.set()
        answered = len(peer.replies)
        open_now = asks and len(looks) > answered and answered < LOOKS
        return old_peer.task("completed" if ended.is_set() else "input_required" if open_now else "working", **pace)

    async def result(params: Mapping[str, Any]) -> Any:
        if asks:
            empty: dict[str, Any] = {"type": "object", "properties": {}}
            form: dict[str, Any] = {"mode": "form", "message": "Name?", "requestedSchema": empty}
            for number in range(LOOKS):
                await peer.tell("notifications/tasks/status", old_peer.task("input_required", **pace))
                await peer.ask("elicitation/create", {**form, "_meta": dict(RELATED)}, request_id=100 + number)
                while len(peer.replies) <= number:  # noqa: ASYNC110 - the peer has no event for it
                    await anyio.sleep(0.01)
                await peer.tell("notifications/tasks/status", old_peer.task("working", **pace))
                await anyio.sleep(INTERVAL / 1000)  # sleep: the tool works on, and is polled meanwhile
            ended.set()
        await ended.wait()
        return old_peer.result()

    peer.on("tools/call", create)
    peer.on("tasks/get", get)
    peer.on("tasks/result", result)
    yield peer, began


@pytest.mark.requirement("older-client/poll-interval")
@pytest.mark.parametrize(("way", "asks"), [*((way, False) for way in WAYS), *((way, True) for way in ANSWERING)])
async def test_polls_of_2025_11_25_keep_to_the_interval_also_around_questions(way: str, asks: bool) -> None:
    looks: list[float] = []
    async with (
        slow_old_peer(looks, asks=asks) as (peer, began),
        old_peer.connected(peer, elicitation_callback=Person()) as client,
    ):
        with anyio.fail_after(PATIENCE):
            await wait(client, way)
    assert len(peer.replies) == (LOOKS if asks else 0)
    check(began[0], looks, at_once=1)
