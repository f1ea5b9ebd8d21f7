"""Connections that are refused, dropped and cut, under `reconnecting_http`, and calls whose answers are lost."""

import asyncio
import json
import logging
import pickle
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from harness.http import serving
from harness.ports import closed_port, mcp_url
from harness.rpc import LEGACY, MODERN, PATIENCE, hello, legacy_request, response
from harness.server import Desk
from harness.waiting import eventually
from mcp_tasks.cli.servers import leaves
from mcp_tasks.client import (
    CallLost,
    Patience,
    TaskHandle,
    TasksClient,
    call_tool,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.client.http import SESSION, RenewsSession
from mcp_tasks.errors import InvalidOption
from tests.client.connecting import LONG, SHORT, Person, begin, connect, text
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
    working,
)
from tests.client.relay import Relay, relaying
from tests.trust.keyed import KEY, LONG_KEY, REPEATED, Scene, build
from tests.unit.virtual_time import simulated


async def cut(relay: Relay, refusals: int) -> None:
    """Drop all connections, and so many more; return when the client is back."""
    made = relay.made
    relay.refusals = refusals
    relay.drop_all()
    await eventually(lambda: relay.made > made + refusals)


@pytest.mark.parametrize("push", [True, False], ids=["push", "polls"])
async def test_a_wait_survives_connections_that_are_dropped(url: str, desk: Desk, push: bool) -> None:
    results: list[str] = []
    async with (
        relaying(url) as relay,
        connect(reconnecting_http(relay.url), push=push, patience=LONG) as client,
        anyio.create_task_group() as group,
    ):
        handle = await begin(client, "gated")

        async def wait() -> None:
            results.append(text(await handle.result()))

        group.start_soon(wait)
        for refusals in (0, 1, 2):
            await cut(relay, refusals)
        desk.gate.set()
    assert results == ["through"]


@pytest.mark.parametrize("keep", [0, 40, 300])
async def test_a_look_whose_answer_is_cut_off_is_taken_again(url: str, desk: Desk, keep: int) -> None:
    async with relaying(url) as relay:
        relay.keep_bytes = keep
        async with connect(reconnecting_http(relay.url), push=False, patience=LONG) as client:
            handle = await begin(client, "gated")
            relay.cuts = 2
            desk.gate.set()
            assert text(await handle.result()) == "through"
    assert relay.cuts == 0


async def test_an_answer_that_is_cut_off_on_its_way_is_given_again_and_asked_for_once(url: str) -> None:
    results: list[str] = []
    ready = asyncio.Event()
    person = Person(ready=ready)
    async with (
        relaying(url) as relay,
        connect(reconnecting_http(relay.url), person=person, push=False, patience=LONG) as client,
        anyio.create_task_group() as group,
    ):
        handle = await begin(client, "ask_name")

        async def wait() -> None:
            results.append(text(await handle.result()))

        group.start_soon(wait)
        await person.until_asked()
        relay.cuts = 2
        ready.set()
    assert results == ["Hello, Ada!"]
    assert len(person.asked) == 1


async def test_a_call_that_cannot_be_delivered_is_an_error_and_the_next_one_is_not(url: str) -> None:
    async with relaying(url) as relay, connect(reconnecting_http(relay.url)) as client:
        relay.refusals = 1
        relay.drop_all()
        with pytest.raises(MCPError, match="may have done what it was asked for"):
            await client.call_tool("echo", {"value": 1})
        assert text(await client.call_tool("echo", {"value": 2})) == "2"


@pytest.mark.requirement("client/mcp-name")
async def test_tasks_methods_name_their_task_in_a_header_beside_those_of_the_user(peer: Peer) -> None:
    peer.on("tasks/get", working(1), completed())
    peer.on("tasks/update", ACK)
    peer.on("tasks/cancel", ACK)
    transport = reconnecting_http(peer.url, headers={"x-tenant": "seven"}, timeout=httpx2.Timeout(PATIENCE))
    async with connect(transport, push=False) as client:
        handle = await begin(client, "x")
        await handle.status()
        await handle.answer({"a": {"action": "decline"}})
        await handle.cancel()
    named = {headers["mcp-method"]: headers.get("mcp-name") for headers in peer.headers}
    assert {named[method] for method in ("tasks/get", "tasks/update", "tasks/cancel")} == {handle.id}
    assert {headers.get("x-tenant") for headers in peer.headers} == {"seven"}


async def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with closed_port() as unused:
        nowhere = mcp_url(unused)
        # Groups, because the SDK connects inside task groups.
        with anyio.fail_after(PATIENCE), pytest.raises(ExceptionGroup) as caught:
            async with connect(reconnecting_http(nowhere.replace("//", "//ann:secret@") + "?key=hidden")):
                pytest.fail("there is nobody to connect to")
    [cause] = leaves(caught.value)
    assert isinstance(cause, httpx2.ConnectError)
    assert str(cause).startswith(f"{nowhere} cannot be reached: ")
    assert "secret" not in str(cause)
    assert "hidden" not in str(cause)


async def test_a_server_that_went_away_is_named_without_its_credentials(url: str) -> None:
    async with relaying(url) as relay:
        address = relay.url.replace("//", "//ann:secret@")
        async with connect(reconnecting_http(address), push=False, patience=SHORT) as client:
            relay.refusals = 1_000
            relay.drop_all()
            with pytest.raises(MCPError) as caught:
                await client.list_tools()
    assert caught.value.message.startswith(f"{relay.url} gave no answer")


async def test_an_outage_at_the_beginning_does_not_make_a_server_an_older_one(url: str) -> None:
    async with relaying(url) as relay:
        relay.refusals = 1
        try:
            async with connect(reconnecting_http(relay.url)) as client:
                version = client.protocol_version
        except Exception:
            # Not connected at all is an honest answer too.
            version = MODERN
    assert version == MODERN


async def test_a_result_that_is_too_big_for_a_stream_comes_all_the_same(url: str) -> None:
    # The SDK's client takes a mebibyte per event, and a result has the text twice: as content, and structured.
    async with connect(url, patience=LONG) as client:
        with anyio.fail_after(PATIENCE):
            assert len(text(await client.call_tool("echo", {"value": "x" * 1_000_000}))) == 1_000_000


HELLO = json.dumps(response(1, hello())).encode()
JSON = {"content-type": "application/json"}


class OpenStream(httpx2.AsyncByteStream):
    """Events, and then nothing for longer than anybody waits."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\ndata: ' + HELLO + b"\n\n"
        await anyio.sleep(1_000)  # sleep: the time is simulated


@simulated
@pytest.mark.parametrize("answered", [True, False])
async def test_a_handshake_is_repeated_and_its_answer_read(answered: bool) -> None:
    sessions = list[str]()

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if json.loads(request.content)["method"] != "initialize":
            return httpx2.Response(404 if request.headers[SESSION] == "session-0" else 200)
        sessions.append(f"session-{len(sessions)}")
        headers = {SESSION: sessions[-1], "content-type": "text/event-stream"}
        if len(sessions) == 1:
            return httpx2.Response(200, content=HELLO, headers={**headers, **JSON})
        body: dict[str, Any] = {"stream": OpenStream()} if answered else {"content": b"["}
        return httpx2.Response(200, headers=headers, **body)

    async with httpx2.AsyncClient(transport=RenewsSession(httpx2.MockTransport(handle))) as client:
        await client.post("http://server/mcp", json=legacy_request("initialize", hello()))
        headers = {SESSION: "session-0", "mcp-protocol-version": LEGACY}
        listed = await client.post("http://server/mcp", json=legacy_request("tools/list"), headers=headers)
    assert (listed.status_code, sessions) == (200 if answered else 404, ["session-0", "session-1"])


# Calls whose answers are lost: made once where the server honours keys, and never twice elsewhere


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
async def test_a_call_whose_answer_is_lost_runs_once(
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
async def test_a_call_is_made_again_where_that_is_safe(peer: Peer, answers: list[Answer], expected: list[bool]) -> None:
    peer.on("server/discover", discovered(**HONOURS))
    peer.on("tools/call", *answers, CREATED_TASK)
    peer.on("tasks/get", completed())
    async with client_of(peer.url) as client:
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
    honours: bool,
    answers: list[Answer],
    made: int,
    may_have_run: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer.on("server/discover", discovered(**(HONOURS if honours else {})))
    peer.on("tools/call", *answers)
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with client_of(peer.url) as client:
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


async def test_a_call_that_is_refused_for_now_is_not_made_again_for_ever(peer: Peer) -> None:
    peer.on("tools/call", SOON)
    async with client_of(peer.url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="too many"):
            await start_task(client, "x", {}, read_timeout_seconds=0.2)


@pytest.mark.parametrize("reason", [NO_ANSWER, UNAVAILABLE], ids=["no answer", "unavailable"])
async def test_answers_and_cancellations_are_repeated_while_the_store_is_away(peer: Peer, reason: Refusal) -> None:
    peer.on("tasks/update", reason, reason, ACK)
    peer.on("tasks/cancel", reason, reason, ACK)
    async with client_of(peer.url, SHORT) as client:
        handle = resume_task(client, TASK_ID)
        with anyio.fail_after(PATIENCE):
            await handle.answer({"a": {"action": "decline"}})
            await handle.cancel()
            assert len(peer.asked("tasks/update")) == len(peer.asked("tasks/cancel")) == 3
            peer.on("tasks/cancel", reason)
            with pytest.raises(MCPError, match=reason.message):
                await handle.cancel()


async def test_a_call_that_never_left_is_known_not_to_have_been_made() -> None:
    async with AsyncExitStack() as server:
        peer = await server.enter_async_context(serving_peer())
        peer.on("server/discover", discovered(**HONOURS))
        async with client_of(peer.url, SHORT) as client:
            await server.aclose()
            with anyio.fail_after(PATIENCE), pytest.raises(CallLost, match="It was never sent") as caught:
                await call_tool(client, "x", {})
    assert not caught.value.may_have_run


async def test_a_key_that_no_server_takes_is_refused_before_anything_is_sent(peer: Peer) -> None:
    async with client_of(peer.url) as client:
        for key in ("", "k" * 256, 7):
            with pytest.raises(InvalidOption, match="idempotency_key must be"):
                await call_tool(client, "x", {}, idempotency_key=key)  # type: ignore[arg-type]
    assert calls(peer) == []


async def test_a_task_is_logged_without_its_id_or_content(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    peer.on("tasks/get", lost(503), completed())
    with caplog.at_level(logging.INFO, "mcp_tasks.client"):
        async with client_of(peer.url) as client:
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
