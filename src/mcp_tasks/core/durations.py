"""The one check of every duration that an author or a caller gives."""

from __future__ import annotations

import math
from datetime import timedelta

from mcp_tasks.errors import InvalidDuration


def check_duration(name: str, value: object, *, zero: bool = False, longest: timedelta = timedelta.max) -> timedelta:
    """The value of the option `name`, if it is a positive `timedelta` (or none at all, where `zero` makes sense).

    Raises:
        InvalidDuration: It is something else; the message says what to write.
    """
    if not isinstance(value, timedelta):
        # A bool is an int to Python, and no number of seconds.
        is_meant = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        # The author's own number, or none: another one might be copied as if it were meant.
        seconds = value if is_meant else "..."
        raise InvalidDuration(
            f"{name} must be a timedelta, got {value!r}: write {name}=timedelta(seconds={seconds}), or minutes=, hours="
        )
    if value < timedelta(0) or (not zero and not value):
        kind = "must not be negative" if zero else "must be a positive duration"
        # In seconds: Python writes one second less than nothing as "-1 day, 23:59:59".
        raise InvalidDuration(f"{name} {kind}, got {value.total_seconds():.15g} s")
    if value > longest:
        raise InvalidDuration(f"{name} must be at most {longest}, got {value}")
    return value


def seconds_of(timeout: object) -> float | None:
    """How long a caller wants to wait; None for as long as it takes.

    Raises:
        InvalidDuration: It is neither a `timedelta` nor a number of seconds.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and not math.isnan(timeout):
        return timeout
    raise InvalidDuration(
        f"timeout must be a timedelta or a number of seconds, got {timeout!r}: write timeout=timedelta(seconds=...)"
    )
