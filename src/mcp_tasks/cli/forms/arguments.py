"""`key=value` words and `--args`, as the arguments that a schema asks for, and how those are written."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any, cast

from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.client.fields import Field, fields_of
from mcp_tasks.client.words import example_words, read_words
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import BadValue


def read_arguments(schema: JsonObject, words: Sequence[str], json_text: str | None) -> dict[str, Any]:
    """The arguments that were typed, checked against `schema`.

    Args:
        words: `key=value`, typed by the schema; `key:=JSON`, taken as it is; or `-`, for JSON from stdin.
        json_text: An object to begin with; `-` for stdin. Words come on top of it.

    Raises:
        Problem: Something is unknown, missing or wrong; it says what, and how to write it.
    """
    if "-" in words:
        words, json_text = [word for word in words if word != "-"], "-"
    known = {} if json_text is None else read_object(json_text)
    try:
        return read_words(schema, words, known=known)
    except BadValue as exc:
        raise Problem(str(exc), Exit.USAGE, hint=describe_arguments(schema, exc.names)) from exc


def describe_arguments(schema: JsonObject, names: Sequence[str] = ()) -> str:
    """What can be given, one line each, and how that is written.

    Args:
        names: Those that have to be written; as far as nothing is said, those that must be given.
    """
    fields = fields_of(schema)
    if not fields:
        return "It takes no arguments."
    width = max(len(field.name) for field in fields)
    listed = [f"  {one_line(field.name):<{width}}  {one_line(field.describe())}" for field in fields]
    wanted = [field for field in fields if (field.name in names if names else field.required)] or fields[:1]
    return "\n".join(filter(None, ["It takes:", *listed, _how_to_write(wanted)]))


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; `-` reads it from stdin."""
    try:
        value = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as exc:
        what = "what stdin has" if text == "-" else "--args"
        raise Problem(f"{what} is not valid JSON: {exc}", Exit.USAGE) from exc
    if not isinstance(value, dict):
        raise Problem('--args takes an object, like \'{"key": "value"}\'', Exit.USAGE)
    return cast("dict[str, Any]", value)


def _how_to_write(fields: Sequence[Field]) -> str:
    """One line that gives these fields, to be copied."""
    words = [one_line(word).partition("=") for field in fields for word in example_words(field)]
    line = " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, _, value in words)
    return f"Write it like this: {line}" if line else ""
