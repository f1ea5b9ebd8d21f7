"""Which older eras of tasks a client speaks: the one place of the client that knows of them."""

from __future__ import annotations

from mcp_tasks.client.port import OlderTasks
from mcp_tasks.client.wire import Wire
from mcp_tasks.legacy.client.driving import LegacyTasks


def older_tasks(wire: Wire) -> OlderTasks | None:
    """Tasks of the era before the extension, on one connection; None if none is spoken."""
    return LegacyTasks(wire)
