"""How a server is named: a URL, or the command of a stdio server.

A command is kept in the ledger with the folder it was given in, as `cd FOLDER && COMMAND`, because a relative path
means something else the next day. That form is read back here, and may be typed as well. Nothing else that is in a
ledger is taken for a command: a program that shares the ledger calls its servers what it likes.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, Self, TextIO, TypeAlias, cast

import httpx2
from mcp import Client
from mcp.client.session import ClientRequestContext, ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    ElicitRequestParams,
    ErrorData,
    Implementation,
    JSONRPCMessage,
    JSONRPCResponse,
)
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.client.extension import TasksClient
from mcp_tasks.client.http import reconnecting_http
from mcp_tasks.client.ledger import Ledger, LedgerEntry
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.transport import ServerTransport, stdio_transport
from mcp_tasks.client.transport import http_address as without_variables
from mcp_tasks.errors import InvalidInput, ServerUnreachable, TasksError, UnreachableReason
from mcp_tasks.protocol.schema import is_tame

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


def http_address(url: str) -> str:
    """A URL as the ledger has it, without credentials. The name of a variable in place of the host is kept as it is."""
    address, names = without_variables(url), names_in(url.partition("://")[2].partition("/")[0])
    for name in names:
        address = address.replace(f"${{{name.lower()}}}", f"${{{name}}}")
    return address


_PLACED = re.compile(r"cd (?P<folder>.+?) && (?P<command>.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAddress:
    """A server, and all that is needed to reach it again but for credentials.

    Attributes:
        url: For a server over HTTP.
        argv: For a stdio server: its command, in parts.
        folder: For a stdio server: where the command is run.
        written: How a ledger names it, where that is not the same: a server of a file is named as it is written there,
            with variables in the place of what may be secrets.
    """

    url: str | None = None
    argv: tuple[str, ...] = ()
    folder: str = ""
    written: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The server that a text names: a URL, or a command, which is run in the present folder.

        Raises:
            InvalidInput: It does not name a server.
        """
        text = text.strip()
        if re.match(r"https?://", text, re.IGNORECASE):
            return cls(url=text)
        if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
            raise InvalidInput("address", f"{text!r} is not a server: a URL begins with http:// or https://")
        placed = _PLACED.fullmatch(text)
        folder, command = (placed["folder"], placed["command"]) if placed else (shlex.quote(str(Path.cwd())), text)
        try:
            argv, [where] = shlex.split(command), shlex.split(folder)
        except ValueError as exc:
            raise InvalidInput("address", f"{text!r} is not a command: {exc}") from exc
        if not argv:
            raise InvalidInput("address", "SERVER is empty; give a URL or the command of a stdio server")
        return cls(argv=tuple(argv), folder=os.path.expanduser(where))

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self:
        """The server of a task that is in a ledger.

        Raises:
            InvalidInput: The ledger does not say how to reach it.
        """
        if re.match(r"https?://", entry.server) or _PLACED.fullmatch(entry.server):
            return cls.parse(entry.server)
        why = "is known to the ledger by the name its program gave it"
        if entry.server.startswith("with "):
            why = "is started by its program with environment variables that the ledger does not keep"
        raise InvalidInput(
            "address",
            f"the server of {entry.task_id} {why}: {entry.server!r}",
            "Say which server it is, and give the whole id of the task.",
        )

    @property
    def spec(self) -> str:
        """How a ledger names it; `parse` takes it back."""
        if self.written:
            return self.written
        if self.url is not None:
            return http_address(self.url)
        return f"cd {shlex.quote(self.folder)} && {shlex.join(self.argv)}"

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.spec if self.url is not None else self.written.rpartition(" && ")[2] or shlex.join(self.argv)


def looks_like_address(text: str) -> bool:
    """Whether somebody may have meant a URL and left out how it begins."""
    return bool(re.match(r"(localhost|[\w-]+(\.[\w-]+)*:\d+|[\w-]+(\.[\w-]+)+/)", text)) and not Path(text).exists()


# ---- unreachable
# Why a server cannot be used: what its process said last, or one plain request to its URL, and what came of it.


TIMEOUT: Final = 10.0
"""Seconds for the one request; somebody is waiting for the error message."""

_PING: Final = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def why_unreachable(
    server: ServerAddress, exc: Exception, *, headers: Mapping[str, str] | None = None, said: str = ""
) -> TasksError:
    """Why a server could not be connected to.

    Args:
        exc: What connecting to it raised.
        said: The last lines that its process wrote to stderr.

    Returns:
        A `ServerUnreachable`, or the error of ours that `exc` is or contains.
    """
    cause = next((inner for inner in leaves(exc) if isinstance(inner, TasksError | MCPError | OSError)), exc)
    if isinstance(cause, TasksError):
        return cause
    if server.url is None:
        return _why_not_started(server, cause, said)
    found = await check_url(server.url, headers)
    if found is not None:
        return found
    if isinstance(cause, MCPError) and cause.code == REQUEST_TIMEOUT:
        return ServerUnreachable(f"{server.label} does not answer", reason="timeout")
    return ServerUnreachable(f"{server.label} cannot be used: {cause}")


def _why_not_started(server: ServerAddress, cause: BaseException, said: str) -> ServerUnreachable:
    command = server.argv[0]
    if isinstance(cause, FileNotFoundError):
        if not os.path.isdir(server.folder):
            return ServerUnreachable(f"the folder of this server is gone: {server.folder}", reason="not_found")
        hint = "Is it installed, and spelled like that?"
        if looks_like_address(command):
            hint = f"If that is an address, write http://{command}"
        return ServerUnreachable(f"command not found: {command}", hint, reason="not_found")
    if isinstance(cause, OSError):
        return ServerUnreachable(f"{command} cannot be started: {cause.strerror or cause}")
    hint = f"Its last lines on stderr:\n{said}" if said else "It wrote nothing to stderr."
    return ServerUnreachable(f"`{server.label}` exited, or does not speak MCP", hint, reason="exited")


async def check_url(url: str, headers: Mapping[str, str] | None = None) -> TasksError | None:
    """What keeps a URL from being used, as far as HTTP can tell; None if it looks like an MCP server.

    Returns:
        A `ServerUnreachable`, or an `InvalidInput` if it is no URL.
    """
    # What is said is printed and logged, so it has no user name and password in it.
    named = http_address(url)
    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
            accept = {"accept": "application/json, text/event-stream"}
            async with client.stream("POST", url, json=_PING, headers={**accept, **(headers or {})}) as response:
                speaks = await _speaks_json_rpc(response)
                return _judge(named, response, speaks=speaks)
    except httpx2.InvalidURL as exc:
        return InvalidInput("address", f"{url!r} is not a URL: {exc}")
    except httpx2.TimeoutException as exc:
        is_there = not isinstance(exc, httpx2.ConnectTimeout)
        hint = "Look at the server's log." if is_there else "Is the host name right, and no firewall in between?"
        return _unreachable(named, "does not answer", hint, reason="timeout")
    except httpx2.ConnectError as exc:
        return _unreachable(named, *_why_not_connected(exc), reason="connection")
    except httpx2.RequestError as exc:
        return _unreachable(named, f"breaks the connection: {str(exc) or type(exc).__name__}", reason="connection")


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, or the one exception."""
    if isinstance(exc, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
            yield from leaves(inner)
    else:
        yield exc


def _why_not_connected(exc: httpx2.ConnectError) -> tuple[str, str]:
    text = str(exc).lower()
    if "certificate" in text or "ssl" in text:
        return f"cannot be trusted: {exc}", "Is the certificate valid, and is this host the one it is for?"
    if "name" in text and ("resolution" in text or "known" in text or "nodename" in text):
        return "cannot be found: the host name is unknown", "Is the host name spelled right?"
    return "refuses the connection", "Is the server running, and on this port?"


async def _speaks_json_rpc(response: httpx2.Response) -> bool:
    kind = _kind(response)
    if kind == "text/event-stream" or response.status_code in (202, 204):
        return True
    return kind == "application/json" and b'"jsonrpc"' in await response.aread()


def _kind(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip()


def _judge(url: str, response: httpx2.Response, *, speaks: bool) -> ServerUnreachable | None:
    status, kind = response.status_code, _kind(response)
    if status in (401, 403):
        return _refused(url, response)
    if response.has_redirect_location:
        location = response.headers["location"]
        hint = f"Try {httpx2.URL(url).join(location)}"
        return _unreachable(url, f"redirects to {location}", hint, reason="redirect")
    if status >= 500:
        what = f"has an internal problem: HTTP {status}"
        return _unreachable(url, what, "Look at the server's log.", reason="internal")
    if not speaks:
        what = f"HTTP {status}" + (f" with {kind}" if kind else "")
        return _unreachable(url, f"is not an MCP server: it answers {what}", _endpoint_hint(url), reason="not_mcp")
    return None


def _refused(url: str, response: httpx2.Response) -> ServerUnreachable:
    asked = response.headers.get("www-authenticate", "").partition(" ")[0]
    what = "requires credentials" if response.status_code == 401 else "denies access"
    hint, scheme = f"It asks for {asked} authorization: send an Authorization header.", asked or "Bearer"
    if not asked:
        hint = "Send an Authorization header" + (", or another." if response.status_code == 403 else ".")
    return ServerUnreachable(f"{url} {what}: HTTP {response.status_code}", hint, reason="credentials", scheme=scheme)


def _endpoint_hint(url: str) -> str:
    path = httpx2.URL(url).path.rstrip("/")
    if path.endswith("/mcp"):
        return "Is it the right port, and the right path?"
    return f"The endpoint often ends in /mcp: try {url.rstrip('/')}/mcp"


def _unreachable(url: str, what: str, hint: str = "", *, reason: UnreachableReason) -> ServerUnreachable:
    return ServerUnreachable(f"{url} {what}", hint, reason=reason)


# ---- grouping
# Tasks of a ledger by the servers that they are of: a connection each, and credentials for one only.


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTasks:
    """Tasks of one server, and of one identity there.

    Attributes:
        named: How the user said which server it is, if that is known: `LedgerEntry.named`.
    """

    server: ServerAddress
    identity: str
    entries: list[LedgerEntry]
    named: str | None = None


def by_server(entries: Iterable[LedgerEntry], headers: Mapping[str, str] | None = None) -> list[ServerTasks]:
    """The tasks of each server, and of each identity there, together, as far as the server was named alike.

    Args:
        headers: What is going to be sent with requests. It is credentials, so there may be one place for it to go.

    Raises:
        InvalidInput: There are headers, and they would go to several servers or identities; or the ledger does not say
            how to reach a server.
    """
    groups: list[ServerTasks] = []
    for _, same in groupby(sorted(entries, key=lambda entry: (_group_of(entry), entry.task_id)), _group_of):
        first, *rest = same
        groups.append(
            ServerTasks(
                server=ServerAddress.of(first), identity=first.identity, entries=[first, *rest], named=first.named
            )
        )
    over_http = {
        group.server.label + (f" as {group.identity}" if group.identity else ""): None
        for group in groups
        if group.server.url is not None
    }
    if headers and len(over_http) > 1:
        raise InvalidInput(
            "credentials",
            "these tasks are of several servers or identities, and the token or headers are for one of them",
            "\n".join(["Name the tasks of one at a time:", *over_http]),
        )
    return groups


def _group_of(entry: LedgerEntry) -> tuple[str, str, bool, str]:
    return entry.server, entry.identity, entry.named is None, entry.named or ""


# ---- listings
# Listings of tools on their way to the SDK, without the schemas that it had better not be given.


class TameListings:
    """Takes such schemas out of what a server lists."""

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """What is sent is not looked at."""
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """A listing of tools loses the schemas that are not tame."""
        tools: Any = message.result.get("tools") if isinstance(message, JSONRPCResponse) else None
        for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
            if isinstance(tool, dict) and not is_tame(cast("dict[str, Any]", tool).get("outputSchema", True)):
                del tool["outputSchema"]
        return message


# ---- connecting
# A client of the SDK that knows tasks, connected to a server; or the reason, in words, why it could not be.


Era: TypeAlias = Literal["auto", "modern", "legacy"]
"""Which protocol is spoken: 2026-07-28 (`modern`), 2025-11-25 (`legacy`), or whichever the server has."""

Connector: TypeAlias = Callable[[ServerTasks], AbstractAsyncContextManager[Client]]
"""Connects to the server of some tasks, as the user that they are of."""

READ_LIMIT: Final = 30.0
"""Seconds for an answer to any request but a tool call. A server that needs longer to say how a task is, hangs."""

STARTUP_LIMIT: Final = 120.0
"""The same for a stdio server: its command may have to download things before it starts."""

SAID_LAST: Final = 2000
"""How many characters of a dead server's log are shown."""


@asynccontextmanager
async def connect(
    server: ServerAddress | str,
    *,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    era: Era = "auto",
    ledger: Ledger | None = None,
    identity: str = "",
    elicit: ElicitationFnT | None = None,
    client_info: Implementation | None = None,
    errlog: TextIO | None = None,
) -> AsyncGenerator[Client]:
    """A connected client that knows tasks, over a transport that survives restarts of an HTTP server.

    Args:
        server: Its address, or a text that `ServerAddress.parse` takes.
        headers: What goes with every HTTP request, credentials included.
        environment: The environment variables of a stdio server; without any, what the SDK gives every server.
        era: Which protocol is spoken.
        ledger: Keeps the tasks that are started over the connection.
        identity: Who we are to the server, if the ledger has tasks of more than one user there.
        elicit: Who answers questions. Without one the server is told that nobody does.
        client_info: What the client calls itself.
        errlog: Where a stdio server's stderr goes. Without one it is kept for the error message.

    Raises:
        InvalidInput: The text names no server.
        ServerUnreachable: The server cannot be used; it says why, and what to do.
    """
    address = ServerAddress.parse(server) if isinstance(server, str) else server
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        async with AsyncExitStack() as stack:
            client = Client(
                _transport(address, headers, environment, errlog or log),
                mode=LATEST_MODERN_VERSION if era == "modern" else era,
                read_timeout_seconds=READ_LIMIT if address.url is not None else STARTUP_LIMIT,
                client_info=client_info,
                elicitation_callback=elicit,
                extensions=[
                    TasksClient(ledger=ledger, server=address.spec, identity=identity, patience=patience_with(address))
                ],
            )
            # With a version that is known nothing is asked in the beginning, so nobody would notice.
            problem = None if era != "modern" or address.url is None else await check_url(address.url, headers)
            if problem is not None:
                raise problem
            try:
                await stack.enter_async_context(client)
            except Exception as exc:
                raise await why_unreachable(address, exc, headers=headers, said=_last_of(log)) from exc
            yield client


def connector(
    *,
    ledger: Ledger | None = None,
    headers: Mapping[str, str] | None = None,
    era: Era = "auto",
    elicit: ElicitationFnT | None = None,
) -> Connector:
    """`connect` for tasks of several servers: everything is the same for all of them but the server and the user."""
    return lambda tasks: connect(
        tasks.server, headers=headers, era=era, ledger=ledger, identity=tasks.identity, elicit=elicit
    )


async def ask_through_the_task(context: ClientRequestContext, params: ElicitRequestParams) -> ErrorData:
    """An `elicit` for whoever answers the questions of tasks in another way: through the task, not on the connection.
    The server is told that there is somebody to ask."""
    return ErrorData(code=INVALID_REQUEST, message="Ask through the task")


def _transport(
    server: ServerAddress, headers: Mapping[str, str] | None, environment: Mapping[str, str] | None, log: TextIO
) -> ServerTransport:
    if server.url is not None:
        transport = reconnecting_http(server.url, headers=headers)
    else:
        transport = stdio_transport(stdio_parameters(server, environment), errlog=log)
    transport.use(lambda _: TameListings())
    return transport


def stdio_parameters(server: ServerAddress, environment: Mapping[str, str] | None) -> StdioServerParameters:
    """How the process of a stdio server is started."""
    command, *arguments = server.argv
    env = None if environment is None else dict(environment)
    return StdioServerParameters(command=command, args=arguments, env=env, cwd=server.folder)


def patience_with(server: ServerAddress) -> Patience:
    """How long a server may be out of reach, and how often it is tried meanwhile.

    A server behind a URL may come back, and is tried about as often as tasks are looked at: that it is back is soon
    known. The process of a stdio server that ended does not come back.
    """
    if server.url is None:
        return Patience(max_outage=timedelta(seconds=2))
    return Patience(max_pause=timedelta(seconds=2))


def _last_of(log: TextIO) -> str:
    log.seek(0)
    return log.read()[-SAID_LAST:].strip()
