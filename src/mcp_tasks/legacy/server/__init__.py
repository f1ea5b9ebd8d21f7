"""Tasks of 2025-11-25 on a server: one runtime with the newest era, other words on the wire.

Here the caller decides what becomes a task (`params.task`), a result is fetched with `tasks/result`, tasks can be
listed, and what a tool asks goes to the client as a request.
"""

from mcp_tasks.legacy.server.era import LegacyEra

__all__ = ["LegacyEra"]
