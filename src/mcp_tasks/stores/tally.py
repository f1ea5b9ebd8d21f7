"""What is kept of whose tasks, and the keys that outlive them, in a store that counts for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import takewhile
from typing import TypeAlias, TypeVar

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.stores.ordered import Ordered
from mcp_tasks.stores.places import Owner, owner_of
from mcp_tasks.stores.shares import MOST_COUNTED, Usage
from mcp_tasks.stores.whose import EVERYBODY, OwnedBy, Owners

K = TypeVar("K", bound=Hashable)

Under: TypeAlias = tuple[str, Owner, str]
"""Namespace, owner and key."""


class Tally:
    """Open tasks and stored bytes of each owner."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, Owner | None]] = Counter()
        self._bytes: Counter[tuple[str, Owner]] = Counter()
        self._size: Counter[str] = Counter()

    def move(self, before: TaskRecord | None, now: TaskRecord | None) -> None:
        """A task changed: it is new if it was not before, and gone if it is not any more."""
        if before is not None and not before.is_final:
            self._count(before, -1)
        if now is not None and not now.is_final:
            self._count(now, 1)
        if before is not None and now is None:
            self.grow(before, -self._size[before.id])
            del self._size[before.id]

    def grow(self, record: TaskRecord, size: int) -> None:
        """So many bytes more are kept of a task."""
        self._size[record.id] += size
        _add(self._bytes, (record.namespace, owner_of(record)), size)

    def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks."""
        owner = None if whose is EVERYBODY else (whose.owner,) if isinstance(whose, OwnedBy) else ()
        count = min(self._open[namespace, owner], MOST_COUNTED)
        return Usage(open_tasks=count, stored_bytes=0 if owner is None else self._bytes[namespace, owner])

    def _count(self, record: TaskRecord, number: int) -> None:
        for owner in (owner_of(record), None):
            _add(self._open, (record.namespace, owner), number)


class SpentKeys:
    """Keys that are taken though their task is gone."""

    def __init__(self) -> None:
        self._until: dict[Under, int] = {}
        self._order = Ordered()

    def copy(self) -> SpentKeys:
        """The same keys."""
        keys = SpentKeys()
        for under, until in self._until.items():
            keys.spend(under, until)
        return keys

    def is_spent(self, under: Under, now: int) -> bool:
        """Whether a key is taken."""
        return self._until.get(under, now) > now

    def spend(self, under: Under, until: int) -> None:
        """The task of a key is gone."""
        self.free(under)
        self._until[under] = until
        self._order.add("until", (until, under))

    def free(self, under: Under) -> None:
        """A key is another task's now."""
        if (until := self._until.pop(under, None)) is not None:
            self._order.remove("until", (until, under))

    def forget(self, now: int) -> None:
        """Forget those whose time is over."""
        for _, under in list(takewhile(lambda place: place[0] <= now, self._order.after("until"))):
            self.free(under)


def _add(counter: Counter[K], place: K, number: int) -> None:
    """Count, and keep no zeros: owners come and go."""
    counter[place] += number
    if not counter[place]:
        del counter[place]
