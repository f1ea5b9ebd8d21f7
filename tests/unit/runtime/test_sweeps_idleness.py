"""How long tasks have been idle, as far as one process can tell."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from mcp_tasks.runtime.sweeps import LONGEST_PAUSE, TURNS, Idleness
from tests.unit.running import Seconds

SECOND, NOW = timedelta(seconds=1), timedelta(0)
LONG = timedelta(seconds=30)


def looks(idleness: Idleness, clock: Seconds, patience: timedelta, seconds: int) -> list[int]:
    """Look once a second at a task that stays idle; in which seconds it is to be submitted."""
    over: list[int] = []
    for second in range(seconds):
        if idleness.is_over("task", 1, patience):
            over.append(second)
        idleness.end_round()
        clock.advance(SECOND)
    return over


def test_pauses_double_up_to_some_minutes() -> None:
    clock = Seconds()
    assert looks(Idleness(clock), clock, NOW, 1_000) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812]
    assert timedelta(seconds=300) == LONGEST_PAUSE


def test_what_has_patience_waits_for_as_long_and_then_twice_as_long() -> None:
    clock = Seconds()
    assert looks(Idleness(clock), clock, LONG, 1_000) == [30, 60, 120, 240, 480, 780]


def test_a_task_that_changed_is_idle_from_then_on() -> None:
    clock = Seconds()
    idleness = Idleness(clock)
    looks(idleness, clock, LONG, 100)
    assert not idleness.is_over("task", 2, LONG)
    assert idleness.is_over("task", 2, NOW)
    clock.advance(SECOND)
    assert idleness.is_over("task", 2, NOW), "and its pauses begin anew"


def test_patience_may_end_before_its_time() -> None:
    clock = Seconds()
    idleness = Idleness(clock)
    assert not idleness.is_over("task", 1, LONG)
    assert idleness.any_waiting
    assert idleness.is_over("task", 1, NOW)
    assert not idleness.any_waiting


def test_what_was_not_seen_in_a_whole_round_is_forgotten() -> None:
    clock = Seconds()
    idleness = Idleness(clock)
    idleness.is_over("task", 1, LONG)
    idleness.end_round()
    assert idleness.any_waiting
    idleness.end_round()
    assert not idleness.any_waiting
    clock.advance(LONG)
    assert not idleness.is_over("task", 1, LONG)


@pytest.mark.parametrize("patience", [NOW, LONG])
def test_of_more_tasks_than_can_be_remembered_each_is_submitted_some_time(patience: timedelta) -> None:
    clock = Seconds()
    idleness = Idleness(clock, limit=10)
    submitted: Counter[int] = Counter()
    rounds = 100 * TURNS
    for _ in range(rounds):
        submitted.update(number for number in range(35) if idleness.is_over(f"task {number}", 1, patience))
        assert len(idleness) <= 10
        idleness.end_round()
        clock.advance(SECOND)
    assert len(submitted) == 35
    assert max(submitted.values()) <= rounds / TURNS, "what cannot be remembered is not submitted all the time"


def test_when_all_room_is_taken_the_one_that_was_submitted_first_is_forgotten_once_its_pause_is_over() -> None:
    clock = Seconds()
    idleness = Idleness(clock, limit=2)
    assert [idleness.is_over(task, 1, NOW) for task in ("one", "two")] == [True, True]
    clock.advance(SECOND)
    assert idleness.is_over("three", 1, NOW)
    assert len(idleness) == 2
