"""`TaskRuntime`: machine, store and engine put together.

Every change of a task goes through `changes.py`; what is decided is in `core`, what is kept in the store, who runs it
in the engine. This is what the rooms above call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio

from mcp_tasks._utils import short_id
from mcp_tasks.engines.base import Engine, Slot
from mcp_tasks.errors import (
    AnswerRefused,
    StoreError,
    StoreUnavailable,
    TaskUnreadable,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.model.json import JsonObject, JsonValue
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.machine import InputAnswered, InputHosted, TaskAnnounced, TaskCancelled
from mcp_tasks.model.record import Actor, JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import run as progress
from mcp_tasks.runtime.changes import Changes, LateWrites, Reading
from mcp_tasks.runtime.child_process import has_children, kill_children
from mcp_tasks.runtime.claims import Claims
from mcp_tasks.runtime.context import current_run, current_runtime
from mcp_tasks.runtime.dispatch import Dispatch, Lookout
from mcp_tasks.runtime.launch import HiddenKeys, Launching, LaunchSpec, Quota, new_task_id
from mcp_tasks.runtime.lease import Draining, Lease, LeaseTimes, abandon, new_worker_name, uptime
from mcp_tasks.runtime.observers import Narration, Observer, Observers, Tracing
from mcp_tasks.runtime.patience import patient
from mcp_tasks.runtime.policy import Settings, ToolPolicy
from mcp_tasks.runtime.run import Body, Run
from mcp_tasks.runtime.store_clock import StoreClock
from mcp_tasks.runtime.suspend import Alarms, Parking, State, WaitingRoom
from mcp_tasks.runtime.sweeps import Janitor
from mcp_tasks.stores.base import HintFan, Page, Store, Whose, full_page

# ---- shutdown
# How a process stops: it starts nothing more, gives running tools their time, and hands over the rest.


logger: Final = get_logger(__name__)

DRAIN_LOOK = 0.05
"""Seconds between two looks for runs that only wait, while the process stops."""


FIRST_LOOK = 0.2
"""Seconds that the store has for the first look at a task that is followed, also if there is no time left."""

READ_AGAIN = 0.2
"""Seconds until a followed task is read again after the store could not answer."""

KILL_LIMIT = 1.0
"""Seconds that a shutdown waits for the kernel to end what was killed: only what cannot be interrupted takes longer."""


async def drain(runtime: TaskRuntime, hurry: asyncio.Event | None = None) -> None:
    """Give running tools their time, or what is left of it until there is a `hurry`. What a run that only waits is
    waiting for may take days: it is let go at once, and so is one that comes to such a wait meanwhile."""
    draining = asyncio.create_task(runtime.engine.drain(_time_left(runtime)))
    try:
        while not (draining.done() or (hurry is not None and hurry.is_set())):
            await runtime.parking.park_all()
            for run in runtime.runs():
                if run.may_leave:
                    await _interrupt(run)
            await asyncio.wait({draining}, timeout=DRAIN_LOOK)
        if draining.done():
            await draining
    finally:
        draining.cancel()


def _time_left(runtime: TaskRuntime) -> timedelta:
    """How long tools may still run: less if the drain began before their server stopped."""
    limit = runtime.settings.drains_for
    if runtime.draining_since is None:
        return limit
    return max(timedelta(0), limit - timedelta(seconds=asyncio.get_running_loop().time() - runtime.draining_since))


async def hand_over(runtime: TaskRuntime) -> None:
    """Give up every run that is left, and sign off. Nothing is claimed by this process from here on.

    The lease is kept meanwhile: a store that is slow may take longer than that to be told of every run.
    """
    try:
        # First: a claim that succeeds from here on would begin a tool that nothing stops.
        await runtime.claims.give_up()
        # Also those that end while the children of others do.
        runs = runtime.runs()
        await _end_children(runtime)
        for run in runs:
            await _interrupt(run)
        await runtime.engine.stop(runtime.settings.stop_timeout)
        if runtime.claims.unconfirmed():
            await runtime.janitor.take_up()
        runtime.stop_keeping_lease()
        await runtime.store.retire(runtime.worker)
    except StoreError as exc:
        logger.warning("could not sign off from the store: %s", exc)
    finally:
        runtime.stop_keeping_lease()
        kill_children(runtime)
        await runtime.store.close()


async def _end_children(runtime: TaskRuntime) -> None:
    """Stop the runs with child processes, and end those: once a run is given up, another process may begin it again."""
    _stop_parents(runtime)
    await _childless(runtime, runtime.settings.stop_timeout.total_seconds() / 2)
    # Some may have started one meanwhile. A tool must not take the end of a child that we kill for an outcome.
    _stop_parents(runtime)
    kill_children(runtime)
    # The kernel takes a moment.
    await _childless(runtime, KILL_LIMIT)


def _stop_parents(runtime: TaskRuntime) -> None:
    for run in runtime.runs():
        if has_children(run) and run.life.state is not State.RETURNED:
            run.stop()


async def _childless(runtime: TaskRuntime, limit: float) -> None:
    """Return when no child process is left, or after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    while has_children(runtime) and loop.time() < until:  # noqa: ASYNC110 - nothing tells when the last has ended
        await asyncio.sleep(DRAIN_LOOK)


async def _interrupt(run: Run) -> None:
    try:
        await run.interrupt()
    except StoreError as exc:
        # Its lease runs out, and the next process finds it.
        logger.warning("task %s… could not be handed over: %s", run.record.id[:12], exc)


async def _no_tools() -> Mapping[str, ToolPolicy]:
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
        requires_owner: Whether a task that nobody owns may not be made.
        runs_tools: Whether tools run in this process. One that only serves creates, answers and cancels tasks and
            sweeps like any other, but claims none, so it needs no lease.
        queues: The queues whose tasks are run in this process; None for all.
        tools: The tools that this process has, as far as they can be listed: what it tells an engine that it can run.
        observers: Told of everything that happens to tasks through this process, in a thread of their own.
        tracing: What makes traces of it.
        monotonic: Seconds on a clock that is never set, by which other processes are watched.
        uptime: The same, but going on while the machine sleeps, by which this process's own lease is measured.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        body: Body,
        policy: Callable[[str, str], Awaitable[ToolPolicy | None]],
        describe: Callable[[Exception], JsonObject],
        clock: Callable[[], datetime] | None = None,
        namespace: str = "",
        settings: Settings | None = None,
        limits: Limits | None = None,
        requires_owner: bool = False,
        runs_tools: bool = True,
        queues: Collection[str] | None = None,
        tools: Callable[[], Awaitable[Mapping[str, ToolPolicy]]] = _no_tools,
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
        self.hidden_keys: HiddenKeys = HiddenKeys(self.store, namespace, monotonic=monotonic)
        self.quota: Quota = Quota(self.limits, lambda whose: self.store.usage(namespace, whose), monotonic)
        self.changes: Changes = Changes(
            self.store, clock=self.now, observers=self.observers, saw=self._saw, origin=self, grew=self.quota.grew
        )
        self.late_writes: LateWrites = LateWrites(self.changes)
        self.alarms: Alarms = Alarms(self.now)
        self.parking: Parking = Parking(current_run, WaitingRoom(self.settings.max_waiting_runs))
        self.progress_turns: asyncio.Semaphore = asyncio.Semaphore(progress.AT_ONCE)
        self.dispatch: Dispatch = Dispatch(self)
        self.janitor: Janitor = Janitor(self)
        self.claims: Claims = Claims(self)
        self.reading: Reading = Reading(self)
        self.lookout: Lookout = Lookout(self)
        self.lease: Lease = Lease(
            self.lease_times,
            heartbeat=lambda beats: self.store.heartbeat(self.worker, namespace=namespace, beats=beats),
            look=self.lookout.look,
            stop_runs=self._stop_work,
            kill_children=lambda: kill_children(self),
            take_up=self.janitor.take_up,
            clock=uptime,
        )
        self.draining: Draining = Draining(self)
        self._launching = Launching(self, new_id)
        self._body = body
        self._runs: dict[str, Run] = {}
        self._services: list[asyncio.Task[None]] = []
        self._keeping_lease: asyncio.Task[None] | None = None
        self._open = False
        self.draining_since: float | None = None

    @property
    def hints(self) -> HintFan:
        """Which tasks have changed, for whoever listens in this process."""
        return self.changes.hints

    # Life

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
        """Open the store, begin to run tools, and pick up what an earlier process left.

        Raises:
            StoreError: The store cannot be used; the message says why.
        """
        await self.open()
        self._open, self.draining_since, self.claims.closed = True, None, False
        try:
            if self.runs_tools:
                await self.lease.renew()
                # Before anything runs: the rest of the start may take longer than a lease.
                self._keeping_lease = asyncio.create_task(self.lease.keep(), name="mcp-tasks-lease")
            tools = await self.dispatch.learn_tools()
            await self.engine.start(self.execute if self.runs_tools else None, await self.dispatch.served(tools))
            await self.janitor.begin()
        except BaseException:
            await self.stop()
            raise
        services = {
            "janitor": self.janitor.keep_sweeping,
            "hints": self.lookout.keep_following_hints,
            "look": self.lookout.keep_looking,
            "dispatch": self.dispatch.keep_handing_out,
        }
        if self._store_clock is not None:
            services["clock"] = self._store_clock.keep_measuring
        if self.runs_tools:
            draining = self.draining.keep_looking
            services |= {"parking": self.parking.serve, "draining": draining}
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
            await drain(self, hurry)
        finally:
            # Reached by the time limit as well as by whoever loses patience and cancels the shutdown.
            with anyio.CancelScope(shield=True):
                self._stop_services()
                await hand_over(self)
                await self.observers.stop(self.settings.stop_timeout)

    async def abandon(self) -> None:
        """Stop like a process that dies: nothing is handed over, nothing more is written. For tests of recovery."""
        self.changes.end()
        self.observers.abandon()
        self._stop_services()
        self.stop_keeping_lease()
        for run in self.runs():
            run.stop()
        await self.engine.stop(self.settings.stop_timeout)
        # What a real death leaves to the lease: here the process goes on, and would seem alive.
        abandon(self.worker)
        await self.store.retire(self.worker)

    def stop_keeping_lease(self) -> None:
        """Send no more heartbeats: nothing runs in this process any more, as far as it can tell."""
        if self._keeping_lease is not None:
            self._keeping_lease.cancel()
            self._keeping_lease = None

    def _stop_services(self) -> None:
        for service in self._services:
            service.cancel()
        self._services = []

    # Tasks

    async def launch(self, spec: LaunchSpec) -> TaskRecord:
        """A new task, durable on return, that runs or is queued; or the one that stands under its idempotency key."""
        return await self._launching.launch(spec)

    async def announce(self, record: TaskRecord) -> TaskRecord:
        """Make sure that the tool does not answer on the original call any more, which is about to be answered.

        The task as it is then. If it has ended and is not announced, the tool was first, and the call is answered with
        how it ended.

        Raises:
            UnknownTask: The task is gone.
        """
        return await self.changes.change(record, TaskAnnounced(), actor=Actor("client", record.owner))

    async def get(self, task_id: str, *, owner: str | None) -> TaskRecord:
        """The task as it is now, for its owner.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        return await self.reading.get(task_id, owner=owner)

    async def find(self, task_id: str) -> TaskRecord:
        """The task as it is now, whoever owns it: for code of the server's own, never for a client.

        Raises:
            UnknownTask: This server has no such task.
            TaskUnreadable: It has, and its row cannot be read.
        """
        return await self.reading.find(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended; None if it has not, or was cancelled.

        Raises:
            TaskUnreadable: It cannot be read.
        """
        return await self.store.outcome(task_id)

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

        Raises:
            ValueError: The cursor is not one of ours.
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

    async def answer(
        self,
        record: TaskRecord,
        responses: Mapping[str, JsonValue],
        *,
        actor: Actor,
        check: Callable[[TaskRecord], None] | None = None,
    ) -> TaskRecord:
        """Write down the answers to open questions; other keys are ignored. Wakes the run that asked.

        `check` sees the record that the answers are written against, each time it is read again, and may refuse.
        """
        outstanding = record.inputs.outstanding
        entries = {
            key: JournalEntry(kind="answer", key=key, value=responses[key]) for key in outstanding if key in responses
        }
        return await self._take(record, entries, actor, check)

    async def refuse(self, record: TaskRecord, key: str, refused: AnswerRefused, *, actor: Actor) -> TaskRecord:
        """Write down that an open question was answered with an error, for the tool. Wakes the run that asked."""
        error = {"code": refused.code, "message": refused.message, "data": refused.data}
        return await self._take(record, {key: JournalEntry(kind="refusal", key=key, value=error)}, actor)

    async def host(self, record: TaskRecord, key: str, client_task: str, *, actor: Actor) -> TaskRecord:
        """Write down that the client holds an open question as a task of its own."""
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
        """Forget a finished task that nobody was told of."""
        try:
            await self.changes.delete(record.id, expected=record.version, actor=Actor("client", record.owner))
        except StoreError as exc:
            # It will expire like any other.
            logger.debug("task %s… is not removed yet: %s", record.id[:12], exc)

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

    # Runs

    async def submit(self, record: TaskRecord) -> None:
        """Have a task run again that nobody has, here or elsewhere, when there is room."""
        await self.dispatch.again(record)

    async def submit_later(self, record: TaskRecord) -> None:
        """Have a parked task run when its time comes, if the engine can wait for it; a sweep finds it in any case."""
        await self.dispatch.after(record)

    def serves(self, queue: str) -> bool:
        """Whether this process runs tasks of the queue."""
        return self.queues is None or queue in self.queues

    async def execute(self, task_id: str, slot: Slot) -> None:
        """Run the task if it is there to be run. What an engine calls; it raises nothing."""
        try:
            run = await self.claims.claim(task_id, slot)
            slot.claimed()
            if run is None:
                return
            self._runs[task_id] = run
            current_runtime.set(self)
            try:
                if self.tracing is None:
                    await run.execute(self._body)
                else:
                    with self.tracing.around(run):
                        await run.execute(self._body)
            finally:
                del self._runs[task_id]
                self.claims.end(task_id)
                self.made_room(run.policy)
                # Also when the run ends with a cancellation of its own.
                if run.lost_lease:
                    await self.janitor.recovery.ended_late(task_id)
        except StoreUnavailable as exc:
            # The record is as it was, or says who has it; the janitor will come by.
            logger.debug("task %s… could not be run now: %s", task_id[:12], exc)
        except Exception as exc:
            self.janitor.note_trouble(task_id, exc)

    def made_room(self, policy: ToolPolicy) -> None:
        """A run of the tool has ended, or waits: where there is a limit, there is room for another now."""
        self.claims.made_room()
        self.dispatch.ended(policy)

    def runs(self) -> Sequence[Run]:
        """The runs of this process as of now."""
        return list(self._runs.values())

    def run_of(self, task_id: str) -> Run | None:
        """The run of a task, if it is in this process."""
        return self._runs.get(task_id)

    def has(self, task_id: str) -> bool:
        """Whether the task runs here, or is about to."""
        return task_id in self._runs or self.claims.has_made(task_id)

    def at_work(self) -> dict[str, str]:
        """The tasks that are at work here and do more than wait, with the names of their tools."""
        return {run.record.id: run.record.name for run in self.runs() if not run.only_waits}

    def _saw(self, record: TaskRecord) -> None:
        if (run := self._runs.get(record.id)) is not None:
            run.reconcile(record)
        self.claims.saw(record)

    def _stop_work(self) -> None:
        """Stop every tool that is at work. One that has returned does nothing that could be done twice; its outcome is
        written if the task is still ours then."""
        for run in self.runs():
            if run.life.state is not State.RETURNED:
                run.lose_lease()
