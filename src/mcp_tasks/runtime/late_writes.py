"""What runs did and could not write, because their process had lost touch with the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import Event, RunCompleted, RunFailed
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Outcome, TaskRecord, WriteId
from mcp_tasks.errors import TransitionRefused, UnknownTask, ValueNotStorable
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.changes import Changes
from mcp_tasks.stores.repeats import new_write_id
from mcp_tasks.stores.shares import WorkLimits

logger: Final = get_logger(__name__)


@dataclass(eq=False, kw_only=True, slots=True)
class Write:
    """What a run has to write: all of it or nothing.

    Attributes:
        id: The same for each attempt. It is given with the first one, because numbers follow the order of writing.
        made: Whether it was made, or refused for good; None while neither is known.
    """

    events: Sequence[Event]
    actor: Actor
    entries: Sequence[JournalEntry] = ()
    outcome: Outcome | None = None
    limits: WorkLimits | None = None
    id: WriteId | None = None
    made: bool | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it is how the run ended."""
        return isinstance(self.events[-1], RunCompleted | RunFailed)

    async def to(
        self,
        changes: Changes,
        record: TaskRecord,
        restore: Callable[[TaskRecord], Awaitable[TaskRecord]] | None = None,
    ) -> TaskRecord:
        """Make the change; `restore` is for a store that went back in time, as in `Changes.change`."""
        return await changes.change(
            record,
            *self.events,
            actor=self.actor,
            entries=self.entries,
            outcome=self.outcome,
            limits=self.limits,
            write=self.id,
            restore=restore,
        )


class LateWrites:
    """What is written when the lease is renewed, where the task is still this process's then: also what is being
    written, and has no answer."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._flushing = asyncio.Lock()
        # In the order in which things were done.
        self._waiting: dict[Write, TaskRecord] = {}

    def add(self, record: TaskRecord, write: Write) -> None:
        """Write this when the lease is renewed, if it is not settled before."""
        self._waiting[write] = record

    def settled(self, write: Write) -> None:
        """It is made, or need not be."""
        self._waiting.pop(write, None)

    async def flush(self) -> None:
        """Write everything now, in the order in which it was done.

        Raises:
            StoreError: The store does not take it yet. What is left is kept for the next time.
        """
        async with self._flushing:
            while self._waiting:
                write, record = next(iter(self._waiting.items()))
                # Its run may be writing it at the same time: with one id it is made once.
                write.id = write.id or new_write_id()
                try:
                    await write.to(self._changes, record)
                except (TransitionRefused, UnknownTask, ValueNotStorable) as exc:
                    logger.debug("what a run of task %s… did is not written: %s", record.id[:12], exc)
                self.settled(write)
