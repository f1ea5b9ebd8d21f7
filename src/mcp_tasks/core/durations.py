"""Durations as authors give them, checked where they are given."""

from __future__ import annotations

from datetime import timedelta

from mcp_tasks.errors import UsageError


def require_duration(name: str, value: object) -> None:
    """Refuse what is no `timedelta`, and say what to write.

    Raises:
        UsageError: It is a bare number, or something else.
    """
    if not isinstance(value, timedelta):
        raise UsageError(f"{name} takes a timedelta, such as timedelta(seconds=60), not {value!r}")
