"""The metrics through OpenTelemetry: counters and gauges are read when they are exported, distributions told as they
come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakMethod

from opentelemetry.metrics import CallbackOptions, Histogram, Observation, get_meter

from mcp_tasks.telemetry.metrics import METRICS, Labels, Metric, Numbers, Values

SERVER: Final = "server"
"""The attribute that tells servers of one process apart."""


class Instruments:
    """The instruments of one `Tasks` object. Made once: OpenTelemetry has no way to let go of them.

    Args:
        values: What is not in the numbers.
        server: The namespace of the tasks.
    """

    def __init__(self, numbers: Numbers, values: Callable[[], Values], server: str) -> None:
        self._numbers = numbers
        self._values = values
        self._server = server
        self._histograms: dict[Metric, Histogram] = {}
        meter = get_meter("mcp-tasks")
        for metric in METRICS:
            # Not a method of this object: the provider keeps what it is given for the life of the process.
            read = _reading(WeakMethod(self.observations), metric)
            match metric.kind:
                case "counter":
                    meter.create_observable_counter(metric.name, [read], unit=metric.unit, description=metric.about)
                case "gauge":
                    meter.create_observable_gauge(metric.name, [read], unit=metric.unit, description=metric.about)
                case "histogram":
                    self._histograms[metric] = meter.create_histogram(
                        metric.name,
                        unit=metric.unit,
                        description=metric.about,
                        explicit_bucket_boundaries_advisory=metric.buckets,
                    )
        numbers.on_value = self._record

    def observations(self, metric: Metric) -> list[Observation]:
        """A counter or a gauge as of now."""
        found = self._values().get(metric) or self._numbers.counts(metric)
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
