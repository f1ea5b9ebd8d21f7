"""Metrics of tasks, and suspicious callers: both observe the runtime."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import getmembers, iscoroutinefunction
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable
from mcp_tasks.model.json import legible
from mcp_tasks.model.limits import LIMITS
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

logger: Final = get_logger(__name__)

# ---- contract
# The metrics: their names, units and labels, which dashboards and alerts rely on. docs/telemetry.md has this table.

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. There is one object of each, which is its key.

    Attributes:
        name: Its name in OpenTelemetry.
        unit: Its unit, as OpenTelemetry writes it (UCUM).
        about: Its description.
        buckets: Of a histogram, the upper bounds.
        is_shared: Whether it is of the whole fleet, and each process reports the same: take the `max`, not the `sum`.
    """

    name: str
    kind: Kind
    unit: str
    about: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    is_shared: bool = False

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind == "counter" else name


METRICS: Final[list[Metric]] = []


def _counter(name: str, unit: str, about: str, *labels: str) -> Metric:
    METRICS.append(Metric(f"mcp_tasks.{name}", "counter", unit, about, labels))
    return METRICS[-1]


def _gauge(name: str, unit: str, about: str, *labels: str, is_shared: bool = False) -> Metric:
    METRICS.append(Metric(f"mcp_tasks.{name}", "gauge", unit, about, labels, is_shared=is_shared))
    return METRICS[-1]


def _histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    METRICS.append(Metric(f"mcp_tasks.{name}", "histogram", "s", about, labels, buckets))
    return METRICS[-1]


_LONG: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
_SHORT: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)

CREATED: Final = _counter("created", "{task}", "Tasks that were made.", "tool")
ENDED: Final = _counter(
    "ended",
    "{task}",
    "Tasks that ended, and how: completed, tool_error (a result that says isError), failed, cancelled.",
    "tool",
    "status",
)
DELETED: Final = _counter("deleted", "{task}", "Tasks that were forgotten: expired, or deleted before.", "why")
OPEN: Final = _gauge("open", "{task}", "Tasks that have not ended.", is_shared=True)
RUNNING: Final = _gauge("running", "{task}", "Tools that are at work in this process.")
QUEUE_READY: Final = _gauge("queue.ready", "{task}", "Tasks that could run and nobody has.", "queue", is_shared=True)
QUEUE_AGE: Final = _gauge(
    "queue.oldest_age", "s", "For how long the task has waited that has waited longest.", "queue", is_shared=True
)
WAIT: Final = _histogram("wait", "How long a task waited for its first run.", _LONG, "tool")
RUN: Final = _histogram(
    "run",
    "How long a run took, and how it ended: as a task ends, or parked, released, lost, asked.",
    _LONG,
    "tool",
    "end",
)
LOST_RUNS: Final = _counter(
    "runs.lost", "{run}", "Runs whose process died, or was silent for so long that it lost its lease.", "tool"
)
LEASE: Final = _gauge(
    "lease.valid", "1", "1 while the lease of this process holds, 0 when it could not be renewed in time."
)
QUESTIONS: Final = _counter(
    "questions", "{question}", "Questions to clients: asked, answered, withdrawn.", "tool", "what"
)
STORE: Final = _histogram("store", "How long the store took for one request of this process.", _SHORT, "verb")
STORE_FAILURES: Final = _counter(
    "store.failures", "{request}", "Requests to the store that failed because it was away or broken.", "verb"
)
READS: Final = _counter(
    "reads", "{request}", "Looks at tasks that were answered: polls, listings, streams, companions.", "method"
)
REFUSED: Final = _counter("refused", "{request}", "Requests that were refused, and why.", "method", "reason")
LIMITED: Final = _counter(
    "limited", "{request}", "Requests that were refused because of a limit, by the attribute of Limits.", "limit"
)
LIMIT: Final = _gauge(
    "limit", "1", "What the limits are set to, in their own unit: bytes, seconds, tasks, times a second.", "limit"
)
SHORT_WAY: Final = _counter(
    "short_way.answered", "{request}", "Requests that were answered before the SDK saw them.", "method"
)
HANDED_OVER: Final = _counter(
    "short_way.handed_over", "{request}", "Requests that were left to the SDK, and why.", "reason"
)
LISTENERS: Final = _gauge("listeners", "{stream}", "Streams of subscriptions/listen that the short way serves.")
SUSPICIOUS: Final = _counter(
    "suspicious",
    "{minute}",
    "Minutes in which a caller went over a threshold: failed_lookups, excessive_polling, limit_hits.",
    "pattern",
)
UNOBSERVED: Final = _counter(
    "unobserved",
    "{event}",
    "What observers (the audit log, these metrics, the author's own) were not told, because they were too slow.",
)


# ---- numbers

MOST_SERIES: Final = 500
"""Combinations of labels that one metric has; the rest is counted under `other`. A server may add tools as it runs, and
callers may invent names."""

OTHER: Final = "other"


class Distribution:
    """How often a value was in each bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: tuple[float, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Numbers:
    """The counters and distributions of one `Tasks` object, for as long as the process lives.

    Attributes:
        on_value: Called with every value of a distribution, if it is set, in the thread that has the value.
    """

    def __init__(self) -> None:
        self.on_value: Callable[[Metric, Labels, float], None] | None = None
        self._counts: dict[Metric, dict[Labels, float]] = {metric: {} for metric in METRICS}
        self._spread: dict[Metric, dict[Labels, Distribution]] = {metric: {} for metric in METRICS}

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Increase a counter."""
        series = self._counts[metric]
        if labels not in series and len(series) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        series[labels] = series.get(labels, 0) + by

    def expect(self, metric: Metric, *labels: str) -> None:
        """Begin a counter at 0: Prometheus does not see the first event of a counter that begins with it, because
        `increase` and `rate` compare two samples."""
        series = self._counts[metric]
        # Expected series may use half of the limit, so that there is room for events.
        if len(series) < MOST_SERIES // 2:
            series.setdefault(labels, 0)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a distribution."""
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
        """A counter as of now."""
        return dict(self._counts[metric])

    def distributions(self, metric: Metric) -> Mapping[Labels, Distribution]:
        """A distribution as of now."""
        return dict(self._spread[metric])


# ---- gauges

LOOK_LIMIT: Final = 3.0
"""Seconds that the store may take to answer."""

KEPT_FOR: Final = 1.0
"""Seconds for which an answer of the store is reused, however many readers ask."""

Values: TypeAlias = Mapping[Metric, Mapping[Labels, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The tasks that wait in one queue.

    Attributes:
        ready: How many tasks could run now and have no worker.
        age: How long the oldest of them has waited. Zero if none waits.
    """

    ready: int = 0
    age: timedelta = timedelta(0)


async def backlog_of(runtime: TaskRuntime) -> Mapping[str, Waiting]:
    """The backlog of each queue of a runtime's server, whichever process runs the queue.

    Raises:
        StoreError: The store cannot be read now.
    """
    known = {policy.queue for policy in (await runtime.tools()).values()}
    return await waiting_in(runtime.store, runtime.namespace, runtime.now(), known=known | (runtime.queues or set()))


async def waiting_in(
    store: Store, namespace: str, now: datetime, *, known: Collection[str] = ()
) -> Mapping[str, Waiting]:
    """The backlog of each queue of a server, by name: of known queues, and of any other that has a waiting task.

    Raises:
        StoreError: The store cannot be read now.
    """
    found: dict[str, Waiting] = dict.fromkeys(known, Waiting())
    for queue, backlog in (await store.backlog(namespace, now)).items():
        age = timedelta(0) if backlog.since is None else max(now - backlog.since, timedelta(0))
        found[queue] = Waiting(ready=backlog.ready, age=age)
    return dict(sorted(found.items()))


class Served(Protocol):
    """The counts of the fast path."""

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
    """The present state of one `Tasks` object: in this process, and in the store for the whole fleet.

    Attributes:
        runtime: The one that is running now.
    """

    def __init__(self, served: Callable[[], Served]) -> None:
        self.runtime: TaskRuntime | None = None
        self._served = served
        self._shared: Values = {}
        self._looked_at = float("-inf")
        self._lost_before = 0

    def leave(self) -> None:
        """The runtime has stopped."""
        if self.runtime is not None:
            # The count is for the life of the process, and the next runtime begins at 0.
            self._lost_before += self.runtime.observers.lost
        self.runtime, self._shared, self._looked_at = None, {}, float("-inf")

    def values(self) -> Values:
        """The state of this process now, and of the store when it was read last."""
        served, runtime = self._served(), self.runtime
        lost = self._lost_before + (0 if runtime is None else runtime.observers.lost)
        found: dict[Metric, Mapping[Labels, float]] = {
            SHORT_WAY: {(method,): count for method, count in dict(served.answered).items()},
            HANDED_OVER: {(str(reason),): count for reason, count in dict(served.handed_over).items()},
            LISTENERS: {(): served.listeners},
            UNOBSERVED: {(): lost},
            **self._shared,
        }
        if runtime is not None:
            limits = {name: getattr(runtime.limits, name) for name in LIMITS}
            found[RUNNING] = {(): len(runtime.at_work())}
            found[LIMIT] = {
                (name,): value.total_seconds() if isinstance(value, timedelta) else float(value)
                for name, value in limits.items()
                if value is not None
            }
            if runtime.runs_tools:
                found[LEASE] = {(): int(runtime.lease.is_valid)}
        return found

    async def look(self) -> None:
        """Read the store, unless that was done just now. Without an answer there is no value: an old number looks like
        a true one."""
        now = asyncio.get_running_loop().time()
        runtime = self.runtime
        if runtime is None or now < self._looked_at + KEPT_FOR:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                queues = await backlog_of(runtime)
                usage = await runtime.store.usage(runtime.namespace, EVERYBODY)
        except (TimeoutError, StoreError) as exc:
            logger.debug("could not read the queues for the metrics: %s", what(exc))
            self._shared = {}
            return
        self._shared = {
            QUEUE_READY: {(queue,): found.ready for queue, found in queues.items()},
            QUEUE_AGE: {(queue,): found.age.total_seconds() for queue, found in queues.items()},
            OPEN: {(): usage.open_tasks},
        }


# ---- timed store


def timed(store: Store, numbers: Numbers) -> Store:
    """The same store, with every verb timed."""
    return cast(Store, _TimedStore(store, numbers))


class _TimedStore:
    # Not a subclass of `Store`: a store may have more verbs, and callers look for those by name.

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
        since = time.perf_counter()
        try:
            return await call(*args, **kwargs)
        except (StoreUnavailable, StoreCorrupt):
            numbers.add(STORE_FAILURES, verb)
            raise
        finally:
            numbers.observe(STORE, time.perf_counter() - since, verb)

    return timed_call


# ---- suspicion

Pattern: TypeAlias = Literal["failed_lookups", "excessive_polling", "limit_hits"]

MINUTE: Final = 60.0

THRESHOLDS: Final[dict[Pattern, int]] = {
    # A client that returns for expired tasks asks once for each. An id of 160 bits cannot be guessed, but attempts to
    # guess ids, or to use leaked ones, must be visible.
    "failed_lookups": 30,
    # Of one task. The shortest interval that clients are given is 0.2 s: this is twice that rate, for a whole minute.
    "excessive_polling": 600,
    "limit_hits": 60,
}
"""How many in a minute are suspicious, of one principal; callers without one count together."""

MOST_CALLERS: Final = 10_000
"""Callers (for polling: pairs of caller and task) that are counted at a time for each pattern; later ones are not."""

_WORDS: Final[dict[Pattern, str]] = {
    "failed_lookups": "asked for tasks that do not exist or are not theirs",
    "excessive_polling": "asked for the same task",
    "limit_hits": "were over a limit",
}
_LONGEST_NAME: Final = 200


class Suspicion:
    """Reports suspicious callers of one runtime, once for each minute and pattern, with the principal."""

    def __init__(self, numbers: Numbers, audit: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._numbers = numbers
        self._audit = audit
        self._clock = clock
        self._since = clock()
        # Each pattern has a bound of its own: a caller that polls many tasks must not hide one that guesses ids.
        self._counts: dict[Pattern, dict[Hashable, int]] = {pattern: {} for pattern in THRESHOLDS}
        for pattern in THRESHOLDS:
            numbers.expect(SUSPICIOUS, pattern)

    def consider(self, access: TaskAccess) -> None:
        """Count an access, and report the caller if this was one too many."""
        now = self._clock()
        if now >= self._since + MINUTE:
            self._since = now
            self._counts = {pattern: {} for pattern in THRESHOLDS}
        if access.refused is None and access.verb == "read" and access.method != "local":
            self._count("excessive_polling", (access.owner, access.task_id), access)
        elif access.refused is Refusal.UNKNOWN:
            self._count("failed_lookups", access.owner, access)
        elif access.refused is Refusal.LIMIT:
            self._count("limit_hits", access.owner, access)

    def _count(self, pattern: Pattern, key: Hashable, access: TaskAccess) -> None:
        counts = self._counts[pattern]
        before = counts.get(key, 0)
        if before == 0 and len(counts) >= MOST_CALLERS:
            return
        count = counts[key] = before + access.times
        if not before < THRESHOLDS[pattern] <= count:
            return
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


# ---- the observer

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
        is_counted: Whether the numbers are exported.
        knows: Whether the server has a tool of that name. Others count as `other`: callers chose their names.
    """

    def __init__(
        self, numbers: Numbers, audit: AuditLog, *, is_counted: Callable[[], bool], knows: Callable[[str], bool]
    ) -> None:
        self._numbers = numbers
        self._audit = audit
        self._suspicion = Suspicion(numbers, audit)
        self._is_counted = is_counted
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
        """Refusals in any case; reads if the metrics or the audit log need them; changes if the metrics do."""
        if self._is_counted():
            return {*_CHANGES, TaskAccess, Refusal}
        return {TaskAccess, Refusal} if self._audit.is_read() else {Refusal}

    def access(self, access: TaskAccess) -> None:
        """Count a read, or a refusal."""
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
        numbers, task, tool = self._numbers, change.task, self._label(change.task)
        match change.event:
            case TaskCreated():
                numbers.add(CREATED, tool)
                for end in _ENDS:
                    numbers.expect(ENDED, tool, end)
            case RunStarted():
                if task.attempt == 1 and task.started_at is not None:
                    numbers.observe(WAIT, _seconds(task.created_at, task.started_at), tool)
            case TaskDeleted():
                numbers.add(DELETED, "expired" if change.actor.kind == "sweep" else "deleted")
            case InputRequested(requests=requests):
                numbers.add(QUESTIONS, tool, "asked", by=len(requests))
            case InputAnswered():
                numbers.add(QUESTIONS, tool, "answered", by=_closed(change))
            case InputWithdrawn():
                numbers.add(QUESTIONS, tool, "withdrawn", by=_closed(change))
            case _:
                self._run_ended(change, tool)

    def _run_ended(self, change: TaskChange, tool: str) -> None:
        before, end = change.before, _end_of(change)
        if isinstance(change.event, RunLost):
            self._numbers.add(LOST_RUNS, tool)
        if before is not None and before.worker is not None and before.started_at is not None:
            until = change.task.finished_at or change.at
            self._numbers.observe(RUN, _seconds(before.started_at, until), tool, end)
        if change.task.is_final and not isinstance(change.event, RunAskedOnCall):
            self._numbers.add(ENDED, tool, end)

    def _label(self, task: TaskRecord) -> str:
        # All prompts have one label and all resources another: a resource may have any URI.
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
