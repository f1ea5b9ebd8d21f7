"""How much a JSON value is: bytes and depth, found out without writing it where that can be avoided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.json_bytes import LARGE, encode_in_pieces, is_large
from mcp_tasks.errors import LimitExceeded, ValueNotStorable

_MOST_PER_CHARACTER: Final = 6
"""Bytes that JSON has for a character at most: an escape."""

_CERTAIN: Final = LARGE * _MOST_PER_CHARACTER
"""What the JSON of a value that is not large has at most, in bytes."""


def is_deeper(value: JsonValue, most: int) -> bool:
    """Whether the value is nested deeper than so many objects and arrays. Level by level: no nesting is too deep for
    this, and what is too deep is found after `most` levels."""
    level: list[Any] = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(most):
        if not level:
            return False
        level = [item for container in level for item in _items(container) if isinstance(item, Mapping | list | tuple)]
    return bool(level)


def size_beyond(value: JsonValue, most: int) -> int | None:
    """How many bytes of JSON the value has, if these are more than `most`; None if they are not.

    The value must not be nested without end: see `is_deeper` first.

    Raises:
        ValueNotStorable: It is not JSON.
    """
    if most >= _CERTAIN and not is_large(value):
        return None
    size = len(encode_in_pieces(value))
    return size if size > most else None


def check_json(limit: str, what: str, value: JsonValue, *, most: int | None, depth: int, around: int = 0) -> None:
    """See that a value that a caller sent is neither too large nor nested too deeply.

    Args:
        limit: Which limit its size is subject to: an attribute of `Limits`.
        what: What it is, as the start of a sentence.
        around: Levels that are not the caller's own.

    Raises:
        LimitExceeded: It is one or the other.
    """
    # Depth first: to measure what is nested without end may go wrong.
    if is_deeper(value, depth + around):
        raise LimitExceeded("json_depth", f"{what} may be nested {depth} levels deep, and is nested deeper")
    if most is None:
        return
    try:
        size = size_beyond(value, most)
    except ValueNotStorable:
        # Not JSON at all, which is for the store to say in its own words.
        return
    if size is not None:
        raise LimitExceeded(limit, f"{what} may have {most:,} bytes of JSON, and has {size:,}")


def _items(container: Any) -> Iterable[Any]:
    return cast("Mapping[Any, Any]", container).values() if isinstance(container, Mapping) else container
