"""What is asked and answered, for a person: questions, forms, words, results and what is not to be shown."""

from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.cli.fields import describe_words, read_words
from mcp_tasks.cli.interactive import result_texts, save_files
from mcp_tasks.cli.options import Secrets
from mcp_tasks.cli.prompt import Form
from mcp_tasks.cli.questions import Question, answers_to, questions_for, questions_of
from mcp_tasks.errors import BadValue, InvalidInput, InvalidOption


def question(**params: Any) -> Question:
    [asked] = questions_of({"q": {"method": "elicitation/create", "params": params}}, "tool")
    return asked


def test_a_question_is_described_with_its_fields_in_columns_and_a_page_with_its_host() -> None:
    properties = {"a": {"type": "integer"}, "long\nname": {"type": "boolean", "description": "to\x1b[2J all"}}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    assert question(message="Well?\nWhich?\x07", requestedSchema=schema).describe() == [
        "Well?",
        "Which?",
        "  a          whole number, required",
        "  long name  yes or no; to[2J all",
    ]
    assert question(message="Sign in", mode="url", url="http://evil.example/x").describe() == [
        "Sign in",
        "  visit: http://evil.example/x",
        "  host:  evil.example",
        "  ! This is not an https address: others can read along, and change it. It is not opened from here.",
    ]


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_words_are_an_answer_that_fits_the_form_and_a_model_takes_only_a_whole_result() -> None:
    asked = question(message="Who?", requestedSchema=NAME)
    assert asked.answer(["name=Ann"]) == {"action": "accept", "content": {"name": "Ann"}}
    assert asked.answer(known={"name": "Ann"}) == {"action": "accept", "content": {"name": "Ann"}}
    assert asked.answer(action="decline") == {"action": "decline"}
    with pytest.raises(BadValue, match="missing: name"):
        asked.answer()
    assert question(mode="url", url="https://x.example").answer() == {"action": "accept"}
    [model] = questions_of({"q": {"method": "sampling/createMessage", "params": {}}}, "tool")
    assert model.answer(known={"role": "assistant"}) == {"role": "assistant"}
    with pytest.raises(BadValue, match="a whole result"):
        model.answer(["name=Ann"])


TWO = {
    "q1": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": NAME}},
    "q2": {"method": "elicitation/create", "params": {"message": "Sure?"}},
}


def test_words_are_meant_for_the_questions_that_have_their_fields_unless_a_key_is_given() -> None:
    who, sure = asked = questions_of(TWO, "tool")
    assert questions_for(["name=Ann"], asked) == questions_for(['name:="Ann"'], asked) == [who]
    assert questions_for(["age=3"], asked) == questions_for([], asked) == [who, sure]
    assert questions_for(["name=Ann"], asked, key="q2") == [sure]
    assert questions_for([], asked, key="q1") == [who]
    with pytest.raises(InvalidInput, match="no open question 'q3'") as unknown:
        questions_for([], asked, key="q3")
    assert unknown.value.hint == "Open questions: q1, q2"
    # One is answered, and several are refused at once.
    assert answers_to([who], ["name=Ann"]) == {"q1": {"action": "accept", "content": {"name": "Ann"}}}
    assert answers_to([who, sure], action="decline") == {"q1": {"action": "decline"}, "q2": {"action": "decline"}}
    with pytest.raises(InvalidInput, match="several open questions") as several:
        answers_to([who, sure], ["name=Ann"])
    assert several.value.hint.splitlines()[:2] == ["q1:", "Who?"]


# A form that is filled in line by line

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
    return Form(question(message="?", requestedSchema=schema))


def typed(schema: dict[str, Any], *lines: str) -> Form:
    filled = form(schema)
    for line in lines:
        assert not filled.is_over
        filled.take(line)
    return filled


def only(name: str) -> dict[str, Any]:
    return {**SCHEMA, "properties": {name: SCHEMA["properties"][name]}, "required": []}


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


@pytest.mark.parametrize(
    ("schema", "lines", "response"),
    [
        (SCHEMA, ["Ann", "33", "no", ""], accepted(name="Ann", age=33, loud=False)),
        # An empty line takes the default, or leaves out.
        (SCHEMA, ["Ann", "", "", "y"], accepted(name="Ann", loud=True)),
        (only("age"), [""], accepted()),
        # A text that is a command has two slashes; with slashes in another place it stays as it is.
        (only("name"), ["//later"], accepted(name="/later")),
        *((only("name"), [line], accepted(name=line)) for line in ("//server/share", "x/later", "/etc/hosts", "//")),
        # A question without fields takes yes or no.
        ({}, ["", "perhaps", "Yes"], accepted()),
        ({}, ["n"], {"action": "decline"}),
    ],
)
def test_lines_are_what_a_form_sends(schema: dict[str, Any], lines: list[str], response: dict[str, Any]) -> None:
    assert typed(schema, *lines).response == response


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
    ("line", "response"), [("/decline", {"action": "decline"}), (" /cancel ", {"action": "cancel"}), ("/later", None)]
)
def test_any_line_may_be_something_else_than_an_answer(line: str, response: dict[str, Any] | None) -> None:
    for lines in ([line], ["Ann", line], ["Ann", "1", "", line]):
        filled = typed(SCHEMA, *lines)
        assert (filled.is_over, filled.response) == (True, response)


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
    page = Form(question(message="?", mode="url", url="https://example.com/a"))
    assert page.link is not None
    assert (page.link.host, page.fields, "[v]isit" in page.last_question) == ("example.com", [], True)
    for wrong in ("continue", "", "yes"):
        with pytest.raises(BadValue, match="the whole word"):
            page.take(wrong)
    page.take(line)
    assert (page.is_over, page.response) == (True, response)


# Values in words

WORDS = {
    "type": "object",
    "properties": {"day": {"type": "string", "format": "date"}, "sizes": {"type": "array", "items": {"enum": ["s m"]}}},
    "required": ["day"],
}


def test_what_can_be_given_is_said_with_how_what_must_be_is_written_also_after_a_mistake() -> None:
    title, *lines, example = describe_words(WORDS).splitlines()
    assert title == "It takes:"
    assert [line.split()[0] for line in lines] == ["day", "sizes"]
    assert example == "Write it like this: day=2026-07-28"
    assert describe_words(WORDS, ["sizes"]).splitlines()[-1] == "Write it like this: sizes='s m'"
    assert describe_words({"type": "object", "properties": {}}) == "It takes no arguments."
    with pytest.raises(BadValue) as raised:
        read_words(WORDS, ["day=2026-07-28", "sizes=l"])
    assert raised.value.names == ("sizes",)
    assert raised.value.hint == describe_words(WORDS, ["sizes"])


# Results


def test_a_result_is_said_block_by_block() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "audio", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "b"}},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": "AAAA"}},
        {"type": "resource_link", "uri": "file:///y"},
        {"type": "hologram"},
        7,
    ]
    assert result_texts({"content": blocks}, {1: Path("out/x.png")}, unsaved="nowhere") == [
        "a",
        "[image, image/png, 3 bytes; saved as out/x.png]",
        "[audio, unknown type, 3 bytes; nowhere]",
        "b",
        "[resource file:///x; nowhere]",
        "[resource file:///y]",
        "[hologram content, only in the JSON of the result]",
        "[unknown content, only in the JSON of the result]",
    ]
    # Without blocks it is what is structured.
    assert result_texts({"content": [], "structuredContent": {"a": "ä"}}) == ['{\n  "a": "ä"\n}']
    assert result_texts({"content": 7}) == []


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    image = {"type": "image", "mimeType": "image/png", "data": "A" * 200_000}
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        saved, problem = save_files({"content": [image]}, tmp_path, "paint")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (saved, list(tmp_path.iterdir())) == ({}, [])
    assert isinstance(problem, InvalidOption)


# Texts that are not to be shown


def test_a_secret_is_taken_out_of_text_and_of_the_texts_of_json() -> None:
    secrets = Secrets()
    secrets.hide("geheim-1", "")
    assert secrets.hidden_in("Bearer geheim-1, geheim-1") == "Bearer ***, ***"
    value = {"a": ["geheim-1", 1, None], "geheim-1": {"b": ("x geheim-1", True)}}
    assert secrets.hidden_in_json(value) == {"a": ["***", 1, None], "***": {"b": ["x ***", True]}}
    # Nothing is left of one that begins with another.
    secrets.hide("s3cret", "s3cret-token", "s3cret-token-value")
    assert secrets.hidden_in("s3cret-token-value, s3cret-token, s3cret") == "***, ***, ***"
