"""What earlier runs of a task recorded, found again by what it is and not by when it came.

A step is known by its name; a question by its `key`, or else by what it asks and how many equal ones came before it; a
timer by its name, or else by its duration and how many equal ones came before. So branches of a tool may come in any
order. What the tool was handed (the ends of steps, questions and timers) has an order, that of the journal;
`Deliveries` keeps to it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final, Literal, TypeAlias

import anyio.to_thread

from mcp_tasks.errors import LimitExceeded, ReplayMismatch, UsageError
from mcp_tasks.model.json import JsonValue, object_in
from mcp_tasks.model.record import InputRequest, JournalEntry
from mcp_tasks.stores.codec import from_micros, to_micros

Kind: TypeAlias = Literal["step", "question", "timer"]

GIVEN_UP = "given up"
"""How a step, a question or a timer ended that the tool did not wait for: because of a time-out, or a lost race."""

steps_at_work: ContextVar[tuple[str, ...]] = ContextVar("mcp_tasks_steps_at_work", default=())
"""The steps that the calling code is part of, the outermost first."""

WITHIN = "within"
"""Marks what happened inside steps, with their names. Once one of them is recorded, nobody comes for it any more."""

BRANCH = "branch"
"""Marks what was handed to a branch of the tool, not to its own asyncio task: the tool may have cancelled that
branch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the tool something happened: in a branch or in its own asyncio task, and inside which steps."""

    branch: bool
    steps: tuple[str, ...]

    @property
    def tags(self) -> dict[str, Any]:
        """The place as the journal keeps it."""
        return ({BRANCH: True} if self.branch else {}) | ({WITHIN: list(self.steps)} if self.steps else {})


@dataclass(frozen=True, slots=True)
class ResultId:
    """What a tool is handed: the end of a step, of a question or of a timer."""

    kind: Kind
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key!r}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A question was answered with this error: no value that a client could send as an answer."""

    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A question with the key that it has for the life of the task."""

    key: str
    request: InputRequest
    asked_at: datetime | None
    identity: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Timer:
    """A sleep and when it ends."""

    key: str
    until: datetime


_ANSWERS = frozenset({"answer", "refusal"})


class Replay:
    """The journal of a task, as one run finds its way through it."""

    def __init__(self, entries: Sequence[JournalEntry] = (), *, outstanding: Collection[str] = ()) -> None:
        self.answers: dict[str, JsonValue | Refusal] = {}
        self.results: dict[ResultId, Mapping[str, Any]] = {}
        """What the tool was handed, in the order in which it was."""
        self.begun: dict[ResultId, Mapping[str, Any]] = {}
        """Questions and timers that the tool came to and had not been handed the end of."""
        self._given_up: dict[ResultId, int] = defaultdict(int)
        self._asks: dict[str, list[Ask]] = {}
        self._asked = 0
        self._keys: set[str] = set()
        self._timers: dict[str, datetime] = {}
        self._met: dict[str, int] = defaultdict(int)
        self._came: dict[str, int] = defaultdict(int)
        self._steps: set[str] = set()
        self.recorded_with: dict[ResultId, str | None] = {}
        """Of what another version of the tool recorded, which version it was."""
        self.starts_over: int = 0
        """How often the tool started over. Nothing that was recorded before the last time is found again."""
        self.reopened: set[str] = set()
        """Steps that an earlier run began and did not end, as far as something happened in them."""
        self.read_up_to: int = max((entry.number for entry in entries), default=0)
        """The number of the last entry of the journal that has been read."""
        self.length: int = len(entries)
        """How many entries the journal has."""
        if not entries:
            return
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

    def answer_entries(self) -> list[JournalEntry]:
        """The answers that are known, as the journal has them."""
        return [
            JournalEntry(kind="refusal", key=key, value=answer.error)
            if isinstance(answer, Refusal)
            else JournalEntry(kind="answer", key=key, value=answer)
            for key, answer in self.answers.items()
        ]

    def require_room(self, most: int | None) -> None:
        """See that something new may begin. What has begun is recorded to its end, also beyond the limit.

        Raises:
            LimitExceeded: The journal has as many entries as it may have.
        """
        if most is not None and self.length >= most:
            raise LimitExceeded(
                "journal_entries",
                f"The journal of this task has {self.length:,} entries, and may have {most:,} (Limits.journal_entries)"
                ": it takes no more steps, questions or timers. Put more into one step, or into tasks of its own",
            )

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

    def number_ask(self) -> int:
        """The number of the next new question in the life of the task."""
        self._asked += 1
        return self._asked

    def new_key(self, wanted: str) -> str:
        """A key that was never used in this task, `wanted` if that is free."""
        key, number = wanted, 1
        while key in self._keys:
            number += 1
            key = f"{wanted}-{number}"
        self._keys.add(key)
        return key

    def find_timer(self, identity: str) -> tuple[str, datetime | None]:
        """The key of the next timer of that identity, and when it ends if an earlier run set it."""
        self._met[identity] += 1
        key = f"{identity}#{self._met[identity]}"
        return key, self._timers.get(key)

    def enter_step(self, name: str) -> None:
        """Begin a step.

        Raises:
            UsageError: This run has a step of that name already, so one of them would get the other's value.
        """
        if name in self._steps:
            raise UsageError(f"step {name!r} is there twice in one run; give every step its own name")
        self._steps.add(name)

    def leave_step(self, name: str) -> None:
        """The step was not done; its name is free again."""
        self._steps.discard(name)

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
            if (ended := _ended_step(entry)) is not None:
                for within in inside.pop(ended, ()):
                    if within in kept:
                        self._forget(kept.pop(within))
            for step in _steps_around(entry):
                inside.setdefault(step, []).append(number)
        self.reopened = {step for step, numbers in inside.items() if kept.keys() & set(numbers)}
        return list(kept.values())

    def _forget(self, entry: JournalEntry) -> None:
        if entry.kind == "ask":
            # A key is used once in the life of a task, whatever becomes of its question.
            self._keys.add(entry.key)
            self._asked += 1

    def _add(self, entry: JournalEntry) -> None:
        match entry.kind:
            case "ask":
                ask = _read_ask(entry)
                self._asks.setdefault(ask.identity, []).append(ask)
                self._keys.add(ask.key)
                self._asked += 1
                self.begun[ResultId("question", ask.key)] = entry.value
            case "answer":
                self.answers[entry.key] = entry.value
            case "refusal":
                self.answers[entry.key] = Refusal(entry.value)
            case "timer":
                self._timers[entry.key] = from_micros(entry.value["until"])
                self.begun[ResultId("timer", entry.key)] = entry.value
            case "step":
                self.results[ResultId("step", entry.key)] = _read_step(entry)
            case "done":
                self._end(ResultId(entry.value["kind"], entry.key), entry.value)
            case _:
                # "version": what stands before this was recorded by another one.
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


def ask_identity(request: InputRequest, key: str | None) -> str:
    """What makes a question the same one in the next run."""
    return f"key:{key}" if key is not None else json.dumps([request.method, request.params], sort_keys=True)


def ask_entry(ask: Ask, key: str | None, place: Place) -> JournalEntry:
    """What the journal keeps of a question."""
    request = ask.request
    value: dict[str, Any] = {"method": request.method, "params": request.params, **place.tags}
    if ask.asked_at is not None:
        value["asked"] = to_micros(ask.asked_at)
    if request.deadline is not None:
        value["deadline"] = to_micros(request.deadline)
    if key is not None:
        value["key"] = key
    return JournalEntry(kind="ask", key=ask.key, value=value)


def timer_entry(timer: Timer, place: Place) -> JournalEntry:
    """What the journal keeps of a sleep."""
    return JournalEntry(kind="timer", key=timer.key, value={"until": to_micros(timer.until), **place.tags})


def done_entry(result: ResultId, how: str, place: Place) -> JournalEntry:
    """That the tool was handed the end of a question or a timer, or gave up on something, and how that ended."""
    return JournalEntry(kind="done", key=result.key, value={"kind": result.kind, "how": how, **place.tags})


def version_entry(began: str | None, now: str | None, *, over: bool) -> JournalEntry:
    """That the tool is another version from here on, and whether it starts over or goes on."""
    return JournalEntry(kind="version", key=now or "", value={"from": began, "to": now, "over": over})


def step_entry(result: ResultId, stored: Mapping[str, Any], place: Place) -> JournalEntry:
    """What the journal keeps of a step."""
    return JournalEntry(kind="step", key=result.key, value={**stored, **place.tags})


def name_of(result: ResultId, value: Mapping[str, Any]) -> str:
    """What an author would call a recorded thing."""
    message = (object_in(value, "params") or {}).get("message")
    return str(result) if message is None else f"the question {short(message)}"


def short(value: JsonValue) -> str:
    """A value for a person to read."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _ended_step(entry: JournalEntry) -> str | None:
    if entry.kind == "step":
        return entry.key
    gave_up = entry.kind == "done" and entry.value["kind"] == "step" and entry.value["how"] == GIVEN_UP
    return entry.key if gave_up else None


def _steps_around(entry: JournalEntry) -> Sequence[str]:
    # An answer is the client's, and whatever it looks like.
    return () if entry.kind in _ANSWERS or isinstance(entry.value, int) else entry.value.get(WITHIN, ())


def _read_step(entry: JournalEntry) -> Mapping[str, Any]:
    """How a step ended. Whether that can be read is found out here, and not by the tool when it comes to the step."""
    stored: Mapping[str, Any] = entry.value
    if "error" in stored:
        error = stored["error"]
        readable = isinstance(error["type"], str) and isinstance(error["message"], str) and "arguments" in error
    else:
        readable = "value" in stored
    if not readable:
        raise ValueError(f"how step {entry.key!r} ended is not recorded as such")
    return stored


def _read_ask(entry: JournalEntry) -> Ask:
    value = entry.value
    deadline, asked = value.get("deadline"), value.get("asked")
    request = InputRequest(
        method=value["method"],
        params=value["params"],
        deadline=None if deadline is None else from_micros(deadline),
    )
    return Ask(
        key=entry.key,
        request=request,
        asked_at=None if asked is None else from_micros(asked),
        identity=ask_identity(request, value.get("key")),
    )


# ---- branches
# The asyncio tasks of a tool: its own, and those that it started (`gather`, task groups, `create_task`).
#
# The context of an asyncio task says which run it belongs to. What a task does that is not in one of our waits cannot
# be seen: it may be doing anything, so nothing is concluded from it.


_NOBODY: Final = object()


class Branches:
    """The asyncio tasks of one run.

    Args:
        mark: Set in the context of the run and of nobody else.
        value: To this.
        in_thread: Whether the tool is a sync function, which does one thing at a time on a thread.
    """

    def __init__(self, mark: contextvars.ContextVar[Any], value: object, *, in_thread: bool) -> None:
        self._mark = mark
        self._value = value
        self._in_thread = in_thread
        self._own: asyncio.Task[Any] | None = None
        self._met: set[asyncio.Task[Any]] = set()
        self._in_our_waits: set[asyncio.Task[Any]] = set()
        self._giving_up: set[asyncio.Task[Any]] = set()
        self._in_steps: Counter[asyncio.Task[Any]] = Counter()
        self._over = False

    def enter(self) -> None:
        """From now on the calling asyncio task is the tool's own."""
        self._own = this_task()

    @property
    def own(self) -> asyncio.Task[Any] | None:
        """The tool's own asyncio task."""
        return self._own

    @property
    def in_own(self) -> bool:
        """Whether the calling code belongs to the tool's own asyncio task, or to the thread of a sync tool."""
        caller = this_task()
        return caller is self._own or (self._own_is_on_a_thread and self._live() <= {self._own, caller})

    def contact(self) -> None:
        """Take note of the calling branch."""
        caller = this_task()
        if caller is not self._own and caller not in self._met:
            self._met.add(caller)
            caller.add_done_callback(self._met.discard)

    @property
    def several(self) -> bool:
        """Whether a branch has come to us that has not ended."""
        return any(not task.done() for task in self._met)

    @contextmanager
    def waiting(self, *, to_give_up: bool = False) -> Generator[None]:
        """The calling branch waits for us, or with us to be cancelled, while this is entered.

        Raises:
            asyncio.CancelledError: The run is over, and the branch was left behind: it would wait for ever.
        """
        if self._over:
            raise asyncio.CancelledError
        task, waiting = this_task(), self._giving_up if to_give_up else self._in_our_waits
        waiting.add(task)
        try:
            yield
        finally:
            waiting.discard(task)

    @contextmanager
    def stepping(self) -> Generator[None]:
        """The calling branch does a step while this is entered; there may be another one around it."""
        task = this_task()
        self._in_steps[task] += 1
        try:
            yield
        finally:
            self._in_steps[task] -= 1
            if not self._in_steps[task]:
                del self._in_steps[task]

    def all_wait(self) -> bool:
        """Whether every asyncio task of the run is in one of our waits: nothing of it goes on without us."""
        elsewhere = self._live() - self._in_our_waits
        # A sync tool does one thing at a time: while its thread waits for us, nothing else of it is at work.
        return not elsewhere or (elsewhere == {self._own} and len(self._in_our_waits) == 1 and self._own_is_on_a_thread)

    def cancel_leftovers(self) -> None:
        """The run is over: what of it still waits here would wait for ever."""
        self._over = True
        for task in (self._in_our_waits | self._giving_up) - {self._own}:
            task.cancel()

    def cancel_steps(self) -> None:
        """The run was stopped, and its tool has ended: the steps that it left at work may be begun by another run."""
        for task in self._in_steps.keys() - {self._own}:
            # One that the tool has cancelled is on its way out, and is not to be disturbed in that.
            if not task.cancelling():
                task.cancel()

    def let_go(self) -> None:
        """The run is over, and nothing of it is looked for any more: let it be freed."""
        self._own, self._value = None, _NOBODY

    @property
    def _own_is_on_a_thread(self) -> bool:
        return self._in_thread and self._own in anyio.to_thread.current_default_thread_limiter().statistics().borrowers

    def _live(self) -> set[asyncio.Task[Any]]:
        return tasks_by_value(self._mark).get(self._value, set())


def tasks_by_value(mark: contextvars.ContextVar[Any]) -> dict[Any, set[asyncio.Task[Any]]]:
    """The asyncio tasks of this event loop by what `mark` is in their contexts: one look for all runs."""
    found: dict[Any, set[asyncio.Task[Any]]] = {}
    for task in asyncio.all_tasks():
        context = context_of(task)
        value = None if context is None else context.get(mark)
        if value is not None:
            found.setdefault(value, set()).add(task)
    return found


def this_task() -> asyncio.Task[Any]:
    """The asyncio task of the calling code."""
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("a tool is a coroutine, and asyncio runs those in tasks")
    return task


def context_of(task: asyncio.Task[Any]) -> contextvars.Context | None:
    """The context that a task runs in."""
    get_context = getattr(task, "get_context", None)
    if get_context is not None:  # pragma: no cover - Python 3.11 has no such method
        return get_context()
    # Python 3.11 has it and does not show it; what an object refers to is public.
    return next((found for found in gc.get_referents(task) if isinstance(found, contextvars.Context)), None)


# ---- deliveries
# The order in which a tool learns of things, the same in every run as far as the tool allows it.
#
# Who wins a race (`asyncio.wait`, a task group that cancels the rest) depends on what came first. So results are handed
# to a tool one at a time, with some turns of the event loop in between for what follows from each. They are recorded in
# that order. A tool that is started again is handed what was recorded in that order, before anything new begins.
#
# A recorded result that the tool does not ask for is waited for only while something of the tool is not in one of our
# waits, and not for longer than `PATIENCE`. Then the others go past it, and a branch that asks later gets it at once.
#
# The tool's own asyncio task does one thing after another. If it comes to something new before it came to all that it
# recorded itself, the tool does something else than the first time, and is refused. What a branch recorded is never
# missed: the branch may have lost a race.


SETTLE = 30
"""Turns of the event loop given to what follows from a result. A level of nested gathers and groups takes three or
four."""

PATIENCE = 1.0
"""Seconds that a branch waits for others to come for what was recorded before its own result. Not longer: a recorded
result that is held back must not run into the tool's own time-out around it."""


class Deliveries:
    """Hands the results of one run to its tool.

    Args:
        recorded: What earlier runs were handed, in their order.
        begun: What earlier runs came to, and were not handed the end of.
        context: Where to run what is not part of the tool.
        refuse: Called when the tool is found to do something else than before.
        recorded_with: Of what another version of the tool recorded, which version it was.
        version: The version that the tool is now.
    """

    def __init__(
        self,
        recorded: Mapping[ResultId, Mapping[str, Any]],
        begun: Mapping[ResultId, Mapping[str, Any]],
        branches: Branches,
        context: contextvars.Context,
        refuse: Callable[[ReplayMismatch], None],
        *,
        recorded_with: Mapping[ResultId, str | None] | None = None,
        version: str | None = None,
    ) -> None:
        self._recorded = recorded
        self._ahead = dict(recorded)
        self._of_own = {result: value for result, value in (*recorded.items(), *begun.items()) if not value.get(BRANCH)}
        self._branches = branches
        self._context = context
        self._refuse = refuse
        self._recorded_with = recorded_with or {}
        self._version = version
        self._wanted: dict[ResultId, asyncio.Future[None]] = {}
        self._since: dict[asyncio.Future[None], float] = {}
        self._new: list[asyncio.Future[None]] = []
        self._came = asyncio.Event()
        self._turn = asyncio.Lock()
        self._first: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_handing_over(self) -> bool:
        """Whether some branch waits for a turn that will come by itself."""
        return bool(self._wanted or self._new)

    def has(self, result: ResultId) -> bool:
        """Whether an earlier run was handed this."""
        return result in self._recorded

    def met(self, result: ResultId) -> None:
        """The tool came to something that an earlier run came to."""
        self._of_own.pop(result, None)

    async def recorded(self, result: ResultId) -> Mapping[str, Any]:
        """What an earlier run was handed, when its turn has come."""
        self._branches.contact()
        self.met(result)
        if result in self._ahead and (self._branches.several or next(iter(self._ahead)) != result):
            self._wanted[result] = ready = asyncio.get_running_loop().create_future()
            try:
                await self._wait(ready)
            finally:
                del self._wanted[result]
                # Also if it was cancelled: it was asked for, and only not waited for.
                self._ahead.pop(result, None)
        self._ahead.pop(result, None)
        return self._recorded[result]

    async def caught_up(self, what: str) -> None:
        """Wait until everything recorded has been handed over, before `what` begins or is handed over as new."""
        self._branches.contact()
        with self._branches.waiting():
            while self._first:
                await asyncio.wait(self._first)
        if self._of_own and self._branches.in_own:
            self._refuse(self._mismatch(what, *next(iter(self._of_own.items()))))
            # The run ends, and this branch with it.
            with self._branches.waiting():
                await asyncio.get_running_loop().create_future()
        if self._ahead:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._new.append(ready)
            try:
                await self._wait(ready)
            finally:
                self._new.remove(ready)

    def begin_after(self, work: asyncio.Task[None]) -> None:
        """Let nothing new begin before this is done."""
        self._first.add(work)
        work.add_done_callback(self._first.discard)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """While this is entered no other result of the run is recorded or handed over; a moment longer, if the tool has
        several branches, so that what follows from this one happens before the next."""
        await self._turn.acquire()
        try:
            yield
        finally:
            if self._branches.several:
                self._start(self._release_settled())
            else:
                self._turn.release()

    def close(self) -> None:
        """The run is over."""
        if self._pump is not None:
            self._pump.cancel()

    async def _release_settled(self) -> None:
        try:
            await self._settle()
        finally:
            self._turn.release()

    async def _wait(self, ready: asyncio.Future[None]) -> None:
        self._came.set()
        self._since[ready] = asyncio.get_running_loop().time()
        if self._pump is None or self._pump.done():
            self._pump = self._start(self._hand_over())
        try:
            with self._branches.waiting():
                await ready
        finally:
            del self._since[ready]
            self._came.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def _hand_over(self) -> None:
        """Hand over what is wanted, in the order of the journal, and then let begin what is new."""
        while self._wanted or self._new:
            head = next(iter(self._ahead), None)
            if head is None:
                for waiting in (*self._wanted.values(), *self._new):
                    _let(waiting)
                await asyncio.sleep(0)
            elif head in self._wanted:
                del self._ahead[head]
                _let(self._wanted[head])
                await self._settle()
            elif not await self._more_come():
                self._go_past()

    async def _more_come(self) -> bool:
        """Whether another branch comes to us, after all had a moment, and up to that time if something is busy
        elsewhere."""
        self._came.clear()
        await self._settle()
        # Counted from the first that waits: however many come meanwhile, none waits longer.
        until = min(self._since.values(), default=-inf) + PATIENCE
        if not self._came.is_set() and not self._branches.all_wait():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._came.wait()
        return self._came.is_set() and asyncio.get_running_loop().time() < until

    def _go_past(self) -> None:
        """Do not wait for the next results up to the first that is wanted."""
        for result in list(self._ahead):
            if result in self._wanted:
                break
            del self._ahead[result]

    async def _settle(self) -> None:
        for _ in range(SETTLE if self._branches.several else 2):
            await asyncio.sleep(0)

    def _mismatch(self, new: str, missed: ResultId, value: Mapping[str, Any]) -> ReplayMismatch:
        name = name_of(missed, value)
        if missed not in self._recorded_with:
            return _mismatch(new, name)
        return _mismatch_of_versions(new, name, now=self._version, before=self._recorded_with[missed])


def _mismatch(new: str, unmet: str) -> ReplayMismatch:
    return ReplayMismatch(
        f"the tool was started again and came to {new}, which is new, without coming to {unmet}, which an earlier run "
        "recorded. A tool that may run again must do the same things each time; put what varies (the time, chance, a "
        "look at the world) into a step."
    )


def _mismatch_of_versions(new: str, unmet: str, *, now: str | None, before: str | None) -> ReplayMismatch:
    return ReplayMismatch(
        f"the tool was started again as version {now or '(none)'} and came to {new}, which is new, without coming to "
        f"{unmet}, which version {before or '(none)'} of it recorded. A version that cannot go on from what another "
        'recorded says so: on_other_version="restart", or "fail".'
    )


def _let(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
