"""A fleet in a simulated world: whatever happens to its processes, its store and its clocks, tasks end as promised.

`make soak` looks for longer.
"""

import contextlib
import io
from dataclasses import replace
from unittest.mock import patch

import pytest

from harness.processes import python, run
from harness.thoroughness import TIMES, examples
from mcp_tasks.runtime.dispatch import ChangeListener
from tests.properties.tools.tree import Step
from tests.simulation.clockwork import burial
from tests.simulation.plans import Happening, MachinePlan, Mishap, TaskPlan, calm, plan_for
from tests.simulation.soak import simulate
from tests.simulation.world import World

WORLDS = 40
"""Some 800 tasks, in 15 seconds of one core."""


@pytest.mark.slow
@pytest.mark.timeout(200 * TIMES)
def test_a_fleet_keeps_its_promises_whatever_happens() -> None:
    # In a process of its own, where sets of strings have one order, so that the seed of a failure finds it again.
    soak = python("tests.simulation.soak", "--worlds", str(examples(WORLDS)), "--seed", "1")
    done = run(soak, limit=200 * TIMES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wire", [False, True], ids=["runtimes", "clients and servers"])
def test_the_same_seed_is_the_same_story(*, wire: bool) -> None:
    seed = next(seed for seed in range(100) if plan_for(seed).call_faults and plan_for(seed).wire is wire)

    def story() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            simulate(seed, tracing=True)
        return told.getvalue()

    assert story() == story()


def test_a_task_fails_no_promise_in_a_world_without_faults() -> None:
    seed = next(seed for seed in range(100) if not (plan := plan_for(seed)).happenings and not plan.call_faults)
    with burial():
        world = World(plan_for(seed))
        assert world.live() is None
        assert world.oracle.tasks


@pytest.mark.parametrize(
    "happenings",
    [
        [Happening(0.0, Mishap.CUT, 1, 120.0)],
        [
            Happening(0.5, Mishap.PAUSE, 1, 30.0),
            Happening(0.5, Mishap.PAUSE, 2, 60.0),
            Happening(0.7, Mishap.DRAIN, 1, 0.0),
            Happening(0.7, Mishap.DRAIN, 2, 0.0),
        ],
    ],
    ids=["cut off", "paused before it makes way"],
)
def test_a_process_that_starts_after_the_last_task_has_ended_is_stopped_too(happenings: list[Happening]) -> None:
    machines = [MachinePlan(serves=not number, runs_tools=number > 0) for number in range(3)]
    with burial():
        world = World(calm(plan_for(0), machines=machines, tasks=(), happenings=happenings, healthy_from=1.0))
        assert world.live() is None
    assert not world.processes


def _world_of_one_place(*steps: float) -> World:
    """Tools that each do one step, of one owner, of whom one may be at work. All hints are lost, and the first tool,
    which works for a minute, is cancelled through a process that does not run it."""
    tasks = [
        TaskPlan(
            at=10.0 + number,
            tool="again",
            tree=Step(seconds),
            ttl=3600.0,
            owner="ann",
            key=True,
            answers_after=0.0,
            cancels_at=None if number else 3.0,
        )
        for number, seconds in enumerate((60.0, *steps))
    ]
    machines = [MachinePlan(serves=not number, runs_tools=number > 0) for number in range(3)]
    plan = calm(plan_for(0), machines=machines, tasks=tasks, hint_losses=1.0, per_owner=1)
    return World(replace(plan, lease=3.0, call_timeout=2.0, healthy_from=100.0))


def test_the_place_of_a_cancelled_task_is_free_before_its_run_hears_of_it() -> None:
    with burial():
        assert _world_of_one_place(0.0).live() is None


def test_a_run_that_never_hears_of_its_cancellation_is_found() -> None:
    async def look(_: ChangeListener) -> None:
        """See nothing."""

    with burial(), patch.object(ChangeListener, "look", look):
        assert _world_of_one_place(20.0, 0.0).live() == ("limit exceeded", "2 tasks of ann are at work")
