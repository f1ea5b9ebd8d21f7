"""What is asked, for a person."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.client import (
    AmbiguousAnswer,
    BadValue,
    NoOpenQuestion,
    Question,
    answers_to,
    questions_for,
    questions_of,
)


def question(**params: Any) -> Question:
    [asked] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    return asked


def test_a_form_is_described_with_its_fields_in_columns() -> None:
    properties = {"a": {"type": "integer"}, "long\nname": {"type": "boolean", "description": "to\x1b[2J all"}}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    assert question(message="Well?\nWhich?\x07", requestedSchema=schema).describe() == [
        "Well?",
        "Which?",
        "  a          whole number, required",
        "  long name  yes or no; to[2J all",
    ]


def test_a_page_is_described_with_its_host_and_what_to_know_of_it() -> None:
    assert question(message="Sign in", mode="url", url="http://evil.example/x").describe() == [
        "Sign in",
        "  visit: http://evil.example/x",
        "  host:  evil.example",
        "  ! This is not an https address: others can read along, and change it. It is not opened from here.",
    ]


@pytest.mark.parametrize("params", [None, [1], "x"])
def test_params_that_are_no_object_are_none(params: Any) -> None:
    [asked] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    assert (asked.params, asked.fields, asked.url) == ({}, [], None)


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_words_are_an_answer_that_fits_the_form() -> None:
    asked = question(message="Who?", requestedSchema=NAME)
    assert asked.answer(["name=Ann"]) == {"action": "accept", "content": {"name": "Ann"}}
    assert asked.answer(known={"name": "Ann"}) == {"action": "accept", "content": {"name": "Ann"}}
    assert asked.answer(action="decline") == {"action": "decline"}
    with pytest.raises(BadValue, match="missing: name"):
        asked.answer()


def test_a_page_takes_no_words_and_a_model_only_a_whole_result() -> None:
    assert question(mode="url", url="https://x.example").answer() == {"action": "accept"}
    [asked] = questions_of({"q": {"method": "sampling/createMessage", "params": {}}}, "tool")
    assert asked.answer(known={"role": "assistant"}) == {"role": "assistant"}
    with pytest.raises(BadValue, match="a whole result"):
        asked.answer(["name=Ann"])


def test_words_are_meant_for_the_questions_that_have_their_fields() -> None:
    name, other = question(requestedSchema=NAME), question(message="Sure?")
    assert questions_for(["name=Ann"], [name, other]) == [name]
    assert questions_for(['name:="Ann"'], [name, other]) == [name]
    assert questions_for(["age=3"], [name, other]) == [name, other]
    assert questions_for([], [name, other]) == [name, other]


TWO = {
    "q1": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": NAME}},
    "q2": {"method": "elicitation/create", "params": {"message": "Sure?"}},
}


def test_a_question_is_chosen_by_its_key() -> None:
    who, sure = asked = questions_of(TWO, "tool")
    assert questions_for(["name=Ann"], asked, key="q2") == [sure]
    assert questions_for([], asked, key="q1") == [who]
    with pytest.raises(NoOpenQuestion, match="no open question 'q3'") as raised:
        questions_for([], asked, key="q3")
    assert raised.value.hint == "Open questions: q1, q2"


def test_one_question_is_answered_and_several_are_refused_at_once() -> None:
    who, sure = questions_of(TWO, "tool")
    assert answers_to([who], ["name=Ann"]) == {"q1": {"action": "accept", "content": {"name": "Ann"}}}
    assert answers_to([who, sure], action="decline") == {"q1": {"action": "decline"}, "q2": {"action": "decline"}}
    with pytest.raises(AmbiguousAnswer, match="several open questions") as raised:
        answers_to([who, sure], ["name=Ann"])
    assert raised.value.hint.splitlines()[:2] == ["q1:", "Who?"]
