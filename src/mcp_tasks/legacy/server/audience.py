"""Who has which task, among the clients of this process, and on which streams they can be reached."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mcp_tasks.legacy.server.carriers import Carrier


class Holder(Protocol):
    """A session that has tasks, and its own stream."""

    @property
    def own(self) -> Carrier | None:
        """Its own stream; None before the handshake is complete."""
        ...


@dataclass(eq=False, frozen=True, slots=True)
class OpenResult:
    """A `tasks/result` that waits for its task to end, on a stream that can carry more than its answer."""

    task_id: str
    carrier: Carrier
    holder: Holder | None


class Audience:
    """Sessions and open results, by task."""

    def __init__(self) -> None:
        # In order, the newest last: whoever came last is the most likely to be still there.
        self._holders: dict[str, dict[Holder, None]] = {}
        self._results: dict[str, list[OpenResult]] = {}

    def join(self, task_id: str, holder: Holder) -> None:
        """The session has the task from now on."""
        self._holders.setdefault(task_id, {})[holder] = None

    def leave(self, task_id: str, holder: Holder) -> None:
        """The session does not have the task any more."""
        holders = self._holders.get(task_id, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(task_id, None)

    @contextmanager
    def waiting(self, result: OpenResult) -> Generator[None]:
        """While a `tasks/result` waits."""
        self._results.setdefault(result.task_id, []).append(result)
        try:
            yield
        finally:
            results = self._results[result.task_id]
            results.remove(result)
            if not results:
                del self._results[result.task_id]

    def has_task(self, task_id: str) -> bool:
        """Whether anybody here has the task."""
        return task_id in self._holders or task_id in self._results

    def carriers(self, task_id: str) -> Iterator[Carrier]:
        """The streams on which the task may be spoken of: those of open results first, then those of sessions."""
        for result in reversed(self._results.get(task_id, ())):
            yield result.carrier
        for holder in reversed(self._holders.get(task_id, {})):
            if holder.own is not None:
                yield holder.own

    def results_of(self, holder: Holder, task_id: str) -> Sequence[OpenResult]:
        """The open results of one session for a task."""
        return [result for result in self._results.get(task_id, ()) if result.holder is holder]
