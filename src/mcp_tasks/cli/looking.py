"""How tasks stand right now: one look each, without waiting and without forgetting any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mcp import Client, MCPError

from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.options import Access
from mcp_tasks.cli.remembered import by_server
from mcp_tasks.cli.target import Target
from mcp_tasks.cli.terminal.exits import Exit, Problem, task_not_known
from mcp_tasks.client import Ledger, LedgerEntry, TaskSnapshot, resume_task
from mcp_tasks.errors import InvalidResponse, UnknownTask

Seen = dict[tuple[str, str, str], TaskSnapshot | Problem]
"""By the key of the ledger's entry: the task, or why it could not be seen."""


async def look_at(entries: Sequence[LedgerEntry], access: Access, ledger: Ledger) -> Seen:
    """Look at tasks of any number of servers. What is seen goes into the ledger."""
    seen: Seen = {}
    groups = by_server(entries, access)
    async with asyncio.TaskGroup() as looks:
        for target, spoken, group in groups:
            looks.create_task(_look_at_server(target, group, spoken, ledger, seen))
    return seen


async def look(client: Client, entry: LedgerEntry) -> TaskSnapshot:
    """Look at one task. What is seen goes into the client's ledger.

    Raises:
        Problem: It cannot be seen.
    """
    try:
        return await resume_task(client, entry.task_id, tool=entry.tool).status()
    except UnknownTask as exc:
        raise Problem(task_not_known(exc), Exit.UNKNOWN_TASK) from exc
    except (MCPError, InvalidResponse) as exc:
        raise Problem(f"the server answers: {exc}", Exit.FAILED) from exc


async def _look_at_server(
    target: Target, entries: Sequence[LedgerEntry], access: Access, ledger: Ledger, seen: Seen
) -> None:
    try:
        async with connect(target, access, ledger=ledger) as client:
            for entry in entries:
                try:
                    seen[entry.key] = await look(client, entry)
                except Problem as exc:
                    seen[entry.key] = exc
    except Problem as exc:
        for entry in entries:
            seen[entry.key] = exc
