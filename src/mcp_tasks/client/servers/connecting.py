"""A client of the SDK that knows tasks, connected to a server; or the reason, in words, why it could not be."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final, Literal, TextIO, TypeAlias

from mcp import Client
from mcp.client.session import ClientRequestContext, ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp_types import INVALID_REQUEST, ElicitRequestParams, ErrorData, Implementation
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.client.extension import TasksClient
from mcp_tasks.client.http import reconnecting_http
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.grouping import ServerTasks
from mcp_tasks.client.servers.listings import TameListings
from mcp_tasks.client.servers.unreachable import check_url, why_unreachable
from mcp_tasks.client.transport import ServerTransport, stdio_transport

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
        InvalidAddress: The text names no server.
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
