"""A wider schema takes what the tool's own takes, and the handle, and nothing else: to the validators of clients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonschema.validators import validator_for
from referencing import Registry

from mcp_tasks.fallback.service import HANDLE_SCHEMA, widened
from tests.fallback.schemas import HANDLE, SHAPES, Shape


def takes(schema: dict[str, Any], value: Any) -> bool:
    """Whether a client of the Python SDK would: this is how it checks structured content."""
    validator = validator_for(schema)
    validator.check_schema(schema)
    return validator(schema, registry=Registry()).is_valid(value)


@pytest.mark.parametrize("name", SHAPES)
def test_a_wider_schema_takes_what_the_tools_own_takes_and_the_handle(name: str) -> None:
    shape = SHAPES[name]
    wider = widened(shape.schema)
    assert [takes(wider, value) for value in shape.good] == [True] * len(shape.good)
    assert [takes(wider, value) for value in shape.bad] == [False] * len(shape.bad)
    assert takes(wider, dict(HANDLE))


@pytest.mark.parametrize("name", SHAPES)
def test_the_examples_are_what_they_say(name: str) -> None:
    shape: Shape = SHAPES[name]
    assert all(takes(shape.schema, value) for value in shape.good)
    assert not any(takes(shape.schema, value) for value in shape.bad)


@pytest.mark.parametrize("name", SHAPES)
def test_the_schema_that_is_given_stays_as_it_is(name: str) -> None:
    schema = SHAPES[name].schema
    before = copy.deepcopy(schema)
    wider = widened(schema)
    assert schema == before
    # Nor does it become part of what somebody else may change.
    wider["anyOf"][0].clear()
    assert schema == before


@pytest.mark.parametrize("name", SHAPES)
def test_the_root_says_that_it_is_an_object_where_the_tools_own_does(name: str) -> None:
    schema = SHAPES[name].schema
    assert (widened(schema).get("type") == "object") == (schema.get("type") == "object")


def test_the_dialect_is_named_at_the_root_and_nowhere_else() -> None:
    wider = widened({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})
    assert wider["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert wider["anyOf"][0] == {"type": "object"}
    assert "$schema" not in widened({"type": "object"})


def test_each_wider_schema_has_a_handle_of_its_own() -> None:
    widened({})["anyOf"][1]["properties"].clear()
    assert set(HANDLE_SCHEMA["properties"]) == {"taskId", "status", "statusMessage"}
