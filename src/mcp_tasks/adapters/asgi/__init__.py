"""The short way: hot requests of the newest wire answered straight from the runtime, before the SDK sees them.

It stands before the SDK's app and inside whatever authenticates. What it fully understands and what succeeds it
answers; everything else, every refusal included, it hands over untouched. The rules are the protocol's: here is only
what lies between them and the socket.
"""

from __future__ import annotations

from mcp_tasks.adapters.asgi.app import ShortWay
from mcp_tasks.adapters.asgi.counts import Counts, Handover
from mcp_tasks.adapters.asgi.listening import MOST_LISTENERS
from mcp_tasks.adapters.asgi.serving import Launch, Launches

__all__ = ["MOST_LISTENERS", "Counts", "Handover", "Launch", "Launches", "ShortWay"]
