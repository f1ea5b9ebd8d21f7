"""Text that somebody else wrote, made fit for a terminal.

A server chooses ids, names, titles, messages and errors. None of it may move the cursor, hide something, reorder what
is read, or begin a line where one is meant.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

_SPELLING: Final = frozenset("\u200c\u200d")
"""Marks that have no width and belong to the spelling of words and emoji."""

_DROPPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of what a terminal obeys or does not show: controls, marks that reorder or hide, halves of characters,
separators that some terminals take for the end of a line."""


def printable(text: str) -> str:
    """Text without what a terminal would obey, on its lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char for char in text if char in "\n\t" or not is_dropped(char))


def on_one_line(text: str) -> str:
    """The same on one line."""
    return " ".join(printable(text).split())


def is_dropped(char: str) -> bool:
    """Whether a character is one of those."""
    return char not in _SPELLING and unicodedata.category(char) in _DROPPED


# All that `json.dumps` leaves as it is: it escapes the controls below the space by itself.
_UNPRINTED: Final = re.compile(r"[^ -~\n]")


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """A JSON value as text: what a terminal would obey is escaped in it, and the value is the same."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isascii() else _UNPRINTED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return json.dumps(char)[1:-1] if is_dropped(char) else char
