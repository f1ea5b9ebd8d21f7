"""Observers are told of everything that happens to tasks, and can neither break nor delay one.

Each observer is called in a thread of its own, with one change after the other. Changes are handed over in batches, so
that one costs the event loop next to nothing. The number of changes that may wait for an observer is limited: one that
is too slow loses changes, and the log says how many. The first exception of each is logged, and it goes on being
called. No observer delays another.

Changes are for every observer. Accesses to tasks and refused requests are for a `Watcher`, an observer of our own.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

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

logger: Final = get_logger(__name__)

# ---- accesses
# Requests that look at tasks, and requests that were refused.


Verb: TypeAlias = Literal["create", "read", "list", "listen", "answer", "cancel"]
"""What a caller asked for."""


class Refusal(StrEnum):
    """Why a request was refused, in one word: the labels of a metric."""

    UNKNOWN = "unknown"
    """There is no such task for this caller: the id never existed, is expired, or is another's. One word for all three,
    as there is one answer."""

    LIMIT = "limit"
    KEY = "key"
    OWNER = "owner_required"
    UNDECLARED = "undeclared"
    """The client did not declare tasks, or its protocol version has none."""

    MALFORMED = "malformed"
    ANSWER = "answer"
    """An answer that does not fit its question."""

    FAILED = "failed"
    """Not the caller's fault: the store was unavailable, or there is an error on this side."""


class TaskAccess(NamedTuple):
    """A request that looked at a task, or was refused.

    Attributes:
        method: A method of the wire, `companion` for a companion tool, `local` for code of the server's own.
        owner: The principal behind the request; None if it has none.
        at: When, in the store's time: seconds since 1970.
        task_id: The task, if it is about one. Of a refused request it may be any text.
        tool: The tool of that task, if the caller may know of it.
        refused: Why it was refused; None if it was not.
        detail: Of a limit, its name; of a key, what is wrong with it.
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


# ---- observers


Observed: TypeAlias = Event | TaskCreated | TaskDeleted
"""The events that an observer is told of."""

Wanted: TypeAlias = Observed | TaskAccess | Refusal
"""What a watcher can ask for: events, accesses to tasks (`TaskAccess`), refused requests (`Refusal`). Refused requests
are few, so that they can be watched where accesses are too many."""

EVERYTHING: frozenset[type[Wanted]] = frozenset(get_args(Observed))

MAX_WAITING = 10_000
"""Changes that may wait for an observer. Beyond it, new ones are dropped."""

WARN_EVERY = 10.0
"""Seconds between two warnings of one observer that is too slow."""

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


class Watcher:
    """An observer of our own, which chooses what it is told of. It is called in the observer's thread, except for
    `wanted`, which is called on the event loop and must be quick."""

    def __call__(self, change: TaskChange, /) -> None:
        """Take note of a change."""
        raise NotImplementedError

    def wanted(self) -> Collection[type[Wanted]]:
        """What it wants to be told of, as of now. Called at the start and every few seconds, not with every change."""
        raise NotImplementedError

    def access(self, access: TaskAccess, /) -> None:
        """Take note of an access (if it wants `TaskAccess`), or of a refused request (`Refusal`)."""

    def lost(self, count: int, /) -> None:
        """Take note that it was too slow, and is not told of so many things before this."""

    def tick(self) -> None:
        """Do the work of every few seconds."""

    def close(self) -> None:
        """Finish: it is told nothing more."""


class Observers:
    def __init__(self, observers: Sequence[Observer], *, max_waiting: int = MAX_WAITING) -> None:
        self._queues = tuple(_Queue(observer, max_waiting) for observer in observers)
        self.wanted: frozenset[type[Wanted]] = frozenset()
        self._batch: list[TaskChange | TaskAccess] = []
        self.ask()

    @property
    def lost(self) -> int:
        """How many things were not told to one observer or another, because it was too slow."""
        return sum(each.lost for each in self._queues)

    def ask(self) -> None:
        """Ask the observers again what they want to be told of. Every few seconds."""
        for each in self._queues:
            each.ask()
        self.wanted = frozenset[type[Wanted]]().union(*(each.wanted for each in self._queues))

    def want(self, event: type[Wanted]) -> bool:
        return event in self.wanted

    def note(self, access: TaskAccess) -> None:
        """Tell them soon of an access or a refused request. Call from the event loop's thread."""
        self._add(access)

    def tell(self, change: TaskChange) -> None:
        """Tell them soon of a change. Call from the event loop's thread."""
        self._add(change)

    async def stop(self, timeout: timedelta) -> None:
        self._hand_over()
        # What comes later is not told: nothing would end the threads for it.
        self.wanted = frozenset()
        await asyncio.gather(*(each.finish(timeout) for each in self._queues))

    def abandon(self) -> None:
        self._batch, self.wanted = [], frozenset()
        for each in self._queues:
            each.abandon()

    def _add(self, told: TaskChange | TaskAccess) -> None:
        if _kind_of(told) in self.wanted:
            self._batch.append(told)
            if len(self._batch) == 1:
                asyncio.get_running_loop().call_later(TOGETHER_FOR, self._hand_over)

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        for each in self._queues:
            each.put([told for told in batch if _kind_of(told) in each.wanted])


def _kind_of(told: TaskChange | TaskAccess) -> type[Wanted]:
    if isinstance(told, TaskAccess):
        return TaskAccess if told.refused is None else Refusal
    return type(told.event)


class _Queue:
    """Tells one observer, in a thread that is started once there is something to tell."""

    def __init__(self, observer: Observer, max_waiting: int) -> None:
        self.wanted: frozenset[type[Wanted]] = frozenset()
        self.lost: int = 0
        self._observer = observer
        self._watcher = observer if isinstance(observer, Watcher) else None
        self._max_waiting = max_waiting
        self._thread: _Thread | None = None
        self._dropped = 0
        self._untold = 0
        self._warned = -inf

    def ask(self) -> None:
        self.wanted = EVERYTHING if self._watcher is None else frozenset(self._watcher.wanted())
        if self._thread is not None and self._watcher is not None:
            self._thread.put([*self._those_lost(), self._watcher.tick])

    def put(self, told: Sequence[TaskChange | TaskAccess]) -> None:
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
        self._thread.put([*before, *map(self._call, told[:room])])

    def abandon(self) -> None:
        """Tell it nothing more, as if the process had died."""
        if self._thread is not None:
            self._thread.abandon()

    async def finish(self, timeout: timedelta) -> None:
        self._warn_of_dropped(every=0)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.put(self._those_lost())
            await thread.finish(timeout)

    def _call(self, told: TaskChange | TaskAccess) -> Callable[[], None]:
        if isinstance(told, TaskChange):
            return partial(self._observer, told)
        # Only a watcher can want one.
        return partial(cast("Watcher", self._watcher).access, told)

    def _those_lost(self) -> list[Callable[[], None]]:
        untold, self._untold = self._untold, 0
        return [partial(self._watcher.lost, untold)] if untold and self._watcher is not None else []

    def _warn_of_dropped(self, *, every: float) -> None:
        now = asyncio.get_running_loop().time()
        if self._dropped and now >= self._warned + every:
            logger.warning("%d changes of tasks were not told to %r: it is too slow", self._dropped, self._observer)
            self._dropped, self._warned = 0, now


class _Thread:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._batches: queue.SimpleQueue[Sequence[Callable[[], None]] | None] = queue.SimpleQueue()
        self._put = 0
        self._done = 0
        self._skips = False
        self._abandoned = False
        self._failed = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        # A daemon: an observer that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="mcp-tasks-observer", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many calls wait. Each number is written by one thread only."""
        return self._put - self._done

    def put(self, batch: Sequence[Callable[[], None]]) -> None:
        self._put += len(batch)
        self._batches.put(batch)

    def abandon(self) -> None:
        self._skips = self._abandoned = True
        self._batches.put(None)

    async def finish(self, timeout: timedelta) -> None:
        self._batches.put(None)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._ended.wait()
        except TimeoutError:
            self._skips = True
            logger.warning(
                "%r was not told of all changes of tasks: it did not end within %g s",
                self._observer,
                timeout.total_seconds(),
            )

    def _work(self) -> None:
        untold = 0
        while (batch := self._batches.get()) is not None:
            for call in batch:
                if self._skips:
                    untold += 1
                else:
                    self._guarded(call)
                self._done += 1
        if isinstance(self._observer, Watcher) and not self._abandoned:
            if untold:
                self._guarded(partial(self._observer.lost, untold))
            self._guarded(self._observer.close)
        # The event loop may be closed by now; then nothing waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            # In any case: the next change is another one.
            if not self._failed:
                self._failed = True
                logger.error(
                    "%r failed to observe a change of a task; it goes on being called, and further failures of it are "
                    "not logged",
                    self._observer,
                    exc_info=quietly(),
                )


# ---- narration
# The lifecycle of each task in the log: one line for each event at INFO; its deletion at DEBUG.


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


class Narration(Watcher):
    def wanted(self) -> Collection[type[Observed]]:
        """Nothing, while such lines are not logged."""
        if logger.isEnabledFor(logging.DEBUG):
            return _AT_INFO | _AT_DEBUG
        return _AT_INFO if logger.isEnabledFor(logging.INFO) else ()

    def __call__(self, change: TaskChange) -> None:
        level = logging.DEBUG if type(change.event) in _AT_DEBUG else logging.INFO
        if isinstance(change.event, RunFailed) and change.event.reason is not None:
            # The server failed, and not the tool.
            level = logging.WARNING
        task = change.task
        logger.log(level, "task %s (%s) %s", short_id(task.id), task.name, _what_happened(change, task))


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


class Tracing(Protocol):
    """Makes one trace of everything that is done for a task. Its methods are on the path of a request, so they must be
    quick."""

    def trace_of(self, request: TaskRequest) -> str | None:
        """The trace context of the current call, which the new task keeps (`TaskRecord.trace`); None without one."""
        ...

    def around(self, run: Run) -> AbstractContextManager[None]: ...

    def touched(self, record: TaskRecord) -> None:
        """A request about the task is being answered."""
        ...


# ---- troubles
# Errors with one task, logged once, while everything else goes on.


MAX_TROUBLES = 10_000
"""Tasks whose errors are remembered."""


class Troubles:
    def __init__(self) -> None:
        self._tasks: BoundedDict[str, int] = BoundedDict(MAX_TROUBLES)
        self._missing_tools: set[str] = set()

    def note(self, task_id: str, exc: Exception) -> int:
        """Log an error with a task, once; how often there was one by now."""
        known = self._tasks.get(task_id, 0)
        self._tasks[task_id] = known + 1
        if known == 0:
            said = exc.why if isinstance(exc, TaskUnreadable) else what(exc)
            shown = None if isinstance(exc, StoreError) else quietly(exc)
            logger.error("task %s is left as it is, and the others go on: %s", short_id(task_id), said, exc_info=shown)
        return known + 1

    def note_missing_tool(self, tool: str) -> None:
        """Log once that tasks of a tool wait for a process that has it."""
        if tool not in self._missing_tools and len(self._missing_tools) < MAX_TROUBLES:
            self._missing_tools.add(tool)
            logger.warning("this server has no tool %r; its tasks wait for a process that has it", tool)
