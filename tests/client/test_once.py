"""Calls whose answers are lost: made once where the server honours idempotency keys, and never twice elsewhere."""

from __future__ import annotations

import logging
import pickle
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from harness.http import serving
from harness.rpc import EXTENSION, LEGACY, MODERN, PATIENCE
from mcp_tasks.client import CallLost, TaskHandle, TasksClient, call_tool, reconnecting_http, resume_task, start_task
from mcp_tasks.errors import InvalidOption
from tests.client.connecting import LONG, SHORT, text
from tests.client.peer import TASK_ID, Peer, Raw, Refusal, completed, serving_peer, task
from tests.client.relay import Relay, relaying
from tests.trust.keyed import KEY, LONG_KEY, REPEATED, Scene, build

pytestmark = pytest.mark.anyio

HONOURS: dict[str, Any] = {"mcp-tasks/idempotencyKeys": {}}


class Network:
    """A server, and a network to it that loses answers."""

    def __init__(self, scene: Scene, relay: Relay) -> None:
        self.scene = scene
        self.relay = relay

    def connect(self, version: str = MODERN) -> Client:
        """A client of the server."""
        tasks = TasksClient(patience=LONG)
        mode = "auto" if version == MODERN else "legacy"
        return Client(reconnecting_http(self.relay.url), extensions=[tasks], mode=mode)


@pytest.fixture(params=["sse", "json"])
async def network(request: pytest.FixtureRequest) -> AsyncGenerator[Network]:
    scene = build()
    async with serving(scene.server, json_response=request.param == "json") as wire, relaying(wire.url) as relay:
        yield Network(scene, relay)


@pytest.mark.parametrize("keep", [0, 40, 400], ids=["all lost", "cut in its head", "cut in its body"])
async def test_a_call_whose_answers_are_lost_is_made_once(network: Network, keep: int) -> None:
    async with network.connect() as client:
        network.relay.cuts, network.relay.keep_bytes = 2, keep
        with anyio.fail_after(PATIENCE):
            assert text(await call_tool(client, "pay", {"amount": 7})) == "paid 7"
    assert network.relay.cuts == 0
    assert network.scene.runs["pay"] == 1
    assert len(await network.scene.all_tasks()) == 1


async def test_so_it_is_with_tasks_of_the_older_era(network: Network) -> None:
    async with network.connect(LEGACY) as client:
        await client.list_tools()
        network.relay.cuts, network.relay.keep_bytes = 1, 0
        with anyio.fail_after(PATIENCE):
            handle = await start_task(client, "pay", {"amount": 7})
            assert isinstance(handle, TaskHandle)
            assert text(await handle.result()) == "paid 7"
    assert network.scene.runs["pay"] == 1
    assert len(await network.scene.all_tasks()) == 1


async def test_a_plain_call_is_not_made_again_and_its_caller_is_told(network: Network) -> None:
    async with network.connect() as client:
        network.relay.cuts, network.relay.keep_bytes = 1, 0
        with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="may have been made") as caught:
            await call_tool(client, "plain", {"amount": 7})
    assert caught.value.may_have_run
    assert network.scene.runs["plain"] == 1


async def test_the_callers_own_key_finds_the_task_again(network: Network) -> None:
    async with network.connect() as client:
        assert client.extensions is not None
        [tasks] = client.extensions
        assert isinstance(tasks, TasksClient)
        assert tasks.honours_keys(client)
        first = await start_task(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)
    async with network.connect() as client:
        again = await start_task(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)
        assert isinstance(first, TaskHandle)
        assert isinstance(again, TaskHandle)
        assert again.id == first.id
        assert text(await call_tool(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)) == "paid 7"
        with pytest.raises(MCPError, match="belongs to another call") as caught:
            await call_tool(client, "pay", {"amount": 8}, idempotency_key=LONG_KEY)
        assert not isinstance(caught.value, CallLost)
    assert network.scene.runs["pay"] == 1


# Servers that say exactly what a test wants


def honouring(peer: Peer) -> None:
    peer.on("server/discover", discovered(experimental=HONOURS))


def discovered(**capabilities: Any) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}, **capabilities},
        "serverInfo": {"name": "peer", "version": "1"},
        "ttlMs": 0,
        "cacheScope": "private",
    }


def calls(peer: Peer) -> list[dict[str, Any]]:
    return [params["_meta"] for params in peer.asked("tools/call")]


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 520, 524])
async def test_a_gateway_that_lost_the_server_is_asked_again_under_the_same_key(
    peer: Peer, peer_url: str, status: int
) -> None:
    honouring(peer)
    lost = Raw(b"<h1>Bad gateway</h1>", "text/html", status)
    peer.on("tools/call", lost, Raw(b'{"error": "upstream"}', "application/json", status), task(resultType="task"))
    peer.on("tasks/get", completed())
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        await call_tool(client, "x", {})
    first, second, third = calls(peer)
    assert len(first[KEY]) == 22
    assert first[KEY] == second[KEY] == third[KEY]
    assert REPEATED not in first
    assert second[REPEATED] is third[REPEATED] is True


async def test_to_a_server_that_does_not_honour_keys_a_call_goes_out_once(peer: Peer, peer_url: str) -> None:
    peer.on("server/discover", discovered())
    peer.on("tools/call", Raw(b"", "text/html", 503))
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with pytest.raises(CallLost, match="does not say that it honours idempotency keys") as caught:
            await call_tool(client, "x", {})
    assert caught.value.may_have_run
    [only] = calls(peer)
    assert KEY not in only


async def test_repeats_come_to_an_end(peer: Peer, peer_url: str, caplog: pytest.LogCaptureFixture) -> None:
    honouring(peer)
    peer.on("tools/call", Raw(b"", "text/html", 503))
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
            with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="may have been made") as caught:
                await call_tool(client, "x", {})
    lost = caught.value
    assert len(calls(peer)) == 6
    assert lost.idempotency_key == calls(peer)[0][KEY]
    assert lost.idempotency_key is not None
    assert lost.idempotency_key not in str(lost) + caplog.text
    assert caplog.text.count("making it again") == 5
    assert str(pickle.loads(pickle.dumps(lost))) == str(lost)


@pytest.mark.parametrize("code", [-32000, -32603, -32700])
async def test_an_error_of_the_server_itself_is_no_lost_answer(peer: Peer, peer_url: str, code: int) -> None:
    honouring(peer)
    peer.on("tools/call", Refusal(code, "no", status=503))
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with pytest.raises(MCPError, match="no") as caught:
            await call_tool(client, "x", {})
    assert not isinstance(caught.value, CallLost)
    assert len(calls(peer)) == 1


async def test_a_repeat_that_is_refused_for_a_limit_is_made_later(peer: Peer, peer_url: str) -> None:
    honouring(peer)
    limit = Refusal(-32010, "too many", data={"reason": "limit", "limit": "creates_per_second", "retryAfterMs": 20})
    peer.on("tools/call", Raw(b"", "text/html", 502), limit, task(resultType="task"))
    peer.on("tasks/get", completed())
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        await call_tool(client, "x", {})
        assert len(calls(peer)) == 3
    assert [REPEATED in meta for meta in calls(peer)] == [False, True, True]


@pytest.mark.parametrize("honours", [True, False])
async def test_a_call_that_is_refused_for_now_was_not_made_and_is_made_when_it_may_be(
    peer: Peer, peer_url: str, honours: bool
) -> None:
    peer.on("server/discover", discovered(**{"experimental": HONOURS} if honours else {}))
    soon, later, never = (
        Refusal(-32010, "too many", data={"reason": "limit", "limit": "owner_open_tasks", **more})
        for more in ({"retryAfterMs": 20}, {"retryAfterMs": 70_000}, {})
    )
    peer.on("tools/call", soon, soon, task(resultType="task"))
    peer.on("tasks/get", completed())
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        await call_tool(client, "x", {})
        # It is the first time of the same call each time, and no repeat of one that may have been made.
        assert [REPEATED in meta for meta in calls(peer)] == [False, False, False]
        assert len({meta.get(KEY) for meta in calls(peer)}) == 1
        for refusal in (later, never):
            peer.on("tools/call", refusal)
            with pytest.raises(MCPError, match="too many") as caught:
                await call_tool(client, "x", {})
            assert not isinstance(caught.value, CallLost)
        peer.on("tools/call", soon)
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="too many"):
            await start_task(client, "x", {}, read_timeout_seconds=0.2)


# Servers whose store is away

NO_ANSWER = Refusal(-32603, "no answer", data={"reason": "may_have_happened"})
UNAVAILABLE = Refusal(-32603, "not now", data={"reason": "unavailable"})


async def test_a_call_that_may_have_been_made_is_repeated_under_its_key(peer: Peer, peer_url: str) -> None:
    honouring(peer)
    peer.on("tools/call", NO_ANSWER, UNAVAILABLE, task(resultType="task"))
    peer.on("tasks/get", completed())
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        await call_tool(client, "x", {})
    assert [REPEATED in meta for meta in calls(peer)] == [False, True, True]
    assert len({meta[KEY] for meta in calls(peer)}) == 1


async def test_without_a_key_a_call_that_may_have_been_made_is_lost(peer: Peer, peer_url: str) -> None:
    peer.on("server/discover", discovered())
    peer.on("tools/call", NO_ANSWER)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with pytest.raises(CallLost, match="may have been made") as caught:
            await call_tool(client, "x", {})
    assert caught.value.may_have_run
    assert caught.value.data == NO_ANSWER.data
    assert len(calls(peer)) == 1


async def test_a_call_that_may_have_been_made_is_lost_when_the_store_stays_away(peer: Peer, peer_url: str) -> None:
    honouring(peer)
    peer.on("tools/call", NO_ANSWER, UNAVAILABLE)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="may have been made") as caught:
            await call_tool(client, "x", {})
    assert caught.value.idempotency_key == calls(peer)[0][KEY]
    assert len(calls(peer)) == 6


async def test_a_call_that_was_not_made_is_repeated_and_fails_as_itself(peer: Peer, peer_url: str) -> None:
    honouring(peer)
    peer.on("tools/call", UNAVAILABLE, task(resultType="task"))
    peer.on("tasks/get", completed())
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        await call_tool(client, "x", {})
        assert len(calls(peer)) == 2
        peer.on("tools/call", UNAVAILABLE)
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="not now") as caught:
            await call_tool(client, "x", {})
        assert not isinstance(caught.value, CallLost)


async def test_a_tool_with_such_an_error_of_its_own_is_not_called_again(peer: Peer, peer_url: str) -> None:
    honouring(peer)
    not_kept = Refusal(-32602, "not kept", data={"reason": "call_not_kept"})
    peer.on("tools/call", UNAVAILABLE, not_kept)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with pytest.raises(MCPError, match="not now"):
            await call_tool(client, "x", {})
        peer.on("server/discover", discovered())
    peer.on("tools/call", UNAVAILABLE)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        with pytest.raises(MCPError, match="not now"):
            await call_tool(client, "x", {})
    assert len(calls(peer)) == 3


@pytest.mark.parametrize("reason", [NO_ANSWER, UNAVAILABLE], ids=["no answer", "unavailable"])
async def test_answers_and_cancellations_are_repeated(peer: Peer, peer_url: str, reason: Refusal) -> None:
    done = {"resultType": "complete"}
    peer.on("tasks/update", reason, reason, done)
    peer.on("tasks/cancel", reason, reason, done)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG)]) as client:
        handle = resume_task(client, TASK_ID)
        with anyio.fail_after(PATIENCE):
            await handle.answer({"a": {"action": "decline"}})
            await handle.cancel()
    assert len(peer.asked("tasks/update")) == len(peer.asked("tasks/cancel")) == 3


async def test_a_cancellation_fails_when_the_store_stays_away(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/cancel", UNAVAILABLE)
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=SHORT)]) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="not now"):
            await resume_task(client, TASK_ID).cancel()


async def test_a_call_that_never_left_is_known_not_to_have_been_made() -> None:
    peer = Peer()
    honouring(peer)
    async with AsyncExitStack() as server:
        url = await server.enter_async_context(serving_peer(peer))
        async with Client(reconnecting_http(url), extensions=[TasksClient(patience=SHORT)]) as client:
            await server.aclose()
            with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="It was never sent") as caught:
                await call_tool(client, "x", {})
    assert not caught.value.may_have_run


async def test_a_key_that_no_server_takes_is_refused_before_anything_is_sent(peer: Peer, peer_url: str) -> None:
    async with Client(reconnecting_http(peer_url), extensions=[TasksClient()]) as client:
        for key in ("", "k" * 256, 7):
            with pytest.raises(InvalidOption, match="idempotency_key must be"):
                await call_tool(client, "x", {}, idempotency_key=key)  # type: ignore[arg-type]
    assert calls(peer) == []


async def test_the_life_of_a_task_is_logged_without_its_id_or_content(
    peer: Peer, peer_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer.on("tools/call", task(resultType="task"))
    peer.on("tasks/get", Raw(b"", "text/html", 503), completed())
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with Client(reconnecting_http(peer_url), extensions=[TasksClient(patience=LONG, push=False)]) as client:
            await call_tool(client, "x", {"secret": "s3cret"})
    told = [record.getMessage() for record in caplog.records if record.name == "mcp_tasks.client"]
    assert [line.split("'x' ")[1] for line in told] == [
        "was created",
        "cannot be looked at, trying again: error -32000",
        "can be looked at again",
        "is completed",
    ]
    assert TASK_ID not in caplog.text
    assert "s3cret" not in caplog.text
