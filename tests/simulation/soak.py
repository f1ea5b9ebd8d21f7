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

from tests.simulation.clockwork import burial
from tests.simulation.plans import plan_for
from tests.simulation.world import Tally, World


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
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--trace", action="store_true", help="tell the story of one seed")
    parser.add_argument("--keep-going", action="store_true", help="count violations by kind")
    options = parser.parse_args(arguments)
    seed: int = random.randrange(10**9) if options.seed is None else options.seed
    if options.trace:
        violation = simulate(seed, tracing=True)
        print("no violation" if violation is None else f"{violation[0]}: {violation[1]}")
        return violation is not None
    print(f"simulation: seed {seed}", flush=True)
    tally, kinds = Tally(), Counter[str]()
    began = told = time.monotonic()
    worked = time.process_time()
    gc.freeze()
    while time.monotonic() - began < options.seconds:
        violation = simulate(seed, tally)
        if violation is not None:
            kind, what = violation
            kinds[kind] += 1
            if kinds[kind] <= 3:
                print(f"simulation: seed {seed}: {kind}: {what.splitlines()[0][:400]}", flush=True)
            if not options.keep_going:
                print(f"simulation: python -m tests.simulation.soak --seed {seed} --trace")
                break
        seed += 1
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(_summary(tally, time.process_time() - worked), flush=True)
    print(_summary(tally, time.process_time() - worked))
    print("faults:", ", ".join(f"{kind} {number:,}" for kind, number in sorted(tally.faults.items())))
    print("violations:", dict(kinds) or "none")
    return bool(kinds)


def _summary(tally: Tally, seconds: float) -> str:
    return (
        f"simulation: {tally.tasks:,} tasks in {tally.worlds:,} worlds, {tally.seconds / 3600:,.1f} hours simulated,"
        f" {tally.tasks / seconds:.0f} tasks per second of one core"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings are walked in the order of their hashes.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
