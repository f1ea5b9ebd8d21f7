"""KEY=VALUE words as the values that a schema asks for, and how those are written.

`key=value` is typed by the schema, a list is given by repeating its key, and `key:=JSON` is taken as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from mcp_tasks.client.conversions import as_text
from mcp_tasks.client.examples import example_of
from mcp_tasks.client.fields import Field, field_of, fields_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import BadValue


def read_words(schema: JsonObject, words: Iterable[str], *, known: JsonObject | None = None) -> dict[str, Any]:
    """The values that words give, each checked against its part of `schema`.

    Args:
        known: Values to begin with, which are not checked; words come on top of them.

    Raises:
        BadValue: Something is unknown, missing or wrong. The message says what, and `names` which fields are missing or
            wrong.
    """
    fields = {field.name: field for field in fields_of(schema)}
    texts: dict[str, list[str]] = {}
    values: dict[str, Any] = dict(known or {})
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadValue(f"{word!r} is not KEY=VALUE")
        if name.endswith(":"):
            values[name[:-1]] = _json_of(text, name[:-1])
        else:
            texts.setdefault(name, []).append(text)
    for name, given in texts.items():
        values[name] = _read(_field(name, fields, schema), given)
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise BadValue(f"missing: {', '.join(missing)}", names=missing)
    return values


def example_words(field: Field) -> list[str]:
    """Words that give a field a value that it takes; none if no such value comes to mind."""
    try:
        value = example_of(field)
    except BadValue:
        return []
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    if isinstance(value, dict) or not items or any(isinstance(item, list | dict) for item in items):
        return [f"{field.name}:={json.dumps(value)}"]
    texts = [as_text(item) for item in items]
    try:
        is_plain = _read(field, texts) == value
    except BadValue:
        is_plain = False
    return [f"{field.name}={text}" for text in texts] if is_plain else [f"{field.name}:={json.dumps(value)}"]


def _read(field: Field, texts: Sequence[str]) -> Any:
    try:
        return field.read(texts[0]) if len(texts) == 1 else field.read_many(texts)
    except BadValue as exc:
        raise BadValue(f"{field.name}: {exc}", names=[field.name]) from exc


def _field(name: str, fields: Mapping[str, Field], schema: JsonObject) -> Field:
    if name in fields:
        return fields[name]
    if schema.get("additionalProperties") or not (fields or schema.get("type") == "object"):
        # The schema wants more than it names, or says nothing at all.
        return field_of(name, cast("JsonObject", {}), schema)
    near = get_close_matches(name, fields, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    raise BadValue(f"unknown: {name}{guess}")


def _json_of(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise BadValue(f"{name} is not valid JSON: {exc}", names=[name]) from exc
