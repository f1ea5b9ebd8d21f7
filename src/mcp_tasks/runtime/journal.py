"""The journal of a task: what earlier runs recorded, in which order a run is handed that, and how it records more.

Recorded things are found by identity and not by when they came. A step is known by its name; a question by its `key`,
or else by what it asks and how many equal ones came before it; a timer by its name, or else by its duration and how
many equal ones came before. So branches of a tool may come in any order.

Which branch wins a race (`asyncio.wait`, a task group that cancels the rest) depends on what came first. So results are
handed to a tool one at a time, with some turns of the event loop in between for what follows from each, and are
recorded in that order. A tool that is started again is handed the recorded results in that order, before anything new
begins. A recorded result that the tool does not ask for is waited for only while something of the tool is not in one of
our waits, and not for longer than `PATIENCE`. Then the others go past it, and a branch that asks later gets it at once.

The tool's own asyncio task does one thing after another. If it comes to something new before it came to all that it
recorded itself, the tool does something else than the first time, and is refused. What a branch recorded is never
missed: the branch may have lost a race.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, Unpack
from weakref import proxy

import anyio

from mcp_tasks._utils import short_id
from mcp_tasks.errors import (
    LimitExceeded,
    LimitReached,
    ReplayMismatch,
    StaleRun,
    StoreUnavailable,
    UnknownTask,
    ValueNotStorable,
    VersionConflict,
)
from mcp_tasks.model.json import JsonValue, object_in
from mcp_tasks.model.machine import Event, StepRecorded
from mcp_tasks.model.record import Actor, InputRequest, JournalEntry, Outcome, TaskRecord, TaskStatus, WriteId
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.changes import Write, is_older
from mcp_tasks.runtime.patience import pause_after, until_available
from mcp_tasks.runtime.suspend import State, uncancelled
from mcp_tasks.stores.base import WorkLimits
from mcp_tasks.stores.codec import from_micros, new_write_id, to_micros

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

logger: Final = get_logger(__name__)

# ---- entries

Kind: TypeAlias = Literal["step", "question", "timer"]

GIVEN_UP: Final = "given up"
"""How a step, a question or a timer ended that the tool did not wait for: because of a time-out, or a lost race."""

WITHIN: Final = "within"
"""Marks what happened inside steps, with their names. Once one of them is recorded, the tool does not come there."""

BRANCH: Final = "branch"
"""Marks what was handed to a branch of the tool, not to its own asyncio task: the tool may have cancelled that
branch."""

steps_at_work: Final[ContextVar[tuple[str, ...]]] = ContextVar("mcp_tasks_steps_at_work", default=())
"""The steps that the calling code is part of, the outermost first."""

Tags: TypeAlias = Mapping[str, Any]
"""Where in the tool something happened, as the journal keeps it: in a branch, and inside which steps."""


@dataclass(frozen=True, slots=True)
class ResultId:
    """What a tool is handed: the end of a step, of a question or of a timer."""

    kind: Kind
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key!r}"


@dataclass(frozen=True, slots=True)
class Ask:
    """A question with the key that it has for the life of the task."""

    key: str
    request: InputRequest
    asked_at: datetime | None


def ask_entry(ask: Ask, key: str | None, tags: Tags) -> JournalEntry:
    """A question that is put; `key` is the author's own name for it."""
    request = ask.request
    value: dict[str, Any] = {"method": request.method, "params": request.params, **tags}
    if ask.asked_at is not None:
        value["asked"] = to_micros(ask.asked_at)
    if request.deadline is not None:
        value["deadline"] = to_micros(request.deadline)
    if key is not None:
        value["key"] = key
    return JournalEntry(kind="ask", key=ask.key, value=value)


def done_entry(result: ResultId, how: str, tags: Tags) -> JournalEntry:
    """The tool was handed the end of a question or a timer, or gave up on something."""
    return JournalEntry(kind="done", key=result.key, value={"kind": result.kind, "how": how, **tags})


def version_entry(began: str | None, now: str | None, *, over: bool) -> JournalEntry:
    """The tool is another version from here on; it starts over, or goes on."""
    return JournalEntry(kind="version", key=now or "", value={"from": began, "to": now, "over": over})


def ask_identity(request: InputRequest, key: str | None) -> str:
    """What makes a question the same one in the next run."""
    return f"key:{key}" if key is not None else json.dumps([request.method, request.params], sort_keys=True)


def short(value: JsonValue) -> str:
    """A value for a person to read."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


# ---- what earlier runs recorded

_ANSWERS: Final = frozenset({"answer", "refusal"})


class Recorded:
    """What earlier runs recorded, found by its identity.

    Attributes:
        answers: Answers to questions, and refusals to answer.
        results: What the tool was handed, in the order in which it was.
        begun: Questions and timers that the tool came to and was not handed the end of.
        recorded_with: Of what another version of the tool recorded, which version it was.
        starts_over: How often the tool started over. Nothing that was recorded before the last time is found again.
        reopened: Steps that an earlier run began and did not end, as far as something happened in them.
        read_up_to: The number of the last entry of the journal that has been read.
        length: How many entries the journal has.
    """

    def __init__(self, entries: Sequence[JournalEntry] = (), *, outstanding: Collection[str] = ()) -> None:
        self.answers: dict[str, JournalEntry] = {}
        self.results: dict[ResultId, Mapping[str, Any]] = {}
        self.begun: dict[ResultId, Mapping[str, Any]] = {}
        self.recorded_with: dict[ResultId, str | None] = {}
        self.starts_over: int = 0
        self.reopened: set[str] = set()
        self.read_up_to: int = max((entry.number for entry in entries), default=0)
        self.length: int = len(entries)
        self._given_up: Counter[ResultId] = Counter()
        self._asks: dict[str, list[Ask]] = {}
        self._asked = 0
        self._keys: set[str] = set()
        self._timers: dict[str, datetime] = {}
        self._met: Counter[str] = Counter()
        self._came: Counter[str] = Counter()
        for entry in self._of_open_steps(self._since_start(entries)):
            self._add(entry)
        for result in list(self.begun):
            # Neither open nor answered: the tool gave up on it.
            if result.kind == "question" and result.key not in outstanding and result.key not in self.answers:
                del self.begun[result]
                self._given_up[result] += 1

    def add_news(self, entries: Sequence[JournalEntry]) -> None:
        """Take note of answers that came since; the rest of what is new, this run wrote itself."""
        for entry in entries:
            self.read_up_to = max(self.read_up_to, entry.number)
            if entry.kind in _ANSWERS:
                self.length += 1
                self._add(entry)

    def gives_up(self, result: ResultId) -> bool:
        """Whether an earlier run gave up on this; said once for each time that it did."""
        again = self._given_up[result] > 0
        self._given_up[result] -= again
        return again

    def come_to_ask(self, identity: str) -> ResultId:
        """The next question of that identity, known by that until it is put under a key of its own."""
        self._came[identity] += 1
        return ResultId("question", f"{identity}#{self._came[identity]}")

    def find_ask(self, identity: str) -> Ask | None:
        """The question of that identity that an earlier run put, if it did; each one is found once."""
        place = self._met[identity]
        self._met[identity] += 1
        known = self._asks.get(identity, ())
        return known[place] if place < len(known) else None

    def find_timer(self, identity: str) -> tuple[str, datetime | None]:
        """The key of the next timer of that identity, and when it ends if an earlier run set it."""
        self._met[identity] += 1
        key = f"{identity}#{self._met[identity]}"
        return key, self._timers.get(key)

    def new_key(self, wanted: str | None, kind: str) -> str:
        """A key for a question that was never used in this task: `wanted` if that is free, or the next of its kind."""
        if wanted is None:
            self._asked += 1
            wanted = f"{kind}-{self._asked}"
        key, number = wanted, 1
        while key in self._keys:
            number += 1
            key = f"{wanted}-{number}"
        self._keys.add(key)
        return key

    def _since_start(self, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        """The entries that count: those since the tool started over, if it did."""
        starts = [number for number, entry in enumerate(entries) if entry.kind == "version" and entry.value["over"]]
        self.starts_over = len(starts)
        first = starts[-1] if starts else 0
        for entry in entries[:first]:
            self._forget(entry)
        return entries[first:]

    def _of_open_steps(self, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """The entries but for those inside steps that have ended: the tool comes for the end of the step, or gives up
        on it again, and for nothing that happened in it."""
        kept: dict[int, JournalEntry] = dict(enumerate(entries))
        inside: dict[str, list[int]] = {}
        for number, entry in enumerate(entries):
            for within in inside.pop(entry.key, ()) if _ends_step(entry) else ():
                if within in kept:
                    self._forget(kept.pop(within))
            # An answer is the client's, and may look like anything.
            for step in () if entry.kind in _ANSWERS or isinstance(entry.value, int) else entry.value.get(WITHIN, ()):
                inside.setdefault(step, []).append(number)
        self.reopened = {step for step, numbers in inside.items() if kept.keys() & set(numbers)}
        return list(kept.values())

    def _forget(self, entry: JournalEntry) -> None:
        if entry.kind == "ask":
            # A key is used once in the life of a task.
            self._keys.add(entry.key)
            self._asked += 1

    def _add(self, entry: JournalEntry) -> None:
        match entry.kind:
            case "ask":
                identity, ask = _read_ask(entry)
                self._asks.setdefault(identity, []).append(ask)
                self._forget(entry)
                self.begun[ResultId("question", ask.key)] = entry.value
            case "answer" | "refusal":
                self.answers[entry.key] = entry
            case "timer":
                self._timers[entry.key] = from_micros(entry.value["until"])
                self.begun[ResultId("timer", entry.key)] = entry.value
            case "step":
                _check_step(entry)
                self.results[ResultId("step", entry.key)] = entry.value
            case "done":
                self._end(ResultId(entry.value["kind"], entry.key), entry.value)
            case _:
                # "version": everything before this was recorded by another one.
                for result in (*self.results, *self.begun):
                    self.recorded_with.setdefault(result, entry.value["from"])

    def _end(self, result: ResultId, value: Mapping[str, Any]) -> None:
        self.begun.pop(result, None)
        if value["how"] == GIVEN_UP:
            # Also after its end was recorded: the tool was cancelled in that moment, and never saw it.
            self.results.pop(result, None)
            self._given_up[result] += 1
        else:
            self.results[result] = value


def _ends_step(entry: JournalEntry) -> bool:
    if entry.kind == "done":
        return bool(entry.value["kind"] == "step" and entry.value["how"] == GIVEN_UP)
    return entry.kind == "step"


def _check_step(entry: JournalEntry) -> None:
    """See that the end of a step can be read: found out here, and not when the tool comes to the step."""
    stored = entry.value
    readable = "value" in stored
    if "error" in stored:
        error = stored["error"]
        readable = isinstance(error["type"], str) and isinstance(error["message"], str) and "arguments" in error
    if not readable:
        raise ValueError(f"how step {entry.key!r} ended is not recorded as such")


def _read_ask(entry: JournalEntry) -> tuple[str, Ask]:
    value = entry.value
    deadline, asked = (None if value.get(name) is None else from_micros(value[name]) for name in ("deadline", "asked"))
    request = InputRequest(method=value["method"], params=value["params"], deadline=deadline)
    return ask_identity(request, value.get("key")), Ask(entry.key, request, asked)


# ---- order

SETTLE: Final = 30
"""Turns of the event loop given to what follows from a result. A level of nested gathers and groups takes three or
four."""

PATIENCE: Final = 1.0
"""Seconds that a branch waits for others to come for what was recorded before its own result. Not longer: a recorded
result that is held back must not run into the tool's own time-out around it."""


class Journal:
    """Hands recorded results to the tool of one run in their order, and records new ones in the order in which the tool
    learns of them."""

    def __init__(self, run: Run, recorded: Recorded) -> None:
        self.recorded = recorded
        self._run = run
        self._ahead = dict(recorded.results)
        known = (*recorded.results.items(), *recorded.begun.items())
        self._of_own = {result: value for result, value in known if not value.get(BRANCH)}
        # Branches that wait for the turn of a result, or of something new (None), and since when.
        self._waiting: dict[asyncio.Future[None], tuple[ResultId | None, float]] = {}
        self._came = asyncio.Event()
        self._turn = asyncio.Lock()
        self._first: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    @property
    def tags(self) -> Tags:
        """Where in the tool the calling code is."""
        branch, steps = not self._run.branches.in_own, steps_at_work.get()
        return ({BRANCH: True} if branch else {}) | ({WITHIN: list(steps)} if steps else {})

    @property
    def is_handing_over(self) -> bool:
        """Whether some branch waits for a turn that will come by itself."""
        return bool(self._waiting)

    def has(self, result: ResultId | None) -> bool:
        """Whether an earlier run was handed this."""
        return result in self.recorded.results

    def met(self, result: ResultId) -> None:
        """The tool came to something that an earlier run came to."""
        self._of_own.pop(result, None)

    def step_value(self, name: str) -> Any:
        """The value of a step that an earlier run recorded; None if there is none."""
        return self.recorded.results.get(ResultId("step", name), {}).get("value")

    def require_room(self) -> None:
        """See that something new may begin. What has begun is recorded to its end, also beyond the limit.

        Raises:
            LimitExceeded: The journal has as many entries as it may have.
        """
        most, length = self._run.runtime.limits.journal_entries, self.recorded.length
        if most is not None and length >= most:
            raise LimitExceeded(
                "journal_entries",
                f"The journal of this task has {length:,} entries, and may have {most:,} (Limits.journal_entries)"
                ": it takes no more steps, questions or timers. Put more into one step, or into tasks of its own",
            )

    # Handing over

    async def result(self, result: ResultId) -> Mapping[str, Any]:
        """What an earlier run was handed, when its turn has come."""
        branches = self._run.branches
        branches.contact()
        self.met(result)
        if result in self._ahead and (branches.several or next(iter(self._ahead)) != result):
            try:
                await self._turn_of(result)
            finally:
                # Also if it was cancelled: it was asked for, and only not waited for.
                self._ahead.pop(result, None)
        self._ahead.pop(result, None)
        return self.recorded.results[result]

    async def caught_up(self, what: str) -> None:
        """Wait until everything recorded has been handed over, before `what` begins or is handed over as new."""
        branches = self._run.branches
        branches.contact()
        with branches.waiting():
            while self._first:
                await asyncio.wait(self._first)
        if self._of_own and branches.in_own:
            self._run.help(self._run.fail_with(self._mismatch(what, *next(iter(self._of_own.items())))))
            # The run ends, and this branch with it.
            with branches.waiting():
                await asyncio.get_running_loop().create_future()
        if self._ahead:
            await self._turn_of(None)

    def close(self) -> None:
        """The run is over."""
        if self._pump is not None:
            self._pump.cancel()

    async def _turn_of(self, result: ResultId | None) -> None:
        """Wait until this result is to be handed over, or until something new may begin."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._waiting[ready] = result, loop.time()
        self._came.set()
        if self._pump is None or self._pump.done():
            self._pump = self._start(self._hand_over())
        try:
            with self._run.branches.waiting():
                await ready
        finally:
            del self._waiting[ready]
            self._came.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._run.outside())

    async def _hand_over(self) -> None:
        """Hand over what is wanted, in the order of the journal, and then let begin what is new."""
        while self._waiting:
            head = next(iter(self._ahead), None)
            if head is None:
                # Results first, then what is new.
                for ready in sorted(self._waiting, key=lambda each: self._waiting[each][0] is None):
                    _let(ready)
                await asyncio.sleep(0)
            elif (ready := self._wanted().get(head)) is not None:
                del self._ahead[head]
                _let(ready)
                await self._settle()
            elif not await self._more_come():
                # Do not wait for the next results up to the first that is wanted.
                wanted = self._wanted()
                for result in list(self._ahead):
                    if result in wanted:
                        break
                    del self._ahead[result]

    def _wanted(self) -> dict[ResultId | None, asyncio.Future[None]]:
        return {result: ready for ready, (result, _) in self._waiting.items()}

    async def _more_come(self) -> bool:
        """Whether another branch comes to us, after all had a moment, and up to that time if something is busy
        elsewhere."""
        self._came.clear()
        await self._settle()
        # Counted from the first that waits: however many come meanwhile, none waits longer.
        until = min((since for _, since in self._waiting.values()), default=-inf) + PATIENCE
        if not self._came.is_set() and not self._run.branches.all_wait():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._came.wait()
        return self._came.is_set() and asyncio.get_running_loop().time() < until

    async def _settle(self) -> None:
        for _ in range(SETTLE if self._run.branches.several else 2):
            await asyncio.sleep(0)

    def _mismatch(self, new: str, missed: ResultId, value: Mapping[str, Any]) -> ReplayMismatch:
        message = (object_in(value, "params") or {}).get("message")
        unmet = str(missed) if message is None else f"the question {short(message)}"
        if missed not in self.recorded.recorded_with:
            return ReplayMismatch(
                f"the tool was started again and came to {new}, which is new, without coming to {unmet}, which an "
                "earlier run recorded. A tool that may run again must do the same things each time; put what varies "
                "(the time, chance, a look at the world) into a step."
            )
        now, before = self._run.policy.version or "(none)", self.recorded.recorded_with[missed] or "(none)"
        return ReplayMismatch(
            f"the tool was started again as version {now} and came to {new}, which is new, without coming to {unmet}, "
            f"which version {before} of it recorded. A version that cannot go on from what another recorded says so: "
            'on_other_version="restart", or "fail".'
        )

    # Recording

    async def record_end(
        self, *entries: JournalEntry, events: Sequence[Event] = (), then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Record what the tool is handed now: one thing at a time. `then` belongs to the handing over, and is done
        before anything else is recorded.

        A branch that the tool cancels while it stands in line ends at once, and is handed nothing. If it waited for its
        turn, those in front of it could win a race that they lose in the next run, in which there is no line.
        """
        run, writer = self._run, self._run.writer
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write = writer.new_write(StepRecorded(attempt=run.attempt), *events, entries=entries)
        writing = self._write_in_turn(write, begun, then)
        turn = asyncio.get_running_loop().create_task(writing, context=run.outside())
        try:
            await asyncio.wait({begun})
        except asyncio.CancelledError:
            if run.counts and not begun.done():
                turn.cancel()
                raise
            # What a stopped run did is written all the same: its task may still be its own.
            if writer.lease_lost.done() and not begun.done():
                run.runtime.late_writes.add(run.record, write)
            with suppress(Exception):
                await uncancelled(turn, unless=writer.lease_lost)
            raise
        await writer.finish(turn)

    async def _write_in_turn(
        self, write: Write, begun: asyncio.Future[None], then: Callable[[], Awaitable[None]] | None
    ) -> bool:
        await self._turn.acquire()
        try:
            begun.set_result(None)
            written = await self._run.writer.write_or_defer(write)
            if written and then is not None:
                await then()
            return written
        finally:
            # With several branches, what follows from this one happens before the next.
            if self._run.branches.several:
                self._start(self._release_settled())
            else:
                self._turn.release()

    async def _release_settled(self) -> None:
        try:
            await self._settle()
        finally:
            self._turn.release()

    @asynccontextmanager
    async def giving_up(self, result: ResultId) -> AsyncGenerator[None]:
        """If the tool itself cancels what is done while this is entered, that is recorded: it will give up again.

        Otherwise the next run would go on where this one went another way.
        """
        try:
            yield
        except asyncio.CancelledError:
            self.record_first(self.record_given_up([result], self.tags))
            raise

    def record_first(self, work: Coroutine[Any, Any, None]) -> None:
        """Record something before anything new begins. It is not awaited: a cancellation is not held up."""
        recording = self._run.help(work)
        self._first.add(recording)
        recording.add_done_callback(self._first.discard)

    async def record_given_up(self, results: Sequence[ResultId], tags: Tags, *events: Event) -> None:
        """Record what the tool did not wait for. What ends because the run is stopped is not given up."""
        run = self._run
        if results and run.counts:
            entries = [done_entry(result, GIVEN_UP, tags) for result in results]
            await run.writer.write(StepRecorded(attempt=run.attempt), *events, entries=entries)


def _let(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


# ---- writing

KEPT_FOR: Final = 60.0
"""Seconds for which a run keeps what it wrote to its journal, to write it again if a failover loses it: far more than a
replica lags behind."""

LOST_WITHIN: Final = 20.0
"""Seconds after a write, its own or another's, in which a run that waits compares its task with the store, and not only
the version."""


class WriteParts(TypedDict, total=False):
    """What is written with the events of a run."""

    entries: Sequence[JournalEntry]
    outcome: Outcome | None
    limits: WorkLimits | None


class Writer:
    """Writes what one run does: in order, however long the store takes to be there again, and again if a failover of
    the store lost it.

    Attributes:
        lease_lost: Done once the tool waits for no write any longer.
        changed_at: When the run wrote last, or took note of another's write.
    """

    def __init__(self, run: Run) -> None:
        # Not kept alive by its own parts: a run is freed when it ends, and not by the garbage collector later.
        self._run: Run = proxy(run)
        self.lease_lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.changed_at: float = -inf
        self._writing = asyncio.Lock()
        self._last: WriteId | None = None
        self._unsettled: Write | None = None
        self._kept: deque[tuple[int, float, Sequence[JournalEntry]]] = deque()
        self._kept_after = 0

    def lose_lease(self) -> None:
        """Let the tool wait for no write any longer. What it did is written later, if the task is its own then."""
        if not self.lease_lost.done():
            self.lease_lost.set_result(None)

    def new_write(self, *events: Event, role: Literal["run", "worker"] = "run", **parts: Unpack[WriteParts]) -> Write:
        """What the tool did, or what this process does with the run, to be written."""
        return Write(events=events, actor=Actor(role, self._run.runtime.worker), **parts)

    async def record(self, *events: Event, **parts: Unpack[WriteParts]) -> None:
        """Write what the tool did, however long the store takes to be there again.

        The tool never sees a half of it: it is written to the end even if the branch is cancelled meanwhile. If the
        tool may not say such things any more, it goes no further.
        """
        await self.finish(self.write_or_defer(self.new_write(*events, **parts)))

    async def finish(self, writing: Coroutine[Any, Any, bool] | asyncio.Task[bool]) -> None:
        """Wait for a write to its end; the branch ends there if the task is not the run's any more."""
        run = self._run
        if not await uncancelled(writing, context=run.outside(), unless=self.lease_lost):
            await run.abort_branch()

    async def write_or_defer(self, write: Write) -> bool:
        """Write it now, or when the lease is renewed, if the task is still ours then. False if it is not.

        Deferred from the beginning, as an attempt may hang: if the process loses touch with the store, what was done is
        done, and need not be done again.
        """
        runtime, is_late = self._run.runtime, False
        runtime.late_writes.add(self._run.record, write)
        try:
            written = await self._write_with_retry(write)
            is_late = not written
        except asyncio.CancelledError:
            is_late = True
            raise
        finally:
            if not is_late or self._run.record.is_final or runtime.lease.is_valid:
                runtime.late_writes.settled(write)
        return written

    async def write(self, *events: Event, **parts: Unpack[WriteParts]) -> bool:
        """Write how the run ended, waits or goes on, however long the store takes to be there again. False, and the run
        is stopped, if its task is not its own any more.

        Raises:
            LimitReached: There is no place within the limits. Nothing was written.
        """
        return await self._write_with_retry(self.new_write(*events, **parts))

    async def read(self, *, after: int) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`, as soon as the store gives it."""
        run = self._run
        task_id, store = run.record.id, run.runtime.store
        try:
            return await until_available(lambda: store.journal(task_id, after=after), run)
        except StoreUnavailable:
            if run.counts:
                raise
            # The run has been stopped, for example while a write was under way. The tool is not told of the outage.
            await run.abort_branch()

    async def _write_with_retry(self, write: Write) -> bool:
        run, failures = self._run, 0
        while True:
            try:
                return await self.attempt(write, repeats=True)
            except StoreUnavailable as exc:
                logger.debug("task %s cannot be written yet: %s", short_id(run.record.id), exc)
            is_failing = run.state is State.FAILING
            if not run.counts and not is_failing:
                return False
            failures += 1
            # A run that is stopped tries once more, at once: a process that stops waits for less than a pause. One that
            # ends with an error of ours is over already, and that error is still to be written.
            with anyio.move_on_after(pause_after(failures)):
                await (anyio.sleep_forever() if is_failing else run.over.wait())

    async def attempt(self, write: Write, *, repeats: bool = False) -> bool:
        """Try once to write it; with `repeats`, another try follows if the store is not available. False, and the run
        is stopped, if its task is not its own any more.

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
        run, runtime = self._run, self._run.runtime
        if write.id is None:
            last = self._last or next((each for each in run.record.writes if each.number), None)
            self._last = new_write_id(run=True) if last is None else WriteId(last.writer, last.number + 1)
            write.id = self._last
        try:
            record = await write.to(runtime.changes, run.record, self._restore)
        except (StaleRun, UnknownTask):
            run.stop_at_once()
            write.made = False
            return False
        # A change that lost against another's write has read it; that is news to the questions.
        run.reconcile(record)
        # A task that has ended passes over all that comes after its end.
        write.made = not record.is_final or record.has(write.id)
        if not write.made and run.counts:
            # The run has read as many versions of the task, from before a failover, and took no note of this one.
            run.stop()
        now = self.changed_at = runtime.monotonic()
        # Keep entries for as long as a store may lose them in a failover.
        while self._kept and self._kept[0][1] < now:
            self._kept_after = self._kept.popleft()[0]
        if write.entries:
            run.journal.recorded.length += len(write.entries)
            self._kept.append((write.id.number, now + KEPT_FOR, write.entries))
        return write.made

    # After a failover

    @property
    def may_be_lost(self) -> bool:
        """Whether the run only waits, and wrote or read so lately that a failover may have lost it.

        If another has written since, the version alone does not tell.
        """
        return self._run.runtime.monotonic() < self.changed_at + LOST_WITHIN and self._run.slot_use.waits > 0

    async def make_up(self) -> None:
        """See whether the store has an older record than this run read or wrote, and if so, write again what was lost.

        A failover to a replica that lags behind loses what it was not sent, although it was acknowledged.
        """
        async with self._writing:
            run, known = self._run, self._run.record
            try:
                stored = await run.runtime.changes.reload(known.id)
                if is_older(stored, known):
                    await self._restore(stored)
            except VersionConflict:
                # Another writes it just now: the next look tells.
                return
            except (StaleRun, UnknownTask):
                run.stop()

    async def _restore(self, stored: TaskRecord) -> TaskRecord:
        """Write again what the store lost: the record, answers that were read, and the entries of the last minute. What
        others have written there since is kept: their answers, and that the task was announced.

        Raises:
            StaleRun: The task as it is stored has ended, or was given to another run.
        """
        run, runtime, known = self._run, self._run.runtime, self._run.record
        is_claimed = stored.worker == runtime.worker and stored.attempt == run.attempt
        was_before = stored.worker is None and stored.attempt < run.attempt
        if stored.is_final or not (is_claimed or was_before):
            raise StaleRun(known.id, stored.status, "writing again", "the store went back, and it is not ours now")
        if was_before:
            # The first heartbeat may be gone with the claim, and a worker without one is dead.
            await runtime.lease.renew()
        last = next((each for each in known.writes if each.number), None)
        made = next((each.number for each in stored.writes if last is not None and each.writer == last.writer), 0)
        entries = [entry for number, _, kept in self._kept if number > made for entry in kept]
        journal = await runtime.store.journal(known.id)
        has = {entry.key for entry in journal if entry.kind in _ANSWERS}
        read = run.journal.recorded.answers
        entries = [*(replace(entry, number=0) for key, entry in read.items() if key not in has), *entries]
        if stored.version >= known.version and last is not None and made >= last.number:
            # All that the run wrote is there: only others' writes are lost.
            base, asked = stored, stored.inputs.outstanding
        else:
            base, asked = known, {**known.inputs.outstanding, **run.waits.unanswered()}
        answered = has | read.keys()
        asked = {key: request for key, request in asked.items() if key not in answered}
        lost = base.but(
            version=max(stored.version, known.version) + 1,
            status=TaskStatus.INPUT_REQUIRED if asked else TaskStatus.WORKING,
            announced=stored.announced or known.announced,
            inputs=replace(base.inputs, outstanding=asked),
        ).written(new_write_id())
        restored = await runtime.changes.restore(lost, known=known.version, expected=stored.version, entries=entries)
        # Entries have other numbers now.
        run.journal.recorded.read_up_to = 0
        run.reconcile(restored)
        if made < self._kept_after:
            # More is gone than is known here. A tool that may run again starts from what is left; another one ends.
            run.help(self._leave_to_another())
        return restored

    async def _leave_to_another(self) -> None:
        run = self._run
        await run.interrupt()
        if run.record.is_queued(run.runtime.now()):
            await uncancelled(run.runtime.submit(run.record), context=run.outside())
