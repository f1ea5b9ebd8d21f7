"""A session that the server has forgotten is begun again, however the server answers the handshake."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import anyio
import httpx2
import pytest

from harness.rpc import LEGACY, hello, legacy_request, response
from mcp_tasks.client.http import SESSION, RenewsSession
from tests.unit.virtual_time import SIMULATED

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", [SIMULATED])]

ANSWER = json.dumps(response(1, hello())).encode()


class OpenStream(httpx2.AsyncByteStream):
    """Events, and then nothing for longer than anybody waits."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\ndata: ' + ANSWER + b"\n\n"
        await anyio.sleep(1_000)  # sleep: the time is simulated


def in_a_body() -> httpx2.Response:
    return httpx2.Response(200, content=ANSWER, headers={"content-type": "application/json"})


def on_a_stream() -> httpx2.Response:
    return httpx2.Response(200, stream=OpenStream(), headers={"content-type": "text/event-stream"})


def not_at_all() -> httpx2.Response:
    return httpx2.Response(200, content=b"[", headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("answer", "status"), [(in_a_body, 200), (on_a_stream, 200), (not_at_all, 404)], ids=["body", "stream", "none"]
)
async def test_a_handshake_is_repeated_and_its_answer_read(answer: Callable[[], httpx2.Response], status: int) -> None:
    sessions = list[str]()

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if json.loads(request.content)["method"] == "initialize":
            # The first one is read by the client itself.
            made = in_a_body() if not sessions else answer()
            sessions.append(f"session-{len(sessions)}")
            made.headers[SESSION] = sessions[-1]
            return made
        return httpx2.Response(404 if request.headers[SESSION] == "session-0" else 200)

    async with httpx2.AsyncClient(transport=RenewsSession(httpx2.MockTransport(handle))) as client:
        await client.post("http://server/mcp", json=legacy_request("initialize", hello()))
        headers = {SESSION: "session-0", "mcp-protocol-version": LEGACY}
        listed = await client.post("http://server/mcp", json=legacy_request("tools/list"), headers=headers)
    assert (listed.status_code, sessions) == (status, ["session-0", "session-1"])
