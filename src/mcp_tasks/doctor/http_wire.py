"""Raw JSON-RPC over Streamable HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from itertools import count

import anyio
import httpx2

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.wire import (
    ANSWER_TIMEOUT,
    LISTENING,
    Reply,
    Silence,
    handshake,
    parse_object,
    request_of,
    routing_headers,
)


@asynccontextmanager
async def http_wire(url: str, headers: Mapping[str, str]) -> AsyncGenerator[HttpWire]:
    """A way to a server, for as long as this is entered."""
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(ANSWER_TIMEOUT, read=None), headers=dict(headers)) as client:
        yield HttpWire(url, client)


class HttpWire:
    """Streamable HTTP."""

    over_http = True

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self._url = url
        self._client = client
        self._numbers = count(1)

    async def send(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        declare: bool = True,
        headers: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> Reply:
        """Send a request and give what came back."""
        body = request_of(next(self._numbers), method, params, declare=declare)
        sent = {**routing_headers(method, params), **(headers or {})}
        return await self._post(body, {name: value for name, value in sent.items() if name not in without})

    async def shake_hands(self) -> Reply:
        """Send an `initialize`."""
        return await self._post(handshake(next(self._numbers)), {})

    @asynccontextmanager
    async def listen(self, task_ids: Sequence[str]) -> AsyncGenerator[AsyncIterator[JsonObject]]:
        """Open a listen stream."""
        method, params = "subscriptions/listen", {"notifications": {"taskIds": list(task_ids)}}
        body = request_of(next(self._numbers), method, params)
        try:
            async with (
                self._stream(body, routing_headers(method, params)) as response,
                aclosing(_messages(response)) as messages,
            ):
                yield messages
        except httpx2.TransportError as exc:
            raise Silence(f"the stream broke: {exc or type(exc).__name__}") from exc

    async def _post(self, body: JsonObject, headers: Mapping[str, str]) -> Reply:
        try:
            with anyio.fail_after(ANSWER_TIMEOUT):
                async with self._stream(body, headers) as response:
                    message: JsonObject | None = None
                    async with aclosing(_messages(response)) as messages:
                        async for found in messages:
                            # A stream that was opened says so, and then nothing for a long time.
                            if "result" in found or "error" in found or found.get("method") == LISTENING:
                                message = found
                                break
        except TimeoutError as exc:
            raise Silence(f"no answer within {ANSWER_TIMEOUT:g} s") from exc
        except httpx2.TransportError as exc:
            raise Silence(f"the connection broke: {exc or type(exc).__name__}") from exc
        kind = response.headers.get("content-type", "").partition(";")[0]
        return Reply(status=response.status_code, kind=kind, message=message, headers=response.headers)

    def _stream(self, body: JsonObject, headers: Mapping[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        return self._client.stream("POST", self._url, content=json.dumps(body), headers={**accept, **headers})


async def _messages(response: httpx2.Response) -> AsyncGenerator[JsonObject]:
    """The JSON-RPC messages in a response, as they come. Anything that is not JSON is skipped."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        async for line in response.aiter_lines():
            if line.startswith("data:") and (message := parse_object(line.removeprefix("data:"))) is not None:
                yield message
    elif (message := parse_object(await response.aread())) is not None:
        yield message
