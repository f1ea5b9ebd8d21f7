"""Limits of what callers may take of this process: how often they ask, how much they send, how many streams they have.

All of it is decided before anything is done. Owners are told apart by name, so a flood of one, whatever ids it asks
for, takes nothing of another's. Callers without a name are told apart by their connections, of which anybody may open
more: so there is also a limit for all of them together. Whether a task is there is looked up first, so a client that
polls tasks that exist is not held up by others on the same connection, which may be that of a proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import anyio

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE, check_json, rough_size
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import TaskRequest
from mcp_tasks.protocol.outcomes import Unread
from mcp_tasks.protocol.shapes import encode_plain

MOST_KNOWN: Final = 10_000
"""Owners, or tasks, whose pace is remembered: those that asked last. The others begin anew."""

PATIENCE: Final = 1.0
"""Seconds by which an answer is held back for a caller that asks too often, before it is refused."""

REFUSED_AFTER: Final = 0.5
"""Seconds by which a refusal is held back. A caller that asks again as soon as it is answered would otherwise be
refused as often as this process can say no, and everybody else would wait for that."""

MOST_HELD_BACK: Final = 100
"""Requests of one owner that are held back at a time, and as many refusals. Those beyond it are refused at once."""

Kind: TypeAlias = Literal["creates", "cancels", "unknown"]
"""What is counted of callers without a name."""

_WHAT: Final[Mapping[Kind, str]] = {
    "creates": "callers without a name start tasks",
    "cancels": "callers without a name cancel tasks",
    "unknown": "callers without a name ask for tasks that are not there",
}
_ALL: Final = ""

_AS_GOOD_AS_NOTHING: Final = 1e-6
"""Seconds: the rounding error of adding and taking away."""


class Pace:
    """So many a second for each of many, and as many at once.

    For each only one number is kept: when it would have had its turn, had all come at an even pace.

    Args:
        rate: How many a second.
        clock: Seconds that only go forward.
        patience: Seconds that one too many may be made to wait; beyond that it is refused.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic, patience: float = 0.0) -> None:
        self._clock = clock
        self._step = 1 / rate
        # The first counts among those that may come at once, and always may.
        self._ahead = max(rate, 1.0) * self._step - self._step
        self._patience = min(patience, MOST_HELD_BACK * self._step)
        self._turns: BoundedDict[str, float] = BoundedDict(MOST_KNOWN)

    def take(self, key: str, turns: int = 1) -> tuple[float, bool]:
        """Seconds to wait, and whether it may then be done; if not, it does not count. Requests that take several turns
        make those that come after them wait."""
        now = self._clock()
        turn = self._turns.get(key, now)
        if turn < now:
            turn = now
        wait = turn - now - self._ahead
        if wait > self._patience + _AS_GOOD_AS_NOTHING:
            return wait, False
        self._turns[key] = turn + self._step * turns
        return (wait if wait > _AS_GOOD_AS_NOTHING else 0.0), True

    def give_back(self, key: str) -> None:
        """Let the last one not count."""
        if key in self._turns:
            self._turns[key] -= self._step


class Limiting:
    """Refuses or slows requests beyond the limits of one server. What is refused raises `LimitExceeded`.

    Args:
        clock: Seconds that only go forward.
        free: The owner who may ask and start tasks as often as it likes: the one user of a pipe, on a server where
            others have names.

    Attributes:
        limits: The limits.
        unread: The bytes that clients have not read yet.
        counts_polls: Whether it counts how often callers without a name ask for one task.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, *, free: str | None = None) -> None:
        def pace(rate: float | None, patience: float = PATIENCE) -> Pace | None:
            return None if rate is None else Pace(rate, clock, patience)

        self.limits: Limits = limits
        self.unread: Unread = Unread(limits)
        self._free = free
        self._requests = pace(limits.owner_requests)
        self._polls = pace(limits.task_polls)
        self.counts_polls: bool = self._polls is not None
        self._owner_creates = pace(limits.owner_creates, 0.0)
        self._nameless: dict[Kind, tuple[Pace | None, Pace | None]] = {}
        if limits.anonymous:
            self._nameless = {
                "creates": (pace(limits.connection_creates), pace(limits.creates)),
                "cancels": (pace(limits.connection_cancels), pace(limits.cancels)),
                "unknown": (pace(limits.connection_unknown), pace(limits.unknown)),
            }
        self._held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._refused: Counter[str] = Counter()

    # How often

    async def request(self, owner: str | None, turns: int = 1) -> None:
        """Let an owner ask about tasks; a moment later, if it has asked too often.

        Args:
            turns: As how many requests it counts.
        """
        if owner is not None and owner != self._free:
            await self._take("owner_requests", "You ask about tasks", self._requests, owner, turns)

    async def poll(self, task_id: str) -> None:
        """Let a caller without a name look at a task, which exists; a moment later, if that was done too often."""
        await self._take("task_polls", "You ask about this task", self._polls, task_id)

    async def create(self, owner: str | None, request: TaskRequest, *, connection: str | None = None) -> None:
        """Let a call become a task; of a caller without a name a moment later, if there were too many."""
        if owner is None:
            if self._nameless:
                await self.nameless("creates", owner, connection)
        elif owner != self._free:
            await self._take("owner_creates", "You start tasks", self._owner_creates, owner)
        if rough_size([request.arguments, request.meta, request.input_responses]) > LARGE:
            # Others are served meanwhile: to go through a mebibyte of brackets takes a tenth of a second.
            await asyncio.to_thread(self.check_request, request)
        else:
            self.check_request(request)

    async def nameless(self, kind: Kind, owner: str | None, connection: str | None) -> None:
        """Let a caller without a name cancel a task, or be told that there is none; a moment later, if there were too
        many. Callers with a name may."""
        if owner is not None or connection is None or kind not in self._nameless:
            return
        (own, total), what, waits = self._nameless[kind], _WHAT[kind], [0.0]
        # All callers have one that the HTTP server does not name: it would be a second total.
        if own is not None and connection:
            wait, may = own.take(connection)
            if not may:
                limit = f"connection_{kind}"
                raise await self._too_often(limit, f"On this connection, {what}", wait, f"{kind} {connection}")
            waits.append(wait)
        if total is not None:
            wait, may = total.take(_ALL)
            if not may:
                if own is not None and connection:
                    own.give_back(connection)
                raise await self._too_often(kind, f"On this server, {what}", wait, kind)
            waits.append(wait)
        if (wait := max(waits)) > 0:
            await anyio.sleep(wait)

    def give_back(self, owner: str | None, connection: str | None, *kinds: Kind) -> None:
        """Let the last request of a caller not count: it is handed over to the SDK, where it counts.

        Args:
            kinds: What else it counted as, if its caller has no name.
        """
        if owner is not None:
            if self._requests is not None and owner != self._free:
                self._requests.give_back(owner)
            return
        for kind in kinds:
            if connection is not None and kind in self._nameless:
                own, total = self._nameless[kind]
                if own is not None and connection:
                    own.give_back(connection)
                if total is not None:
                    total.give_back(_ALL)

    async def _take(self, limit: str, what: str, pace: Pace | None, key: str, turns: int = 1) -> None:
        if pace is None:
            return
        wait, may = pace.take(key, turns)
        if not may:
            raise await self._too_often(limit, what, wait, key)
        if wait:
            await anyio.sleep(wait)

    async def _too_often(self, limit: str, what: str, wait: float, key: str) -> LimitExceeded:
        """The refusal, a moment later."""
        if self._refused[key] < MOST_HELD_BACK:
            self._refused[key] += 1
            try:
                await anyio.sleep(min(wait, REFUSED_AFTER))
            finally:
                self._refused[key] -= 1
                if not self._refused[key]:
                    del self._refused[key]
            wait = max(wait - REFUSED_AFTER, 0.01)
        rate: float = getattr(self.limits, limit)
        return LimitExceeded(
            limit,
            f"{what} more often than {'once' if rate == 1 else f'{rate:g} times'} a second; nothing was done. Come "
            f"back in {wait:.2f} s",
            retry_after=timedelta(seconds=wait),
        )

    # How much

    def check_request(self, request: TaskRequest) -> None:
        """Refuse a call that has more than it may have."""
        limits = self.limits
        # A part that is not there may be a mapping that is no dictionary.
        sent = (request.arguments, request.meta, request.input_responses)
        check_json(
            "argument_bytes",
            f"The arguments of {request.name[:100]!r}, with what else the call brings along,",
            [*(None if value is None else dict(value) for value in sent), request.request_state],
            most=limits.argument_bytes,
            depth=limits.json_depth,
            around=1,
            written=encode_plain,
        )
        check_json(
            "client_bytes",
            "What a client says of itself",
            [None if value is None else dict(value) for value in (request.client_info, request.client_capabilities)],
            most=limits.client_bytes,
            depth=limits.json_depth,
            around=1,
            written=encode_plain,
        )

    def check_stream(self, ids: int) -> None:
        """Refuse a stream that names more tasks than it may."""
        if ids > self.limits.stream_tasks:
            raise LimitExceeded(
                "stream_tasks",
                f"A stream may name {self.limits.stream_tasks} tasks, and this one names {ids}: open another for the "
                "rest",
            )

    # How many at a time

    def open_stream(self, owner: str | None) -> Callable[[], None]:
        """Let an owner have one more stream, until the function that this gives is called."""
        return self._hold("owner_streams", owner, "streams open here", "name more tasks in one, or poll")

    def open_session(self, owner: str | None) -> Callable[[], None]:
        """Let an owner have one more session of an older version, until the function that this gives is called."""
        advice = "end one with DELETE, or wait until one that is not used has expired"
        return self._hold("owner_sessions", owner, "sessions open here", advice, retry_after=60.0)

    @contextmanager
    def waiting(self, owner: str | None, *, again: bool = False) -> Generator[None]:
        """While the block lasts, let a request of an owner wait for a task.

        Args:
            again: Whether it goes on with a call that was let in before. Twice as many may wait then: a refusal would
                lose the call's result, and others may have begun meanwhile.
        """
        advice = "wait until one of them is answered"
        close = self._hold("owner_waits", owner, "requests waiting for tasks here", advice, times=2 if again else 1)
        try:
            yield
        finally:
            close()

    def _hold(
        self, limit: str, owner: str | None, what: str, advice: str, *, retry_after: float = PATIENCE, times: int = 1
    ) -> Callable[[], None]:
        most: int | None = getattr(self.limits, limit)
        if owner is None or most is None or owner == self._free:
            return lambda: None
        held = self._held[limit]
        if held[owner] >= most * times:
            raise LimitExceeded(
                limit,
                f"You have {held[owner]} {what}, as many as you may have: {advice}",
                retry_after=timedelta(seconds=retry_after),
            )
        held[owner] += 1
        is_open = [True]

        def close() -> None:
            if is_open:
                is_open.clear()
                held[owner] -= 1
                if not held[owner]:
                    del held[owner]

        return close
