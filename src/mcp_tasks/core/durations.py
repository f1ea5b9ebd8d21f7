"""The one check of every duration that an author or a caller gives, and how people write and read one."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from mcp_tasks.errors import InvalidDuration

_UNITS: Final = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_TYPED: Final = re.compile("".join(rf"(?:(?P<{name}>\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit, name in _UNITS.items()))


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


def read_duration(text: str, *, zero: bool = True, longest: timedelta = timedelta.max) -> timedelta:
    """A duration that somebody typed: `90` or `90s`, `10m`, `1h30m`, `2d`, `1w`. One beyond all time is as long as any.

    Args:
        zero: Whether it may be none at all.
        longest: How long it may be, in whole days.

    Raises:
        InvalidDuration: It is not one, or not one of these; the message says how one is written.
    """
    text = text.strip()
    # A number alone is of seconds.
    parts = _TYPED.fullmatch(f"{text}s" if text[-1:].isdigit() else text) if text else None
    if parts is None:
        raise InvalidDuration(f"{text!r} is not a duration; write 90 or 90s, 10m, 1h30m, 7d or 2w")
    try:
        duration = timedelta(**{unit: float(count) for unit, count in parts.groupdict("0").items()})
    except OverflowError:
        duration = timedelta.max
    if duration > longest or not (duration or zero):
        words = "" if zero else "more than none, and "
        raise InvalidDuration(f"{text!r} must be {words}at most {longest.days} days")
    return duration


def clock(duration: timedelta | None) -> str:
    """A running time: 0:07, 12:34, 1:02:03, 3d 01:02:03; nothing of one that is not known."""
    if duration is None:
        return ""
    minutes, seconds = divmod(max(0, int(duration.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def ago(duration: timedelta) -> str:
    """How long ago something was, as people say it: 5 s ago, 2 min ago, 3 d ago."""
    seconds = max(0, int(duration.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


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
