"""How tasks of a ledger stand right now: one look each, without waiting and without forgetting any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from mcp.shared.exceptions import MCPError

from mcp_tasks.client.calls import resume_task
from mcp_tasks.client.servers.connecting import Connector
from mcp_tasks.client.servers.grouping import ServerTasks
from mcp_tasks.errors import TasksError
from mcp_tasks.wire.parse import TaskSnapshot

Seen: TypeAlias = dict[tuple[str, str, str], TaskSnapshot | TasksError | MCPError]
"""By the key of the ledger's entry: the task, or why it could not be seen."""


async def look_at(groups: Iterable[ServerTasks], connect: Connector) -> Seen:
    """Look at tasks of any number of servers. What is seen goes into the ledger of the connections."""
    seen: Seen = {}
    async with asyncio.TaskGroup() as looks:
        for group in groups:
            looks.create_task(_look_at_server(group, connect, seen))
    return seen


async def _look_at_server(group: ServerTasks, connect: Connector, seen: Seen) -> None:
    try:
        async with connect(group) as client:
            for entry in group.entries:
                try:
                    seen[entry.key] = await resume_task(client, entry.task_id, tool=entry.tool).status()
                except (TasksError, MCPError) as exc:
                    seen[entry.key] = exc
    except TasksError as exc:
        for entry in group.entries:
            seen[entry.key] = exc
