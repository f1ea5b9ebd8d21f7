"""Which of the states that come of a task is later than the one before: by its own time, as far as that can be."""

from __future__ import annotations

from datetime import datetime

from mcp_tasks.wire.parse import TaskSnapshot


class Order:
    """Decides which states of one task follow each other."""

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._is_doubted = False

    def takes(self, snapshot: TaskSnapshot, *, looked: bool) -> bool:
        """Whether a state follows those that were taken before.

        A look and a notification may cross, so what is older than the last does not. But a server's machines may not
        agree about the time, and clocks go back: the end of a task always follows, and so does what a second look in a
        row has found, as it was sent after the first had come back and crossed nothing.

        Args:
            looked: Whether it was looked for, and not pushed.
        """
        is_older = self._last is not None and snapshot.updated_at < self._last
        if is_older and not snapshot.is_final and not (looked and self._is_doubted):
            self._is_doubted = looked or self._is_doubted
            return False
        self._last, self._is_doubted = snapshot.updated_at, False
        return True
