"""What somebody else wrote, in sentences of ours."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from mcp_tasks.fallback.messages import as_json


def test_a_value_is_written_no_further_than_it_is_shown() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    assert as_json(deep) == "[" * 239 + "…"
    assert as_json([[0]]) == "[[0]]"
    assert as_json({"a": MappingProxyType({"b": "ä\ud800"}), "c": 1j}) == '{"a": {"b": "ä\ufffd"}, "c": "1j"}'


def test_the_rest_of_a_value_is_not_looked_at() -> None:
    class Counted(list[Any]):
        seen = 0

        def __iter__(self) -> Iterator[Any]:
            for each in super().__iter__():
                self.seen += 1
                yield each

    values = Counted([0] * 100_000)
    assert as_json(values, 80).endswith("…")
    assert values.seen < 200
