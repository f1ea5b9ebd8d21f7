"""An HTTP transport that survives restarts of the server.

The SDK's own transport takes the whole client down when one request cannot be delivered. During a wait of hours
that is far too much: here such a request fails alone, with a JSON-RPC error, and the next one tries again. Where the
protocol has sessions, a server that has forgotten ours is given a new one (`client.http_session`), and the stream on
which it speaks up by itself is opened again for as long as it takes.

    async with Client(reconnecting_http(url), extensions=[TasksClient(ledger="ledger.db")]) as client: ...
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, cast

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from mcp_tasks.client.backend import ACCESS_REFUSED, CUT_OFF, SENT_DATA_KEY, messages_in
from mcp_tasks.client.transport import ServerTransport, http_address, leaving_quietly
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import backoff
from mcp_tasks.quiet import get_logger, what

# ---- http session
# A new session in place of one that the server no longer knows, for versions of the protocol that have sessions.


logger: Final = get_logger(__name__)

SESSION: Final = "mcp-session-id"
NOT_FOUND: Final = 404
HANDSHAKE_LIMIT: Final = 30.0
"""Seconds for a server to shake hands again."""


class RenewsSession(httpx2.AsyncBaseTransport):
    """Keeps a session going over restarts of the server."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self._handshake: httpx2.Request | None = None
        self._current = ""
        self._renewing = anyio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if SESSION not in request.headers:
            return await self._maybe_first(request)
        used = self._current or request.headers[SESSION]
        response = await self._inner.handle_async_request(_in_session(request, used))
        if response.status_code != NOT_FOUND or request.method == "DELETE" or not await self._renew(used, request):
            return response
        await response.aclose()
        return await self._inner.handle_async_request(_in_session(request, self._current))

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _maybe_first(self, request: httpx2.Request) -> httpx2.Response:
        """Pass on a request outside of any session, and remember it if it begins one."""
        response = await self._inner.handle_async_request(request)
        if _method_of(request) == "initialize" and SESSION in response.headers:
            self._handshake = request
            self._current = response.headers[SESSION]
        return response

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
            # Another protocol than the client goes on to speak: it has to connect again.
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


def _method_of(request: httpx2.Request) -> object:
    if request.method != "POST":
        return None
    try:
        message: Any = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return None
    return cast("Mapping[str, Any]", message).get("method") if isinstance(message, Mapping) else None


_CONNECTING = ("server/discover", "initialize")
"""Requests that find out whom we talk to. An error in answer to them means an older server, so none may be made up: a
server that is not there when the client connects is a failure to connect."""


MAX_EVENT: Final = 64 * 2**20
"""Bytes in one event of a stream, and in a body that is no stream. A result is one event, and the SDK's own limit of
1 MiB is soon reached; for a body it has none."""

MAX_PACKED: Final = MAX_EVENT // 1_024
"""Bytes in a body that comes compressed, which it was not asked to be: a thousand times as many may be in them."""

_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""What a request fails with of which nothing has left."""

_GATEWAY: Final = frozenset({502, 503, 504})
"""What answers with these in place of a server is on the way to it, and does not know what became of the request."""

_REFUSED: Final = frozenset({401, 403})
"""Of a server that asks for other credentials. Whoever has an `auth` of their own may get some, and sees these as they
are; to everybody else the SDK would say no more than that something went wrong."""

_TIMED_OUT: Final = 408
"""The same, of some."""

_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


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
        # As it is, unless the caller says otherwise: how much will come of a compressed body is for its sender to say.
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
    """Answers in place of a server that cannot be reached."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, refusals_are_final: bool) -> None:
        self._inner = inner
        self._refusals_are_final = refusals_are_final

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return await self._open_stream(request)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as exc:
            why = _unreachable(request, exc)
            if request.headers.get("mcp-method") in _CONNECTING:
                # The same exception, with the URL in its text.
                raise type(exc)(why, request=request) from exc
            return _error_response(request, CONNECTION_CLOSED, why, {SENT_DATA_KEY: not isinstance(exc, _NEVER_SENT)})
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _EndsQuietly(response.stream, _most_of(response))
        if _may_be_lost(request, response) and not await _is_answer(response):
            why = f"{_address(request)} answered with HTTP {response.status_code}"
            return _error_response(request, CONNECTION_CLOSED, why, {SENT_DATA_KEY: True})
        if self._is_refusal(request, response) and not await _is_answer(response):
            why = f"{_address(request)} refuses the credentials, with HTTP {response.status_code}"
            return _error_response(request, ACCESS_REFUSED, why)
        return response

    def _is_refusal(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        is_meant = self._refusals_are_final and response.status_code in _REFUSED
        return is_meant and _method(request) not in _CONNECTING

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _open_stream(self, request: httpx2.Request) -> httpx2.Response:
        """The stream that belongs to no request: the SDK gives it up after two failures, and nobody would notice."""
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
                response.stream = _EndsInSilence(response.stream)
            return response


class _EndsInSilence(httpx2.AsyncByteStream):
    """A stream that is cut off ends, which is what the SDK opens it again for."""

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


class _EndsQuietly(httpx2.AsyncByteStream):
    """A body that is cut off, or goes on for ever, raises what the SDK takes for a bad body, not for its own end."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int | None) -> None:
        self._inner = inner
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

    async def aclose(self) -> None:
        await self._inner.aclose()


def _most_of(response: httpx2.Response) -> int | None:
    """How many bytes the body may have; None where the SDK counts those of each event."""
    if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        return MAX_PACKED
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    return None if is_stream and response.status_code < 400 else MAX_EVENT


def _may_be_lost(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether it may be that the server does not answer, or not in words of the protocol."""
    status = response.status_code
    if status in _GATEWAY:
        return True
    # A server of an older era has whatever it likes for a request that it does not know.
    return (status == _TIMED_OUT or status >= 500) and _method(request) not in _CONNECTING


def _method(request: httpx2.Request) -> str | None:
    """What is asked for; older eras do not have it in a header."""
    named = request.headers.get("mcp-method")
    if named is not None:
        return named
    try:
        message: Any = json.loads(request.content)
        return str(message["method"])
    except (ValueError, RecursionError, KeyError, TypeError, httpx2.StreamError):
        return None


async def _is_answer(response: httpx2.Response) -> bool:
    """Whether it is the server that answers, and not something on the way to it. Closed, if it is not."""
    try:
        message: Any = json.loads(await response.aread())
    except (ValueError, RecursionError, httpx2.HTTPError, httpx2.StreamError):
        message = None
    if isinstance(message, dict) and "jsonrpc" in message:
        return True
    await response.aclose()
    return False


def _address(request: httpx2.Request) -> str:
    # Without the query: like a password, a key in it is not for logs.
    return http_address(str(request.url.copy_with(query=None)))


def _unreachable(request: httpx2.Request, exc: httpx2.TransportError) -> str:
    where, why = _address(request), str(exc).rstrip(".") or type(exc).__name__
    if isinstance(exc, _NEVER_SENT):
        return f"{where} cannot be reached: {why}"
    # It is all that the caller of a plain `client.call_tool` gets to read.
    return f"{where} gave no answer, and may have done what it was asked for: {why}"


def _error_response(
    request: httpx2.Request, code: int, message: str, data: JsonObject | None = None
) -> httpx2.Response:
    """An answer in place of one that did not come, or that the SDK does not read."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body, request=request)
