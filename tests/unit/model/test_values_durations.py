"""Durations, as authors give them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks.errors import InvalidDuration, UsageError
from mcp_tasks.model.values import ago, check_duration, clock, read_duration, seconds_of

SECOND = timedelta(seconds=1)


def test_a_duration_is_given_back_as_it_is() -> None:
    assert check_duration("ttl", SECOND) is SECOND
    assert check_duration("park_after", timedelta(0), zero=True) == timedelta(0)


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [
        (60, "timedelta(seconds=60)"),
        (0.25, "timedelta(seconds=0.25)"),
        # The author's own number, or none: another one might be copied as if it were meant.
        ("90", "timedelta(seconds=...)"),
        (True, "timedelta(seconds=...)"),
        (0, "timedelta(seconds=...)"),
        (-5, "timedelta(seconds=...)"),
        (float("inf"), "timedelta(seconds=...)"),
        (None, "timedelta(seconds=...)"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(wrong: Any, instead: str) -> None:
    with pytest.raises(InvalidDuration) as refused:
        check_duration("ttl", wrong)
    assert f"got {wrong!r}" in str(refused.value)
    assert f"write ttl={instead}" in str(refused.value)


@pytest.mark.parametrize(("wrong", "zero"), [(-SECOND, False), (-SECOND, True), (timedelta(0), False)])
def test_a_duration_that_cannot_be_is_refused(wrong: timedelta, zero: bool) -> None:
    with pytest.raises(InvalidDuration, match="ttl must"):
        check_duration("ttl", wrong, zero=zero)


@pytest.mark.parametrize(
    ("wrong", "shown"), [(-SECOND, "-1 s"), (timedelta(0), "0 s"), (-timedelta(hours=1, milliseconds=1), "-3600.001 s")]
)
def test_a_negative_duration_is_shown_as_a_person_would_write_it(wrong: timedelta, shown: str) -> None:
    with pytest.raises(InvalidDuration, match=f"got {shown}$"):
        check_duration("ttl", wrong)


def test_no_duration_is_too_negative_to_be_shown() -> None:
    with pytest.raises(InvalidDuration, match="got -86399999913600 s"):
        check_duration("ttl", timedelta.min)


def test_a_duration_may_have_a_limit() -> None:
    assert check_duration("every", SECOND, longest=SECOND) == SECOND
    with pytest.raises(InvalidDuration, match="every must be at most 0:00:01, got 0:00:02"):
        check_duration("every", 2 * SECOND, longest=SECOND)


def test_the_refusal_is_what_it_was_before_and_a_usage_error() -> None:
    for kind in (UsageError, TypeError, ValueError):
        assert issubclass(InvalidDuration, kind)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), (" 90s ", 90), ("1.5m", 90), ("1h30m", 5400), ("2d", 172800), ("1w", 604800)]
)
def test_a_typed_duration_is_read(text: str, seconds: int) -> None:
    assert read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "10x", "1m1h", "1 2"])
def test_what_is_no_duration_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidDuration, match="is not a duration; write 90"):
        read_duration(text)


def test_a_duration_beyond_all_time_is_as_long_as_any() -> None:
    assert read_duration("99999999999w") == timedelta.max


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, None), (timedelta(minutes=1), 60.0), (2.5, 2.5), (0, 0), (math.inf, math.inf)]
)
def test_a_wait_is_given_as_a_duration_or_in_seconds(timeout: Any, seconds: float | None) -> None:
    assert seconds_of(timeout) == seconds


@pytest.mark.parametrize("timeout", ["5", True, math.nan, [5]])
def test_a_wait_that_is_neither_is_refused_with_what_to_write(timeout: Any) -> None:
    with pytest.raises(InvalidDuration, match="a timedelta or a number of seconds"):
        seconds_of(timeout)


def test_a_typed_duration_has_bounds() -> None:
    week = timedelta(days=7)
    assert read_duration("0") == timedelta(0)
    assert read_duration("7d", zero=False, longest=week) == week
    with pytest.raises(InvalidDuration, match="'0' must be more than none, and at most 7 days"):
        read_duration("0", zero=False, longest=week)
    with pytest.raises(InvalidDuration, match="'8d' must be at most 7 days"):
        read_duration("8d", longest=week)


@pytest.mark.parametrize(
    ("seconds", "shown", "said"),
    [
        (-3, "0:00", "0 s ago"),
        (7.9, "0:07", "7 s ago"),
        (90, "1:30", "1 min ago"),
        (754, "12:34", "12 min ago"),
        (3723, "1:02:03", "1 h ago"),
        (262923, "3d 01:02:03", "3 d ago"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, shown: str, said: str) -> None:
    duration = timedelta(seconds=seconds)
    assert (clock(duration), ago(duration)) == (shown, said)


def test_nothing_is_said_of_a_running_time_that_is_not_known() -> None:
    assert clock(None) == ""
