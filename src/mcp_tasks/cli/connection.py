"""Connections as the command line makes them: with its name, its options, and what servers it starts are given."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp_types import Implementation

from mcp_tasks import __version__
from mcp_tasks.cli.credentials import environment_for_servers, hide_password, warn_of_plain_http
from mcp_tasks.cli.options import Access
from mcp_tasks.cli.servers import announce, hide_secrets, known_as
from mcp_tasks.client import Ledger, ServerAddress
from mcp_tasks.client import connect as connect_to
from mcp_tasks.client.servers.connecting import Connector


def connect(
    server: ServerAddress, access: Access, *, ledger: Ledger | None = None, elicit: ElicitationFnT | None = None
) -> AbstractAsyncContextManager[Client]:
    """A connected client that knows tasks; see `mcp_tasks.client.connect`."""
    server, access, environment = as_known(server, access)
    if server.url is not None:
        hide_password(server.url)
    if access.has_credentials and server.url is not None:
        warn_of_plain_http(server.url)
    return connect_to(
        server,
        headers=access.headers,
        environment=environment,
        era=access.era,
        ledger=ledger,
        identity=access.identity or "",
        elicit=elicit,
        client_info=Implementation(name="mcp-tasks-cli", version=__version__),
        # Otherwise the server's log goes where it does not run through a progress bar.
        errlog=sys.stderr if logging.getLogger().isEnabledFor(logging.INFO) else None,
    )


def as_known(server: ServerAddress, access: Access) -> tuple[ServerAddress, Access, dict[str, str]]:
    """How a server is reached, with what the file says in which it has a name: its address, with variables filled in,
    its headers, and the environment variables of its process. What is on the command line goes before that.

    Raises:
        InvalidServerFile: A variable is not set.
    """
    # Nearly all of it, as for any other command that is typed here; the SDK's own choice is for hosts.
    environment = environment_for_servers()
    known = known_as(server)
    if known is None:
        return server, access, environment
    hide_secrets(known)
    given = {name.lower() for name in access.headers}
    headers = {name: value for name, value in known.headers.items() if name.lower() not in given}
    announce(known, with_headers=bool(headers))
    return known.address, replace(access, headers={**headers, **access.headers}), environment | known.environment


def connector(access: Access, *, ledger: Ledger | None = None, elicit: ElicitationFnT | None = None) -> Connector:
    """The same for tasks of several servers, each as the user that its tasks are of."""
    return lambda tasks: connect(tasks.server, replace(access, identity=tasks.identity), ledger=ledger, elicit=elicit)
