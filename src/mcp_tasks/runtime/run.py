"""One run: a tool at work for a task, from the moment it was claimed to the moment nothing more is to be said.

Where the run stands is a table (`life.py`). Its parts have files of their own: what it writes (`recording.py`), how it
ends (`ending.py`) and leaves memory (`leaving.py`), questions, timers, steps, progress, what it occupies while it works
(`rest.py`), and in which order it learns of things (`deliveries.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from subprocess import CompletedProcess
from typing import Any, Final, NoReturn, TypeAlias, Unpack

import anyio
import anyio.lowlevel

from mcp_tasks.core.events import Event, ProcessesChanged, ProgressReported, RunAskedOnCall, RunReleased
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.json_bytes import encode_json
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.record import Outcome, Progress, TaskRecord, TaskRequest
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import (
    Interrupted,
    LimitExceeded,
    ReplayMismatch,
    RunStopped,
    TransitionRefused,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.quiet import get_logger, quietly, short_id, what
from mcp_tasks.runtime.alarms import Alarms
from mcp_tasks.runtime.branches import Branches
from mcp_tasks.runtime.child_process import ProcessOptions, kill_children, run_process
from mcp_tasks.runtime.children import Children
from mcp_tasks.runtime.context import asking_now, current_run
from mcp_tasks.runtime.deliveries import Deliveries
from mcp_tasks.runtime.early import Unwritten
from mcp_tasks.runtime.ending import Ending, Failure, failed, last_words
from mcp_tasks.runtime.helpers import Helpers
from mcp_tasks.runtime.host import Host
from mcp_tasks.runtime.leaving import Leaving
from mcp_tasks.runtime.life import Life, State, Turn
from mcp_tasks.runtime.orphans import describe, end_orphans
from mcp_tasks.runtime.place import Place as PlaceUnderLimits
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.progress import ProgressThrottle
from mcp_tasks.runtime.questions import Asking, Questions
from mcp_tasks.runtime.recording import Recording
from mcp_tasks.runtime.replay import Place, Replay, step_at_work
from mcp_tasks.runtime.rest import Rest
from mcp_tasks.runtime.steps import Retry, Steps
from mcp_tasks.runtime.time_limit import TimeLimit
from mcp_tasks.runtime.timers import Timers
from mcp_tasks.runtime.uncancelled import uncancel
from mcp_tasks.stores.encoding import size_of

logger: Final = get_logger(__name__)

Body: TypeAlias = Callable[["Run"], Awaitable[Ending]]
"""Runs the tool of a request. Raises nothing but cancellation: a tool's exception is an ending."""


class Run:
    """A tool at work for one task.

    Args:
        record: The task, claimed for this run.
        request: What was asked for.
        slot: The right to use the worker.
        replay: What earlier runs recorded.
        unwritten: The task, if it is not in the store yet.
        place: Makes its place under the limits of its tool and its owner, if there are limits.
    """

    def __init__(
        self,
        record: TaskRecord,
        *,
        request: TaskRequest,
        host: Host,
        slot: Slot,
        policy: ToolPolicy,
        replay: Replay,
        unwritten: Unwritten | None = None,
        place: Callable[[Run], PlaceUnderLimits] | None = None,
    ) -> None:
        self.record: TaskRecord = record
        self.request = request
        self.attempt: int = record.attempt
        self.policy = policy
        self.life: Life = Life()
        self.branches: Branches = Branches(current_run, self)
        # Taken before the tool's context is entered: what runs in it is not a branch of the tool.
        self._context = contextvars.copy_context()
        self.rest: Rest = Rest(self.life, slot, self.branches, host.parking.room, self._context)
        self.recording: Recording = Recording(self, host, replay, unwritten)
        if place is not None:
            self.rest.place = place(self)
        self.now: Callable[[], datetime] = host.now
        self.alarms: Alarms = host.alarms
        self.limits: Limits = host.limits
        self.is_cancelled: bool = False
        """Whether the work should stop. Also for the thread of a sync tool."""
        self.stopped: asyncio.Event = asyncio.Event()
        self.lost_lease: bool = False
        """Whether it was stopped because its process could not renew its lease."""
        self._replay = replay
        self._host = host
        self._scope = anyio.CancelScope()
        self._verdict: Failure | None = None
        # Parts that a tool which just returns has no use for: most do, and each run would pay for them.
        self._leaving: Leaving | None = None
        self._deliveries: Deliveries | None = None
        self._questions: Questions | None = None
        self._progress: ProgressThrottle | None = None
        self._helpers: Helpers | None = None
        self._groups: set[int] = set()
        """Process groups of commands that are running."""

    async def execute(self, body: Body) -> None:
        """Run the tool and write down how it ended."""
        try:
            # Lost while the task was being claimed: it is given up with the others, and its tool never begins.
            await self._host.lease.make_sure()
            if self._host.lease.is_valid and self.life.counts:
                await self._execute(body)
        finally:
            await self.recording.end()

    async def _execute(self, body: Body) -> None:
        self.branches.enter()
        current_run.set(self)
        if self.record.pause is not None:
            await self.rest.begin()
        if self.record.processes and self.life.counts:
            await self._end_orphans()
        if not self.life.counts:
            self._clear_up()
            return
        if self.policy.max_runtime is not None:
            self.help(TimeLimit(self.policy.max_runtime, self.rest, self.judge).watch(self.record.name))
        self.recording.write_task_soon(self)
        try:
            ending = await self._ending(body)
            # What a tool returns because it was told that its time is up does not count as a result.
            ending = self._verdict or ending
            if ending is not None:
                await self._finish(ending)
        finally:
            self._clear_up()

    @property
    def leaving(self) -> Leaving:
        """How it leaves memory while it only waits."""
        if self._leaving is None:
            self._leaving = Leaving(self, self._host)
        return self._leaving

    @property
    def deliveries(self) -> Deliveries:
        """In which order the tool learns of things."""
        if self._deliveries is None:
            self._deliveries = Deliveries(
                self._replay.results,
                self._replay.begun,
                self.branches,
                self._context,
                self._refuse,
                recorded_with=self._replay.recorded_with,
                version=self.policy.version,
            )
        return self._deliveries

    @cached_property
    def children(self) -> Children:
        """The tasks that it starts, and waits for."""
        return Children(self, starts_over=self._replay.starts_over)

    @cached_property
    def _timers(self) -> Timers:
        return Timers(self, self._replay)

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self, self._replay)

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
        if self._progress is None:
            pause, longest = self._host.settings.progress_interval, self.limits.status_message_bytes
            self._progress = ProgressThrottle(self._write_progress, pause, self._host.progress_turns, longest)
        if self._progress.put(progress):
            self.help(self._progress.flush())
        await anyio.lowlevel.checkpoint()

    async def ask(self, request: InputRequest, asking: Asking | None = None) -> JsonValue:
        """Put a question to the client and wait for the answer, however long it takes."""
        return await self._asked().ask(request, asking or asking_now())

    async def ask_all(self, requests: Mapping[str, InputRequest]) -> dict[str, JsonValue]:
        """Put several questions together and wait for all answers, under the caller's own labels."""
        answers = await self._asked().ask_all(list(requests.values()))
        await anyio.lowlevel.checkpoint()
        return dict(zip(requests, answers, strict=True))

    async def step(
        self,
        name: str,
        call: Callable[[], Coroutine[Any, Any, Any]],
        *,
        function: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Do something once in the life of the task. `function` is what says what the value is, if it is not `call`.

        What comes `after` another wait gives the slot back meanwhile, and need not wait again once it is recorded.
        """
        return await self._steps.do(name, call, function or call, retry or Retry(attempts=1), after)

    async def sleep(
        self, duration: timedelta | None = None, *, until: datetime | None = None, name: str | None = None
    ) -> None:
        """Wait for a time that is set once in the life of the task."""
        await self._timers.sleep(duration, until, name)

    async def ask_on_call(self, question: JsonObject) -> bool:
        """Ask on the original call, if that has not been answered with the task yet.

        True: it is written, and with that the task is over; the body returns `AskedOnCall`. False: the task has been
        announced, and the question is to be asked in the task.
        """
        if self.record.announced:
            return False
        asked = Outcome(body=encode_json(question, strict=True))
        try:
            await self.recording.record(RunAskedOnCall(attempt=self.attempt), outcome=asked)
        except TransitionRefused:
            return False
        return True

    # What happens to it

    def reconcile(self, record: TaskRecord) -> None:
        """Take note of what somebody else wrote: an answer, a cancellation, a lost lease."""
        if record.version <= self.record.version:
            return
        self.record = record
        if record.is_final:
            self.stop()
        elif (record.worker, record.attempt) != (self._host.worker, self.attempt):
            self.stop_at_once()
        elif self._questions is not None:
            self._questions.look(record)

    def stop(self) -> None:
        """Stop the body; nothing it still says counts. An async one is cancelled, a thread is told."""
        returned = self.life.state is State.RETURNED
        self.life.take(Turn.STOPPED)
        if not returned:
            # Most runs end by themselves, and then there is nothing to cancel.
            self._cancel()

    def stop_at_once(self) -> None:
        """Stop the body and kill its child processes: another run of the task may have begun."""
        self.stop()
        kill_children(self)

    async def judge(self, verdict: RunStopped | ReplayMismatch) -> None:
        """End the task with a verdict, whatever the tool is doing."""
        await self.life.parking_decided()
        if not self.life.take(Turn.JUDGED):
            return
        self._verdict = Failure(self._host.describe(verdict), verdict.reason)
        self.is_cancelled = True
        # Written at once, and not when the body has ended: a thread may take its time to notice.
        await self._finish(self._verdict)
        self._cancel()

    async def interrupt(self) -> None:
        """Give the run up because its process stops: another may take over, or the task ends as interrupted."""
        event, outcome = RunReleased(attempt=self.attempt), None
        if not self.policy.rerun:
            stopped = Interrupted(self.record.name)
            event, outcome = failed(self.attempt, self._host.describe(stopped), stopped.reason)
        try:
            await self.recording.write_leaving(*self.reported(), event, outcome=outcome)
        finally:
            self.stop()

    def may_park(self, branches: set[asyncio.Task[Any]]) -> bool:
        """Whether the run only waits, given the asyncio tasks that belong to it. One that nobody was told of yet stays:
        if that does not change, it is to be ended."""
        is_writing = self._questions is not None and self._questions.is_writing
        alone = branches <= {self.branches.own} and not self.rest.in_steps and not is_writing
        return self.leaving.is_possible and alone and self.record.announced

    async def park(self) -> None:
        """Leave memory; what was journalled brings the run back."""
        await self.leaving.park()

    # For its parts

    async def make_sure(self) -> None:
        """Return only if the tool may still do something: the task is in the store, and this run's, as far as the lease
        can tell."""
        await self._host.lease.make_sure()
        if not await self.recording.write_task() or not self.life.counts:
            # It is being stopped; what it does on its way out (in a `finally`) is not part of the task any more.
            await self.go_no_further()

    async def run_process(self, command: Sequence[str], **options: Unpack[ProcessOptions]) -> CompletedProcess[bytes]:
        """Run a command as a child process that ends with this run."""
        await self.make_sure()
        groups: list[int] = []

        async def begin(group: int) -> None:
            groups.append(group)
            await self._note_process(group)

        try:
            return await run_process(command, stopped=self.stopped, owners=(self, self._host), begin=begin, **options)
        finally:
            self._groups.difference_update(groups)

    async def _note_process(self, group: int) -> None:
        """Write down a process group before its command runs, and which others have ended."""
        self._groups.add(group)
        process = await describe(group, self.attempt)
        if process is not None:
            own = [each for each in self.record.processes if each.attempt == self.attempt]
            ended = frozenset(each for each in own if each.group not in self._groups)
            await self.recording.record(ProcessesChanged(attempt=self.attempt, started=process, ended=ended))
            # It may have taken long.
            await self.make_sure()

    async def _end_orphans(self) -> None:
        """Kill what earlier runs left running, before the tool begins."""
        gone = await end_orphans(self.record)
        if gone and self.life.counts:
            await self.recording.write_patiently(ProcessesChanged(attempt=self.attempt, ended=gone))

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

    def outside(self) -> contextvars.Context:
        """A context in which what runs is not part of the tool."""
        return self._context.copy()

    def help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the tool, until the run is over."""
        if self._helpers is None:
            self._helpers = Helpers(self.record.id)
        return self._helpers.start(work, self.outside())

    def _asked(self) -> Questions:
        if self._questions is None:
            self._questions = Questions(self, self._replay)
        return self._questions

    def unanswered(self) -> dict[str, InputRequest]:
        """The questions that are put, and whose answers this run has not read."""
        return {} if self._questions is None else self._questions.unanswered()

    def reported(self) -> list[Event]:
        """Progress that had no time to be written: it goes along, in one write."""
        progress = None if self._progress is None else self._progress.take()
        return [] if progress is None else [self._progress_event(progress)]

    def _progress_event(self, progress: Progress) -> Event:
        return ProgressReported(attempt=self.attempt, progress=progress)

    async def _write_progress(self, progress: Progress) -> bool:
        return await self.recording.write(self._progress_event(progress))

    # Ending

    async def _ending(self, body: Body) -> Ending | None:
        """How the body ended; None if it was stopped and nobody wants to know."""
        ending: Ending | None = None
        try:
            with self._scope:
                self.life.take(Turn.ENTERED)
                ending = await body(self)
        except asyncio.CancelledError:
            if not self.life.counts:
                raise
            # The body raised it by itself: it awaited something that was cancelled elsewhere, or cancelled itself.
            uncancel()
            ending = Failure(self._host.describe(RuntimeError("the tool cancelled itself")))
        except BaseException as exc:
            # Whatever a tool raises is its ending, `SystemExit` included: the task must end, and the server go on.
            task = short_id(self.record.id)
            logger.error("the run of task %s ended with an unexpected exception", task, exc_info=quietly())
            ending = Failure(self._host.describe(exc if isinstance(exc, Exception) else RuntimeError(repr(exc))))
        await self.life.parking_decided()
        return ending if self.life.take(Turn.RETURNED) else None

    async def _finish(self, ending: Ending) -> None:
        """Write the ending down, however long the store takes to be there again: it must not be lost."""
        reported = self.reported()
        host, tool = self._host, self.record.name
        while True:
            event, outcome = await last_words(
                ending, self.attempt, tool=tool, describe=host.describe, limits=self.limits
            )
            try:
                async with host.quota.room_for(self.record.owner, tool, size_of(outcome)):
                    await self.recording.write_patiently(*reported, event, outcome=outcome)
                return
            except LimitExceeded as exc:
                logger.error("task %s… fails, because what it ended with is not kept: %s", self.record.id[:12], exc)
                ending = Failure(host.describe(exc), "result")
            except (TypeError, ValueError, RecursionError, ValueNotStorable) as exc:
                logger.error("what task %s… ended with cannot be stored: %s", self.record.id[:12], what(exc))
                if reported:
                    reported = []
                elif isinstance(ending, Failure):
                    # Not the ending's fault, so no other ending would fare better.
                    raise
                else:
                    ending = Failure(host.describe(UsageError(f"the tool's result cannot be stored: {exc}")))

    def _refuse(self, mismatch: ReplayMismatch) -> None:
        self.help(self.judge(mismatch))

    def _cancel(self) -> None:
        self.is_cancelled = True
        self.stopped.set()
        self._scope.cancel()
        # The scope does not reach a branch of its own making, nor a question of a thread that a step waits for.
        self.branches.cancel_leftovers()

    def _clear_up(self) -> None:
        # A step that a tool leaves behind when it returns may go on: no other run will begin it.
        was_stopped = self.life.state in (State.STOPPING, State.JUDGED)
        self.life.take(Turn.ENDED)
        if self._leaving is not None:
            self._leaving.stay()
        self.rest.end()
        if self._deliveries is not None:
            self._deliveries.close()
        if self._helpers is not None:
            self._helpers.cancel()
        self.branches.cancel_leftovers()
        if was_stopped:
            self.branches.cancel_steps()
        self.branches.let_go()
