"""An HTTP transport that survives restarts of the server.

The SDK's own transport ends the whole client when one request cannot be delivered. During a wait of hours that is too
strict: here such a request fails alone, with a JSON-RPC error, and the next one tries again. In 2025-11-25, which has
sessions, a server that has forgotten ours gets a new one, and the stream of the server's own messages is opened again
for as long as it takes.

    async with Client(reconnecting_http(url), extensions=[TasksClient(ledger="ledger.db")]) as client: ...
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED
from pydantic_core import from_json

from mcp_tasks.client.backend import ACCESS_REFUSED, CUT_OFF, SENT_DATA_KEY
from mcp_tasks.client.transport import ServerTransport, http_address, leaving_quietly
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import backoff
from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

SESSION: Final = "mcp-session-id"
NOT_FOUND: Final = 404
HANDSHAKE_LIMIT: Final = 30.0
"""Seconds for a server to answer the handshake again."""

_CONNECTING = ("server/discover", "initialize")
"""Requests of the handshake. An error in response to them means an older server, so none may be made up: a server that
is not there when the client connects is a failure to connect."""

MAX_EVENT: Final = 64 * 2**20
"""Bytes in one event of a stream, and in a body that is not a stream. A result is one event, and the SDK's own limit of
1 MiB is soon reached; for a body it has none."""

MAX_PACKED: Final = MAX_EVENT // 1_024
"""Bytes in a body that is compressed although that was not asked for: it may expand a thousand times."""

_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Errors of a request of which nothing was sent."""

_GATEWAY: Final = frozenset({502, 503, 504})
"""Statuses of a gateway, which does not know what became of the request."""

_REFUSED: Final = frozenset({401, 403})
"""Statuses of a server that asks for other credentials. An `auth` of the caller's may get some, and sees them as they
are; otherwise the SDK would say no more than that something went wrong."""

_TIMED_OUT: Final = 408

_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


async def messages_in(response: httpx2.Response) -> AsyncGenerator[JsonObject]:
    """The messages in an HTTP response, which is one message or a stream of events. Everything that is not a JSON
    object is skipped."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        if (message := _object(await response.aread())) is not None:
            yield message
        return
    async for event in httpx2.EventSource(response):
        if (message := _object(event.data)) is not None:
            yield message


def _object(text: str | bytes) -> JsonObject | None:
    try:
        return object_in(from_json(text, allow_inf_nan=False))
    except ValueError:
        return None


def _method_of(request: httpx2.Request) -> str | None:
    """The method of a request; older versions do not have it in a header."""
    named = request.headers.get("mcp-method")
    if named is not None or request.method != "POST":
        return named
    try:
        message: Any = json.loads(request.content)
        return str(message["method"])
    except (ValueError, RecursionError, KeyError, TypeError, httpx2.StreamError):
        return None


class RenewsSession(httpx2.AsyncBaseTransport):
    """Keeps a session of 2025-11-25 going over restarts of the server."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self._handshake: httpx2.Request | None = None
        self._current = ""
        self._renewing = anyio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if SESSION not in request.headers:
            response = await self._inner.handle_async_request(request)
            if _method_of(request) == "initialize" and SESSION in response.headers:
                self._handshake = request
                self._current = response.headers[SESSION]
            return response
        used = self._current or request.headers[SESSION]
        response = await self._inner.handle_async_request(_in_session(request, used))
        if response.status_code != NOT_FOUND or request.method == "DELETE" or not await self._renew(used, request):
            return response
        await response.aclose()
        return await self._inner.handle_async_request(_in_session(request, self._current))

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _renew(self, lost: str, request: httpx2.Request) -> bool:
        """Begin a session in place of the lost one, unless another request was quicker; whether there is one."""
        async with self._renewing:
            if self._current != lost:
                return True
            if self._handshake is None:
                return False
            try:
                with anyio.fail_after(HANDSHAKE_LIMIT):
                    return await self._shake_hands(self._handshake, request)
            except (httpx2.HTTPError, httpx2.StreamError, TimeoutError) as exc:
                logger.info("the server has forgotten the session, and a new one could not be begun: %s", what(exc))
                return False

    async def _shake_hands(self, handshake: httpx2.Request, request: httpx2.Request) -> bool:
        if "authorization" in request.headers:
            # Tokens change.
            handshake.headers["authorization"] = request.headers["authorization"]
        response = await self._inner.handle_async_request(handshake)
        response.request = handshake
        result: JsonObject | None = None
        async with aclosing(response), aclosing(messages_in(response)) as messages:
            async for message in messages:
                if (result := object_in(message, "result")) is not None:
                    break
        session, version = response.headers.get(SESSION), request.headers.get("mcp-protocol-version")
        if not session or result is None or version not in (None, result.get("protocolVersion")):
            # Another version than the client goes on to speak: it has to connect again.
            return False
        told = httpx2.Request(
            "POST",
            request.url,
            headers=[(k, v) for k, v in request.headers.raw if k.lower() not in (b"content-length", b"last-event-id")],
            content=json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        )
        await (await self._inner.handle_async_request(_in_session(told, session))).aclose()
        logger.info("the server had forgotten the session; a new one was begun")
        self._current = session
        return True


def _in_session(request: httpx2.Request, session: str) -> httpx2.Request:
    request.headers[SESSION] = session
    return request


def reconnecting_http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    timeout: httpx2.Timeout | None = None,
) -> ServerTransport:
    """A transport for the SDK's `Client` that survives restarts of the server.

    `headers` and `auth` go with every request. The ledger knows the server by the URL, without any credentials in it.
    """
    return ServerTransport(http_address(url), _streams(url, headers, auth, timeout))


@asynccontextmanager
async def _streams(
    url: str, headers: Mapping[str, str] | None, auth: httpx2.Auth | None, timeout: httpx2.Timeout | None
) -> AsyncGenerator[Any]:
    inner = httpx2.AsyncHTTPTransport(retries=0, limits=_LIMITS)
    client = httpx2.AsyncClient(
        # Not compressed, unless the caller says otherwise: its sender decides how much comes of a compressed body.
        headers={"accept-encoding": "identity", **(headers or {})},
        auth=auth,
        timeout=timeout or httpx2.Timeout(30.0, read=300.0),
        # Each wait for a result of 2025-11-25 holds a connection, and looks must not queue up behind them.
        transport=RenewsSession(_FailsAlone(inner, refusals_are_final=auth is None)),
    )
    opening = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_EVENT)
    async with client, leaving_quietly(opening) as streams:
        yield streams


class _FailsAlone(httpx2.AsyncBaseTransport):
    """Answers a request in place of a server that cannot be reached."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, refusals_are_final: bool) -> None:
        self._inner = inner
        self._refusals_are_final = refusals_are_final

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return await self._open_stream(request)
        # Without the query: like a password, a key in it is not for logs.
        where = http_address(str(request.url.copy_with(query=None)))
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as exc:
            why = _unreachable(where, exc)
            if request.headers.get("mcp-method") in _CONNECTING:
                # The same exception, with the URL in its text.
                raise type(exc)(why, request=request) from exc
            return _error_response(request, CONNECTION_CLOSED, why, {SENT_DATA_KEY: not isinstance(exc, _NEVER_SENT)})
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, _most_of(response))
        status = response.status_code
        is_doubtful = status == _TIMED_OUT or status >= 500
        is_refusal = self._refusals_are_final and status in _REFUSED
        # A server of an older version has any status for a request that it does not know.
        is_judged = status in _GATEWAY or ((is_doubtful or is_refusal) and _method_of(request) not in _CONNECTING)
        if not is_judged or await _is_answer(response):
            return response
        if is_refusal:
            return _error_response(request, ACCESS_REFUSED, f"{where} refuses the credentials, with HTTP {status}")
        why = f"{where} answered with HTTP {status}"
        return _error_response(request, CONNECTION_CLOSED, why, {SENT_DATA_KEY: True})

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _open_stream(self, request: httpx2.Request) -> httpx2.Response:
        """The stream that belongs to no request: the SDK gives it up silently after two failures."""
        failures = 0
        while True:
            try:
                response = await self._inner.handle_async_request(request)
            except httpx2.TransportError as exc:
                logger.debug("the stream of the server's own messages cannot be opened: %s", what(exc))
                pause = backoff(failures, base=timedelta(milliseconds=250), limit=timedelta(seconds=10))
                failures += 1
                await anyio.sleep(pause.total_seconds())
                continue
            if isinstance(response.stream, httpx2.AsyncByteStream):
                response.stream = _Reopened(response.stream)
            return response


class _Reopened(httpx2.AsyncByteStream):
    """A stream that ends when it is cut off, after which the SDK opens it again."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except httpx2.TransportError as exc:
            logger.debug("the stream of the server's own messages was cut off: %s", what(exc))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(_Reopened):
    """A body that, if it is cut off or too long, raises an error that the SDK takes for a bad body, not for its own."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int | None) -> None:
        super().__init__(inner)
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        came = 0
        try:
            async for chunk in self._inner:
                came += len(chunk)
                if self._most is not None and came > self._most:
                    raise httpx2.StreamError(f"the answer has more than {self._most:,} bytes")
                yield chunk
        except httpx2.TransportError as exc:
            raise httpx2.StreamError(f"{CUT_OFF}: {exc}") from exc


def _most_of(response: httpx2.Response) -> int | None:
    """The most bytes that the body may have; None where the SDK counts those of each event."""
    if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        return MAX_PACKED
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    return None if is_stream and response.status_code < 400 else MAX_EVENT


async def _is_answer(response: httpx2.Response) -> bool:
    """Whether the server itself responds, and not a gateway. The response is closed if not."""
    try:
        message: Any = json.loads(await response.aread())
    except (ValueError, RecursionError, httpx2.HTTPError, httpx2.StreamError):
        message = None
    if isinstance(message, dict) and "jsonrpc" in message:
        return True
    await response.aclose()
    return False


def _unreachable(where: str, exc: httpx2.TransportError) -> str:
    why = str(exc).rstrip(".") or type(exc).__name__
    if isinstance(exc, _NEVER_SENT):
        return f"{where} cannot be reached: {why}"
    # It is all that the caller of a plain `client.call_tool` gets to read.
    return f"{where} gave no answer, and may have done what it was asked for: {why}"


def _error_response(
    request: httpx2.Request, code: int, message: str, data: JsonObject | None = None
) -> httpx2.Response:
    """A response in place of one that did not come, or that the SDK does not read."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body, request=request)
