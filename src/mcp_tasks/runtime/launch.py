"""Making tasks: written before anybody is told of them, and started at once where there is room."""

from __future__ import annotations

import asyncio
import contextvars
import hmac
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcp_tasks._utils import BoundedDict, shielded
from mcp_tasks.engines.base import ReservedSlot, ReservesSlots
from mcp_tasks.errors import (
    KeyTaken,
    LimitExceeded,
    OwnerRequired,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from mcp_tasks.model.json import rough_size
from mcp_tasks.model.limits import Limits, is_expired
from mcp_tasks.model.machine import RunReleased, RunStarted
from mcp_tasks.model.record import Actor, TaskRecord, TaskRequest
from mcp_tasks.runtime.patience import until_available
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.suspend import to_the_end
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy, Owners, Store, Usage
from mcp_tasks.stores.codec import new_write_id

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime


def new_task_id() -> str:
    """An id nobody can guess: 160 bits, where SEP-2663 asks for enough that ids cannot be enumerated."""
    return f"task_{secrets.token_urlsafe(20)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """A task that is to be made.

    Attributes:
        retention: How long it is kept after its end; None for as long as the store lives.
        announced: Whether the caller is told of the task in any case. Otherwise its tool may still ask on the original
            call, until `TaskRuntime.announce`.
        key: Under which the task stands. If one stands there already, that one is given, and nothing is made.
        key_until_end: Whether a task that has ended does not count under the key.
        fingerprint: What the call is, as a hash, where the key is one of the client's: it outlives the task, and no
            other call may stand under it.
        parent: The task that starts it.
        task_id: An id of `new_task_id`, if the caller has to know it before there is the task.
    """

    request: TaskRequest
    owner: str | None = None
    retention: timedelta | None = None
    poll_interval: timedelta | None = None
    announced: bool = True
    key: str | None = None
    key_until_end: bool = False
    fingerprint: str | None = None
    session: str | None = None
    parent: str | None = None
    task_id: str | None = None


class Launching:
    """Makes the tasks of one runtime."""

    def __init__(self, runtime: TaskRuntime, new_id: Callable[[], str]) -> None:
        self._runtime = runtime
        self._new_id = new_id
        self._slots = runtime.engine if isinstance(runtime.engine, ReservesSlots) else None

    async def launch(self, spec: LaunchSpec) -> TaskRecord:
        """A new task, durable on return, that runs or is queued.

        If there is room for it right now, it is written as claimed by this process, which saves a write. A crash before
        the tool began is then a crash of the run: for a tool that may not run twice there is no telling the two apart.

        Raises:
            OwnerRequired: Nobody owns the task, on a server where every task has to have an owner.
            LimitExceeded: There are as many tasks as may be. Nothing was written, and nothing started.
        """
        runtime, request, owner = self._runtime, spec.request, spec.owner
        if not owner and runtime.requires_owner:
            raise OwnerRequired(f"a task of {request.name!r} has to have an owner on this server, and none is named")
        key = None if spec.key is None else await runtime.hidden_keys.hide(spec.key)
        try:
            admitted = await until_available(lambda: runtime.quota.admit(owner, inside=spec.parent is not None))
        except LimitExceeded:
            # Who comes for a task that is there already makes none, however many there are.
            standing = None if key is None else await self._standing(key, spec)
            if standing is None:
                raise
            return standing
        with admitted as admission:
            now = runtime.now()
            policy = await self._policy_of(request)
            treated = policy or ToolPolicy()
            record = TaskRecord(
                id=spec.task_id or self._new_id(),
                owner=owner,
                method=request.method,
                name=request.name,
                created_at=now,
                updated_at=now,
                retention=spec.retention,
                poll_interval=spec.poll_interval,
                announced=spec.announced,
                session=spec.session,
                parent=spec.parent,
                queue=treated.queue,
                priority=treated.priority,
                trace=None if runtime.tracing is None else runtime.tracing.trace_of(request),
                fingerprint=spec.fingerprint,
                namespace=runtime.namespace,
            )
            actor = Actor("client", owner)
            create = partial(runtime.changes.create, actor=actor, key=key, key_until_end=spec.key_until_end)
            slot = None if policy is None else self._reserve(policy, owner)
            if slot is not None:
                created = await self._start_in(slot, record, request, treated, create)
            else:
                handing, write = runtime.dispatch.handing(record), new_write_id()
                created = await until_available(lambda: create(record, request, handing=handing, write=write))
                if created.id == record.id:
                    await runtime.dispatch.created(created, handing)
            admission.made = created.id == record.id
            if admission.made:
                runtime.quota.grew(owner, rough_size(request.arguments))
        if runtime.tracing is not None and spec.parent is None:
            # What is current in a tool that starts a child is the span of its own run.
            runtime.tracing.touched(created)
        return created

    async def _standing(self, key: str, spec: LaunchSpec) -> TaskRecord | None:
        """The task that stands under a key; None if there is none."""
        runtime = self._runtime
        task_id = await runtime.store.id_under(key, namespace=runtime.namespace, owner=spec.owner)
        found = None if task_id is None else await runtime.store.get(task_id)
        if found is None or is_expired(found, runtime.now()) or (spec.key_until_end and found.is_final):
            return None
        if found.fingerprint != spec.fingerprint:
            raise KeyTaken
        return found

    async def _policy_of(self, request: TaskRequest) -> ToolPolicy | None:
        """How the tool is treated; None if that could not be looked up."""
        try:
            return await self._runtime.policy(request.method, request.name) or ToolPolicy()
        except Exception:
            # The task is queued. Whoever claims it asks again, and says what is wrong.
            return None

    def _reserve(self, policy: ToolPolicy, owner: str | None) -> ReservedSlot | None:
        runtime = self._runtime
        # Without a lease nothing is claimed; what is only queued may be started by whoever has one. Where there is a
        # limit, a claim of its own keeps it.
        may_run = (
            runtime.runs_tools
            and runtime.lease.is_valid
            and runtime.serves(policy.queue)
            and runtime.dispatch.limits(policy) is None
        )
        return self._slots.reserve(owner) if may_run and self._slots is not None else None

    async def _start_in(
        self,
        slot: ReservedSlot,
        record: TaskRecord,
        request: TaskRequest,
        policy: ToolPolicy,
        create: Callable[..., Coroutine[Any, Any, TaskRecord]],
    ) -> TaskRecord:
        runtime = self._runtime
        started, write = RunStarted(worker=runtime.worker, tool_version=policy.version), new_write_id(run=True)
        created, cancelled, is_unconfirmed = record, None, False

        async def make() -> None:
            nonlocal created, cancelled, is_unconfirmed
            # To its end, however the caller is cancelled: otherwise there may be a task that is ours and does not run.
            making, cancelled = await to_the_end(create(record, request, started, write=write))
            try:
                created = making.result()
            except StoreUnavailable as exc:
                is_unconfirmed = is_unconfirmed or exc.may_have_happened
                if cancelled is not None:
                    raise cancelled from None
                raise

        try:
            with runtime.claims.claiming(record.id):
                await until_available(make)
        except BaseException:
            slot.release()
            if is_unconfirmed:
                runtime.claims.add_unconfirmed(record.id, write)
            raise
        if created.id != record.id or (created.worker, created.attempt) != (runtime.worker, 1):
            slot.release()
        else:
            runtime.claims.add_made(created, request, policy)
            if not slot.start(created.id):
                # The server stops. The tool never began, so the next process may simply start it.
                runtime.claims.forget_made(created.id)
                released = RunReleased(attempt=created.attempt, begun=False)
                # If the store is not available, the caller still gets the task: it was made.
                with suppress(StoreUnavailable):
                    created = await runtime.changes.change(created, released, actor=Actor("worker", runtime.worker))
        if cancelled is not None:
            raise cancelled
        return created


# ---- quota
# How many tasks there may be, and how much may be kept of them: limits that hold for all processes of a store.


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
        self._owners: BoundedDict[str | None, _Account] = BoundedDict(MOST_OWNERS)

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
            account = _Account(whose, self._usage, self._clock, self._context)
        self._owners[owner] = account
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


# ---- hidden keys
# `HiddenKeys`: the keys that tasks stand under, as a store keeps them.


NOTE: Final = "key-secret"
"""The name of the note."""

READ_AGAIN: Final = timedelta(minutes=5)
"""How long a process uses the secret without reading it again. A store without a disk may have lost it."""

SURE_AFTER: Final = timedelta(minutes=1)
"""How long a secret has to be there before a process stops reading it each time. A failover loses the last notes as
well, and the tasks under a secret that is lost are not found under the next: so it is far longer than a replica lags
behind."""

_SIZE: Final = 32
"""Random bytes of the secret, which is kept as hexadecimal digits."""


class HiddenKeys:
    """Hides the keys of the tasks of one server."""

    def __init__(self, store: Store, namespace: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._namespace = namespace
        self._monotonic = monotonic
        self._secret: bytes | None = None
        self._found_at = 0.0
        """Since when the secret is known to be there."""
        self._read_at = 0.0
        """When it was asked for last."""

    async def hide(self, key: str) -> str:
        """The key as the store keeps it: in every process the same, and it tells nothing of what it was made of.

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
                    # No task was made, whatever became of the note.
                    raise StoreUnavailable(str(exc)) from exc
            if secret != self._secret:
                self._found_at = self._monotonic()
            self._secret, self._read_at = secret, asked_at
        return f"key/{hmac.digest(secret, key.encode('utf-8', 'surrogatepass'), 'sha256').hex()}"

    async def _agreed(self) -> bytes:
        """The secret that all processes have: of many that propose one, the store keeps one."""
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
