"""The life of one run, as one table.

A run is started, works, waits, and ends in one of four ways: its body returned, it was told to stop, a verdict was
given over it (a limit was passed), or it left memory. Whatever else a run does asks here what it may do; nothing keeps
a flag of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    """Where a run stands."""

    STARTING = auto()
    """Claimed; the tool has not been entered."""
    WORKING = auto()
    WAITING = auto()
    """All that is known of the run waits for an answer or a timer; it has no slot."""
    PARKING = auto()
    """It is being written down that the run leaves memory. What it waits for must not wake it now."""
    STOPPING = auto()
    """Told to stop: what the body still says does not count."""
    JUDGED = auto()
    """It ends with a verdict, whatever the body still says."""
    RETURNED = auto()
    """The body returned; its outcome is being written."""
    ENDED = auto()


class Turn(Enum):
    """What can happen in the life of a run."""

    ENTERED = auto()
    WAITS = auto()
    GOES_ON = auto()
    PARKS = auto()
    STAYS = auto()
    """It could not be parked after all."""
    STOPPED = auto()
    JUDGED = auto()
    RETURNED = auto()
    ENDED = auto()


_STOPS: Mapping[Turn, State] = {Turn.STOPPED: State.STOPPING, Turn.ENDED: State.ENDED}

TABLE: Mapping[State, Mapping[Turn, State]] = {
    State.STARTING: {Turn.ENTERED: State.WORKING, Turn.JUDGED: State.JUDGED, **_STOPS},
    State.WORKING: {
        Turn.WAITS: State.WAITING,
        Turn.RETURNED: State.RETURNED,
        Turn.JUDGED: State.JUDGED,
        **_STOPS,
    },
    State.WAITING: {
        Turn.GOES_ON: State.WORKING,
        Turn.PARKS: State.PARKING,
        # A branch that is not known to be at work may return while another one waits.
        Turn.RETURNED: State.RETURNED,
        Turn.JUDGED: State.JUDGED,
        **_STOPS,
    },
    # Nothing but the outcome of the write ends it: an answer, a time limit and a return all wait for that.
    State.PARKING: {Turn.STAYS: State.WAITING, **_STOPS},
    State.STOPPING: {Turn.ENDED: State.ENDED},
    State.JUDGED: {Turn.STOPPED: State.JUDGED, Turn.ENDED: State.ENDED},
    State.RETURNED: {Turn.STOPPED: State.ENDED, Turn.ENDED: State.ENDED},
    State.ENDED: {},
}
"""What may follow on what. A turn that is not here does not happen: it comes too late."""


class Life:
    """One run's place in the table."""

    def __init__(self) -> None:
        self.state: State = State.STARTING
        self._over: asyncio.Event | None = None
        self._decided: asyncio.Event | None = None

    def take(self, turn: Turn) -> bool:
        """Let it happen; False, and nothing changes, if it cannot any more."""
        following = TABLE[self.state].get(turn)
        if following is None:
            return False
        self.state = following
        if following is State.PARKING:
            self._decided = asyncio.Event()
        elif self._decided is not None:
            self._decided.set()
        if self._over is not None and not self.counts:
            self._over.set()
        return True

    @property
    def over(self) -> asyncio.Event:
        """Set once what the tool says does not count any more."""
        if self._over is None:
            self._over = asyncio.Event()
            if not self.counts:
                self._over.set()
        return self._over

    async def parking_decided(self) -> None:
        """Return when the run is not between staying and leaving."""
        if self._decided is not None:
            await self._decided.wait()

    @property
    def counts(self) -> bool:
        """Whether what the tool says still counts."""
        return self.state not in (State.STOPPING, State.JUDGED, State.ENDED)

    @property
    def in_body(self) -> bool:
        """Whether the tool has been entered, and has neither returned nor been stopped."""
        return self.state in (State.WORKING, State.WAITING, State.PARKING)

    @property
    def is_waiting(self) -> bool:
        """Whether all that is known of the run waits."""
        return self.state is State.WAITING
