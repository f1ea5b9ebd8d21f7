"""Connections that are refused, dropped and cut, under `reconnecting_http`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from harness.ports import closed_port, mcp_url
from harness.rpc import LEGACY, MODERN, PATIENCE, hello, legacy_request, response
from harness.server import Desk
from harness.waiting import eventually
from mcp_tasks.client import reconnecting_http
from mcp_tasks.client.http import SESSION, RenewsSession
from mcp_tasks.client.servers import leaves
from tests.client.connecting import LONG, SHORT, Person, begin, connect, text
from tests.client.peer import ACK, Peer, completed, working
from tests.client.relay import Relay, relaying
from tests.unit.virtual_time import simulated

pytestmark = pytest.mark.anyio


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
async def test_tasks_methods_name_their_task_in_a_header_and_those_of_the_user_go_with_every_request(
    peer: Peer, peer_url: str
) -> None:
    peer.on("tasks/get", working(1), completed())
    peer.on("tasks/update", ACK)
    peer.on("tasks/cancel", ACK)
    transport = reconnecting_http(peer_url, headers={"x-tenant": "seven"}, timeout=httpx2.Timeout(PATIENCE))
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


class OpenStream(httpx2.AsyncByteStream):
    """Events, and then nothing for longer than anybody waits."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\ndata: ' + HELLO + b"\n\n"
        await anyio.sleep(1_000)  # sleep: the time is simulated


HELLO = json.dumps(response(1, hello())).encode()
IN_A_BODY: dict[str, Any] = {"content": HELLO, "headers": {"content-type": "application/json"}}
ON_A_STREAM: dict[str, Any] = {"stream": OpenStream(), "headers": {"content-type": "text/event-stream"}}


@simulated
@pytest.mark.parametrize(
    ("answer", "status"),
    [(IN_A_BODY, 200), (ON_A_STREAM, 200), ({**IN_A_BODY, "content": b"["}, 404)],
    ids=["body", "stream", "none"],
)
async def test_a_handshake_is_repeated_and_its_answer_read(answer: dict[str, Any], status: int) -> None:
    sessions = list[str]()

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if json.loads(request.content)["method"] == "initialize":
            # The first one is read by the client itself.
            made = httpx2.Response(200, **(answer if sessions else IN_A_BODY))
            sessions.append(f"session-{len(sessions)}")
            made.headers[SESSION] = sessions[-1]
            return made
        return httpx2.Response(404 if request.headers[SESSION] == "session-0" else 200)

    async with httpx2.AsyncClient(transport=RenewsSession(httpx2.MockTransport(handle))) as client:
        await client.post("http://server/mcp", json=legacy_request("initialize", hello()))
        headers = {SESSION: "session-0", "mcp-protocol-version": LEGACY}
        listed = await client.post("http://server/mcp", json=legacy_request("tools/list"), headers=headers)
    assert (listed.status_code, sessions) == (status, ["session-0", "session-1"])
