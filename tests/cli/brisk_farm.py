"""The farm, with workers that look often at what operators say: `tests.cli.brisk_farm:make()`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from mcp.server import MCPServer

from mcp_tasks import Tasks
from tests.cli.farm import SETTINGS, build


def make() -> MCPServer[Any]:
    """The server, for a process that works."""
    return build(Tasks(settings=replace(SETTINGS, lease_duration=timedelta(seconds=3))))
