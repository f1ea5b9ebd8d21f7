"""A server whose tasks Celery carries: the same module for the process that serves and for its workers."""

from __future__ import annotations

import os

from mcp.server import MCPServer

from examples.celery_engine import celery_engine
from mcp_tasks import Tasks

tasks = Tasks(os.environ["FARM_STORE"], engine=celery_engine(os.environ["FARM_BROKER"]), runs_tools=False)
server = MCPServer("farm", **tasks.wiring())


@server.tool()
@tasks.task(mode="required")
def where() -> int:
    return os.getpid()
