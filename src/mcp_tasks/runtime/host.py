"""What a run needs of the runtime it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from mcp_tasks.core.events import Event
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.runtime.alarms import Alarms
from mcp_tasks.runtime.lease import Lease
from mcp_tasks.runtime.parking import Parking
from mcp_tasks.runtime.policy import Settings


class Host(Protocol):
    """What a run needs of the runtime it belongs to."""

    @property
    def settings(self) -> Settings: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def alarms(self) -> Alarms: ...

    @property
    def parking(self) -> Parking: ...

    @property
    def describe(self) -> Callable[[Exception], JsonObject]:
        """An exception as the JSON-RPC error that a client sees."""
        ...

    @property
    def lease(self) -> Lease: ...

    async def change(self, record: TaskRecord, *events: Event, entries: Sequence[JournalEntry] = ()) -> TaskRecord: ...

    def write_later(self, record: TaskRecord, events: Sequence[Event], entries: Sequence[JournalEntry]) -> None:
        """Write this when the lease is renewed, if the task is still ours then."""
        ...

    async def journal(self, task_id: str) -> Sequence[JournalEntry]: ...

    async def submit(self, task_id: str, *, again: bool = False) -> None: ...
