"""Texts that are not to be shown."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.client import Secrets


def test_a_secret_is_taken_out_of_text_and_of_the_texts_of_json() -> None:
    secrets = Secrets()
    secrets.hide("geheim-1", "")
    assert secrets.hidden_in("Bearer geheim-1, geheim-1") == "Bearer ***, ***"
    value = {"a": ["geheim-1", 1, None], "geheim-1": {"b": ("x geheim-1", True)}}
    assert secrets.hidden_in_json(value) == {"a": ["***", 1, None], "***": {"b": ["x ***", True]}}


def test_nothing_is_left_of_a_secret_that_begins_with_another() -> None:
    secrets = Secrets()
    secrets.hide("s3cret", "s3cret-token", "s3cret-token-value")
    assert secrets.hidden_in("s3cret-token-value, s3cret-token, s3cret") == "***, ***, ***"


@pytest.mark.parametrize("value", ["text", {"a": (1, 2)}, [], None])
def test_where_there_is_none_a_value_stays_as_it_is(value: Any) -> None:
    assert Secrets().hidden_in_json(value) is value
