"""`TasksClient` in a client that is not the SDK's, but built on its session, and can be entered again as FastMCP's can.

FastMCP's own client is tried in `tests/interop`; here is what only a server that misbehaves can show.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import TasksClient, start_task
from mcp_tasks.errors import UsageError
from tests.client.connecting import text
from tests.client.peer import TASK_ID, Frames, Peer, completed, pushed, serving_peer, stream_of, task, told, working

pytestmark = pytest.mark.anyio

RARELY = 60_000
"""Milliseconds of a poll interval that no test waits for: what comes sooner was pushed."""


class OtherClient:
    """The session of the SDK with one extension: as little of a client as there can be."""

    def __init__(self, url: str, tasks: TasksClient) -> None:
        self._url = url
        self._claims = tasks.claims()
        self._options: dict[str, Any] = {
            "extensions": {tasks.identifier: {}},
            "result_claims": {tasks.identifier: self._claims},
            "notification_bindings": tasks.notifications(),
        }
        self._stack = AsyncExitStack()
        self.sessions: list[ClientSession] = []
        """All that it has had. They are kept, as a client might that is not careful."""

    @property
    def session(self) -> ClientSession:
        return self.sessions[-1]

    async def __aenter__(self) -> Self:
        read, write = await self._stack.enter_async_context(streamable_http_client(self._url))
        session = await self._stack.enter_async_context(ClientSession(read, write, **self._options))
        await session.discover()
        self.sessions.append(session)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()


async def test_a_client_that_is_entered_again_is_pushed_to(peer: Peer, peer_url: str) -> None:
    tasks = TasksClient()
    client = OtherClient(peer_url, tasks)
    for said in ("first", "second"):
        peer.on("tasks/get", task(pollIntervalMs=RARELY), completed(said))
        peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed(said)))))
        async with client:
            with anyio.fail_after(PATIENCE):
                assert text(await tasks.resume(client, TASK_ID).result()) == said


async def test_no_server_speaks_for_a_client_that_was_entered_again(peer: Peer, peer_url: str) -> None:
    """Its old session is known, its new one is not yet: nobody else may be taken for it."""
    tasks = TasksClient()
    peer.on("tasks/get", task(pollIntervalMs=RARELY), completed("once"))
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed("once")))))
    client = OtherClient(peer_url, tasks)
    async with client:
        await tasks.resume(client, TASK_ID).result()
    evil = Peer(name="hostile")
    forged = [told(completed("forged", lastUpdatedAt="2026-08-01T11:00:00.000Z"))] * 3
    result = {"resultType": "complete", "content": [{"type": "text", "text": "done"}], "isError": False}
    evil.handlers["tools/call"] = _answering(Frames(stream_of(forged, hold=False), last=result))
    peer.on("tasks/get", working(1))
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1))))
    async with serving_peer(evil) as evil_url, client, Client(evil_url, extensions=[tasks]) as other:
        results: list[str] = []

        async def wait() -> None:
            results.append(text(await tasks.resume(client, TASK_ID).result()))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: peer.asked("subscriptions/listen"))
            # It listens to nothing of this server, which tells it of the other's task while it answers a call.
            assert text(await other.call_tool("x")) == "done"
            seen = len(peer.asked("tasks/get"))
            await eventually(lambda: len(peer.asked("tasks/get")) >= seen + 4)
            assert results == []
            peer.on("tasks/get", completed("the truth"))
            await eventually(lambda: results)
            group.cancel_scope.cancel()
    assert results == ["the truth"]


async def test_a_client_that_cannot_call_says_so(peer_url: str) -> None:
    tasks = TasksClient()
    async with OtherClient(peer_url, tasks) as client:
        with pytest.raises(UsageError, match="not by OtherClient"):
            await tasks.start(client, "x")


async def test_a_client_that_shows_no_extensions_is_refused_by_one_that_nobody_has(peer_url: str) -> None:
    async with OtherClient(peer_url, TasksClient()) as client:
        with pytest.raises(UsageError, match="was not given this TasksClient"):
            TasksClient().resume(client, TASK_ID)
        with pytest.raises(UsageError, match="methods of its TasksClient"):
            await start_task(client, "x")


def _answering(answer: Frames) -> Any:
    async def handler(params: Any) -> Frames:
        return answer

    return handler
