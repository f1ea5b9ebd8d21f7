"""Values against schemas: what is enforced, what is not, and how much work it may be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mcp_tasks.protocol import schema as patterns
from mcp_tasks.protocol import schema as schemas
from mcp_tasks.protocol.schema import Schema, UnusableSchema, found, not_enforced, why_unusable

BACKTRACKING = "(a+)+$"
LETTERS = "a" * 50 + "!"

DOUBLING: dict[str, Any] = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)},
        "d40": {"type": "object"},
    },
    "$ref": "#/$defs/d0",
}


def problems(schema: Any, value: Any) -> Sequence[object]:
    return Schema(schema).problems(value)


def elapsed(schema: Any, value: Any) -> float:
    # Of this thread alone, whatever else the machine has to do.
    begun = time.thread_time()
    problems(schema, value)
    return time.thread_time() - begun


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("^[a-z]+$", "abc"), ("b", "abc"), (r"^\d{3}$", "123"), ("^$", ""), ("^.$", "\ud800"), (r"^\/x$", "/x")],
)
def test_a_pattern_that_occurs_is_found(pattern: str, text: str) -> None:
    assert found(pattern, text) is True


@pytest.mark.parametrize(("pattern", "text"), [("^[a-z]+$", "a1"), ("x", "abc"), (r"^\d+$", "1\n")])
def test_a_pattern_that_does_not_occur_is_not(pattern: str, text: str) -> None:
    assert found(pattern, text) is False


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"(a)\1", "[", "(a{1000}){1000}", "a" * 5_000, "(" * 500 + ")" * 500, "\ud800["]
)
def test_a_pattern_that_the_engine_lacks_is_neither_and_its_author_is_told_why(pattern: str) -> None:
    assert found(pattern, "b") is None
    why = why_unusable(pattern)
    assert why is not None
    assert len(why) < 200


def test_patterns_of_others_do_not_pile_up() -> None:
    for number in range(2_000):
        found(f"^{number}$", "7")
    assert patterns._compiled.cache_info().currsize <= 256  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": BACKTRACKING},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": BACKTRACKING},
        # With a dialect of its own, a part would go to the library's validator, and so to `re`.
        {"allOf": [{"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": BACKTRACKING}]},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": BACKTRACKING}},
        },
        {"propertyNames": {"pattern": BACKTRACKING}},
        {"patternProperties": {BACKTRACKING: False}, "additionalProperties": False},
        {"patternProperties": {BACKTRACKING: True}, "additionalProperties": {"type": "string"}},
        {"anyOf": [{"pattern": BACKTRACKING}, {"maxLength": 3}]},
        {"if": {"pattern": BACKTRACKING}, "else": False},
    ],
)
def test_no_place_of_a_pattern_backtracks(schema: dict[str, Any]) -> None:
    value = {LETTERS: 1} if {"propertyNames", "patternProperties"} & schema.keys() else LETTERS
    problems(schema, "warm")
    # Ends at all, that is: Python's `re` would take weeks.
    assert problems(schema, value)


def test_unevaluated_properties_are_not_enforced_and_do_not_backtrack() -> None:
    schema = {"patternProperties": {BACKTRACKING: True}, "unevaluatedProperties": False}
    assert problems(schema, {LETTERS: 1}) == []
    assert not_enforced(schema) == ["unevaluatedProperties is not enforced"]


def test_a_pattern_that_cannot_be_evaluated_is_not_enforced_and_said_to_be() -> None:
    schema = {"properties": {"a": {"pattern": "(?!x)y", "type": "string"}, "b": {"const": {"pattern": "(?=z)"}}}}
    assert problems(schema, {"a": "x"}) == []
    assert problems(schema, {"a": 1})
    (told,) = not_enforced(schema)
    assert "(?!x)y" in told
    assert "look-around" in told


def test_what_a_pattern_that_cannot_be_evaluated_may_allow_is_allowed() -> None:
    schema = {"patternProperties": {"(?=a)": {"type": "integer"}}, "additionalProperties": False}
    assert problems(schema, {"anything": "text"}) == []


def test_a_schema_bomb_is_too_much_work_and_not_a_hang() -> None:
    with pytest.raises(UnusableSchema, match="takes more than"):
        problems(DOUBLING, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": 12},
        {"properties": ["a"]},
        {"$ref": "https://example.com/schema"},
        {"$ref": "file:///etc/passwd"},
        {"allOf": [{"$id": "https://example.com/a", "$ref": "other"}]},
        {"$ref": "#nowhere"},
        {"$dynamicRef": "https://example.com/x"},
        {"allOf": [{"type": "integer"}] * 10_000},
        {"multipleOf": 0.01, "$comment": "of a number that no float holds"},
    ],
)
def test_a_schema_that_cannot_be_used_is_one_error(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchema) as caught:
        problems(schema, 10**400)
    assert len(str(caught.value)) < 700


def test_a_schema_nested_without_end_is_one_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    with pytest.raises(UnusableSchema):
        problems(schema, 1)


def test_equal_items_are_found_in_time_that_grows_with_their_number_alone() -> None:
    # Texts and objects by turns: the library cannot sort them, and compares each with each.
    def items(count: int) -> list[Any]:
        return [{"n": number} if number % 2 else str(number) for number in range(count)]

    schema = {"uniqueItems": True}
    few, many = (min(elapsed(schema, items(count)) for _ in range(3)) for count in (2_000, 32_000))
    # 16 times as many: 256 times the work if each were compared with each.
    assert many < 80 * few
    assert problems(schema, [*items(10), {"n": 1}])


EQUAL: Sequence[list[Any]] = ([1, 1.0], [{"a": [1]}, {"a": [1.0]}], [1.5, 1.5], ["a", "a"], [None, None])
UNEQUAL: Sequence[list[Any]] = (
    *([1, True], [0, False], [[], {}], ["1", 1], [None, "null"], [2**61 - 1, 0], [[["a"]], ["a"]]),
)


@pytest.mark.parametrize(("items", "equal"), [*((each, True) for each in EQUAL), *((each, False) for each in UNEQUAL)])
def test_items_are_equal_as_json_has_it(items: list[Any], equal: bool) -> None:
    assert bool(problems({"uniqueItems": True}, items)) is equal
    assert Draft202012Validator({"uniqueItems": True}).is_valid(items) is not equal


def test_a_problem_is_told_with_its_place_and_is_short() -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    told = Schema(schema).first_problem({"a": "x" * 100_000})
    assert told is not None
    assert told.startswith("$.a: 'xxx")
    assert len(told) < 1_100
    assert Schema(schema).first_problem({"a": 3}) is None


def test_no_message_of_an_unusable_schema_quotes_the_value() -> None:
    for schema in ({"type": 3}, {"$ref": "#/nowhere"}, {"multipleOf": 0.1}, DOUBLING):
        with pytest.raises(UnusableSchema) as caught:
            problems(schema, {"secret": 10**400} if schema is DOUBLING else 10**400)
        assert not re.search("secret|0000", str(caught.value))


@pytest.mark.parametrize(
    "value", [{}, {"a": 1}, {"a": "x"}, {"b": []}, {"b": [1, "2"]}, {"c": 3}, [], "text", None, 1.5]
)
@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "required": ["a"]},
        {"properties": {"a": {"type": "integer", "minimum": 1}}, "additionalProperties": False},
        {
            "properties": {"b": {"items": {"type": "integer"}, "minItems": 1}},
            "additionalProperties": {"type": "integer"},
        },
        {"patternProperties": {"^[ab]$": {"type": ["integer", "array"]}}, "additionalProperties": False},
        {"anyOf": [{"type": "object", "required": ["c"]}, {"type": "array"}, {"enum": [None, "text"]}]},
        {"oneOf": [{"type": "number"}, {"multipleOf": 0.5}]},
        {"not": {"type": "string", "pattern": "^t"}},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": ["object", "null"], "maxProperties": 1}}},
    ],
)
def test_otherwise_it_is_the_library(schema: dict[str, Any], value: Any) -> None:
    assert bool(problems(schema, value)) is not Draft202012Validator(schema).is_valid(value), json.dumps(schema)


def test_the_bounds_leave_room_for_a_large_form() -> None:
    fields = {f"field-{n}": {"type": "string", "pattern": "^[a-z]*$", "maxLength": 9, "title": "t"} for n in range(500)}
    schema = {"type": "object", "properties": fields, "required": sorted(fields)}
    assert problems(schema, dict.fromkeys(fields, "abc")) == []
    assert len(problems(schema, dict.fromkeys(fields, "ABC"))) == schemas.MOST_PROBLEMS
