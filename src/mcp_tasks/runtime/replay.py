"""What earlier runs of a task recorded, found again by what it is and not by when it came.

A step is known by its name; a question by its `key`, or else by what it asks and how many equal ones came before it; a
timer by its name, or else by its duration and how many equal ones came before. So branches of a tool may come in any
order. What the tool was handed (the ends of steps, questions and timers) has an order, that of the journal;
`Deliveries` keeps to it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from mcp_tasks.errors import LimitExceeded, ReplayMismatch, UsageError
from mcp_tasks.model.json import JsonValue, object_in
from mcp_tasks.model.record import InputRequest, JournalEntry
from mcp_tasks.stores.codec import from_micros, to_micros

Kind: TypeAlias = Literal["step", "question", "timer"]

GIVEN_UP = "given up"
"""How a step, a question or a timer ended that the tool did not wait for: because of a time-out, or a lost race."""

step_at_work: ContextVar[str | None] = ContextVar("mcp_tasks_step_at_work", default=None)
"""The step that the calling code is part of."""

WITHIN = "within"
"""Marks what happened inside a step. Once that step is recorded, nobody comes for it any more."""

BRANCH = "branch"
"""Marks what was handed to a branch of the tool, not to its own asyncio task: the tool may have cancelled that
branch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the tool something happened: in a branch or in its own asyncio task, and inside which step."""

    branch: bool
    step: str | None

    @property
    def tags(self) -> dict[str, Any]:
        """The place as the journal keeps it."""
        return ({BRANCH: True} if self.branch else {}) | ({} if self.step is None else {WITHIN: self.step})


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
                    self._forget(kept.pop(within))
            if (step := _step_around(entry)) is not None:
                inside.setdefault(step, []).append(number)
        self.reopened = set(inside)
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


def _step_around(entry: JournalEntry) -> str | None:
    # An answer is the client's, and whatever it looks like.
    return None if entry.kind in _ANSWERS or isinstance(entry.value, int) else entry.value.get(WITHIN)


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
# What of a tool is there to go on: its asyncio tasks, and what each of them waits for.


_WAITING_FOR_TASKS = frozenset(
    {
        ("asyncio/tasks.py", "_wait"),
        ("asyncio/taskgroups.py", "TaskGroup.__aexit__"),
        # From Python 3.14 on, and later releases of 3.13.
        ("asyncio/taskgroups.py", "TaskGroup._aexit"),
        ("anyio/_backends/_asyncio.py", "TaskGroup.__aexit__"),
    }
)
"""Where code waits for asyncio tasks of its own: file and function, as a code object names them."""

_ANYIO = "anyio/_backends/_asyncio.py"
_WAITING_FOR_A_THREAD = frozenset({(_ANYIO, "AsyncIOBackend.run_sync_in_worker_thread")})
_FOR_A_THREAD = frozenset({(_ANYIO, "AsyncIOBackend.run_async_from_thread.<locals>.task_wrapper")})


_NOBODY: Final = object()


class Branches:
    """The asyncio tasks of one run: the tool's own, and those that it started.

    Args:
        mark: Set in the context of the run and of nobody else.
        value: To this.
    """

    def __init__(self, mark: contextvars.ContextVar[Any], value: object) -> None:
        self._mark = mark
        self._value = value
        self._own: asyncio.Task[Any] | None = None
        self._known: set[asyncio.Task[Any]] = set()
        self._in_our_hands: set[asyncio.Task[Any]] = set()
        self._rested = asyncio.Event()
        self._giving_up: set[asyncio.Task[Any]] = set()
        self._in_steps: Counter[asyncio.Task[Any]] = Counter()
        self._over = False
        self.cancelled: int = 0
        """How many branches were seen to be cancelled: what they had recorded is not missed."""

    def enter(self) -> None:
        """From now on the calling asyncio task is the tool's own."""
        self._own = this_task()

    @property
    def own(self) -> asyncio.Task[Any] | None:
        """The tool's own asyncio task."""
        return self._own

    @property
    def in_own(self) -> bool:
        """Whether the calling code belongs to the tool's own asyncio task, or to the thread that this one waits for."""
        caller = this_task()
        return caller is self._own or _is_from_thread(caller)

    def contact(self, *, look_around: bool) -> None:
        """Take note of the calling branch, and with `look_around` of those that came into being with it."""
        caller = this_task()
        if caller is self._own or caller in self._known or _is_from_thread(caller):
            return
        for task in _recent_tasks(self._mark).get(self._value, ()) if look_around else ():
            self._meet(task)
        self._meet(caller)

    @property
    def several(self) -> bool:
        """Whether more than the tool's own task has been seen and is not done yet."""
        return any(not task.done() for task in self._known)

    def rest(self, *, to_give_up: bool = False) -> asyncio.Task[Any]:
        """The calling branch waits for us from now on, or with us to be cancelled. Pass what this returns to `go_on`.

        Raises:
            asyncio.CancelledError: The run is over, and the branch was left behind: it would wait for ever.
        """
        if self._over:
            raise asyncio.CancelledError
        task = this_task()
        (self._giving_up if to_give_up else self._in_our_hands).add(task)
        self._rested.set()
        return task

    def go_on(self, task: asyncio.Task[Any]) -> None:
        """The branch has what it waited for."""
        self._in_our_hands.discard(task)
        self._giving_up.discard(task)

    def begin_step(self) -> asyncio.Task[Any]:
        """The calling branch does a step from now on. Pass what this returns to `end_step`."""
        task = this_task()
        self._in_steps[task] += 1
        return task

    def end_step(self, task: asyncio.Task[Any]) -> None:
        """The branch has left the step; it may still be in another one around it."""
        self._in_steps[task] -= 1
        if not self._in_steps[task]:
            del self._in_steps[task]

    def can_advance(self) -> bool:
        """Whether some branch may go on without us. True where that cannot be told."""
        return bool(self._advancing())

    async def until_not_at_work(self, task: asyncio.Task[Any]) -> None:
        """Return when a branch has ended or waits, for us or for others."""
        while not task.done() and task not in self._in_our_hands and not _waits_for_tasks(task):
            self._rested.clear()
            task.add_done_callback(self._stir)
            try:
                await self._rested.wait()
            finally:
                task.remove_done_callback(self._stir)

    def _stir(self, _: asyncio.Task[Any]) -> None:
        self._rested.set()

    def own_can_advance(self) -> bool:
        """Whether the tool's own task may."""
        return self._own in self._advancing()

    def _advancing(self) -> set[asyncio.Task[Any]]:
        live = {task for task in self._of_this_run() if not task.done()}
        for task in live:
            self._meet(task)
        # A sync tool does one thing at a time: while its thread waits for us, nothing else of it is at work.
        thread_waits = any(_is_from_thread(task) for task in live & self._in_our_hands)
        return {
            task
            for task in live - self._in_our_hands
            if not _waits_for_tasks(task) and not (thread_waits and task is self._own and _waits_for_thread(task))
        }

    def cancel_leftovers(self) -> None:
        """The run is over: what of it still waits here would wait for ever."""
        self._over = True
        for task in (self._in_our_hands | self._giving_up) - {self._own}:
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

    def _of_this_run(self) -> Iterator[asyncio.Task[Any]]:
        for task in asyncio.all_tasks():
            context = context_of(task)
            # One whose context cannot be seen might be ours; then nothing is known for certain. asyncio's own can.
            if context is not None and context.get(self._mark) is self._value:
                yield task

    def _meet(self, task: asyncio.Task[Any]) -> None:
        if task is not self._own and task not in self._known:
            self._known.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._known.discard(task)
        if task.cancelled():
            self.cancelled += 1


_recent: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[float, dict[Any, set[asyncio.Task[Any]]]]] = (
    WeakKeyDictionary()
)
RECENT = 0.05
"""Seconds for which one look at all asyncio tasks serves those who only want to meet their neighbours."""


def _recent_tasks(mark: contextvars.ContextVar[Any]) -> dict[Any, set[asyncio.Task[Any]]]:
    loop = asyncio.get_running_loop()
    looked, found = _recent.get(loop, (-RECENT, {}))
    if loop.time() - looked >= RECENT:
        found = tasks_by_value(mark)
        _recent[loop] = loop.time(), found
    return found


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


def _waits_for_tasks(task: asyncio.Task[Any]) -> bool:
    """Whether the task is suspended until other asyncio tasks have ended, and nothing else will wake it."""
    innermost, future = _suspended_in(task)
    if future is None or future.done():
        return False
    if isinstance(future, asyncio.Task) or type(future).__name__ == "_GatheringFuture":
        return True
    # `asyncio.wait(..., timeout=...)` is woken by the time as well.
    frame = getattr(innermost, "cr_frame", None)
    return _is_in(innermost, _WAITING_FOR_TASKS) and (frame is None or frame.f_locals.get("timeout") is None)


def _waits_for_thread(task: asyncio.Task[Any]) -> bool:
    return _is_in(_suspended_in(task)[0], _WAITING_FOR_A_THREAD)


def _is_from_thread(task: asyncio.Task[Any]) -> bool:
    """Whether the task does something for a thread that waits for it, as `anyio.from_thread.run` has it done."""
    return _is_in(task.get_coro(), _FOR_A_THREAD)


def _is_in(coroutine: Any, places: frozenset[tuple[str, str]]) -> bool:
    code = getattr(coroutine, "cr_code", None)
    if code is None:
        return False
    file = code.co_filename.replace("\\", "/")
    return any(code.co_qualname == name and file.endswith(end) for end, name in places)


def _suspended_in(task: asyncio.Task[Any]) -> tuple[Any, asyncio.Future[Any] | None]:
    """The innermost coroutine of a suspended task, and the future that it awaits if that can be seen."""
    coroutine: Any = task.get_coro()
    while (awaited := _awaited(coroutine)) is not None and _is_suspendable(awaited):
        coroutine = awaited
    if awaited is None:
        return coroutine, None
    futures: list[asyncio.Future[Any]] = [
        found for found in gc.get_referents(awaited) if isinstance(found, asyncio.Future)
    ]
    return coroutine, futures[0] if futures else None


def _awaited(suspended: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (awaited := getattr(suspended, attribute, None)) is not None:
            return awaited
    return None


def _is_suspendable(thing: Any) -> bool:
    return inspect.iscoroutine(thing) or inspect.isgenerator(thing) or inspect.isasyncgen(thing)


# ---- deliveries
# The order in which a tool learns of things, the same in every run.


SETTLE = 30
"""Turns of the event loop given to what follows from a result. A level of nested gathers and groups takes three or
four."""

PATIENCE = 1.0
"""Seconds in which a branch that is busy elsewhere may come for a recorded result before others go past it, and in
which one that was handed something may do what follows from it before the next is handed over. Not longer: a recorded
result that is held back must not run into the tool's own time-out around it."""

_LOOK_AGAIN = 0.05


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
        self._begun = dict(begun)
        self._passed: dict[ResultId, Mapping[str, Any]] = {}
        self._branches = branches
        self._context = context
        self._refuse = refuse
        self._recorded_with = recorded_with or {}
        self._version = version
        self._wanted: dict[ResultId, asyncio.Future[None]] = {}
        self._wanted_by: dict[ResultId, asyncio.Task[Any]] = {}
        self._new: dict[asyncio.Future[None], str] = {}
        self._came = asyncio.Event()
        self._turn = asyncio.Lock()
        self._first: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    def has(self, result: ResultId) -> bool:
        """Whether an earlier run was handed this."""
        return result in self._recorded

    def met(self, result: ResultId) -> None:
        """The tool came to a question or a timer."""
        if self._begun.pop(result, None) is not None:
            self._came.set()

    async def recorded(self, result: ResultId) -> Mapping[str, Any]:
        """What an earlier run was handed, when its turn has come."""
        self._branches.contact(look_around=bool(self._ahead))
        self._passed.pop(result, None)
        if result in self._ahead:
            if next(iter(self._ahead)) == result and not self._branches.several:
                del self._ahead[result]
            else:
                ready = self._wanted[result] = asyncio.get_running_loop().create_future()
                self._wanted_by[result] = this_task()
                await self._wait(ready)
        return self._recorded[result]

    async def caught_up(self, what: str) -> None:
        """Wait until everything recorded has been handed over, before `what` begins or is handed over as new."""
        self._branches.contact(look_around=bool(self._ahead))
        await self._wait_for_first()
        if self._ahead or self._passed or self._begun:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._new[ready] = what
            await self._wait(ready)

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
            await _settle()
        finally:
            self._turn.release()

    async def _wait_for_first(self) -> None:
        resting = self._branches.rest()
        try:
            while self._first:
                await asyncio.wait(self._first)
        finally:
            self._branches.go_on(resting)

    async def _wait(self, ready: asyncio.Future[None]) -> None:
        self._came.set()
        if self._pump is None or self._pump.done():
            self._pump = self._start(self._hand_over())
        resting = self._branches.rest()
        try:
            await ready
        finally:
            self._branches.go_on(resting)
            self._forget(ready)

    def _forget(self, ready: asyncio.Future[None]) -> None:
        """Nobody waits for this any more: it was handed over, or the branch that waited was cancelled."""
        self._new.pop(ready, None)
        for result, waiting in list(self._wanted.items()):
            if waiting is ready:
                # Asked for, so the tool did not skip it; it only did not want to wait.
                del self._wanted[result], self._wanted_by[result]
                self._ahead.pop(result, None)
        self._came.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def _hand_over(self) -> None:
        """Hand over what is wanted, as far as the order allows, until nobody waits."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self._wanted or self._new:
            if await self._advance(since):
                since = loop.time()
            else:
                await self._pause()

    async def _advance(self, since: float) -> bool:
        """Do what is next; False if a branch is busy that may come for it, and has been waited for `since` then."""
        head = next(iter(self._ahead), None)
        if head in self._wanted:
            await self._hand(head)
        elif head is None and not self._passed and not self._begun:
            self._let_new_begin()
        else:
            # Twice: those that wait for a task which ended just now have not been told, and seem to wait for us.
            for _ in range(2):
                if await self._somebody_came():
                    return True
                if self._branches.can_advance() and asyncio.get_running_loop().time() - since <= PATIENCE:
                    return False
            await self._go_past()
        return True

    async def _somebody_came(self) -> bool:
        """Whether somebody new waits here, after all had a moment to come."""
        self._came.clear()
        for _ in range(SETTLE if self._branches.several else 2):
            await asyncio.sleep(0)
            if self._came.is_set():
                return True
        return False

    async def _pause(self) -> None:
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._came.wait()

    async def _hand(self, result: ResultId) -> None:
        """Hand over one result, and let what follows from it happen before the next."""
        self._ahead.pop(result, None)
        _let(self._wanted.pop(result))
        branch = self._wanted_by.pop(result)
        if not self._branches.several:
            return
        await _settle()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._branches.until_not_at_work(branch)

    def _let_new_begin(self) -> None:
        for waiting in self._new:
            _let(waiting)
        self._new.clear()

    async def _go_past(self) -> None:
        """Nobody comes for what is next: go on with what is wanted, or else with what is new."""
        while (head := next(iter(self._ahead), None)) is not None and head not in self._wanted:
            self._passed[head] = self._ahead.pop(head)
        if head is not None:
            await self._hand(head)
        else:
            # Whatever is recorded and wanted is still ahead, so those who wait here wait for something new.
            self._go_past_everything({**self._passed, **self._begun})

    def _go_past_everything(self, unmet: Mapping[ResultId, Mapping[str, Any]]) -> None:
        """Let what is new begin, unless the tool missed something that it would have had to come to."""
        missed = next((result for result, value in unmet.items() if not self._is_excused(value)), None)
        if missed is None:
            self._passed.clear()
            self._begun.clear()
            self._let_new_begin()
        else:
            self._refuse(self._mismatch(next(iter(self._new.values())), missed, unmet[missed]))
            self._new.clear()

    def _mismatch(self, new: str, missed: ResultId, value: Mapping[str, Any]) -> ReplayMismatch:
        name = name_of(missed, value)
        if missed not in self._recorded_with:
            return _mismatch(new, name)
        return _mismatch_of_versions(new, name, now=self._version, before=self._recorded_with[missed])

    def _is_excused(self, value: Mapping[str, Any]) -> bool:
        """Whether a recorded result may be of a branch that the tool itself cancelled, or that is busy elsewhere."""
        if not value.get(BRANCH):
            return self._branches.own_can_advance()
        return self._branches.cancelled > 0 or self._branches.can_advance()


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


async def _settle() -> None:
    for _ in range(SETTLE):
        await asyncio.sleep(0)
