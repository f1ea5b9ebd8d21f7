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


@pytest.mark.parametrize("value", ["text", {"a": (1, 2)}, [], None])
def test_where_there_is_none_a_value_stays_as_it_is(value: Any) -> None:
    assert Secrets().hidden_in_json(value) is value
