"""A server whose tools ask, in a process of its own, that answers calls without tasks after a short wait.

python -m tests.fallback.asking_process stdio [STORE [SECONDS]]
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from mcp.server import MCPServer

from harness.server import QUICK, Desk
from harness.serving import serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback, Host
from tests.legacy.asking_server import build_asking

WAIT = timedelta(seconds=0.5)


def asking_server(store: str = "memory://", desk: Desk | None = None, *, wait: timedelta = WAIT) -> MCPServer[Any]:
    """The server. The SDK's own client is a host like any other to it."""
    return build_asking(
        Tasks(store, settings=QUICK, fallback=Fallback(wait=wait), hosts={"mcp": Host(limit=2 * wait)}), desk
    )


def main(store: str = "memory://", seconds: str | None = None) -> None:
    """Serve the pipes of this process."""
    wait = WAIT if seconds is None else timedelta(seconds=float(seconds))
    asyncio.run(serve_stdio(asking_server(store, wait=wait)))


if __name__ == "__main__":
    main(*sys.argv[2:])
