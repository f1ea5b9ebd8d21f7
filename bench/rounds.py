"""Takes turns between the bare server and ours, and boils the samples down.

A ratio is made of samples taken right after each other, bare, ours, bare, and the median of the ratios is what counts:
a neighbour who slows the machine down for a second slows all three, and spoils one ratio at most. So many small samples
are better than a few large ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.cases import Case, Install, Rig, Sample, Way, bare_call
from bench.servers import Mode

BARE = "bare"


@dataclass(frozen=True)
class Plan:
    """How much to measure. `until` is a time of `time.monotonic` after which no round begins."""

    rounds: int
    operations: int
    until: float


@dataclass(frozen=True)
class Row:
    """One case on one install. CPU in microseconds for one operation; waits in milliseconds and polls for one."""

    install: Install
    mode: Mode
    way: Way | None
    name: str
    title: str
    cpu: float = 0
    ratio: float = 0
    ratio_low: float = 0
    ratio_high: float = 0
    p50: float = 0
    p99: float = 0
    rounds: int = 0
    polls: float = 0
    limit: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the target is met; nothing where there is none."""
        if self.limit is None:
            return ""
        return "ok" if self.ratio <= self.limit else "MISSED"


def measure(rig: Rig, mode: Mode, install: Install, cases: Sequence[Case], plan: Plan) -> list[Row]:
    """All rounds of one install, as rows: the bare server's first."""
    _warm_up(rig, cases, plan.operations)
    bare = [bare_call(rig, plan.operations)]
    ours: list[list[Sample]] = [[] for _ in cases]
    ratios: list[list[float]] = [[] for _ in cases]
    for _ in range(plan.rounds):
        if time.monotonic() > plan.until and all(ours):
            break
        for case, samples, over_bare in zip(cases, ours, ratios, strict=True):
            samples.append(case.run(rig.ours[case.way], plan.operations))
            bare.append(bare_call(rig, plan.operations))
            over_bare.append(_cpu(samples[-1]) / statistics.mean(map(_cpu, bare[-2:])))
    first = _row(Row(install, mode, None, BARE, "bare SDK, plain tools/call"), bare, [1.0])
    rows = [
        Row(install, mode, case.way, case.name, case.title, limit=case.limits.get(install) if mode == "sse" else None)
        for case in cases
    ]
    return [first, *map(_row, rows, ours, ratios)]


def _warm_up(rig: Rig, cases: Sequence[Case], operations: int) -> None:
    bare_call(rig, operations // 2)
    for case in cases:
        case.run(rig.ours[case.way], operations // 2)


def _row(row: Row, samples: Sequence[Sample], ratios: Sequence[float]) -> Row:
    waits = sorted(wait for sample in samples for wait in sample.waits)
    low, high = _quartiles(ratios)
    return replace(
        row,
        cpu=statistics.median(map(_cpu, samples)),
        ratio=statistics.median(ratios),
        ratio_low=low,
        ratio_high=high,
        p50=waits[len(waits) // 2] / 1e6,
        p99=waits[len(waits) * 99 // 100] / 1e6,
        rounds=len(samples),
        polls=statistics.median(sample.polls / sample.operations for sample in samples),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _cpu(sample: Sample) -> float:
    return sample.cpu / sample.operations / 1000
