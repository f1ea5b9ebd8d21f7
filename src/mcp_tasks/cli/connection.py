"""Connections as the command line makes them: with its name, its options, and what servers it starts are given."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager

from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp_types import Implementation

from mcp_tasks import __version__
from mcp_tasks.cli.commands.servers.names import way_to
from mcp_tasks.cli.options import Access
from mcp_tasks.client import Ledger, ServerAddress
from mcp_tasks.client import connect as connect_to


def connect(
    server: ServerAddress,
    access: Access,
    *,
    named: str | None = None,
    ledger: Ledger | None = None,
    elicit: ElicitationFnT | None = None,
) -> AbstractAsyncContextManager[Client]:
    """A connected client that knows tasks; see `mcp_tasks.client.connect`. `named` is that of the ledger's entries."""
    server, access, environment = way_to(server, access, named)
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
