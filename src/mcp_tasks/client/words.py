"""KEY=VALUE words as the values that a schema asks for, and how those are written.

`key=value` is typed by the schema, a list is given by repeating its key, and `key:=JSON` is a value of any type.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, cast

from mcp_tasks.client.conversions import as_text
from mcp_tasks.client.examples import example_of
from mcp_tasks.client.fields import Field, field_lines, field_of, fields_of
from mcp_tasks.client.printable import on_one_line
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import BadValue


def read_words(schema: JsonObject, words: Iterable[str], *, known: JsonObject | None = None) -> dict[str, Any]:
    """The values that words give, each checked against its part of `schema`.

    Args:
        known: Values to begin with, which are not checked; words come on top of them.

    Raises:
        BadValue: Something is unknown, missing or wrong. The message says what, `names` which fields are missing or
            wrong, and `hint` what can be given.
    """
    try:
        return _read_all(schema, words, known or {})
    except BadValue as exc:
        raise BadValue(str(exc), names=exc.names, hint=describe_words(schema, exc.names)) from exc


def describe_words(schema: JsonObject, names: Sequence[str] = ()) -> str:
    """What can be given in words, a line each, and how that is written; fit for a terminal.

    Args:
        names: The fields that have to be written; as far as nothing is said, those that must be given.
    """
    fields = fields_of(schema)
    if not fields:
        return "It takes no arguments."
    wanted = [field for field in fields if (field.name in names if names else field.required)] or fields[:1]
    examples = [on_one_line(word).partition("=") for field in wanted for word in example_words(field)]
    line = " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, _, value in examples)
    return "\n".join(["It takes:", *field_lines(fields), *([f"Write it like this: {line}"] if line else [])])


def _read_all(schema: JsonObject, words: Iterable[str], known: JsonObject) -> dict[str, Any]:
    fields = {field.name: field for field in fields_of(schema)}
    texts: dict[str, list[str]] = {}
    values: dict[str, Any] = dict(known)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadValue(f"{word!r} is not KEY=VALUE")
        if name.endswith(":"):
            name = name[:-1]
            values[name] = _json_of(text, name)
            if name in fields:
                with _about(fields[name]):
                    fields[name].check(values[name])
        else:
            texts.setdefault(name, []).append(text)
    for name, given in texts.items():
        values[name] = _read(_field(name, fields, schema), given)
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise BadValue(f"missing: {', '.join(missing)}", names=missing)
    return values


def keys_of(words: Iterable[str]) -> set[str]:
    """The names of the fields that words give values to."""
    return {word.partition("=")[0].removesuffix(":") for word in words if "=" in word}


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
    with _about(field):
        return field.read(texts[0]) if len(texts) == 1 else field.read_many(texts)


@contextmanager
def _about(field: Field) -> Generator[None]:
    """Have a problem name the field that it is about."""
    try:
        yield
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
