"""Spoilt messages of both eras for as long as one likes: `make soak SECONDS=600`, `SEED=` to repeat a run."""

import asyncio
import sys

from harness.soaking import soak
from tests.peers.stage import Fuzz, stage

BATCH = 2_000
"""Messages to one server, drawn from one seed."""


async def run_batch(number: int) -> None:
    async with stage() as staged:
        fuzz = Fuzz(staged, number)
        for _ in range(BATCH):
            fault = await fuzz.one()
            assert fault is None, fault
        await staged.still_answers()


def main() -> int:
    sent = 0

    def batch(number: int) -> str:
        nonlocal sent
        asyncio.run(run_batch(number))
        sent += BATCH
        return f"{sent:,} messages"

    return soak("bad peers", "Send spoilt messages of every method, and judge the answers.", batch)


if __name__ == "__main__":
    sys.exit(main())
