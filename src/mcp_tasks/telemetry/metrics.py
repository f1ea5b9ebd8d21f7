"""Counts what happens to tasks, and notices callers who do what honest ones do not: an observer of the runtime."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import getmembers, iscoroutinefunction
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable
from mcp_tasks.model.json import legible
from mcp_tasks.model.limits import LIMITS, Limits
from mcp_tasks.model.machine import (
    InputAnswered,
    InputRequested,
    InputWithdrawn,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunReleased,
    RunStarted,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.model.record import Actor, TaskRecord, TaskStatus
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.observers import Refusal, TaskAccess, TaskChange, Wanted, Watcher
from mcp_tasks.stores.base import EVERYBODY, Store
from mcp_tasks.telemetry.audit import AuditEntry, AuditLog

# ---- contract
# The metrics: their names, units and labels, which dashboards and alerts rely on. docs/telemetry.md has this table.


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

_UNITS: Final = {"s": "_seconds"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Metric:
    """One metric. There is one object of each, and it is looked up by that.

    Attributes:
        name: Its name in OpenTelemetry.
        unit: Its unit, as OpenTelemetry writes it (UCUM).
        about: What it says.
        buckets: Of a histogram, the upper bounds.
        is_shared: Whether it is of the whole fleet, and each process says the same: take the `max`, not the `sum`.
    """

    name: str
    kind: Kind
    unit: str
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    is_shared: bool = False

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus."""
        name = self.name.replace(".", "_") + _UNITS.get(self.unit, "")
        return f"{name}_total" if self.kind == "counter" else name


_LONG: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
_SHORT: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)

CREATED: Final = Metric(
    name="mcp_tasks.created", kind="counter", unit="{task}", labels=("tool",), about="Tasks that were made."
)
ENDED: Final = Metric(
    name="mcp_tasks.ended",
    kind="counter",
    unit="{task}",
    labels=("tool", "status"),
    about="Tasks that ended, and how: completed, tool_error (a result that says isError), failed, cancelled.",
)
DELETED: Final = Metric(
    name="mcp_tasks.deleted",
    kind="counter",
    unit="{task}",
    labels=("why",),
    about="Tasks that were forgotten: expired, or deleted before.",
)
OPEN: Final = Metric(
    name="mcp_tasks.open", kind="gauge", unit="{task}", about="Tasks that have not ended.", is_shared=True
)
RUNNING: Final = Metric(
    name="mcp_tasks.running", kind="gauge", unit="{task}", about="Tools that are at work in this process."
)
QUEUE_READY: Final = Metric(
    name="mcp_tasks.queue.ready",
    kind="gauge",
    unit="{task}",
    labels=("queue",),
    about="Tasks that could run and nobody has.",
    is_shared=True,
)
QUEUE_AGE: Final = Metric(
    name="mcp_tasks.queue.oldest_age",
    kind="gauge",
    unit="s",
    labels=("queue",),
    about="For how long the task has waited that has waited longest.",
    is_shared=True,
)
WAIT: Final = Metric(
    name="mcp_tasks.wait",
    kind="histogram",
    unit="s",
    labels=("tool",),
    buckets=_LONG,
    about="How long a task waited for its first run.",
)
RUN: Final = Metric(
    name="mcp_tasks.run",
    kind="histogram",
    unit="s",
    labels=("tool", "end"),
    buckets=_LONG,
    about="How long a run took, and how it ended: as a task ends, or parked, released, lost, asked.",
)
LOST_RUNS: Final = Metric(
    name="mcp_tasks.runs.lost",
    kind="counter",
    unit="{run}",
    labels=("tool",),
    about="Runs whose process died, or was silent for so long that it lost its lease.",
)
LEASE: Final = Metric(
    name="mcp_tasks.lease.valid",
    kind="gauge",
    unit="1",
    about="1 while the lease of this process holds, 0 when it could not be renewed in time.",
)
QUESTIONS: Final = Metric(
    name="mcp_tasks.questions",
    kind="counter",
    unit="{question}",
    labels=("tool", "what"),
    about="Questions to clients: asked, answered, withdrawn.",
)
STORE: Final = Metric(
    name="mcp_tasks.store",
    kind="histogram",
    unit="s",
    labels=("verb",),
    buckets=_SHORT,
    about="How long the store took for one request of this process.",
)
STORE_FAILURES: Final = Metric(
    name="mcp_tasks.store.failures",
    kind="counter",
    unit="{request}",
    labels=("verb",),
    about="Requests to the store that failed because it was away or broken.",
)
READS: Final = Metric(
    name="mcp_tasks.reads",
    kind="counter",
    unit="{request}",
    labels=("method",),
    about="Looks at tasks that were answered: polls, listings, streams, companions.",
)
REFUSED: Final = Metric(
    name="mcp_tasks.refused",
    kind="counter",
    unit="{request}",
    labels=("method", "reason"),
    about="Requests that were refused, and why.",
)
LIMITED: Final = Metric(
    name="mcp_tasks.limited",
    kind="counter",
    unit="{request}",
    labels=("limit",),
    about="Requests that were refused because of a limit, by the attribute of Limits.",
)
LIMIT: Final = Metric(
    name="mcp_tasks.limit",
    kind="gauge",
    unit="1",
    labels=("limit",),
    about="What the limits are set to, in their own unit: bytes, seconds, tasks, times a second.",
)
SHORT_WAY: Final = Metric(
    name="mcp_tasks.short_way.answered",
    kind="counter",
    unit="{request}",
    labels=("method",),
    about="Requests that were answered before the SDK saw them.",
)
HANDED_OVER: Final = Metric(
    name="mcp_tasks.short_way.handed_over",
    kind="counter",
    unit="{request}",
    labels=("reason",),
    about="Requests that were left to the SDK, and why.",
)
LISTENERS: Final = Metric(
    name="mcp_tasks.listeners",
    kind="gauge",
    unit="{stream}",
    about="Streams of subscriptions/listen that the short way serves.",
)
SUSPICIOUS: Final = Metric(
    name="mcp_tasks.suspicious",
    kind="counter",
    unit="{minute}",
    labels=("pattern",),
    about="Minutes in which a caller went over a threshold: failed_lookups, excessive_polling, limit_hits.",
)
UNOBSERVED: Final = Metric(
    name="mcp_tasks.unobserved",
    kind="counter",
    unit="{event}",
    about="What observers (the audit log, these metrics, the author's own) were not told, because they were too slow.",
)

METRICS: Final = (
    CREATED,
    ENDED,
    DELETED,
    OPEN,
    RUNNING,
    QUEUE_READY,
    QUEUE_AGE,
    WAIT,
    RUN,
    LOST_RUNS,
    LEASE,
    QUESTIONS,
    STORE,
    STORE_FAILURES,
    READS,
    REFUSED,
    LIMITED,
    LIMIT,
    SHORT_WAY,
    HANDED_OVER,
    LISTENERS,
    SUSPICIOUS,
    UNOBSERVED,
)


# ---- numbers
# What is counted in this process, in plain numbers: whoever exports metrics reads them from here.


Labels: TypeAlias = tuple[str, ...]

MOST_SERIES: Final = 500
"""Combinations of labels that one metric has. What is beyond it is counted under `other`: a server may add tools as it
runs, and a metric must not grow with what is called."""

OTHER: Final = "other"


class Distribution:
    """How often a value was in each bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: tuple[float, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def add(self, value: float) -> None:
        """Take note of one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Numbers:
    """The counters and distributions of one `Tasks` object, for as long as the process lives.

    Attributes:
        on_value: Called with every value of a distribution as well, if it is set: from the thread that has the value.
    """

    def __init__(self) -> None:
        self.on_value: Callable[[Metric, Labels, float], None] | None = None
        self._counts: dict[Metric, dict[Labels, float]] = {each: {} for each in METRICS if each.kind == "counter"}
        self._spread: dict[Metric, dict[Labels, Distribution]] = {
            each: {} for each in METRICS if each.kind == "histogram"
        }

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Count."""
        series = self._counts[metric]
        if labels not in series and len(series) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        series[labels] = series.get(labels, 0) + by

    def expect(self, metric: Metric, *labels: str) -> None:
        """Have a counter stand at 0. One that begins with its first event looks to Prometheus as if nothing had
        happened: `increase` and `rate` know only what changed between two looks."""
        series = self._counts[metric]
        # What is only expected leaves room for what happens.
        if len(series) < MOST_SERIES // 2:
            series.setdefault(labels, 0)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Take note of a value."""
        series = self._spread[metric]
        spread = series.get(labels)
        if spread is None:
            if len(series) >= MOST_SERIES:
                labels = (OTHER,) * len(labels)
            spread = series.setdefault(labels, Distribution(metric.buckets))
        spread.add(value)
        if self.on_value is not None:
            self.on_value(metric, labels, value)

    def counts(self, metric: Metric) -> Mapping[Labels, float]:
        """A counter as of now; nothing for what is not one."""
        return dict(self._counts.get(metric, {}))

    def distributions(self, metric: Metric) -> Mapping[Labels, Distribution]:
        """A distribution as of now."""
        return dict(self._spread[metric])


# ---- gauges
# What is so at this moment: in this process, and in the store for the whole fleet. Looked at when somebody asks.


logger: Final = get_logger(__name__)

LOOK_LIMIT: Final = 3.0
"""Seconds that the store may take."""

KEPT_FOR: Final = 1.0
"""Seconds for which an answer of the store is given again: however many ask, it is asked once."""

Values: TypeAlias = Mapping[Metric, Mapping[Labels, float]]


class Queued(NamedTuple):
    """What waits in one queue."""

    ready: int
    oldest_age: float


class Served(Protocol):
    """What the short way has counted."""

    listeners: int

    @property
    def answered(self) -> Mapping[str, int]:
        """By method."""
        ...

    @property
    def handed_over(self) -> Mapping[Any, int]:
        """By reason."""
        ...


class Gauges:
    """What is to be seen of one `Tasks` object.

    Args:
        backlog: What waits in each queue.
        served: What the short way has counted.

    Attributes:
        runtime: The one that is running now.
    """

    def __init__(
        self, backlog: Callable[[TaskRuntime], Awaitable[Mapping[str, Queued]]], served: Callable[[], Served]
    ) -> None:
        self.runtime: TaskRuntime | None = None
        self._backlog = backlog
        self._served = served
        self._shared: Values = {}
        self._looked_at = float("-inf")
        self._lost_before = 0

    def leave(self) -> None:
        """The runtime has stopped."""
        if self.runtime is not None:
            # It is a count for the life of the process, and the next runtime begins with none.
            self._lost_before += self.runtime.observers.lost
        self.runtime, self._shared, self._looked_at = None, {}, float("-inf")

    def here(self) -> Values:
        """What can be seen without waiting for anything."""
        served = self._served()
        found: dict[Metric, Mapping[Labels, float]] = {
            SHORT_WAY: {(method,): count for method, count in dict(served.answered).items()},
            HANDED_OVER: {(str(reason),): count for reason, count in dict(served.handed_over).items()},
            LISTENERS: {(): served.listeners},
            UNOBSERVED: {(): self._lost_before},
        }
        runtime = self.runtime
        if runtime is not None:
            found[UNOBSERVED] = {(): self._lost_before + runtime.observers.lost}
            found[RUNNING] = {(): len(runtime.at_work())}
            found[LIMIT] = _limits(runtime.limits)
            if runtime.runs_tools:
                found[LEASE] = {(): int(runtime.lease.is_valid)}
        return found

    def shared(self) -> Values:
        """What the store said last."""
        return self._shared

    async def look(self) -> None:
        """Ask the store, if that was not done just now. What it does not answer is not told: a number that is old looks
        like one that is true."""
        now = asyncio.get_running_loop().time()
        runtime = self.runtime
        if runtime is None or now < self._looked_at + KEPT_FOR:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                queues = await self._backlog(runtime)
                usage = await runtime.store.usage(runtime.namespace, EVERYBODY)
        except (TimeoutError, StoreError) as exc:
            logger.debug("the store could not be asked what waits: %s", what(exc))
            self._shared = {}
            return
        self._shared = {
            QUEUE_READY: {(queue,): found.ready for queue, found in queues.items()},
            QUEUE_AGE: {(queue,): found.oldest_age for queue, found in queues.items()},
            OPEN: {(): usage.open_tasks},
        }


def _limits(limits: Limits) -> Mapping[Labels, float]:
    values = {name: getattr(limits, name) for name in LIMITS}
    return {
        (name,): value.total_seconds() if isinstance(value, timedelta) else float(value)
        for name, value in values.items()
        if value is not None
    }


# ---- timed store
# A store whose every verb is timed: around whichever store it is, and only where somebody reads the times.


def timed(store: Store, numbers: Numbers) -> Store:
    """The same store, timed."""
    return cast(Store, _TimedStore(store, numbers))


class _TimedStore:
    # Not a class with the verbs of `Store`: a store may have more of them, and who uses it asks for those by name.

    def __init__(self, store: Store, numbers: Numbers) -> None:
        self._store = store
        for name, _ in getmembers(type(store), iscoroutinefunction):
            if not name.startswith("_"):
                numbers.expect(STORE_FAILURES, name)
                setattr(self, name, _timed(getattr(store, name), name, numbers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return repr(self._store)

    def __str__(self) -> str:
        return str(self._store)


def _timed(call: Callable[..., Awaitable[Any]], verb: str, numbers: Numbers) -> Callable[..., Awaitable[Any]]:
    async def timed_call(*args: Any, **kwargs: Any) -> Any:
        since = perf_counter()
        try:
            return await call(*args, **kwargs)
        except (StoreUnavailable, StoreCorrupt):
            numbers.add(STORE_FAILURES, verb)
            raise
        finally:
            numbers.observe(STORE, perf_counter() - since, verb)

    return timed_call


# ---- suspicion
# Callers who do what honest ones do not: told once a minute and pattern, with the principal.


Pattern: TypeAlias = Literal["failed_lookups", "excessive_polling", "limit_hits"]

MINUTE: Final = 60.0

THRESHOLDS: Final[dict[Pattern, int]] = {
    # A client that comes back for tasks that have expired asks for each once. Nobody guesses an id of 160 bits, but who
    # tries is to be known, and so is who tries ids that leaked.
    "failed_lookups": 30,
    # Of one task. The shortest interval that clients are told is 0.2 s: twice as often as that, for a whole minute.
    "excessive_polling": 600,
    "limit_hits": 60,
}
"""How many in a minute are suspicious, of one principal; of callers without one, of all together."""

MOST_CALLERS: Final = 10_000
"""Callers (for polling: callers and tasks) that are counted at a time, for each pattern. Beyond it, those that come new
are not."""

_WORDS: Final[dict[Pattern, str]] = {
    "failed_lookups": "asked for tasks that are not there, or not theirs",
    "excessive_polling": "asked for the same task",
    "limit_hits": "were over a limit",
}
_LONGEST_NAME: Final = 200


class Suspicion:
    """Watches the callers of one runtime."""

    def __init__(self, numbers: Numbers, audit: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._numbers = numbers
        self._audit = audit
        self._clock = clock
        self._since = clock()
        # Each has a bound of its own: who polls many tasks must not hide who guesses ids.
        self._counts: dict[Pattern, dict[Hashable, int]] = {pattern: {} for pattern in THRESHOLDS}
        for pattern in THRESHOLDS:
            numbers.expect(SUSPICIOUS, pattern)

    def consider(self, access: TaskAccess) -> None:
        """See whether the caller has done this too often by now."""
        now = self._clock()
        if now >= self._since + MINUTE:
            self._since = now
            self._counts = {pattern: {} for pattern in THRESHOLDS}
        match access.refused:
            case None:
                if access.verb == "read" and access.method != "local":
                    self._count("excessive_polling", (access.owner, access.task_id), access)
            case Refusal.UNKNOWN:
                self._count("failed_lookups", access.owner, access)
            case Refusal.LIMIT:
                self._count("limit_hits", access.owner, access)
            case _:
                pass

    def _count(self, pattern: Pattern, who: Hashable, access: TaskAccess) -> None:
        counts = self._counts[pattern]
        before = counts.get(who, 0)
        if before == 0 and len(counts) >= MOST_CALLERS:
            return
        count = counts[who] = before + access.times
        if before < THRESHOLDS[pattern] <= count:
            self._tell(pattern, access)

    def _tell(self, pattern: Pattern, access: TaskAccess) -> None:
        self._numbers.add(SUSPICIOUS, pattern)
        name = "callers without a name" if access.owner is None else repr(access.owner[:_LONGEST_NAME])
        logger.warning(
            "suspicious (%s): %s %s %d times within a minute", pattern, name, _WORDS[pattern], THRESHOLDS[pattern]
        )
        self._audit.write(
            AuditEntry(
                event="suspicious",
                actor=Actor("client", access.owner),
                task_id=access.task_id if pattern == "excessive_polling" else None,
                method=access.method,
                reason=pattern,
                count=THRESHOLDS[pattern],
                at=datetime.fromtimestamp(access.at, UTC),
            )
        )


_CHANGES: frozenset[type[Wanted]] = frozenset(
    {
        TaskCreated,
        RunStarted,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        RunParked,
        RunReleased,
        RunLost,
        TaskCancelled,
        TaskDeleted,
        InputRequested,
        InputAnswered,
        InputWithdrawn,
    }
)

_ENDS: Final = ("completed", "tool_error", "failed", "cancelled")

_METHODS: Final = frozenset(
    {
        "tasks/get",
        "tasks/update",
        "tasks/cancel",
        "tasks/result",
        "tasks/list",
        "subscriptions/listen",
        "tools/call",
        "prompts/get",
        "resources/read",
        "companion",
        "local",
    }
)


class Meter(Watcher):
    """Counts for one runtime.

    Args:
        is_counted: Whether somebody reads the numbers.
        watches_looks: Whether looks at tasks are watched, and not only refusals.
        knows: Whether the server has a tool of that name. Others are counted as `other`: their names are the callers'.
    """

    def __init__(
        self,
        numbers: Numbers,
        suspicion: Suspicion,
        *,
        is_counted: Callable[[], bool],
        watches_looks: Callable[[], bool],
        knows: Callable[[str], bool],
    ) -> None:
        self._numbers = numbers
        self._suspicion = suspicion
        self._is_counted = is_counted
        self._watches_looks = watches_looks
        self._knows = knows
        for limit in LIMITS:
            numbers.expect(LIMITED, limit)
        for why in ("expired", "deleted"):
            numbers.expect(DELETED, why)
        for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "subscriptions/listen"):
            numbers.expect(REFUSED, method, Refusal.UNKNOWN.value)

    def __repr__(self) -> str:
        return "the metrics of tasks"

    def wanted(self) -> Collection[type[Wanted]]:
        """Refusals in any case; everything else only if somebody reads it."""
        looks: set[type[Wanted]] = {TaskAccess} if self._watches_looks() else set()
        changes = _CHANGES if self._is_counted() else frozenset[type[Wanted]]()
        return changes | looks | {Refusal}

    def access(self, access: TaskAccess) -> None:
        """Count a look, or a refusal."""
        method = access.method if access.method in _METHODS else OTHER
        if access.refused is None:
            self._numbers.add(READS, method, by=access.times)
        else:
            self._numbers.add(REFUSED, method, access.refused.value, by=access.times)
            if access.refused is Refusal.LIMIT:
                self._numbers.add(LIMITED, access.detail or OTHER, by=access.times)
        self._suspicion.consider(access)

    def __call__(self, change: TaskChange) -> None:
        """Count a change."""
        tool = self._label(change.task)
        match change.event:
            case TaskCreated():
                self._numbers.add(CREATED, tool)
                for end in _ENDS:
                    self._numbers.expect(ENDED, tool, end)
            case RunStarted():
                self._started(change, tool)
            case TaskDeleted():
                self._numbers.add(DELETED, "expired" if change.actor.kind == "sweep" else "deleted")
            case InputRequested(requests=requests):
                self._numbers.add(QUESTIONS, tool, "asked", by=len(requests))
            case InputAnswered():
                self._numbers.add(QUESTIONS, tool, "answered", by=_closed(change))
            case InputWithdrawn():
                self._numbers.add(QUESTIONS, tool, "withdrawn", by=_closed(change))
            case _:
                self._ended(change, tool)

    def _started(self, change: TaskChange, tool: str) -> None:
        task = change.task
        if task.attempt == 1 and task.started_at is not None:
            self._numbers.observe(WAIT, _seconds(task.created_at, task.started_at), tool)

    def _ended(self, change: TaskChange, tool: str) -> None:
        """A run has ended, and perhaps the task with it."""
        before, end = change.before, _end_of(change)
        if isinstance(change.event, RunLost):
            self._numbers.add(LOST_RUNS, tool)
        if before is not None and before.worker is not None and before.started_at is not None:
            until = change.task.finished_at or change.at
            self._numbers.observe(RUN, _seconds(before.started_at, until), tool, end)
        if change.task.is_final and not isinstance(change.event, RunAskedOnCall):
            self._numbers.add(ENDED, tool, end)

    def _label(self, task: TaskRecord) -> str:
        """The tool of a task, as a label. Prompts and resources are one each: a resource may have any URI."""
        if task.method != "tools/call":
            return task.method
        return legible(task.name) if self._knows(task.name) else OTHER


def _end_of(change: TaskChange) -> str:
    match change.event:
        case RunParked():
            return "parked"
        case RunReleased():
            return "released"
        case RunLost():
            return "lost"
        case RunAskedOnCall():
            return "asked"
        case _:
            status = change.task.status
            return "tool_error" if status is TaskStatus.COMPLETED and change.task.is_error else status.value


def _closed(change: TaskChange) -> int:
    before = 0 if change.before is None else len(change.before.inputs.outstanding)
    after = 0 if change.after is None else len(change.after.inputs.outstanding)
    return max(before - after, 0)


def _seconds(since: datetime, until: datetime) -> float:
    # Two machines may have written them, and their clocks differ.
    return max((until - since).total_seconds(), 0.0)
