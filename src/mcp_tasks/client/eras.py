"""The older era that a client speaks: the one place of this room that names it."""

from __future__ import annotations

import secrets

from mcp_tasks.client.transport import ServerTransport
from mcp_tasks.legacy.client.hosting import Hosting
from mcp_tasks.legacy.client.hosting_peer import HostedPeer
from mcp_tasks.legacy.client.hosting_tasks import HostedTasks

__all__ = ["HostedTasks", "Hosting", "host_over"]


def host_over(transport: ServerTransport, hosted: HostedTasks, *, server: str | None, identity: str) -> None:
    """Host tasks for the server at the other end of a transport."""
    # A server that nobody can name is the same one only while it is connected.
    address = server or transport.address or f"unnamed:{secrets.token_hex(16)}"
    transport.use(lambda wire: HostedPeer(wire, hosted, hosted.of(address, identity)))
