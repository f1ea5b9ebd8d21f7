"""Whole tools, made up at random, on machines that fail: whatever happens, they end as a tool may that nothing befell.

Time is simulated, so that hours take milliseconds. `make soak` looks for longer, and each time elsewhere.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from harness.thoroughness import TIMES, examples
from tests.properties.tools.plans import PLANS
from tests.properties.tools.tree import (
    GIVES_UP_AFTER,
    Ask,
    Beside,
    Gather,
    MoveOn,
    Node,
    Seq,
    Sleep,
    Step,
    Twice,
)
from tests.properties.tools.world import Act, Faults, Plan, What, World, simulate

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

TOO_LONG = GIVES_UP_AFTER + 1


def live(plan: Plan) -> None:
    simulate(lambda loop: World(plan, loop).live())


@settings(
    max_examples=examples(200),
    derandomize=TIMES <= 1,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(PLANS)
def test_a_tool_ends_as_it_may_whatever_happens_to_its_runs(plan: Plan) -> None:
    live(plan)


# The smallest tools that were found to end otherwise


@pytest.mark.parametrize("given_up", [Step(TOO_LONG), Sleep(TOO_LONG), Ask()], ids=["step", "sleep", "question"])
def test_what_was_given_up_because_of_a_time_out_is_given_up_again_in_the_next_run(given_up: Node) -> None:
    live(Plan(tools=(Seq((MoveOn(given_up), Ask())),), acts=(Act(10.0, What.KILL), Act(10.0, What.ANSWER))))


def test_what_a_branch_gave_up_is_not_missed_by_another_that_begins_something_new() -> None:
    tool = Gather((MoveOn(Twice(asks=True, together=True)), Seq((Sleep(0.5), Ask()))))
    live(Plan(tools=(tool,), acts=(Act(10.0, What.KILL),)))


def test_a_branch_that_is_left_behind_and_asks_after_the_end_of_the_run_does_not_wait_for_ever() -> None:
    live(Plan(tools=(Gather((Seq((Step(0.5), Ask())), Step(fails=True))),)))


def test_a_branch_that_comes_back_from_a_wait_while_the_run_ends_takes_no_slot() -> None:
    tool = Beside(beside=Twice(asks=False, together=False), child=Step(fails=True))
    live(Plan(tools=(tool,), faults=Faults(pauses=(0.0, 0.0)), slots=2, seats=1))


def test_an_answer_that_is_taken_while_the_time_out_is_being_written_reaches_the_tool() -> None:
    tools = (Gather((Step(), Ask(timeout=2.0))), Seq((Step(), Sleep(0.5))))
    live(Plan(tools=tools, acts=(Act(3.0, What.ANSWER),), faults=Faults(pauses=(1.0,)), slots=1, seats=0))


def test_a_step_does_not_begin_in_a_run_that_was_stopped_while_it_stood_in_line_for_its_slot() -> None:
    tool = Beside(beside=Step(3.0), child=Seq((Sleep(3.0), Ask())))
    faults = Faults(pauses=(0.001,), crashes={3: True, 7: True})
    live(Plan(tools=(tool, tool), faults=faults, park_after=2.0, slots=1, seats=0))
