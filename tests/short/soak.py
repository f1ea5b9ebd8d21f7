"""Random requests both ways, for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run."""

import asyncio
import logging
import random
import sys

from harness.soaking import soak
from tests.short.comparing import SETUPS, Tally, compare
from tests.short.requests import any_step
from tests.short.servers import twins

BATCH = 300
"""Sequences drawn from one seed, each of several requests."""


async def run_batch(number: int, tally: Tally) -> None:
    chance = random.Random(number)
    async with twins(chance.choice(SETUPS)) as pair:
        for each in range(BATCH):
            await compare(pair, each, [any_step(chance) for _ in range(10)], tally)


def main() -> int:
    # What the SDK logs of bad requests is not what is looked for.
    logging.disable(logging.CRITICAL)
    tally = Tally()

    def batch(number: int) -> str:
        asyncio.run(run_batch(number, tally))
        return str(tally)

    return soak("both ways", "Send random requests the short way and the SDK's, and compare.", batch)


if __name__ == "__main__":
    sys.exit(main())
