"""A client of the official SDK, connected to a target; or the reason, in words, why it could not be."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TextIO

from mcp import Client, MCPError
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp_types import REQUEST_TIMEOUT, Implementation
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks import __version__
from mcp_tasks.cli.credentials import environment_for_servers, warn_of_plain_http
from mcp_tasks.cli.diagnosis import diagnose
from mcp_tasks.cli.listings import TameListings
from mcp_tasks.cli.options import Access
from mcp_tasks.cli.running import leaves
from mcp_tasks.cli.target import Target, looks_like_address
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.client import Ledger, TasksClient, reconnecting_http, stdio_transport
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.transport import ServerTransport

if TYPE_CHECKING:
    from mcp.client._transport import Transport

READ_LIMIT: Final = 30.0
"""Seconds for an answer to any request but a tool call. A server that needs longer to say how a task is, hangs."""

STARTUP_LIMIT: Final = 120.0
"""The same for a stdio server: its command may have to download things before it starts."""

SAID_LAST: Final = 2000
"""How many characters of a dead server's log are shown."""


@asynccontextmanager
async def connect(
    target: Target, access: Access, *, ledger: Ledger | None = None, elicit: ElicitationFnT | None = None
) -> AsyncGenerator[Client]:
    """A connected client that knows tasks.

    Args:
        elicit: Who answers questions. Without one the server is told that nobody does.

    Raises:
        Problem: The server cannot be used.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        async with AsyncExitStack() as stack:
            client = Client(
                _transport(target, access, log),
                mode=LATEST_MODERN_VERSION if access.era == "modern" else access.era,
                read_timeout_seconds=READ_LIMIT if target.url is not None else STARTUP_LIMIT,
                client_info=Implementation(name="mcp-tasks-cli", version=__version__),
                elicitation_callback=elicit,
                extensions=[_tasks_client(target, access, ledger)],
            )
            try:
                await stack.enter_async_context(client)
            except Exception as exc:
                raise await explain(target, access, exc, log) from exc
            yield client


def _tasks_client(target: Target, access: Access, ledger: Ledger | None) -> TasksClient:
    return TasksClient(ledger=ledger, server=target.spec, identity=access.identity or "", patience=_patience(target))


def _patience(target: Target) -> Patience | None:
    # A server behind a URL may come back; the process of a stdio server that ended does not.
    return None if target.url is not None else Patience(max_outage=timedelta(seconds=2))


async def explain(target: Target, access: Access, exc: Exception, log: TextIO | None = None) -> Problem:
    """Why `target` could not be connected to."""
    cause = next((inner for inner in leaves(exc) if isinstance(inner, Problem | MCPError | OSError)), exc)
    if isinstance(cause, Problem):
        return cause
    if target.url is None:
        return _explain_command(target, cause, log)
    found = await diagnose(target.url, access.headers)
    if found is not None:
        return found
    if isinstance(cause, MCPError) and cause.code == REQUEST_TIMEOUT:
        return Problem(f"{target.label} does not answer", Exit.UNREACHABLE)
    return Problem(f"{target.label} cannot be used: {cause}", Exit.UNREACHABLE, hint="-v says more.")


def _explain_command(target: Target, cause: BaseException, log: TextIO | None) -> Problem:
    command = target.argv[0]
    if isinstance(cause, FileNotFoundError):
        if not os.path.isdir(target.folder):
            return Problem(f"the folder of this server is gone: {target.folder}", Exit.UNREACHABLE)
        hint = "Is it installed, and spelled like that?"
        if looks_like_address(command):
            hint = f"If that is an address, write http://{command}"
        return Problem(f"command not found: {command}", Exit.UNREACHABLE, hint=hint)
    if isinstance(cause, OSError):
        return Problem(f"{command} cannot be started: {cause.strerror or cause}", Exit.UNREACHABLE)
    said = _last_of(log)
    hint = f"Its last lines on stderr:\n{said}" if said else "It wrote nothing to stderr. -v says more."
    return Problem(f"`{target.label}` exited, or does not speak MCP", Exit.UNREACHABLE, hint=hint)


def _transport(target: Target, access: Access, log: TextIO) -> Transport:
    transport = _bare_transport(target, access, log)
    transport.use(lambda _: TameListings())
    return transport


def _bare_transport(target: Target, access: Access, log: TextIO) -> ServerTransport:
    if target.url is not None:
        if access.has_credentials:
            warn_of_plain_http(target.url)
        return reconnecting_http(target.url, headers=access.headers)
    command, *arguments = target.argv
    # Nearly all of the environment, as for any other command that is typed here; the SDK's own choice is for hosts.
    server = StdioServerParameters(command=command, args=arguments, env=environment_for_servers(), cwd=target.folder)
    # The server's log goes where it does not run through a progress bar.
    return stdio_transport(server, errlog=sys.stderr if logging.getLogger().isEnabledFor(logging.INFO) else log)


def _last_of(log: TextIO | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    return log.read()[-SAID_LAST:].strip()
