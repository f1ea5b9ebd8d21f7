"""Entries of a task's journal: what must survive a run because the next one will ask for it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from mcp_tasks.core.json import JsonValue

EntryKind: TypeAlias = Literal["ask", "answer", "refusal", "step", "timer", "done", "version"]

ENTRY_KINDS: frozenset[str] = frozenset(get_args(EntryKind))


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """One thing that happened for good.

    `ask`: a question was put, under `key`. `answer`: its answer arrived. `refusal`: it was answered with an error; of a
    kind of its own, so that no client can send an answer that looks like one. `timer`: a sleep began, and ends at
    `value`. `step`: a step ended, with `value`. `done`: the tool was handed the end of a question or a timer, or gave
    up on one or on a step; `value` says which. The order of `step` and `done` entries is the order in which the tool
    learned of things. `version`: from here on the tool is another version than it was, and goes on from
    what is before this entry, or starts over, and then nothing before it counts.

    A release that does not know a kind cannot run the task, and would end it. So one that writes a new kind writes its
    records in a format that releases without that kind do not read.

    Attributes:
        number: Where it stands in the journal: a later entry has a larger number. The store gives it; an entry that has
            not been written has 0.
    """

    kind: EntryKind
    key: str
    value: JsonValue
    number: int = 0
