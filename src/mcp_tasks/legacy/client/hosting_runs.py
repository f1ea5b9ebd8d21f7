"""Running the callbacks of hosted tasks, over the connections to the server that asked.

What is not finished when a connection ends is run again over another one, now or later: the person who was asked never
answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Any, Final, Protocol

from mcp_types import INTERNAL_ERROR

from mcp_tasks.core.events import Event, RunCompleted, RunFailed, RunLost, RunReleased, RunStarted
from mcp_tasks.core.machine import apply
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.text import short_message, valid_text
from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.legacy.client.hosting_file import HostedFile
from mcp_tasks.quiet import get_logger, quietly, shielded

logger: Final = get_logger(__name__)

MAX_LOST: Final = 5
"""How many times in a row the process may die with a callback before the task is given up: it may be what kills it."""

WRITE_RETRY: Final = 1.0
"""Seconds until an outcome that could not be written is written again."""

WORKER: Final = "client"
"""One process at a time has the file, so one name does."""


class CallbackFailed(Exception):
    """The callback answered with a JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error: dict[str, Any] = dict(error)
        super().__init__(str(error.get("message", "")))


class ConnectionEnded(Exception):
    """The connection ended before the callback did."""


class Runner(Protocol):
    """A connection to a server, as far as its hosted tasks need it."""

    async def run(self, record: TaskRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the client's callback for a request, and give its result. Cancelled, it cancels the callback.

        Raises:
            CallbackFailed: The callback answered with an error.
            ConnectionEnded: The connection ended.
        """
        ...

    def ended(self, record: TaskRecord) -> None:
        """A task of the server has ended: tell it."""
        ...


class Runs:
    """The runs of one server's tasks, and every change of these tasks.

    Args:
        turns: Gives what a callback waits in for its turn, and has it while it works.
    """

    def __init__(
        self,
        file: Callable[[], HostedFile],
        owner: str,
        now: Callable[[], datetime],
        turns: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._open_file = file
        self._owner = owner
        self._now = now
        self._turns = turns
        self._runners: list[Runner] = []
        self._runs: dict[str, tuple[Runner, asyncio.Task[None]]] = {}
        self._ends: dict[str, asyncio.Future[tuple[TaskRecord, dict[str, Any]]]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the server."""
        return bool(self._runners)

    def attach(self, runner: Runner) -> None:
        """The server is connected: go on with what is not finished."""
        self._runners.append(runner)
        for record in self._file.unfinished(self._owner):
            if record.id not in self._runs:
                self._run_again(record)

    async def detach(self, runner: Runner) -> None:
        """The connection has ended; another one, if there is any, takes over what ran over it."""
        self._drop(runner)
        runs = [run for over, run in self._runs.values() if over is runner]
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    def start(self, record: TaskRecord) -> None:
        """Run the callback of a task that was marked as started."""
        runner = self._runners[-1]
        run = asyncio.create_task(self._run(runner, record))
        self._runs[record.id] = (runner, run)
        run.add_done_callback(lambda _: self._over(record.id))

    def stop(self, task_id: str) -> None:
        """Cancel the callback of a task that has ended without it."""
        if task_id in self._runs:
            self._runs[task_id][1].cancel()

    async def end_of(self, task_id: str) -> tuple[TaskRecord, dict[str, Any]]:
        """Wait for the task to end: the task then, and its outcome."""
        end = self._ends.setdefault(task_id, asyncio.get_running_loop().create_future())
        # One of many may leave.
        return await shielded(end)

    def change(self, record: TaskRecord, event: Event, outcome: Mapping[str, Any] | None = None) -> TaskRecord:
        """The task after an event, on disk. What comes too late, after a cancellation, changes nothing."""
        current = self._file.get(self._owner, record.id)
        if current is None:
            return record
        changed = apply(current, event, self._now())
        if changed is not current:
            self._file.save(changed, outcome)
        if changed.is_final and not current.is_final:
            self._announce(changed, outcome or {})
        return changed

    @property
    def _file(self) -> HostedFile:
        return self._open_file()

    def _announce(self, record: TaskRecord, outcome: Mapping[str, Any]) -> None:
        # Not the whole id: who has it may fetch the result.
        logger.info("hosted task %s is %s", record.id[:8], record.status.value)
        if (end := self._ends.pop(record.id, None)) is not None:
            end.set_result((record, dict(outcome)))
        for runner in self._runners:
            runner.ended(record)

    def _drop(self, runner: Runner) -> None:
        if runner in self._runners:
            self._runners.remove(runner)
        if not self._runners:
            # Whoever waited did so over a connection, and there is none.
            self._ends.clear()

    def _run_again(self, record: TaskRecord) -> None:
        if record.worker is not None:
            # The process died with it: one that was left in order has no worker.
            record = self.change(record, RunLost(attempt=record.attempt))
        record = self.change(record, RunStarted(worker=WORKER))
        if record.lost >= MAX_LOST:
            self._fail(record, f"The client died {record.lost} times in a row while it answered this")
        else:
            self.start(record)

    def _over(self, task_id: str) -> None:
        """A run has ended; if its task has not, another connection takes over."""
        self._runs.pop(task_id, None)
        if not self._runners:
            return
        try:
            record = self._file.get(self._owner, task_id)
            if record is not None and not record.is_final:
                self._run_again(record)
        except StoreError as exc:
            logger.warning("hosted task %s is not run again: %s", task_id[:8], exc)

    async def _run(self, runner: Runner, record: TaskRecord) -> None:
        try:
            async with self._turns():
                result = await runner.run(record, self._file.request(record.id))
        except CallbackFailed as exc:
            await self._write(record, RunFailed(attempt=record.attempt, message=_message(exc)), {"error": exc.error})
        except ConnectionEnded:
            self._drop(runner)
            self._release(record)
        except asyncio.CancelledError:
            self._release(record)
        except Exception:
            logger.error("hosted task %s failed", record.id[:8], exc_info=quietly())
            self._fail(record, "The client failed to answer")
        else:
            await self._write(record, RunCompleted(attempt=record.attempt), {"result": result})

    async def _write(self, record: TaskRecord, event: Event, outcome: Mapping[str, Any]) -> None:
        """Write an outcome, however long that takes: the person who answered will not be asked again."""
        while True:
            try:
                self.change(record, event, outcome)
                return
            except StoreUnavailable as exc:
                logger.warning("the outcome of hosted task %s cannot be written yet: %s", record.id[:8], exc)
                await asyncio.sleep(WRITE_RETRY)

    def _fail(self, record: TaskRecord, message: str) -> None:
        error = {"code": INTERNAL_ERROR, "message": message}
        self.change(record, RunFailed(attempt=record.attempt, message=message), {"error": error})

    def _release(self, record: TaskRecord) -> None:
        try:
            self.change(record, RunReleased(attempt=record.attempt))
        except StoreError as exc:
            # It stays as one that was lost, which is only a step towards giving it up.
            logger.warning("hosted task %s is left as it is: %s", record.id[:8], exc)


def _message(exc: CallbackFailed) -> str:
    return short_message(valid_text(str(exc)))
