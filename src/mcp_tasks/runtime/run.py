"""One run: a tool that is executed for a task, from its claim to its outcome.

Its states are a table (`suspend.TABLE`). Parts own the rest: `Journal` hands over what earlier runs recorded, and
`Writer` writes what this one does (`journal.py`); `Waits` has questions, timers, steps and other tasks (`waits.py`);
`SlotUse` gives the slot back while the run waits, and `Branches` knows its asyncio tasks (`suspend.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, Unpack, cast

import anyio
import anyio.lowlevel

from mcp_tasks._utils import BackgroundTasks, short_id
from mcp_tasks.errors import (
    LimitExceeded,
    ReplayMismatch,
    RunStopped,
    StoreUnavailable,
    TooLarge,
    TransitionRefused,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.model.json import (
    LONGEST_MESSAGE,
    JsonObject,
    JsonValue,
    encode_in_pieces,
    encode_json,
    is_large,
    short_message,
)
from mcp_tasks.model.machine import (
    Event,
    ProcessesChanged,
    ProgressReported,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunReleased,
)
from mcp_tasks.model.record import InputRequest, Outcome, Progress, TaskRecord, TaskRequest
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime.child_process import ProcessOptions, describe, end_orphans, kill_children, run_process
from mcp_tasks.runtime.context import Asking, asking_now
from mcp_tasks.runtime.journal import Journal, Recorded, Writer
from mcp_tasks.runtime.patience import pause_after
from mcp_tasks.runtime.steps import ONCE, Retry
from mcp_tasks.runtime.suspend import IN_BODY, OVER, TABLE, Branches, RunEvent, SlotUse, State, current_run
from mcp_tasks.runtime.waits import Waits
from mcp_tasks.stores.codec import size_of

if TYPE_CHECKING:
    from mcp_tasks.engines.base import Slot
    from mcp_tasks.model.options import TaskOptions
    from mcp_tasks.runtime.runtime import TaskRuntime
    from mcp_tasks.stores.base import WorkLimits

logger: Final = get_logger(__name__)

# ---- endings


@dataclass(frozen=True, slots=True)
class Success:
    """The request has a result: as on the wire, but without its `resultType`."""

    result: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """The request has a JSON-RPC error; `reason` says why, if it was not the tool that failed."""

    error: JsonObject
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AskedOnCall:
    """The body has asked on the original call (`Run.ask_on_call`), and with that the task is over."""


Ending: TypeAlias = Success | Failure | AskedOnCall

Body: TypeAlias = Callable[["Run"], Awaitable[Ending]]
"""Runs the tool of a request. Raises nothing but cancellation: a tool's exception is an ending."""


async def _encode_result(result: JsonObject, tool: str) -> Outcome:
    meta = result.get("_meta")
    try:
        body = await _encode({key: value for key, value in result.items() if key != "_meta"}, strict=True)
        return Outcome(body=body, meta=None if meta is None else await _encode(meta, strict=True))
    except UnicodeEncodeError as exc:
        # Half a character (a file name from `os.fsdecode`, say) is JSON to Python only.
        raise UsageError(f"The result of tool {tool!r} holds text that is not valid Unicode") from exc
    except ValueNotStorable as exc:
        raise UsageError(f"The result of tool {tool!r} cannot be stored: {exc}") from exc


async def _encode(value: JsonObject, *, strict: bool) -> bytes:
    if is_large(value):
        # In a thread, and in pieces: the event loop goes on meanwhile.
        return await asyncio.to_thread(encode_in_pieces, value, strict=strict)
    return encode_json(value, strict=strict)


def _error_text(result: JsonObject, most: int | None) -> str | None:
    """The first text of a tool's result, shortened."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = (cast("Mapping[str, Any]", block).get("text") for block in blocks if isinstance(block, Mapping))
    said = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return None if said is None else short_message(said, most)


def failed(attempt: int, error: JsonObject, reason: str | None = None) -> tuple[RunFailed, Outcome]:
    """An error of ours, ready to be written; those of tools may be large."""
    return _run_failed(attempt, error, reason, LONGEST_MESSAGE), Outcome(body=encode_json(error))


def _run_failed(attempt: int, error: JsonObject, reason: str | None, most: int | None) -> RunFailed:
    message = error.get("message")
    said = short_message(message, most) if isinstance(message, str) else None
    return RunFailed(attempt=attempt, message=said, reason=reason)


# ---- progress

AT_ONCE: Final = 4
"""Reports of one process that are being written at a time. A fast store writes thousands in a second with these, and
every store has connections left beside them."""

LONGEST: Final = 5.0
"""Seconds after which a write is given up: everything else that the run writes waits behind it."""


class _Reports:
    """Keeps the newest progress of one run, and writes it at once or a moment later: a tool may report as often as it
    likes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._failures = 0
        self._newest: Progress | None = None
        self._writing = False

    def put(self, progress: Progress) -> None:
        """Take a report."""
        said, most = progress.message, self._run.runtime.limits.status_message_bytes
        self._newest = progress if said is None else replace(progress, message=short_message(said, most))
        if not self._writing:
            self._writing = True
            self._run.help(self._flush())

    def take(self) -> Progress | None:
        """The report that is not written yet: the caller writes it."""
        newest, self._newest = self._newest, None
        return newest

    async def _flush(self) -> None:
        """Write the newest report, and those that come meanwhile."""
        runtime = self._run.runtime
        try:
            while self._newest is not None:
                async with runtime.progress_turns:
                    # Not before: it may have been replaced in line, or written with the outcome.
                    progress = self.take()
                    if progress is not None and not await self._write(progress):
                        return
                pause = runtime.settings.progress_interval.total_seconds()
                await asyncio.sleep(max(pause, pause_after(self._failures) if self._failures else 0.0))
        finally:
            self._writing = False

    async def _write(self, progress: Progress) -> bool:
        """Write one report, or keep it for later; whether the run may go on writing."""
        run = self._run
        try:
            async with asyncio.timeout(LONGEST):
                reported = ProgressReported(attempt=run.attempt, progress=progress)
                may_go_on = await run.writer.attempt(run.writer.new_write(reported))
        except (StoreUnavailable, TimeoutError) as exc:
            logger.debug("progress is not stored yet: %s", what(exc))
            self._failures += 1
            if self._newest is None:
                self._newest = progress
            return True
        except Exception as exc:
            # The report is not JSON, say; the next one may do better.
            logger.warning("progress is not stored: %s", what(exc))
            return True
        self._failures = 0
        return may_go_on


# ---- run


class Run:
    """A tool that is executed for one task. Parts that a tool which just returns does not need are made when they are
    needed: most tools just return.

    Args:
        record: The task, claimed for this run.
        request: What was asked for.
        slot: The right to use the worker.
        recorded: What earlier runs recorded; None if there were none.
        limits: The limits of its tool and its owner, if there are any.

    Attributes:
        counts: Whether what the tool says still counts.
        in_body: Whether the tool has been entered, and has neither returned nor been stopped.
        is_cancelled: Whether the work should stop. Also for the thread of a sync tool.
        lost_lease: Whether it was stopped because its process could not renew its lease.
    """

    def __init__(
        self,
        record: TaskRecord,
        *,
        request: TaskRequest,
        runtime: TaskRuntime,
        slot: Slot,
        policy: TaskOptions,
        recorded: Recorded | None = None,
        limits: WorkLimits | None = None,
    ) -> None:
        self.record: TaskRecord = record
        self.request = request
        self.attempt: int = record.attempt
        self.policy = policy
        self.runtime = runtime
        self.state: State = State.STARTING
        self.counts: bool = True
        self.in_body: bool = False
        self.is_cancelled: bool = False
        self.stopped: asyncio.Event = asyncio.Event()
        self.lost_lease: bool = False
        self.branches: Branches = Branches(self)
        self.writer: Writer = Writer(self)
        # Taken before the tool's context is entered: code that runs in it is not a branch of the tool.
        self._context = contextvars.copy_context()
        self._slot = slot
        self._recorded = recorded
        self._limits = limits
        self._scope = anyio.CancelScope()
        self._over: asyncio.Event | None = None
        self._decided: asyncio.Event | None = None
        self._verdict: Failure | None = None
        self._reports: _Reports | None = None
        self._helpers: BackgroundTasks | None = None
        self._groups: set[int] = set()
        """Process groups of commands that are running."""

    async def execute(self, body: Body) -> None:
        """Run the tool and write down how it ended."""
        await self.runtime.lease.make_sure()
        if not self.runtime.lease.is_valid:
            # Lost while the task was being claimed: it is given up with the others, and its tool never begins.
            self.lost_lease = True
            return
        if not self.counts:
            return
        self.branches.own = asyncio.current_task()
        current_run.set(self)
        try:
            if self.record.pause is not None:
                await self.slot_use.begin()
            if self.record.processes and self.counts:
                await self._end_orphans()
            if not self.counts:
                return
            if self.policy.max_runtime is not None:
                self.help(self.slot_use.watch_running_time(self.policy.max_runtime))
            ending = await self._run_body(body)
            # What a tool returns because it was told that its time is up does not count as a result.
            ending = self._verdict or ending
            if ending is not None:
                await self._finish(ending)
        finally:
            self._clear_up()

    # Its parts

    @cached_property
    def journal(self) -> Journal:
        """What the task's journal has, and in which order the tool learns of it."""
        return Journal(self, self._recorded or Recorded())

    @cached_property
    def waits(self) -> Waits:
        """What the tool waits for."""
        return Waits(self)

    @cached_property
    def slot_use(self) -> SlotUse:
        """What the run occupies while it works."""
        return SlotUse(self, self._slot, self._limits)

    # Its state

    def take(self, event: RunEvent) -> bool:
        """Let it happen; False, and nothing changes, if it cannot any more."""
        following = TABLE[self.state].get(event)
        if following is None:
            return False
        self.state = following
        self.counts = following not in OVER
        self.in_body = following in IN_BODY
        if following is State.SUSPENDING:
            self._decided = asyncio.Event()
        elif self._decided is not None:
            self._decided.set()
        if self._over is not None and not self.counts:
            self._over.set()
        return True

    @property
    def over(self) -> asyncio.Event:
        """Set once what the tool says does not count any more."""
        if self._over is None:
            self._over = asyncio.Event()
            if not self.counts:
                self._over.set()
        return self._over

    @property
    def only_waits(self) -> bool:
        """Whether the run waits for an answer or a timer, and does no step. What else it does cannot be seen."""
        return self.state is State.WAITING and not self.journal.is_handing_over

    @property
    def may_leave(self) -> bool:
        """Whether the run loses nothing by being given up now: it only waits, for certain, or what else it does is done
        again anyway."""
        return self.only_waits and (self.policy.rerun or self.branches.all_wait())

    async def suspension_decided(self) -> None:
        """Wait until a pending suspension has been written or has failed."""
        if self._decided is not None:
            await self._decided.wait()

    # What the tool does

    async def report(self, progress: Progress) -> None:
        """Keep the newest progress; it reaches the store at once or a moment later, never per call."""
        if self._reports is None:
            self._reports = _Reports(self)
        self._reports.put(progress)
        await anyio.lowlevel.checkpoint()

    async def ask(self, request: InputRequest, asking: Asking | None = None) -> JsonValue:
        """Put a question to the client and wait for the answer, however long it takes."""
        return (await self.waits.ask([request], asking or asking_now()))[0]

    async def ask_all(self, requests: Mapping[str, InputRequest]) -> dict[str, JsonValue]:
        """Put several questions together and wait for all answers, under the caller's own labels."""
        answers = await self.waits.ask(list(requests.values()), Asking())
        await anyio.lowlevel.checkpoint()
        return dict(zip(requests, answers, strict=True))

    async def step(
        self,
        name: str,
        call: Callable[[], Coroutine[Any, Any, Any]],
        *,
        function: Callable[..., Any] | None = None,
        retry: Retry = ONCE,
    ) -> Any:
        """Do something once in the life of the task. `function` says what the value is, if that is not `call`."""
        return await self.waits.step(name, call, function=function, retry=retry)

    async def sleep(
        self, duration: timedelta | None = None, *, until: datetime | None = None, name: str | None = None
    ) -> None:
        """Wait for a time that is set once in the life of the task."""
        await self.waits.sleep(duration, until, name)

    async def ask_on_call(self, question: JsonObject) -> bool:
        """Ask on the original call, if that has not been answered with the task yet.

        True: it is written, and with that the task is over; the body returns `AskedOnCall`. False: the task has been
        announced, and the question is to be asked in the task.
        """
        if self.record.announced:
            return False
        asked = Outcome(body=encode_json(question, strict=True))
        try:
            await self.writer.record(RunAskedOnCall(attempt=self.attempt), outcome=asked)
        except TransitionRefused:
            return False
        return True

    async def run_process(self, command: Sequence[str], **options: Unpack[ProcessOptions]) -> CompletedProcess[bytes]:
        """Run a command as a child process that ends with this run."""
        await self.ensure_owned()
        groups: list[int] = []

        async def begin(group: int) -> None:
            groups.append(group)
            await self._note_process(group)

        try:
            owners = (self, self.runtime)
            return await run_process(command, stopped=self.stopped, owners=owners, begin=begin, **options)
        finally:
            self._groups.difference_update(groups)

    async def _note_process(self, group: int) -> None:
        """Write down a process group before its command runs, and which others have ended."""
        self._groups.add(group)
        process = await describe(group, self.attempt)
        if process is not None:
            own = [each for each in self.record.processes if each.attempt == self.attempt]
            ended = frozenset(each for each in own if each.group not in self._groups)
            await self.writer.record(ProcessesChanged(attempt=self.attempt, started=process, ended=ended))
            # It may have taken long.
            await self.ensure_owned()

    async def _end_orphans(self) -> None:
        """Kill child processes that earlier runs left running, before the tool begins."""
        gone = await end_orphans(self.record)
        if gone and self.counts:
            await self.writer.write(ProcessesChanged(attempt=self.attempt, ended=gone))

    async def ensure_owned(self) -> None:
        """Return only if the tool may still do something: the task is this run's, as far as the lease can tell."""
        await self.runtime.lease.make_sure()
        if not self.counts:
            # It is being stopped; what it does while it ends (in a `finally`) is not part of the task any more.
            await self.abort_branch()

    async def abort_branch(self) -> NoReturn:
        """End the branch of the tool that calls this, as its run has ended."""
        await anyio.lowlevel.checkpoint()
        # Reached in a branch that the tool started outside of its own scope: there the cancellation does not come.
        raise asyncio.CancelledError

    # What happens to it

    def reconcile(self, record: TaskRecord) -> None:
        """Take note of what another wrote: an answer, a cancellation, a lost lease."""
        if record.version <= self.record.version:
            return
        self.record = record
        self.writer.changed_at = self.runtime.monotonic()
        if record.is_final:
            self.stop()
        elif (record.worker, record.attempt) != (self.runtime.worker, self.attempt):
            self.stop_at_once()
        elif "waits" in vars(self):
            self.waits.look(record)

    def stop(self) -> None:
        """Stop the body; nothing it still says counts. An async one is cancelled, a thread is told."""
        returned = self.state is State.RETURNED
        self.take(RunEvent.STOPPED)
        if not returned:
            # Most runs end by themselves, and then there is nothing to cancel.
            self._cancel()

    def lose_lease(self) -> None:
        """Stop the body for good: another process may run the task soon."""
        self.lost_lease = True
        self.writer.lose_lease()
        self.stop()

    def stop_at_once(self) -> None:
        """Stop the body and kill its child processes: another run of the task may have begun."""
        self.stop()
        kill_children(self)

    async def fail_with(self, verdict: RunStopped | ReplayMismatch) -> None:
        """End the task with an error of ours, whatever the tool is doing."""
        await self.suspension_decided()
        if not self.take(RunEvent.FAILED):
            return
        self._verdict = Failure(self.runtime.describe(verdict), verdict.reason)
        self.is_cancelled = True
        # Written at once, and not when the body has ended: a thread may take its time to notice.
        await self._finish(self._verdict)
        self._cancel()

    async def interrupt(self) -> None:
        """Give the run up because its process stops: another may take over, or the task ends as interrupted."""
        event, outcome = RunReleased(attempt=self.attempt), None
        if not self.policy.rerun:
            stopped = RunStopped("interrupted", self.record.name)
            event, outcome = failed(self.attempt, self.runtime.describe(stopped), stopped.reason)
        try:
            write = self.writer.new_write(*self.reported(), event, outcome=outcome, role="worker")
            await self.writer.attempt(write)
        finally:
            self.stop()

    # For its parts

    def outside(self) -> contextvars.Context:
        """A context for code that is not part of the tool."""
        return self._context.copy()

    def help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the tool, until the run is over."""
        if self._helpers is None:
            self._helpers = BackgroundTasks(self._helper_failed)
        return self._helpers.start(work, context=self.outside())

    def _helper_failed(self, failure: BaseException) -> None:
        logger.error("task %s: %s", short_id(self.record.id), what(failure), exc_info=quietly(failure))

    def reported(self) -> list[Event]:
        """Progress that had no time to be written: it is written with the next event."""
        progress = None if self._reports is None else self._reports.take()
        return [] if progress is None else [ProgressReported(attempt=self.attempt, progress=progress)]

    # Ending

    async def _run_body(self, body: Body) -> Ending | None:
        """How the body ended; None if that does not count any more."""
        ending: Ending | None = None
        try:
            with self._scope:
                self.take(RunEvent.ENTERED)
                ending = await body(self)
        except asyncio.CancelledError:
            if not self.counts:
                raise
            # The body raised it by itself: it awaited something that was cancelled elsewhere, or cancelled itself.
            current = asyncio.current_task()
            while current is not None and current.cancelling() > 0:
                current.uncancel()
            ending = Failure(self.runtime.describe(RuntimeError("the tool cancelled itself")))
        except BaseException as exc:
            # Whatever a tool raises is its ending, `SystemExit` included: the task must end, and the server go on.
            text = "the run of task %s ended with an unexpected exception"
            logger.error(text, short_id(self.record.id), exc_info=quietly())
            raised = exc if isinstance(exc, Exception) else RuntimeError(repr(exc))
            ending = Failure(self.runtime.describe(raised))
        if self._decided is not None:
            await self._decided.wait()
        return ending if self.take(RunEvent.RETURNED) else None

    async def _finish(self, ending: Ending) -> None:
        """Write the ending down, however long the store takes to be there again: it must not be lost."""
        reported = [] if self._reports is None else self.reported()
        runtime, tool = self.runtime, self.record.name
        while True:
            event, outcome = await self._encode(ending)
            try:
                async with runtime.quota.room_for(self.record.owner, tool, size_of(outcome)):
                    await self.writer.write(*reported, event, outcome=outcome)
                return
            except LimitExceeded as exc:
                logger.error("task %s fails, because what it ended with is not kept: %s", short_id(self.record.id), exc)
                ending = Failure(runtime.describe(exc), "result")
            except (TypeError, ValueError, RecursionError, ValueNotStorable) as exc:
                logger.error("what task %s ended with cannot be stored: %s", short_id(self.record.id), what(exc))
                if reported:
                    reported = []
                elif isinstance(ending, Failure):
                    # Not the ending's fault, so no other ending would fare better.
                    raise
                else:
                    ending = Failure(runtime.describe(UsageError(f"the tool's result cannot be stored: {exc}")))

    async def _encode(self, ending: Ending) -> tuple[RunCompleted | RunFailed, Outcome]:
        """An ending, ready to be written; one that cannot be kept becomes a failure that says why."""
        attempt, tool, limits = self.attempt, self.record.name, self.runtime.limits
        most, longest = limits.result_bytes, limits.status_message_bytes
        try:
            match ending:
                case Success(result):
                    outcome = await _encode_result(result, tool)
                    if most is not None and (size := size_of(outcome)) > most:
                        raise TooLarge("result", tool, size, most)
                    is_error = result.get("isError") is True
                    message = _error_text(result, longest) if is_error else None
                    return RunCompleted(attempt=attempt, is_error=is_error, message=message), outcome
                case Failure(error, reason):
                    outcome = Outcome(body=await _encode(error, strict=False))
                    if most is not None and (size := size_of(outcome)) > most:
                        raise TooLarge("error", tool, size, most)
                    return _run_failed(attempt, error, reason, longest), outcome
                case _:
                    raise UsageError(f"The body of {tool!r} ended as if it had asked on the call, and had not")
        except (UsageError, ValueNotStorable) as exc:
            logger.error("a task of tool %r fails, because what it ended with cannot be kept: %s", tool, exc)
            return failed(attempt, self.runtime.describe(exc), "result")

    def _cancel(self) -> None:
        self.is_cancelled = True
        self.stopped.set()
        self._scope.cancel()
        # The scope does not reach a branch of its own making, nor a question of a thread that a step waits for.
        self.branches.cancel_waiting()

    def _clear_up(self) -> None:
        was_stopped = self.state in (State.STOPPING, State.FAILING)
        self.take(RunEvent.ENDED)
        made = vars(self)
        if "waits" in made:
            self.waits.stay()
        if "slot_use" in made:
            self.slot_use.end()
        if "journal" in made:
            self.journal.close()
        if self._helpers is not None:
            self._helpers.cancel()
        self.branches.close(was_stopped=was_stopped)
