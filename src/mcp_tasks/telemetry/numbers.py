"""What is counted in this process, in plain numbers: whoever exports metrics reads them from here.

Each series is written by one thread; others only copy. Nothing is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from mcp_tasks.telemetry.contract import METRICS, Metric

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
