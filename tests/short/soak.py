"""The same requests both ways for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run.

A failure is made small and shown with the seed of its batch; `make soak SEED=` with that number finds it at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from hypothesis import given, seed
from hypothesis import strategies as st

from harness.soaking import batch_settings, soak
from tests.short.comparing import SETUPS, Comparison, Tally
from tests.short.requests import LISTENING, STEPS, Step
from tests.short.servers import Setup

BATCH = 300
"""Examples drawn from one seed, each of several requests."""


def run_batch(number: int, tally: Tally) -> None:
    """Compare as many requests as a batch has; raises what the smallest one that fails raises."""
    comparison = Comparison(tally)

    @seed(number)
    @batch_settings(BATCH)
    @given(st.sampled_from(SETUPS), st.lists(STEPS, min_size=1, max_size=20), st.lists(LISTENING, max_size=1))
    def batch(setup: Setup, steps: Sequence[Step], listening: Sequence[Step]) -> None:
        comparison.compare(setup, [*steps, *listening])

    try:
        batch()
    finally:
        comparison.close()


def main() -> int:
    """Try batch after batch; 1 if one of them fails."""
    # What the SDK logs of bad requests is not what is looked for.
    logging.disable(logging.CRITICAL)
    tally = Tally()

    def batch(number: int) -> str:
        run_batch(number, tally)
        return str(tally)

    return soak("both ways", "Send random requests the short way and the SDK's, and compare.", batch)


if __name__ == "__main__":
    sys.exit(main())
