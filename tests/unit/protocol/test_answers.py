"""Answers and the questions they are for."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.core import InputBook, InputRequest
from mcp_tasks.protocol.answers import check_answers, warn_of_schema
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.testing import make_record


def _check(schema: Any, content: Any) -> None:
    question = InputRequest(method="elicitation/create", params={"message": "?", "requestedSchema": schema})
    record = make_record(inputs=InputBook().ask({"q": question}))
    check_answers(record, {"q": {"action": "accept", "content": content}})


def test_content_that_does_not_fit_its_schema_is_refused() -> None:
    with pytest.raises(RpcError, match="does not fit"):
        _check({"type": "object", "required": ["name"]}, {})


def test_a_refusal_that_quotes_what_is_not_valid_unicode_is_valid_all_the_same() -> None:
    with pytest.raises(RpcError, match="does not fit") as refused:
        _check({"type": "object", "additionalProperties": {"type": "string"}}, {"half \udcff": 5})
    assert refused.value.error.message.encode()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "properties": {"name": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"name": {"$ref": "http://127.0.0.1:9/elsewhere.json"}}},
    ],
    ids=["no type", "no such place", "elsewhere"],
)
def test_a_question_with_a_bad_schema_can_be_answered(schema: Any) -> None:
    _check(schema, {"name": "Ada"})


def test_a_pattern_that_backtracks_in_other_engines_is_answered_at_once() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "(a+)+$"}}}
    with pytest.raises(RpcError, match="does not fit"):
        _check(schema, {"name": "a" * 50 + "!"})
    _check(schema, {"name": "a" * 50})


@pytest.mark.parametrize(
    "content",
    [{"price": 10**400, "name": 5}, {"price": 1e400, "name": 5}, {"name": 5, **{f"x{n}": 1 for n in range(30_000)}}],
    ids=["no float holds it", "infinite", "a great deal"],
)
def test_an_answer_that_cannot_be_checked_does_not_get_by(content: Any) -> None:
    price = {"type": "number", "multipleOf": 0.01}
    schema = {
        "type": "object",
        "patternProperties": {"^x": {"type": "integer"}},
        "properties": {"price": price, "name": {"type": "string"}},
    }
    with pytest.raises(RpcError, match="does not fit: it cannot be checked"):
        _check(schema, content)


def test_what_is_wrong_with_a_schema_is_logged_without_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    _check({"type": "object", "properties": {"name": {"type": "nonsense"}}}, {"name": "the secret"})
    assert "an answer is not checked" in caplog.text
    assert "the secret" not in caplog.text


def test_the_author_is_told_once_of_a_pattern_that_is_not_enforced(caplog: pytest.LogCaptureFixture) -> None:
    params = {"requestedSchema": {"properties": {"name": {"pattern": "(?=told once)"}}}}
    for _ in range(3):
        warn_of_schema(params)
    (record,) = caplog.records
    assert "look-around" in record.getMessage()
    _check({"properties": {"name": {"pattern": "(?=told once)"}}}, {"name": "anything"})


def test_a_form_without_a_schema_takes_whatever_it_is_answered_with() -> None:
    question = InputRequest(method="elicitation/create", params={"message": "?"})
    record = make_record(inputs=InputBook().ask({"q": question}))
    check_answers(record, {"q": {"action": "accept", "content": {"name": 5}}})


def test_a_schema_that_nests_too_deeply_to_be_looked_at_stops_no_question(caplog: pytest.LogCaptureFixture) -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    warn_of_schema({"requestedSchema": schema})
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "says"), [({"action": "perhaps"}, "action: "), ({}, "action: "), ("yes", "it: ")], ids=str
)
def test_an_answer_of_another_shape_is_refused_with_the_part_that_is_wrong(answer: Any, says: str) -> None:
    question = InputRequest(method="elicitation/create", params={"message": "?"})
    record = make_record(inputs=InputBook().ask({"q": question}))
    with pytest.raises(RpcError, match=f"The answer to 'q' does not fit: {says}"):
        check_answers(record, {"q": answer})
