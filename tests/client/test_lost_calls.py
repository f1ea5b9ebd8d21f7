"""Calls whose answers are lost: made once where the server honours idempotency keys, and never twice elsewhere."""

from __future__ import annotations

import logging
import pickle
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from harness.http import serving
from harness.rpc import PATIENCE
from mcp_tasks.client import (
    CallLost,
    InvalidOption,
    Patience,
    TaskHandle,
    TasksClient,
    call_tool,
    reconnecting_http,
    resume_task,
    start_task,
)
from tests.client.connecting import LONG, SHORT, text
from tests.client.peer import (
    ACK,
    TASK_ID,
    Answer,
    Peer,
    Raw,
    Refusal,
    completed,
    discovered,
    serving_peer,
    task,
)
from tests.client.relay import Relay, relaying
from tests.trust.keyed import KEY, LONG_KEY, REPEATED, Scene, build

pytestmark = pytest.mark.anyio

HONOURS: dict[str, Any] = {"experimental": {"mcp-tasks/idempotencyKeys": {}}}


@pytest.fixture(params=["sse", "json"])
async def network(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[Scene, Relay]]:
    scene = build()
    async with serving(scene.server, json_response=request.param == "json") as wire, relaying(wire.url) as relay:
        yield scene, relay


def client_of(url: str, patience: Patience = LONG, mode: Literal["auto", "legacy"] = "auto") -> Client:
    return Client(reconnecting_http(url), extensions=[TasksClient(patience=patience, push=False)], mode=mode)


@pytest.mark.parametrize(
    ("mode", "cuts", "keep"), [("auto", 2, 0), ("auto", 2, 40), ("auto", 2, 400), ("legacy", 1, 0)]
)
async def test_a_call_whose_answers_are_lost_is_made_once(
    network: tuple[Scene, Relay], mode: Any, cuts: int, keep: int
) -> None:
    scene, relay = network
    async with client_of(relay.url, mode=mode) as client:
        await client.list_tools()
        relay.cuts, relay.keep_bytes = cuts, keep
        with anyio.fail_after(PATIENCE):
            assert text(await call_tool(client, "pay", {"amount": 7})) == "paid 7"
    assert relay.cuts == 0
    assert scene.runs["pay"] == 1
    assert len(await scene.all_tasks()) == 1


async def test_a_plain_call_is_not_made_again_and_its_caller_is_told(network: tuple[Scene, Relay]) -> None:
    scene, relay = network
    async with client_of(relay.url) as client:
        relay.cuts, relay.keep_bytes = 1, 0
        with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="may have been made") as caught:
            await call_tool(client, "plain", {"amount": 7})
    assert caught.value.may_have_run
    assert scene.runs["plain"] == 1


async def test_the_callers_own_key_finds_the_task_again() -> None:
    scene = build()
    async with serving(scene.server) as wire:
        async with client_of(wire.url) as client:
            [tasks] = client.extensions or [None]
            assert isinstance(tasks, TasksClient)
            assert tasks.honours_keys(client)
            first = await start_task(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)
        async with client_of(wire.url) as client:
            again = await start_task(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)
            assert isinstance(first, TaskHandle)
            assert isinstance(again, TaskHandle)
            assert again.id == first.id
            assert text(await call_tool(client, "pay", {"amount": 7}, idempotency_key=LONG_KEY)) == "paid 7"
            with pytest.raises(MCPError, match="belongs to another call") as caught:
                await call_tool(client, "pay", {"amount": 8}, idempotency_key=LONG_KEY)
            assert not isinstance(caught.value, CallLost)
    assert scene.runs["pay"] == 1


# Servers that say exactly what a test wants


def lost(status: int, body: bytes = b"<h1>Bad gateway</h1>", kind: str = "text/html") -> Raw:
    return Raw(body, kind, status)


def limit(**data: Any) -> Refusal:
    return Refusal(-32010, "too many", data={"reason": "limit", "limit": "owner_open_tasks", **data})


CREATED_TASK = task(resultType="task")
SOON = limit(retryAfterMs=20)
NO_ANSWER = Refusal(-32603, "no answer", data={"reason": "may_have_happened"})
UNAVAILABLE = Refusal(-32603, "not now", data={"reason": "unavailable"})
NOT_KEPT = Refusal(-32602, "not kept", data={"reason": "call_not_kept"})
MADE_AGAIN = 6
"""How often a call goes out at most."""


def calls(peer: Peer) -> list[dict[str, Any]]:
    return [params["_meta"] for params in peer.asked("tools/call")]


def repeated(peer: Peer) -> list[bool]:
    return [meta.get(REPEATED, False) for meta in calls(peer)]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        *(
            pytest.param([lost(status), lost(status, b"{}", "application/json")], [False, True, True], id=str(status))
            for status in (408, 500, 502, 503, 504, 520, 524)
        ),
        pytest.param([lost(502), limit(retryAfterMs=20)], [False, True, True], id="then a limit"),
        pytest.param([NO_ANSWER, UNAVAILABLE], [False, True, True], id="its store may have taken it"),
        pytest.param([UNAVAILABLE], [False, True], id="its store did not take it"),
        # It is the first time of the same call each time, and no repeat of one that may have been made.
        pytest.param([SOON, SOON], [False, False, False], id="refused for now"),
    ],
)
async def test_a_call_is_made_again_under_the_same_key_where_that_is_safe(
    peer: Peer, peer_url: str, answers: list[Answer], expected: list[bool]
) -> None:
    peer.on("server/discover", discovered(**HONOURS))
    peer.on("tools/call", *answers, CREATED_TASK)
    peer.on("tasks/get", completed())
    async with client_of(peer_url) as client:
        await call_tool(client, "x", {})
    assert repeated(peer) == expected
    [key] = {meta[KEY] for meta in calls(peer)}
    assert len(key) == 22


@pytest.mark.parametrize(
    ("honours", "answers", "made", "may_have_run"),
    [
        pytest.param(True, [lost(503)], MADE_AGAIN, True, id="lost every time"),
        pytest.param(True, [NO_ANSWER, UNAVAILABLE], MADE_AGAIN, True, id="its store stays away"),
        pytest.param(False, [lost(503)], 1, True, id="no keys"),
        pytest.param(False, [NO_ANSWER], 1, True, id="no keys, and its store may have taken it"),
        pytest.param(True, [UNAVAILABLE], MADE_AGAIN, None, id="not made, as itself"),
        pytest.param(True, [UNAVAILABLE, NOT_KEPT], 2, None, id="an error of the tool's own"),
        pytest.param(False, [UNAVAILABLE], 1, None, id="no keys, and not made"),
        pytest.param(True, [limit(retryAfterMs=70_000)], 1, None, id="a limit for long"),
        pytest.param(False, [limit()], 1, None, id="a limit without end"),
        *(
            pytest.param(True, [Refusal(code, "no", status=503)], 1, None, id=f"the server's own {code}")
            for code in (-32000, -32603, -32700)
        ),
    ],
)
async def test_a_call_that_failed_says_whether_it_may_have_been_made(
    peer: Peer,
    peer_url: str,
    honours: bool,
    answers: list[Answer],
    made: int,
    may_have_run: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer.on("server/discover", discovered(**(HONOURS if honours else {})))
    peer.on("tools/call", *answers)
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with client_of(peer_url) as client:
            with anyio.fail_after(PATIENCE), pytest.raises(MCPError) as caught:
                await call_tool(client, "x", {})
    failed = caught.value
    assert len(calls(peer)) == made
    assert caplog.text.count("making it again") == made - 1
    if may_have_run is None:
        assert not isinstance(failed, CallLost)
        return
    assert isinstance(failed, CallLost)
    assert "may have been made" in str(failed)
    assert failed.may_have_run is may_have_run
    assert failed.idempotency_key == calls(peer)[0].get(KEY)
    assert (failed.idempotency_key is not None) is honours
    assert (failed.idempotency_key or "no key") not in str(failed) + caplog.text
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)


async def test_a_call_that_is_refused_for_now_is_not_made_again_for_longer_than_it_may_take(
    peer: Peer, peer_url: str
) -> None:
    peer.on("tools/call", SOON)
    async with client_of(peer_url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="too many"):
            await start_task(client, "x", {}, read_timeout_seconds=0.2)


@pytest.mark.parametrize("reason", [NO_ANSWER, UNAVAILABLE], ids=["no answer", "unavailable"])
async def test_answers_and_cancellations_are_repeated_while_the_store_is_away_and_not_for_ever(
    peer: Peer, peer_url: str, reason: Refusal
) -> None:
    peer.on("tasks/update", reason, reason, ACK)
    peer.on("tasks/cancel", reason, reason, ACK)
    async with client_of(peer_url, SHORT) as client:
        handle = resume_task(client, TASK_ID)
        with anyio.fail_after(PATIENCE):
            await handle.answer({"a": {"action": "decline"}})
            await handle.cancel()
            assert len(peer.asked("tasks/update")) == len(peer.asked("tasks/cancel")) == 3
            peer.on("tasks/cancel", reason)
            with pytest.raises(MCPError, match=reason.message):
                await handle.cancel()


async def test_a_call_that_never_left_is_known_not_to_have_been_made() -> None:
    peer = Peer()
    peer.on("server/discover", discovered(**HONOURS))
    async with AsyncExitStack() as server:
        url = await server.enter_async_context(serving_peer(peer))
        async with client_of(url, SHORT) as client:
            await server.aclose()
            with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="It was never sent") as caught:
                await call_tool(client, "x", {})
    assert not caught.value.may_have_run


async def test_a_key_that_no_server_takes_is_refused_before_anything_is_sent(peer: Peer, peer_url: str) -> None:
    async with client_of(peer_url) as client:
        for key in ("", "k" * 256, 7):
            with pytest.raises(InvalidOption, match="idempotency_key must be"):
                await call_tool(client, "x", {}, idempotency_key=key)  # type: ignore[arg-type]
    assert calls(peer) == []


async def test_the_life_of_a_task_is_logged_without_its_id_or_content(
    peer: Peer, peer_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer.on("tasks/get", lost(503), completed())
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with client_of(peer_url) as client:
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
