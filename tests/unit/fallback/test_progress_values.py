"""The values of progress that one call is sent, whatever its tool says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tasks.fallback.progress import ALIVE, ProgressValues, Report

numbers = st.integers(-5, 20) | st.floats(-5, 20) | st.integers(2**53 - 2, 2**53 + 4) | st.floats(allow_nan=False)
finite = numbers.filter(math.isfinite)
reports = st.builds(Report, finite, st.none() | finite, st.none() | st.sampled_from(["a", "b", "c"]))
doings = st.lists(reports | st.none(), max_size=30)
"""What the tool says, and None where it says nothing for so long that a sign of life is due."""


def sent(values: ProgressValues, doings: Sequence[Report | None]) -> list[Report]:
    """Everything that is sent for them."""
    found: list[Report] = []
    for doing in doings:
        found += values.sign_of_life() if doing is None else values.report(doing)
    return [*found, *values.finish()]


@given(doings, st.none() | finite)
@example([Report(2**53), Report(2**53 + 1)], None)
@example([Report(1e308), None, None], None)
@example([Report(0, 0), None], None)
@example([Report(3, 3, "a"), Report(3, 3, "b"), None], None)
def test_values_strictly_grow_and_never_pass_the_total(doings: list[Report | None], last: float | None) -> None:
    seen = [] if last is None else [float(last)]
    for report in sent(ProgressValues(last), doings):
        assert math.isfinite(report.progress)
        assert not seen or float(report.progress) > seen[-1]
        assert report.total is None or float(report.progress) <= float(report.total)
        seen.append(float(report.progress))


@given(doings, st.none() | finite)
def test_only_the_last_value_of_all_reaches_a_total_that_was_not_raised(
    doings: list[Report | None], last: float | None
) -> None:
    everything = sent(ProgressValues(last), doings)
    for report, following in itertools.pairwise(everything):
        if report.total is not None and float(report.progress) == float(report.total):
            assert following.total is None or float(following.total) > float(report.total)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.text(min_size=1)), max_size=30))
def test_every_message_of_a_tool_that_says_no_total_arrives(said: list[tuple[float, str]]) -> None:
    everything = sent(ProgressValues(), [Report(progress, None, message) for progress, message in said])
    assert [report.message for report in everything] == [message for _, message in said]


@given(st.lists(st.integers(0, 1_000_000), unique=True, max_size=30), st.none() | st.just(1_000_000))
def test_reports_that_grow_are_sent_as_they_are(values: list[int], total: int | None) -> None:
    said = [Report(value, total, "m") for value in sorted(values)]
    assert sent(ProgressValues(), said) == said


@given(st.integers(1, 300), st.integers(0, 99))
def test_after_any_number_of_signs_of_life_the_next_value_of_the_tool_is_still_sent_as_it_is(
    beats: int, done: int
) -> None:
    said = [Report(done, 100), *[None] * beats, Report(done + 1, 200)]
    everything = sent(ProgressValues(), said)
    assert len(everything) == beats + 2
    assert everything[-1] == Report(done + 1, 200)


def test_a_report_that_does_not_grow_is_sent_a_tiny_step_further_for_its_message() -> None:
    first, second, third = sent(ProgressValues(), [Report(5, 10, "a"), Report(5, 10, "b"), Report(1, 10, "c")])
    assert first == Report(5, 10, "a")
    assert (second.total, second.message) == (10, "b")
    assert (third.total, third.message) == (10, "c")
    assert 5 < second.progress < third.progress < 5.001


def test_a_report_that_reaches_its_total_is_sent_when_the_tool_has_ended() -> None:
    values = ProgressValues()
    assert sent_now(values, Report(1, 3)) == [Report(1, 3)]
    assert sent_now(values, Report(3, 3, "all of it")) == []
    [alive] = values.sign_of_life()
    assert (alive.total, alive.message) == (3, "all of it")
    assert 1 < alive.progress < 3
    assert list(values.finish()) == [Report(3, 3, "all of it")]
    assert list(values.finish()) == []


def test_a_report_that_passes_its_total_stops_at_it() -> None:
    assert sent(ProgressValues(), [Report(5, 3, "more")]) == [Report(3, 3, "more")]


def test_two_that_reach_the_total_are_both_heard() -> None:
    first, second = sent(ProgressValues(2), [Report(3, 3, "packing"), Report(3, 3, "shipping")])
    assert (first.total, first.message) == (3, "packing")
    assert 2 < first.progress < 3
    assert second == Report(3, 3, "shipping")


def test_a_total_that_is_raised_lets_go_what_was_held_back() -> None:
    said = [Report(3, 3, "first phase"), Report(4, 6, "second phase"), Report(6, 6)]
    assert sent(ProgressValues(), said) == said


def test_a_total_that_sinks_below_what_was_sent_is_left_out() -> None:
    first, second = sent(ProgressValues(), [Report(5, 10), Report(1, 4, "again")])
    assert first == Report(5, 10)
    assert (second.total, second.message) == (None, "again")
    assert second.progress > 5


def test_signs_of_life_begin_at_nothing_and_say_that_it_runs() -> None:
    first, second = sent(ProgressValues(), [None, None])
    assert first == Report(0, None, ALIVE)
    assert second.message == ALIVE
    assert 0 < second.progress < 0.001


def test_values_go_on_where_an_earlier_leg_of_the_call_ended() -> None:
    everything = sent(ProgressValues(7), [None, Report(3, 10), Report(8, 10)])
    assert all(report.progress > 7 for report in everything)
    assert everything[-1] == Report(8, 10)


def sent_now(values: ProgressValues, report: Report) -> list[Report]:
    """What is sent at once."""
    return list(values.report(report))
