"""Whole tools, made up at random, on machines that fail: whatever happens, they end as a tool may that nothing befell.

Time is simulated, so that hours take milliseconds. `make soak` looks for longer.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from harness.thoroughness import TIMES, examples
from tests.properties.tools.plans import PLANS
from tests.properties.tools.simulation import simulate
from tests.properties.tools.world import Plan, World

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)


@settings(
    max_examples=examples(200),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(PLANS)
def test_a_tool_ends_as_it_may_whatever_happens_to_its_runs(plan: Plan) -> None:
    simulate(lambda loop: World(plan, loop).live())
