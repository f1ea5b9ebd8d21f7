"""How long a call waits, and whether its caller is told to come back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.fallback.options import (
    UNKNOWN_HOST,
    Fallback,
    Host,
    Patience,
    patience_of_call,
    patience_of_leg,
    patience_of_status,
)

WAYS = Fallback()
ANYTHING = timedelta(0)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_an_older_host_that_nobody_knows_is_answered_after_the_usual_wait() -> None:
    assert patience_of_call(WAYS, None, UNKNOWN_HOST, has_progress=False) == Patience(seconds(25))


def test_an_older_host_is_waited_for_by_its_own_limit() -> None:
    host = Host(limit=seconds(240))
    assert patience_of_call(WAYS, host, UNKNOWN_HOST, has_progress=True) == Patience(seconds(200))


def test_an_older_host_without_a_limit_is_waited_for_as_long_as_it_takes() -> None:
    assert patience_of_call(WAYS, Host(), UNKNOWN_HOST, has_progress=False) == Patience(None)


@pytest.mark.parametrize(("has_progress", "limit"), [(True, None), (False, seconds(50))])
def test_progress_lifts_the_limit_of_hosts_that_let_it(has_progress: bool, limit: timedelta | None) -> None:
    host = Host(limit=seconds(60), progress_extends=True)
    assert patience_of_call(WAYS, host, UNKNOWN_HOST, has_progress=has_progress).limit == limit


def test_what_is_assumed_of_unknown_hosts_bounds_the_usual_wait() -> None:
    assumed = Host(limit=seconds(12))
    assert patience_of_call(WAYS, None, assumed, has_progress=False) == Patience(seconds(10))


def test_a_client_without_a_limit_comes_back_eight_times_and_is_told_at_the_ninth() -> None:
    legs = [patience_of_leg(WAYS, Host(), legs=n, elapsed=ANYTHING, has_progress=False) for n in range(9)]
    assert [leg.comes_back for leg in legs] == [True] * 8 + [False]
    assert {leg.limit for leg in legs} == {seconds(25)}


@pytest.mark.parametrize("limit", [30, 60, 100, 240, 300])
def test_the_waits_of_a_call_together_stay_within_the_limit_of_its_host(limit: int) -> None:
    host, elapsed, waits = Host(limit=seconds(limit)), timedelta(0), 0
    while True:
        leg = patience_of_leg(WAYS, host, legs=waits, elapsed=elapsed, has_progress=False)
        assert leg.limit is not None
        elapsed, waits = elapsed + leg.limit, waits + 1
        if not leg.comes_back:
            break
    assert elapsed <= seconds(limit) * 5 / 6
    assert elapsed == min(seconds(limit) * 5 / 6, 9 * WAYS.wait)


def test_a_call_whose_time_is_over_waits_no_more_and_may_still_ask() -> None:
    late = patience_of_leg(WAYS, UNKNOWN_HOST, legs=1, elapsed=seconds(55), has_progress=False)
    assert late == Patience(timedelta(0), comes_back=False, asks=True)


def test_without_legs_nobody_is_told_to_come_back() -> None:
    once = patience_of_leg(Fallback(legs=0), Host(), legs=0, elapsed=ANYTHING, has_progress=False)
    assert once == Patience(seconds(25))


@pytest.mark.parametrize(("wanted", "waited"), [(3, 3), (600, 50)])
def test_who_says_how_long_to_wait_is_answered_then_and_within_the_limit_of_its_host(wanted: int, waited: int) -> None:
    patience = patience_of_status(seconds(wanted), UNKNOWN_HOST, elapsed=ANYTHING, asks=True, has_progress=False)
    assert patience == Patience(seconds(waited), comes_back=False, asks=True)
