"""Answers and the questions they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mcp_tasks.model import InputBook, InputRequest, TaskRecord
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.answers import MOST_VALUES, AnswerCheck, check_answers, turns_of, warn_of_schema
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


# What it costs

NAMES = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}


class Question(Mapping[str, Any]):
    """The params of a question, which count how often they are looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self._params = {"message": "?", "requestedSchema": NAMES}

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def _asks(params: Mapping[str, Any], method: str = "elicitation/create") -> TaskRecord:
    return make_record(inputs=InputBook().ask({"q": InputRequest(method=method, params=params)}))


def _accept(*names: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"names": list(names)}}


def test_an_answer_is_checked_once_however_often_the_task_is_read() -> None:
    question = Question()
    record, check = _asks(question), AnswerCheck({"q": _accept("a")}, Limits())
    check(record)
    looks = question.looks
    assert looks > 0
    for version in range(2, 5):
        check(record.but(version=version))
    assert question.looks == looks


def test_an_answer_is_checked_again_for_another_question() -> None:
    check = AnswerCheck({"q": _accept("a")}, Limits())
    check(_asks({"message": "?", "requestedSchema": NAMES}))
    with pytest.raises(RpcError, match="does not fit"):
        check(_asks({"message": "?", "requestedSchema": {"type": "object", "required": ["age"]}}))


def test_answers_with_too_many_values_are_refused_before_they_are_looked_at() -> None:
    question = Question()
    with pytest.raises(RpcError, match=r"may have 2,000 values in all") as refused:
        check_answers(_asks(question), {"q": _accept(*["a"] * MOST_VALUES)}, Limits())
    assert (refused.value.code, question.looks) == (-32602, 0)
    check_answers(_asks(question), {"q": _accept(*["a"] * (MOST_VALUES - 10))}, Limits())
    # What the server's own process says is its author's.
    check_answers(_asks(question), {"q": _accept(*["a"] * MOST_VALUES)})


def test_of_many_problems_no_more_is_told_than_how_many_there_are() -> None:
    roots: dict[str, list[dict[str, Any]]] = {"roots": [{} for _ in range(1_000)]}
    with pytest.raises(RpcError, match=r"does not fit: it has 1,000 problems"):
        check_answers(_asks({}, "roots/list"), {"q": roots}, Limits())
    with pytest.raises(RpcError, match=r"does not fit: roots\.0\.uri: Field required"):
        check_answers(_asks({}, "roots/list"), {"q": {"roots": [{}]}}, Limits())


@pytest.mark.parametrize(("names", "turns"), [(0, 1), (40, 1), (100, 3), (100_000, 41)])
def test_answers_count_as_requests_by_their_values(names: int, turns: int) -> None:
    assert turns_of({"q": _accept(*["a"] * names)}) == turns
