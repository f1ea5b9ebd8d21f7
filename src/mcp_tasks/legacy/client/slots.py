"""How many waits for results a connection keeps open at once.

Over HTTP each of them is a connection of its own to the server. Whoever finds no slot polls, which is slower to notice
the end and nothing worse; a task that asks something needs no slot.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 20


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
