"""What somebody else wrote, in sentences of ours."""

from __future__ import annotations

from typing import Any

from mcp_tasks.fallback.phrases import as_json


def test_a_value_that_is_nested_too_deeply_is_said_to_be() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    assert as_json(deep) == "nested too deeply to be shown"
    assert as_json([[0]]) == "[[0]]"
