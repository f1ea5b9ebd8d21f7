"""What a plain tool costs on a server with tasks, over the same tool on a bare SDK server.

    python -m bench.plain                              this tree
    python -m bench.plain --src ../before/src          another one; may be given several times

CPU of the server process. In every round each server is sampled once, in an order drawn anew, and a ratio is made of
two samples of the same round; the median of the ratios counts, with a 95 % interval from resampling the rounds. Rounds
are short and many, so that a busy neighbour slows all of a round. `quiet` is the ratio of the cheapest tenth of the
samples of each: others can only add to a sample. A second bare server is measured like the rest: how far its ratio is
from 1 is what this machine cannot tell apart.

`at rest` is what a server uses that nobody calls, as a share of one core: it does not belong to any call, and is in all
of them. It is also taken out, in the last column.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bench.cases import Sample, plain_calls
from bench.machine import machine_facts
from bench.report import print_facts
from bench.servers import ROOT, Mode, Server, bare_server, mixed_server

LIMIT = 1.05
BARE = "bare SDK"
CONTROL = "bare SDK, a second one"
RESAMPLES = 2_000
REST = 10.0
"""Seconds for which a server is left alone to see what it uses by itself."""

MODES: Sequence[Mode] = ("sse", "json")


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int
    operations: int


def main() -> None:
    """Measure and print."""
    options = _options()
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock of other processes as Linux shows it")
    # The servers are ended on the way out, which the default way of ending would skip.
    signal.signal(signal.SIGTERM, _exit)
    plan = Plan(rounds=100 if options.quick else options.rounds, operations=25)
    sources = [path.resolve() for path in options.src or [ROOT / "src"]]
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        print_facts(machine_facts(folder))
        for mode in MODES:
            _measure_mode(mode, folder, sources, plan)


def _measure_mode(mode: Mode, folder: Path, sources: Sequence[Path], plan: Plan) -> None:
    with ExitStack() as stack:
        servers = {BARE: stack.enter_context(bare_server(mode)), CONTROL: stack.enter_context(bare_server(mode))}
        for src in sources:
            servers[str(src)] = stack.enter_context(mixed_server(mode, folder, src))
        at_rest = _rest(servers)
        samples = _rounds(servers, plan)
    print(f"\n{mode}: {plan.rounds} rounds of {plan.operations} calls")
    print(f"  {'':40}{'CPU µs':>8}{'ratio':>8}{'95 %':>16}{'quiet':>8}{'at rest':>9}{'ratio without':>15}")
    for name, taken in samples.items():
        print(_line(name, taken, samples[BARE], at_rest))


def _rest(servers: Mapping[str, Server]) -> dict[str, float]:
    """The share of a core that each server uses when nobody calls, after it has served a few."""
    for server in servers.values():
        plain_calls(server, 200)
    time.sleep(1)
    began = {name: server.cpu() for name, server in servers.items()}
    time.sleep(REST)
    return {name: (server.cpu() - began[name]) / 1e9 / REST for name, server in servers.items()}


def _rounds(servers: Mapping[str, Server], plan: Plan) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in servers}
    order = list(servers)
    for _ in range(plan.rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(plain_calls(servers[name], plan.operations))
    return samples


def _line(name: str, taken: Sequence[Sample], bare: Sequence[Sample], at_rest: Mapping[str, float]) -> str:
    ratios = [_cpu(one) / _cpu(other) for one, other in zip(taken, bare, strict=True)]
    ratio = statistics.median(ratios)
    low, high = _interval(ratios)
    without = statistics.median(
        _cpu(one, at_rest[name]) / _cpu(other, at_rest[BARE]) for one, other in zip(taken, bare, strict=True)
    )
    verdict = "" if name in (BARE, CONTROL) else f"  ≤ {LIMIT:g}  {'PASS' if ratio <= LIMIT else 'MISS'}"
    return (
        f"  {name:40}{statistics.median(map(_cpu, taken)):8.0f}{ratio:8.3f}{f'{low:.3f}..{high:.3f}':>16}"
        f"{_quiet(taken) / _quiet(bare):8.3f}"
        f"{at_rest[name]:9.2%}{without:15.3f}{verdict}"
    )


def _cpu(sample: Sample, at_rest: float = 0.0) -> float:
    """Microseconds for one call, without what the server would have used meanwhile anyway."""
    return (sample.cpu - at_rest * sum(sample.waits)) / sample.operations / 1e3


def _quiet(samples: Sequence[Sample]) -> float:
    return statistics.quantiles(map(_cpu, samples), n=10)[0]


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[RESAMPLES * 25 // 1000], medians[RESAMPLES * 975 // 1000]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, action="append", help="a folder with mcp_tasks in it; this tree's")
    parser.add_argument("--rounds", type=int, default=500, help="of each response mode")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )
    return parser.parse_args()


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
