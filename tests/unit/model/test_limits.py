"""When to poll, how long a task is kept, how long to wait before another try."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.model import RunCompleted, RunStarted, apply
from mcp_tasks.model.limits import (
    MAX_POLL_INTERVAL,
    MIN_POLL_INTERVAL,
    backoff,
    expires_at,
    is_expired,
    lifetime,
    poll_interval,
)
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

HOUR = timedelta(hours=1)


def finished(after: timedelta, retention: timedelta | None = HOUR) -> TaskRecord:
    record = apply(make_record(retention=retention), RunStarted(worker="worker-1"), NOON)
    return apply(record, RunCompleted(attempt=1), NOON + after)


@pytest.mark.parametrize(
    ("age", "interval"),
    [
        (timedelta(0), MIN_POLL_INTERVAL),
        (timedelta(hours=-1), MIN_POLL_INTERVAL),
        (timedelta(seconds=1.9), MIN_POLL_INTERVAL),
        (timedelta(seconds=20), timedelta(seconds=2)),
        (timedelta(days=3), MAX_POLL_INTERVAL),
    ],
)
def test_a_task_is_polled_less_often_the_older_it_is(age: timedelta, interval: timedelta) -> None:
    assert poll_interval(make_record(), NOON + age) == interval
    # What the author chose stays.
    assert poll_interval(make_record(poll_interval=timedelta(minutes=1)), NOON + age) == timedelta(minutes=1)


def test_a_running_task_does_not_expire_however_old_it_is() -> None:
    record = make_record(retention=timedelta(seconds=1))
    assert expires_at(record) is None
    assert not is_expired(record, NOON + timedelta(days=10_000))


def test_a_finished_task_expires_its_retention_after_the_end() -> None:
    record = finished(timedelta(days=3))
    assert expires_at(record) == NOON + timedelta(days=3) + HOUR
    assert not is_expired(record, NOON + timedelta(days=3) + HOUR - timedelta(microseconds=1))
    assert is_expired(record, NOON + timedelta(days=3) + HOUR)


def test_a_task_without_a_retention_is_kept_for_good() -> None:
    record = finished(HOUR, retention=None)
    assert expires_at(record) is None
    assert lifetime(record, NOON + HOUR) is None
    assert not is_expired(record, NOON + timedelta(days=10_000))


@pytest.mark.parametrize(
    ("age", "told"),
    [
        (timedelta(hours=-5), HOUR),
        (timedelta(0), HOUR),
        (timedelta(minutes=29), HOUR),
        (timedelta(minutes=30), timedelta(minutes=90)),
        (timedelta(minutes=59), timedelta(minutes=90)),
        (timedelta(hours=24), timedelta(hours=25)),
    ],
)
def test_the_lifetime_of_a_running_task_grows_in_steps_of_half_a_retention(age: timedelta, told: timedelta) -> None:
    assert lifetime(make_record(), NOON + age) == told


def test_the_lifetime_of_a_finished_task_ends_when_the_task_does() -> None:
    record = finished(timedelta(hours=2))
    assert lifetime(record, NOON + timedelta(hours=2)) == timedelta(hours=3)
    assert lifetime(record, NOON + timedelta(hours=9)) == timedelta(hours=3)


def test_backing_off_doubles_up_to_its_limit() -> None:
    base, limit = timedelta(milliseconds=100), timedelta(seconds=5)
    waits = [backoff(attempt, base=base, limit=limit) for attempt in range(8)]
    assert [wait / base for wait in waits] == [1, 2, 4, 8, 16, 32, 50, 50]
    assert backoff(10_000, base=base, limit=limit) == limit
