"""The checks of values that authors give, durations and URLs: what fits passes, and what does not is told by name."""

import math
from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks.errors import InvalidOption, MissingExtra
from mcp_tasks.model.values import (
    ago,
    check_duration,
    clock,
    database_place,
    names_redis_database,
    needing_extra,
    read_duration,
    seconds_of,
    shown,
    with_plain_scheme,
)

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (-SECOND, "-1 s"),
        (timedelta.min, "-86399999913600 s"),
        (timedelta(0), "0 s"),
        (-timedelta(hours=1, milliseconds=1), "-3600.001 s"),
    ],
)
def test_a_negative_duration_is_shown_as_a_person_would_write_it(wrong: timedelta, shown: str) -> None:
    with pytest.raises(InvalidOption, match=f"got {shown}$"):
        check_duration("ttl", wrong)


def test_a_duration_may_have_a_limit() -> None:
    assert check_duration("ttl", SECOND) is SECOND
    assert check_duration("park_after", timedelta(0), zero=True) == timedelta(0)
    assert check_duration("every", SECOND, longest=SECOND) == SECOND
    with pytest.raises(InvalidOption, match="every must be at most 0:00:01, got 0:00:02"):
        check_duration("every", 2 * SECOND, longest=SECOND)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), (" 90s ", 90), ("1.5m", 90), ("1h30m", 5400), ("2d", 172800), ("1w", 604800)]
)
def test_a_typed_duration_is_read(text: str, seconds: int) -> None:
    assert read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "10x", "1m1h", "1 2"])
def test_what_is_no_duration_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a duration; write 90"):
        read_duration(text)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, None), (timedelta(minutes=1), 60.0), (2.5, 2.5), (0, 0), (math.inf, math.inf)]
)
def test_a_wait_is_given_as_a_duration_or_in_seconds(timeout: Any, seconds: float | None) -> None:
    assert seconds_of(timeout) == seconds
    for wrong in ("5", True, math.nan, [5]):
        with pytest.raises(InvalidOption, match="a timedelta or a number of seconds"):
            seconds_of(wrong)


def test_a_typed_duration_has_bounds() -> None:
    week = timedelta(days=7)
    assert (read_duration("0"), read_duration("99999999999w")) == (timedelta(0), timedelta.max)
    assert read_duration("7d", zero=False, longest=week) == week
    with pytest.raises(InvalidOption, match="'0' must be more than none, and at most 7 days"):
        read_duration("0", zero=False, longest=week)
    with pytest.raises(InvalidOption, match="'8d' must be at most 7 days"):
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
    assert (clock(duration), ago(duration), clock(None)) == (shown, said, "")


@pytest.mark.parametrize(
    ("missing", "error", "says"),
    [
        ("psycopg", MissingExtra, "postgres"),
        ("mcp_tasks", ModuleNotFoundError, "it is missing"),
        ("mcp_tasks.stores.postgres", ModuleNotFoundError, "it is missing"),
    ],
)
def test_a_package_that_is_not_there_is_one_of_the_extra_unless_it_is_ours(
    missing: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says), needing_extra("The Postgres store", "postgres"):
        raise ModuleNotFoundError("it is missing", name=missing)


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        ("postgresql://db.example:5433/tasks", True),
        ("postgres://DB.example:5433/tasks", True),
        ("postgresql://me:se@cret@db.example:5433/tasks?sslmode=require", True),
        ("postgresql:///tasks?host=db.example&port=5433", True),
        ("postgresql://elsewhere/other?host=db.example&port=5433&dbname=tasks", True),
        ("postgresql://db.example:5433/others", False),
        ("postgresql://db.example/tasks", False),
        ("postgresql://other.example:5433/tasks", False),
        ("postgresql://one:5432,two:5432/tasks", False),
        ("postgresql:///tasks", False),
    ],
)
def test_one_database_is_one_place_whoever_asks_and_however_it_is_written(url: str, is_same: bool) -> None:
    assert (database_place(url) == "postgresql://db.example:5433/tasks") is is_same


def test_without_a_name_it_is_the_one_that_is_called_like_the_user() -> None:
    assert database_place("postgresql://me:secret@host") == "postgresql://host/me"
    assert "secret" not in database_place("postgresql://me:secret@db.example/tasks?password=secret")


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("PostgreSQL://Host/Tasks", "postgresql://Host/Tasks"),
        ("redis://Host", "redis://Host"),
        ("Host=db Dbname=Tasks", "Host=db Dbname=Tasks"),
    ],
)
def test_the_scheme_alone_is_made_small(url: str, plain: str) -> None:
    assert with_plain_scheme(url) == plain


@pytest.mark.parametrize(
    ("url", "is_number"),
    [
        ("redis://host", True),
        ("redis://host/", True),
        ("redis://host/7?protocol=3", True),
        ("redis://host/tasks", False),
        ("redis://host/7/8", False),
        ("redis://host/\u0667", False),
        ("unix:///run/valkey.sock", True),
    ],
)
def test_a_database_of_redis_has_a_number(url: str, is_number: bool) -> None:
    assert names_redis_database(url) is is_number


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///tasks.db?key=abc", "sqlite:///tasks.db?key=abc"),
        ("postgresql://host/tasks", "postgresql://host/tasks"),
        ("postgresql://ada:hunter2@host/tasks?sslmode=require", "postgresql://…@host/tasks?sslmode=…"),
        ("postgresql://ada:hunt?er2@host/tasks", "postgresql://…@host/tasks"),
        ("host=db user=ada password=hunter2", "host=db user=ada password=…"),
        ("ada:hunter2@host", "…@host"),
    ],
)
def test_what_is_secret_in_a_url_is_not_repeated(url: str, told: str) -> None:
    assert shown(url) == repr(told)
    assert "hunter2" not in shown(url)
