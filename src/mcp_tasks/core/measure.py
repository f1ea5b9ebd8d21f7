"""How much a JSON value is: bytes and depth, found out without writing it where that can be avoided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.json_bytes import LARGE, encode_json
from mcp_tasks.errors import LimitExceeded, ValueNotStorable

_PER_CHARACTER: Final = 6
"""Bytes that JSON has for a character at most: an escape."""

_CONTAINERS: Final = (dict, list, tuple)
_KINDS: Final[frozenset[type]] = frozenset(_CONTAINERS)
_FEW: Final = 16

_PER_VALUE: Final = 26
"""Bytes of the longest number that is no whole number, with what stands around it."""


def is_deeper(value: JsonValue, most: int) -> bool:
    """Whether the value is nested deeper than so many objects and arrays. Level by level: no nesting is too deep for
    this, and what is too deep is found after `most` levels."""
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(most):
        if not level:
            return False
        within: list[Any] = []
        for container in level:
            items = _items(container)
            # Most of what is long is long lists of text and numbers, which are seen through in a fifth of the time.
            if len(container) < _FEW or not _KINDS.isdisjoint(map(type, items)):
                within += [item for item in items if isinstance(item, _CONTAINERS)]
        level = within
    return bool(level)


def count_values(value: JsonValue, most: int) -> int:
    """How many values there are in the value, itself included; counted no further than to `most` and one more."""
    count = 1
    waiting: list[Any] = [value]
    while waiting and count <= most:
        item = waiting.pop()
        if isinstance(item, _CONTAINERS):
            container = cast("dict[Any, Any] | list[Any]", item)
            count += len(container)
            if count <= most:
                waiting.extend(_items(container))
    return min(count, most + 1)


def check_json(
    limit: str,
    what: str,
    value: JsonValue,
    *,
    most: int | None,
    depth: int,
    around: int = 0,
    written: Callable[[JsonValue], bytes] = encode_json,
) -> None:
    """See that a value that a caller sent is neither too large nor nested too deeply.

    Args:
        limit: Which limit its size is subject to: an attribute of `Limits`.
        what: What it is, as the start of a sentence.
        most: Bytes of JSON that it may have; None for any number.
        depth: Levels of objects and arrays that it may have.
        around: Levels that are not the caller's own.
        written: Writes the value, to see how long that is.

    Raises:
        LimitExceeded: It is one or the other.
    """
    try:
        data = b"" if _is_within(value, LARGE if most is None else min(most, LARGE)) else written(value)
    except ValueNotStorable:
        # Nested too deeply even for that, or no JSON at all, which is for the store to say in its own words.
        data = b""
    if most is not None and len(data) > most:
        raise LimitExceeded(limit, f"{what} may be {most:,} bytes of JSON at most, not {len(data):,}")
    # Of what is large, most is text and numbers: where there are fewer brackets than levels, nobody has to look.
    has_few = data and data.count(b"[") + data.count(b"{") <= depth
    if not has_few and is_deeper(value, depth + around):
        raise LimitExceeded("json_depth", f"{what} may be nested {depth} levels deep at most")


def _is_within(value: JsonValue, most: int) -> bool:
    """Whether the JSON of the value certainly has no more bytes than that; False if it would have to be written."""
    room = most
    waiting: list[Any] = [value]
    while waiting and room >= 0:
        item = waiting.pop()
        kind = cast("Any", type(item))
        if kind is str:
            room -= _PER_CHARACTER * len(item) + 3
        elif kind is dict:
            room -= 2 + len(item)
            waiting += item
            waiting += item.values()
        elif kind is list or kind is tuple:
            room -= 2
            waiting += item
        elif kind is int:
            # A digit is more than three bits.
            room -= item.bit_length() // 3 + 3
        elif item is None or kind is bool or kind is float:
            room -= _PER_VALUE
        else:
            return False
    return room >= 0


def _items(container: Any) -> Iterable[Any]:
    return cast("dict[Any, Any]", container).values() if isinstance(container, dict) else container
