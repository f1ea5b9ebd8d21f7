"""The metrics as Prometheus reads them. Needs `prometheus_client`: the extra `mcp-tasks[prometheus]`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mcp_tasks.telemetry.metrics import METRICS, Distribution, Labels, Metric, Numbers, Values


class TasksCollector(Collector):
    """What prometheus_client collects, from where it is counted.

    Args:
        values: What is not in the numbers.
        without: Metrics that somebody else tells.
    """

    def __init__(self, numbers: Numbers, values: Callable[[], Values], without: Collection[Metric] = ()) -> None:
        self._numbers = numbers
        self._values = values
        self._metrics = [metric for metric in METRICS if metric not in without]

    def collect(self) -> Iterator[Family]:
        """Every metric of the contract, also those of which nothing has been counted yet."""
        values = self._values()
        for metric in self._metrics:
            if metric.kind == "histogram":
                yield _histogram(metric, self._numbers.distributions(metric))
                continue
            found = values.get(metric) or self._numbers.counts(metric)
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.prometheus.removesuffix("_total"), metric.about, labels=metric.labels)
            for labels, value in found.items():
                family.add_metric(labels, value)
            yield family


def exposition(collector: TasksCollector) -> bytes:
    """The page that is scraped."""
    # Of its own: other metrics of the process are their author's to show.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _histogram(metric: Metric, found: Mapping[Labels, Distribution]) -> Family:
    family = HistogramMetricFamily(metric.prometheus, metric.about, labels=metric.labels)
    for labels, spread in found.items():
        bounds = [*map(str, spread.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
        family.add_metric(labels, buckets, spread.total)
    return family
