"""Transports that know the address of their server, let `TasksClient` know it, and have a `Wire`.

A ledger keeps tasks by the address of their server, and the SDK does not tell an extension what its client is
connected to. So these transports put a mark into the `_meta` of what concerns tasks, on its way from the server to the
session: an object of this process, which no server can send, stands for "came over this connection".

Each connection passes through a `Wire` (see `client.wire`), where the older era of tasks is spoken beside the session,
and where whatever else is to see the messages is added with `ServerTransport.use`. In that era the SDK shows an
extension nothing of a call, so the transport introduces itself: a notification of its own, with its mark, reaches the
`TasksClient` of its client, if there is one, before the client has its first answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
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
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

from mcp_tasks.client.backend import Finish, OlderTasks
from mcp_tasks.client.eras import older_tasks
from mcp_tasks.client.wire import Handler, QuestionLimit, Wire, with_request_log
from mcp_tasks.quiet import get_logger

# ---- variables
# Variables in files that name servers: `${NAME}`, `${NAME:-default}` and `${env:NAME}`.


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with values in the place of its variables.

    A default stands in for what is not set, and for what is empty, as in a shell.

    Raises:
        KeyError: A variable is not set and has no default; it has the name.
    """

    def value(found: re.Match[str]) -> str:
        name, has_default, default = found[1].partition(":-")
        name = name.removeprefix("env:")
        if has_default:
            return values.get(name) or default
        return values[name]

    return _REFERENCE.sub(value, text)


def has_variables(text: str) -> bool:
    """Whether there is a variable in a text."""
    return _REFERENCE.search(text) is not None


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return [name.partition(":-")[0].removeprefix("env:") for name in _REFERENCE.findall(text)]


logger: Final = get_logger(__name__)

TASK_NOTIFICATION: Final = "notifications/tasks"

INTRODUCTION: Final = "notifications/mcp-tasks/transport"
"""The notification by which a transport makes itself known. Never on a wire: servers that send it say nothing by it."""

_INTRODUCING: Final = 0.05
"""Seconds for the introduction, which takes some turns of the event loop; with no `TasksClient`, nobody replies."""

_TRANSPORT_META_KEY: Final = "mcp-tasks/transport"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _Mark(str):
    """Says which transport something came over. A string, because the SDK serializes what it has in hand to check it;
    its text means nothing, as any server could send that."""

    transport: ServerTransport


class ServerTransport:
    """A transport for the SDK's `Client` that knows the address of its server. Entered once, by the client.

    Attributes:
        address: What the ledger knows the server by; empty if nobody said.
        wire: The connection, message by message, once the client has entered the transport.
        is_unused: Whether no client has entered it yet.
        older: Tasks of the older era on that connection, where this package has them.
    """

    _unused: ClassVar[WeakSet[ServerTransport]] = WeakSet()

    def __init__(self, address: str, inner: AbstractAsyncContextManager[Any]) -> None:
        self.address = address
        self.wire: Wire | None = None
        self.is_unused: bool = True
        self.older: OlderTasks | None = None
        self._inner = inner
        self._handlers: list[Callable[[Wire], Handler]] = []
        self._met = asyncio.Event()
        self._mark = _Mark("ours")
        self._mark.transport = self
        if address:
            self._unused.add(self)

    def __repr__(self) -> str:
        return f"<ServerTransport to {self.address or 'somewhere'}>"

    def use(self, handler: Callable[[Wire], Handler]) -> None:
        """Have a handler made for the connection, before anything is sent. Those that are used first see messages
        first."""
        self._handlers.append(handler)

    async def __aenter__(self) -> tuple[Any, Any]:
        self._unused.discard(self)
        self.is_unused = False
        read, write = with_request_log(*await self._inner.__aenter__())
        self.wire = wire = Wire(read, write)
        try:
            for handler in self._handlers:
                wire.add(handler(wire))
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        self.older = older_tasks(wire)
        if self.older is not None:
            wire.add(self.older)
            wire.add(_Introduction(self, wire, self.older))
        wire.add(QuestionLimit(wire))
        wire.add(_Marking(self))
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

    def introduce(self, finish: Finish) -> None:
        """A `TasksClient` is there: it sees the tasks to their ends that calls on this connection become."""
        if self.older is not None:
            self.older.finish = finish
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
        """Say in the `_meta` of something that it came over this transport."""
        meta = holder.get("_meta")
        known = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
        holder["_meta"] = {**known, _TRANSPORT_META_KEY: self._mark}


class _Marking:
    """Puts a transport into the messages that concern tasks."""

    def __init__(self, transport: ServerTransport) -> None:
        self._transport = transport

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        match message:
            case JSONRPCResponse(result=result) if result.get("resultType") == "task":
                self._transport.put_mark(result)
            case JSONRPCNotification(method=method, params=dict() as params) if method == TASK_NOTIFICATION:
                self._transport.put_mark(params)
            case _:
                pass
        return message


class _Introduction:
    """Holds the answer to the handshake back until the `TasksClient` of the client, if any, knows the transport."""

    def __init__(self, transport: ServerTransport, wire: Wire, older: OlderTasks) -> None:
        self._transport = transport
        self._wire = wire
        self._older = older
        self._handshake: RequestId | None = None

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._handshake = message.id
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        if not isinstance(message, JSONRPCResponse) or message.id != self._handshake or not self._older.is_offered:
            return message
        self._wire.spawn(self._introduce(message))
        return None

    async def _introduce(self, answer: JSONRPCResponse) -> None:
        params: dict[str, Any] = {}
        self._transport.put_mark(params)
        await self._wire.deliver(JSONRPCNotification(jsonrpc="2.0", method=INTRODUCTION, params=params))
        await self._transport.met()
        await self._wire.deliver(answer)


def transport_in(meta: Any) -> ServerTransport | None:
    """The transport over which something came, if it is one of ours."""
    mark: Any = cast("Mapping[str, Any]", meta).get(_TRANSPORT_META_KEY) if isinstance(meta, Mapping) else None
    return mark.transport if isinstance(mark, _Mark) else None


def stdio_transport(parameters: StdioServerParameters, *, errlog: TextIO | None = None) -> ServerTransport:
    """The SDK's stdio transport, with an address: the command, its folder and the environment variables given."""
    return ServerTransport(stdio_address(parameters), stdio_client(parameters, errlog=errlog or sys.stderr))


def with_tasks(transport: AbstractAsyncContextManager[Any], *, address: str = "") -> ServerTransport:
    """Any transport of the SDK, fit for the tasks of servers that speak 2025-11-25.

    Args:
        address: What a ledger is to know the server by; without one, no ledger can be used.
    """
    return ServerTransport(address, leaving_quietly(transport))


@asynccontextmanager
async def leaving_quietly(transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    """The transport, without the error that the SDK's transports over HTTP make of a late answer.

    An answer that arrives while its client leaves finds nobody to take it: a stream has been closed at one of its ends,
    which happens only then. The SDK lets that out as an error of the whole client.
    """
    try:
        async with transport as streams:
            yield streams
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError) as late:
        logger.debug("an answer came after its client had left: %s", type(late.exceptions[0]).__name__)


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
    for name in names_in(parts.netloc):
        # A host is written in small letters; the name of a variable in its place is not.
        host = host.replace(f"${{{name.lower()}}}", f"${{{name}}}")
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
