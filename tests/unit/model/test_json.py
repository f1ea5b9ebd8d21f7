"""What is looked up in JSON that somebody sent: it has any shape."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.model.json import list_in, object_in


@pytest.mark.parametrize("odd", [None, 7, "text", ["a"], {"a": 7}, {"a": None}, {"a": ["b"]}, {"a": {"c": {}}}])
def test_where_there_is_no_object_at_the_end_of_the_path_there_is_none(odd: Any) -> None:
    assert object_in(odd, "a", "b") is None


def test_an_object_is_found_at_the_end_of_its_path() -> None:
    holder = {"a": {"b": {"c": 1}}}
    assert object_in(holder, "a", "b") == {"c": 1}
    assert object_in(holder) is holder


def test_what_is_no_list_is_an_empty_one() -> None:
    assert list_in({"a": [1]}, "a") == [1]
    assert [list_in({"a": odd}, "a") for odd in (None, 7, "text", {"b": 1})] == [[]] * 4
    assert list_in({}, "a") == []
