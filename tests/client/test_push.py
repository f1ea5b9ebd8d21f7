"""Notifications instead of polls: streams that many tasks share, and who may say what became of a task."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from itertools import chain
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from harness.rpc import MODERN, PATIENCE, notification
from harness.waiting import eventually
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, resume_task, start_task
from mcp_tasks.errors import UsageError
from tests.client.connecting import begin, connect, text
from tests.client.peer import (
    ACK,
    RARELY,
    TASK_ID,
    Answer,
    Frames,
    MemoryPeer,
    Peer,
    Script,
    asking,
    completed,
    connected,
    pushed,
    serving_peer,
    stream_of,
    task,
    told,
    working,
)
from tests.unit.virtual_time import simulated


def listen_ids(peer: Script) -> list[list[str]]:
    return [params["notifications"]["taskIds"] for params in peer.asked("subscriptions/listen")]


def open_streams(peer: MemoryPeer) -> list[list[str]]:
    """The task ids of each stream that the client has not closed."""
    closed = {params["requestId"] for params in peer.asked("notifications/cancelled")}
    listens = [request for request in peer.requests if request["method"] == "subscriptions/listen"]
    return [request["params"]["notifications"]["taskIds"] for request in listens if request["id"] not in closed]


# Streams


async def test_a_server_that_does_not_push_is_asked_for_it_once(peer: Peer) -> None:
    async with connect(peer.url) as client:
        for _ in range(3):
            peer.on("tasks/get", task(), task(), completed())
            await client.call_tool("x", {})
    assert len(listen_ids(peer)) == 1


def many_tasks() -> MemoryPeer:
    """A server with any number of tasks, which it polls rarely and tells nothing of."""

    async def get(params: Mapping[str, Any]) -> Answer:
        return task(taskId=params["taskId"], pollIntervalMs=10**9)

    peer = MemoryPeer(version=MODERN)
    peer.on("subscriptions/listen", None)
    peer.on("tasks/get", get)
    return peer


@simulated
async def test_tasks_that_are_waited_for_at_once_share_streams_with_room_for_a_hundred_each() -> None:
    peer = many_tasks()
    async with connected(peer) as client:
        async with anyio.create_task_group() as group:
            for number in range(250):
                group.start_soon(resume_task(client, f"t{number}").result)
            await anyio.sleep(1)  # sleep: the time is simulated
            group.cancel_scope.cancel()
        assert sorted(map(len, listen_ids(peer))) == [50, 100, 100]
        assert sorted(chain.from_iterable(listen_ids(peer))) == sorted(f"t{number}" for number in range(250))
        await anyio.sleep(1)  # sleep: the time is simulated
        assert open_streams(peer) == [], "streams of which nobody waits are closed"


@simulated
async def test_waits_that_begin_one_after_another_end_up_on_few_streams() -> None:
    peer = many_tasks()
    async with connected(peer) as client, anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(resume_task(client, f"t{number}").result)
            await anyio.sleep(1)  # sleep: the time is simulated
            assert {f"t{each}" for each in range(number + 1)} == set(chain.from_iterable(open_streams(peer)))
        assert len(open_streams(peer)) <= 5
        group.cancel_scope.cancel()


@simulated
async def test_a_wait_right_after_another_one_is_pushed_too() -> None:
    peer = many_tasks()
    async with connected(peer) as client, anyio.create_task_group() as group:

        async def wait_for_both() -> None:
            await resume_task(client, "quick").result()
            await resume_task(client, "slow").result()

        group.start_soon(wait_for_both)
        await anyio.sleep(1)  # sleep: the time is simulated
        await peer.write(told(completed(taskId="quick")))
        await anyio.sleep(1)  # sleep: the time is simulated
        assert open_streams(peer) == [["slow"]]
        group.cancel_scope.cancel()


async def test_a_connection_that_is_over_is_not_held(url: str) -> None:
    tasks = TasksClient()
    async with connect(url, tasks=tasks) as client:
        await client.call_tool("echo", {"value": 1})
        session = weakref.ref(client.session)
    del client
    gc.collect()
    assert session() is None


ODD: list[dict[str, Any]] = [
    told(task("paused")),
    told(task(lastUpdatedAt="yesterday")),
    told(completed("not ours", taskId="another")),
    told({"taskId": TASK_ID}),
    told({}),
    notification("notifications/tasks", {"taskId": ["x"]}),
    notification("notifications/tasks"),
    notification("notifications/unheard-of", {}),
]


@pytest.mark.parametrize(
    "noise", [ODD, [told(working(number % 50)) for number in range(3_000)]], ids=["no tasks or not ours", "a flood"]
)
async def test_whatever_else_is_pushed_the_newest_state_counts(peer: Peer, noise: list[dict[str, Any]]) -> None:
    peer.on("subscriptions/listen", Frames(stream_of([*pushed(1), *noise, told(completed("ours"))])))
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer.url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "ours"


@pytest.mark.requirement("client/answers-what-is-pushed")
async def test_a_question_that_is_pushed_again_and_again_is_put_once(peer: Peer) -> None:
    asked: list[str] = []

    async def person(context: object, params: Any) -> Any:
        asked.append(params.message)
        done.set()
        await anyio.sleep_forever()

    async def frames() -> AsyncGenerator[Mapping[str, Any]]:
        for message in pushed(1, asking("a"), asking("a"), asking("a")):
            yield message
        await done.wait()
        yield told(completed("done elsewhere"))
        await anyio.sleep_forever()

    done = asyncio.Event()
    peer.on("subscriptions/listen", Frames(frames()))
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with connect(peer.url, person=person) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("x", {})) == "done elsewhere"
    assert len(asked) == 1


# Whose word counts: that of the task's own server on its own session, whoever shares the extension


ENDS = completed("forged", lastUpdatedAt="2026-08-01T11:00:00.000Z")

both_transports = pytest.mark.parametrize(
    "transport", [str, reconnecting_http], ids=["the SDK's transport", "a transport of ours"]
)


def hostile() -> Peer:
    """A server that pushes the end of a task of another server to whoever listens, under every subscription."""
    peer = Peer()
    own = task(taskId="own", pollIntervalMs=RARELY)
    frames = [*pushed(0), *(told(ENDS, subscription) for subscription in range(20)), told(own, 1)]

    async def listen(params: object) -> Answer:
        return Frames(stream_of(frames))

    peer.on("tools/call", task(resultType="task", taskId="own"))
    peer.on("tasks/get", own)
    peer.on("subscriptions/listen", listen)
    return peer


async def gets_the_truth(handle: TaskHandle, peer: Peer, meanwhile: Any) -> None:
    """A wait for the task believes its own server alone, whatever is pushed `meanwhile`."""
    async with anyio.create_task_group() as group:
        waiting = asyncio.create_task(handle.result())
        await eventually(lambda: peer.asked("tasks/get"))
        await meanwhile(group)
        # Whatever was pushed has arrived by the time that a few looks have come and gone.
        seen = len(peer.asked("tasks/get"))
        await eventually(lambda: len(peer.asked("tasks/get")) >= seen + 4)
        assert not waiting.done()
        peer.on("tasks/get", completed("the truth"))
        with anyio.fail_after(PATIENCE):
            assert text(await waiting) == "the truth"
        group.cancel_scope.cancel()


@both_transports
@pytest.mark.parametrize("way", ["started", "resumed"])
async def test_a_server_cannot_end_the_task_of_another(peer: Peer, transport: Any, way: str) -> None:
    tasks = TasksClient()
    evil = hostile()
    peer.on("tasks/get", working(1))
    async with (
        serving_peer(evil),
        Client(transport(peer.url), extensions=[tasks]) as client,
        Client(transport(evil.url), extensions=[tasks]) as other,
    ):
        handle = await begin(client, "x") if way == "started" else resume_task(client, TASK_ID)
        listening = await begin(other, "x") if way == "started" else resume_task(other, "own")

        async def forged(group: Any) -> None:
            group.start_soon(listening.result)
            await eventually(lambda: evil.asked("subscriptions/listen"))

        await gets_the_truth(handle, peer, forged)


async def test_a_server_cannot_make_another_be_looked_at_all_the_time(peer: Peer) -> None:
    tasks = TasksClient()
    peer.on("tasks/get", task(pollIntervalMs=RARELY))
    async with (
        serving_peer(hostile()) as evil,
        Client(peer.url, extensions=[tasks]) as client,
        Client(evil.url, extensions=[tasks]) as other,
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


# Of two resumed tasks on transports of the SDK, nothing says over which connection a notification came.
@pytest.mark.parametrize(
    ("transport", "way"), [(str, "started"), (reconnecting_http, "started"), (reconnecting_http, "resumed")]
)
async def test_each_of_two_clients_that_share_the_extension_is_pushed_to(peer: Peer, transport: Any, way: str) -> None:
    tasks = TasksClient()
    other_peer = Peer()
    for server, said in ((peer, "one"), (other_peer, "other")):
        server.on("tasks/get", task(pollIntervalMs=RARELY))
        server.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed(said)))))
    async with (
        serving_peer(other_peer),
        Client(transport(peer.url), extensions=[tasks]) as client,
        Client(transport(other_peer.url), extensions=[tasks]) as other,
    ):
        with anyio.fail_after(PATIENCE):
            # The same id on both.
            for each, said in ((client, "one"), (other, "other")):
                handle = await begin(each, "x") if way == "started" else resume_task(each, TASK_ID)
                assert text(await handle.result()) == said


# A client that is not the SDK's, but built on its session, and can be entered again as FastMCP's can: FastMCP's own is
# tried in `tests/interop`, here is what only a server that misbehaves can show.


class OtherClient:
    """The session of the SDK with one extension: as little of a client as there can be."""

    def __init__(self, url: str, tasks: TasksClient) -> None:
        self._url = url
        self._options: dict[str, Any] = {
            "extensions": {tasks.identifier: {}},
            "result_claims": {tasks.identifier: tasks.claims()},
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


async def test_a_client_that_is_entered_again_believes_only_its_own_server(peer: Peer) -> None:
    """When it is entered for the third time, its old sessions are known, its new one is not yet."""
    tasks = TasksClient()
    client = OtherClient(peer.url, tasks)
    for said in ("first", "second"):
        peer.on("tasks/get", task(pollIntervalMs=RARELY), completed(said))
        peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(1), completed(said)))))
        async with client:
            with anyio.fail_after(PATIENCE):
                assert text(await tasks.resume(client, TASK_ID).result()) == said
    evil = Peer()
    result = {**ACK, "content": [{"type": "text", "text": "done"}], "isError": False}
    evil.on("tools/call", Frames(stream_of([told(ENDS)] * 3, hold=False), last=result))
    peer.on("tasks/get", working(1))
    peer.on("subscriptions/listen", Frames(stream_of(pushed(1))))
    async with serving_peer(evil), client, Client(evil.url, extensions=[tasks]) as other:

        async def forged(group: Any) -> None:
            await eventually(lambda: len(listen_ids(peer)) == 3)
            # It listens to nothing of this server, which tells it of the other's task while it answers a call.
            assert text(await other.call_tool("x")) == "done"

        await gets_the_truth(tasks.resume(client, TASK_ID), peer, forged)


async def test_what_such_a_client_cannot_do_it_says(peer: Peer) -> None:
    tasks = TasksClient()
    async with OtherClient(peer.url, tasks) as client:
        with pytest.raises(UsageError, match="not by OtherClient"):
            await tasks.start(client, "x")
        with pytest.raises(UsageError, match="was not given this TasksClient"):
            TasksClient().resume(client, TASK_ID)
        with pytest.raises(UsageError, match="methods of its TasksClient"):
            await start_task(client, "x")
