"""Values against schemas, and answers against their questions: what is enforced, and how much work it may be."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mcp_tasks.errors import AnswerRefused
from mcp_tasks.model import InputBook, InputRequest, TaskRecord
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.answers import MOST_VALUES, check_answers, misfits, take_answer, warn_of_schema
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.schema import MOST_PROBLEMS, Schema, UnusableSchema, found, is_tame, not_enforced, why_unusable
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.testing import make_record
from tests.unit.running import MeddledStore, launch, ok, question, running, until_asking, until_final

BACKTRACKING = "(a+)+$"
LETTERS = "a" * 50 + "!"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def fan(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """References that fan out: so many levels of them are two to the power of so many visits."""
    definitions: dict[str, Any] = {
        f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "integer"}}}


def nested(depth: int, keyword: str = "not") -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {keyword: schema}
    return schema


# Patterns

UNUSABLE = (r"(?=a)b", r"(a)\1", "[", "(a{1000}){1000}", "a" * 5_000, "(" * 500 + ")" * 500, "\ud800[")


@pytest.mark.parametrize(
    ("pattern", "text", "occurs"),
    [
        *(("^[a-z]+$", "abc", True), ("b", "abc", True), (r"^\d{3}$", "123", True), ("^$", "", True)),
        *(("^.$", "\ud800", True), (r"^\/x$", "/x", True), ("^[a-z]+$", "a1", False), (r"^\d+$", "1\n", False)),
        *((pattern, "b", None) for pattern in UNUSABLE),
    ],
)
def test_a_pattern_is_found_or_not_or_its_author_is_told_why_it_cannot_be(
    pattern: str, text: str, occurs: bool | None
) -> None:
    assert found(pattern, text) is occurs
    why = why_unusable(pattern)
    assert (why is None) == (occurs is not None)
    assert why is None or len(why) < 200


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": BACKTRACKING},
        {"$schema": DRAFT, "pattern": BACKTRACKING},
        # With a dialect of its own, a part would go to the library's validator, and so to `re`.
        {"allOf": [{"$schema": DRAFT, "pattern": BACKTRACKING}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$schema": DRAFT, "pattern": BACKTRACKING}}},
        {"propertyNames": {"pattern": BACKTRACKING}},
        {"patternProperties": {BACKTRACKING: False}, "additionalProperties": False},
        {"patternProperties": {BACKTRACKING: True}, "additionalProperties": {"type": "string"}},
        {"anyOf": [{"pattern": BACKTRACKING}, {"maxLength": 3}]},
        {"if": {"pattern": BACKTRACKING}, "else": False},
    ],
)
def test_no_place_of_a_pattern_backtracks(schema: dict[str, Any]) -> None:
    value = {LETTERS: 1} if {"propertyNames", "patternProperties"} & schema.keys() else LETTERS
    # Ends at all, that is: Python's `re` would take weeks.
    assert Schema(schema).problems(value)


def test_what_cannot_be_enforced_is_allowed_and_said_to_be() -> None:
    unevaluated = {"patternProperties": {BACKTRACKING: True}, "unevaluatedProperties": False}
    assert Schema(unevaluated).problems({LETTERS: 1}) == []
    assert not_enforced(unevaluated) == ["unevaluatedProperties is not enforced"]
    around = {"properties": {"a": {"pattern": "(?!x)y", "type": "string"}, "b": {"const": {"pattern": "(?=z)"}}}}
    assert Schema(around).problems({"a": "x"}) == []
    assert Schema(around).problems({"a": 1})
    [told] = not_enforced(around)
    assert "(?!x)y" in told
    assert "look-around" in told
    names = {"patternProperties": {"(?=a)": {"type": "integer"}}, "additionalProperties": False}
    assert Schema(names).problems({"anything": "text"}) == []


# Schemas of others


@pytest.mark.parametrize(
    "schema",
    [
        *({"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {"$ref": "#nowhere"}),
        *({"$ref": "#/x"}, {"$ref": "#/allOf/7", "allOf": [True]}, {"$ref": "other"}),
        *({"type": 12}, {"properties": ["a"]}, {"$ref": "https://example.com/schema"}, {"$ref": "file:///etc/passwd"}),
        *({"allOf": [{"$id": "https://example.com/a", "$ref": "other"}]}, {"$dynamicRef": "https://example.com/x"}),
        *({"allOf": [{"type": "integer"}] * 10_000}, {"multipleOf": 0.01}, fan(40), nested(5_000)),
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_a_schema_that_cannot_be_used_is_one_error_that_quotes_no_value(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchema) as caught:
        Schema(schema).problems(10**400)
    assert len(str(caught.value)) < 700
    assert not re.search("0000", str(caught.value))


TAME: list[tuple[Any, bool]] = [
    *(({}, True), (True, True), (fan(5), True), ({"$ref": "#/$defs/n", "$defs": {"n": {"enum": [{}]}}}, True)),
    ({"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]}, True),
    *(({"$ref": "https://example.com/a.json"}, False), (fan(30), False), ({"$ref": "#"}, False)),
    *(({"pattern": "a"}, False), ({"items": {"$ref": "#"}}, False), (nested(5_000, "items"), False)),
    ({"$ref": 7}, False),
]


@pytest.mark.parametrize(("schema", "tame"), TAME, ids=range(len(TAME)))
def test_only_an_ordinary_schema_is_left_to_a_validator_that_works_as_long_as_it_asks(schema: Any, tame: bool) -> None:
    assert is_tame(schema) is tame


ITEMS: list[tuple[list[Any], bool]] = [
    *(([1, 1.0], True), ([{"a": [1]}, {"a": [1.0]}], True), ([1.5, 1.5], True), (["a", "a"], True)),
    *(([None, None], True), ([1, True], False), ([0, False], False), ([[], {}], False), (["1", 1], False)),
    *(([None, "null"], False), ([2**61 - 1, 0], False), ([[["a"]], ["a"]], False)),
    # The library compares each of these with each: a thousand million comparisons.
    ([{"n": number} if number % 2 else str(number) for number in range(32_000)], False),
]


@pytest.mark.parametrize(("items", "equal"), ITEMS, ids=lambda value: str(value)[:30])
def test_items_are_equal_as_json_has_it(items: list[Any], equal: bool) -> None:
    assert bool(Schema({"uniqueItems": True}).problems(items)) is equal
    if len(items) < 10:
        assert Draft202012Validator({"uniqueItems": True}).is_valid(items) is not equal


VALUES: tuple[Any, ...] = ({}, {"a": 1}, {"a": "x"}, {"b": []}, {"b": [1, "2"]}, {"c": 3}, [], "text", None, 1.5)


@pytest.mark.parametrize(
    "schema",
    [
        *({}, {"type": "object", "required": ["a"]}, {"not": {"type": "string", "pattern": "^t"}}),
        {"properties": {"a": {"type": "integer", "minimum": 1}}, "additionalProperties": False},
        {"properties": {"b": {"items": {"type": "integer"}, "minItems": 1}}, "additionalProperties": {"type": "null"}},
        {"patternProperties": {"^[ab]$": {"type": ["integer", "array"]}}, "additionalProperties": False},
        {"anyOf": [{"type": "object", "required": ["c"]}, {"type": "array"}, {"enum": [None, "text"]}]},
        {"oneOf": [{"type": "number"}, {"multipleOf": 0.5}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": ["object", "null"], "maxProperties": 1}}},
        {"$ref": "#/$defs/x~1y~0z/anyOf/1", "$defs": {"x/y~z": {"anyOf": [{}, {"type": "array"}]}}},
    ],
)
def test_otherwise_it_is_the_library(schema: dict[str, Any]) -> None:
    for value in VALUES:
        is_valid = Draft202012Validator(schema).is_valid(value)
        assert bool(Schema(schema).problems(value)) is not is_valid, json.dumps([schema, value])


def test_the_bounds_leave_room_for_a_large_form_and_a_problem_is_short() -> None:
    fields = {f"field-{n}": {"type": "string", "pattern": "^[a-z]*$", "maxLength": 9, "title": "t"} for n in range(500)}
    form = Schema({"type": "object", "properties": fields, "required": sorted(fields)})
    assert form.problems(dict.fromkeys(fields, "abc")) == []
    assert len(form.problems(dict.fromkeys(fields, "ABC"))) == MOST_PROBLEMS
    whole = Schema({"properties": {"a": {"type": "integer"}}})
    told = whole.first_problem({"a": "x" * 100_000})
    assert told is not None
    assert told.startswith("$.a: 'xxx")
    assert len(told) < 1_100
    assert whole.first_problem({"a": 3}) is None


# Answers. What a client is told of one that does not fit: tests/spec/test_update.py and tests/peers.


def asks(schema: Any, method: str = "elicitation/create") -> TaskRecord:
    params = {"message": "?", "requestedSchema": schema}
    return make_record(inputs=InputBook().ask({"q": InputRequest(method=method, params=params)}))


def accept(content: Any) -> dict[str, Any]:
    return {"q": {"action": "accept", "content": content}}


FORM: Mapping[str, Any] = {
    "type": "object",
    "patternProperties": {"^x": {"type": "integer"}},
    "properties": {"price": {"type": "number", "multipleOf": 0.01}, "name": {"type": "string"}},
}
NAMES = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("schema", "content", "says"),
    [
        (FORM, {"name": 5}, "does not fit"),
        ({"type": "object", "required": ["name"]}, {}, "does not fit"),
        (FORM, {"price": 10**400, "name": 5}, "it cannot be checked"),
        (FORM, {"price": 1e400, "name": 5}, "it cannot be checked"),
        (FORM, {"name": 5, **{f"x{n}": 1 for n in range(30_000)}}, "it cannot be checked"),
        # What is quoted is valid Unicode all the same.
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"half \udcff": 5}, "half \ufffd"),
        # A form that is none does not keep its question from being answered.
        ({"type": "nonsense"}, {"name": "Ada"}, None),
        ({"type": "object", "properties": {"name": {"$ref": "#/nowhere"}}}, {"name": "Ada"}, None),
        ({"type": "object", "properties": {"name": {"$ref": "http://127.0.0.1:9/a.json"}}}, {"name": "Ada"}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_answer_fits_its_form_or_is_refused(
    schema: Any, content: Any, says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if says is None:
        check_answers(asks(schema), accept(content))
    else:
        with pytest.raises(RpcError, match=says) as refused:
            check_answers(asks(schema), accept(content))
        assert refused.value.error.message.encode()
    assert "Ada" not in caplog.text


def test_answers_with_too_many_values_are_refused_and_of_many_problems_the_number_is_told() -> None:
    many = accept({"names": ["a"] * MOST_VALUES})
    with pytest.raises(RpcError, match=r"may have 2,000 values in all") as refused:
        check_answers(asks(NAMES), many, Limits())
    assert refused.value.code == -32602
    check_answers(asks(NAMES), accept({"names": ["a"] * (MOST_VALUES - 10)}), Limits())
    # What the server's own process says is its author's.
    check_answers(asks(NAMES), many)
    twice = make_record(inputs=InputBook().ask(dict.fromkeys("pq", InputRequest(method="roots/list", params={}))))
    half = {"roots": [{"uri": "file:///a"}] * 1_000}
    together = misfits(twice, {"p": half, "q": half}, Limits())
    assert all(each is not None and "2,000 values in all" in str(each) for each in together.values())
    for count, says in ((1_000, "it has 1,000 problems"), (1, r"roots\.0\.uri: Field required")):
        with pytest.raises(RpcError, match=f"does not fit: {says}"):
            check_answers(asks({}, "roots/list"), {"q": {"roots": [{}] * count}}, Limits())


def test_an_author_is_warned_of_a_form_that_is_not_enforced_and_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_schema({"requestedSchema": FORM})
    assert caplog.messages == []
    warn_of_schema({"requestedSchema": {"properties": {"a": {"pattern": "(?=z)"}}}})
    [line] = caplog.messages
    assert "(?=z)" in line


# Answers that are given once, as those of older clients are


async def _asking(run: Run) -> Ending:
    try:
        return ok(await run.ask(question("Sure?")))
    except AnswerRefused as exc:
        return ok(str(exc))


@pytest.mark.parametrize("what", ["cannot be stored", "is not stored yet", "came to nothing"])
async def test_an_answer_that_cannot_be_written_reaches_its_tool_all_the_same(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp_tasks.protocol.answers")
    store, answer = MeddledStore(), {"action": "decline"}
    async with running(_asking, store=store) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        if what == "came to nothing":
            gone = make_record(inputs=InputBook().ask({"elicitation-1": question("Sure?")}))
            await take_answer(lambda: runtime, gone, "elicitation-1", answer)
        elif what == "is not stored yet":
            store.go_away("save", times=1)
        odd: dict[str, Any] = {"action": "accept", "content": {"a": {1, 2}}}
        await take_answer(lambda: runtime, task, "elicitation-1", odd if what == "cannot be stored" else answer)
        ended = await until_final(runtime, task)
    assert ended.result is not None
    assert (what in ended.result["value"]) if what == "cannot be stored" else ended.result["value"] == answer
    assert what in caplog.text
