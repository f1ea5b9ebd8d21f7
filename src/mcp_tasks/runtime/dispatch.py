"""What the engine is given to run, and the notifications of other processes that lead to it.

An engine that carries ids to other processes is first come, first served: one owner's ten thousand tasks would stand
before another's one. So only a share of each owner's tasks, and of those of a tool with a limit, is dispatched. The
rest stays queued in the store, which knows whose turn it is, and is dispatched as earlier tasks are claimed. Every
process does so for all of its namespace; the store lets one of them dispatch each task.

An engine of this process has its own line, in which owners take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mcp_tasks._utils import short_id
from mcp_tasks.engines.base import Lane, Route, Serves, WritesJobs
from mcp_tasks.errors import StoreError, StoreUnavailable, TaskUnreadable
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import DEFAULT_QUEUE, TaskRecord
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime.changes import is_older
from mcp_tasks.runtime.run import Run
from mcp_tasks.stores.base import Handing, Hint, Ready, Share, WorkLimits

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

BATCH = 100
"""Tasks that are dispatched at a time."""

PAUSE = 0.02
"""Seconds between two dispatches, however often there is reason for one."""

LOOK_AGAIN = 0.25
"""Seconds between two dispatches because a task was claimed, if the last one found nothing."""

TRY_AGAIN = timedelta(seconds=1)
"""When a resumed task is tried again whose concurrency limit was reached."""

LONGEST_DELAY = timedelta(days=1)
"""How long an engine is asked to delay a task. Every question has a time at which its task gives up, days ahead, and is
usually answered before that: the engine would fill up with jobs that are not needed. Sweeps find the rest."""

TOOLS = "tools/call"


class Dispatch:
    """Submits tasks to the engine, for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._is_remote = runtime.engine.abilities.remote
        self._jobs = runtime.engine if isinstance(runtime.engine, WritesJobs) else None
        self._reason = asyncio.Event()
        self._looked_at = -LOOK_AGAIN
        self._found_at = -LOOK_AGAIN
        self._later: asyncio.TimerHandle | None = None
        self._tools: Mapping[str, TaskOptions] = {}

    async def served(self) -> Serves:
        """What this process takes from an engine: tasks of its queues, and of the tools that it has by now."""
        runtime, tools = self._runtime, await self._runtime.tools()
        self._tools = tools
        homes = {name: policy.queue for name, policy in tools.items()}
        queues: set[str] = set(runtime.queues or (DEFAULT_QUEUE, *homes.values()))
        if runtime.queues is None and self._is_remote:
            # And those in which a task waits: its tool may have had another queue when it was created.
            queues.update(await runtime.store.backlog(runtime.namespace, runtime.now()))
        return Serves(
            namespace=runtime.namespace,
            queues=sorted(queues),
            tools=sorted(tools),
            homes=homes,
            owner_share=runtime.limits.owner_share,
        )

    def limits(self, policy: TaskOptions) -> WorkLimits | None:
        """The concurrency limits for a claim of this tool; None if there are none."""
        owner = self._runtime.settings.max_at_work_per_owner
        if policy.max_at_work is None and owner is None:
            return None
        return WorkLimits(tool=policy.max_at_work, owner=owner)

    # New tasks

    def handing(self, record: TaskRecord) -> Handing | None:
        """How a new task is dispatched when it is created; None for an engine that is given every task."""
        if not self._is_remote:
            return None
        job = None
        if self._jobs is not None:
            job = self._jobs.job(record.id, route=self._route(record), namespace=self._runtime.namespace)
        return Handing(share=self._share(), job=job)

    async def created(self, record: TaskRecord, handing: Handing | None) -> None:
        if handing is None or (handing.handed and not handing.carried):
            await self._submit(record, "new")
        elif not handing.handed:
            self._found_at = self._runtime.monotonic()

    # Tasks that are queued again

    async def again(self, record: TaskRecord) -> None:
        """Have a queued task run again, here or elsewhere, when there is room.

        A run that goes on under a limit does not wait to be dispatched, which counts it like a new one. Its claim gives
        it the next place instead.
        """
        if self._is_remote and record.wake_at is None:
            policy = self._tools.get(record.name) if record.method == TOOLS else None
            if record.started_at is None or policy is None or self.limits(policy) is None:
                self.look()
                return
        await self.submit(record)

    async def submit(self, record: TaskRecord) -> None:
        """Have the engine run a task that it may have been given before, and lost."""
        await self._submit(record, "again")

    async def resubmit(self, task_id: str) -> None:
        """Have a task run that may be queued. If that fails, a sweep says why."""
        store = self._runtime.store
        try:
            record = await store.get(task_id)
            if record is not None and record.is_queued(self._runtime.now()):
                if self._is_remote:
                    await store.hand_back(task_id)
                await self.again(record)
        except StoreError as exc:
            logger.debug("task %s could not be submitted again: %s", short_id(task_id), exc)

    async def after(self, record: TaskRecord) -> None:
        """Have a suspended task run when its time comes, if the engine can wait; sweeps find it in any case."""
        if not self._runtime.engine.abilities.delay or record.wake_at is None or record.worker is not None:
            return
        delay = max(record.wake_at - self._runtime.now(), timedelta(0))
        if delay <= LONGEST_DELAY:
            await self._submit(record, "again", delay=delay)

    async def refused(self, record: TaskRecord) -> None:
        """A claim found that a concurrency limit is reached: the task waits in the store until a run has ended."""
        if not self._is_remote:
            return
        if record.wake_at is None:
            await self._runtime.store.hand_back(record.id)
        else:
            await self._submit(record, "again", delay=TRY_AGAIN)

    # Dispatching

    def look(self) -> None:
        """A task was queued, or there is room for one: dispatch soon."""
        self._reason.set()

    def claimed(self) -> None:
        """A task was claimed: another of its owner may be dispatched, if one waits."""
        now = self._runtime.monotonic()
        if not self._is_remote or self._later is not None:
            return
        if now - self._found_at < LOOK_AGAIN:
            self.look()
        else:
            wait = max(self._looked_at + LOOK_AGAIN - now, 0)
            self._later = asyncio.get_running_loop().call_later(wait, self.look)

    async def keep_dispatching(self) -> None:
        while True:
            await self._reason.wait()
            self._reason.clear()
            try:
                await self._dispatch()
            except StoreUnavailable as exc:
                logger.debug("queued tasks could not be dispatched: %s", exc)
            except StoreError as exc:
                logger.warning("queued tasks could not be dispatched: %s", exc)
            except Exception:
                logger.error("queued tasks could not be dispatched", exc_info=quietly())
            await asyncio.sleep(PAUSE)

    async def next(self) -> Sequence[Ready]:
        """The tasks whose turn it is, for an engine of this process: fair among owners, and within the limits."""
        runtime = self._runtime
        return await runtime.store.hand_out(
            runtime.namespace, self._share(), queues=runtime.queues, mark=False, limit=BATCH
        )

    async def _dispatch(self) -> None:
        self._later = None
        while self._is_remote:
            self._looked_at = self._runtime.monotonic()
            ready = await self._runtime.store.hand_out(self._runtime.namespace, self._share(), limit=BATCH)
            if not ready:
                return
            self._found_at = self._runtime.monotonic()
            await asyncio.gather(*(self._submit(task, "new") for task in ready))

    def _share(self) -> Share:
        settings = self._runtime.settings
        return Share(
            owner=settings.max_handed_out,
            tools={name: policy.max_at_work for name, policy in self._tools.items() if policy.max_at_work is not None},
            owner_at_work=settings.max_at_work_per_owner,
        )

    def _route(self, task: TaskRecord | Ready) -> Route:
        """The workers that the task may go to: those that have its tool, if it is one that can be announced."""
        tool = task.name if task.method == TOOLS and task.name in self._tools else None
        return Route(queue=task.queue, tool=tool, priority=task.priority)

    async def _submit(self, task: TaskRecord | Ready, lane: Lane, *, delay: timedelta | None = None) -> None:
        await self._runtime.engine.submit(task.id, lane=lane, owner=task.owner, route=self._route(task), delay=delay)


# ---- change listener


MAX_UNSEEN = 100
"""Tasks that may wait to be looked at, because they may be queued. Sweeps find those beyond it."""

AT_ONCE = 10
"""Runs that are compared with their rows at a time."""


class ChangeListener:
    """Tells runs and listeners of this process, and its engine, of changes that other processes make."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._seen: dict[str, int] = {}

    async def keep_listening(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                failures = 0
            except Exception as exc:
                failures += 1
                # Once with the traceback; it may fail for as long as the server lives.
                level = logging.ERROR if failures == 1 else logging.DEBUG
                shown = quietly() if failures == 1 else None
                logger.log(
                    level, "change notifications are unavailable, polling instead: %s", what(exc), exc_info=shown
                )
            await anyio.sleep(backoff(failures, base=timedelta(seconds=1), limit=timedelta(seconds=30)).total_seconds())

    async def keep_looking(self) -> None:
        failures = 0
        while True:
            await anyio.sleep(self._runtime.settings.look_interval.total_seconds())
            # A log level may be changed while the server runs.
            self._runtime.observers.ask()
            try:
                await self.look()
                failures = 0
            except StoreError as exc:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "the runs of this process could not be compared with the store: %s", exc)
            except Exception:
                logger.error("the runs of this process could not be compared with the store", exc_info=quietly())

    async def look(self) -> None:
        """Tell the runs and the listeners of this process of changes whose notification was lost."""
        known, hints = {run: run.record.version for run in self._runtime.runs()}, self._runtime.hints
        versions = await self._runtime.store.versions({run.record.id for run in known} | set(hints.listened()))
        # A version that was written here while the store was being asked is no news.
        news = [
            run
            for run, version in known.items()
            if not version <= versions.get(run.record.id, 0) <= run.record.version or run.writer.may_be_lost
        ]
        # Several at a time: the lease may wait for this, and the store may be slow.
        for start in range(0, len(news), AT_ONCE):
            await asyncio.gather(*map(self._refresh, news[start : start + AT_ONCE]))
        for task_id in hints.listened():
            if task_id in versions and versions[task_id] != self._seen.get(task_id):
                hints.put(Hint(task_id, versions[task_id]))
        self._seen = versions

    async def _listen(self) -> None:
        unseen, to_look_at = anyio.create_memory_object_stream[str](MAX_UNSEEN)
        with unseen, to_look_at:
            # Apart: however slow the store is, notifications reach the runs of this process.
            beside = [
                asyncio.create_task(self._start_queued(to_look_at), name="mcp-tasks-queued"),
                asyncio.create_task(self._hear_unheard(unseen), name="mcp-tasks-unheard"),
            ]
            try:
                async with self._runtime.store.notifier().listen(origin=self._runtime) as hints:
                    async for hint in hints:
                        await self._hear(hint, unseen)
            finally:
                for task in beside:
                    task.cancel()

    async def _hear_unheard(self, unseen: MemoryObjectSendStream[str]) -> None:
        """Follow what others wrote while a write of this process was under way, which failed."""
        async for hint in self._runtime.changes.unheard:
            try:
                await self._hear(hint, unseen)
            except Exception as exc:
                # A look at the store finds it.
                logger.debug("a change of task %s was missed: %s", short_id(hint.task_id), what(exc))

    async def _hear(self, hint: Hint, unseen: MemoryObjectSendStream[str]) -> None:
        runtime = self._runtime
        if runtime.changes.wrote(hint):
            # Runs and listeners of this process were told then, or are about to be.
            return
        runtime.hints.put(hint)
        run = runtime.run_of(hint.task_id)
        if run is None:
            # Another process may have queued it.
            if self._could_start(hint.task_id):
                with contextlib.suppress(anyio.WouldBlock):
                    unseen.send_nowait(hint.task_id)
        elif hint.version > run.record.version:
            # Also while it writes: what it writes may be on disk already, and this has come after it.
            await self._refresh(run)

    def _could_start(self, task_id: str) -> bool:
        runtime = self._runtime
        # The store decides who has it. An engine that carries ids never says that it has room; it has been given this
        # one.
        return runtime.runs_tools and runtime.engine.has_room and not runtime.has(task_id)

    async def _start_queued(self, unseen: MemoryObjectReceiveStream[str]) -> None:
        """Start tasks that other processes queued, for as long as there is room."""
        runtime = self._runtime
        async for task_id in unseen:
            if not self._could_start(task_id):
                continue
            try:
                record = await runtime.store.get(task_id)
                # Asked again: were it to wait in line here, another process might have started it sooner.
                if record is not None and self._is_queued(record) and self._could_start(task_id):
                    await runtime.submit(record)
            except Exception as exc:
                # A sweep finds the task, and says what is wrong with it.
                logger.debug("could not look at task %s: %s", short_id(task_id), what(exc))

    async def _refresh(self, run: Run) -> None:
        task_id, known = run.record.id, run.record
        try:
            record = await self._runtime.store.get(task_id)
            if record is not None and is_older(record, known):
                await run.writer.make_up()
                return
        except TaskUnreadable:
            record = None
        except StoreError as exc:
            logger.warning("could not look at task %s: %s", short_id(task_id), exc)
            return
        if record is None:
            run.stop()
            return
        run.reconcile(record)
        if self._is_queued(record) and not self._runtime.engine.abilities.remote:
            # The run was suspended and is on its way out, and what it waited for has come already.
            await self._runtime.submit(record)

    def _is_queued(self, record: TaskRecord) -> bool:
        return record.namespace == self._runtime.namespace and record.is_queued(self._runtime.now())
