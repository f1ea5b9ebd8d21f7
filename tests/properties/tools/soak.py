"""The random test of whole tools for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A failure is made small and shown with the seed of its batch; `make soak SEED=` with that number finds it at once.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.properties.tools.plans import PLANS
from tests.properties.tools.simulation import simulate
from tests.properties.tools.world import Plan, World

BATCH = 200
"""Examples drawn from one seed."""


def run_batch(number: int) -> int:
    """How many examples were tried; raises what the smallest one that fails raises."""
    examples = 0

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(PLANS)
    def batch(plan: Plan) -> None:
        nonlocal examples
        examples += 1
        simulate(lambda loop: World(plan, loop).live())

    batch()
    return examples


def main() -> int:
    """Try batch after batch; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description="Try random tools under random faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    number: int = random.randrange(10**6) if arguments.seed is None else arguments.seed
    ends, examples, failures = time.monotonic() + arguments.seconds, 0, 0
    print(f"soak: seed {number}", flush=True)
    while not failures and time.monotonic() < ends:
        try:
            examples += run_batch(number)
            number += 1
        except BaseException as exc:
            if isinstance(exc, KeyboardInterrupt):
                raise
            traceback.print_exc()
            print(f"soak: SEED={number} finds this again")
            failures += 1
    print(f"soak: {examples} examples, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
