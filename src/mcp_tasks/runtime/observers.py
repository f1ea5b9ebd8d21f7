"""Who is told of everything that happens to tasks, and how: without ever breaking or delaying one.

Each observer is called in a thread of its own, one change after the other. What happens is handed over in batches, so
that a change costs the event loop next to nothing. What waits for an observer has a bound: one that cannot keep up
loses changes, and the log says how many. One that raises is named in the log once, and goes on being called. None of
them is held up by another.

Changes are for everybody. Looks at tasks and refusals (`observers.py`) are for watchers of our own, which are also told
when something could not be told.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from mcp_tasks._utils import BoundedDict, short_id
from mcp_tasks.errors import StoreError, TaskUnreadable
from mcp_tasks.model.machine import (
    Event,
    InputRequested,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunReleased,
    RunStarted,
    RunStartedOver,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.model.record import Actor, TaskRecord, TaskRequest
from mcp_tasks.quiet import get_logger, quietly, what

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

# ---- accesses
# Looks at tasks, and requests about them that were refused: what changes nothing, and yet has to be known of.


Verb: TypeAlias = Literal["create", "read", "list", "listen", "answer", "cancel"]
"""What a caller asked for."""


class Refusal(StrEnum):
    """Why a request was refused, in one word. These are labels of metrics, so there are as many as there are here."""

    UNKNOWN = "unknown"
    """There is no such task for this caller: the id was never one, is not one any more, or is another's. One word for
    all three, as there is one answer."""

    LIMIT = "limit"
    KEY = "key"
    OWNER = "owner_required"
    UNDECLARED = "undeclared"
    """The client did not declare that it takes tasks, or its era has none."""

    MALFORMED = "malformed"
    ANSWER = "answer"
    """An answer that does not fit its question."""

    FAILED = "failed"
    """Not the caller's fault: the store was away, or something is broken here."""


class TaskAccess(NamedTuple):
    """Somebody looked at a task, or was refused.

    Attributes:
        verb: What was asked for,
        method: and how: a method of the wire, `companion` for a companion tool, `local` for code of the server's own.
        owner: The principal behind the request; None if it has none.
        at: When, in the store's time: seconds since 1970.
        task_id: The task, if it is about one. What a caller names that is refused may be anything.
        tool: The tool of that task, if the caller may know of it.
        refused: Why it was refused; None if it was not.
        detail: Of a limit, which one it is; of a key, what is wrong with it.
        times: How many there were of these.
    """

    verb: Verb
    method: str
    owner: str | None
    at: float
    task_id: str | None = None
    tool: str | None = None
    refused: Refusal | None = None
    detail: str | None = None
    times: int = 1


logger: Final = get_logger(__name__)

Observed: TypeAlias = Event | TaskCreated | TaskDeleted
"""What an observer is told of."""

Wanted: TypeAlias = Observed | TaskAccess | Refusal
"""What an observer of our own can ask to be told of: changes, looks at tasks (`TaskAccess`), those that were refused
(`Refusal`). Refusals are few, so that they can be watched where looks are too many."""

EVERYTHING: frozenset[type[Wanted]] = frozenset(get_args(Observed))

MAX_WAITING = 10_000
"""Changes that may wait for the observers. Beyond it, new ones are dropped."""

WARN_EVERY = 10.0
"""Seconds between two warnings of one observer that cannot keep up."""

TOGETHER_FOR = 0.02
"""Seconds for which changes are collected before they are handed over: waking a thread costs more than a change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskChange:
    """Something happened to a task.

    Attributes:
        before: The task until then; None for one that was created.
        event: What happened.
        after: The task from then on; None for one that was deleted. Of several events that are written together, each
            has a change of its own, and only the last `after` is ever in the store.
        actor: Who did it.
        at: When it was done, in the store's time.
    """

    before: TaskRecord | None
    event: Observed
    after: TaskRecord | None
    actor: Actor
    at: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)

    @property
    def task(self) -> TaskRecord:
        """The task as it is known last."""
        task = self.after or self.before
        if task is None:
            raise ValueError("a change is one of some task: `before` or `after` must be given")
        return task


Observer: TypeAlias = Callable[[TaskChange], None]
"""A plain function that is called with every change of a task, in a thread of its own."""


class Choosy(ABC):
    """An observer of our own that does not want to be told of everything. It must be quick to say what it wants: it is
    asked on the event loop."""

    @abstractmethod
    def __call__(self, change: TaskChange, /) -> None:
        """Take note of a change."""

    @abstractmethod
    def wanted(self) -> Collection[type[Wanted]]:
        """What it wants to be told of, as of now. Asked at the start and every few seconds, not with every change."""


class Watcher(Choosy):
    """An observer of our own that may want more than changes. All of it is called in the observer's thread."""

    def access(self, access: TaskAccess, /) -> None:
        """Take note of a look at a task (if it wants `TaskAccess`), or of one that was refused (`Refusal`)."""

    def lost(self, count: int, /) -> None:
        """Take note that so many things happened before this which it cannot be told of: it was too slow."""

    def tick(self) -> None:
        """Do what is to be done every few seconds."""

    def close(self) -> None:
        """Finish: it is told nothing more."""


@dataclass(frozen=True, slots=True)
class _Lost:
    count: int


class _Tick:
    """That some seconds are over."""


_TICK: Final = _Tick()

_Told: TypeAlias = TaskChange | TaskAccess | _Lost | _Tick


class Observers:
    """Everybody who observes the tasks of one runtime."""

    def __init__(self, observers: Sequence[Observer], *, max_waiting: int = MAX_WAITING) -> None:
        self._tellers = tuple(_Teller(observer, max_waiting) for observer in observers)
        self._wanted: frozenset[type[Wanted]] = frozenset()
        self._batch: list[TaskChange | TaskAccess] = []
        self.ask()

    @property
    def lost(self) -> int:
        """How many things were not told to one observer or another, because it was too slow."""
        return sum(teller.lost for teller in self._tellers)

    def ask(self) -> None:
        """Ask the observers again what they want to be told of. Every few seconds."""
        for teller in self._tellers:
            teller.ask()
        self._wanted = frozenset[type[Wanted]]().union(*(teller.wanted for teller in self._tellers))

    def want(self, event: type[Wanted]) -> bool:
        """Whether anybody wants to be told of such an event."""
        return event in self._wanted

    def note(self, access: TaskAccess) -> None:
        """Tell those who want it of a look at a task, or of a refusal, soon. Call from the event loop's thread."""
        if _kind_of(access) in self._wanted:
            self._add(access)

    def tell(self, change: TaskChange) -> None:
        """Tell them of a change, soon. Call from the event loop's thread."""
        if type(change.event) in self._wanted:
            self._add(change)

    def _add(self, told: TaskChange | TaskAccess) -> None:
        self._batch.append(told)
        if len(self._batch) == 1:
            asyncio.get_running_loop().call_later(TOGETHER_FOR, self._hand_over)

    async def stop(self, timeout: timedelta) -> None:
        """Tell them what is left, for up to `timeout`."""
        self._hand_over()
        # What comes later is not told: nobody would end the threads for it.
        self._wanted = frozenset()
        await asyncio.gather(*(teller.finish(timeout) for teller in self._tellers))

    def abandon(self) -> None:
        """Tell them nothing more."""
        self._batch, self._wanted = [], frozenset()
        for teller in self._tellers:
            teller.forget()

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        for teller in self._tellers:
            teller.put([told for told in batch if _kind_of(told) in teller.wanted])


def _kind_of(told: TaskChange | TaskAccess) -> type[Wanted]:
    if isinstance(told, TaskAccess):
        return TaskAccess if told.refused is None else Refusal
    return type(told.event)


class _Teller:
    """Tells one observer, in a thread that is there once there is something to tell."""

    def __init__(self, observer: Observer, max_waiting: int) -> None:
        self.wanted: frozenset[type[Wanted]] = frozenset()
        self.lost: int = 0
        self._observer = observer
        self._max_waiting = max_waiting
        self._thread: _Thread | None = None
        self._dropped = 0
        self._untold = 0
        self._warned = -inf

    def ask(self) -> None:
        """Ask the observer what it wants to be told of."""
        observer = self._observer
        self.wanted = frozenset(observer.wanted()) if isinstance(observer, Choosy) else EVERYTHING
        if self._thread is not None and isinstance(observer, Watcher):
            self._thread.put([*self._those_lost(), _TICK])

    def put(self, told: Sequence[TaskChange | TaskAccess]) -> None:
        """Have it told of these, or of as many as may wait."""
        if not told:
            return
        if self._thread is None:
            self._thread = _Thread(self._observer)
        room = max(self._max_waiting - self._thread.waiting, 0)
        # What was lost came before what there is room for now.
        before = self._those_lost() if room else []
        dropped = len(told[room:])
        self._dropped += dropped
        self._untold += dropped
        self.lost += dropped
        self._warn_of_dropped(every=WARN_EVERY)
        self._thread.put([*before, *told[:room]])

    def _those_lost(self) -> list[_Told]:
        untold, self._untold = self._untold, 0
        return [_Lost(untold)] if untold else []

    def forget(self) -> None:
        """Tell it nothing more."""
        if self._thread is not None:
            self._thread.forget()

    async def finish(self, timeout: timedelta) -> None:
        """Tell it what is left, for up to `timeout`."""
        self._warn_of_dropped(every=0)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.put(self._those_lost())
            await thread.finish(timeout)

    def _warn_of_dropped(self, *, every: float) -> None:
        now = asyncio.get_running_loop().time()
        if self._dropped and now >= self._warned + every:
            logger.warning("%d changes of tasks were not told to %r: it is too slow", self._dropped, self._observer)
            self._dropped, self._warned = 0, now


class _Thread:
    """The thread in which an observer is called."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._batches: queue.SimpleQueue[Sequence[_Told] | None] = queue.SimpleQueue()
        self._put = 0
        self._told = 0
        self._forgotten = False
        self._abandoned = False
        self._failed = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        # A daemon: an observer that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="mcp-tasks-observer", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many changes the observer has not been told of yet. Each number is written by one thread only."""
        return self._put - self._told

    def put(self, batch: Sequence[_Told]) -> None:
        self._put += len(batch)
        self._batches.put(batch)

    def forget(self) -> None:
        """End without telling what is left, as if the process had died."""
        self._forgotten = self._abandoned = True
        self._batches.put(None)

    async def finish(self, timeout: timedelta) -> None:
        """End once everything is told, or when that takes too long."""
        self._batches.put(None)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._ended.wait()
        except TimeoutError:
            self._forgotten = True
            logger.warning(
                "%r was not told of all changes of tasks: it did not end within %g s",
                self._observer,
                timeout.total_seconds(),
            )

    def _work(self) -> None:
        untold = 0
        while (batch := self._batches.get()) is not None:
            for told in batch:
                if self._forgotten:
                    untold += 1
                else:
                    self._call(told)
                self._told += 1
        if isinstance(self._observer, Watcher) and not self._abandoned:
            if untold:
                self._guarded(partial(self._observer.lost, untold))
            self._guarded(self._observer.close)
        # The event loop may be closed by now; then nobody waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _call(self, told: _Told) -> None:
        observer = self._observer
        if type(told) is TaskChange:
            self._guarded(partial(observer, told))
        elif isinstance(observer, Watcher):
            match told:
                case TaskAccess():
                    self._guarded(partial(observer.access, told))
                case _Lost(count):
                    self._guarded(partial(observer.lost, count))
                case _:
                    self._guarded(observer.tick)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            # Whatever it is: the next change is another one.
            if not self._failed:
                self._failed = True
                logger.error(
                    "%r failed to observe a change of a task; it goes on being called, and further failures of it are "
                    "not logged",
                    self._observer,
                    exc_info=quietly(),
                )


# ---- narration
# What an operator wants to know of each task, one line each in the log at INFO; its deletion at DEBUG.


_AT_INFO: frozenset[type[Observed]] = frozenset(
    {
        TaskCreated,
        RunStarted,
        RunStartedOver,
        InputRequested,
        RunParked,
        RunLost,
        RunReleased,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        TaskCancelled,
    }
)
_AT_DEBUG: frozenset[type[Observed]] = frozenset({TaskDeleted})


class Narration(Choosy):
    """Writes the life of each task into the log."""

    def wanted(self) -> Collection[type[Observed]]:
        """Nothing, as long as nobody reads such lines."""
        if logger.isEnabledFor(logging.DEBUG):
            return _AT_INFO | _AT_DEBUG
        return _AT_INFO if logger.isEnabledFor(logging.INFO) else ()

    def __call__(self, change: TaskChange) -> None:
        """Write the line of one change."""
        level = logging.DEBUG if type(change.event) in _AT_DEBUG else logging.INFO
        if isinstance(change.event, RunFailed) and change.event.reason is not None:
            # Not the tool failed, but what the server promised it.
            level = logging.WARNING
        task = change.task
        logger.log(level, "task %s… (%s) %s", task.id[:12], task.name, _what_happened(change, task))


def _what_happened(change: TaskChange, task: TaskRecord) -> str:
    match change.event:
        case TaskCreated():
            return "was created"
        case RunStarted():
            return f"was started: run {task.attempt}"
        case RunStartedOver():
            return f"starts over in run {task.attempt}: its tool is another version than it was"
        case InputRequested(requests=asked):
            questions = "1 question" if len(asked) == 1 else f"{len(asked)} questions"
            return f"waits: it asks the client {questions} ({len(task.inputs.outstanding)} open)"
        case RunParked():
            return f"was parked: run {task.attempt} waits and has left memory"
        case RunLost():
            return f"was recovered: run {task.attempt} died with its process, and it will run again"
        case RunReleased():
            return f"was released: run {task.attempt} was given up, and it will run again"
        case RunAskedOnCall():
            return f"ended without a result after {_age(task)}: its tool asks on the original call"
        case RunCompleted(is_error=True):
            return f"completed with an error of its tool (isError) after {_age(task)}, in run {task.attempt}"
        case RunFailed(reason=str(reason)):
            return f"failed after {_age(task)}, in run {task.attempt}: {reason}"
        case TaskDeleted():
            return "was deleted"
        case _:
            return f"{task.status.value} after {_age(task)}, in run {task.attempt}"


def _age(task: TaskRecord) -> str:
    seconds = 0.0 if task.finished_at is None else (task.finished_at - task.created_at).total_seconds()
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


# ---- tracing
# The seam at which traces are made, which this room knows nothing of.


class Tracing(Protocol):
    """Makes one trace of all that is done for a task. Each of these is on the path of a request, and must be quick."""

    def trace_of(self, request: TaskRequest) -> str | None:
        """What a new task keeps of the trace that its call is in (`TaskRecord.trace`); None if it is in none."""
        ...

    def around(self, run: Run) -> AbstractContextManager[None]:
        """What a run is at work in."""
        ...

    def touched(self, record: TaskRecord) -> None:
        """A request about the task is being answered."""
        ...


# ---- troubles
# What goes wrong with one task, said once, while everything else goes on.


MAX_TROUBLES = 10_000
"""Tasks of which is remembered that they gave trouble."""


class Troubles:
    """The tasks and tools that one process has had trouble with."""

    def __init__(self) -> None:
        self._tasks: BoundedDict[str, int] = BoundedDict(MAX_TROUBLES)
        self._missing_tools: set[str] = set()

    def note(self, task_id: str, exc: Exception) -> int:
        """Log what is wrong with a task, once; how often it was so by now."""
        known = self._tasks.get(task_id, 0)
        self._tasks[task_id] = known + 1
        if known == 0:
            said = exc.why if isinstance(exc, TaskUnreadable) else what(exc)
            shown = None if isinstance(exc, StoreError) else quietly(exc)
            task = short_id(task_id)
            logger.error("task %s is left as it is, and the others go on: %s", task, said, exc_info=shown)
        return known + 1

    def note_missing_tool(self, tool: str) -> None:
        """Log once that tasks of a tool wait for a process that has it."""
        if tool not in self._missing_tools and len(self._missing_tools) < MAX_TROUBLES:
            self._missing_tools.add(tool)
            logger.warning("this server has no tool %r; its tasks wait for a process that has it", tool)
