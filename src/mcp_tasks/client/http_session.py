"""A new session in place of one that the server no longer knows, for versions of the protocol that have sessions.

A server that restarts has forgotten its sessions, and answers 404 to whoever names one. The client MUST then begin a
new one (2025-11-25, Streamable HTTP, "Session Management"). The SDK's transport does not, so it is done here, below it:
the handshake is repeated as it was the first time, and the request goes out again in the new session. It was not
processed before; that is what 404 says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import anyio
import httpx2

from mcp_tasks.client.messages import messages_in
from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.quiet import get_logger, what

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
