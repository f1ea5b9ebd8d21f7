"""Limits: on what a connection keeps open, and on what is kept of what a server says.

Over HTTP each wait for a result is a connection of its own to the server. Whoever finds no slot for one polls, which is
slower to notice the end and nothing worse; a task that asks something needs no slot.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

MOST: Final = 20

K = TypeVar("K")
V = TypeVar("V")


class Slots:
    """The slots of one connection."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken: set[object] = set()

    def take(self, who: object) -> bool:
        """Take a slot; whether there is one."""
        if who not in self._taken and len(self._taken) >= self._most:
            return False
        self._taken.add(who)
        return True

    def give_back(self, who: object) -> None:
        """Give the slot back, if there is one to give."""
        self._taken.discard(who)


class Bounded(OrderedDict[K, V]):
    """A dictionary of the last entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.popitem(last=False)
