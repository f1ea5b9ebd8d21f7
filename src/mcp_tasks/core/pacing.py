"""Arithmetic of time: when to poll, how long a task is kept, how long to wait before trying again.

Promise: a running task never expires. A task's retention counts from its end. The wire knows only a time to live
*from creation*, so while a task runs that number is renewed (`lifetime`), and it never gets smaller.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mcp_tasks.core.record import TaskRecord

MIN_POLL_INTERVAL = timedelta(milliseconds=200)
"""Short enough that a quick tool feels quick."""

MAX_POLL_INTERVAL = timedelta(seconds=10)
"""Long enough that a thousand waiting clients cost a hundred requests a second; short enough for a person."""

POLL_SHARE_OF_AGE = 10
"""A task of age t is to be polled every t/10: its end is noticed a tenth of the run time late at most."""

FOR_GOOD = timedelta(days=365_000)
"""A retention beyond this means for good: there is no date so far ahead, and no number of milliseconds that a client
could use."""


def poll_interval(record: TaskRecord, now: datetime) -> timedelta:
    """How long a client should wait before it asks again."""
    if record.poll_interval is not None:
        return record.poll_interval
    age = now - record.created_at
    return min(max(age / POLL_SHARE_OF_AGE, MIN_POLL_INTERVAL), MAX_POLL_INTERVAL)


def expires_at(record: TaskRecord) -> datetime | None:
    """When the task may be forgotten; None while it runs, and for a task that is kept for good."""
    if record.finished_at is None or record.retention is None or record.retention > FOR_GOOD:
        return None
    return record.finished_at + record.retention


def is_expired(record: TaskRecord, now: datetime) -> bool:
    """Whether the task counts as gone, removed already or not."""
    deadline = expires_at(record)
    return deadline is not None and deadline <= now


def lifetime(record: TaskRecord, now: datetime) -> timedelta | None:
    """The time to live counted from creation, as the wire words it; None for a task kept for good.

    While the task runs it grows in steps of half a retention, so that it always ends at least half a retention ahead
    and yet stays the same over most polls. At the end it becomes the run time plus the retention, which is at least
    what was said before: a promise is never taken back.
    """
    if record.retention is None or record.retention > FOR_GOOD:
        return None
    if record.finished_at is not None:
        return record.finished_at - record.created_at + record.retention
    age = max(now - record.created_at, timedelta(0))
    half = max(record.retention / 2, timedelta(milliseconds=1))
    return record.retention + half * (age // half)


def backoff(attempt: int, *, base: timedelta, limit: timedelta) -> timedelta:
    """How long to wait after failure number `attempt` (from 0): doubling, up to `limit`."""
    # The exponent is capped because 2**attempt outgrows a timedelta long before anyone stops retrying.
    return min(base * 2 ** min(attempt, 30), limit)
