"""Output schemas of many shapes, each with results that fit it and results that do not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HANDLE: Mapping[str, Any] = {"taskId": "t", "status": "working", "statusMessage": "3 of 7"}
NOT_HANDLES: tuple[Any, ...] = (
    {"taskId": "t", "status": "working"},
    {"taskId": 7, "status": "working", "statusMessage": "running"},
    {"task_id": "t", "status": "working", "statusMessage": "running"},
)
"""Nearly a handle each. A schema that asks for nothing takes them all the same."""

_NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
    "required": ["name"],
    "additionalProperties": False,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A schema, and results by whether they fit it."""

    schema: dict[str, Any]
    good: tuple[Any, ...]
    bad: tuple[Any, ...]


SHAPES: Mapping[str, Shape] = {
    "a plain str": Shape(
        schema={
            "type": "object",
            "properties": {"result": {"title": "Result", "type": "string"}},
            "required": ["result"],
            "title": "renderOutput",
        },
        good=({"result": "done"},),
        bad=({"result": 3}, {}, *NOT_HANDLES),
    ),
    "a root that is a reference": Shape(
        schema={"$ref": "#/$defs/Node", "$defs": {"Node": _NODE}},
        good=({"name": "a", "next": {"name": "b"}},),
        bad=({"name": "a", "next": {"nam": "b"}}, *NOT_HANDLES),
    ),
    "a reference to the root": Shape(
        schema={
            "type": "object",
            "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        # What is below the root is the tool's own, and never a handle.
        good=({"name": "a", "next": {"name": "b", "next": {"name": "c"}}},),
        bad=({"name": "a", "next": {"name": 2}}, {"name": "a", "next": dict(HANDLE)}, *NOT_HANDLES),
    ),
    "draft 7 with definitions": Shape(
        schema={
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"size": {"$ref": "#/definitions/Size"}},
            "required": ["size"],
            "definitions": {"Size": {"type": "integer", "minimum": 1}},
        },
        good=({"size": 2},),
        bad=({"size": 0}, {"size": "2"}, *NOT_HANDLES),
    ),
    "properties called like keywords": Shape(
        schema={
            "type": "object",
            "properties": {
                "default": {"$ref": "#/$defs/Text"},
                "const": {"$ref": "#/$defs/Text"},
                "enum": {"$ref": "#/$defs/Text"},
                "$id": {"$ref": "#/$defs/Text"},
                "$ref": {"$ref": "#/$defs/Text"},
                "properties": {"$ref": "#/$defs/Text"},
            },
            "required": ["default"],
            "$defs": {"Text": {"type": "string"}},
        },
        good=({"default": "a", "const": "b", "enum": "c", "$id": "d", "$ref": "e", "properties": "f"},),
        bad=({"default": 1}, {"default": "a", "const": 1}, {"default": "a", "$ref": 1}, {"default": "a", "$id": 1}),
    ),
    "data that looks like a reference": Shape(
        schema={
            "type": "object",
            "properties": {
                "link": {"const": {"$ref": "#/$defs/Text"}},
                "one": {"enum": [{"$ref": "#"}, "#/$defs/Text"]},
                "text": {"$ref": "#/$defs/Text", "default": {"$ref": "#"}, "examples": [{"$ref": "#"}]},
            },
            "required": ["link"],
            "$defs": {"Text": {"type": "string"}},
        },
        good=({"link": {"$ref": "#/$defs/Text"}, "one": {"$ref": "#"}, "text": "a"},),
        bad=({"link": {"$ref": "#/anyOf/0/$defs/Text"}}, {"link": {"$ref": "#/$defs/Text"}, "text": 1}),
    ),
    "an anchor": Shape(
        schema={
            "type": "object",
            "properties": {"size": {"$ref": "#size"}},
            "required": ["size"],
            "$defs": {"Size": {"$anchor": "size", "type": "integer"}},
        },
        good=({"size": 2},),
        bad=({"size": "2"}, *NOT_HANDLES),
    ),
    "an id of its own": Shape(
        schema={
            "$id": "https://example.com/frame.json",
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"size": {"$ref": "#/$defs/Size"}, "again": {"$ref": "#"}},
            "required": ["size"],
            "$defs": {"Size": {"type": "integer"}},
        },
        good=({"size": 2, "again": {"size": 3}},),
        bad=({"size": "2"}, {"size": 2, "again": {}}, {"size": 2, "again": dict(HANDLE)}, *NOT_HANDLES),
    ),
    "a definition with an id of its own": Shape(
        schema={
            "type": "object",
            "properties": {"size": {"$ref": "https://example.com/size.json"}},
            "required": ["size"],
            "$defs": {
                "Size": {
                    "$id": "https://example.com/size.json",
                    "properties": {"width": {"$ref": "#/$defs/Number"}},
                    "$defs": {"Number": {"type": "integer"}},
                }
            },
        },
        good=({"size": {"width": 2}},),
        bad=({"size": {"width": "2"}}, *NOT_HANDLES),
    ),
    "a union": Shape(
        schema={
            "type": "object",
            "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
            "$defs": {
                "A": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                "B": {"type": "object", "properties": {"b": {"$ref": "#/anyOf/0"}}, "required": ["b"]},
            },
        },
        good=({"a": "x"}, {"b": {"a": "x"}}),
        bad=({"b": {"b": {}}}, {"c": 1}, *NOT_HANDLES),
    ),
    "a list, as the newest version allows": Shape(
        schema={"type": "array", "items": {"$ref": "#/$defs/Text"}, "$defs": {"Text": {"type": "string"}}},
        good=(["a"], []),
        bad=([1], {}, *NOT_HANDLES),
    ),
    "anything": Shape(schema={}, good=({"a": 1}, *NOT_HANDLES), bad=()),
}
