"""Transports that know the address of their server, and let `TasksClient` know it.

A ledger keeps tasks by the address of their server, and the SDK does not tell an extension what its client is
connected to. So these transports put a mark into the `_meta` of what concerns tasks, on its way from the server to the
session: an object of this process, which no server can send, stands for "came over this connection".
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TextIO, cast
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakSet

from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

TASK_NOTIFICATION: Final = "notifications/tasks"

_TRANSPORT_META_KEY: Final = "mcp-tasks/transport"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _Mark(str):
    """Says which transport something came over. A string, because the SDK serializes what it has in hand to check it;
    its text means nothing, as any server could send that."""

    transport: ServerTransport


class ServerTransport:
    """A transport for the SDK's `Client` that knows the address of its server. Entered once, by the client.

    Attributes:
        address: What the ledger knows the server by.
    """

    _unused: ClassVar[WeakSet[ServerTransport]] = WeakSet()

    def __init__(self, address: str, inner: AbstractAsyncContextManager[Any]) -> None:
        self.address = address
        self._inner = inner
        self._mark = _Mark("ours")
        self._mark.transport = self
        self._unused.add(self)

    def __repr__(self) -> str:
        return f"<ServerTransport to {self.address}>"

    async def __aenter__(self) -> tuple[Any, Any]:
        self._unused.discard(self)
        read, write = await self._inner.__aenter__()
        return _Marked(read, self), write

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc, traceback)

    @classmethod
    def is_any_unused(cls) -> bool:
        """Whether there is a transport that no client has entered yet: a client under construction may have it."""
        return bool(cls._unused)

    def mark(self, message: Any) -> None:
        """Put this transport into a message that concerns tasks."""
        match message:
            case JSONRPCResponse(result=result) if result.get("resultType") == "task":
                self._put_mark(result)
            case JSONRPCNotification(method=method, params=dict() as params) if method == TASK_NOTIFICATION:
                self._put_mark(params)
            case _:
                pass

    def _put_mark(self, holder: dict[str, Any]) -> None:
        meta = holder.get("_meta")
        known = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
        holder["_meta"] = {**known, _TRANSPORT_META_KEY: self._mark}


def transport_in(meta: Any) -> ServerTransport | None:
    """The transport over which something came, if it is one of ours."""
    mark: Any = cast("Mapping[str, Any]", meta).get(_TRANSPORT_META_KEY) if isinstance(meta, Mapping) else None
    return mark.transport if isinstance(mark, _Mark) else None


def stdio_transport(parameters: StdioServerParameters, *, errlog: TextIO | None = None) -> ServerTransport:
    """The SDK's stdio transport, with an address: the command, its folder and the environment variables given."""
    return ServerTransport(stdio_address(parameters), stdio_client(parameters, errlog=errlog or sys.stderr))


def http_address(url: str) -> str:
    """A URL as the ledger has it: without credentials, and spelled in one way."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    except ValueError:
        # Whoever connects to it says what is wrong with it.
        return url
    scheme, host = parts.scheme, parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((scheme, host + port, parts.path or "/", parts.query, ""))


def stdio_address(parameters: StdioServerParameters) -> str:
    """A command as the ledger has it: with its folder, and with a digest of each environment variable it is given.

    Digests, because environment variables are where secrets are.
    """
    folder = Path(parameters.cwd or ".").absolute()
    place = f"cd {shlex.quote(os.fspath(folder))} && {shlex.join([parameters.command, *parameters.args])}"
    given = [f"{name}#{_digest(value)}" for name, value in sorted((parameters.env or {}).items())]
    return f"with {' '.join(given)}: {place}" if given else place


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:16]


class _Marked:
    """A read stream whose messages say which transport they came over."""

    def __init__(self, inner: Any, transport: ServerTransport) -> None:
        self._inner = inner
        self._transport = transport

    @property
    def last_context(self) -> Context | None:
        """Whose context the last message was sent in, for a dispatcher that goes on in it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await self._inner.receive()
        if isinstance(item, SessionMessage):
            self._transport.mark(item.message)
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._inner.__anext__()
        if isinstance(item, SessionMessage):
            self._transport.mark(item.message)
        return item

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc, traceback)
