"""Waiting for the end of a task: a stand-in that relays nothing."""

from __future__ import annotations

from datetime import timedelta

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.legacy.server.sessions import Session


class Relay:
    """Blocks `tasks/result` until the task has ended."""

    def __init__(self, parts: EraParts) -> None:
        self._parts = parts

    async def until_final(self, ctx: RequestContext, record: TaskRecord, session: Session | None) -> TaskRecord:
        """The task once it has ended."""
        runtime = self._parts.runtime()
        while not record.is_final:
            seen = await runtime.wait_until(record.id, lambda task: task.is_final, timedelta(minutes=1))
            record = seen or await runtime.get(record.id, owner=record.owner)
        return record
