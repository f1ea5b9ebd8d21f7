"""Simulate worlds for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A world that is not as it must be is shown with its seed. `--seed N --trace` tells its story.
"""

import argparse
import gc
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import Pool

from tests.simulation.clockwork import burial
from tests.simulation.plans import plan_for
from tests.simulation.world import Tally, World

BATCH = 40
"""Worlds that a set of processes simulates before new ones take over: anyio and the package keep a little of each dead
world, and a process that has simulated hundreds is several times slower."""


def simulate(seed: int, tally: Tally | None = None, *, tracing: bool = False) -> tuple[str, str] | None:
    with burial():
        world = World(plan_for(seed), tracing=tracing)
        violation = world.live()
        if tally is not None:
            tally.add(world)
        del world
    return violation


def main(arguments: Sequence[str] | None = None) -> int:
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
    print(f"simulation: seed {seed}", flush=True)
    # Processes that are forked do not look at the objects that exist by now after each world.
    gc.freeze()
    total, kinds = Tally(), Counter[str]()
    end = time.monotonic() + options.seconds
    seeds = range(seed, sys.maxsize if options.worlds is None else seed + options.worlds)
    while seeds and time.monotonic() < end and (options.keep_going or not kinds):
        batch, seeds = seeds[: BATCH * options.processes], seeds[BATCH * options.processes :]
        with Pool(options.processes) as pool:
            for number, violation, tally in pool.imap(_simulated, batch):
                total.merge(tally)
                if violation is not None:
                    kinds[violation[0]] += 1
                    if kinds[violation[0]] <= 3:
                        print(f"simulation: seed {number}: {violation[0]}: {violation[1].splitlines()[0][:2000]}")
                    if not options.keep_going:
                        print(f"simulation: python -m tests.simulation.soak --seed {number} --trace")
                        break
                if time.monotonic() >= end:
                    break
        hours = total.seconds / 3600
        print(f"simulation: {total.tasks:,} tasks in {total.worlds:,} worlds, {hours:,.1f} hours simulated", flush=True)
    print("faults:", ", ".join(f"{kind} {number:,}" for kind, number in sorted(total.faults.items())))
    print("violations:", ", ".join(f"{kind} {number:,}" for kind, number in kinds.most_common()) or "none")
    return bool(kinds)


def _simulated(seed: int) -> tuple[int, tuple[str, str] | None, Tally]:
    tally = Tally()
    try:
        return seed, simulate(seed, tally), tally
    finally:
        # A process of the world that was killed has left its handler, and the pool ends this one with the signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def always_the_same() -> None:
    """Start again where sets of strings are walked in another order every time."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    always_the_same()
    sys.exit(main())
