"""Who may say what became of a task: its own server, on its own session, whoever shares the extension."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp import Client

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, resume_task
from tests.client.connecting import begin, text
from tests.client.peer import TASK_ID, Frames, Peer, completed, pushed, serving_peer, stream_of, task, told, working

pytestmark = pytest.mark.anyio

RARELY = 60_000
"""Milliseconds of a poll interval that no test waits for: what comes sooner was pushed."""

ENDS = completed("forged", lastUpdatedAt="2026-08-01T11:00:00.000Z")


def hostile() -> Peer:
    """A server that pushes the end of a task of another server to whoever listens, under every subscription."""
    peer = Peer(name="hostile")
    own = task(taskId="own", pollIntervalMs=RARELY)
    frames = [*pushed(0), *(told(ENDS, subscription) for subscription in range(20)), told(own, 1)]

    async def listen(params: Any) -> Frames:
        return Frames(stream_of(frames))

    peer.on("tools/call", task(resultType="task", taskId="own"))
    peer.on("tasks/get", own)
    peer.handlers["subscriptions/listen"] = listen
    return peer


async def _next_state(handle: TaskHandle, status: str) -> None:
    """Watch until the task has a status."""
    async for snapshot in handle.watch():
        if snapshot.status.value == status:
            return


@pytest.mark.parametrize("transport", [str, reconnecting_http], ids=["the SDK's transport", "a transport of ours"])
@pytest.mark.parametrize("way", ["started", "resumed"])
async def test_a_server_cannot_end_the_task_of_another_that_shares_the_extension(
    peer: Peer, peer_url: str, transport: Any, way: str
) -> None:
    tasks = TasksClient()
    evil = hostile()
    peer.on("tasks/get", working(1))
    async with (
        serving_peer(evil) as evil_url,
        Client(transport(peer_url), extensions=[tasks]) as client,
        Client(transport(evil_url), extensions=[tasks]) as other,
    ):
        handle = await begin(client, "x") if way == "started" else resume_task(client, TASK_ID)
        listening = await begin(other, "x") if way == "started" else resume_task(other, "own")
        results: list[str] = []

        async def wait() -> None:
            results.append(text(await handle.result()))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: peer.asked("tasks/get"))
            group.start_soon(_next_state, listening, "completed")
            await eventually(lambda: evil.asked("subscriptions/listen"))
            # Whatever was pushed has arrived by the time that a few looks have come and gone.
            seen = len(peer.asked("tasks/get"))
            await eventually(lambda: len(peer.asked("tasks/get")) >= seen + 4)
            assert results == []
            peer.on("tasks/get", completed("the truth"))
            await eventually(lambda: results)
            group.cancel_scope.cancel()
    assert results == ["the truth"]


async def test_a_server_cannot_make_another_be_looked_at_all_the_time(peer: Peer, peer_url: str) -> None:
    tasks = TasksClient()
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    evil = hostile()
    async with (
        serving_peer(evil) as evil_url,
        Client(peer_url, extensions=[tasks]) as client,
        Client(evil_url, extensions=[tasks]) as other,
    ):
        handle, listening = resume_task(client, TASK_ID), resume_task(other, "own")
        async with anyio.create_task_group() as group:
            group.start_soon(handle.result)
            await eventually(lambda: peer.asked("tasks/get"))
            group.start_soon(listening.result)
            # Twenty pushes that nobody can attribute: a hint, once.
            await eventually(lambda: len(peer.asked("tasks/get")) == 2)
            group.cancel_scope.cancel()
    assert len(peer.asked("tasks/get")) == 2


@pytest.mark.parametrize("transport", [str, reconnecting_http], ids=["the SDK's transport", "a transport of ours"])
async def test_each_of_two_clients_that_share_the_extension_is_pushed_to(
    peer: Peer, peer_url: str, transport: Any
) -> None:
    tasks = TasksClient()
    other_peer = Peer(name="other")
    for server in (peer, other_peer):
        server.on("tasks/get", task(pollIntervalMs=RARELY))
        server.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed(server.name)))))
    async with (
        serving_peer(other_peer) as other_url,
        Client(transport(peer_url), extensions=[tasks]) as client,
        Client(transport(other_url), extensions=[tasks]) as other,
    ):
        with anyio.fail_after(PATIENCE):
            # The same id on both.
            assert text(await (await begin(client, "x")).result()) == "peer"
            assert text(await (await begin(other, "x")).result()) == "other"


@pytest.mark.parametrize("transport", [str, reconnecting_http], ids=["the SDK's transport", "a transport of ours"])
async def test_the_only_client_of_an_extension_is_pushed_to(peer: Peer, peer_url: str, transport: Any) -> None:
    tasks = TasksClient()
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed("pushed")))))
    async with Client(transport(peer_url), extensions=[tasks]) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await tasks.resume(client, TASK_ID).result()) == "pushed"


async def test_resumed_tasks_are_pushed_to_over_transports_of_ours(peer: Peer, peer_url: str) -> None:
    tasks = TasksClient()
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed("pushed")))))
    async with (
        Client(reconnecting_http(peer_url), extensions=[tasks]) as client,
        Client(reconnecting_http(peer_url), extensions=[tasks]),
    ):
        with anyio.fail_after(PATIENCE):
            assert text(await resume_task(client, TASK_ID).result()) == "pushed"
