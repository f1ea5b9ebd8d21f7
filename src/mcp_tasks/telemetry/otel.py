"""The metrics through OpenTelemetry: exports read counters and gauges, and histograms get each value at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakMethod

from opentelemetry.metrics import CallbackOptions, Histogram, Observation, get_meter

from mcp_tasks.telemetry.metrics import METRICS, Gauges, Labels, Metric, Numbers

SERVER: Final = "server"
"""The attribute that tells servers of one process apart."""


class Instruments:
    """The instruments of one `Tasks` object. Made once: OpenTelemetry cannot remove them."""

    def __init__(self, numbers: Numbers, gauges: Gauges, server: str) -> None:
        self._numbers = numbers
        self._gauges = gauges
        self._server = server
        self._histograms: dict[Metric, Histogram] = {}
        meter = get_meter("mcp-tasks")
        for metric in METRICS:
            if metric.kind == "histogram":
                self._histograms[metric] = meter.create_histogram(
                    metric.name,
                    unit=metric.unit,
                    description=metric.about,
                    explicit_bucket_boundaries_advisory=metric.buckets,
                )
                continue
            # Not a method of this object: the provider keeps its callbacks for the life of the process.
            read = _reading(WeakMethod(self.observations), metric)
            create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            create(metric.name, [read], unit=metric.unit, description=metric.about)
        numbers.on_value = self._record

    def observations(self, metric: Metric) -> list[Observation]:
        """A counter or a gauge as of now."""
        found = self._gauges.values().get(metric) or self._numbers.counts(metric)
        return [Observation(value, self._attributes(metric, labels)) for labels, value in found.items()]

    def _record(self, metric: Metric, labels: Labels, value: float) -> None:
        self._histograms[metric].record(value, self._attributes(metric, labels))

    def _attributes(self, metric: Metric, labels: Labels) -> dict[str, str]:
        return {SERVER: self._server, **dict(zip(metric.labels, labels, strict=True))}


def _reading(
    observations: WeakMethod[Callable[[Metric], list[Observation]]], metric: Metric
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        find = observations()
        return () if find is None else find(metric)

    return read
