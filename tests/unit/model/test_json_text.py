"""Text that every JSON parser reads."""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks.model.json import is_valid_text, legible, valid_json, valid_text

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))


def test_a_file_name_in_another_encoding_keeps_what_can_be_read() -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    assert not is_valid_text(name)
    assert valid_text(name) == "caf\ufffd.txt"


def test_text_that_is_valid_is_the_same_object() -> None:
    for text in ("", "plain", "größer \U0001f600"):
        assert is_valid_text(text)
        assert valid_text(text) is text


@given(ANY_TEXT)
def test_whatever_comes_in_what_comes_out_can_be_encoded_and_is_as_long(text: str) -> None:
    valid = valid_text(text)
    assert valid.encode().decode() == valid
    assert len(valid) == len(text)
    assert is_valid_text(text) == (valid == text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | ANY_TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    )
)
def test_the_same_holds_for_json_throughout(value: object) -> None:
    valid = valid_json(value)
    assert json.loads(json.dumps(valid, ensure_ascii=False).encode()) == valid


def test_json_without_a_fault_is_equal_to_what_it_was() -> None:
    value: Any = {"a": [1, None, True, 0.5, {"b": "ü"}], "c": {}}
    assert valid_json(value) == value
    assert valid_json(("a", "\udcff")) == ["a", "\ufffd"]


@given(ANY_TEXT, st.integers(min_value=1, max_value=50))
def test_legible_text_can_be_printed_and_has_at_most_so_many_characters(text: str, most: int) -> None:
    shown = legible(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert (shown == text) == (text.isprintable() and len(text) <= most)
