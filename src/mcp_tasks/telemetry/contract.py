"""The metrics: their names, units and labels, which dashboards and alerts rely on. docs/telemetry.md has this table.

A label has few values: names of the server's own tools and queues, methods of the protocol, and words of ours. Nothing
of a caller is ever one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

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
