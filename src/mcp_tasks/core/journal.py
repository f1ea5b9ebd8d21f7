"""Entries of a task's journal: what must survive a run because the next one will ask for it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp_tasks.core.json import JsonValue


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """One thing that happened for good.

    `ask`: a question was put, under `key`. `answer`: its answer arrived. `step`: a step was done, and gave
    `value`. `timer`: a sleep began, and ends at `value`.
    """

    kind: Literal["ask", "answer", "step", "timer"]
    key: str
    value: JsonValue
