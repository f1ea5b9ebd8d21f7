"""The life of a run: every pair of state and turn, and what others are told of it."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from mcp_tasks.runtime.suspend import TABLE, Life, State, Turn
from tests.unit.running import settle

EXPECTED = {
    (State.STARTING, Turn.ENTERED): State.WORKING,
    (State.STARTING, Turn.STOPPED): State.STOPPING,
    (State.STARTING, Turn.JUDGED): State.JUDGED,
    (State.STARTING, Turn.ENDED): State.ENDED,
    (State.WORKING, Turn.WAITS): State.WAITING,
    (State.WORKING, Turn.STOPPED): State.STOPPING,
    (State.WORKING, Turn.JUDGED): State.JUDGED,
    (State.WORKING, Turn.RETURNED): State.RETURNED,
    (State.WORKING, Turn.ENDED): State.ENDED,
    (State.WAITING, Turn.GOES_ON): State.WORKING,
    (State.WAITING, Turn.PARKS): State.PARKING,
    (State.WAITING, Turn.STOPPED): State.STOPPING,
    (State.WAITING, Turn.JUDGED): State.JUDGED,
    (State.WAITING, Turn.RETURNED): State.RETURNED,
    (State.WAITING, Turn.ENDED): State.ENDED,
    (State.PARKING, Turn.STAYS): State.WAITING,
    (State.PARKING, Turn.STOPPED): State.STOPPING,
    (State.PARKING, Turn.ENDED): State.ENDED,
    (State.STOPPING, Turn.ENDED): State.ENDED,
    (State.JUDGED, Turn.STOPPED): State.JUDGED,
    (State.JUDGED, Turn.ENDED): State.ENDED,
    (State.RETURNED, Turn.STOPPED): State.ENDED,
    (State.RETURNED, Turn.ENDED): State.ENDED,
}
"""All that may follow on what. Whatever is not here comes too late, and nothing comes of it."""

WAYS = {
    State.STARTING: (),
    State.WORKING: (Turn.ENTERED,),
    State.WAITING: (Turn.ENTERED, Turn.WAITS),
    State.PARKING: (Turn.ENTERED, Turn.WAITS, Turn.PARKS),
    State.STOPPING: (Turn.STOPPED,),
    State.JUDGED: (Turn.JUDGED,),
    State.RETURNED: (Turn.ENTERED, Turn.RETURNED),
    State.ENDED: (Turn.ENDED,),
}
"""A way to each state."""


def life_in(state: State) -> Life:
    life = Life()
    assert all(life.take(turn) for turn in WAYS[state])
    assert life.state is state
    return life


@pytest.mark.parametrize(("state", "turn"), list(product(State, Turn)), ids=lambda one: one.name)
def test_each_turn_in_each_state_does_what_the_table_says_or_nothing(state: State, turn: Turn) -> None:
    life = life_in(state)
    following = EXPECTED.get((state, turn))
    assert life.take(turn) is (following is not None)
    assert life.state is (following or state)


def test_every_state_is_in_the_table_and_can_be_left_for_the_end() -> None:
    assert set(TABLE) == set(State)
    assert [state for state in State if state is not State.ENDED and Turn.ENDED not in TABLE[state]] == []


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_what_a_tool_says_counts_until_it_is_stopped_judged_or_over(state: State) -> None:
    life = life_in(state)
    over = state in (State.STOPPING, State.JUDGED, State.ENDED)
    assert (life.counts, life.over.is_set(), life.is_waiting) == (not over, over, state is State.WAITING)


@pytest.mark.parametrize("turn", [Turn.STAYS, Turn.STOPPED, Turn.ENDED], ids=lambda turn: turn.name)
@pytest.mark.anyio
async def test_whoever_needs_to_know_waits_until_a_run_has_stayed_or_left(turn: Turn) -> None:
    life = life_in(State.PARKING)
    waiting = asyncio.create_task(life.parking_decided())
    await settle()
    assert not waiting.done()
    life.take(turn)
    await settle()
    assert waiting.done()


@pytest.mark.parametrize("state", [state for state in State if state is not State.PARKING], ids=lambda one: one.name)
@pytest.mark.anyio
async def test_a_run_that_does_not_leave_keeps_nobody_waiting(state: State) -> None:
    life = life_in(state)
    waiting = asyncio.create_task(life.parking_decided())
    await settle()
    assert waiting.done()
