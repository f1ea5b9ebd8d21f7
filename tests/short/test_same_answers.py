"""Whatever is sent, nobody can tell from the answer which way it went, nor from what was written.

Both ways over one store, on a clock that stands still until both have answered. `make soak` looks for longer.
"""

import random
from dataclasses import replace

import pytest

from harness.thoroughness import TIMES, examples
from tests.short.comparing import SETUPS, Tally, compare
from tests.short.requests import FLAWS, GOOD, HARMLESS, any_step
from tests.short.servers import Setup, twins

pytestmark = pytest.mark.timeout(400 * TIMES)


@pytest.mark.parametrize("number", range(len(SETUPS)))
async def test_the_two_ways_answer_and_write_the_same(number: int) -> None:
    chance, tally = random.Random(number), Tally()
    async with twins(SETUPS[number]) as pair:
        for sequence in range(examples(30)):
            await compare(pair, sequence, [any_step(chance) for _ in range(6)], tally)
    print(tally)
    # Else this would compare the SDK with itself.
    assert tally.answered.total() >= 0.1 * tally.sent.total(), tally


@pytest.mark.parametrize("number", range(len(GOOD)))
async def test_each_flaw_by_itself_is_met_the_same(number: int) -> None:
    good, tally = GOOD[number], Tally()
    flaws = [*HARMLESS, *FLAWS]
    setups: list[Setup] = SETUPS if TIMES > 1 else [SETUPS[number]]
    for setup in setups:
        async with twins(setup) as pair:
            # In everyday runs each method meets some of them.
            for at, flaw in enumerate(flaws if TIMES > 1 else flaws[number :: len(GOOD)]):
                # The same again without the flaw: what was remembered of the first is not held against the second.
                await compare(pair, at, [replace(good, flaws=[flaw]), *([good] if at % 10 == 0 else [])], tally)
    assert tally.answered[good.method] >= 0.15 * tally.sent[good.method], tally
