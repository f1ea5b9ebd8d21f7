"""When to look at a task again: decisions without I/O and without a clock.

Times are seconds on any monotonic clock, passed in by the caller.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import check_duration
from mcp_tasks.protocol.shapes import TaskSnapshot

DEFAULT_INTERVAL = 1.0
"""For a server that suggests no interval."""

SHORTEST_INTERVAL = 0.05
"""The least, whatever a server suggests: polling is not a busy loop."""

BACKSTOP = 30.0
"""With push, poll this often: for lost notifications, and for a stream that died silently."""

SOON = 0.2
"""Before a look that a hint asks for, ahead of the server's interval. It doubles with each such look of a wait: a
server that hints all the time is polled at the interval that it suggests."""

MOST_UNREADABLE = 5
"""Responses in a row that are not JSON-RPC. One may have been cut off on its way; so many are what the server sends."""

OnOutage: TypeAlias = Callable[[timedelta | None], None]
"""Called whenever a look failed, with how long the server has been unreachable; and with None when it is back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a server may be unreachable before a wait ends, and how often it is tried meanwhile.

    Attributes:
        max_outage: How long it may be unreachable, from the first failure in a row.
        first_pause: The pause after the first failure; it doubles with every further one, with jitter.
        max_pause: The longest pause.
    """

    max_outage: timedelta = timedelta(minutes=5)
    first_pause: timedelta = timedelta(milliseconds=250)
    max_pause: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        check_duration("max_outage", self.max_outage, zero=True)
        check_duration("first_pause", self.first_pause)
        check_duration("max_pause", self.max_pause)


class Poller:
    """Decides for one task when to look at it next."""

    def __init__(
        self,
        patience: Patience | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        on_outage: OnOutage | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._jitter = jitter
        self._on_outage = on_outage
        self._interval = DEFAULT_INTERVAL
        self._hints = 0
        self._pushed = False
        self._failures = 0
        self._failing_since = 0.0
        self._unreadable = 0
        self.next_look: float = 0.0

    def saw(self, snapshot: TaskSnapshot, now: float, *, pushed: bool) -> None:
        """A state arrived, by a look or pushed. `pushed` says whether notifications are known to come."""
        if self._failures and self._on_outage is not None:
            self._on_outage(None)
        self._failures = self._unreadable = 0
        self._pushed = pushed
        suggested = DEFAULT_INTERVAL if snapshot.poll_interval is None else snapshot.poll_interval.total_seconds()
        # No upper limit: a client SHOULD respect the interval, however long it is.
        self._interval = max(suggested, SHORTEST_INTERVAL)
        self.next_look = now + (max(self._interval, BACKSTOP) if pushed else self._interval)

    def hinted(self, now: float, *, ended: bool = False) -> None:
        """The task may have changed, or has `ended`: look ahead of the interval."""
        look = now + (0 if ended and not self._hints else SOON * 2 ** min(self._hints, 30))
        if look < self.next_look:
            self.next_look = look
            self._hints += 1

    def lost_push(self, now: float) -> None:
        """Notifications stopped: go back to polling at the server's interval."""
        if self._pushed:
            self._pushed = False
            self.next_look = min(self.next_look, now + self._interval)

    def failed(self, now: float, *, unreadable: bool = False) -> bool:
        """A look failed, or its response was `unreadable`. Returns whether to try again, at `next_look`."""
        self._unreadable = self._unreadable + 1 if unreadable else 0
        if not self._failures:
            self._failing_since = now
        pause = backoff(self._failures, base=self._patience.first_pause, limit=self._patience.max_pause).total_seconds()
        self._failures += 1
        # Half of the pause is fixed, half is random: clients of a server that comes back do not come all at once.
        self.next_look = now + pause * (0.5 + self._jitter() / 2)
        in_time = self.next_look - self._failing_since <= self._patience.max_outage.total_seconds()
        tries_again = in_time and self._unreadable < MOST_UNREADABLE
        if tries_again and self._on_outage is not None:
            self._on_outage(timedelta(seconds=now - self._failing_since))
        return tries_again
