"""Looks at tasks, and requests about them that were refused: what changes nothing, and yet has to be known of.

For observers of our own that ask for it (`Watcher`). Polls are many, so one costs a tuple and a place in a list, and
nothing at all where nobody asks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

Verb: TypeAlias = Literal["create", "read", "list", "listen", "answer", "cancel"]
"""What a caller asked for."""


class Refusal(StrEnum):
    """Why a request was refused, in one word. These are labels of metrics, so there are as many as there are here."""

    UNKNOWN = "unknown"
    """There is no such task for this caller: the id was never one, is not one any more, or is another's. One word for
    all three, as there is one answer."""

    LIMIT = "limit"
    KEY = "key"
    OWNER = "owner_required"
    UNDECLARED = "undeclared"
    """The client did not declare that it takes tasks, or its era has none."""

    MALFORMED = "malformed"
    ANSWER = "answer"
    """An answer that does not fit its question."""

    FAILED = "failed"
    """Not the caller's fault: the store was away, or something is broken here."""


class TaskAccess(NamedTuple):
    """Somebody looked at a task, or was refused.

    Attributes:
        verb: What was asked for,
        method: and how: a method of the wire, `companion` for a companion tool, `local` for code of the server's own.
        owner: The principal behind the request; None if it has none.
        at: When, in the store's time: seconds since 1970.
        task_id: The task, if it is about one. What a caller names that is refused may be anything.
        tool: The tool of that task, if the caller may know of it.
        refused: Why it was refused; None if it was not.
        detail: Of a limit, which one it is; of a key, what is wrong with it.
        times: How many there were of these.
    """

    verb: Verb
    method: str
    owner: str | None
    at: float
    task_id: str | None = None
    tool: str | None = None
    refused: Refusal | None = None
    detail: str | None = None
    times: int = 1
