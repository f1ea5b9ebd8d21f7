"""One run: a tool at work for a task, from the moment it was claimed to the moment nothing more is to be said.

Where the run stands is a table (`life.py`). Its parts have files of their own: what it writes (`run.py`), how it
ends (`run.py`) and leaves memory (`suspend.py`), questions, timers, steps, progress, what it occupies while it works
(`suspend.py`), and in which order it learns of things (`replay.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from subprocess import CompletedProcess
from typing import Any, Final, NoReturn, Protocol, TypeAlias, Unpack, cast
from weakref import proxy

import anyio
import anyio.lowlevel

from mcp_tasks._utils import short_id
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import (
    ErrorTooLarge,
    Interrupted,
    LimitExceeded,
    LimitReached,
    ReplayMismatch,
    ResultTooLarge,
    RunStopped,
    StaleRun,
    StoreUnavailable,
    TransitionRefused,
    UnknownTask,
    UsageError,
    ValueNotStorable,
    VersionConflict,
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
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.machine import (
    Event,
    ProcessesChanged,
    ProgressReported,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunReleased,
    StepRecorded,
)
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import (
    Actor,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
    WriteId,
)
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime.changes import Changes, LateWrites, Write, is_older
from mcp_tasks.runtime.child_process import ProcessOptions, describe, end_orphans, kill_children, run_process
from mcp_tasks.runtime.context import asking_now, current_run
from mcp_tasks.runtime.launch import Quota
from mcp_tasks.runtime.lease import Lease
from mcp_tasks.runtime.patience import pause_after, until_available
from mcp_tasks.runtime.policy import Settings
from mcp_tasks.runtime.questions import Asking, Questions
from mcp_tasks.runtime.replay import GIVEN_UP, Branches, Deliveries, Place, Replay, ResultId, done_entry, steps_at_work
from mcp_tasks.runtime.steps import Children, Retry, Steps
from mcp_tasks.runtime.suspend import (
    Alarms,
    Leaving,
    Life,
    Parking,
    Rest,
    State,
    TimeLimit,
    Timers,
    Turn,
    uncancel,
    uncancelled,
)
from mcp_tasks.runtime.suspend import Place as PlaceUnderLimits
from mcp_tasks.stores.base import Store, WorkLimits
from mcp_tasks.stores.codec import new_write_id, size_of

# ---- recording
# Writing down what one run does.


logger: Final = get_logger(__name__)


KEPT_FOR: Final = 60.0
"""Seconds for which a run keeps what it wrote to its journal, to write it again if a failover loses it: far more than a
replica lags behind."""


LOST_WITHIN: Final = 20.0
"""Seconds after a write, its own or another's, in which a run that waits compares its task with the store, and not only
the version."""


class Recording:
    """What one run writes, and reads of its journal."""

    def __init__(self, run: Run, host: Host, replay: Replay) -> None:
        # Not kept alive by its own parts: a run is freed when it ends, and not once the garbage collector comes by.
        self._run: Run = proxy(run)
        self._host = host
        self._replay = replay
        self._writing = asyncio.Lock()
        self._last: WriteId | None = None
        self._unsettled: Write | None = None
        self._kept: deque[tuple[int, float, Sequence[JournalEntry]]] = deque()
        self._kept_after = 0
        self._changed_at = -LOST_WITHIN
        self._lease_lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose_lease(self) -> None:
        """Let the tool wait for no write any longer. What it did is written later, if the task is its own then."""
        if not self._lease_lost.done():
            self._lease_lost.set_result(None)

    async def record(
        self, *events: Event, entries: Sequence[JournalEntry] = (), outcome: Outcome | None = None
    ) -> None:
        """Write what the tool did, however long the store takes to be there again.

        The tool never sees a half of it: it is written to the end even if the branch is cancelled meanwhile. If the
        tool may not say such things any more, it goes no further."""
        await self._finish(self._write_whatever_happens(self._by_tool(events, entries, outcome)))

    async def record_in_turn(
        self,
        *events: Event,
        entries: Sequence[JournalEntry] = (),
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """The same for what the tool is handed now: one thing at a time. What it still takes to hand it over is done
        `then`, before anything else is recorded.

        A branch that the tool cancels while it stands in line ends at once, and is handed nothing. If it waited for its
        turn, those in front of it could win a race that they lose in the next run, in which nobody stands in line."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write = self._by_tool(events, entries)
        writing = self._write_in_turn(write, begun, then)
        turn = asyncio.get_running_loop().create_task(writing, context=self._run.outside())
        try:
            await asyncio.wait({begun})
        except asyncio.CancelledError:
            if self._run.life.counts and not begun.done():
                turn.cancel()
                raise
            # What a stopped run did is written all the same: its task may still be its own.
            if self._lease_lost.done() and not begun.done():
                self._host.late_writes.add(self._run.record, write)
            with suppress(Exception):
                await uncancelled(turn, unless=self._lease_lost)
            raise
        await self._finish(turn)

    async def write_patiently(
        self, *events: Event, outcome: Outcome | None = None, limits: WorkLimits | None = None
    ) -> bool:
        """Write how the run ended, waits or goes on, however long the store takes to be there again. False, and the run
        is stopped, if its task is not its own any more.

        Raises:
            LimitReached: There is no place within the limits. Nothing was written.
        """
        return await self._write_patiently(self._by_tool(events, outcome=outcome, limits=limits))

    async def write(self, *events: Event) -> bool:
        """Write what the tool said, once. False, and the run is stopped, if its task is not its own any more."""
        return await self._write(self._by_tool(events))

    async def write_leaving(self, *events: Event, outcome: Outcome | None = None) -> bool:
        """The same for what the process does with the run: park it, or give it up."""
        return await self._write(Write(events=events, actor=Actor("worker", self._host.worker), outcome=outcome))

    @asynccontextmanager
    async def giving_up(self, result: ResultId) -> AsyncGenerator[None]:
        """If the tool itself cancels what is done while this is entered, that is recorded: it will give up again.

        Otherwise the next run would go on where this one went another way.
        """
        try:
            yield
        except asyncio.CancelledError:
            self.record_first(self.record_given_up([result], place=self._run.place))
            raise

    def require_room(self) -> None:
        """See that something new may begin: it ends as an entry of the journal.

        Raises:
            LimitExceeded: The journal has as many entries as it may have.
        """
        self._replay.require_room(self._host.limits.journal_entries)

    def record_first(self, work: Coroutine[Any, Any, None]) -> None:
        """Record something before anything new begins. Nobody waits for it now: a cancellation is not held up."""
        self._run.deliveries.begin_after(self._run.help(work))

    async def record_given_up(self, results: Sequence[ResultId], *events: Event, place: Place) -> None:
        """Record what the tool did not wait for. What ends because the run is stopped is not given up."""
        if results and self._run.life.counts:
            entries = [done_entry(result, GIVEN_UP, place) for result in results]
            await self._write_patiently(self._by_tool((StepRecorded(attempt=self._run.attempt), *events), entries))

    async def journal(self, *, after: int) -> Sequence[JournalEntry]:
        """What the task's journal has beyond `after`, as soon as the store gives it."""
        task_id = self._run.record.id
        try:
            return await until_available(lambda: self._host.store.journal(task_id, after=after), self._run)
        except StoreUnavailable:
            if self._run.life.counts:
                raise
            # The run has been stopped, for example while a write was under way. The tool is not told of the outage.
            await self._run.go_no_further()

    def _by_tool(
        self,
        events: Sequence[Event],
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> Write:
        actor = Actor("run", self._host.worker)
        return Write(events=events, actor=actor, entries=entries, outcome=outcome, limits=limits)

    async def _finish(self, writing: Coroutine[Any, Any, bool] | asyncio.Task[bool]) -> None:
        if not await uncancelled(writing, context=self._run.outside(), unless=self._lease_lost):
            await self._run.go_no_further()

    async def _write_in_turn(
        self, write: Write, begun: asyncio.Future[None], then: Callable[[], Awaitable[None]] | None
    ) -> bool:
        async with self._run.deliveries.turn():
            begun.set_result(None)
            written = await self._write_whatever_happens(write)
            if written and then is not None:
                await then()
            return written

    async def _write_whatever_happens(self, write: Write) -> bool:
        # Kept from here on, as an attempt may hang: if the process loses touch with the store, what was done is done,
        # and if the task is still ours when the store is back, it need not be done again.
        late, is_late = self._host.late_writes, False
        late.add(self._run.record, write)
        try:
            written = await self._write_patiently(write)
            is_late = not written
        except asyncio.CancelledError:
            is_late = True
            raise
        finally:
            if not is_late or self._run.record.is_final or self._host.lease.is_valid:
                late.settled(write)
        return written

    async def _write_patiently(self, write: Write) -> bool:
        failures = 0
        while True:
            try:
                return await self._write(write, repeats=True)
            except StoreUnavailable as exc:
                logger.debug("task %s… cannot be written yet: %s", self._run.record.id[:12], exc)
            is_judged = self._run.life.state is State.JUDGED
            if not self._run.life.counts and not is_judged:
                return False
            failures += 1
            # A run that is stopped tries once more, at once: a process that stops waits for less than a pause. One that
            # is judged is over already, and its verdict is still to be written.
            with anyio.move_on_after(pause_after(failures)):
                await (anyio.sleep_forever() if is_judged else self._run.life.over.wait())

    async def _write(self, write: Write, *, repeats: bool = False) -> bool:
        """One attempt to write it; with `repeats`, another follows if the store is not available.

        Nothing overtakes a write that will be repeated: it is written first, or this one fails as well. So the number
        of the run's last write, in the record, says of all before it that they were made.
        """
        async with self._writing:
            if (earlier := self._unsettled) is not None and earlier is not write:
                try:
                    await self._make(earlier)
                except (LimitReached, ValueNotStorable):
                    # Its own caller hears of that, with the next attempt.
                    earlier.id = None
            self._unsettled = None
            try:
                return await self._make(write)
            except StoreUnavailable:
                self._unsettled = write if repeats else None
                raise

    async def _make(self, write: Write) -> bool:
        if write.made is not None:
            return write.made
        if write.id is None:
            write.id = self._last = self._next_id()
        try:
            record = await write.to(self._host.changes, self._run.record, self._restore)
        except (StaleRun, UnknownTask):
            self._run.stop_at_once()
            write.made = False
        else:
            # A change that lost against another's write has read it; what it says is news to the questions.
            self._run.reconcile(record)
            self._replay.length += len(write.entries)
            # A task that has ended passes over all that comes after its end.
            write.made = not record.is_final or record.has(write.id)
            if not write.made and self._run.life.counts:
                # The run has read as many versions of the task, from before a failover, and took no note of this one.
                self._run.stop()
            self.has_changed()
            self._keep(write)
        return write.made

    def has_changed(self) -> None:
        """The run wrote, or took note of what another wrote."""
        self._changed_at = self._host.monotonic()

    @property
    def may_be_lost(self) -> bool:
        """Whether the run only waits, and wrote or read so lately that a failover may have lost it.

        If another has written since, the version alone does not tell.
        """
        return self._run.rest.waits > 0 and self._host.monotonic() < self._changed_at + LOST_WITHIN

    async def make_up(self) -> None:
        """See whether the store has an older record than this run read or wrote, and if so, write again what was lost.

        A failover to a replica that lags behind loses what it was not sent, although it was acknowledged.
        """
        async with self._writing:
            known = self._run.record
            try:
                stored = await self._host.changes.reload(self._run.record.id)
                if is_older(stored, known):
                    await self._restore(stored)
            except VersionConflict:
                # Another writes it just now: the next look tells.
                return
            except (StaleRun, UnknownTask):
                self._run.stop()

    async def _restore(self, stored: TaskRecord) -> TaskRecord:
        """Write again what the store lost: the record, answers that were read, and the entries of the last minute. What
        others have written there since is kept: their answers, and that the task was announced.

        Raises:
            StaleRun: The task as it is stored has ended, or was given to another run.
        """
        run, known = self._run, self._run.record
        is_claimed = stored.worker == self._host.worker and stored.attempt == run.attempt
        was_before = stored.worker is None and stored.attempt < run.attempt
        if stored.is_final or not (is_claimed or was_before):
            raise StaleRun(known.id, stored.status, "writing again", "the store went back, and it is not ours now")
        if was_before:
            # The first heartbeat may be gone with the claim, and a worker without one is dead.
            await self._host.lease.renew()
        last = next((each for each in known.writes if each.number), None)
        made = next((each.number for each in stored.writes if last is not None and each.writer == last.writer), 0)
        entries = [entry for number, _, kept in self._kept if number > made for entry in kept]
        journal = await self._host.store.journal(known.id)
        has = {entry.key for entry in journal if entry.kind in ("answer", "refusal")}
        read = self._replay.answer_entries()
        entries = [*(entry for entry in read if entry.key not in has), *entries]
        if stored.version >= known.version and last is not None and made >= last.number:
            # All that the run wrote is there: only others' writes are lost.
            base, asked = stored, stored.inputs.outstanding
        else:
            base, asked = known, {**known.inputs.outstanding, **run.unanswered()}
        answered = has | {entry.key for entry in read}
        asked = {key: request for key, request in asked.items() if key not in answered}
        lost = base.but(
            version=max(stored.version, known.version) + 1,
            status=TaskStatus.INPUT_REQUIRED if asked else TaskStatus.WORKING,
            announced=stored.announced or known.announced,
            inputs=replace(base.inputs, outstanding=asked),
        ).written(new_write_id())
        restored = await self._host.changes.restore(lost, known=known.version, expected=stored.version, entries=entries)
        # Entries have other numbers now.
        self._replay.read_up_to = 0
        run.reconcile(restored)
        if made < self._kept_after:
            # More is gone than is known here. A tool that may run again starts from what is left; another one ends.
            run.help(self._leave_to_another())
        return restored

    async def _leave_to_another(self) -> None:
        run = self._run
        await run.interrupt()
        if run.record.is_queued(run.now()):
            await uncancelled(self._host.submit(run.record), context=run.outside())

    def _keep(self, write: Write) -> None:
        """Keep what was written for as long as a store may lose it in a failover."""
        now = self._host.monotonic()
        while self._kept and self._kept[0][1] < now:
            self._kept_after = self._kept.popleft()[0]
        if write.entries and write.id is not None:
            self._kept.append((write.id.number, now + KEPT_FOR, write.entries))

    def _next_id(self) -> WriteId:
        last = self._last or next((each for each in self._run.record.writes if each.number), None)
        return new_write_id(run=True) if last is None else WriteId(last.writer, last.number + 1)


# ---- ending
# How a run ends: as its body says it, and as it is written down.


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


async def last_words(
    ending: Ending,
    attempt: int,
    *,
    tool: str,
    describe: Callable[[Exception], JsonObject],
    limits: Limits,
) -> tuple[RunCompleted | RunFailed, Outcome]:
    """An ending, ready to be written; one that cannot be kept becomes a failure that says why."""
    max_size, max_message = limits.result_bytes, limits.status_message_bytes
    try:
        match ending:
            case Success(result):
                return await completed(attempt, result, tool=tool, max_size=max_size, max_message=max_message)
            case Failure(error, reason):
                outcome = Outcome(body=await _encode(error, strict=False))
                if max_size is not None and len(outcome.body) > max_size:
                    raise ErrorTooLarge(tool, len(outcome.body), max_size)
                return _failure(attempt, error, reason, max_message), outcome
            case _:
                raise UsageError(f"The body of {tool!r} ended as if it had asked on the call, and had not")
    except (UsageError, ValueNotStorable) as exc:
        logger.error("a task of tool %r fails, because what it ended with cannot be kept: %s", tool, exc)
        return failed(attempt, describe(exc), "result")


async def completed(
    attempt: int,
    result: JsonObject,
    *,
    tool: str,
    max_size: int | None,
    max_message: int | None = LONGEST_MESSAGE,
) -> tuple[RunCompleted, Outcome]:
    """A result, ready to be written.

    Raises:
        UsageError: It cannot be kept: not JSON, not Unicode, or larger than `max_size`. The message says which.
    """
    meta = result.get("_meta")
    try:
        outcome = Outcome(
            body=await _encode({key: value for key, value in result.items() if key != "_meta"}, strict=True),
            meta=None if meta is None else await _encode(meta, strict=True),
        )
    except UnicodeEncodeError as exc:
        # Half a character (a file name from `os.fsdecode`, say) is JSON to Python and to nobody else.
        raise UsageError(f"The result of tool {tool!r} holds text that is not valid Unicode") from exc
    except ValueNotStorable as exc:
        raise UsageError(f"The result of tool {tool!r} cannot be stored: {exc}") from exc
    size = len(outcome.body) + len(outcome.meta or b"")
    if max_size is not None and size > max_size:
        raise ResultTooLarge(tool, size, max_size)
    is_error = result.get("isError") is True
    message = _told(result, max_message) if is_error else None
    return RunCompleted(attempt=attempt, is_error=is_error, message=message), outcome


def _told(result: JsonObject, most: int | None) -> str | None:
    """What a tool says of its error: the first text of the result, shortened."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = (cast("Mapping[str, Any]", block).get("text") for block in blocks if isinstance(block, Mapping))
    said = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return None if said is None else short_message(said, most)


def failed(attempt: int, error: JsonObject, reason: str | None = None) -> tuple[RunFailed, Outcome]:
    """An error of ours, ready to be written; those of tools may be large."""
    return _failure(attempt, error, reason), Outcome(body=encode_json(error))


def _failure(attempt: int, error: JsonObject, reason: str | None, most: int | None = LONGEST_MESSAGE) -> RunFailed:
    message = error.get("message")
    said = short_message(message, most) if isinstance(message, str) else None
    return RunFailed(attempt=attempt, message=said, reason=reason)


async def _encode(value: JsonObject, *, strict: bool) -> bytes:
    if is_large(value):
        # In a thread, and in pieces: the event loop goes on meanwhile.
        return await asyncio.to_thread(encode_in_pieces, value, strict=strict)
    return encode_json(value, strict=strict)


# ---- progress
# Progress on its way to the store, throttled: a tool may report as often as it likes.


AT_ONCE: Final = 4
"""Reports of one process that are being written at a time. A store that is quick writes thousands in a second with
these, and none has so few connections that nothing is left."""

LONGEST: Final = 5.0
"""Seconds after which a write is given up: everything else that the run writes waits behind it."""


class ProgressThrottle:
    """Keeps the newest progress of one run, and writes it at once or a moment later.

    Args:
        write: Writes one report; whether the run may go on writing.
        pause: The least time between two writes.
        turns: Limits how many reports are being written, over all runs of the process.
        longest: Bytes of a message. A longer one is cut.
    """

    def __init__(
        self,
        write: Callable[[Progress], Awaitable[bool]],
        pause: timedelta,
        turns: asyncio.Semaphore,
        longest: int | None = LONGEST_MESSAGE,
    ) -> None:
        self._longest = longest
        self._write = write
        self._pause = pause.total_seconds()
        self._turns = turns
        self._failures = 0
        self._newest: Progress | None = None
        self._writing = False

    def put(self, progress: Progress) -> bool:
        """Take a report; whether `flush` should be started for it."""
        said = progress.message
        self._newest = progress if said is None else replace(progress, message=short_message(said, self._longest))
        start, self._writing = not self._writing, True
        return start

    def take(self) -> Progress | None:
        """The report that had no time to be written: it goes with the outcome, in one write."""
        newest, self._newest = self._newest, None
        return newest

    async def flush(self) -> None:
        """Write what there is, and what comes meanwhile."""
        try:
            while self._newest is not None:
                async with self._turns:
                    # Not before: it may have been replaced in line, or written with the outcome.
                    progress = self.take()
                    if progress is not None and not await self._written(progress):
                        return
                await asyncio.sleep(max(self._pause, pause_after(self._failures) if self._failures else 0.0))
        finally:
            self._writing = False

    async def _written(self, progress: Progress) -> bool:
        """Write one report, or keep it for later; whether the run may go on writing."""
        try:
            async with asyncio.timeout(LONGEST):
                may_go_on = await self._write(progress)
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


# ---- helpers
# What is done for a run beside its tool: writing questions and progress, watching the time.


class Helpers:
    """The asyncio tasks that work for one run and are not part of its tool."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._at_work: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None]:
        """Begin something; should it fail, that is logged."""
        helper = asyncio.get_running_loop().create_task(work, context=context)
        self._at_work.add(helper)
        helper.add_done_callback(self._ended)
        return helper

    def cancel(self) -> None:
        """The run is over."""
        for helper in self._at_work:
            helper.cancel()

    def _ended(self, helper: asyncio.Task[None]) -> None:
        self._at_work.discard(helper)
        if not helper.cancelled() and (failure := helper.exception()) is not None:
            logger.error("task %s…: %s", self._task_id[:12], what(failure), exc_info=quietly(failure))


# ---- host
# What a run needs of the runtime it belongs to.


class Host(Protocol):
    """What a run needs of the runtime it belongs to."""

    @property
    def worker(self) -> str:
        """The name of this process."""
        ...

    @property
    def settings(self) -> Settings: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def alarms(self) -> Alarms: ...

    @property
    def parking(self) -> Parking: ...

    @property
    def describe(self) -> Callable[[Exception], JsonObject]:
        """An exception as the JSON-RPC error that a client sees."""
        ...

    @property
    def progress_turns(self) -> asyncio.Semaphore:
        """Limits how many progress reports are being written at a time."""
        ...

    @property
    def lease(self) -> Lease: ...

    @property
    def store(self) -> Store: ...

    @property
    def changes(self) -> Changes: ...

    @property
    def quota(self) -> Quota: ...

    @property
    def late_writes(self) -> LateWrites: ...

    async def submit(self, record: TaskRecord) -> None:
        """Have a task run again that nobody has."""
        ...

    async def submit_later(self, record: TaskRecord) -> None:
        """Have a parked task run when its time comes, if the engine can wait for it."""
        ...


Body: TypeAlias = Callable[["Run"], Awaitable[Ending]]
"""Runs the tool of a request. Raises nothing but cancellation: a tool's exception is an ending."""


class Run:
    """A tool at work for one task.

    Args:
        record: The task, claimed for this run.
        request: What was asked for.
        slot: The right to use the worker.
        replay: What earlier runs recorded.
        place: Makes its place under the limits of its tool and its owner, if there are limits.
    """

    def __init__(
        self,
        record: TaskRecord,
        *,
        request: TaskRequest,
        host: Host,
        slot: Slot,
        policy: TaskOptions,
        replay: Replay,
        place: Callable[[Run], PlaceUnderLimits] | None = None,
    ) -> None:
        self.record: TaskRecord = record
        self.request = request
        self.attempt: int = record.attempt
        self.policy = policy
        self.life: Life = Life()
        self.branches: Branches = Branches(current_run, self, in_thread=policy.in_thread)
        # Taken before the tool's context is entered: what runs in it is not a branch of the tool.
        self._context = contextvars.copy_context()
        self.rest: Rest = Rest(self.life, slot, self.branches, host.parking.room, self._context)
        self.recording: Recording = Recording(self, host, replay)
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
        await self._host.lease.make_sure()
        if not self._host.lease.is_valid:
            # Lost while the task was being claimed: it is given up with the others, and its tool never begins.
            self.lost_lease = True
        elif self.life.counts:
            await self._execute(body)

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
        return Place(branch=not self.branches.in_own, steps=steps_at_work.get())

    @property
    def only_waits(self) -> bool:
        """Whether the run waits for an answer or a timer, and does no step. What else it does cannot be seen."""
        return self.life.is_waiting and not (self._deliveries is not None and self._deliveries.is_handing_over)

    @property
    def may_leave(self) -> bool:
        """Whether the run loses nothing by being given up now: it only waits, for certain, or what else it does is done
        again anyway."""
        return self.only_waits and (self.policy.rerun or self.branches.all_wait())

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

    def giving_up_step(self, name: str) -> AbstractAsyncContextManager[None]:
        """Record it if the tool gives up on what follows from a recorded step, which then counts as given up."""
        return self.recording.giving_up(ResultId("step", name))

    def step_value(self, name: str) -> Any:
        """What an earlier run recorded as the value of a step; None if none did."""
        return self._replay.results.get(ResultId("step", name), {}).get("value")

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
        self.recording.has_changed()
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

    def lose_lease(self) -> None:
        """Stop the body for good: another process may run the task soon."""
        self.lost_lease = True
        self.recording.lose_lease()
        self.stop()

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
        """Return only if the tool may still do something: the task is this run's, as far as the lease can tell."""
        await self._host.lease.make_sure()
        if not self.life.counts:
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
