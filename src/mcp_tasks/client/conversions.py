"""Text to JSON value and back, one type at a time, and the text formats that questions use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

from mcp_tasks.errors import BadValue

YES: Final = frozenset({"yes", "y", "true", "on"})
NO: Final = frozenset({"no", "n", "false", "off"})


FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "email": ("an e-mail address", "ann@example.com"),
    "uri": ("a URI", "https://example.com"),
    "date": ("a date", "2026-07-28"),
    "date-time": ("a date and time with its offset", "2026-07-28T12:00:00Z"),
}
"""The formats that questions may use: each in words, and one text that has it."""


def chosen_word(text: str, words: Iterable[str]) -> str | None:
    """The word of a menu that was typed, whole or by its first letter; None for anything else: somebody who types
    `continue` does not mean `cancel`."""
    typed = text.strip().removeprefix("/").casefold()
    return next((word for word in words if typed in (word, word[0])), None)


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
        ("array", _list),
        ("object", _object),
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
    checks: Mapping[str, Callable[[str], Any]] = {
        "email": _email,
        "uri": _uri,
        "date": date.fromisoformat,
        "date-time": _instant,
    }
    if name in checks:
        try:
            checks[name](value)
        except ValueError:
            wanted, example = FORMATS[name]
            raise BadValue(f"expected {wanted}, like {example}, got {value!r}") from None


def as_text(value: Any) -> str:
    """A JSON value as somebody would type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(as_text(item) for item in cast("list[Any]", value))
    return value if isinstance(value, str) else json.dumps(value)


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


def _list(text: str) -> list[Any]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError
    return cast("list[Any]", value)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return cast("dict[str, Any]", value)


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
