"""The same requests both ways for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A failure is made small and shown with the seed of its batch; `make soak SEED=` with that number finds it at once.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.short.comparing import SETUPS, Comparison, Tally
from tests.short.drafts import Step
from tests.short.requests import LISTENING, STEPS
from tests.short.servers import Setup

BATCH = 300
"""Examples drawn from one seed, each of several requests."""


def run_batch(number: int, tally: Tally) -> None:
    """Compare as many requests as a batch has; raises what the smallest one that fails raises."""
    comparison = Comparison(tally)

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.sampled_from(SETUPS), st.lists(STEPS, min_size=1, max_size=20), st.lists(LISTENING, max_size=1))
    def batch(setup: Setup, steps: Sequence[Step], listening: Sequence[Step]) -> None:
        comparison.compare(setup, [*steps, *listening])

    try:
        batch()
    finally:
        comparison.close()


def main() -> int:
    """Try batch after batch; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description="Send random requests the short way and the SDK's, and compare.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    # What the SDK logs of bad requests is not what is looked for.
    logging.disable(logging.CRITICAL)
    number: int = random.randrange(10**6) if arguments.seed is None else arguments.seed
    ends, tally, failures = time.monotonic() + arguments.seconds, Tally(), 0
    print(f"both ways: seed {number}", flush=True)
    while not failures and time.monotonic() < ends:
        try:
            run_batch(number, tally)
            number += 1
            print(f"both ways: {tally.pairs} pairs", flush=True)
        except BaseException as exc:
            if isinstance(exc, KeyboardInterrupt):
                raise
            traceback.print_exc()
            print(f"both ways: SEED={number} finds this again")
            failures += 1
    print(f"both ways: {failures} failures in {tally}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
