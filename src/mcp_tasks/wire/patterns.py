"""Patterns of JSON schemas, matched in time that grows with the text and nothing else.

Python's own engine backtracks: a pattern that somebody else wrote can keep it busy for ever, and the event loop with
it. The engine behind pydantic does not. It knows no look-around and no back-references, which is its price; a pattern
that needs them is refused, and what to do about that is for the caller to say.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

LONGEST_PATTERN: Final = 1_000
"""Characters. What people write to check a field is far below it."""


class PatternRefused(ValueError):
    """The pattern cannot be matched in linear time, or is none; the message says why."""


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the text, as `pattern` of a JSON schema has it.

    Raises:
        PatternRefused: The pattern cannot be used.
    """
    matcher = _compiled(pattern)
    if isinstance(matcher, str):
        raise PatternRefused(matcher)
    try:
        matcher.validate_python(text, strict=True)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator | str:
    """What matches the pattern, or why nothing does: remembered too, as finding out costs as much."""
    if len(pattern) > LONGEST_PATTERN:
        return f"a pattern of {len(pattern)} characters is too long; {LONGEST_PATTERN} is the limit"
    try:
        # A lone surrogate would be passed over, and with it the pattern.
        pattern.encode()
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeError) as exc:
        return f"the pattern {pattern[:80]!r} cannot be used: {_last_line(exc)}"


def _last_line(exc: Exception) -> str:
    return str(exc).strip().splitlines()[-1].strip().removeprefix("error: ")
