"""The JSON types of the package: what arguments, results, answers and errors are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

JsonValue: TypeAlias = Any
"""Any value `json.dumps` takes. Spelled `Any` because a recursive alias helps nobody at a call site."""

JsonObject: TypeAlias = Mapping[str, JsonValue]
"""A JSON object. A `Mapping`, because records are values: nobody writes into one."""


def object_in(holder: object, *keys: str) -> JsonObject | None:
    """The object at the end of a path of keys, if there is one: whatever somebody sent."""
    node = holder
    for key in keys:
        node = cast("JsonObject", node).get(key) if isinstance(node, Mapping) else None
    return cast("JsonObject", node) if isinstance(node, Mapping) else None


def list_in(holder: JsonObject, key: str) -> list[JsonValue]:
    """The list under a key; an empty one if there is none."""
    value = holder.get(key)
    return cast("list[JsonValue]", value) if isinstance(value, list) else []
