"""How many tasks there may be, and how much may be kept of them: limits that hold for all processes of a store.

What there is, the store says. To ask it for every new task would cost as much as making one, so this process admits
from what it was told up to `FRESH` seconds ago, and what it has made and written itself since. Who would be refused is
refused only after another look, or one that was made a moment ago. So a limit may be exceeded by what other processes
make within those seconds, and nobody is refused for what is not there any more.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Final

from mcp_tasks.core.limits import Limits
from mcp_tasks.errors import LimitExceeded, StoreError
from mcp_tasks.quiet import shielded
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy, Owners
from mcp_tasks.stores.shares import Usage

FRESH: Final = 5.0
"""Seconds for which an answer of the store is good enough to admit from."""

LONGEST_FRESH: Final = 60.0
LOOK_LESS: Final = 100
"""A look that takes long is made again after so many times as long: a hundredth of the time is spent on it at most."""

ALWAYS_KEPT: Final = 4_096
"""Bytes that a task may end with in any case: about as many as the error that there is no room."""

WAITS_FOR_A_LOOK: Final = 65_536
"""Bytes from which on what a task ended with waits for a look at the store, where what is known is too old."""

A_MOMENT: Final = 0.1
"""Seconds for which it is good enough to refuse from: those who are refused may come a thousand times a second."""

MOST_OWNERS: Final = 10_000
"""Owners whose numbers are kept. Those of an owner who makes nothing are forgotten, and asked for again."""

COME_BACK: Final = timedelta(seconds=1)
"""When somebody is told to come back who has as many open tasks as may be: any of them may have ended by then."""

COME_BACK_FOR_ROOM: Final = timedelta(minutes=1)
"""The same for what is kept: it goes as tasks expire, which takes its time."""


class Quota:
    """Says whether there may be one more task, for one runtime.

    Args:
        usage: What the store says of somebody's tasks.
        clock: Seconds that only go forward.

    Attributes:
        free: The owner for whom there is only the total: the one user of a pipe, on a server where others have names.
    """

    free: str | None = None

    def __init__(self, limits: Limits, usage: Callable[[Owners], Awaitable[Usage]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._usage = usage
        self._clock = clock
        # Looks are made in it, and not in the context of a tool that starts a child: others may wait for the same look.
        self._context = contextvars.copy_context()
        self._all = None if limits.open_tasks is None else _Account(EVERYBODY, usage, clock, self._context)
        self._owners: OrderedDict[str | None, _Account] = OrderedDict()

    async def admit(self, owner: str | None, *, inside: bool = False) -> Admission:
        """Let one more task be made, until what this gives is left.

        Args:
            inside: Whether it is part of work that was admitted before: a task that a running task starts. It counts
                like any other, and only the total can refuse it: its owner's work would be cut off half done.

        Raises:
            LimitExceeded: There may be none. Nothing has been done.
            StoreError: The store cannot say what there is.
        """
        admission = Admission()
        try:
            if self._is_limited(owner):
                refusal = self._of_nobody if owner is None else self._of_owner
                await admission.take(self._account(owner), None if inside else refusal)
            # Last, so that no call holds a place that others want while it waits for a look at its own.
            if self._all is not None:
                await admission.take(self._all, self._total)
        except BaseException:
            admission.leave()
            raise
        return admission

    @asynccontextmanager
    async def room_for(self, owner: str | None, tool: str, size: int) -> AsyncGenerator[None]:
        """Hold room for what a task ended with, while that is written.

        The store is asked as for new tasks: at most every few seconds for each owner. Only what is large waits for it.

        Raises:
            LimitExceeded: There is none. Something as small as an error that says so always has room.
        """
        if size <= ALWAYS_KEPT or self._most_bytes(owner) is None:
            yield
            return
        account, refusal = self._account(owner), partial(self._of_result, owner, tool, size)
        with suppress(StoreError):
            # If the store cannot say, the result is worth more than the limit.
            await account.find_room(refusal, waits=size > WAITS_FOR_A_LOOK)
        account.being_written += size
        try:
            yield
        finally:
            account.being_written -= size

    def grew(self, owner: str | None, size: int) -> None:
        """Take note that this process has written so many bytes more for one of an owner's tasks."""
        account = self._owners.get(owner)
        if account is not None:
            account.written += size

    def _is_limited(self, owner: str | None) -> bool:
        """Whether there is a limit for this owner, or for tasks without one, beside the total."""
        if owner is None:
            return self._limits.stored_bytes is not None
        return owner != self.free and (self._limits.owner_open_tasks, self._limits.owner_stored_bytes) != (None, None)

    def _most_bytes(self, owner: str | None) -> int | None:
        if owner is None:
            return self._limits.stored_bytes
        return None if owner == self.free else self._limits.owner_stored_bytes

    def _account(self, owner: str | None) -> _Account:
        account = self._owners.get(owner)
        if account is None:
            whose = UNOWNED if owner is None else OwnedBy(owner)
            account = self._owners[owner] = _Account(whose, self._usage, self._clock, self._context)
            if len(self._owners) > MOST_OWNERS:
                self._owners.popitem(last=False)
        else:
            self._owners.move_to_end(owner)
        return account

    def _total(self, open_tasks: int, _: int) -> LimitExceeded | None:
        limit = self._limits.open_tasks
        if limit is None or open_tasks < limit:
            return None
        return LimitExceeded(
            "open_tasks",
            f"The server has {limit:,} tasks that have not ended, as many as it takes; nothing was started",
            retry_after=COME_BACK,
        )

    def _of_owner(self, open_tasks: int, stored: int) -> LimitExceeded | None:
        limits = self._limits
        if limits.owner_open_tasks is not None and open_tasks >= limits.owner_open_tasks:
            return LimitExceeded(
                "owner_open_tasks",
                f"You have {limits.owner_open_tasks:,} tasks that have not ended, as many as you may have; nothing was "
                "started. Wait for some of them, or cancel what is not needed",
                retry_after=COME_BACK,
            )
        if limits.owner_stored_bytes is not None and stored >= limits.owner_stored_bytes:
            return LimitExceeded(
                "owner_stored_bytes",
                f"Your tasks take {stored:,} bytes, and may take {limits.owner_stored_bytes:,}; nothing was started. "
                "Room comes as tasks that have ended expire, which may take their whole time to live; only an operator "
                "of the server can delete them sooner",
                retry_after=COME_BACK_FOR_ROOM,
            )
        return None

    def _of_nobody(self, _: int, stored: int) -> LimitExceeded | None:
        limit = self._limits.stored_bytes
        if limit is None or stored < limit:
            return None
        return LimitExceeded(
            "stored_bytes",
            f"The tasks of callers without a name take {stored:,} bytes, and may take {limit:,}; nothing was started. "
            "Room comes as tasks that have ended expire",
            retry_after=COME_BACK_FOR_ROOM,
        )

    def _of_result(self, owner: str | None, tool: str, size: int, _: int, stored: int) -> LimitExceeded | None:
        limit = self._most_bytes(owner)
        if limit is None or stored + size <= limit:
            return None
        whose = "tasks without an owner" if owner is None else "your tasks"
        name = "stored_bytes" if owner is None else "owner_stored_bytes"
        return LimitExceeded(
            name,
            f"What the tool {tool!r} ended with has {size:,} bytes and is not kept: with it, {whose} would take "
            f"{stored + size:,} bytes, and may take {limit:,}. Room comes as tasks that have ended expire",
        )


class Admission(AbstractContextManager["Admission"]):
    """The right to make one task, given back when it is left."""

    __slots__ = ("_accounts", "made")

    def __init__(self) -> None:
        self._accounts: list[_Account] = []
        self.made: bool = False
        """Whether the task was made, in the end."""

    async def take(self, account: _Account, refusal: Callable[[int, int], LimitExceeded | None] | None) -> None:
        """Take a place under an account's limits; without a refusal it only counts.

        Raises:
            LimitExceeded: There is no room.
            StoreError: The store cannot say.
        """
        if refusal is not None and not account.knows_room(refusal):
            await account.look_for_room(refusal)
        # Nothing is awaited between the verdict and this: of many calls at once each sees the places of the others.
        account.being_made += 1
        self._accounts.append(account)

    def leave(self) -> None:
        """Give back what was taken."""
        for account in self._accounts:
            account.being_made -= 1
            account.made += self.made

    def __exit__(self, *_: object) -> None:
        self.leave()


class _Account:
    """What is known of one owner's tasks, or of all.

    Attributes:
        being_made: Tasks that are on their way to the store.
        made: Tasks that have arrived there since the store was last asked.
        being_written: Bytes that are on their way.
        written: Bytes that have arrived.
    """

    __slots__ = (
        "_asked_at",
        "_clock",
        "_context",
        "_fresh",
        "_look",
        "_usage",
        "_whose",
        "being_made",
        "being_written",
        "known",
        "made",
        "written",
    )

    def __init__(
        self,
        whose: Owners,
        usage: Callable[[Owners], Awaitable[Usage]],
        clock: Callable[[], float],
        context: contextvars.Context,
    ) -> None:
        self._whose = whose
        self._usage = usage
        self._clock = clock
        self._asked_at = float("-inf")
        self._fresh = FRESH
        self._look: asyncio.Task[None] | None = None
        self._context = context
        self.known: Usage | None = None
        self.being_made: int = 0
        self.made: int = 0
        self.being_written: int = 0
        self.written: int = 0

    async def find_room(self, refusal: Callable[[int, int], LimitExceeded | None], *, waits: bool) -> None:
        """See that there is room: from what is known if it need not wait for more.

        A look may have counted what is on its way, which then counts twice. A call can be made again; what is refused
        here is lost. So it is refused only for what the store has, and otherwise waits until the rest has arrived.

        Raises:
            LimitExceeded: There is no room.
            StoreError: The store cannot say.
        """
        if self.knows_room(refusal):
            return
        if not waits and self._verdict(refusal) is None:
            self._begin_look()
            return
        try:
            await self.look_for_room(refusal)
        except LimitExceeded:
            while (refused := self._verdict(refusal)) is not None:
                if self.known is None or refusal(self.known.open_tasks, self.known.stored_bytes) is not None:
                    raise refused from None
                await asyncio.sleep(A_MOMENT)
                await shielded(self._begin_look())

    def knows_room(self, refusal: Callable[[int, int], LimitExceeded | None]) -> bool:
        """Whether there is room for one more, as far as is known; False if that has to be looked up."""
        age = self._clock() - self._asked_at
        if self.known is None or age >= self._fresh:
            return False
        if age >= self._fresh / 2:
            # In time, so that nobody has to wait for it.
            self._begin_look()
        return self._verdict(refusal) is None

    async def look_for_room(self, refusal: Callable[[int, int], LimitExceeded | None]) -> None:
        """Ask the store, unless that was done a moment ago.

        Raises:
            LimitExceeded: There is no room.
            StoreError: The store cannot say.
        """
        if self.known is None or self._clock() - self._asked_at >= A_MOMENT or self._verdict(refusal) is None:
            # Shielded: others may wait for the same look.
            await shielded(self._begin_look())
        refused = self._verdict(refusal)
        if refused is not None:
            raise refused

    def _verdict(self, refusal: Callable[[int, int], LimitExceeded | None]) -> LimitExceeded | None:
        known = self.known or Usage(open_tasks=0, stored_bytes=0)
        stored = known.stored_bytes + self.written + self.being_written
        return refusal(known.open_tasks + self.made + self.being_made, stored)

    def _begin_look(self) -> asyncio.Task[None]:
        if self._look is None or self._look.done():
            asking = asyncio.create_task(self._ask(), name="mcp-tasks-quota", context=self._context.copy())
            self._look = asking
            self._look.add_done_callback(_seen)
        return self._look

    async def _ask(self) -> None:
        asked_at = self._clock()
        # What arrives from now on may be counted twice, and is not missed.
        before, written = self.made, self.written
        self.known = await self._usage(self._whose)
        self.made -= before
        self.written -= written
        self._asked_at = asked_at
        # A store that has to count for long, of very many tasks, is asked less often.
        self._fresh = min(max(FRESH, (self._clock() - asked_at) * LOOK_LESS), LONGEST_FRESH)


def _seen(look: asyncio.Task[None]) -> None:
    """Look at how it went, if nobody waits for it: who does is told."""
    with suppress(asyncio.CancelledError, StoreError):
        look.exception()
