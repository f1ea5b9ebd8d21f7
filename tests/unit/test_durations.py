"""Durations, as authors give them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks.core.durations import check_duration
from mcp_tasks.errors import InvalidDuration, UsageError

SECOND = timedelta(seconds=1)


def test_a_duration_is_given_back_as_it_is() -> None:
    assert check_duration("ttl", SECOND) is SECOND
    assert check_duration("park_after", timedelta(0), zero=True) == timedelta(0)


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [
        (60, "timedelta(seconds=60)"),
        (0.25, "timedelta(seconds=0.25)"),
        ("90", "timedelta(seconds=60)"),
        (True, "timedelta(seconds=60)"),
        (0, "timedelta(seconds=60)"),
        (-5, "timedelta(seconds=60)"),
        (float("inf"), "timedelta(seconds=60)"),
        (None, "timedelta(seconds=60)"),
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


def test_the_refusal_is_what_it_was_before_and_a_usage_error() -> None:
    for kind in (UsageError, TypeError, ValueError):
        assert issubclass(InvalidDuration, kind)
