"""Text that every JSON parser reads.

Python strings can hold half a character: a lone surrogate, as `os.fsdecode` makes of a file name in another encoding.
JSON in UTF-8 has no way to write one. Python escapes it, and other parsers refuse the whole message. So there is one
rule: where text of a tool is recorded or leaves for the wire, each lone surrogate becomes U+FFFD, the sign for a
character that could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNREADABLE = "\ufffd"

LONGEST_MESSAGE = 4 * 1024
"""Bytes of a message that a record keeps, if nobody says otherwise: it is read with every look at the task, and every
look at many."""

LONGEST_LEGIBLE = 100
"""Characters of a name that labels of metrics and spans have, if nothing else is said."""

_ELLIPSIS = "…"


def is_valid_text(text: str) -> bool:
    """Whether the text is valid Unicode."""
    return text.isascii() or _SURROGATE.search(text) is None


def valid_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate; the same object if there is none."""
    return text if is_valid_text(text) else _SURROGATE.sub(_UNREADABLE, text)


def short_message(text: str, most: int | None = LONGEST_MESSAGE) -> str:
    """The text as a record keeps it: one of more than `most` bytes is cut, and ends with an ellipsis."""
    # A character has four bytes at most: what is short enough by far is not encoded.
    if most is None or len(text) * 4 <= most:
        return text
    # Half a character (a lone surrogate) is replaced elsewhere, by one of as many bytes.
    data = text.encode(errors="surrogatepass")
    if len(data) <= most:
        return text
    room = most - len(_ELLIPSIS.encode())
    return data[:room].decode(errors="ignore") + _ELLIPSIS if room > 0 else _ELLIPSIS[:most]


def legible(text: str, most: int = LONGEST_LEGIBLE) -> str:
    """The text as a log, a label or a span shows it: on one line, of so many characters at most, with an escape like
    `\\n` or `\\x1b` for each character that cannot be printed."""
    if len(text) <= most and text.isprintable():
        return text
    shown = "".join(char if char.isprintable() else _escape(char) for char in text[:most])
    return shown if len(text) <= most and len(shown) <= most else shown[: most - 1] + _ELLIPSIS


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def valid_json(value: Any) -> Any:
    """The JSON value with `valid_text` throughout, keys included. Whatever is no JSON stays as it is."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping):
        return {valid_json(key): valid_json(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [valid_json(item) for item in cast("list[Any]", value)]
    return value
