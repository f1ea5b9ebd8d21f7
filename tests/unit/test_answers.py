"""Answers and the questions they are for."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.core import InputBook, InputRequest
from mcp_tasks.protocol.answers import check_answers
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
