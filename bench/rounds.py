"""Takes turns between the bare server and ours, and boils the samples down.

A ratio is made of samples taken right after each other, bare, ours, bare, and the median of the ratios is what counts:
a neighbour who slows the machine down for a second slows all three, and spoils one ratio at most. So many small samples
are better than a few large ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.cases import Case, Rig, Sample, bare_call
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
    """One case in one mode. CPU in microseconds for one operation; waits in milliseconds and polls for one."""

    mode: Mode
    name: str
    title: str
    cpu: float
    ratio: float
    ratio_low: float
    ratio_high: float
    p50: float
    p99: float
    rounds: int
    polls: float
    limit: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the target is met; nothing where there is none."""
        if self.limit is None:
            return ""
        return "PASS" if self.ratio <= self.limit else "MISS"


def measure_mode(rig: Rig, mode: Mode, cases: Sequence[Case], plan: Plan) -> list[Row]:
    """All rounds of one response mode, as rows: the bare server's first."""
    _warm_up(rig, cases, plan.operations)
    bare = [bare_call(rig, plan.operations)]
    ours: dict[str, list[Sample]] = {case.name: [] for case in cases}
    ratios: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(plan.rounds):
        if time.monotonic() > plan.until and all(ours.values()):
            break
        for case in cases:
            ours[case.name].append(case.run(rig, plan.operations))
            bare.append(bare_call(rig, plan.operations))
            ratios[case.name].append(_cpu(ours[case.name][-1]) / statistics.mean(map(_cpu, bare[-2:])))
    first = _row(mode, Case(BARE, "bare SDK, plain tools/call", bare_call), bare, [1.0])
    return [first, *(_row(mode, case, ours[case.name], ratios[case.name]) for case in cases)]


def _warm_up(rig: Rig, cases: Sequence[Case], operations: int) -> None:
    for run in (bare_call, *(case.run for case in cases)):
        run(rig, operations // 2)


def _row(mode: Mode, case: Case, samples: Sequence[Sample], ratios: Sequence[float]) -> Row:
    waits = sorted(wait for sample in samples for wait in sample.waits)
    low, high = _quartiles(ratios)
    return Row(
        mode=mode,
        name=case.name,
        title=case.title,
        cpu=statistics.median(map(_cpu, samples)),
        ratio=statistics.median(ratios),
        ratio_low=low,
        ratio_high=high,
        p50=waits[len(waits) // 2] / 1e6,
        p99=waits[len(waits) * 99 // 100] / 1e6,
        rounds=len(samples),
        polls=statistics.median(sample.polls / sample.operations for sample in samples),
        limit=case.limit,
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _cpu(sample: Sample) -> float:
    return sample.cpu / sample.operations / 1000
