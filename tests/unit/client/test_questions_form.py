"""A form that is filled in line by line."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.client import BadValue, Form, questions_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer"},
        "loud": {"type": "boolean", "default": True},
    },
    "required": ["name"],
}


def form(schema: dict[str, Any]) -> Form:
    params = {"message": "?", "requestedSchema": schema}
    [question] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    return Form(question)


def typed(schema: dict[str, Any], *lines: str) -> Form:
    filled = form(schema)
    for line in lines:
        assert not filled.is_over
        filled.take(line)
    return filled


def only(name: str) -> dict[str, Any]:
    return {**SCHEMA, "properties": {name: SCHEMA["properties"][name]}, "required": []}


def test_fields_come_in_order_and_the_answer_is_sent_when_it_is_right() -> None:
    filled = typed(SCHEMA, "Ann", "33", "no")
    assert filled.field is None
    assert not filled.is_over
    filled.take("")
    assert filled.response == {"action": "accept", "content": {"name": "Ann", "age": 33, "loud": False}}


def test_an_empty_line_takes_the_default_or_leaves_out() -> None:
    assert typed(SCHEMA, "Ann", "", "", "y").response == {"action": "accept", "content": {"name": "Ann", "loud": True}}


def test_what_is_wrong_is_asked_for_again() -> None:
    filled = form(SCHEMA)
    for line in ("", "/skip", "A"):
        with pytest.raises(BadValue):
            filled.take(line)
        assert filled.field is filled.fields[0]


def test_somebody_goes_back_and_finds_what_they_typed() -> None:
    filled = typed(SCHEMA, "Ann", "33", "/back", "/back")
    assert (filled.field, filled.current) == (filled.fields[0], "Ann")
    for line in ("", "/skip", "", "maybe", "no"):
        filled.take(line)
    # Not right: from the beginning.
    assert filled.field is filled.fields[0]
    for line in ("Bob", "", "", "yes"):
        filled.take(line)
    assert filled.response == {"action": "accept", "content": {"name": "Bob", "loud": True}}


@pytest.mark.parametrize(
    ("line", "response"),
    [("/decline", {"action": "decline"}), (" /cancel ", {"action": "cancel"}), ("/later", None)],
)
def test_any_line_may_be_something_else_than_an_answer(line: str, response: dict[str, Any] | None) -> None:
    for lines in ([line], ["Ann", line], ["Ann", "1", "", line]):
        filled = typed(SCHEMA, *lines)
        assert (filled.is_over, filled.response) == (True, response)


def test_a_text_that_is_a_command_has_two_slashes() -> None:
    assert typed(only("name"), "//later").response == {"action": "accept", "content": {"name": "/later"}}
    assert typed(only("name"), "//skip").response == {"action": "accept", "content": {"name": "/skip"}}


@pytest.mark.parametrize("text", ["//server/share", "x/later", "/etc/hosts", "//"])
def test_a_text_with_slashes_that_is_no_command_stays_as_it_is(text: str) -> None:
    assert typed(only("name"), text).response == {"action": "accept", "content": {"name": text}}


def test_one_field_is_sent_at_once() -> None:
    assert typed(only("age"), "7").response == {"action": "accept", "content": {"age": 7}}
    assert typed(only("age"), "").response == {"action": "accept", "content": {}}


def test_a_question_without_fields_takes_yes_or_no() -> None:
    assert typed({}, "", "perhaps", "Yes").response == {"action": "accept", "content": {}}
    assert typed({}, "n").response == {"action": "decline"}


def test_a_form_says_what_to_show_before_each_line() -> None:
    colour = {"oneOf": [{"const": "r", "title": "Red"}, {"const": "green", "title": "green"}]}
    filled = form({"type": "object", "properties": {"colour": colour, "size": {"type": "integer"}}})
    assert filled.shown == ["1. r  (Red)", "2. green"]
    filled.take("1")
    assert filled.shown == []
    filled.take("3")
    assert (filled.field, filled.shown) == (None, ["colour = r", "size = 3"])
    assert filled.last_question.startswith("Send it?")
    assert form({}).last_question.startswith("Accept?")


def test_every_word_that_a_form_takes_is_explained() -> None:
    words = [line.split()[0] for line in Form.HELP.splitlines()]
    assert words == ["/decline", "/cancel", "/later", "/back", "/skip", "//..."]


@pytest.mark.parametrize(
    ("line", "response"),
    [
        ("visit", {"action": "accept"}),
        ("V", {"action": "accept"}),
        ("/decline", {"action": "decline"}),
        ("c", {"action": "cancel"}),
        ("later", None),
    ],
)
def test_a_page_to_visit_takes_a_word_or_its_first_letter(line: str, response: dict[str, Any] | None) -> None:
    params = {"message": "?", "mode": "url", "url": "https://example.com/a"}
    [question] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    page = Form(question)
    assert page.link is not None
    assert (page.link.host, page.fields, "[v]isit" in page.last_question) == ("example.com", [], True)
    for wrong in ("continue", "", "yes"):
        with pytest.raises(BadValue, match="the whole word"):
            page.take(wrong)
    page.take(line)
    assert (page.is_over, page.response) == (True, response)
