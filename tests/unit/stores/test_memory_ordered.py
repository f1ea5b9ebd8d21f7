"""Sorted lists in groups, against plain sets."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks.stores.memory import Ordered

GROUPS = ("a", "b", None)
places = st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", "☃"]))


@given(st.lists(st.tuples(st.sampled_from(GROUPS), places)), places)
def test_groups_hold_what_was_added_in_order(
    changes: list[tuple[str | None, tuple[int, str]]], after: tuple[int, str]
) -> None:
    ordered = Ordered()
    model: dict[str | None, set[tuple[int, str]]] = {group: set() for group in GROUPS}
    # What comes a second time goes.
    for group, place in changes:
        if place in model[group]:
            model[group].remove(place)
            ordered.remove(group, place)
        else:
            model[group].add(place)
            ordered.add(group, place)
    for group, expected in model.items():
        assert list(ordered.after(group)) == sorted(expected)
        assert list(ordered.after(group, after)) == sorted(place for place in expected if place > after)
        assert list(ordered.heads(group)) == sorted({number for number, _ in expected})


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    looked_at: list[int] = []

    class Watched(int):
        def __lt__(self, other: int) -> bool:
            looked_at.append(self)
            return int(self) < int(other)

    ordered = Ordered()
    for number in range(10_000):
        ordered.add("group", (Watched(number), "id"))
    looked_at.clear()
    assert [int(number) for number, _ in islice(ordered.after("group", (Watched(4_999), "id")), 3)] == [
        5_000,
        5_001,
        5_002,
    ]
    assert len(looked_at) < 50
