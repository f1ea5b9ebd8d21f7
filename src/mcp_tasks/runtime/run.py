"""One run: a tool at work for a task, from the moment it was taken to the moment nothing more is to be said.

Everything a run writes carries its attempt number. If the task meanwhile went to another run, or ended, the
machine refuses or ignores it, and the body is stopped. So a run never has to ask whether it still may.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn, Protocol, TypeAlias

import anyio
import anyio.lowlevel

from mcp_tasks.core.events import (
    Event,
    ProgressReported,
    RunCompleted,
    RunFailed,
    RunReleased,
    StepRecorded,
    TaskCancelled,
)
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import Interrupted, RanTooLong, StaleRun, StoreUnavailable, UnknownTask, UsageError
from mcp_tasks.runtime.context import enter_task
from mcp_tasks.runtime.policy import Settings, ToolPolicy
from mcp_tasks.runtime.questions import Questions
from mcp_tasks.runtime.replay import Replay, remaining_seconds
from mcp_tasks.stores.codec import from_micros, to_micros

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Success:
    """The request has a result."""

    result: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """The request has a JSON-RPC error."""

    error: JsonObject


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The request was answered in another way, and there is no task to speak of."""


Outcome: TypeAlias = Success | Failure | Withdrawn
Body: TypeAlias = Callable[["Run"], Awaitable[Outcome]]
"""Runs the tool of a record. Raises nothing but cancellation: a tool's exception is an outcome."""


class Host(Protocol):
    """What a run needs of the runtime it belongs to."""

    @property
    def settings(self) -> Settings: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def describe(self) -> Callable[[Exception], JsonObject]:
        """An exception as the JSON-RPC error that a client sees."""
        ...

    async def change(self, record: TaskRecord, *events: Event, entries: Sequence[JournalEntry] = ()) -> TaskRecord: ...

    async def journal(self, task_id: str) -> Sequence[JournalEntry]: ...

    async def submit(self, task_id: str) -> None: ...


class Run:
    """A tool at work for one task."""

    def __init__(self, record: TaskRecord, *, host: Host, slot: Slot, policy: ToolPolicy, replay: Replay) -> None:
        self.record = record
        self.attempt = record.attempt
        self._host = host
        self._slot = slot
        self._policy = policy
        self._replay = replay
        self._questions = Questions(self, replay)
        self._scope = anyio.CancelScope()
        self._cancelled = threading.Event()
        self.stopped = asyncio.Event()
        self._writing = asyncio.Lock()
        self._progress: Progress | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._flushing = False
        self._alarms: list[datetime] = []
        self._waits = 0
        self._waited_since = 0.0
        self._limit_moved = 0.0
        self._verdict: Failure | None = None
        self._steps = 0
        self._returned = False
        self._stopped = False

    async def execute(self, body: Body) -> None:
        """Run the tool and write down how it ended."""
        enter_task(self, self._cancelled)
        if self._policy.max_runtime is not None:
            self._help(self._watch_limit(self._policy.max_runtime))
        try:
            outcome = await self._outcome(body)
            # What a tool returns because it was told that its time is up is no result.
            outcome = self._verdict or outcome
            if outcome is not None:
                await self._finish(outcome)
        finally:
            for helper in self._helpers:
                helper.cancel()

    # What the tool does

    async def report(self, progress: Progress) -> None:
        """Keep the newest progress; it reaches the store at once or a moment later, never per call."""
        self._progress = progress
        if not self._flushing:
            self._flushing = True
            self._help(self._flush_progress())
        await anyio.lowlevel.checkpoint()

    async def ask(self, request: InputRequest) -> JsonValue:
        """Put a question to the client and wait for the answer, however long it takes."""
        return await self._questions.ask(request)

    async def ask_all(self, requests: Mapping[str, InputRequest]) -> dict[str, JsonValue]:
        """Put several questions together and wait for all answers, under the caller's own labels."""
        answers = await asyncio.gather(*(self._questions.ask(request) for request in requests.values()))
        await anyio.lowlevel.checkpoint()
        return dict(zip(requests, answers, strict=True))

    async def step(self, name: str, call: Callable[[], Awaitable[JsonValue]]) -> JsonValue:
        """Do something once in the life of the task."""
        if self._replay.enter_step(name):
            return self._replay.step_value(name)
        self._steps += 1
        try:
            value = await call()
        except BaseException:
            # Nothing is recorded, so the tool may try again.
            self._replay.leave_step(name)
            raise
        finally:
            self._steps -= 1
        await self.change(
            StepRecorded(attempt=self.attempt), entries=[JournalEntry(kind="step", key=name, value=value)]
        )
        return value

    async def sleep(self, duration: timedelta) -> None:
        """Wait for a time that is set once in the life of the task."""
        until = await self._alarm(duration)
        self._alarms.append(until)
        try:
            await self._sleep_until(until)
        finally:
            self._alarms.remove(until)

    async def _sleep_until(self, until: datetime) -> None:
        async with self.waiting():
            # Looked at again once a second: an injected clock need not run like the event loop's.
            while (seconds := remaining_seconds(until, self._host.now())) > 0:
                if self.may_unwind and seconds > self._policy.hold.total_seconds():
                    await self.unwind()
                await anyio.sleep(min(seconds, 1.0))

    async def _alarm(self, duration: timedelta) -> datetime:
        recorded = self._replay.next_timer()
        if recorded is not None:
            return from_micros(recorded)
        until = self._host.now() + duration
        entry = JournalEntry(kind="timer", key=self._replay.timer_key, value=to_micros(until))
        await self.change(StepRecorded(attempt=self.attempt), entries=[entry])
        return until

    # What happens to it

    def reconcile(self, record: TaskRecord) -> None:
        """Take note of what somebody else wrote: an answer, a cancellation, a lost lease."""
        if record.version <= self.record.version:
            return
        self.record = record
        if record.is_final or record.attempt != self.attempt or record.holder is None:
            self.stop()
        else:
            self._questions.look(record)

    def stop(self) -> None:
        """Stop the body; nothing it still says counts. An async one is cancelled, a thread is told."""
        self._stopped = True
        if not self._returned:
            # Most runs end by themselves, and then there is nothing to cancel.
            self._cancelled.set()
            self.stopped.set()
            self._scope.cancel()

    async def interrupt(self) -> None:
        """Give the run up because its process stops: another may take over, or the task ends as interrupted."""
        event: Event = RunReleased(attempt=self.attempt, wake_at=min(self._alarms, default=None))
        if not self._policy.rerun:
            error = self._host.describe(Interrupted(self.record.request.name))
            event = RunFailed(attempt=self.attempt, error=error)
        try:
            await self._write(event)
        finally:
            self.stop()

    async def unwind(self) -> None:
        """Leave memory while there is only waiting to do; what was journalled brings the run back."""
        try:
            await self._write(RunReleased(attempt=self.attempt, wake_at=min(self._alarms, default=None)))
        except StoreUnavailable as exc:
            logger.info("task %s waits on in memory: %s", self.record.id, exc)
            return
        self.stop()
        if self.record.is_queued(self._host.now()):
            # What it waited for came while it was being released.
            await self._host.submit(self.record.id)
        await self.go_no_further()

    async def change(self, *events: Event, entries: Sequence[JournalEntry] = ()) -> None:
        """Write what the tool says happened. If it may not say so any more, the tool goes no further."""
        if not await self._write(*events, entries=entries):
            await self.go_no_further()

    async def go_no_further(self) -> NoReturn:
        """End the branch of the tool that calls this, as its run has ended."""
        await anyio.lowlevel.checkpoint()
        # Reached in a branch that the tool started outside of its own scope: there the cancellation does not come.
        raise asyncio.CancelledError

    async def _write(self, *events: Event, entries: Sequence[JournalEntry] = ()) -> bool:
        """Write what happened to this run. False, and the run is stopped, if its task is not its own any more."""
        async with self._writing:
            try:
                self.record = await self._host.change(self.record, *events, entries=entries)
            except (StaleRun, UnknownTask):
                self.stop()
                return False
        if self.record.is_final:
            self._stopped = True
        return True

    def waiting(self) -> Waiting:
        """While this is entered the run uses no slot and its time limit stands still."""
        return Waiting(self)

    def begin_wait(self) -> None:
        """Give the slot back. Another branch of the tool may go on meanwhile; it is worth no slot of its own."""
        if not self._waits:
            self._waited_since = asyncio.get_running_loop().time()
        self._waits += 1
        self._slot.release()

    async def end_wait(self) -> None:
        """Have the slot again before going on."""
        try:
            if not self._stopped:
                # The time in line for a slot is no running time either.
                await self._slot.acquire()
        finally:
            self._waits -= 1
            if not self._waits:
                self._limit_moved += asyncio.get_running_loop().time() - self._waited_since

    @property
    def is_waiting(self) -> bool:
        """Whether some part of the tool waits for an answer or a timer."""
        return self._waits > 0

    @property
    def may_unwind(self) -> bool:
        """Whether the run can leave memory while it waits: it can be started again, and is in no step."""
        return self._policy.rerun and not self._steps

    @property
    def hold(self) -> timedelta | None:
        """How long it stays in memory first; None for as long as it waits."""
        return self._policy.hold if self._policy.rerun else None

    @property
    def host(self) -> Host:
        """The runtime this run belongs to."""
        return self._host

    def _help(self, work: Awaitable[None]) -> None:
        helper = asyncio.ensure_future(work)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    async def _outcome(self, body: Body) -> Outcome | None:
        """How the body ended; None if it was stopped and nobody wants to know."""
        try:
            with self._scope:
                outcome = await body(self)
                self._returned = True
                return None if self._stopped else outcome
        except asyncio.CancelledError:
            if self._stopped:
                raise
            # The body raised it by itself: it awaited something that was cancelled elsewhere, or cancelled itself.
            _uncancel()
            return Failure(self._host.describe(RuntimeError("the tool cancelled itself")))
        except BaseException as exc:
            # Whatever a tool raises is its outcome, `SystemExit` included: the task must end, and the server go on.
            logger.exception("the run of task %s ended with an unexpected exception", self.record.id)
            return Failure(self._host.describe(exc if isinstance(exc, Exception) else RuntimeError(repr(exc))))
        return None

    async def _finish(self, outcome: Outcome) -> None:
        """Write the outcome down, however long the store takes to be there again: it must not be lost."""
        failures = 0
        while not self._stopped:
            try:
                await self._write(*self._last_words(outcome))
                return
            except (TypeError, ValueError, RecursionError) as exc:
                logger.error("what task %s ended with cannot be stored: %r", self.record.id, exc)
                if self._progress is not None:
                    self._progress = None
                elif isinstance(outcome, Failure):
                    # Not the outcome's fault. Held on to, it would be held for good.
                    raise
                else:
                    # Not JSON, or too deep for it: there is nothing that could be kept or sent.
                    outcome = Failure(self._host.describe(UsageError("the tool's result cannot be written as JSON")))
            except StoreUnavailable as exc:
                pause = backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=5))
                logger.warning("the outcome of task %s is not stored yet: %s", self.record.id, exc)
                failures += 1
                await anyio.sleep(pause.total_seconds())

    def _last_words(self, outcome: Outcome) -> list[Event]:
        events: list[Event] = []
        if self._progress is not None:
            # Progress that had no time to be written goes with the outcome, in one write.
            events.append(ProgressReported(attempt=self.attempt, progress=self._progress))
        match outcome:
            case Success(result):
                events.append(RunCompleted(attempt=self.attempt, result=result))
            case Failure(error):
                events.append(RunFailed(attempt=self.attempt, error=error))
            case Withdrawn():
                events.append(TaskCancelled(reason="Answered on the original call"))
        return events

    async def _flush_progress(self) -> None:
        try:
            while (progress := self._progress) is not None:
                self._progress = None
                try:
                    await self._write(ProgressReported(attempt=self.attempt, progress=progress))
                except Exception as exc:
                    # Not there, or not JSON; the next one may do better.
                    logger.warning("progress of task %s is not stored: %r", self.record.id, exc)
                await anyio.sleep(self._host.settings.progress.total_seconds())
        finally:
            self._flushing = False

    async def _watch_limit(self, limit: timedelta) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            left = started + limit.total_seconds() + self._limit_moved - loop.time()
            if self._waits:
                left = max(left, 1.0)
            elif left <= 0:
                break
            await anyio.sleep(left)
        self._verdict = Failure(self._host.describe(RanTooLong(self.record.request.name, limit)))
        self._cancelled.set()
        # Written at once, and not when the body has ended: a thread may take its time to notice.
        await self._finish(self._verdict)
        self.stop()


class Waiting:
    """A wait of a run: `async with run.waiting(): ...`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def __aenter__(self) -> None:
        self._run.begin_wait()

    async def __aexit__(self, *exc: object) -> None:
        await self._run.end_wait()


def _uncancel() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling() > 0:
        task.uncancel()
