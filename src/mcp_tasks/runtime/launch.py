"""What the runtime needs to create a task: its `LaunchSpec`, the limits of owners (`Quota`), and hidden keys."""

from __future__ import annotations

import asyncio
import contextvars
import hmac
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from mcp_tasks._utils import BoundedDict, shielded
from mcp_tasks.errors import LimitExceeded, StoreCorrupt, StoreError, StoreUnavailable
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import TaskRequest
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy, Owners, Store, Usage


def new_task_id() -> str:
    """An id that cannot be guessed: 160 bits, where SEP-2663 asks for enough that ids cannot be enumerated."""
    return f"task_{secrets.token_urlsafe(20)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """A task that is to be created.

    Attributes:
        policy: How the tool is treated; None to look it up.
        retention: How long the task is kept after its end; None for as long as the store lives.
        announced: Whether the caller is told of the task in any case. Otherwise its tool may still ask on the original
            call, until `TaskRuntime.announce`.
        key: An idempotency key. If there is a task under it, that one is returned, and none is created.
        key_until_end: Whether the key is free again when its task has ended.
        fingerprint: A hash of the call, if the key is the client's: it outlives the task, and belongs to this call.
        parent: The task that starts it.
        task_id: An id of `new_task_id`, if the caller has to know it beforehand.
    """

    request: TaskRequest
    policy: TaskOptions | None = None
    owner: str | None = None
    retention: timedelta | None = None
    announced: bool = True
    key: str | None = None
    key_until_end: bool = False
    fingerprint: str | None = None
    session: str | None = None
    parent: str | None = None
    task_id: str | None = None


# ---- quota
# How many tasks there may be, and how many bytes: limits for all processes of a store.


FRESH: Final = 5.0
"""Seconds for which an answer of the store is recent enough to admit from."""

LONGEST_FRESH: Final = 60.0
LOOK_LESS: Final = 100
"""A slow query is repeated after this many times its duration: it takes a hundredth of the time at most."""

ALWAYS_KEPT: Final = 4_096
"""Bytes of an outcome that always has room: about the size of the error that there is none."""

WAITS_FOR_A_LOOK: Final = 65_536
"""An outcome of more bytes waits for a new answer of the store, if the last one is too old."""

A_MOMENT: Final = 0.1
"""Seconds for which an answer is recent enough to refuse from: refused calls may come a thousand times a second."""

MOST_OWNERS: Final = 10_000
"""Owners whose usage is remembered."""

COME_BACK: Final = timedelta(seconds=1)
"""When to come back with too many open tasks: any of them may have ended by then."""

COME_BACK_FOR_ROOM: Final = timedelta(minutes=1)
"""The same with too many bytes: they go as tasks expire."""


class Quota:
    """Decides whether there may be one more task, for one process.

    Args:
        usage: Asks the store for the usage of some owners.
        clock: Seconds that only go forward.

    Attributes:
        free: The owner for whom there is only the total: the one user of a pipe, on a server where others have names.
    """

    free: str | None = None

    def __init__(self, limits: Limits, usage: Callable[[Owners], Awaitable[Usage]], clock: Callable[[], float]) -> None:
        self._limits = limits
        # The store is asked in it, and not in the context of a tool that starts a child: others may wait for the same
        # answer.
        self._new_account = partial(_Account, usage=usage, clock=clock, context=contextvars.copy_context())
        self._all = None if limits.open_tasks is None else self._new_account(EVERYBODY, limits.open_tasks, None)
        self._owners: BoundedDict[str | None, _Account] = BoundedDict(MOST_OWNERS)

    async def admit(self, owner: str | None, *, inside: bool = False) -> Admission:
        """Let one more task be created, until the returned admission is left.

        Args:
            inside: Whether a running task starts it. It counts like any other, and only the total can refuse it: work
                that was admitted would be cut off half done.

        Raises:
            LimitExceeded: There is no room. Nothing has been done.
            StoreError: The store cannot tell.
        """
        admission, own = Admission([]), self._account(owner)
        try:
            if own is not None:
                if not inside:
                    await own.require()
                # Nothing is awaited between the verdict and this: concurrent calls see each other's places.
                own.being_made += 1
                admission.accounts.append(own)
            # Last, so that no call holds a place that others want while it waits for an answer about its own owner.
            if self._all is not None:
                await self._all.require()
                self._all.being_made += 1
                admission.accounts.append(self._all)
        except BaseException:
            admission.leave()
            raise
        return admission

    @asynccontextmanager
    async def room_for(self, owner: str | None, tool: str, size: int) -> AsyncGenerator[None]:
        """Reserve room for an outcome while it is written; raises `LimitExceeded` if there is none."""
        account = None if size <= ALWAYS_KEPT else self._account(owner)
        if account is None or account.most_bytes is None:
            yield
            return
        with suppress(StoreError):
            # If the store cannot tell, the result is worth more than the limit.
            await account.find_room(tool, size)
        account.being_written += size
        try:
            yield
        finally:
            account.being_written -= size

    def grew(self, owner: str | None, size: int) -> None:
        account = self._owners.get(owner)
        if account is not None:
            account.written += size

    def _account(self, owner: str | None) -> _Account | None:
        """The account of an owner, or of tasks without one; None if they have no limits."""
        account = self._owners.get(owner)
        if account is None:
            limits, is_free = self._limits, owner is not None and owner == self.free
            most_open = None if owner is None else limits.owner_open_tasks
            most_bytes = limits.stored_bytes if owner is None else limits.owner_stored_bytes
            if is_free or (most_open, most_bytes) == (None, None):
                return None
            account = self._new_account(UNOWNED if owner is None else OwnedBy(owner), most_open, most_bytes)
        self._owners[owner] = account
        return account


@dataclass(slots=True)
class Admission:
    """The right to create one task.

    Attributes:
        made: Whether the task was created, in the end.
    """

    accounts: list[_Account]
    made: bool = False

    def leave(self) -> None:
        """Give the places back: from here on the task counts, if it was created."""
        for account in self.accounts:
            account.being_made -= 1
            account.made += self.made


class _Account:
    """What is known of one owner's tasks, or of all.

    Attributes:
        most_bytes: The limit of bytes, if there is one.
        known: The last answer of the store.
        being_made: Tasks that are on their way to the store.
        made: Tasks that have arrived there since it was last asked.
        being_written: Bytes that are on their way.
        written: Bytes that have arrived.
    """

    def __init__(
        self,
        whose: Owners,
        most_open: int | None,
        most_bytes: int | None,
        *,
        usage: Callable[[Owners], Awaitable[Usage]],
        clock: Callable[[], float],
        context: contextvars.Context,
    ) -> None:
        self._whose = whose
        self._most_open = most_open
        self.most_bytes = most_bytes
        self._usage = usage
        self._clock = clock
        self._context = context
        self._asked_at = float("-inf")
        self._fresh = FRESH
        self._look: asyncio.Task[None] | None = None
        self.known: Usage | None = None
        self.being_made: int = 0
        self.made: int = 0
        self.being_written: int = 0
        self.written: int = 0

    async def require(self) -> None:
        """See that there is room for one more task; raises `LimitExceeded` if there is none."""
        age = self._clock() - self._asked_at
        if self.known is not None and age < self._fresh:
            if age >= self._fresh / 2:
                # In time, so that no call has to wait for it.
                self._begin_look()
            if self._refusal() is None:
                return
        await self._look_for_room(self._refusal)

    async def find_room(self, tool: str, size: int) -> None:
        """See that there is room for an outcome: a small one by what is known, a large one by a new answer.

        An answer of the store may count bytes that are on their way, which then count twice. A call can be made again;
        an outcome that is refused is lost. So it is refused only for what the store has, and otherwise waits until the
        rest has arrived.
        """
        check = partial(self._result_refusal, tool, size)
        age = self._clock() - self._asked_at
        is_fresh = self.known is not None and age < self._fresh
        if check() is None and (is_fresh or size <= WAITS_FOR_A_LOOK):
            if not is_fresh or age >= self._fresh / 2:
                self._begin_look()
            return
        try:
            await self._look_for_room(check)
        except LimitExceeded:
            while (refused := check()) is not None:
                if self.known is None or check(self.known.stored_bytes) is not None:
                    raise refused from None
                await asyncio.sleep(A_MOMENT)
                await shielded(self._begin_look())

    async def _look_for_room(self, check: Callable[[], LimitExceeded | None]) -> None:
        if self.known is None or self._clock() - self._asked_at >= A_MOMENT or check() is None:
            # Shielded: others may wait for the same answer.
            await shielded(self._begin_look())
        if (refused := check()) is not None:
            raise refused

    def _refusal(self) -> LimitExceeded | None:
        """The error for one more task."""
        most_open, most_bytes, known = self._most_open, self.most_bytes, self.known
        open_tasks = self.made + self.being_made + (0 if known is None else known.open_tasks)
        stored = self.written + self.being_written + (0 if known is None else known.stored_bytes)
        if most_open is not None and open_tasks >= most_open:
            if self._whose == EVERYBODY:
                limit, says = (
                    "open_tasks",
                    f"The server has {most_open:,} tasks that have not ended, as many as it takes",
                )
                says += "; nothing was started"
            else:
                limit, says = (
                    "owner_open_tasks",
                    f"You have {most_open:,} tasks that have not ended, as many as you may",
                )
                says += " have; nothing was started. Wait for some of them, or cancel what is not needed"
            return LimitExceeded(limit, says, retry_after=COME_BACK)
        if most_bytes is None or stored < most_bytes:
            return None
        if self._whose == UNOWNED:
            limit, says = "stored_bytes", f"The tasks of callers without a name take {stored:,} bytes, and may take "
            says += f"{most_bytes:,}; nothing was started. Room comes as tasks that have ended expire"
        else:
            limit, says = "owner_stored_bytes", f"Your tasks take {stored:,} bytes, and may take {most_bytes:,}; "
            says += "nothing was started. Room comes as tasks that have ended expire, which may take their whole time "
            says += "to live; only an operator of the server can delete them sooner"
        return LimitExceeded(limit, says, retry_after=COME_BACK_FOR_ROOM)

    def _result_refusal(self, tool: str, size: int, stored: int | None = None) -> LimitExceeded | None:
        """The error for an outcome, beside what is `stored`, or is on its way to be."""
        if stored is None:
            stored = self.written + self.being_written + (0 if self.known is None else self.known.stored_bytes)
        if self.most_bytes is None or stored + size <= self.most_bytes:
            return None
        limit, whose = "owner_stored_bytes", "your tasks"
        if self._whose == UNOWNED:
            limit, whose = "stored_bytes", "tasks without an owner"
        return LimitExceeded(
            limit,
            f"What the tool {tool!r} ended with has {size:,} bytes and is not kept: with it, {whose} would take "
            f"{stored + size:,} bytes, and may take {self.most_bytes:,}. Room comes as tasks that have ended expire",
        )

    def _begin_look(self) -> asyncio.Task[None]:
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._ask(), name="mcp-tasks-quota", context=self._context.copy())
            # Looked at, so that asyncio does not report a failure that no call waits for.
            self._look.add_done_callback(lambda look: look.cancelled() or look.exception())
        return self._look

    async def _ask(self) -> None:
        asked_at = self._clock()
        # What arrives from now on may be counted twice, and is not missed.
        before, written = self.made, self.written
        self.known = await self._usage(self._whose)
        self.made -= before
        self.written -= written
        self._asked_at = asked_at
        # A store that takes long to count very many tasks is asked less often.
        self._fresh = min(max(FRESH, (self._clock() - asked_at) * LOOK_LESS), LONGEST_FRESH)


# ---- hidden keys
# Idempotency keys, as a store keeps them.


NOTE: Final = "key-secret"
"""The name of the note with the secret."""

READ_AGAIN: Final = timedelta(minutes=5)
"""How long a process uses the secret without reading it again. A store without a disk may have lost it."""

SURE_AFTER: Final = timedelta(minutes=1)
"""How long a secret has to be there before a process stops reading it each time. A failover loses the last notes as
well, and the tasks under a secret that is lost are not found under the next: so it is far longer than a replica lags
behind."""

_SIZE: Final = 32
"""Random bytes of the secret, which is kept as hexadecimal digits."""


class HiddenKeys:
    def __init__(self, store: Store, namespace: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._namespace = namespace
        self._monotonic = monotonic
        self._secret: bytes | None = None
        self._found_at = 0.0
        """Since when the secret is known to be there."""
        self._read_at = 0.0

    async def hide(self, key: str) -> str:
        """The key as the store keeps it: the same in every process, and it does not reveal the key.

        Raises:
            StoreUnavailable: The secret is not known for sure here yet, and cannot be read or kept. Nothing was done.
            StoreCorrupt: The secret cannot be read.
        """
        secret, asked_at = self._secret, self._monotonic()
        is_sure = self._read_at - self._found_at >= SURE_AFTER.total_seconds()
        if secret is None or not is_sure or asked_at - self._read_at > READ_AGAIN.total_seconds():
            try:
                secret = await self._agreed()
            except StoreUnavailable as exc:
                if secret is None or not is_sure:
                    # No task was created, whether or not the note was kept.
                    raise StoreUnavailable(str(exc)) from exc
            if secret != self._secret:
                self._found_at = self._monotonic()
            self._secret, self._read_at = secret, asked_at
        return f"key/{hmac.digest(secret, key.encode('utf-8', 'surrogatepass'), 'sha256').hex()}"

    async def _agreed(self) -> bytes:
        """The secret of all processes: of many that propose one, the store keeps one."""
        while (kept := await self._store.note(self._namespace, NOTE)) is None:
            mine = self._secret or secrets.token_hex(_SIZE).encode()
            if await self._store.set_note(self._namespace, NOTE, mine, expected=None):
                self._found_at = self._monotonic()
                return mine
        if len(kept) < _SIZE:
            raise StoreCorrupt(
                f"the secret for the keys of tasks of the server {self._namespace!r} (its note {NOTE!r}) is damaged, "
                f"it has only {len(kept)} bytes: restore a backup, or delete the note"
            )
        return kept
