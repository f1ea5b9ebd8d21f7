"""What HTTP adds: sessions, resumable streams, browsers and the names of the host. The same with tasks and without."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import anyio
import httpx2
import pytest

from harness.http import HttpWire, LegacyHttpWire, http_client, initialize, modern_headers
from harness.rpc import LEGACY, MODERN, NOTHING, PATIENCE, hello, legacy_request, loads, request
from tests.everything.site import HOST, IDLE, ORIGIN

pytestmark = pytest.mark.anyio

BASE = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
WEATHER = {"name": "weather", "arguments": {"city": "Paris"}}


@pytest.fixture(params=["tasks", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two servers."""
    return request.param


@pytest.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of no MCP at all."""
    async with http_client() as client:
        yield client


def _session_id(session: LegacyHttpWire) -> str:
    [found] = [value for name, value in session.headers if name == "mcp-session-id"]
    return found


# Sessions


async def test_a_session_that_its_client_ends_is_gone(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    url = f"{site}/{kind}/stateful/mcp"
    session, _ = await initialize(HttpWire(url, http), {})
    assert (await session.ask("tools/call", WEATHER)).status == 200
    headers = {**BASE, **dict(session.headers)}
    assert (await http.delete(url, headers=headers)).status_code == 200
    for method in ("tools/call", "tasks/get", "tasks/list"):
        reply = await http.post(url, headers=headers, json=legacy_request(method, WEATHER))
        assert reply.status_code == 404


async def test_a_session_that_never_was_is_not_found(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    headers = {**BASE, "mcp-protocol-version": LEGACY, "mcp-session-id": "made-up"}
    for way in ("stateful", "json"):
        reply = await http.post(f"{site}/{kind}/{way}/mcp", headers=headers, json=legacy_request("tools/list"))
        assert reply.status_code == 404
        assert reply.json()["error"]["message"] == "Session not found"


async def test_a_session_in_which_nothing_happens_ends(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    session, _ = await initialize(HttpWire(f"{site}/{kind}/idle/mcp", http), {})
    assert (await session.ask("tools/call", WEATHER)).status == 200
    with anyio.fail_after(PATIENCE):
        # Each look is something that happens, so they are far apart.
        while True:
            await anyio.sleep(IDLE * 3)
            if (await session.ask("tools/call", WEATHER)).status == 404:
                return


async def test_two_sessions_know_nothing_of_each_other(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    wire = HttpWire(f"{site}/{kind}/stateful/mcp", http)
    (first, _), (second, _) = await initialize(wire, {}), await initialize(wire, {})
    assert _session_id(first) != _session_id(second)
    await http.delete(wire.url, headers={**BASE, **dict(first.headers)})
    assert (await second.ask("tools/call", WEATHER)).status == 200


async def test_without_sessions_there_is_no_session_to_end(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    url = f"{site}/{kind}/stateless/mcp"
    welcome = await http.post(url, headers=BASE, json=legacy_request("initialize", hello()))
    assert "mcp-session-id" not in welcome.headers
    headers = {**BASE, "mcp-protocol-version": LEGACY}
    assert (await http.delete(url, headers=headers)).status_code == 405


# Streams that are taken up again


def _events(lines: list[str]) -> list[tuple[str, Any]]:
    """The events of a stream: id and message, which a priming event has none of."""
    found: list[tuple[str, Any]] = []
    for block in "\n".join(lines).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "id" in fields:
            found.append((fields["id"], loads(fields["data"]) if fields.get("data") else None))
    return found


async def _read(response: httpx2.Response, until: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """The events of a stream up to the first whose message is wanted."""
    lines: list[str] = []
    async for line in response.aiter_lines():
        lines.append(line)
        if not line and any(until(message) for _, message in _events(lines)):
            break
    return _events(lines)


async def test_an_answer_whose_stream_broke_is_fetched_on_another(
    site: str, kind: str, http: httpx2.AsyncClient
) -> None:
    url = f"{site}/{kind}/resumable/mcp"
    session, _ = await initialize(HttpWire(url, http), {})
    headers = {**BASE, **dict(session.headers)}
    call = legacy_request("tools/call", {"name": "linger", "arguments": {}, "_meta": {"progressToken": "p"}})
    async with http.stream("POST", url, headers=headers, json=call) as broken:
        (first, nothing), *_ = await _read(broken, lambda message: message is None)
    assert nothing is None
    with anyio.fail_after(PATIENCE):
        async with http.stream("GET", url, headers={**headers, "last-event-id": first}) as resumed:
            assert resumed.status_code == 200
            events = await _read(resumed, lambda message: message is not None and message.get("id") == call["id"])
    messages = [message for _, message in events if message is not None]
    assert [message["params"]["message"] for message in messages[:-1]] == ["half", "all"]
    assert messages[-1]["id"] == call["id"]
    assert messages[-1]["result"]["content"][0]["text"] == "lingered"


async def test_an_answer_whose_stream_the_tool_itself_ended_is_fetched_on_another(
    site: str, kind: str, http: httpx2.AsyncClient
) -> None:
    url = f"{site}/{kind}/resumable/mcp"
    session, _ = await initialize(HttpWire(url, http), {})
    headers = {**BASE, **dict(session.headers)}
    call = legacy_request("tools/call", {"name": "hang_up", "arguments": {}})
    with anyio.fail_after(PATIENCE):
        async with http.stream("POST", url, headers=headers, json=call) as ended:
            events = await _read(ended, lambda message: False)
        assert [message for _, message in events] == [None]
        async with http.stream("GET", url, headers={**headers, "last-event-id": events[0][0]}) as resumed:
            *_, (_, answer) = await _read(resumed, lambda message: message is not None)
    assert answer["id"] == call["id"]
    assert answer["result"]["content"][0]["text"] == "hung up"


# Browsers, and the names of the host


def _newer(tool: Mapping[str, Any] = WEATHER) -> tuple[dict[str, Any], dict[str, str]]:
    """A call on the newer wire with its headers."""
    call = request("tools/call", tool, capabilities=NOTHING)
    return call, {**BASE, **dict(modern_headers(call))}


async def test_a_browser_may_come_from_where_the_server_says(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    url = f"{site}/{kind}/cors/mcp"
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-session-id,mcp-method"}
    preflight = await http.options(url, headers={"origin": ORIGIN, **asks})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    welcome = await http.post(url, headers={**BASE, "origin": ORIGIN}, json=legacy_request("initialize", hello()))
    assert welcome.status_code == 200
    assert welcome.headers["mcp-session-id"]
    # Or the page could not read it, and would have no session.
    assert welcome.headers["access-control-expose-headers"] == "Mcp-Session-Id"
    call, headers = _newer()
    answered = await http.post(url, headers={**headers, "origin": ORIGIN}, json=call)
    assert answered.status_code == 200
    assert answered.headers["access-control-allow-origin"] == ORIGIN


async def test_a_browser_from_elsewhere_is_refused(site: str, kind: str, http: httpx2.AsyncClient) -> None:
    url, evil = f"{site}/{kind}/cors/mcp", "https://evil.example.com"
    preflight = await http.options(url, headers={"origin": evil, "access-control-request-method": "POST"})
    assert preflight.status_code == 400
    older = legacy_request("initialize", hello())
    assert (await http.post(url, headers={**BASE, "origin": evil}, json=older)).status_code == 403
    call, headers = _newer()
    assert (await http.post(url, headers={**headers, "origin": evil}, json=call)).status_code == 403


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_only_the_servers_own_names_are_answered(
    site: str, kind: str, era: str, http: httpx2.AsyncClient
) -> None:
    call, headers = _newer() if era == MODERN else (legacy_request("initialize", hello()), BASE)
    url, body = f"{site}/{kind}/guarded/mcp", json.dumps(call)
    statuses = {
        names: (await http.post(url, headers={**headers, **dict(names)}, content=body)).status_code
        for names in (
            (("host", HOST),),
            (("host", HOST), ("origin", ORIGIN)),
            (("host", "127.0.0.1:8000"),),
            (("host", "evil.example.com"),),
            (("host", HOST), ("origin", "https://evil.example.com")),
        )
    }
    assert list(statuses.values()) == [200, 200, 421, 421, 403]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
async def test_tasks_are_answered_under_the_servers_own_names_only(
    site: str, method: str, http: httpx2.AsyncClient
) -> None:
    asked = request(method, {"taskId": "nope", "inputResponses": {}})
    headers = {**BASE, **dict(modern_headers(asked))}
    url = f"{site}/tasks/guarded/mcp"
    refused = await http.post(url, headers={**headers, "host": "evil.example.com"}, json=asked)
    assert refused.status_code == 421
    answered = await http.post(url, headers={**headers, "host": HOST}, json=asked)
    assert answered.json()["error"]["code"] == -32602
