"""When to look at a task again: decided without a clock, so that every second can be named."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks.client.poller import (
    BACKSTOP,
    DEFAULT_INTERVAL,
    MOST_UNREADABLE,
    SHORTEST_INTERVAL,
    SOON,
    Patience,
    Poller,
)
from mcp_tasks.errors import InvalidDuration
from mcp_tasks.protocol.shapes import TaskSnapshot, parse_task
from tests.client.peer import task

START = 1_000.0


def shown(interval_ms: float | None) -> TaskSnapshot:
    """A working task whose server suggests this interval."""
    return parse_task(task(pollIntervalMs=... if interval_ms is None else interval_ms))


def poller(lasting: float = 10, base: float = 1, limit: float = 4, jitter: float = 1.0) -> Poller:
    """A poller with whole seconds, whose chance is always the same."""
    patience = Patience(
        max_outage=timedelta(seconds=lasting), first_pause=timedelta(seconds=base), max_pause=timedelta(seconds=limit)
    )
    return Poller(patience, jitter=lambda: jitter)


def test_a_task_that_was_never_seen_is_looked_at_at_once() -> None:
    assert poller().next_look <= START


@pytest.mark.requirement("client/poll-interval")
def test_the_interval_that_the_server_suggests_is_kept() -> None:
    polls = poller()
    polls.saw(shown(2_500), START, pushed=False)
    assert polls.next_look == START + 2.5


@pytest.mark.requirement("client/poll-interval")
def test_an_interval_that_changes_is_followed_both_ways() -> None:
    polls = poller()
    for now, interval in ((START, 1_000), (START + 1, 9_000), (START + 10, 500)):
        polls.saw(shown(interval), now, pushed=False)
        assert polls.next_look == now + interval / 1_000


@pytest.mark.parametrize("interval", [0, -1, -(10**9), 1, 49])
def test_a_server_that_wants_to_be_asked_all_the_time_is_not(interval: int) -> None:
    polls = poller()
    polls.saw(shown(interval), START, pushed=False)
    assert polls.next_look == START + SHORTEST_INTERVAL


@pytest.mark.requirement("client/poll-interval")
@pytest.mark.parametrize("interval", [60_001, 300_000, 10**12])
def test_an_interval_is_kept_however_long_it_is(interval: int) -> None:
    polls = poller()
    polls.saw(shown(interval), START, pushed=False)
    assert polls.next_look == START + interval / 1_000


@pytest.mark.parametrize("interval", [None, 10**400, 1e300])
def test_without_a_usable_suggestion_there_is_one_of_our_own(interval: float | None) -> None:
    polls = poller()
    polls.saw(shown(interval), START, pushed=False)
    assert polls.next_look == START + DEFAULT_INTERVAL


def test_with_push_a_look_is_only_the_backstop() -> None:
    polls = poller()
    polls.saw(shown(200), START, pushed=True)
    assert polls.next_look == START + BACKSTOP


def test_with_push_an_interval_beyond_the_backstop_is_kept() -> None:
    polls = poller()
    polls.saw(shown(45_000), START, pushed=True)
    assert polls.next_look == START + 45


def test_when_push_is_lost_the_pace_of_a_poll_is_back() -> None:
    polls = poller()
    polls.saw(shown(200), START, pushed=True)
    polls.lost_push(START + 5)
    assert polls.next_look == START + 5.2


def test_losing_push_that_never_was_changes_nothing() -> None:
    polls = poller()
    polls.saw(shown(2_000), START, pushed=False)
    polls.lost_push(START + 0.5)
    assert polls.next_look == START + 2


def test_losing_push_never_puts_a_look_off() -> None:
    polls = poller()
    polls.saw(shown(45_000), START, pushed=True)
    polls.lost_push(START + 44)
    assert polls.next_look == START + 45


def test_a_hint_brings_the_next_look_forward_and_each_further_one_less() -> None:
    polls, pauses = poller(), list[float]()
    for _ in range(5):
        polls.saw(shown(2_000), START, pushed=False)
        polls.hinted(START)
        pauses.append(polls.next_look - START)
    assert pauses == pytest.approx([SOON, 2 * SOON, 4 * SOON, 8 * SOON, 2])


def test_hints_that_come_before_the_look_they_ask_for_count_once() -> None:
    polls = poller()
    polls.saw(shown(30_000), START, pushed=False)
    for _ in range(50):
        polls.hinted(START)
    polls.saw(shown(30_000), START, pushed=False)
    polls.hinted(START)
    assert polls.next_look == START + 2 * SOON


def test_a_hint_never_puts_a_look_off() -> None:
    polls = poller()
    polls.saw(shown(1_000), START, pushed=False)
    polls.hinted(START + 0.95)
    assert polls.next_look == START + 1


def test_a_task_that_is_said_to_have_ended_is_looked_at_at_once_and_only_the_first_time() -> None:
    polls = poller()
    polls.saw(shown(30_000), START, pushed=False)
    polls.hinted(START + 3, ended=True)
    assert polls.next_look == START + 3
    polls.saw(shown(30_000), START + 3, pushed=False)
    polls.hinted(START + 3, ended=True)
    assert polls.next_look == START + 3 + 2 * SOON


def test_pauses_after_failures_double_up_to_a_limit() -> None:
    polls = poller(lasting=1_000)
    now, pauses = START, list[float]()
    for _ in range(5):
        assert polls.failed(now)
        pauses.append(polls.next_look - now)
        now = polls.next_look
    assert pauses == [1, 2, 4, 4, 4]


def test_half_of_a_pause_is_chance() -> None:
    early, late = poller(jitter=0.0), poller(jitter=1.0)
    early.failed(START)
    late.failed(START)
    assert (early.next_look, late.next_look) == (START + 0.5, START + 1)


def test_patience_ends_some_time_after_the_first_failure() -> None:
    polls = poller(lasting=10)
    now = START
    while polls.failed(now):
        now = polls.next_look
    assert START + 10 - 4 <= now <= START + 10


def test_a_success_in_between_starts_patience_and_pauses_afresh() -> None:
    polls = poller(lasting=10)
    now = START
    for _ in range(20):
        assert polls.failed(now)
        now = polls.next_look
        polls.saw(shown(1_000), now, pushed=False)
        now += 1
    assert polls.failed(now)
    assert polls.next_look == now + 1


def test_answers_that_cannot_be_read_are_asked_for_a_few_times_only() -> None:
    polls = poller(lasting=1e6)
    assert [polls.failed(START, unreadable=True) for _ in range(MOST_UNREADABLE)] == [True] * (MOST_UNREADABLE - 1) + [
        False
    ]


def test_an_outage_between_answers_that_cannot_be_read_starts_their_count_afresh() -> None:
    polls = poller(lasting=1e6)
    for _ in range(MOST_UNREADABLE - 1):
        assert polls.failed(START, unreadable=True)
    assert polls.failed(START)
    assert polls.failed(START, unreadable=True)


def test_without_patience_the_first_failure_ends_the_wait() -> None:
    assert not poller(lasting=0).failed(START)


@given(
    interval=st.one_of(st.none(), st.integers(), st.floats(allow_nan=True)),
    pushed=st.booleans(),
    now=st.floats(0, 1e9),
)
def test_whatever_a_server_suggests_the_next_look_is_not_now(interval: float | None, pushed: bool, now: float) -> None:
    polls = Poller()
    polls.saw(shown(interval), now, pushed=pushed)
    # A float that is large has no room for a twentieth of a second exactly.
    assert now + SHORTEST_INTERVAL * 0.99 <= polls.next_look < math.inf


@given(jitter=st.floats(0, 1), failures=st.integers(1, 60), base=st.floats(0.001, 60), limit=st.floats(0.001, 600))
def test_no_pause_is_longer_than_its_limit_and_none_is_nothing(
    jitter: float, failures: int, base: float, limit: float
) -> None:
    polls = poller(lasting=1e6, base=base, limit=limit, jitter=jitter)
    for _ in range(failures):
        polls.failed(START)
        assert 0 < polls.next_look - START <= limit + 1e-6


@pytest.mark.parametrize("name", ["max_outage", "first_pause", "max_pause"])
@pytest.mark.parametrize("value", [60, timedelta(seconds=-1), None])
def test_patience_that_is_no_duration_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(InvalidDuration, match=name):
        Patience(**{name: value})
