"""Values in words, and what is said of words that are none."""

from __future__ import annotations

import pytest

from mcp_tasks.client import BadValue, describe_words, read_words

SCHEMA = {
    "type": "object",
    "properties": {"day": {"type": "string", "format": "date"}, "sizes": {"type": "array", "items": {"enum": ["s m"]}}},
    "required": ["day"],
}


def test_what_can_be_given_is_said_with_how_what_must_be_is_written() -> None:
    title, *lines, example = describe_words(SCHEMA).splitlines()
    assert title == "It takes:"
    assert [line.split()[0] for line in lines] == ["day", "sizes"]
    assert example == "Write it like this: day=2026-07-28"
    assert describe_words(SCHEMA, ["sizes"]).splitlines()[-1] == "Write it like this: sizes='s m'"
    assert describe_words({"type": "object", "properties": {}}) == "It takes no arguments."


def test_who_gives_something_wrong_is_told_how_to_write_it() -> None:
    with pytest.raises(BadValue) as raised:
        read_words(SCHEMA, ["day=2026-07-28", "sizes=l"])
    assert raised.value.names == ("sizes",)
    assert raised.value.hint == describe_words(SCHEMA, ["sizes"])
