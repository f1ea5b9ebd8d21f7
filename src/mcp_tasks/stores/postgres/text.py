"""Any string as text that Postgres can keep.

Ids, owners and keys come from the wire as anybody wrote them. Postgres keeps neither NUL nor a lone surrogate, so these
are written as escapes; all other strings are kept as they are, for people who look into the tables.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

NOBODY: Final = "\\-"
"""The owner of a task that nobody owns. `to_text` gives it for no string, and unlike NULL it equals itself."""

LONGEST_KEY: Final = 500
"""Characters of an idempotency key that are kept as they are. An index of Postgres takes some 2,700 bytes in all."""

_ODD = re.compile("[\0\\\\\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(\\|0|u[0-9a-f]{4})")


def to_text(text: str) -> str:
    """A string as Postgres can keep it. Different strings stay different."""
    return _ODD.sub(_escape, text) if _ODD.search(text) else text


def from_text(text: str) -> str:
    """The string that `to_text` was given."""
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def to_owner(owner: str | None) -> str:
    """An owner, or nobody."""
    return NOBODY if owner is None else to_text(owner)


def from_owner(text: str) -> str | None:
    """The owner that `to_owner` was given."""
    return None if text == NOBODY else from_text(text)


def to_optional(text: str | None) -> str | None:
    """A string that may be missing."""
    return None if text is None else to_text(text)


def to_key(key: str | None) -> str | None:
    """An idempotency key, which is asked for and never read: of a long one, the beginning and a hash."""
    if key is None or len(key) <= LONGEST_KEY:
        return to_optional(key)
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    # An escape that `to_text` never writes.
    return f"{to_text(key[:100])}\\#{digest}"


def _escape(found: re.Match[str]) -> str:
    match found[0]:
        case "\\":
            return "\\\\"
        case "\0":
            return "\\0"
        case surrogate:
            return f"\\u{ord(surrogate):04x}"


def _unescape(found: re.Match[str]) -> str:
    match found[1]:
        case "\\":
            return "\\"
        case "0":
            return "\0"
        case code:
            return chr(int(code[1:], 16))
