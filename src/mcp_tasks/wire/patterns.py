"""Regular expressions of JSON schemas, searched for in time that is linear in the text.

Python's `re` tries every way in which a text might fit: of `(a+)+$` there are 2^50 for fifty letters, and whoever sends
them stops the event loop. The engine here is the one that the SDK's models use for their own patterns (Rust's `regex`,
by way of pydantic-core). It goes over the text once, and so it has no look-around and no back-references. A pattern
that needs them is not evaluated: `why_unusable` says so, for those who may warn its author.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from mcp_tasks.core.text import valid_text

LONGEST: Final = 4_096
"""Characters of a pattern. A longer one is not evaluated: compiling it would take a while."""

_KEPT: Final = 256
"""Patterns that are kept compiled. A server asks with the same few; those of a peer must not pile up."""


def found(pattern: str, text: str) -> bool | None:
    """Whether `pattern` occurs in `text`; None if the pattern cannot be evaluated."""
    compiled = _compiled(pattern)
    # Half a character fits no pattern in this engine, not even one that lets everything pass.
    return None if isinstance(compiled, str) else compiled.isinstance_python(valid_text(text))


def why_unusable(pattern: str) -> str | None:
    """Why a pattern cannot be evaluated, in a few words; None if it can."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else None


@lru_cache(_KEPT)
def _compiled(pattern: str) -> SchemaValidator | str:
    if len(pattern) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    try:
        return SchemaValidator(core_schema.str_schema(pattern=valid_text(pattern), regex_engine="rust-regex"))
    except SchemaError as exc:
        # The engine quotes the pattern and points into it; its last line says what is wrong.
        return str(exc).strip().splitlines()[-1].strip().removeprefix("error: ")
