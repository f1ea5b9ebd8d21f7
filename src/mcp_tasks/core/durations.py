"""The one check of every duration that an author gives."""

from __future__ import annotations

import math
from datetime import timedelta

from mcp_tasks.errors import InvalidDuration

_EXAMPLE = 60
"""Seconds to show to an author whose value is no number either."""


def check_duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    """The value of the option `name`, if it is a positive `timedelta` (or none at all, where `zero` makes sense).

    Raises:
        InvalidDuration: It is something else; the message says what to write.
    """
    if not isinstance(value, timedelta):
        # A bool is an int to Python, and no number of seconds.
        is_meant = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        seconds = value if is_meant else _EXAMPLE
        raise InvalidDuration(
            f"{name} must be a timedelta, got {value!r}: write {name}=timedelta(seconds={seconds}), or minutes=, hours="
        )
    if value < timedelta(0) or (not zero and not value):
        kind = "must not be negative" if zero else "must be a positive duration"
        raise InvalidDuration(f"{name} {kind}, got {value}")
    return value
