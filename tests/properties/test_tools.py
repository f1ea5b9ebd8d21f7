"""Whole tools, made up at random, on machines that fail: whatever happens, they end as a tool may that nothing befell.

The world is that of `tests/simulation`, with a tool or two in it, so that a failure can be made small.
"""

import gc
from collections.abc import Generator, Mapping
from dataclasses import replace
from itertools import accumulate, count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.thoroughness import TIMES, examples
from tests.properties.tools.tree import GIVES_UP_AFTER, Ask, Beside, Gather, MoveOn, Node, Seq, Sleep, Step, Twice
from tests.simulation.clockwork import burial
from tests.simulation.plans import Happening, MachinePlan, Mishap, Plan, TaskPlan, any_tool, calm, plan_for
from tests.simulation.processes import Process
from tests.simulation.store import CallFault, Strike
from tests.simulation.world import Weather, World

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(600 * max(TIMES, 1))

TOO_LONG = GIVES_UP_AFTER + 1
LOOKS_IN = 5.0


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Generator[None]:
    """What is there already is not looked at after each world."""
    gc.freeze()
    yield
    gc.unfreeze()


class NumberedFaults(Weather):
    """Strikes the calls whose numbers are said."""

    def __init__(
        self, world: World, pauses: tuple[float, ...], strikes: Mapping[tuple[str, int], CallFault | None]
    ) -> None:
        super().__init__(world)
        self._pauses = pauses
        self._strikes = strikes
        self._numbers = {verb: count() for verb in ("save", "journal")}

    def strike(self, process: Process, verb: str) -> Strike | None:
        if verb not in self._numbers:
            return None
        number = next(self._numbers[verb])
        fault = self._strikes.get((verb, number))
        if fault is not None or verb != "save":
            return None if fault is None else Strike(fault)
        return Strike(CallFault.SLOW, self._pauses[number % len(self._pauses)])


def live(
    *tools: Node,
    pauses: tuple[float, ...] = (0.0,),
    strikes: Mapping[tuple[str, int], CallFault] | None = None,
    happenings: tuple[tuple[float, Mishap], ...] = (),
    answers_after: float = 40.0,
    **changes: Any,
) -> None:
    """Let tools run on one machine, beside one that only answers clients, and see whether all is as promised."""
    tasks = [
        TaskPlan(at=0.0, tool="again", tree=tool, ttl=3600.0, owner=None, key=True, answers_after=answers_after)
        for tool in tools
    ]
    plan = replace(CALM, tasks=tasks, happenings=[Happening(at, what, 0, 0.0) for at, what in happenings], **changes)
    with burial():
        world = World(plan)
        world.weather = NumberedFaults(world, pauses, strikes or {})
        world.clockwork.after(LOOKS_IN, check_questions, world)
        violation = world.live()
    assert violation is None, violation


def check_questions(world: World) -> None:
    """No question is open that a tool is known not to wait for any more."""
    for task in world.oracle.tasks:
        record = world.store.peek(task)
        ended = {entry.key for entry in world.store.journal(task) if entry.kind == "done"}
        if record is not None and (closed := ended & record.inputs.outstanding.keys()):
            world.oracle.wrong("still open", f"{task} has done with {closed}")
    world.clockwork.after(LOOKS_IN, check_questions, world)


CALM: Plan = calm(
    plan_for(0),
    machines=(MachinePlan(serves=True, runs_tools=True), MachinePlan(serves=True, runs_tools=False)),
    remote=False,
    together=False,
    lease=60.0,
    park_after=0.0,
    slots=2,
    seats=2,
    call_timeout=5.0,
    latency=0.0,
    healthy_from=60.0,
)

TOOLS = st.randoms(use_true_random=False).map(any_tool)

STRIKES = st.dictionaries(
    st.tuples(st.sampled_from(("save", "save", "save", "journal")), st.integers(0, 30)),
    st.sampled_from((CallFault.REFUSED, CallFault.LOST, CallFault.DIES_BEFORE, CallFault.DIES_AFTER)),
    max_size=4,
)

HAPPENINGS = st.lists(
    st.tuples(st.sampled_from((0.1, 0.4, 1.0, 3.0, 7.0, 20.0)), st.sampled_from((Mishap.KILL, Mishap.DRAIN))),
    max_size=4,
).map(lambda acts: tuple(zip(accumulate(after for after, _ in acts), (what for _, what in acts), strict=True)))


@settings(
    max_examples=examples(150),
    derandomize=TIMES <= 1,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    tools=st.lists(TOOLS, min_size=1, max_size=2),
    pauses=st.just((0.0,)) | st.lists(st.sampled_from((0.0, 0.001, 0.2, 1.0)), min_size=1, max_size=3).map(tuple),
    strikes=STRIKES,
    happenings=HAPPENINGS,
    answers_after=st.sampled_from((0.0, 0.4, 1.0, 3.0, 7.0, 20.0, 40.0)),
    hint_losses=st.sampled_from((0.0, 1.0)),
    park_after=st.sampled_from((0.0, 0.0, 2.0, 3600.0)),
    slots=st.integers(1, 2),
    seats=st.integers(0, 2),
)
def test_a_tool_ends_as_it_may_whatever_happens_to_its_runs(tools: list[Node], **plan: Any) -> None:
    live(*tools, **plan)


# The smallest tools that were found to end otherwise


@pytest.mark.parametrize("given_up", [Step(TOO_LONG), Sleep(TOO_LONG), Ask()], ids=["step", "sleep", "question"])
def test_what_was_given_up_because_of_a_time_out_is_given_up_again_in_the_next_run(given_up: Node) -> None:
    live(Seq((MoveOn(given_up), Ask())), happenings=((10.0, Mishap.KILL),))


def test_what_a_branch_gave_up_is_not_missed_by_another_that_begins_something_new() -> None:
    tool = Gather((MoveOn(Twice(asks=True, together=True)), Seq((Sleep(0.5), Ask()))))
    live(tool, happenings=((10.0, Mishap.KILL),))


def test_a_branch_that_is_left_behind_and_asks_after_the_end_of_the_run_does_not_wait_for_ever() -> None:
    live(Gather((Seq((Step(0.5), Ask())), Step(fails=True))))


def test_a_branch_that_comes_back_from_a_wait_while_the_run_ends_takes_no_slot() -> None:
    live(Beside(beside=Twice(asks=False, together=False), child=Step(fails=True)), seats=1)


def test_an_answer_that_is_taken_while_the_time_out_is_being_written_reaches_the_tool() -> None:
    tools = (Gather((Step(), Ask(timeout=2.0))), Seq((Step(), Sleep(0.5))))
    live(*tools, pauses=(1.0,), answers_after=2.5, slots=1, seats=0)


def test_a_step_does_not_begin_in_a_run_that_was_stopped_while_it_stood_in_line_for_its_slot() -> None:
    tool = Beside(beside=Step(3.0), child=Seq((Sleep(3.0), Ask())))
    strikes = {("save", 3): CallFault.DIES_AFTER, ("save", 7): CallFault.DIES_AFTER}
    live(tool, tool, pauses=(0.001,), strikes=strikes, park_after=2.0, slots=1, seats=0)
