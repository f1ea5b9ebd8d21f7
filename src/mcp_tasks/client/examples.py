"""A value that a schema allows, to show somebody how one is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_tasks.client.conversions import FORMATS
from mcp_tasks.client.fields import Field, field_of, fields_of
from mcp_tasks.errors import BadValue

DEEPEST: Final = 4
"""Lists and objects inside one another; what is further down is left out."""


def example_of(field: Field) -> Any:
    """A value that the field takes; of a list, two items if they can differ.

    Raises:
        BadValue: None comes to mind that the schema allows.
    """
    return field.check(_example(field, 0))


def _example(field: Field, depth: int) -> Any:
    if depth > DEEPEST:
        raise BadValue("too deep for an example")
    given = field.schema.get("examples")
    if field.choices:
        values = [choice.value for choice in field.choices]
        return values[:2] if field.multiple else values[0]
    if isinstance(given, list) and given:
        return cast("list[Any]", given)[0]
    if field.has_default and field.default is not None:
        return field.default
    for kind in ("array", "object", "string", "integer", "number", "boolean"):
        if kind in field.kinds:
            return _of_kind(kind, field, depth)
    return "text"


def _of_kind(kind: str, field: Field, depth: int) -> Any:
    schema = field.schema
    match kind:
        case "array":
            return _items(field, depth)
        case "object":
            return _properties(field, depth)
        case "string":
            text = FORMATS.get(str(schema.get("format")), ("", "text"))[1]
            short, long = schema.get("minLength"), schema.get("maxLength")
            text = text.ljust(short, "x") if isinstance(short, int) and short < 100 else text
            return text[:long] if isinstance(long, int) else text
        case "boolean":
            return True
        case _:
            return _number(schema, whole=kind == "integer")


def _items(field: Field, depth: int) -> list[Any]:
    item = field.item
    first = _example(item, depth + 1)
    if isinstance(first, bool | dict | list) or item.schema.get("format") or item.has_default:
        return [first]
    second: Any = first + 1 if isinstance(first, int | float) else "more"
    try:
        return [first, item.check(second)]
    except BadValue:
        return [first]


def _properties(field: Field, depth: int) -> dict[str, Any]:
    parts = fields_of(field.schema)
    chosen = [part for part in parts if part.required] or parts[:1]
    if chosen:
        return {part.name: _example(part, depth + 1) for part in chosen}
    others = field.schema.get("additionalProperties")
    if not isinstance(others, Mapping):
        return {"key": "value"}
    return {"key": _example(field_of("", cast("Mapping[str, Any]", others), field.schema), depth + 1)}


def _number(schema: Mapping[str, Any], *, whole: bool) -> float | int:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    number: float | int = 1 if whole else 1.5
    if isinstance(above, int | float) and number <= above:
        number = above + 1
    if isinstance(below, int | float) and number >= below:
        number = below - 1
    if isinstance(low, int | float):
        number = max(number, low)
    if isinstance(high, int | float):
        number = min(number, high)
    step = schema.get("multipleOf")
    if isinstance(step, int) and step > 0:
        number = math.ceil(number / step) * step
    return math.ceil(number) if whole else number
