"""Checks of the values of options: an error names the option, the given value, and what it takes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from mcp_tasks.errors import InvalidOption, MissingExtra


def check_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse anything but a whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOption(f"{name} must be a whole number {wanted}, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse anything but one of these words."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise InvalidOption(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but a bool: to Python, "no" is true."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, got {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse anything but a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"{name} must be a non-empty string, got {value!r}")


def check_queue(name: str, value: object) -> None:
    """Refuse anything but the name of a queue: operators list them with commas between."""
    check_text(name, value)
    if isinstance(value, str) and ("," in value or value != value.strip()):
        raise InvalidOption(f"{name} must be a name without commas, and without spaces around it, got {value!r}")


def check_mapping(name: str, value: object) -> None:
    """Refuse anything but a mapping with strings as its keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value)):
        raise InvalidOption(f"{name} must be a mapping with strings as its keys, got {value!r}")


def check_function(name: str, value: object, example: str) -> None:
    """Refuse anything but a plain function; the message shows the example."""
    if not callable(value):
        raise InvalidOption(f"{name} must be a function, such as {example}; got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise InvalidOption(f"{name} must be a plain function (def), because nothing awaits it; got {value!r}")


def check_instance(name: str, value: object, kind: type) -> None:
    """Refuse anything but an object of that class."""
    if not isinstance(value, kind):
        raise InvalidOption(f"{name} must be a {kind.__name__}, got {value!r}: write {name}={kind.__name__}(...)")


# ---- durations
# Durations that authors and callers give, and how people write and read them.


_UNITS: Final = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_TYPED: Final = re.compile("".join(rf"(?:(?P<{name}>\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit, name in _UNITS.items()))


def check_duration(name: str, value: object, *, zero: bool = False, longest: timedelta = timedelta.max) -> timedelta:
    """The value of the option `name`, if it is a positive `timedelta` (or none at all, where `zero` makes sense)."""
    if not isinstance(value, timedelta):
        # A bool is an int to Python, and no number of seconds.
        is_meant = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        # The author's own number, or none: another one might be copied as if it were meant.
        seconds = value if is_meant else "..."
        raise InvalidOption(
            f"{name} must be a timedelta, got {value!r}: write {name}=timedelta(seconds={seconds}), or minutes=, hours="
        )
    if value < timedelta(0) or (not zero and not value):
        kind = "must not be negative" if zero else "must be a positive duration"
        # In seconds: Python writes one second less than nothing as "-1 day, 23:59:59".
        raise InvalidOption(f"{name} {kind}, got {value.total_seconds():.15g} s")
    if value > longest:
        raise InvalidOption(f"{name} must be at most {longest}, got {value}")
    return value


def read_duration(text: str, *, zero: bool = True, longest: timedelta = timedelta.max) -> timedelta:
    """A duration that a person typed: `90` or `90s`, `10m`, `1h30m`, `2d`, `1w`.

    Args:
        zero: Whether it may be none at all.
        longest: How long it may be, in whole days.

    Raises:
        InvalidOption: It is not one, or not one of these; the message says how one is written.
    """
    text = text.strip()
    # A number alone is of seconds.
    parts = _TYPED.fullmatch(f"{text}s" if text[-1:].isdigit() else text) if text else None
    if parts is None:
        raise InvalidOption(f"{text!r} is not a duration; write 90 or 90s, 10m, 1h30m, 7d or 2w")
    try:
        duration = timedelta(**{unit: float(count) for unit, count in parts.groupdict("0").items()})
    except OverflowError:
        duration = timedelta.max
    if duration > longest or not (duration or zero):
        words = "" if zero else "more than none, and "
        raise InvalidOption(f"{text!r} must be {words}at most {longest.days} days")
    return duration


def clock(duration: timedelta | None) -> str:
    """A running time: 0:07, 12:34, 1:02:03, 3d 01:02:03; empty if it is not known."""
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
    """How long a caller wants to wait; None for as long as it takes."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and not math.isnan(timeout):
        return timeout
    raise InvalidOption(
        f"timeout must be a timedelta or a number of seconds, got {timeout!r}: write timeout=timedelta(seconds=...)"
    )


# ---- urls
# URLs that authors give: their kind, and how they are shown without secrets.


POSTGRES: Final = ("postgresql://", "postgres://")
REDIS: Final = ("redis://", "rediss://", "valkey://", "valkeys://")

_LOCAL: Final = ("sqlite:", "memory:")
_SECRET: Final = re.compile(r"(?i)(\w*(?:pass|pwd|secret|token|key)\w*\s*=\s*)[^\s&]+")


def with_plain_scheme(url: str) -> str:
    """The URL with its scheme in small letters, as the drivers want it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.lower()}{separator}{rest}" if separator else url


def names_redis_database(url: str) -> bool:
    """Whether the path of a URL is the number of a database, or empty. redis-py ignores anything else, and would take
    another database than the one that was meant."""
    parts = urlsplit(url)
    number = "" if parts.scheme == "unix" else parts.path.strip("/")
    return not number or (number.isascii() and number.isdigit())


def shown(url: str) -> str:
    """The URL in quotes for a message, without user, password and the values of options."""
    if url.startswith(_LOCAL):
        return repr(url)
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    address, mark, options = rest.partition("?")
    secret, at, place = address.rpartition("@")
    if not at and "@" in options:
        # A question mark in a password that should have been encoded.
        return repr(f"{scheme}{separator}…@{options.rpartition('@')[2]}")
    address = f"…@{place}" if secret else address
    options = re.sub(r"=[^&]*", "=…", options)
    return repr(_SECRET.sub(r"\1…", f"{scheme}{separator}{address}{mark}{options}"))


# ---- extras

_OURS: Final = __name__.partition(".")[0]


@contextmanager
def needing_extra(what: str, extra: str) -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.partition(".")[0] == _OURS:
            raise
        raise MissingExtra(what, extra) from exc


# ---- statement
# A statement that an engine writes and a store runs inside its own transaction: the job of a task, beside its row.


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One statement for one database.

    Attributes:
        place: Which database it is for. A store elsewhere cannot run it.
        text: The statement, in SQL of that database.
        values: Its named parameters.
    """

    place: str
    text: str
    values: dict[str, Any]


def database_place(url: str) -> str:
    """Which Postgres database a URL means, as `Statement.place` says it: hosts, ports and name; no user, no password.

    Two URLs of one database may give two places (a name and an address of one host, say). That costs a transaction of
    its own for the job, and nothing else.
    """
    parts = urlsplit(url)
    # What comes after the question mark counts before the rest, as libpq has it.
    options = dict(parse_qsl(parts.query))
    user, _, hosts = parts.netloc.rpartition("@")
    name = unquote(parts.path.lstrip("/")) or unquote(user.partition(":")[0])
    where = [options.get("hostaddr") or options.get("host") or hosts.lower(), options.get("port", "")]
    return f"postgresql://{':'.join(filter(None, where))}/{options.get('dbname', name)}"
