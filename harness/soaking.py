"""Batch after batch of random examples, for as long as one likes.

A failure is shown with the seed of its batch; the same command with that number as `--seed` finds it at once.
"""

import argparse
import random
import time
import traceback
from collections.abc import Callable


def soak(name: str, description: str, run_batch: Callable[[int], str]) -> int:
    """Try batch after batch, each from its own seed, until the time is over or one fails; 1 if one did."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    number: int = random.randrange(10**6) if arguments.seed is None else arguments.seed
    ends, tried = time.monotonic() + arguments.seconds, "nothing"
    print(f"{name}: seed {number}", flush=True)
    while time.monotonic() < ends:
        try:
            tried = run_batch(number)
        except KeyboardInterrupt:
            raise
        except BaseException:
            traceback.print_exc()
            print(f"{name}: SEED={number} finds this again; before it, {tried} without a failure")
            return 1
        number += 1
        print(f"{name}: {tried}", flush=True)
    print(f"{name}: no failure in {tried}")
    return 0
