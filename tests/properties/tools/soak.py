"""The random test of whole tools for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A failure is made small and shown with the seed of its batch; `make soak SEED=` with that number finds it at once.
"""

from __future__ import annotations

import sys

from hypothesis import given, seed

from harness.soaking import batch_settings, soak
from tests.properties.tools.plans import PLANS
from tests.properties.tools.simulation import simulate
from tests.properties.tools.world import Plan, World

BATCH = 200
"""Examples drawn from one seed."""


def run_batch(number: int) -> int:
    """How many examples were tried; raises what the smallest one that fails raises."""
    examples = 0

    @seed(number)
    @batch_settings(BATCH)
    @given(PLANS)
    def batch(plan: Plan) -> None:
        nonlocal examples
        examples += 1
        simulate(lambda loop: World(plan, loop).live())

    batch()
    return examples


def main() -> int:
    """Try batch after batch; 1 if one of them fails."""
    tried = 0

    def batch(number: int) -> str:
        nonlocal tried
        tried += run_batch(number)
        return f"{tried} examples"

    return soak("soak", "Try random tools under random faults.", batch)


if __name__ == "__main__":
    sys.exit(main())
