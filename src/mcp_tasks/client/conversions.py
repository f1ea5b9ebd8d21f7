"""Text to JSON value, one type at a time, and the text formats that questions use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

YES: Final = frozenset({"yes", "y", "true", "on"})
NO: Final = frozenset({"no", "n", "false", "off"})


class BadValue(ValueError):
    """What was typed does not fit its field; the message says why."""


def convert(text: str, kinds: AbstractSet[str]) -> Any:
    """The value that `text` stands for in a field of these JSON types.

    Raises:
        ValueError: The text stands for no value of these types.
    """
    if not kinds:
        return _anything(text)
    if "string" in kinds and text.casefold() in (YES | NO) - {"true", "false"}:
        # A field that may be a text or a truth value: only JSON's own words are the latter.
        return text
    converters: Sequence[tuple[str, Callable[[str], Any]]] = (
        ("null", _null),
        ("integer", _integer),
        ("number", _number),
        ("boolean", _boolean),
        ("array", _json),
        ("object", _json),
        ("string", str),
    )
    for kind, read in converters:
        if kind in kinds:
            try:
                return read(text)
            except ValueError:
                continue
    raise ValueError(text)


def check_format(name: Any, value: Any) -> None:
    """Check the formats that questions may use; a validator is not obliged to.

    Raises:
        BadValue: The text is not of this format.
    """
    if not isinstance(value, str):
        return
    checks: Mapping[str, tuple[Callable[[str], Any], str]] = {
        "email": (_email, "an e-mail address, like ann@example.com"),
        "uri": (_uri, "a URI, like https://example.com"),
        "date": (date.fromisoformat, "a date, like 2026-07-28"),
        "date-time": (_instant, "a date and time with its offset, like 2026-07-28T12:00:00Z"),
    }
    if name in checks:
        check, wanted = checks[name]
        try:
            check(value)
        except ValueError:
            raise BadValue(f"expected {wanted}, got {value!r}") from None


def _anything(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _null(text: str) -> None:
    if text != "null":
        raise ValueError


def _integer(text: str) -> int:
    number = _number(text)
    if number != int(number):
        raise ValueError
    # Not by way of a float, which has no room for large ones.
    return int(text) if text.strip().lstrip("+-").isdigit() else int(number)


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    if text.casefold() in YES | NO:
        return text.casefold() in YES
    raise ValueError


def _json(text: str) -> Any:
    value = json.loads(text)
    if not isinstance(value, list | dict):
        raise ValueError
    return cast(Any, value)


def _email(text: str) -> None:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or " " in text:
        raise ValueError


def _uri(text: str) -> None:
    if not urlsplit(text).scheme:
        raise ValueError


def _instant(text: str) -> None:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError
