"""Simulate worlds for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A world that is not as it must be is shown with its seed. `--seed N --trace` tells its story.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from harness.processes import python, start
from tests.simulation.clockwork import burial
from tests.simulation.plans import plan_for
from tests.simulation.world import Tally, World

TOLD_EVERY = 30.0
"""Seconds between two lines that say how far it is."""

APART = 10_000_000
"""Between the first seeds of two processes."""


def simulate(seed: int, tally: Tally | None = None, *, tracing: bool = False) -> tuple[str, str] | None:
    """The first violation in the world of a seed, if there is one."""
    with burial():
        world = World(plan_for(seed), tracing=tracing)
        violation = world.live()
        if tally is not None:
            tally.add(world)
        del world
    return violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate world after world; 1 if one is not as it must be."""
    parser = argparse.ArgumentParser(description="Simulate fleets under faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--worlds", type=int, default=None, help="so many at most")
    parser.add_argument("--seed", type=int, default=None, help="of the first world")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="tell the story of one world")
    parser.add_argument("--keep-going", action="store_true", help="count violations by kind")
    options = parser.parse_args(arguments)
    seed: int = random.randrange(10**9) if options.seed is None else options.seed
    if options.trace:
        violation = simulate(seed, tracing=True)
        print("no violation" if violation is None else f"{violation[0]}: {violation[1]}")
        return violation is not None
    if options.processes > 1:
        return _several(options, seed)
    return _soak(seed, options.seconds, options.worlds, keep_going=options.keep_going)


def _several(options: argparse.Namespace, seed: int) -> int:
    chosen = ["--seconds", str(options.seconds)]
    chosen += ["--keep-going"] if options.keep_going else []
    chosen += [] if options.worlds is None else ["--worlds", str(options.worlds)]
    seeds = [seed + APART * number for number in range(options.processes)]
    started = [start(python("tests.simulation.soak", *chosen, "--seed", str(each))) for each in seeds]
    return max(process.wait() for process in started)


def _soak(seed: int, seconds: float, worlds: int | None, *, keep_going: bool) -> int:
    print(f"simulation: seed {seed}", flush=True)
    tally, kinds = Tally(), Counter[str]()
    began = told = time.monotonic()
    # Objects that exist by now are not looked at after each world.
    gc.freeze()
    while time.monotonic() - began < seconds and (worlds is None or tally.worlds < worlds):
        violation = simulate(seed, tally)
        if violation is not None:
            kind, what = violation
            kinds[kind] += 1
            if kinds[kind] <= 3:
                print(f"simulation: seed {seed}: {kind}: {what.splitlines()[0][:2000]}", flush=True)
            if not keep_going:
                print(f"simulation: python -m tests.simulation.soak --seed {seed} --trace")
                break
        seed += 1
        if time.monotonic() - told > TOLD_EVERY:
            told = time.monotonic()
            print(_summary(tally), flush=True)
    print(_summary(tally))
    print("faults:", ", ".join(f"{kind} {number:,}" for kind, number in sorted(tally.faults.items())))
    print("violations:", ", ".join(f"{kind} {number:,}" for kind, number in kinds.most_common()) or "none")
    return bool(kinds)


def _summary(tally: Tally) -> str:
    return (
        f"simulation: {tally.tasks:,} tasks in {tally.worlds:,} worlds, {tally.seconds / 3600:,.1f} hours simulated,"
        f" {tally.tasks / time.process_time():.0f} tasks per second of one core"
    )


def always_the_same() -> None:
    """Start again where sets of strings are walked in another order every time."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    always_the_same()
    sys.exit(main())
