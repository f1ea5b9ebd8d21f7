"""Lanes: who is in line for a slot, and who is next."""

from __future__ import annotations

import pytest

from mcp_tasks.engines import LocalEngine, Route
from mcp_tasks.engines.local import Lanes
from mcp_tasks.testing._engine_work import at_work

MANY = 10_000


def taken(lanes: Lanes, count: int | None = None) -> list[str]:
    """The next so many, or all."""
    return [lanes.take()[0] for _ in range(len(lanes) if count is None else count)]


def test_the_ids_of_one_owner_are_taken_in_the_order_they_came() -> None:
    lanes = Lanes()
    for task_id in "cab":
        lanes.put(task_id, "new", owner="alice")
    assert taken(lanes) == ["c", "a", "b"]


def test_owners_take_turns_and_nobody_is_one_of_them() -> None:
    lanes = Lanes()
    for owner in ("alice", "bob", None):
        for number in range(3 if owner == "alice" else 2):
            lanes.put(f"{owner} {number}", "new", owner=owner)
    assert taken(lanes) == ["alice 0", "bob 0", "None 0", "alice 1", "bob 1", "None 1", "alice 2"]


def test_an_owner_with_many_ids_keeps_the_single_id_of_another_back_for_one_turn() -> None:
    lanes = Lanes()
    for number in range(MANY):
        lanes.put(f"alice {number}", "new", owner="alice")
    assert taken(lanes, 2) == ["alice 0", "alice 1"]
    lanes.put("bob", "new", owner="bob")
    assert taken(lanes, 3) == ["alice 2", "bob", "alice 3"]
    assert len(lanes) == MANY - 4


def test_an_owner_who_comes_back_stands_behind_the_others() -> None:
    lanes = Lanes()
    for task_id in ("alice 1", "bob 1", "bob 2"):
        lanes.put(task_id, "new", owner=task_id.split()[0])
    assert taken(lanes, 1) == ["alice 1"]
    lanes.put("alice 2", "new", owner="alice")
    assert taken(lanes) == ["bob 1", "alice 2", "bob 2"]


def test_a_higher_priority_comes_first_whatever_the_lane_and_the_owner() -> None:
    lanes = Lanes()
    lanes.put("low", "again", owner="bob", priority=-1)
    for number in range(3):
        lanes.put(f"plain {number}", "new", owner="alice")
    lanes.put("high", "again", owner="alice", priority=7)
    lanes.put("highest", "new", owner="alice", priority=8)
    assert taken(lanes, 3) == ["highest", "high", "plain 0"]
    lanes.put("late and high", "new", priority=7)
    assert taken(lanes) == ["late and high", "plain 1", "plain 2", "low"]


def test_lanes_take_turns_within_a_priority() -> None:
    lanes = Lanes()
    for number in range(2):
        lanes.put(f"new {number}", "new", owner="alice")
        lanes.put(f"again {number}", "again", owner="alice")
    lanes.put("urgent", "new", priority=1)
    assert taken(lanes) == ["urgent", "again 0", "new 0", "again 1", "new 1"]


def test_an_id_is_in_line_once_and_may_come_again_after_it_was_taken() -> None:
    lanes = Lanes()
    lanes.put("a", "new", owner="alice")
    lanes.put("a", "again", owner="bob", priority=9)
    assert (len(lanes), lanes.count("new"), lanes.count("again")) == (1, 1, 0)
    assert taken(lanes) == ["a"]
    lanes.put("a", "again")
    assert (lanes.count("new"), lanes.count("again"), taken(lanes)) == (0, 1, ["a"])


def test_what_is_forgotten_is_not_in_line() -> None:
    lanes = Lanes()
    for number in range(5):
        lanes.put(str(number), "again" if number % 2 else "new", owner=str(number), priority=number)
    lanes.clear()
    assert (len(lanes), lanes.count("again"), bool(lanes)) == (0, 0, False)
    lanes.put("0", "new")
    assert taken(lanes) == ["0"]


def test_nothing_is_kept_of_owners_and_priorities_that_have_nothing_in_line() -> None:
    lanes = Lanes()
    for number in range(100):
        lanes.put(str(number), "new", owner=str(number), priority=number)
        assert lanes.take() == (str(number), str(number))
    assert lanes.priorities == []


@pytest.mark.anyio
async def test_an_engine_starts_what_is_urgent_first_and_owners_by_turns() -> None:
    engine = LocalEngine(concurrency=1)
    async with at_work(engine) as work:
        await engine.submit("first")
        await work.until("start first")
        for number in range(3):
            await engine.submit(f"alice {number}", owner="alice")
        await engine.submit("bob", owner="bob")
        await engine.submit("urgent", owner="alice", route=Route(priority=5))
        ids = ["first", "urgent", "alice 0", "bob", "alice 1", "alice 2"]
        work.end(*ids)
        await work.until("end alice 2")
        assert work.started == ids


@pytest.mark.anyio
async def test_a_task_that_wants_one_more_turn_has_it_with_its_owner_and_its_priority() -> None:
    engine = LocalEngine(concurrency=1)
    async with at_work(engine) as work:
        await engine.submit("first", owner="alice")
        await work.until("start first")
        for number in range(2):
            await engine.submit(f"alice {number}", owner="alice", lane="again")
        await engine.submit("first", owner="bob", lane="again", route=Route(priority=1))
        work.end("first", "alice 0", "alice 1")
        await work.until("end alice 1")
        assert work.started == ["first", "first", "alice 0", "alice 1"]
