"""`TaskRuntime`: creates, runs, shows and ends the tasks of one process. The packages above call it.

Every change of a task goes through `changes.py`. `model` decides, the store keeps, and the engine runs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from types import CoroutineType
from typing import Any, Final

import anyio

from mcp_tasks._utils import short_id
from mcp_tasks.engines.base import Engine, ReservedSlot, ReservesSlots, Slot
from mcp_tasks.errors import (
    AnswerRefused,
    KeyRefused,
    LimitExceeded,
    OwnerRequired,
    StoreError,
    StoreUnavailable,
    TaskUnreadable,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.model.json import JsonObject, JsonValue, rough_size
from mcp_tasks.model.limits import Limits, is_expired
from mcp_tasks.model.machine import InputAnswered, InputHosted, RunReleased, RunStarted, TaskAnnounced, TaskCancelled
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import Actor, JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import run as progress
from mcp_tasks.runtime.changes import Changes, LateWrites
from mcp_tasks.runtime.child_process import has_children, kill_children
from mcp_tasks.runtime.claims import Claims
from mcp_tasks.runtime.context import current_runtime
from mcp_tasks.runtime.dispatch import ChangeListener, Dispatch
from mcp_tasks.runtime.launch import HiddenKeys, LaunchSpec, Quota, new_task_id
from mcp_tasks.runtime.lease import (
    HEARTBEATS_PER_LEASE,
    Lease,
    LeaseTimes,
    abandon,
    draining_workers,
    new_worker_name,
    uptime,
)
from mcp_tasks.runtime.observers import Narration, Observer, Observers, Tracing, Troubles
from mcp_tasks.runtime.patience import patient, until_available
from mcp_tasks.runtime.policy import Settings
from mcp_tasks.runtime.run import Body, Run
from mcp_tasks.runtime.store_clock import StoreClock
from mcp_tasks.runtime.suspend import Alarms, State, Suspender, to_the_end
from mcp_tasks.runtime.sweeps import Janitor
from mcp_tasks.stores.base import HintFan, Page, Store, Whose, full_page
from mcp_tasks.stores.codec import new_write_id

logger: Final = get_logger(__name__)

MAX_ID_LENGTH = 256
"""Longer than any id of ours; a longer one names no task, and is not looked up."""

FIRST_LOOK = 0.2
"""Seconds that the store has for the first look at a task that is followed, also if there is no time left."""

READ_AGAIN = 0.2
"""Seconds until a followed task is read again after the store could not answer."""

DRAIN_LOOK = 0.05
"""Seconds between two looks for runs that only wait, while the process stops."""

KILL_LIMIT = 1.0
"""Seconds that a shutdown waits for the kernel to end child processes that were killed."""


async def _no_tools() -> Mapping[str, TaskOptions]:
    return {}


class TaskRuntime:
    """Creates, runs, shows and ends tasks.

    Args:
        body: Runs the tool of a request.
        policy: How runs of a tool are treated, by method and name; None for a tool that this process does not have.
        describe: An exception as the JSON-RPC error a client sees.
        clock: The time of tasks, in place of the store's. For tests: processes that share a store have to agree on it.
        namespace: Which server this is. Tasks of other servers in the same store are left alone.
        limits: How much callers may take.
        requires_owner: Whether each task must have an owner.
        runs_tools: Whether tools run in this process. One that only serves creates, answers and cancels tasks and
            sweeps like any other, but claims none, so it needs no lease.
        queues: The queues whose tasks are run in this process; None for all.
        tools: The tools that this process has, as far as they can be listed: what it tells an engine that it can run.
        observers: Told of everything that happens to tasks through this process, in a thread of their own.
        tracing: Makes traces of it.
        monotonic: Seconds on a clock that is never set, by which other processes are watched.
        uptime: The same, but going on while the machine sleeps, by which this process's own lease is measured.

    Attributes:
        hints: Notifies listeners of this process of changes.
        submit: Has a queued task run, here or elsewhere, when there is room.
        submit_later: Has a suspended task run when its time comes, if the engine can wait; sweeps find it anyway.
        is_draining: Whether an operator wants this process to take nothing more.
        draining_since: When `begin_drain` was called, on the clock of the event loop.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        body: Body,
        policy: Callable[[str, str], Awaitable[TaskOptions | None]],
        describe: Callable[[Exception], JsonObject],
        clock: Callable[[], datetime] | None = None,
        namespace: str = "",
        settings: Settings | None = None,
        limits: Limits | None = None,
        requires_owner: bool = False,
        runs_tools: bool = True,
        queues: Collection[str] | None = None,
        tools: Callable[[], Awaitable[Mapping[str, TaskOptions]]] = _no_tools,
        observers: Sequence[Observer] = (),
        tracing: Tracing | None = None,
        new_id: Callable[[], str] = new_task_id,
        monotonic: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float] = uptime,
    ) -> None:
        self.store: Store = patient(store)
        self.engine = engine
        self.settings: Settings = settings or Settings()
        self.limits: Limits = limits or Limits()
        self.requires_owner = requires_owner
        self.sweep_interval: timedelta = self.settings.sweeps_every(remote=engine.abilities.remote)
        self.lease_times: LeaseTimes = LeaseTimes.of(self.settings.lease_duration, self.sweep_interval)
        self.policy = policy
        self.namespace = namespace
        self.runs_tools = runs_tools
        self.queues: frozenset[str] | None = None if queues is None else frozenset(queues)
        self.tools = tools
        self.worker: str = new_worker_name()
        self.describe = describe
        store_clock = StoreClock(store, uptime=uptime)
        self._store_clock = store_clock if clock is None else None
        self.now: Callable[[], datetime] = clock or store_clock.now
        self.monotonic = monotonic
        self.tracing = tracing
        self.observers: Observers = Observers((Narration(), *observers))
        self.troubles: Troubles = Troubles()
        self.hidden_keys: HiddenKeys = HiddenKeys(self.store, namespace, monotonic=monotonic)
        self.quota: Quota = Quota(self.limits, partial(self.store.usage, namespace), monotonic)
        self.changes: Changes = Changes(
            self.store, clock=self.now, observers=self.observers, origin=self, saw=self._saw, grew=self.quota.grew
        )
        self.hints: HintFan = self.changes.hints
        self.late_writes: LateWrites = LateWrites(self.changes)
        self.alarms: Alarms = Alarms(self.now)
        self.suspender: Suspender = Suspender(self.settings.max_waiting_runs)
        self.progress_turns: asyncio.Semaphore = asyncio.Semaphore(progress.AT_ONCE)
        self.dispatch: Dispatch = Dispatch(self)
        self.submit: Callable[[TaskRecord], Coroutine[Any, Any, None]] = self.dispatch.again
        self.submit_later: Callable[[TaskRecord], Coroutine[Any, Any, None]] = self.dispatch.after
        self.janitor: Janitor = Janitor(self)
        self.claims: Claims = Claims(self)
        self.listener: ChangeListener = ChangeListener(self)
        self.lease: Lease = Lease(
            self.lease_times,
            heartbeat=lambda beats: self.store.heartbeat(self.worker, namespace=namespace, beats=beats),
            look=self.listener.look,
            stop_runs=self._stop_runs,
            kill_children=lambda: kill_children(self),
            take_up=self.janitor.recovery.take_up,
            clock=uptime,
        )
        self.is_draining: bool = False
        self.draining_since: float | None = None
        self._slots = engine if isinstance(engine, ReservesSlots) else None
        self._new_id = new_id
        self._body = body
        self._runs: dict[str, Run] = {}
        self._services: list[asyncio.Task[None]] = []
        self._keeping_lease: asyncio.Task[None] | None = None
        self._open = False

    # Start and stop

    async def open(self) -> None:
        """Open the store, and learn its time.

        Raises:
            StoreError: The store cannot be used; the message says why.
        """
        await self.store.open()
        if self._store_clock is not None:
            try:
                await self._store_clock.measure()
            except BaseException:
                await self.store.close()
                raise

    async def start(self) -> None:
        """Open the store, begin to run tools, and pick up what an earlier process left."""
        await self.open()
        self._open, self.draining_since, self.claims.closed = True, None, False
        try:
            if self.runs_tools:
                await self.lease.renew()
                # Before anything runs: the rest of the start may take longer than a lease.
                self._keeping_lease = asyncio.create_task(self.lease.keep(), name="mcp-tasks-lease")
            serves = await self.dispatch.served()
            await self.engine.start(self.execute if self.runs_tools else None, serves)
            await self.janitor.begin()
        except BaseException:
            await self.stop()
            raise
        services = {
            "janitor": self.janitor.keep_sweeping,
            "hints": self.listener.keep_listening,
            "look": self.listener.keep_looking,
            "dispatch": self.dispatch.keep_dispatching,
        }
        if self._store_clock is not None:
            services["clock"] = self._store_clock.keep_measuring
        if self.runs_tools:
            services |= {"suspender": self.suspender.serve, "draining": self._keep_looking_for_drain}
        self._services = [
            asyncio.create_task(service(), name=f"mcp-tasks-{name}") for name, service in services.items()
        ]

    async def begin_drain(self) -> None:
        """Start nothing more here. The time that running tools have until `stop` gives them up begins now."""
        if self.draining_since is None:
            self.draining_since = asyncio.get_running_loop().time()
            await self.engine.drain(timedelta(0))

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Start nothing more, give running tools their time, hand over the rest, and close. Safe twice, and before
        `start`. Once there is a `hurry`, their time is up."""
        if not self._open:
            return
        self._open = False
        try:
            await self._drain(hurry)
        finally:
            # Reached by the time limit, and when the shutdown is cancelled.
            with anyio.CancelScope(shield=True):
                self._stop_services()
                await self._hand_over()
                await self.observers.stop(self.settings.stop_timeout)

    async def abandon(self) -> None:
        """Stop like a process that dies: nothing is handed over, nothing more is written. For tests of recovery."""
        self.changes.end()
        self.observers.abandon()
        self._stop_services()
        self._stop_keeping_lease()
        for run in self.runs():
            run.stop()
        await self.engine.stop(self.settings.stop_timeout)
        # What a real death leaves to the lease: here the process goes on, and would seem alive.
        abandon(self.worker)
        await self.store.retire(self.worker)

    async def _drain(self, hurry: asyncio.Event | None) -> None:
        """Give running tools their time, or what is left of it until there is a `hurry`. A wait may take days: a run
        that only waits is suspended at once, and so is one that begins to wait meanwhile."""
        loop, limit = asyncio.get_running_loop(), self.settings.drains_for
        if self.draining_since is not None:
            limit = max(timedelta(0), limit - timedelta(seconds=loop.time() - self.draining_since))
        draining = asyncio.create_task(self.engine.drain(limit))
        try:
            while not (draining.done() or (hurry is not None and hurry.is_set())):
                await self.suspender.suspend_all()
                for run in self.runs():
                    if run.may_leave:
                        await _interrupt(run)
                await asyncio.wait({draining}, timeout=DRAIN_LOOK)
            if draining.done():
                await draining
        finally:
            draining.cancel()

    async def _hand_over(self) -> None:
        """Give up every run that is left, and sign off. Nothing is claimed by this process from here on.

        The lease is kept meanwhile: a store that is slow may take longer than that to be told of every run.
        """
        try:
            # First: a claim that succeeds from here on would begin a tool that nothing stops.
            await self.claims.give_up()
            # Also those that end while the children of others do.
            runs = self.runs()
            # Once a run is given up, another process may begin it again: its child processes end before that.
            self._stop_parents()
            await self._childless(self.settings.stop_timeout.total_seconds() / 2)
            # Some may have started one meanwhile. A tool must not take the end of a child that we kill for an outcome.
            self._stop_parents()
            kill_children(self)
            # The kernel takes a moment.
            await self._childless(KILL_LIMIT)
            for run in runs:
                await _interrupt(run)
            await self.engine.stop(self.settings.stop_timeout)
            if self.claims.unconfirmed():
                await self.janitor.recovery.take_up()
            self._stop_keeping_lease()
            await self.store.retire(self.worker)
        except StoreError as exc:
            logger.warning("could not sign off from the store: %s", exc)
        finally:
            self._stop_keeping_lease()
            kill_children(self)
            await self.store.close()

    def _stop_parents(self) -> None:
        for run in self.runs():
            if has_children(run) and run.state is not State.RETURNED:
                run.stop()

    async def _childless(self, limit: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        while has_children(self) and loop.time() < until:  # noqa: ASYNC110 - nothing tells when the last has ended
            await asyncio.sleep(DRAIN_LOOK)

    def _stop_keeping_lease(self) -> None:
        if self._keeping_lease is not None:
            self._keeping_lease.cancel()
            self._keeping_lease = None

    def _stop_services(self) -> None:
        for service in self._services:
            service.cancel()
        self._services = []

    async def _keep_looking_for_drain(self) -> None:
        pause = self.settings.lease_duration.total_seconds() / HEARTBEATS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            try:
                await self._look_for_drain()
            except StoreError as exc:
                logger.debug("whether this worker is to drain could not be looked up: %s", exc)
            except Exception:
                logger.error("whether this worker is to drain could not be looked up", exc_info=quietly())

    async def _look_for_drain(self) -> None:
        by = (await draining_workers(self.store, self.namespace)).get(self.worker)
        if by is not None:
            if not self.is_draining:
                self.is_draining = True
                logger.warning(
                    "this worker drains, as %s asked: it takes nothing more (tasks at work: %d)", by, len(self._runs)
                )
                await self.engine.drain(timedelta(0))
            # A run that only waits, and may be started elsewhere, need not wait here.
            await self.suspender.suspend_all()
        elif self.is_draining:
            logger.warning("this worker takes tasks again")
            self.is_draining = False
            await self.engine.start(self.execute, await self.dispatch.served())
            await self.janitor.start_waiting()

    # Creating tasks

    async def launch(self, spec: LaunchSpec) -> TaskRecord:
        """A new task, durable on return, that runs or is queued; or the one under its idempotency key.

        If there is room for it right now, it is written as claimed by this process, which saves a write. A crash before
        the tool began is then a crash of the run: for a tool that may not run twice there is no telling the two apart.

        Raises:
            OwnerRequired: The task has no owner, on a server where every task must have one.
            LimitExceeded: There are as many tasks as may be. Nothing was written, and nothing started.
            KeyRefused: The idempotency key cannot be used for this call.
        """
        request, owner = spec.request, spec.owner
        if not owner and self.requires_owner:
            raise OwnerRequired(f"a task of {request.name!r} has to have an owner on this server, and none is named")
        key = None if spec.key is None else await self.hidden_keys.hide(spec.key)
        try:
            admission = await until_available(lambda: self.quota.admit(owner, inside=spec.parent is not None))
        except LimitExceeded:
            # A call that comes for an existing task creates none, however many there are.
            standing = None if key is None else await self._standing(key, spec)
            if standing is None:
                raise
            return standing
        try:
            task_id = spec.task_id or self._new_id()
            created = await self._create(task_id, spec, key)
            if created.id == task_id:
                admission.made = True
                self.quota.grew(owner, rough_size(request.arguments))
        finally:
            admission.leave()
        if self.tracing is not None and spec.parent is None:
            # In a tool that starts a child, the current span is that of its own run.
            self.tracing.touched(created)
        return created

    async def _create(self, task_id: str, spec: LaunchSpec, key: str | None) -> TaskRecord:
        request, now, policy = spec.request, self.now(), spec.policy
        if policy is None:
            # If it cannot be looked up, the task is queued. The process that claims it says what is wrong.
            with suppress(Exception):
                policy = await self.policy(request.method, request.name) or TaskOptions()
        treated, slot = policy or TaskOptions(), None
        trace = None if self.tracing is None else self.tracing.trace_of(request)
        # Without a lease nothing is claimed; another process may start what is only queued. Where there is a
        # concurrency limit, a claim of its own keeps it.
        may_claim = self.runs_tools and self.lease.is_valid and self.serves(treated.queue)
        if policy is not None and self._slots is not None and may_claim and self.dispatch.limits(policy) is None:
            slot = self._slots.reserve(spec.owner)
        record = TaskRecord(
            id=task_id,
            owner=spec.owner,
            method=request.method,
            name=request.name,
            created_at=now,
            updated_at=now,
            retention=spec.retention,
            poll_interval=treated.poll_interval,
            announced=spec.announced,
            session=spec.session,
            parent=spec.parent,
            queue=treated.queue,
            priority=treated.priority,
            trace=trace,
            fingerprint=spec.fingerprint,
            namespace=self.namespace,
            writes=(new_write_id(run=slot is not None),),
        )
        actor = Actor("client", spec.owner)
        create = partial(self.changes.create, record, request, actor=actor, key=key, key_until_end=spec.key_until_end)
        if slot is not None:
            return await self._create_claimed(slot, record, request, treated, create)
        handing = self.dispatch.handing(record)
        created = await until_available(lambda: create(handing=handing))
        if created.id == record.id:
            await self.dispatch.created(created, handing)
        return created

    async def _create_claimed(
        self,
        slot: ReservedSlot,
        record: TaskRecord,
        request: TaskRequest,
        policy: TaskOptions,
        create: partial[CoroutineType[Any, Any, TaskRecord]],
    ) -> TaskRecord:
        started = RunStarted(worker=self.worker, tool_version=policy.version)
        created, cancelled, is_unconfirmed = record, None, False

        async def make() -> None:
            nonlocal created, cancelled, is_unconfirmed
            # To its end, also if the caller is cancelled: otherwise there may be a task that is ours and does not run.
            making, cancelled = await to_the_end(create(started))
            try:
                created = making.result()
            except StoreUnavailable as exc:
                is_unconfirmed = is_unconfirmed or exc.may_have_happened
                if cancelled is not None:
                    raise cancelled from None
                raise

        self.claims.claiming.add(record.id)
        try:
            await until_available(make)
        except BaseException:
            slot.release()
            if is_unconfirmed:
                self.claims.add_unconfirmed(record.id, record.writes[0])
            raise
        finally:
            self.claims.claiming.discard(record.id)
        if created.id != record.id or (created.worker, created.attempt) != (self.worker, 1):
            slot.release()
        else:
            self.claims.made[created.id] = created, request, policy
            if not slot.start(created.id):
                # The server stops. The tool never began, so the next process may simply start it.
                self.claims.made.pop(created.id, None)
                released = RunReleased(attempt=created.attempt, begun=False)
                # If the store is not available, the caller still gets the task: it was created.
                with suppress(StoreUnavailable):
                    created = await self.changes.change(created, released, actor=Actor("worker", self.worker))
        if cancelled is not None:
            raise cancelled
        return created

    async def _standing(self, key: str, spec: LaunchSpec) -> TaskRecord | None:
        task_id = await self.store.id_under(key, namespace=self.namespace, owner=spec.owner)
        found = None if task_id is None else await self.store.get(task_id)
        if found is None or is_expired(found, self.now()) or (spec.key_until_end and found.is_final):
            return None
        if found.fingerprint != spec.fingerprint:
            raise KeyRefused("key_taken")
        return found

    # Reading tasks

    async def get(self, task_id: str, *, owner: str | None) -> TaskRecord:
        """The task as it is now, for its owner.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        if len(task_id) > MAX_ID_LENGTH:
            raise UnknownTask(task_id)
        try:
            # The owner is compared before any of the task is read or decoded: others would notice by the time that
            # there is such a task.
            record = await self.store.get_owned(task_id, owner)
        except TaskUnreadable as exc:
            self.troubles.note(task_id, exc)
            raise
        return self._visible(task_id, record, owner, self.now())

    async def find(self, task_id: str) -> TaskRecord:
        """The task as it is now, of any owner: for code of the server's own, never for a client.

        Raises:
            UnknownTask: This server has no such task.
            TaskUnreadable: It has, and its row cannot be read.
        """
        try:
            record = await self.store.get(task_id) if len(task_id) <= MAX_ID_LENGTH else None
        except TaskUnreadable as exc:
            self.troubles.note(task_id, exc)
            raise
        return self._visible(task_id, record, None if record is None else record.owner, self.now())

    async def get_with_outcome(self, task_id: str, *, owner: str | None) -> tuple[TaskRecord, Outcome | None]:
        """The task as it is now, for its owner, and its outcome where the store has that at hand. Where it does not,
        the store has to be asked for it.
        """
        if len(task_id) > MAX_ID_LENGTH:
            raise UnknownTask(task_id)
        try:
            record, outcome = await self.store.get_with_outcome(task_id, owner) or (None, None)
        except TaskUnreadable:
            # Only one of the two may be unreadable.
            return await self.get(task_id, owner=owner), None
        return self._visible(task_id, record, owner, self.now()), outcome

    async def is_current(self, record: TaskRecord, *, owner: str | None, now: datetime) -> bool:
        """Whether a task that was read before is unchanged. Only its version is read."""
        version = (await self.store.versions((record.id,))).get(record.id)
        if version is not None and version != record.version:
            return False
        self._visible(record.id, None if version is None else record, owner, now)
        return True

    def _visible(self, task_id: str, record: TaskRecord | None, owner: str | None, now: datetime) -> TaskRecord:
        if record is None or record.owner != owner or record.namespace != self.namespace or is_expired(record, now):
            raise UnknownTask(task_id)
        return record

    async def list(
        self,
        whose: Whose,
        *,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        """Tasks of this server in the order of creation, or the newest first. A short page is the last, unless it took
        very long.
        """
        return await full_page(
            self.store,
            self.namespace,
            whose,
            now=self.now(),
            status=status,
            cursor=cursor,
            limit=limit,
            newest_first=newest_first,
        )

    async def follow(
        self,
        task_id: str,
        until: Callable[[TaskRecord], bool],
        *,
        timeout: timedelta | None = None,
        see: Callable[[TaskRecord], Awaitable[None]] | None = None,
        patient: bool = False,
    ) -> TaskRecord | None:
        """The task once `until` holds for it; None if it does not within `timeout`.

        It is read now, and again whenever it may have changed.

        Args:
            see: Called with each state that is read.
            patient: Whether to ask the store again when it cannot answer.

        Raises:
            UnknownTask: The task is gone.
            TaskUnreadable: Its row cannot be read.
            StoreError: The store cannot answer, unless `patient`.
        """
        ends = math.inf if timeout is None else anyio.current_time() + timeout.total_seconds()
        # Even without any time left, the first look has a moment.
        first_look_ends = max(ends, anyio.current_time() + FIRST_LOOK)
        with self.hints.listen([task_id]) as hints, anyio.CancelScope(deadline=first_look_ends) as scope:
            while True:
                pause = self.settings.look_interval.total_seconds()
                try:
                    record = await self.store.get(task_id)
                except TaskUnreadable:
                    raise
                except StoreError as exc:
                    if not patient:
                        raise
                    logger.debug("task %s cannot be read now: %s", short_id(task_id), exc)
                    # Notifications do not arrive while the store is unavailable.
                    pause = min(pause, READ_AGAIN)
                else:
                    if record is None:
                        raise UnknownTask(task_id)
                    if see is not None:
                        await see(record)
                    if until(record):
                        return record
                scope.deadline = ends
                # A notification may be lost; the store is the truth.
                with anyio.move_on_after(pause):
                    await anext(hints)
        return None

    # Changing tasks

    async def announce(self, record: TaskRecord) -> TaskRecord:
        """Make sure that the tool does not answer on the original call any more, which is about to be answered.

        If the returned task has ended and is not announced, the tool was first, and the call is answered with its
        outcome.

        Raises:
            UnknownTask: The task is gone.
        """
        return await self.changes.change(record, TaskAnnounced(), actor=Actor("client", record.owner))

    async def answer(
        self,
        record: TaskRecord,
        responses: Mapping[str, JsonValue],
        *,
        actor: Actor,
        check: Callable[[TaskRecord], None] | None = None,
    ) -> TaskRecord:
        """Record the answers to open questions; other keys are ignored. Resumes the run that asked.

        `check` sees the record that the answers are written against, each time it is read again, and may refuse.
        """
        outstanding = record.inputs.outstanding
        entries = {
            key: JournalEntry(kind="answer", key=key, value=responses[key]) for key in outstanding if key in responses
        }
        return await self._take(record, entries, actor, check)

    async def refuse(self, record: TaskRecord, key: str, refused: AnswerRefused, *, actor: Actor) -> TaskRecord:
        """Record that an open question was answered with an error, for the tool. Resumes the run that asked."""
        error = {"code": refused.code, "message": refused.message, "data": refused.data}
        return await self._take(record, {key: JournalEntry(kind="refusal", key=key, value=error)}, actor)

    async def host(self, record: TaskRecord, key: str, client_task: str, *, actor: Actor) -> TaskRecord:
        """Record that the client holds an open question as a task of its own."""
        return await self.changes.change(record, InputHosted(key=key, task_id=client_task), actor=actor)

    async def _take(
        self,
        record: TaskRecord,
        answers: Mapping[str, JournalEntry],
        actor: Actor,
        check: Callable[[TaskRecord], None] | None = None,
    ) -> TaskRecord:
        event = InputAnswered(keys=frozenset(answers))
        while True:
            if check is not None:
                check(record)
            entries = [answers[key] for key in sorted(record.inputs.answerable(event.keys, self.now()))]
            try:
                changed = await self.changes.swap(record, event, actor=actor, entries=entries)
            except VersionConflict:
                record = await self.changes.reload(record.id)
                continue
            if changed.is_queued(self.now()):
                await self.submit(changed)
            return changed

    async def cancel(self, record: TaskRecord, reason: str, *, actor: Actor) -> TaskRecord:
        """End the task as cancelled, and stop its run. A finished task stays as it is."""
        return await self.changes.change(record, TaskCancelled(reason=reason), actor=actor)

    async def discard(self, record: TaskRecord) -> None:
        """Delete a finished task of which no caller knows."""
        try:
            await self.changes.delete(record.id, expected=record.version, actor=Actor("client", record.owner))
        except StoreError as exc:
            # It will expire like any other.
            logger.debug("task %s is not deleted yet: %s", short_id(record.id), exc)

    # Runs

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    async def execute(self, task_id: str, slot: Slot) -> None:
        """Run the task if it can be run. Called by the engine; it raises nothing."""
        try:
            run = await self.claims.claim(task_id, slot)
            slot.claimed()
            if run is None:
                return
            self._runs[task_id] = run
            current_runtime.set(self)
            try:
                with nullcontext() if self.tracing is None else self.tracing.around(run):
                    await run.execute(self._body)
            finally:
                del self._runs[task_id]
                self.claims.end(task_id)
                self.made_room(run.policy)
                # Also when the run ends with a cancellation of its own.
                if run.lost_lease:
                    await self.janitor.recovery.ended_late(task_id)
        except StoreUnavailable as exc:
            # The record is as it was, or says which process has it; a sweep finds it.
            logger.debug("task %s could not be run now: %s", short_id(task_id), exc)
        except Exception as exc:
            self.troubles.note(task_id, exc)

    def made_room(self, policy: TaskOptions) -> None:
        """A run of the tool has ended, or waits: where there is a limit, there is room for another now."""
        self.claims.made_room()
        if self.dispatch.limits(policy) is not None:
            self.dispatch.look()

    def runs(self) -> Sequence[Run]:
        return [*self._runs.values()]

    def run_of(self, task_id: str) -> Run | None:
        return self._runs.get(task_id)

    def has(self, task_id: str) -> bool:
        """Whether the task runs here, or is about to."""
        return task_id in self._runs or self.claims.is_beginning(task_id)

    def at_work(self) -> dict[str, str]:
        """The tasks that run here and do more than wait, with the names of their tools."""
        return {run.record.id: run.record.name for run in self.runs() if not run.only_waits}

    def _saw(self, record: TaskRecord) -> None:
        if (run := self._runs.get(record.id)) is not None:
            run.reconcile(record)
        self.claims.saw(record)

    def _stop_runs(self) -> None:
        """Stop all runs. One whose tool has returned does nothing that could be done twice; its outcome is written if
        the task still belongs to this process then."""
        for run in self.runs():
            if run.state is not State.RETURNED:
                run.lose_lease()


async def _interrupt(run: Run) -> None:
    try:
        await run.interrupt()
    except StoreError as exc:
        # Its lease runs out, and the next process finds it.
        logger.warning("task %s could not be handed over: %s", short_id(run.record.id), exc)
