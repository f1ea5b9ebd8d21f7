"""What other processes wrote, on its way to the runs and listeners of this one, and to its engine if a task is queued.

Hints make it quick. They may be lost, or the one who brings them may fail; so every few seconds the runs and the
listened-to tasks are compared with their rows, by id and version in one query. Queued tasks are found by sweeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, TaskUnreadable
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime.recording import is_older
from mcp_tasks.runtime.run import Run
from mcp_tasks.stores.base import Hint

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

MAX_UNSEEN = 100
"""Tasks that may wait to be looked at, because they may be queued. Sweeps find those beyond it."""

AT_ONCE = 10
"""Runs that are compared with their rows at a time."""


class Lookout:
    """Watches the store for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._seen: dict[str, int] = {}

    async def keep_following_hints(self) -> None:
        """Follow hints for as long as this process serves."""
        failures = 0
        while True:
            try:
                await self._follow_hints()
                failures = 0
            except Exception as exc:
                failures += 1
                # Once with all there is to see; it may fail for as long as the server lives.
                level = logging.ERROR if failures == 1 else logging.DEBUG
                shown = quietly() if failures == 1 else None
                logger.log(level, "hints are not followed for a moment: %s", what(exc), exc_info=shown)
            await anyio.sleep(backoff(failures, base=timedelta(seconds=1), limit=timedelta(seconds=30)).total_seconds())

    async def keep_looking(self) -> None:
        """Compare with the store for as long as this process serves."""
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
        """Tell the runs and the listeners of this process what they were not told.

        Raises:
            StoreError: The store could not be read.
        """
        known, hints = {run: run.record.version for run in self._runtime.runs()}, self._runtime.hints
        versions = await self._runtime.store.versions({run.record.id for run in known} | set(hints.listened()))
        # A version that was written here while the store was being asked is no news.
        news = [
            run
            for run, version in known.items()
            if run.recording.is_written
            and (not version <= versions.get(run.record.id, 0) <= run.record.version or run.recording.may_be_lost)
        ]
        # Several at a time: the lease may wait for this, and the store may be slow.
        for start in range(0, len(news), AT_ONCE):
            await asyncio.gather(*map(self._refresh, news[start : start + AT_ONCE]))
        for task_id in hints.listened():
            if task_id in versions and versions[task_id] != self._seen.get(task_id):
                hints.put(Hint(task_id, versions[task_id]))
        self._seen = versions

    async def _follow_hints(self) -> None:
        unseen, to_look_at = anyio.create_memory_object_stream[str](MAX_UNSEEN)
        with unseen, to_look_at:
            # Apart: however slow the store is, hints reach the runs of this process.
            starting = asyncio.create_task(self._start_queued(to_look_at), name="mcp-tasks-queued")
            hearing = asyncio.create_task(self._hear_unheard(unseen), name="mcp-tasks-unheard")
            try:
                async with self._runtime.store.notifier().listen(origin=self._runtime) as hints:
                    async for hint in hints:
                        await self._hear(hint, unseen)
            finally:
                starting.cancel()
                hearing.cancel()

    async def _hear_unheard(self, unseen: MemoryObjectSendStream[str]) -> None:
        """Hear of what others wrote while this process was about to write something else, and did not."""
        async for hint in self._runtime.changes.unheard:
            try:
                await self._hear(hint, unseen)
            except Exception as exc:
                # A look at the store finds it.
                logger.debug("could not hear of a change of task %s…: %s", hint.task_id[:12], what(exc))

    async def _hear(self, hint: Hint, unseen: MemoryObjectSendStream[str]) -> None:
        if self._runtime.changes.wrote(hint):
            # Runs and listeners of this process were told then, or are about to be.
            return
        self._runtime.hints.put(hint)
        run = self._runtime.run_of(hint.task_id)
        if run is None:
            self._consider(hint, unseen)
        elif hint.version > run.record.version:
            # Also while it writes: what it writes may be on disk already, and this has come after it.
            await self._refresh(run)

    def _consider(self, hint: Hint, unseen: MemoryObjectSendStream[str]) -> None:
        """Have a task looked at that another process may have queued, if it could be started here."""
        if self._could_start(hint.task_id):
            with contextlib.suppress(anyio.WouldBlock):
                unseen.send_nowait(hint.task_id)

    def _could_start(self, task_id: str) -> bool:
        runtime = self._runtime
        # Whoever has room may look at it: the store decides who has it. An engine that carries ids never says that it
        # has room; it has been handed this one.
        return runtime.runs_tools and runtime.engine.has_room and not runtime.has(task_id)

    async def _start_queued(self, unseen: MemoryObjectReceiveStream[str]) -> None:
        """Start tasks that other processes queued, for as long as there is room."""
        async for task_id in unseen:
            if self._could_start(task_id):
                await self._start_if_queued(task_id)

    async def _start_if_queued(self, task_id: str) -> None:
        runtime = self._runtime
        try:
            record = await runtime.store.get(task_id)
            # Asked again: were it to wait in line here, another process might have started it sooner.
            if record is not None and self._is_queued(record) and self._could_start(task_id):
                await runtime.submit(record)
        except Exception as exc:
            # A sweep finds the task, and says what is wrong with it.
            logger.debug("could not look at task %s…: %s", task_id[:12], what(exc))

    async def _refresh(self, run: Run) -> None:
        task_id, known = run.record.id, run.record
        try:
            record = await self._runtime.store.get(task_id)
            if record is not None and is_older(record, known):
                await run.recording.make_up()
                return
        except TaskUnreadable:
            record = None
        except StoreError as exc:
            logger.warning("could not look at task %s…: %s", task_id[:12], exc)
            return
        if record is None:
            run.stop()
            return
        run.reconcile(record)
        if self._is_queued(record) and not self._runtime.engine.abilities.remote:
            # The run has parked and is on its way out, and what it waited for has come already.
            await self._runtime.submit(record)

    def _is_queued(self, record: TaskRecord) -> bool:
        return record.namespace == self._runtime.namespace and record.is_queued(self._runtime.now())
