"""The metrics as Prometheus reads them. Needs `prometheus_client`: the extra `mcp-tasks[prometheus]`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mcp_tasks.telemetry.metrics import METRICS, Metric, Numbers, Values


def exposition(numbers: Numbers, values: Values, without: Collection[Metric] = ()) -> str:
    """The page that Prometheus scrapes, without some metrics."""
    # A registry of its own: the author decides where other metrics of the process are shown.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_TasksCollector(numbers, values, without))
    return generate_latest(registry).decode()


@dataclass(eq=False)
class _TasksCollector(Collector):
    numbers: Numbers
    values: Values
    without: Collection[Metric]

    def collect(self) -> Iterator[Family]:
        """Every metric of the contract, also those without a value yet."""
        for metric in METRICS:
            if metric in self.without:
                continue
            if metric.kind == "histogram":
                family = HistogramMetricFamily(metric.prometheus, metric.about, labels=metric.labels)
                for labels, spread in self.numbers.distributions(metric).items():
                    bounds = [*map(str, spread.bounds), "+Inf"]
                    family.add_metric(labels, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.total)
            else:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.prometheus.removesuffix("_total"), metric.about, labels=metric.labels)
                for labels, value in (self.values.get(metric) or self.numbers.counts(metric)).items():
                    family.add_metric(labels, value)
            yield family
