"""What a wait for a task is told between its looks."""

from __future__ import annotations

import asyncio

from mcp_tasks.wire.parse import TaskSnapshot


class Mailbox:
    """The newest state that was pushed for one task, or became known here."""

    def __init__(self) -> None:
        self.live: bool = False
        self.hinted: bool = False
        self.is_over: bool = False
        self.changed: asyncio.Event = asyncio.Event()
        self._snapshot: TaskSnapshot | None = None
        self._shown: TaskSnapshot | None = None

    def put(self, snapshot: TaskSnapshot) -> None:
        """Keep a state that is not older than the one we have; notifications may overtake each other."""
        self.live = True
        known = self._snapshot
        if known is None or snapshot.is_final or (not known.is_final and known.updated_at <= snapshot.updated_at):
            self._snapshot = snapshot
        self.changed.set()

    def show(self, snapshot: TaskSnapshot) -> None:
        """Keep what became known of the task beside its state: progress, a question. It says nothing of the pace."""
        self._shown = snapshot
        self.changed.set()

    def hint(self) -> None:
        """Something may have happened to the task, says somebody who may not know."""
        self.hinted = True
        self.changed.set()

    def over(self) -> None:
        """The task has ended, says its server; a look tells how."""
        self.is_over = True
        self.changed.set()

    def take(self) -> TaskSnapshot | None:
        """What was pushed since the last time."""
        self.changed.clear()
        self.hinted = self.is_over = False
        snapshot, self._snapshot = self._snapshot, None
        return snapshot

    def take_shown(self) -> TaskSnapshot | None:
        """What became known here since the last time."""
        snapshot, self._shown = self._shown, None
        return snapshot

    def end(self) -> None:
        """The stream ended."""
        self.live = False
        self.changed.set()
