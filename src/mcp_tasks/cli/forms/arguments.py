"""`key=value` words and `--json`, as the arguments that a schema asks for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.client.conversions import BadValue
from mcp_tasks.client.fields import Field, field_of, fields_of, shortened
from mcp_tasks.core.json import JsonObject


def read_arguments(schema: JsonObject, words: Sequence[str], json_text: str | None) -> dict[str, Any]:
    """The arguments that were typed, checked against `schema`.

    Args:
        words: `key=value`, typed by the schema; `key:=JSON`, taken as it is; or `-`, for JSON from stdin.
        json_text: An object to begin with; `-` for stdin. Words come on top of it.

    Raises:
        Problem: Something is unknown, missing or wrong; it says what.
    """
    if "-" in words:
        words, json_text = [word for word in words if word != "-"], "-"
    arguments = {} if json_text is None else read_object(json_text)
    fields = {field.name: field for field in fields_of(schema)}
    arguments.update(_read_words(words, fields, schema))
    missing = [field for field in fields.values() if field.required and field.name not in arguments]
    if missing:
        names = ", ".join(field.name for field in missing)
        raise Problem(f"missing: {names}", Exit.USAGE, hint=describe_fields(fields.values()))
    return arguments


def describe_fields(fields: Any) -> str:
    """What can be given, one line each."""
    listed: list[Field] = list(fields)
    if not listed:
        return "It takes no arguments."
    width = max(len(field.name) for field in listed)
    return "\n".join(["It takes:", *(f"  {field.name:<{width}}  {describe_field(field)}" for field in listed)])


def describe_field(field: Field) -> str:
    """What one field takes, in half a line."""
    default = (
        f", default {shortened(json.dumps(field.default))}" if field.has_default and field.default is not None else ""
    )
    about = f"; {field.description}" if field.description else ""
    return f"{field.wanted()}{', required' if field.required else ''}{default}{about}"


def _read_words(words: Sequence[str], fields: Mapping[str, Field], schema: JsonObject) -> dict[str, Any]:
    given: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise Problem(f"{word!r} is not KEY=VALUE", Exit.USAGE)
        if name.endswith(":"):
            values[name[:-1]] = _json_of(text, name[:-1])
        else:
            given.setdefault(name, []).append(text)
    for name, texts in given.items():
        field = _field(name, fields, schema)
        try:
            values[name] = field.read(texts[0]) if len(texts) == 1 else field.read_many(texts)
        except BadValue as exc:
            raise Problem(f"{name}: {exc}", Exit.USAGE) from exc
    return values


def _field(name: str, fields: Mapping[str, Field], schema: JsonObject) -> Field:
    if name in fields:
        return fields[name]
    if schema.get("additionalProperties") or not (fields or schema.get("type") == "object"):
        # The schema wants more than it names, or says nothing at all.
        return field_of(name, cast("JsonObject", {}), schema)
    near = get_close_matches(name, fields, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    raise Problem(f"unknown: {name}{guess}", Exit.USAGE, hint=describe_fields(fields.values()))


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; `-` reads it from stdin."""
    value = _json_of(sys.stdin.read() if text == "-" else text, "--json")
    if not isinstance(value, dict):
        raise Problem('--json takes an object, like \'{"key": "value"}\'', Exit.USAGE)
    return cast("dict[str, Any]", value)


def _json_of(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise Problem(f"{what} is not valid JSON: {exc}", Exit.USAGE) from exc
