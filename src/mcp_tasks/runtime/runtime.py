"""`TaskRuntime`: machine, store and engine put together.

Every change of a task goes through `change`: read, decide with the machine, save if nobody was first, and
otherwise again. What is decided is in `core`; what is kept, in the store; who runs it, in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

import anyio

from mcp_tasks.core.events import Event, InputAnswered, RunReleased, RunStarted, TaskCancelled
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.machine import apply
from mcp_tasks.core.pacing import is_expired
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.engines.base import Engine, Slot
from mcp_tasks.errors import (
    StaleRun,
    StoreError,
    StoreUnavailable,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.runtime.alarms import Alarms
from mcp_tasks.runtime.claims import Claims
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.worker_name import new_worker_name
from mcp_tasks.runtime.janitor import Janitor
from mcp_tasks.runtime.lease import Lease, uptime
from mcp_tasks.runtime.life import State
from mcp_tasks.runtime.lookout import Lookout
from mcp_tasks.runtime.parking import Parking
from mcp_tasks.runtime.policy import Settings, ToolPolicy
from mcp_tasks.runtime.rest import WaitingRoom
from mcp_tasks.runtime.run import Body, Run
from mcp_tasks.stores.base import Hint, Store
from mcp_tasks.stores.hints import HintFan

logger = logging.getLogger(__name__)

MAX_ID_LENGTH = 256
"""Longer than any id of ours; a longer one names no task, and need not be looked up to know that."""

DRAIN_LOOK = 0.05
"""Seconds between two looks for runs that only wait, while the process stops."""


def new_task_id() -> str:
    """An id nobody can guess: 160 bits, where SEP-2663 asks for enough that ids cannot be enumerated."""
    return f"task_{secrets.token_urlsafe(20)}"


class TaskRuntime:
    """Creates, runs, shows and ends tasks.

    Args:
        body: Runs the tool of a record.
        policy: How runs of a tool are treated, by the tool's name; None for a tool that this process does not have.
        describe: An exception as the JSON-RPC error a client sees.
        namespace: Which server this is. Tasks of other servers in the same store are left alone.
        clock: The time as people tell it; it may be set at any moment.
        monotonic: Seconds on a clock that is never set, by which other processes are watched.
        uptime: The same, but going on while the machine sleeps, by which this process's own lease is measured.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        body: Body,
        policy: Callable[[str], Awaitable[ToolPolicy | None]],
        describe: Callable[[Exception], JsonObject],
        clock: Callable[[], datetime],
        namespace: str = "",
        settings: Settings | None = None,
        new_id: Callable[[], str] = new_task_id,
        monotonic: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float] = uptime,
    ) -> None:
        self.store = store
        self.engine = engine
        self.settings = settings or Settings()
        self.policy = policy
        self.namespace = namespace
        self.worker = new_worker_name()
        self.describe = describe
        self.now = clock
        self.monotonic = monotonic
        self.alarms = Alarms(clock)
        self.parking = Parking(current_run, WaitingRoom(self.settings.max_waiting_runs))
        self.janitor = Janitor(self)
        self.claims = Claims(self)
        self.lookout = Lookout(self, lambda: self._runs)
        self.lease = Lease(
            self.settings.lease_duration,
            beat=lambda: store.heartbeat(self.worker, namespace=namespace),
            look=self.lookout.look,
            stop_runs=self._stop_work,
            take_up=self.janitor.take_up,
            clock=uptime,
        )
        self._body = body
        self._new_id = new_id
        self._runs: dict[str, Run] = {}
        self._late: list[tuple[TaskRecord, Sequence[Event], Sequence[JournalEntry]]] = []
        self.changes = HintFan()
        self._services: list[asyncio.Task[None]] = []
        self._abandoned = False
        self._open = False

    async def start(self) -> None:
        """Open the store, begin to run tools, and pick up what an earlier process left.

        Raises:
            StoreError: The store cannot be used; the message says why.
        """
        await self.store.open(self.namespace)
        self._open = True
        try:
            await self.lease.renew()
            await self.engine.start(self.execute)
            await self.janitor.recover_lost()
            await self.janitor.start_waiting()
        except BaseException:
            await self.stop()
            raise
        self._services = [
            asyncio.create_task(service(), name=f"mcp-tasks-{name}")
            for name, service in (
                ("janitor", self.janitor.keep_sweeping),
                ("lease", self.lease.keep),
                ("parking", self.parking.serve),
                ("hints", self.lookout.keep_following_hints),
                ("look", self.lookout.keep_looking),
            )
        ]

    async def stop(self) -> None:
        """Start nothing more, give running tools their time, hand over the rest, and close. Safe twice, and before
        `start`."""
        if not self._open:
            return
        self._open = False
        try:
            await self._drain()
        finally:
            # Reached by the time limit as well as by whoever loses patience and cancels the shutdown.
            with anyio.CancelScope(shield=True):
                await self._hand_over()

    async def abandon(self) -> None:
        """Stop like a process that dies: nothing is handed over, nothing more is written. For tests of recovery."""
        self._abandoned = True
        for service in self._services:
            service.cancel()
        self._services = []
        self._stop_runs()
        await self.engine.stop(self.settings.stop_timeout)
        # What a real death leaves to the lease: here the process goes on, and would seem alive.
        await self.store.retire(self.worker)

    async def create(
        self,
        request: TaskRequest,
        *,
        owner: str | None,
        ttl: timedelta | None,
        poll_interval: timedelta | None = None,
    ) -> TaskRecord:
        """A new task, durable on return. Call `submit` to have it run."""
        record = self._new_record(request, owner=owner, ttl=ttl, poll_interval=poll_interval)
        await self.store.create(record)
        return record

    async def launch(
        self,
        request: TaskRequest,
        *,
        owner: str | None,
        ttl: timedelta | None,
        poll_interval: timedelta | None = None,
        before_start: Callable[[str], None] | None = None,
    ) -> TaskRecord:
        """A new task, durable on return, that runs or is queued.

        If there is room for it right now, it is written as taken by this process, which saves a write. A crash before
        the tool began is then a crash of the run: for a tool that may not run twice there is no telling the two apart.
        """
        record = self._new_record(request, owner=owner, ttl=ttl, poll_interval=poll_interval)
        if before_start is not None:
            before_start(record.id)
        # Without a lease nothing is claimed; what is only queued may be started by whoever has one.
        place = self.engine.reserve() if self.lease.is_valid else None
        if place is None:
            await self.store.create(record)
            await self.submit(record.id)
            return record
        record = apply(record, RunStarted(worker=self.worker), record.created_at)
        try:
            # Shielded: a request that is given up now would leave a task that is ours, and that we do not run.
            with anyio.CancelScope(shield=True):
                await self.store.create(record)
        except BaseException:
            place.give_back()
            raise
        self.claims.add_made(record)
        if not place.start(record.id):
            # The server stops. It never began, so the next process may simply start it.
            self.claims.forget_made(record.id)
            record = await self.change(record, RunReleased(attempt=record.attempt))
        return record

    def _new_record(
        self, request: TaskRequest, *, owner: str | None, ttl: timedelta | None, poll_interval: timedelta | None
    ) -> TaskRecord:
        now = self.now()
        return TaskRecord(
            id=self._new_id(),
            owner=owner,
            request=request,
            created_at=now,
            updated_at=now,
            ttl=ttl,
            poll_interval=poll_interval,
            namespace=self.namespace,
        )

    async def submit(self, task_id: str, *, again: bool = False) -> None:
        """Have the task run, here or elsewhere, when there is room. `again` for one that is not new."""
        await self.engine.submit(task_id, again=again)

    async def get(self, task_id: str, *, owner: str | None) -> TaskRecord:
        """The task as it is now, for its owner.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        try:
            record = await self.store.get(task_id) if len(task_id) <= MAX_ID_LENGTH else None
        except TaskUnreadable as exc:
            self.janitor.note_trouble(task_id, exc)
            if exc.owner == owner:
                raise
            raise UnknownTask(task_id) from exc
        if record is None or record.owner != owner or record.namespace != self.namespace:
            raise UnknownTask(task_id)
        if is_expired(record, self.now()):
            raise UnknownTask(task_id)
        return record

    async def answer(
        self,
        record: TaskRecord,
        responses: Mapping[str, JsonValue],
        *,
        check: Callable[[TaskRecord], None] | None = None,
    ) -> TaskRecord:
        """Write down the answers to open questions; other keys are ignored. Wakes the run that asked.

        `check` sees the record that the answers are written against, each time it is read again, and may refuse.
        """
        event = InputAnswered(keys=frozenset(responses))
        while True:
            if check is not None:
                check(record)
            entries = [
                JournalEntry(kind="answer", key=key, value=responses[key])
                for key in sorted(record.inputs.answerable(event.keys, self.now()))
            ]
            try:
                changed = await self.swap(record, event, entries=entries)
            except VersionConflict:
                record = await self._reload(record.id)
                continue
            if changed.is_queued(self.now()):
                await self.submit(changed.id, again=True)
            return changed

    async def cancel(self, record: TaskRecord, reason: str) -> TaskRecord:
        """End the task as cancelled, and stop its run. A finished task stays as it is."""
        return await self.change(record, TaskCancelled(reason=reason))

    async def discard(self, record: TaskRecord) -> None:
        """Forget a finished task that nobody was told of."""
        try:
            await self.store.delete(record.id, expected=record.version)
        except StoreError as exc:
            # It will expire like any other.
            logger.debug("task %s is not removed yet: %s", record.id, exc)

    def has(self, task_id: str) -> bool:
        """Whether the task runs here, or is about to."""
        return task_id in self._runs or self.claims.has_made(task_id)

    def at_work(self) -> dict[str, str]:
        """The tasks that are at work here and do more than wait, with the names of their tools."""
        return {task_id: run.record.request.name for task_id, run in self._runs.items() if not run.only_waits}

    async def wait_until(
        self, task_id: str, condition: Callable[[TaskRecord], bool], timeout: timedelta
    ) -> TaskRecord | None:
        """The task once `condition` holds for it, or None if it does not within `timeout` (or the task is gone)."""
        with self.changes.listen([task_id]) as hints, anyio.move_on_after(timeout.total_seconds()):
            record = await self.store.get(task_id)
            while record is not None and not condition(record):
                with anyio.move_on_after(self.settings.look_interval.total_seconds()):
                    # A hint may be lost; the store is the truth.
                    await anext(hints)
                record = await self.store.get(task_id)
            return record
        return None

    async def change(self, record: TaskRecord, *events: Event, entries: Sequence[JournalEntry] = ()) -> TaskRecord:
        """Apply events to the task, starting from `record` and trying again when somebody else was first.

        Raises:
            TransitionRefused: The events do not fit the task as it is by now.
            UnknownTask: The task is gone.
        """
        while True:
            try:
                return await self.swap(record, *events, entries=entries)
            except VersionConflict:
                record = await self._reload(record.id)

    def write_later(self, record: TaskRecord, events: Sequence[Event], entries: Sequence[JournalEntry]) -> None:
        """Write this when the lease is renewed, if the task is still ours then."""
        if not self.lease.is_valid:
            self._late.append((record, events, entries))

    async def write_late(self) -> None:
        """Write what could not be written when its run was stopped."""
        while self._late:
            record, events, entries = self._late.pop()
            try:
                await self.change(record, *events, entries=entries)
            except (TransitionRefused, UnknownTask):
                logger.debug("task %s… was claimed by another worker", record.id[:12])

    async def journal(self, task_id: str) -> Sequence[JournalEntry]:
        """The task's journal."""
        return await self.store.journal(task_id)

    async def execute(self, task_id: str, slot: Slot) -> None:
        """Run the task if it is there to be run. What an engine calls; it raises nothing."""
        try:
            run = await self.claims.claim(task_id, slot)
            if run is None:
                return
            self._runs[task_id] = run
            try:
                # Lost while the task was being claimed: it is given up with the others, and its tool never began.
                if self.lease.is_valid:
                    await run.execute(self._body)
            finally:
                del self._runs[task_id]
                self.claims.end(task_id)
        except StoreUnavailable as exc:
            # The record is as it was, or says who has it; the janitor will come by.
            logger.warning("task %s… could not be run now: %s", task_id[:12], exc)
        except Exception as exc:
            self.janitor.note_trouble(task_id, exc)

    async def swap(self, record: TaskRecord, *events: Event, entries: Sequence[JournalEntry] = ()) -> TaskRecord:
        """Apply events to the task as it was at `record`, once.

        Raises:
            VersionConflict: The task is not at that version any more.
            TransitionRefused: The events do not fit it.
        """
        if self._abandoned:
            raise StaleRun(record.id, record.status, type(events[0]).__name__, "its process is gone")
        now = self.now()
        changed = record
        for event in events:
            changed = apply(changed, event, now)
        if changed is not record:
            await self.store.save(changed, expected=record.version, entries=entries)
            await self._announce(changed)
        return changed

    async def _reload(self, task_id: str) -> TaskRecord:
        record = await self.store.get(task_id)
        if record is None:
            raise UnknownTask(task_id)
        return record

    async def _announce(self, record: TaskRecord) -> None:
        run = self._runs.get(record.id)
        if run is not None:
            run.reconcile(record)
        self.claims.saw(record)
        hint = Hint(record.id, record.version)
        self.changes.put(hint)
        await self.store.notifier().publish(hint, origin=self)

    def _stop_runs(self) -> None:
        for run in list(self._runs.values()):
            run.stop()

    def _stop_work(self) -> None:
        """Stop every tool that is at work. One that has returned does nothing that could be done twice; its outcome is
        written if the task is still ours then."""
        for run in list(self._runs.values()):
            if run.life.state is not State.RETURNED:
                run.stop()

    async def _drain(self) -> None:
        """Give running tools their time. What a run that only waits is waiting for may take days: it is let go at once,
        and so is one that comes to such a wait meanwhile."""
        draining = asyncio.create_task(self.engine.drain(self.settings.drain_timeout))
        try:
            while not draining.done():
                await self.parking.park_all()
                await self._hand_over_waiting()
                await asyncio.wait({draining}, timeout=DRAIN_LOOK)
            await draining
        finally:
            draining.cancel()

    async def _hand_over(self) -> None:
        for service in self._services:
            service.cancel()
        self._services = []
        for run in list(self._runs.values()):
            await self._interrupt(run)
        try:
            await self.engine.stop(self.settings.stop_timeout)
            await self.store.retire(self.worker)
        except StoreError as exc:
            logger.warning("could not sign off from the store: %s", exc)
        finally:
            await self.store.close()

    async def _hand_over_waiting(self) -> None:
        """Give up runs of which nothing can go on but by an answer or a timer."""
        for run in list(self._runs.values()):
            if run.only_waits:
                await self._interrupt(run)

    async def _interrupt(self, run: Run) -> None:
        try:
            await run.interrupt()
        except StoreError as exc:
            # Its lease runs out, and the next process finds it.
            logger.warning("task %s could not be handed over: %s", run.record.id, exc)
