"""Whatever is sent, nobody can tell from the answer which way it went, nor from what was written.

Both ways over one store, on a clock that stands still until both have answered. `make soak` looks for longer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.thoroughness import TIMES, examples
from tests.short.comparing import SETUPS, Comparison
from tests.short.requests import GOOD, LISTENING, SINGLE_FLAWS, STEPS, Step
from tests.short.servers import Setup

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

_usual = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def comparison() -> Generator[Comparison]:
    """The servers, for all tests here."""
    comparison = Comparison()
    yield comparison
    comparison.close()


@settings(_usual, max_examples=examples(60))
@given(st.sampled_from(SETUPS), st.lists(STEPS, min_size=1, max_size=12))
def test_the_two_ways_answer_and_write_the_same(comparison: Comparison, setup: Setup, steps: Sequence[Step]) -> None:
    comparison.compare(setup, steps)


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_each_flaw_by_itself_is_met_the_same(comparison: Comparison, number: int) -> None:
    good = GOOD[number]
    bodies = [flaw for flaw in SINGLE_FLAWS if flaw.what == "body"]
    # In everyday runs each method meets some of them and each of the servers some of those.
    flaws = SINGLE_FLAWS if TIMES > 1 else [*bodies, *SINGLE_FLAWS[number::8]]
    for at, flaw in enumerate(flaws):
        setups = SETUPS if TIMES > 1 else [SETUPS[(at + number) % len(SETUPS)]]
        for setup in setups:
            # The same again without the flaw: what was remembered of the first is not held against the second.
            comparison.compare(setup, [replace(good, flaws=[flaw]), *([good] if at % 10 == 0 else [])])


@settings(_usual, max_examples=examples(12))
@given(st.sampled_from(SETUPS), st.lists(LISTENING, min_size=1, max_size=2))
def test_streams_are_the_same(comparison: Comparison, setup: Setup, steps: Sequence[Step]) -> None:
    comparison.compare(setup, steps)


def test_the_short_way_was_really_taken(comparison: Comparison) -> None:
    """Else the two tests above would compare the SDK with itself."""
    if not comparison.tally.pairs:
        pytest.skip("nothing was compared")
    print(comparison.tally)
    for method in ("tasks/get", "tasks/update", "tasks/cancel", "tools/call", "subscriptions/listen"):
        # At least this; of what was not sent, because only some of the tests above were run, nothing is known.
        assert comparison.tally.answered[method] >= 0.15 * comparison.tally.sent[method], comparison.tally
