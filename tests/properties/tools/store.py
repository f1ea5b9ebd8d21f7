"""A store that takes its time, refuses some writes, loses hints, and goes down in the middle of a write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.model.record import Outcome
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint, LocalNotifier, WorkLimits


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a store; writes and readings of journals are counted from 0.

    Attributes:
        pauses: Seconds that writes take, by turns: half of it before the commit, half of it after.
        refused: Writes that are refused.
        refused_readings: Readings of a journal that are refused.
        crashes: Writes in whose middle the process dies, and whether they are committed all the same.
        deaf: Whether hints are lost.
    """

    pauses: tuple[float, ...] = (0.0,)
    refused: frozenset[int] = frozenset()
    refused_readings: frozenset[int] = frozenset()
    crashes: Mapping[int, bool] = field(default_factory=dict[int, bool])
    deaf: bool = False


class _DeafNotifier(LocalNotifier):
    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        pass


class FaultyStore(MemoryStore):
    """A memory store with faults.

    Attributes:
        crashed: Set when the process was to die; nothing can be read or written until `repair`.
        history: Every entry of every journal with the time at which it was written.
    """

    def __init__(self, faults: Faults, now: Callable[[], datetime]) -> None:
        super().__init__()
        self.crashed = asyncio.Event()
        self.history: list[tuple[datetime, str, JournalEntry]] = []
        self._faults = faults
        self._now = now
        self._saves = 0
        self._readings = 0
        self._hints = _DeafNotifier() if faults.deaf else LocalNotifier()

    def repair(self) -> None:
        """The process is started again."""
        self.crashed.clear()

    async def get(self, task_id: str) -> TaskRecord | None:
        self._check_up()
        await self._pause(0)
        return await super().get(task_id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        self._check_up()
        number, self._saves = self._saves, self._saves + 1
        pause = self._faults.pauses[number % len(self._faults.pauses)]
        await self._pause(pause / 2)
        self._check_up()
        if number in self._faults.refused:
            raise StoreUnavailable("the disk is full")
        if self._faults.crashes.get(number, True):
            record = await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)
            self.history += [(self._now(), record.id, entry) for entry in entries]
        if number in self._faults.crashes:
            self.crashed.set()
        self._check_up()
        await self._pause(pause / 2)
        return record

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        self._check_up()
        number, self._readings = self._readings, self._readings + 1
        await self._pause(0)
        if number in self._faults.refused_readings:
            raise StoreUnavailable("the disk is full")
        return await super().journal(task_id, after=after)

    def notifier(self) -> LocalNotifier:
        return self._hints

    def _check_up(self) -> None:
        if self.crashed.is_set():
            raise StoreUnavailable("the process is dead")

    async def _pause(self, seconds: float) -> None:
        if self._faults.pauses != (0.0,):
            await asyncio.sleep(seconds)
