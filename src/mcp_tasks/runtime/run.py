"""One run: a tool at work for a task, from the moment it was claimed to the moment nothing more is to be said.

Everything a run writes carries its attempt number. If the task meanwhile went to another run, or ended, the machine
refuses or ignores it, and the body is stopped. So a run never has to ask whether it still may. Where the run itself
stands is a table too (`life.py`); its parts have files of their own: questions, timers, steps, progress, what it holds
while it works (`rest.py`), and in which order it learns of things (`deliveries.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from math import inf
from typing import Any, NoReturn, TypeAlias

import anyio
import anyio.lowlevel

from mcp_tasks.core.events import (
    Event,
    ProgressReported,
    RunCompleted,
    RunFailed,
    RunParked,
    RunReleased,
    StepRecorded,
    TaskCancelled,
)
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import (
    Interrupted,
    ReplayMismatch,
    RunStopped,
    StaleRun,
    StoreUnavailable,
    UnknownTask,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.runtime.branches import Branches
from mcp_tasks.runtime.context import asking_now, current_run
from mcp_tasks.runtime.deliveries import Deliveries
from mcp_tasks.runtime.host import Host
from mcp_tasks.runtime.life import Life, State, Turn
from mcp_tasks.runtime.outcome import Failure, Outcome, Success, Withdrawn
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.progress import ProgressThrottle
from mcp_tasks.runtime.questions import Asking, Questions
from mcp_tasks.runtime.replay import GIVEN_UP, Place, Replay, ResultId, done_entry, step_at_work
from mcp_tasks.runtime.rest import Rest
from mcp_tasks.runtime.steps import Retry, Steps
from mcp_tasks.runtime.time_limit import TimeLimit
from mcp_tasks.runtime.timers import Timers
from mcp_tasks.runtime.uncancelled import uncancelled

logger = logging.getLogger(__name__)


Body: TypeAlias = Callable[["Run"], Awaitable[Outcome]]
"""Runs the tool of a record. Raises nothing but cancellation: a tool's exception is an outcome."""


class Run:
    """A tool at work for one task."""

    def __init__(self, record: TaskRecord, *, host: Host, slot: Slot, policy: ToolPolicy, replay: Replay) -> None:
        self.record = record
        self.attempt = record.attempt
        self.policy = policy
        self.life = Life()
        self.branches = Branches(current_run, self)
        # Taken before the tool's context is entered: what runs in it is no branch of the tool.
        self._context = contextvars.copy_context()
        self.deliveries = Deliveries(replay.results, replay.begun, self.branches, self._context, self._refuse)
        self.rest = Rest(self.life, slot, self.branches, host.parking.room, self._context)
        self.now = host.now
        self.alarms = host.alarms
        self.stopped = asyncio.Event()
        self._host = host
        self._questions = Questions(self, replay)
        self._timers = Timers(self, replay)
        self._steps = Steps(self, replay)
        self._progress = ProgressThrottle(self._write_progress, host.settings.progress_interval)
        self._scope = anyio.CancelScope()
        self._cancelled = threading.Event()
        self._writing = asyncio.Lock()
        self._helpers: set[asyncio.Task[None]] = set()
        self._parks_for: RunParked | None = None
        self._verdict: Failure | None = None

    async def execute(self, body: Body) -> None:
        """Run the tool and write down how it ended."""
        self.branches.enter()
        current_run.set(self)
        if self.policy.max_runtime is not None:
            self.help(TimeLimit(self.policy.max_runtime, self.rest, self.judge).watch(self.record.request.name))
        try:
            outcome = await self._outcome(body)
            # What a tool returns because it was told that its time is up is no result.
            outcome = self._verdict or outcome
            if outcome is not None:
                await self._finish(outcome)
        finally:
            self._clear_up()

    @property
    def is_cancelled(self) -> bool:
        """Whether the work should stop. Also for the thread of a sync tool."""
        return self._cancelled.is_set()

    @property
    def place(self) -> Place:
        """Where in the tool the calling code is."""
        return Place(branch=not self.branches.in_own, step=step_at_work.get())

    @property
    def only_waits(self) -> bool:
        """Whether nothing of the run can go on but by an answer or a timer."""
        return self.life.is_waiting and not self.branches.can_advance()

    # What the tool does

    async def report(self, progress: Progress) -> None:
        """Keep the newest progress; it reaches the store at once or a moment later, never per call."""
        if self._progress.put(progress):
            self.help(self._progress.flush())
        await anyio.lowlevel.checkpoint()

    async def ask(self, request: InputRequest, asking: Asking | None = None) -> JsonValue:
        """Put a question to the client and wait for the answer, however long it takes."""
        return await self._questions.ask(request, asking or asking_now())

    async def ask_all(self, requests: Mapping[str, InputRequest]) -> dict[str, JsonValue]:
        """Put several questions together and wait for all answers, under the caller's own labels."""
        answers = await self._questions.ask_all(list(requests.values()))
        await anyio.lowlevel.checkpoint()
        return dict(zip(requests, answers, strict=True))

    async def step(
        self,
        name: str,
        call: Callable[[], Coroutine[Any, Any, Any]],
        *,
        function: Callable[..., Any] | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Do something once in the life of the task. `function` is what says what the value is, if it is not `call`."""
        return await self._steps.do(name, call, function or call, retry or Retry(attempts=1))

    async def sleep(
        self, duration: timedelta | None = None, *, until: datetime | None = None, name: str | None = None
    ) -> None:
        """Wait for a time that is set once in the life of the task."""
        await self._timers.sleep(duration, until, name)

    # What happens to it

    def reconcile(self, record: TaskRecord) -> None:
        """Take note of what somebody else wrote: an answer, a cancellation, a lost lease."""
        if record.version <= self.record.version:
            return
        self.record = record
        if record.is_final or record.attempt != self.attempt or record.worker is None:
            self.stop()
        else:
            self._questions.look(record)

    def stop(self) -> None:
        """Stop the body; nothing it still says counts. An async one is cancelled, a thread is told."""
        returned = self.life.state is State.RETURNED
        self.life.take(Turn.STOPPED)
        if not returned:
            # Most runs end by themselves, and then there is nothing to cancel.
            self._cancel()

    async def judge(self, verdict: RunStopped | ReplayMismatch) -> None:
        """End the task with a verdict, whatever the tool is doing."""
        await self.life.parking_decided()
        if not self.life.take(Turn.JUDGED):
            return
        self._verdict = Failure(self._host.describe(verdict))
        self._cancelled.set()
        # Written at once, and not when the body has ended: a thread may take its time to notice.
        await self._finish(self._verdict)
        self._cancel()

    async def interrupt(self) -> None:
        """Give the run up because its process stops: another may take over, or the task ends as interrupted."""
        event: Event = RunReleased(attempt=self.attempt)
        if not self.policy.rerun:
            event = RunFailed(attempt=self.attempt, error=self._host.describe(Interrupted(self.record.request.name)))
        try:
            await self._write(*self._reported(), event)
        finally:
            self.stop()

    # Leaving memory

    @asynccontextmanager
    async def park_while_waiting(
        self, *, keys: frozenset[str] = frozenset(), wake_at: datetime | None = None
    ) -> AsyncGenerator[None]:
        """While this is entered, and nothing else of the tool is at work, the run may leave memory.

        Only in the tool's own asyncio task, and only with no deadline around it: what else waits for this one, and with
        which time-out, cannot be seen from a branch.
        """
        own = asyncio.current_task() is self.branches.own
        if not (own and self.policy.rerun and anyio.current_effective_deadline() == inf):
            async with self.rest.waiting(parkable=False):
                yield
            return
        async with self.rest.waiting(parkable=True):
            self._parks_for = RunParked(attempt=self.attempt, keys=keys, wake_at=wake_at)
            self._host.parking.add(self, self._park_after(keys, wake_at))
            try:
                yield
            finally:
                # Before it stands in line for a slot: what it waited for is there.
                self.keep_in_memory()

    def keep_in_memory(self) -> None:
        """This wait is none to be parked for."""
        self._parks_for = None
        self._host.parking.remove(self)

    def may_park(self, branches: set[asyncio.Task[Any]]) -> bool:
        """Whether the run only waits, given the asyncio tasks that belong to it."""
        alone = branches <= {self.branches.own}
        return self._parks_for is not None and alone and not self.rest.in_steps and not self._questions.is_writing

    async def park(self) -> None:
        """Leave memory; what was journalled brings the run back."""
        if self._parks_for is None or not self.life.take(Turn.PARKS):
            return
        try:
            written = await self._write(*self._reported(), self._parks_for)
        except Exception as exc:
            logger.info("task %s… waits on in memory: %s", self.record.id[:12], exc)
            self.life.take(Turn.STAYS)
            return
        self.stop()
        if written and self.record.is_queued(self.now()):
            # What it waited for came while it was being parked.
            await self._host.submit(self.record.id, again=True)

    def _park_after(self, keys: frozenset[str], wake_at: datetime | None) -> float:
        """Seconds to stay in memory first. A sleep is known to be long or short; an answer may come any time."""
        hold = self.policy.park_after.total_seconds()
        if keys or wake_at is None:
            return hold
        return 0.0 if (wake_at - self.now()).total_seconds() > hold else inf

    # Writing

    async def record_result(self, *events: Event, entries: Sequence[JournalEntry] = ()) -> None:
        """Write what the tool did, however long the store takes to be there again.

        The tool never sees a half of it: it is written to the end even if the branch is cancelled meanwhile. If the
        tool may not say such things any more, it goes no further."""
        if not await uncancelled(self._write_whatever_happens(events, entries), context=self._context.copy()):
            await self.go_no_further()

    async def record_in_turn(self, *events: Event, entries: Sequence[JournalEntry] = ()) -> None:
        """The same for what the tool is handed now: one thing at a time."""
        if not await uncancelled(self._write_in_turn(events, entries), context=self._context.copy()):
            await self.go_no_further()

    async def make_sure(self) -> None:
        """Return only if the tool may still do something: the task is this run's, as far as the lease can tell."""
        await self._host.lease.make_sure()
        if not self.life.counts:
            # It is being stopped; what it does on its way out (in a `finally`) is not part of the task any more.
            await self.go_no_further()

    @asynccontextmanager
    async def giving_up(self, result: ResultId) -> AsyncGenerator[None]:
        """If the tool itself cancels what is done while this is entered, that is recorded: it will give up again.

        Otherwise the next run would go on where this one went another way.
        """
        try:
            yield
        except asyncio.CancelledError:
            self.record_first(self.record_given_up([result], place=self.place))
            raise

    def record_first(self, work: Coroutine[Any, Any, None]) -> None:
        """Record something before anything new begins. Nobody waits for it now: a cancellation is not held up."""
        self.deliveries.begin_after(self.help(work))

    async def record_given_up(self, results: Sequence[ResultId], *events: Event, place: Place) -> None:
        """Record what the tool did not wait for. What ends because the run is stopped is not given up."""
        if results and self.life.counts:
            entries = [done_entry(result, GIVEN_UP, place) for result in results]
            await self._write_patiently((StepRecorded(attempt=self.attempt), *events), entries)

    async def give_up_again(self) -> NoReturn:
        """Wait to be cancelled by the tool, as in an earlier run."""
        async with self.rest.waiting(parkable=False, to_give_up=True):
            await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing sets this future")

    async def go_no_further(self) -> NoReturn:
        """End the branch of the tool that calls this, as its run has ended."""
        await anyio.lowlevel.checkpoint()
        # Reached in a branch that the tool started outside of its own scope: there the cancellation does not come.
        raise asyncio.CancelledError

    async def journal(self) -> Sequence[JournalEntry]:
        """The task's journal, as soon as the store gives it."""
        return await self._patiently(lambda: self._host.journal(self.record.id), "read the journal")

    def help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the tool, until the run is over."""
        helper = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._helpers.add(helper)
        helper.add_done_callback(self._helped)
        return helper

    def _helped(self, helper: asyncio.Task[None]) -> None:
        self._helpers.discard(helper)
        if not helper.cancelled() and helper.exception() is not None:
            logger.error("task %s…: %r", self.record.id[:12], helper.exception(), exc_info=helper.exception())

    async def _write_patiently(self, events: Sequence[Event], entries: Sequence[JournalEntry]) -> bool:
        return await self._patiently(lambda: self._write(*events, entries=entries), "be written")

    async def _write_whatever_happens(self, events: Sequence[Event], entries: Sequence[JournalEntry]) -> bool:
        written = await self._write_patiently(events, entries)
        if not written and not self.record.is_final:
            # Stopped because its process lost touch with the store: what was done is done, and if the task is still
            # ours when the store is back, it need not be done again.
            self._host.write_later(self.record, events, entries)
        return written

    async def _write_in_turn(self, events: Sequence[Event], entries: Sequence[JournalEntry]) -> bool:
        async with self.deliveries.turn():
            return await self._write_whatever_happens(events, entries)

    async def _patiently(self, work: Callable[[], Awaitable[Any]], what: str) -> Any:
        failures = 0
        while True:
            try:
                return await work()
            except StoreUnavailable as exc:
                logger.warning("task %s… cannot %s yet: %s", self.record.id[:12], what, exc)
            if not self.life.counts and self.life.state is not State.JUDGED:
                return False
            pause = backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=5))
            failures += 1
            await asyncio.sleep(pause.total_seconds())

    async def _write(self, *events: Event, entries: Sequence[JournalEntry] = ()) -> bool:
        """Write what happened to this run. False, and the run is stopped, if its task is not its own any more."""
        async with self._writing:
            try:
                record = await self._host.change(self.record, *events, entries=entries)
            except (StaleRun, UnknownTask):
                self.stop()
                return False
            # A change that lost against another's write has read it; what it says is news to the questions.
            self.reconcile(record)
        return True

    def _reported(self) -> list[Event]:
        """Progress that had no time to be written: it goes along, in one write."""
        progress = self._progress.take()
        return [] if progress is None else [ProgressReported(attempt=self.attempt, progress=progress)]

    async def _write_progress(self, progress: Progress) -> bool:
        return await self._write(ProgressReported(attempt=self.attempt, progress=progress))

    # Ending

    async def _outcome(self, body: Body) -> Outcome | None:
        """How the body ended; None if it was stopped and nobody wants to know."""
        outcome: Outcome | None = None
        try:
            with self._scope:
                self.life.take(Turn.ENTERED)
                outcome = await body(self)
        except asyncio.CancelledError:
            if not self.life.counts:
                raise
            # The body raised it by itself: it awaited something that was cancelled elsewhere, or cancelled itself.
            _uncancel()
            outcome = Failure(self._host.describe(RuntimeError("the tool cancelled itself")))
        except BaseException as exc:
            # Whatever a tool raises is its outcome, `SystemExit` included: the task must end, and the server go on.
            logger.exception("the run of task %s… ended with an unexpected exception", self.record.id[:12])
            outcome = Failure(self._host.describe(exc if isinstance(exc, Exception) else RuntimeError(repr(exc))))
        await self.life.parking_decided()
        return outcome if self.life.take(Turn.RETURNED) else None

    async def _finish(self, outcome: Outcome) -> None:
        """Write the outcome down, however long the store takes to be there again: it must not be lost."""
        progress = self._progress.take()
        while True:
            try:
                await self._write_patiently(self._last_words(outcome, progress), ())
                return
            except (TypeError, ValueError, RecursionError, ValueNotStorable) as exc:
                logger.error("what task %s… ended with cannot be stored: %r", self.record.id[:12], exc)
                if progress is not None:
                    progress = None
                elif isinstance(outcome, Failure):
                    # Not the outcome's fault. Held on to, it would be held for good.
                    raise
                else:
                    # Not JSON, too deep for it or too large: there is nothing that could be kept or sent.
                    outcome = Failure(self._host.describe(UsageError(f"the tool's result cannot be stored: {exc}")))

    def _last_words(self, outcome: Outcome, progress: Progress | None) -> list[Event]:
        events: list[Event] = []
        if progress is not None:
            events.append(ProgressReported(attempt=self.attempt, progress=progress))
        match outcome:
            case Success(result):
                events.append(RunCompleted(attempt=self.attempt, result=result))
            case Failure(error):
                events.append(RunFailed(attempt=self.attempt, error=error))
            case Withdrawn():
                events.append(TaskCancelled(reason="Answered on the original call"))
        return events

    def _refuse(self, mismatch: ReplayMismatch) -> None:
        self.help(self.judge(mismatch))

    def _cancel(self) -> None:
        self._cancelled.set()
        self.stopped.set()
        self._scope.cancel()
        # The scope does not reach a branch of its own making, nor a question of a thread that a step waits for.
        self.branches.cancel_leftovers()

    def _clear_up(self) -> None:
        self.life.take(Turn.ENDED)
        self.keep_in_memory()
        self.rest.end()
        self.deliveries.close()
        for helper in self._helpers:
            helper.cancel()
        self.branches.cancel_leftovers()


def _uncancel() -> None:
    current = asyncio.current_task()
    while current is not None and current.cancelling() > 0:
        current.uncancel()
