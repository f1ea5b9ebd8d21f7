"""Tasks by the beginnings of their ids, which are long, as people see and type them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from mcp_tasks.client.printable import on_one_line

SHORT: Final = 8
"""Characters of an id's random part that are shown and asked for: 48 bits, more than a ledger can mix up."""


def short_id(task_id: str) -> str:
    """As much of an id as tells tasks apart, fit to be shown: an id is what a server says it is."""
    kind, random = _split(on_one_line(task_id))
    return kind + random[:SHORT]


def short_ids(task_ids: Iterable[str]) -> dict[str, str]:
    """Short forms of ids by which `Ledger.find` finds each of these again; whole ones where ids are alike."""
    short = {task_id: short_id(task_id) for task_id in task_ids}
    taken = Counter(short.values())
    return {task_id: name if taken[name] == 1 else task_id for task_id, name in short.items()}


def begins(task_id: str, start: str) -> bool:
    """Whether an id begins like that, with or without the part before `_`."""
    # As it is, and as it is shown.
    names = (task_id, shown := on_one_line(task_id), _split(task_id)[1], _split(shown)[1])
    return bool(start) and any(name.startswith(start) for name in names)


def _split(task_id: str) -> tuple[str, str]:
    """The part of an id that all of a server's ids share (`task_`), and the rest."""
    kind, separator, random = task_id.partition("_")
    return (kind + separator, random) if kind.isalpha() and random else ("", task_id)
