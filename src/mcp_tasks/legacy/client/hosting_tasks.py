"""The tasks that a client hosts, by the server that asked for them.

A task belongs to a server: its address, and who we are to it. To any other server it does not exist. Everything
happens in one thread, and whatever a server is told is on disk before.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mcp_tasks.core.events import RunStarted, TaskCancelled
from mcp_tasks.core.machine import apply
from mcp_tasks.core.pacing import is_expired
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, StoreUnavailable, TasksError, UnknownTask
from mcp_tasks.legacy.client.hosting import Hosting
from mcp_tasks.legacy.client.hosting_file import HostedFile
from mcp_tasks.legacy.client.hosting_runs import WORKER, Runner, Runs
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

PAGE: Final = 50
"""Tasks on a page of a listing."""

SWEEP_INTERVAL: Final = timedelta(seconds=30)
"""How often what has expired is deleted, and how old the news may be that a server was connected before a crash."""


class HostingFull(TasksError):
    """A limit of the client is reached; nothing was made."""


class TaskHasEnded(TasksError):
    """A task that has ended cannot be cancelled."""

    def __init__(self, record: TaskRecord) -> None:
        super().__init__(f"Cannot cancel task: already in terminal status '{record.status.value}'")


class HostedTasks:
    """All tasks that one `TasksClient` hosts. The file is open while there are connections."""

    def __init__(
        self,
        hosting: Hosting,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        turns: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.hosting = hosting
        self.turns = turns
        self.now = clock
        self._file: HostedFile | None = None
        self._connections = 0
        self._servers: dict[str, ServerTasks] = {}
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def file(self) -> HostedFile:
        """Where the tasks are, while there are connections."""
        if self._file is None:
            raise StoreUnavailable("hosted tasks are open only while there is a connection")
        return self._file

    def of(self, server: str, identity: str = "") -> ServerTasks:
        """The tasks of one server."""
        # As JSON: no address and no identity can be spelled so that the two look like another pair.
        owner = json.dumps([server, identity])
        if owner not in self._servers:
            self._servers[owner] = ServerTasks(self, owner)
        return self._servers[owner]

    def open(self) -> None:
        """There is one connection more.

        Raises:
            StoreUnavailable: The ledger cannot be used now; another process may have it.
            StoreCorrupt: The ledger is some other file, or is corrupt.
        """
        self._file = self._file or HostedFile(self.hosting.ledger, self.hosting.cipher)
        self._connections += 1
        self.sweep()
        self._sweeping = self._sweeping or asyncio.create_task(self._keep_sweeping())

    async def close(self) -> None:
        """There is one connection less."""
        self._connections -= 1
        if self._connections:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
            self._sweeping = None
        # No connection has any of these now, and servers without an address never come back.
        self._servers.clear()
        # What is in memory stays for the next connection.
        if self.hosting.ledger is not None and self._file is not None and not self._connections:
            self._file.close()
            self._file = None

    def sweep(self) -> None:
        """Delete what has expired."""
        now = self.now()
        connected = [owner for owner, tasks in self._servers.items() if tasks.is_connected]
        try:
            for owner in connected:
                self.file.saw(owner, now)
            self.file.delete_expired(now)
            self.file.delete_abandoned(now - SWEEP_INTERVAL, connected=connected)
        except StoreError as exc:
            logger.warning("hosted tasks were not swept: %s", exc)

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL.total_seconds())
            self.sweep()


class ServerTasks:
    """The hosted tasks of one server: what it may do with them."""

    def __init__(self, hosted: HostedTasks, owner: str) -> None:
        self._hosted = hosted
        self._owner = owner
        self._runs = Runs(lambda: hosted.file, owner, hosted.now, hosted.turns)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the server."""
        return self._runs.is_connected

    def attach(self, runner: Runner) -> None:
        """The server is connected: go on with what is not finished."""
        self._runs.attach(runner)
        self._hosted.sweep()

    async def detach(self, runner: Runner) -> None:
        """The connection has ended."""
        try:
            # From now on its time runs.
            self._hosted.file.saw(self._owner, self._hosted.now())
        except StoreError as exc:
            logger.warning("the end of a connection was not noted: %s", exc)
        await self._runs.detach(runner)

    def create(
        self,
        method: str,
        request: Mapping[str, Any],
        requested_ttl: timedelta | None,
        *,
        question: str | None = None,
    ) -> TaskRecord:
        """Accept a request as a task, and begin with it. On disk when this returns.

        A server of ours says which question of its own it asks. If it asks that again, because it died before it had
        written down the id, it gets the task that it has, and nobody is asked twice.

        Raises:
            HostingFull: A limit is reached.
            StoreError: It cannot be kept.
        """
        known = None if question is None else self._hosted.file.asked(self._owner, question)
        if known is not None and self._hosted.file.request(known.id) == request and not self._is_over(known):
            return known
        self._check_limits(request)
        now, hosting = self._hosted.now(), self._hosted.hosting
        new = TaskRecord(
            # 256 bits: nobody guesses it.
            id=secrets.token_urlsafe(32),
            owner=self._owner,
            name=method,
            method=method,
            created_at=now,
            updated_at=now,
            retention=hosting.retention(requested_ttl),
            poll_interval=hosting.poll_interval,
        )
        record = apply(new, RunStarted(worker=WORKER), now)
        self._hosted.file.add(record, request, question=question)
        logger.info("hosting task %s, a %s, for %s", record.id[:8], method, self._owner)
        self._runs.start(record)
        return record

    def get(self, task_id: str) -> TaskRecord:
        """A task of this server.

        Raises:
            UnknownTask: There is none of that id, or it has expired, or is another server's.
        """
        record = self._hosted.file.get(self._owner, task_id)
        if record is None or self._is_over(record):
            logger.info("%s asked for a task that it does not have", self._owner)
            raise UnknownTask(task_id)
        return record

    def page(self, after: int) -> tuple[list[TaskRecord], int | None]:
        """Tasks of this server from behind a place, oldest first, and the place to go on from if there are more."""
        found = self._hosted.file.page(self._owner, after=after, limit=PAGE + 1)
        records = [record for _, record in found[:PAGE] if record is not None and not self._is_over(record)]
        return records, found[PAGE - 1][0] if len(found) > PAGE else None

    def cancel(self, task_id: str) -> TaskRecord:
        """Cancel a task, and its callback with it. It is `cancelled` on disk when this returns.

        Raises:
            UnknownTask: As `get`.
            TaskHasEnded: It has.
        """
        record = self.get(task_id)
        if record.is_final:
            raise TaskHasEnded(record)
        record = self._runs.change(record, TaskCancelled(reason="The task was cancelled by request."))
        self._runs.stop(task_id)
        return record

    async def end_of(self, task_id: str) -> tuple[TaskRecord, dict[str, Any]]:
        """The task once it has ended, with its outcome: a `result`, or an `error`, or neither if it was cancelled.

        Raises:
            UnknownTask: As `get`.
        """
        record = self.get(task_id)
        # Not looked up again once it has ended: by then its time may be over, and whoever waited is to be told.
        if record.is_final:
            return record, self._hosted.file.outcome(task_id)
        return await self._runs.end_of(task_id)

    def _is_over(self, record: TaskRecord) -> bool:
        return is_expired(record, self._hosted.now())

    def _check_limits(self, request: Mapping[str, Any]) -> None:
        hosting = self._hosted.hosting
        if (size := len(json.dumps(request))) > hosting.max_request_size:
            raise HostingFull(f"The request has {size:,} bytes of JSON, and {hosting.max_request_size:,} are taken")
        problem = self._over_limit()
        if problem is not None:
            # What has expired does not count, and is deleted only now and then.
            self._hosted.sweep()
            problem = self._over_limit()
        if problem is not None:
            raise HostingFull(problem)

    def _over_limit(self) -> str | None:
        hosting = self._hosted.hosting
        running, kept, total = self._hosted.file.counts(self._owner)
        if running >= hosting.max_running:
            return f"{running} tasks of this server are running, and no more are taken at once; try again later"
        if kept >= hosting.max_tasks or total >= hosting.max_total:
            return "No more tasks are kept now; try again later, and ask for a shorter ttl"
        return None
