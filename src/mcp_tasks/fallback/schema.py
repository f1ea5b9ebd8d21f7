"""The output schema of a tool, made to allow the handle as well.

Clients refuse a result that does not fit the schema which they were shown, so a tool that may answer with a handle says
so. The tool's own schema moves one level down, and what in it pointed at its root has to follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject

HANDLE_SCHEMA: Final[JsonObject] = MappingProxyType(
    {
        "type": "object",
        "title": "StillRunning",
        "description": "The tool has not finished: this is not its result. The text says how to get that.",
        "properties": {
            "taskId": {"type": "string", "description": "The id of the running task."},
            "status": {"type": "string", "description": "Where the task stands."},
            "statusMessage": {"type": "string", "description": "The same, for people."},
        },
        "required": ["taskId", "status", "statusMessage"],
    }
)
"""What `words` gives as the structured content of a call that was answered before its tool had finished."""

_OWN: Final = "#/anyOf/0"
"""Where the tool's own schema is in the wider one."""

_REFERENCES: Final = ("$ref", "$dynamicRef")

_DATA: Final = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are data, where a `$ref` is a word like any other."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose values hold schemas by names, which may be anything: a property can be called `default`."""


def widened(schema: JsonObject) -> dict[str, Any]:
    """A schema that allows what this one does, and the handle. The one that is given stays as it is."""
    own = _moved(schema)
    wider: dict[str, Any] = {}
    if (dialect := own.pop("$schema", None)) is not None:
        # Only the root of a document may say which JSON Schema it is written in.
        wider["$schema"] = dialect
    if own.get("type") == "object":
        # Before 2026-07-28 the root of every output schema says so, and clients insist on it.
        wider["type"] = "object"
    return {**wider, "anyOf": [own, _moved(HANDLE_SCHEMA)]}


def _moved(schema: JsonObject) -> dict[str, Any]:
    """A copy of the schema in which local references lead to where it is going to be."""
    own_id = schema.get("$id")
    if isinstance(own_id, str) and not own_id.startswith("#"):
        # A document of its own, wherever it is put: what it calls its root still is.
        return dict(schema)
    return {name: _keyword(name, value) for name, value in schema.items()}


def _keyword(name: str, value: Any) -> Any:
    if name in _DATA:
        return value
    if name in _REFERENCES and isinstance(value, str):
        # The root, or a path from it. `#name` is an anchor, and is found wherever it is.
        return f"{_OWN}{value[1:]}" if value == "#" or value.startswith("#/") else value
    if name in _BY_NAME and isinstance(value, Mapping):
        return {key: _subschema(item) for key, item in cast("JsonObject", value).items()}
    return _subschema(value)


def _subschema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _moved(cast("JsonObject", value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_subschema(item) for item in cast("Sequence[Any]", value)]
    return value
