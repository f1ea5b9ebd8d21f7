"""Which older eras of tasks a client speaks: the one place of the client that knows of them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from mcp.client.session import ClientSession

from mcp_tasks.client.backend import OlderTasks
from mcp_tasks.client.wire import Wire
from mcp_tasks.legacy.client import LegacyTasks
from mcp_tasks.legacy.hosting import HostedPeer, HostedTasks, Hosting

if TYPE_CHECKING:
    from mcp_tasks.client.transport import ServerTransport

__all__ = ["HostedTasks", "Hosting", "has_older_tasks", "host_over", "older_tasks"]


def has_older_tasks(session: ClientSession) -> bool:
    """Whether the server of a session has tasks of an era that the SDK's session does not know."""
    capabilities = session.server_capabilities
    return (
        session.protocol_version == LegacyTasks.version and capabilities is not None and capabilities.tasks is not None
    )


def older_tasks(wire: Wire) -> OlderTasks | None:
    """Tasks of the era before the extension, on one connection; None if none is spoken."""
    return LegacyTasks(wire)


def host_over(transport: ServerTransport, hosted: HostedTasks, *, server: str | None, identity: str) -> None:
    """Host tasks for the server at the other end of a transport."""
    # A server that nobody can name is the same one only while it is connected.
    address = server or transport.address or f"unnamed:{secrets.token_hex(16)}"
    transport.use(lambda wire: HostedPeer(wire, hosted, hosted.of(address, identity)))
