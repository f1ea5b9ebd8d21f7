"""What a run needs of the runtime it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.runtime.alarms import Alarms
from mcp_tasks.runtime.changes import Changes
from mcp_tasks.runtime.late_writes import LateWrites
from mcp_tasks.runtime.lease import Lease
from mcp_tasks.runtime.parking import Parking
from mcp_tasks.runtime.policy import Settings
from mcp_tasks.runtime.quota import Quota
from mcp_tasks.stores.base import Store


class Host(Protocol):
    """What a run needs of the runtime it belongs to."""

    @property
    def worker(self) -> str:
        """The name of this process."""
        ...

    @property
    def settings(self) -> Settings: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def alarms(self) -> Alarms: ...

    @property
    def parking(self) -> Parking: ...

    @property
    def describe(self) -> Callable[[Exception], JsonObject]:
        """An exception as the JSON-RPC error that a client sees."""
        ...

    @property
    def progress_turns(self) -> asyncio.Semaphore:
        """Limits how many progress reports are being written at a time."""
        ...

    @property
    def lease(self) -> Lease: ...

    @property
    def store(self) -> Store: ...

    @property
    def changes(self) -> Changes: ...

    @property
    def quota(self) -> Quota: ...

    @property
    def late_writes(self) -> LateWrites: ...

    async def submit(self, record: TaskRecord) -> None:
        """Have a task run again that nobody has."""
        ...

    async def submit_later(self, record: TaskRecord) -> None:
        """Have a parked task run when its time comes, if the engine can wait for it."""
        ...
