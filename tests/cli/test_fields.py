"""What is typed, and what it becomes; and the lines for logs and pipes."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_tasks.cli.fields import read_words
from mcp_tasks.cli.follow import Followed
from mcp_tasks.cli.prompt import Form, read_arguments
from mcp_tasks.cli.questions import questions_of
from mcp_tasks.cli.terminal import LineBoard, Problem
from mcp_tasks.client import LedgerEntry
from mcp_tasks.errors import BadValue
from mcp_tasks.protocol.shapes import parse_task
from tests.client.peer import task

DEFS = {"$defs": {"Colour": {"enum": ["red", "green"], "type": "string"}, "Point": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "90071992547409931", 90071992547409931),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "YES", True),
        ({"type": "boolean"}, "off", False),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "a,b", ["a,b"]),
        ({"type": "array", "items": {"type": "integer"}}, "1", [1]),
        ({"type": "array", "items": {"type": "string"}}, "1", ["1"]),
        ({"type": "array", "items": {"type": "object"}}, '{"a": 1}', [{"a": 1}]),
        ({"type": ["array", "null"], "items": {"type": "integer"}}, "7", [7]),
        ({"type": ["array", "integer"], "items": {"type": "integer"}}, "7", 7),
        ({"type": "array", "items": {"$ref": "#/$defs/Colour"}}, "red", ["red"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": ["integer", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "yes", "yes"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "4", 4),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, "yes", "yes"),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, "true", True),
        ({"$ref": "#/$defs/Colour"}, "green", "green"),
        ({"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]}, "null", None),
        ({"enum": [1, 2]}, "2", 2),
        ({"oneOf": [{"const": "s", "title": "Small"}]}, "small", "s"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "a, b", ["a", "b"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '["b"]', ["b"]),
        ({}, "4", 4),
        ({"type": "string", "format": "date"}, "2026-07-28", "2026-07-28"),
    ],
)
def test_a_text_becomes_what_its_schema_says(schema: dict[str, Any], text: str, value: Any) -> None:
    read = read_words({"type": "object", "properties": {"x": schema}, **DEFS}, [f"x={text}"])["x"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, "1e999"),
        ({"type": "number"}, "nan"),
        ({"type": "boolean"}, "1"),
        ({"type": "object"}, "[1]"),
        ({"type": "array"}, "[a"),
        ({"type": "array", "items": {"type": "integer"}}, "1,2"),
        ({"type": "array", "items": {"type": "integer"}}, "[1"),
        ({"type": "array", "maxItems": 0}, "1"),
        ({"type": "integer", "minimum": 5}, "4"),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "string", "pattern": "^a"}, "b"),
        ({"$ref": "#/$defs/Colour"}, "blue"),
        ({"type": "array", "items": {"enum": ["a"]}, "minItems": 1}, " "),
        ({"type": "array", "items": {"enum": ["a"]}}, "a,z"),
        ({"type": "string", "format": "email"}, "ann"),
        ({"type": "string", "format": "date"}, "tomorrow"),
        ({"type": "string", "format": "date-time"}, "2026-07-28T12:00:00"),
        ({"type": "string", "format": "uri"}, "example"),
    ],
)
def test_a_text_that_its_schema_does_not_allow_is_refused(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(BadValue):
        read_words({"type": "object", "properties": {"x": schema}, **DEFS}, [f"x={text}"])


def form_of(schema: dict[str, Any]) -> Form:
    params = {"message": "?", "requestedSchema": {"type": "object", "properties": {"x": schema}}}
    [question] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    return Form(question)


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, "1, 2", [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, "1", [1]),
        ({"type": "array", "items": {"type": "string"}}, '["a, b"]', ["a, b"]),
        ({"type": ["array", "null"]}, "null", None),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "2, a", ["b", "a"]),
        ({"enum": ["a", "b"]}, "2", "b"),
        ({"enum": [2, 1]}, "2", 2),
        ({"type": "string"}, "1, 2", "1, 2"),
    ],
)
def test_a_line_at_a_prompt_may_have_several_values_and_numbers_of_choices(
    schema: dict[str, Any], line: str, value: Any
) -> None:
    form = form_of(schema)
    form.take(line)
    form.take("yes")
    assert form.response == {"action": "accept", "content": {"x": value}}


@pytest.mark.parametrize("line", ["3", "0", "re", "gre", "²"])
def test_a_choice_is_never_taken_by_a_part_of_its_name(line: str) -> None:
    with pytest.raises(BadValue, match="expected one of red, green"):
        form_of({"enum": ["red", "green"]}).take(line)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        *((words, "xs=1 xs=2") for words in (["xs=a"], [], ["ys=1"], ['xs:=["a"]'])),
        *(([word], """opts:='{"key": "value"}'""") for word in ("opts=a", "opts:=a", "opts:=[1]")),
        (["colour=de"], "colour='deep red'"),
    ],
)
def test_a_refused_argument_shows_how_to_write_it(words: list[str], example: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "xs": {"type": "array", "items": {"type": "integer"}},
            "opts": {"type": "object"},
            "colour": {"enum": ["deep red", "green"]},
        },
        "required": ["xs"],
    }
    with pytest.raises(BadValue) as raised:
        read_words(schema, words)
    assert raised.value.hint.splitlines()[-1] == f"Write it like this: {example}"


@pytest.mark.parametrize(
    ("words", "json_text"),
    [(["word"], None), (["=x"], None), (["a:={"], None), ([], "{"), ([], "[1]"), (["a=1", "a=2"], None)],
)
def test_words_that_are_no_arguments_are_refused(words: list[str], json_text: str | None) -> None:
    with pytest.raises((BadValue, Problem)):
        read_arguments({"properties": {"a": {"type": "integer"}}}, words, json_text)


async def test_lines_for_a_pipe_are_not_too_many_and_the_last_word_is_never_left_unsaid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = LedgerEntry.begun("task_1", server="http://127.0.0.1:9/mcp", tool="render")

    def state(status: str, message: str) -> Followed:
        ended: dict[str, Any] = {"result": {}} if status == "completed" else {}
        return Followed(entry=entry, snapshot=parse_task(task(status, statusMessage=message, **ended)))

    def said() -> list[str]:
        return capsys.readouterr().err.splitlines()

    lines = LineBoard()
    for step in (1, 2, 3):
        lines.show(state("working", f"step {step}"))
    assert said() == ["working  step 1"], "what comes too soon is for later"
    lines.stop()
    assert said() == ["working  step 3"], "and before anything else"
    for step in (4, 5):
        lines.show(state("working", f"step {step}"))
    lines.show(state("completed", "done"))
    lines.stop()
    assert said() == ["completed  done"]
    lines = LineBoard()
    for step in (6, 7):
        lines.show(state("working", f"step {step}"))
    lines.drop(state("working", "step 7"))
    lines.stop()
    assert said() == ["working  step 6"], "of a call that is over nothing more is said"
    # That a server is away is not said after it is back.
    lines, now = LineBoard(), datetime.now(UTC)
    for seconds in (5, 9):
        lines.show(replace(state("working", "step"), away_since=now - timedelta(seconds=seconds)))
    lines.back(state("working", "step"), timedelta(seconds=6))
    lines.stop()
    told = re.findall("out of reach|server is back after 0:06", " ".join(said()))
    assert told[-2:] == ["out of reach", "server is back after 0:06"]
