"""A statement that one party writes and another runs inside its own transaction: the job of a task, beside its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One statement for one database.

    Attributes:
        place: Which database it is for. Whoever keeps tasks elsewhere cannot run it.
        text: The statement, in the words of that database.
        values: Its named parameters.
    """

    place: str
    text: str
    values: dict[str, Any]
