"""A worker of procrastinate that hands ids to the slots of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager

from mcp_tasks.engines.procrastinate_jobs import RUN, TRIES, UPKEEP, again, defer
from mcp_tasks.engines.procrastinate_quiet import NAME
from mcp_tasks.engines.remote import Deliver
from mcp_tasks.quiet import shielded

HANDLERS = 20
"""Ids that are being delivered at a time in one process: each waits for the store, not for the tool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often workers look, and when one counts as dead.

    Attributes:
        poll: Between two looks for jobs that no notification told of: delayed ones, above all.
        heartbeat: Between two signs of life of a worker.
        dead: Without one for so long, a worker counts as dead, and another is given what it had fetched.
    """

    poll: timedelta = timedelta(seconds=1)
    heartbeat: timedelta = timedelta(seconds=5)
    dead: timedelta = timedelta(seconds=20)


class Worker:
    """Takes jobs from queues, as there is room, and hands their ids on."""

    def __init__(self, connector: PsycopgConnector, deliver: Deliver, pace: Pace) -> None:
        self._pace = pace
        self._deliver = deliver
        self._connector = connector
        self._manager = _RoomFirst(connector, deliver)
        self._leaving = False
        self._app = _App(connector, self._manager)
        self._app.task(name=RUN, pass_context=True)(self._run)
        # Besides what it does, it keeps procrastinate watching its own listener and heartbeat, which it stops doing
        # where nothing is periodic: https://github.com/procrastinate-org/procrastinate/issues/1597
        upkeep = self._app.task(name=UPKEEP, queue=UPKEEP, queueing_lock=UPKEEP)(self._rescue)
        self._app.periodic(cron=f"* * * * * */{max(1, min(int(pace.dead.total_seconds()), 59))}")(upkeep)

    async def work(self, queues: Iterable[str]) -> None:
        """Take jobs until cancelled; then let go of those that have not been taken."""
        worker = asyncio.create_task(self._work([*queues, UPKEEP]), name="mcp-tasks-procrastinate")
        try:
            await shielded(worker)
        except asyncio.CancelledError:
            self._leaving = True
            self._manager.leave()
            worker.cancel()
            await asyncio.wait({worker})
            raise

    async def _work(self, queues: Iterable[str]) -> None:
        await self._app.run_worker_async(
            queues=queues,
            name=NAME,
            concurrency=HANDLERS,
            delete_jobs="always",
            # Signals are the server's.
            install_signal_handlers=False,
            fetch_job_polling_interval=self._pace.poll.total_seconds(),
            # Nobody asks for a job to be aborted: a task is cancelled in the store.
            abort_job_polling_interval=3600.0,
            update_heartbeat_interval=self._pace.heartbeat.total_seconds(),
            stalled_worker_timeout=self._pace.dead.total_seconds(),
            shutdown_graceful_timeout=2.0,
        )

    async def _run(self, context: JobContext, task_id: str, tries: int = 0) -> None:
        """One job: it is done when the task is claimed, or need not be."""
        try:
            has_arrived = await self._deliver(task_id)
        except asyncio.CancelledError:
            # Its time to leave is over. The run may have begun; that it has is for others to find.
            await self._send_again(context.job, tries)
            raise
        if not has_arrived:
            await self._send_again(context.job, tries)

    async def _send_again(self, job: Job, tries: int) -> None:
        if (next_job := again(job, tries, at_once=self._leaving)) is not None:
            await defer(self._connector, next_job)

    async def _rescue(self, timestamp: int) -> None:
        """Give to others what dead workers had fetched. A task that was claimed is found to be, and that is all."""
        dead = self._pace.dead.total_seconds()
        # Whatever fails has its turn the next time: its worker has come back, say, or another one was quicker.
        with suppress(ConnectorException):
            await self._manager.prune_stalled_workers(dead)
            for job in await self._manager.get_stalled_jobs(seconds_since_heartbeat=dead):
                with suppress(ConnectorException):
                    await self._rescue_job(job)

    async def _rescue_job(self, job: Job) -> None:
        if job.task_name == RUN and job.attempts < TRIES:
            await self._manager.retry_job(job)
        else:
            await self._manager.finish_job(job, status=Status.FAILED, delete_job=True)


class _RoomFirst(JobManager):
    """Fetches a job only when there is a slot for it: what would only wait here is left to other workers."""

    def __init__(self, connector: PsycopgConnector, deliver: Deliver) -> None:
        super().__init__(connector)
        self._deliver = deliver
        self._wait: asyncio.Timeout | None = None

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """The next job, once there is room; None if there is no job, or nothing is taken here any more."""
        try:
            async with asyncio.timeout(None) as self._wait:
                has_room = await self._deliver.room()
        except TimeoutError:
            return None
        finally:
            self._wait = None
        return await super().fetch_job(queues, worker_id) if has_room else None

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Delete the job, if that can be done now. Otherwise it is found when this worker has ended."""
        try:
            await super().finish_job(job, status, delete_job)
        except ConnectorException:
            # Once more: most likely the connection was lost, and others are there.
            with suppress(ConnectorException):
                await super().finish_job(job, status, delete_job)

    def leave(self) -> None:
        """Wait for room no longer."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0)


class _App(App):
    """An app whose jobs are managed by ours."""

    def __init__(self, connector: PsycopgConnector, manager: JobManager) -> None:
        super().__init__(connector=connector)
        self.job_manager = manager
