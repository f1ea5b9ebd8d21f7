"""The outcome of a task, read for a response: how many bytes clients have not read yet, of one owner and in all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

from mcp_tasks.errors import LimitExceeded, UnknownTask
from mcp_tasks.model.json import LARGE, decode_in_pieces, decode_json
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import Outcome, TaskRecord, TaskStatus
from mcp_tasks.runtime import TaskRuntime

AT_A_TIME: Final = 4
"""Outcomes of one owner that are read from the store at a time. Only then is known how large they are."""

AT_A_TIME_OF_NOBODY: Final = 16
"""The same of all callers without an owner together."""

RETRY_AFTER: Final = timedelta(seconds=1)

_WITH_OUTCOME: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED})


class Unread:
    """Counts, for one server, the bytes of large responses that their clients have not read yet.

    Attributes:
        given_back: How often something was given back. As long as it is the same, there is no more room than before.
    """

    def __init__(self, limits: Limits) -> None:
        self.given_back: int = 0
        self._limits = limits
        self._of_owner: Counter[str] = Counter()
        self._total = 0
        self._turns: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, owner: str | None) -> AsyncGenerator[None]:
        """While the block lasts, an outcome may be read for an owner. Waits for a turn."""
        turns = self._turns.get(owner)
        if turns is None:
            turns = self._turns[owner] = asyncio.Semaphore(AT_A_TIME_OF_NOBODY if owner is None else AT_A_TIME)
        async with turns:
            yield

    def take(self, owner: str | None, size: int) -> None:
        """Count so many bytes more, until they are given back.

        Raises:
            LimitExceeded: They are too many, beside those that are not read yet.
        """
        most, at_all = self._limits.owner_unread_bytes, self._limits.unread_bytes
        of_owner = 0 if owner is None else self._of_owner[owner]
        # A single one may be as large as it is.
        if owner is not None and most is not None and of_owner and of_owner + size > most:
            raise LimitExceeded(
                "owner_unread_bytes",
                f"You have not read {of_owner:,} bytes of earlier answers: read them, then ask again",
                retry_after=RETRY_AFTER,
            )
        if at_all is not None and self._total and self._total + size > at_all:
            raise LimitExceeded(
                "unread_bytes",
                "The server waits for clients to read as many bytes as it may keep for them: ask again",
                retry_after=RETRY_AFTER,
            )
        self._total += size
        if owner is not None:
            self._of_owner[owner] += size

    def give_back(self, owner: str | None, size: int) -> None:
        """Count so many bytes less."""
        self.given_back += 1
        self._total -= size
        if owner is not None:
            self._of_owner[owner] -= size
            if not self._of_owner[owner]:
                del self._of_owner[owner]


class Held:
    """The bytes that are counted for one response."""

    __slots__ = ("_is_over", "_owner", "_unread", "size")

    def __init__(self, unread: Unread) -> None:
        self.size: int = 0
        self._unread = unread
        self._owner: str | None = None
        self._is_over = False

    def take(self, owner: str | None, size: int) -> None:
        """Count a part of the response.

        Raises:
            LimitExceeded: There is no room for it.
        """
        if not self._is_over:
            self.give_back()
            self._unread.take(owner, size)
            self._owner, self.size = owner, size

    def give_back(self) -> None:
        """Count nothing more for that part: it has been sent."""
        if self.size:
            self._unread.give_back(self._owner, self.size)
            self.size = 0

    def close(self) -> None:
        """The response is over, and nothing of it counts any more."""
        if self.size:
            self.give_back()
        self._is_over = True


current_held: ContextVar[Held | None] = ContextVar("mcp_tasks_held", default=None)
"""Counts for the response that is being made; None where responses are not counted."""


def hold(owner: str | None, read: list[Outcome | None]) -> Outcome | None:
    """Count an outcome that was read for the response that is being made. Gives the outcome.

    Args:
        read: The outcome, which is taken out: otherwise the exception, with the frames that it passes, would keep an
            outcome that is refused for longer than one would think.

    Raises:
        LimitExceeded: There is no room for it.
    """
    held = current_held.get()
    size = 0 if held is None or read[0] is None else len(read[0].body)
    if held is not None and size > LARGE:
        try:
            held.take(owner, size)
        except LimitExceeded:
            read.clear()
            raise
    return read.pop()


async def outcome_of(runtime: TaskRuntime, record: TaskRecord) -> Outcome | None:
    """The outcome of a task that has one; None for a task that runs or was cancelled.

    Raises:
        UnknownTask: The task expired after its record was read, and its outcome is gone with it.
    """
    if record.status not in _WITH_OUTCOME:
        return None
    outcome = await runtime.store.outcome(record.id)
    if outcome is None:
        raise UnknownTask(record.id)
    return outcome


async def outcome_to_send(runtime: TaskRuntime, record: TaskRecord, unread: Unread) -> Outcome | None:
    """The same for the response that is being made, where it counts until its client has read it.

    Raises:
        UnknownTask: As above.
        LimitExceeded: There is no room for it.
    """
    async with unread.turn(record.owner):
        return hold(record.owner, [await outcome_of(runtime, record)])


async def decoded(data: bytes) -> Any:
    """The value behind the bytes; a large one is decoded in a thread, so that the event loop goes on."""
    return await asyncio.to_thread(decode_in_pieces, data) if len(data) > LARGE else decode_json(data)
