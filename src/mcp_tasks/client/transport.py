"""Transports that know the address of their server, make it known to `TasksClient`, and have a `Wire`.

A ledger keeps tasks by the address of their server, and the SDK does not tell an extension which server its client is
connected to. So these transports put a mark into the `_meta` of messages that concern tasks, on their way to the
session: an object of this process, which no server can send, stands for "came over this connection".

Each connection passes through a `Wire` (see `client.wire`), where 2025-11-25 tasks are spoken beside the session, and
where `ServerTransport.use` adds other handlers. In that version the SDK shows an extension nothing of a call, so the
transport introduces itself: a notification of its own, with its mark, reaches the `TasksClient` of its client, if there
is one, before the client has its first response.

This is the one module of the client that imports `legacy`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, TextIO, cast
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakSet

import anyio
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

from mcp_tasks.client.backend import Finish
from mcp_tasks.client.wire import Handler, QuestionLimit, Wire
from mcp_tasks.legacy.client import LegacyTasks
from mcp_tasks.legacy.hosting import HostedPeer, HostedTasks
from mcp_tasks.legacy.hosting import Hosting as Hosting
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

TASK_NOTIFICATION: Final = "notifications/tasks"

INTRODUCTION: Final = "notifications/mcp-tasks/transport"
"""The notification by which a transport makes itself known. Never on a wire: one that a server sends has no mark."""

_INTRODUCING: Final = 0.05
"""Seconds for the introduction, which takes some turns of the event loop; without a `TasksClient` there is no reply."""

_TRANSPORT_META_KEY: Final = "mcp-tasks/transport"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _Mark(str):
    """Says which transport a message came over. A string, because the SDK serializes values to check them; its text
    means nothing, as any server could send that."""

    transport: ServerTransport


class ServerTransport:
    """A transport for the SDK's `Client` that knows the address of its server. Entered once, by the client.

    Attributes:
        address: The server's address in the ledger; empty if it is not known.
        wire: The connection, message by message, once the client has entered the transport.
        is_unused: Whether no client has entered it yet.
        legacy: Tasks of 2025-11-25 on that connection.
    """

    _unused: ClassVar[WeakSet[ServerTransport]] = WeakSet()

    def __init__(self, address: str, inner: AbstractAsyncContextManager[Any]) -> None:
        self.address = address
        self.wire: Wire | None = None
        self.is_unused: bool = True
        self.legacy: LegacyTasks | None = None
        self._inner = inner
        self._handlers: list[Callable[[Wire], Handler]] = []
        self._met = asyncio.Event()
        self._mark = _Mark("ours")
        self._mark.transport = self
        if address:
            self._unused.add(self)

    def __repr__(self) -> str:
        return f"<ServerTransport to {self.address or 'an unknown address'}>"

    def use(self, handler: Callable[[Wire], Handler]) -> None:
        """Have a handler made for the connection, before anything is sent. Handlers see messages in this order."""
        self._handlers.append(handler)

    async def __aenter__(self) -> tuple[Any, Any]:
        self._unused.discard(self)
        self.is_unused = False
        self.wire = wire = Wire(*await self._inner.__aenter__())
        try:
            for handler in self._handlers:
                wire.add(handler(wire))
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        self.legacy = legacy = LegacyTasks(wire)
        for each in (legacy, QuestionLimit(wire), _Marking(self, wire, legacy)):
            wire.add(each)
        wire.start()
        return wire.streams

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self.wire is not None:
            await self.wire.close()
        try:
            return await self._inner.__aexit__(exc_type, exc, traceback)
        finally:
            if self.wire is not None:
                await self.wire.drop()

    def host(self, hosted: HostedTasks, *, server: str | None, identity: str) -> None:
        """Host tasks for the server at the other end."""
        # A server whose address is not known counts as another one after each connection.
        address = server or self.address or f"unnamed:{secrets.token_hex(16)}"
        self.use(lambda wire: HostedPeer(wire, hosted, hosted.of(address, identity)))

    def introduce(self, finish: Finish) -> None:
        """A `TasksClient` is there: it waits for the tasks that calls on this connection become."""
        if self.legacy is not None:
            self.legacy.finish = finish
        self._met.set()

    async def met(self) -> None:
        """Return when a `TasksClient` has introduced itself, or shortly after."""
        with anyio.move_on_after(_INTRODUCING):
            await self._met.wait()

    @classmethod
    def is_any_unused(cls) -> bool:
        """Whether there is a transport that no client has entered yet: a client under construction may have it."""
        return bool(cls._unused)

    def put_mark(self, holder: dict[str, Any]) -> None:
        """Say in the `_meta` of a message that it came over this transport."""
        meta = holder.get("_meta")
        known = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
        holder["_meta"] = {**known, _TRANSPORT_META_KEY: self._mark}


class _Marking:
    """Puts a transport's mark into the messages that concern tasks, and holds the response to the handshake back until
    the `TasksClient` of the client, if any, knows the transport."""

    def __init__(self, transport: ServerTransport, wire: Wire, legacy: LegacyTasks) -> None:
        self._transport = transport
        self._wire = wire
        self._legacy = legacy
        self._handshake: RequestId | None = None

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._handshake = message.id
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        match message:
            case JSONRPCResponse(id=answered) if answered == self._handshake and self._legacy.is_offered:
                self._wire.spawn(self._introduce(message))
                return None
            case JSONRPCResponse(result=result) if result.get("resultType") == "task":
                self._transport.put_mark(result)
            case JSONRPCNotification(method=method, params=dict() as params) if method == TASK_NOTIFICATION:
                self._transport.put_mark(params)
            case _:
                pass
        return message

    async def _introduce(self, answer: JSONRPCResponse) -> None:
        params: dict[str, Any] = {}
        self._transport.put_mark(params)
        await self._wire.deliver(JSONRPCNotification(jsonrpc="2.0", method=INTRODUCTION, params=params))
        await self._transport.met()
        await self._wire.deliver(answer)


def transport_in(meta: Any) -> ServerTransport | None:
    """The transport whose mark is in a `_meta`, if there is one."""
    mark: Any = cast("Mapping[str, Any]", meta).get(_TRANSPORT_META_KEY) if isinstance(meta, Mapping) else None
    return mark.transport if isinstance(mark, _Mark) else None


def has_legacy_tasks(session: ClientSession) -> bool:
    """Whether the server of a session has tasks of 2025-11-25, which the SDK's session does not know."""
    capabilities = session.server_capabilities
    return (
        session.protocol_version == LegacyTasks.version and capabilities is not None and capabilities.tasks is not None
    )


def stdio_transport(parameters: StdioServerParameters, *, errlog: TextIO | None = None) -> ServerTransport:
    """The SDK's stdio transport, with an address: the command, its folder and the environment variables given."""
    return ServerTransport(stdio_address(parameters), stdio_client(parameters, errlog=errlog or sys.stderr))


def with_tasks(transport: AbstractAsyncContextManager[Any], *, address: str = "") -> ServerTransport:
    """Any transport of the SDK, fit for the tasks of servers that speak 2025-11-25.

    Args:
        address: The server's address in a ledger; without one, no ledger can be used.
    """
    return ServerTransport(address, leaving_quietly(transport))


@asynccontextmanager
async def leaving_quietly(transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    """The transport, without the error that the SDK's transports over HTTP make of a late response.

    A response that arrives while its client leaves finds one end of its stream closed, which happens only then. The SDK
    lets that out as an error of the whole client.
    """
    try:
        async with transport as streams:
            yield streams
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError) as late:
        logger.debug("an answer came after its client had left: %s", type(late.exceptions[0]).__name__)


def http_address(url: str) -> str:
    """A URL as the ledger has it: without credentials, and in one spelling."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    except ValueError:
        # Connecting to it says what is wrong with it.
        return url
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, host + port, parts.path or "/", parts.query, ""))


def stdio_address(parameters: StdioServerParameters) -> str:
    """A command as the ledger has it: with its folder, and with a digest of each environment variable it is given.

    Digests, because environment variables may be secrets.
    """
    folder = Path(parameters.cwd or ".").absolute()
    place = f"cd {shlex.quote(os.fspath(folder))} && {shlex.join([parameters.command, *parameters.args])}"
    given = [f"{name}#{_digest(value)}" for name, value in sorted((parameters.env or {}).items())]
    return f"with {' '.join(given)}: {place}" if given else place


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:16]
