"""Bookkeeping of what a task asked of its client.

SEP-2663, "Task Update Requests": a key MUST be unique over the lifetime of a task, MUST NOT be reused after
its answer, and never names two requests. So the book remembers every key it ever issued, not only the
outstanding ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from mcp_tasks.core.json import JsonObject

_EMPTY: Mapping[str, InputRequest] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRequest:
    """One question to the client: the method and params of the server-to-client request it stands for.

    From `deadline` on no answer counts: the tool has been told, or will be, that it waited in vain.

    Attributes:
        hosted_as: The id of the client's own task that holds the question, where the client has taken it as one.
    """

    method: str
    params: JsonObject
    deadline: datetime | None = None
    hosted_as: str | None = None

    def is_overdue(self, now: datetime) -> bool:
        """Whether it is too late for an answer."""
        return self.deadline is not None and self.deadline <= now


@dataclass(frozen=True, kw_only=True, slots=True)
class InputBook:
    """The questions of one task: those still open, and every key ever used."""

    outstanding: Mapping[str, InputRequest] = field(default_factory=lambda: _EMPTY)
    used: frozenset[str] = frozenset()

    def ask(self, requests: Mapping[str, InputRequest]) -> InputBook:
        """The book with these questions open as well.

        Raises:
            ValueError: If a key was used before in this task, or there is nothing to ask.
        """
        if not requests:
            raise ValueError("there is nothing to ask")
        if reused := sorted(self.used & requests.keys()):
            raise ValueError(f"input keys are used once in a task's life; already used: {', '.join(reused)}")
        return replace(
            self,
            outstanding={**self.outstanding, **requests},
            used=self.used.union(requests),
        )

    def answerable(self, keys: Iterable[str], now: datetime) -> frozenset[str]:
        """Those of `keys` that an answer may still close.

        The rest were never issued, are answered or are overdue: late, not wrong.
        """
        named = frozenset(keys)
        return frozenset(key for key, ask in self.outstanding.items() if key in named and not ask.is_overdue(now))

    def host(self, key: str, task_id: str) -> InputBook:
        """The book with a question noted as held by a task of the client; the same if it is not open."""
        ask = self.outstanding.get(key)
        if ask is None or ask.hosted_as == task_id:
            return self
        return replace(self, outstanding={**self.outstanding, key: replace(ask, hosted_as=task_id)})

    def close(self, keys: Iterable[str]) -> InputBook:
        """The book with these questions closed; keys that are not open are ignored."""
        closed = frozenset(keys)
        return replace(self, outstanding={k: r for k, r in self.outstanding.items() if k not in closed})

    def withdraw(self) -> InputBook:
        """The book with no open question: the task ended, or its run did."""
        return replace(self, outstanding=_EMPTY) if self.outstanding else self
