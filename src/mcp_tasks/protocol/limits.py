"""What callers may take of this process: how often they ask, how large what they send is, how many streams they have.

All of it is decided before anything is done. Owners are told apart by name, so a flood of one, whatever ids it asks
for, takes nothing of another's. Callers without a name are told apart by their connections, of which anybody may open
more: so there is also what they take together. Whether a task is there is looked up first; so whoever polls tasks that
are there is not held up by others on the same connection, which may be that of a proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import anyio

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE, JsonObject, JsonValue, check_json, is_large
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import Outcome, TaskRequest
from mcp_tasks.protocol.shapes import encode_plain

# ---- unread
# Bytes of large responses that their clients have not read yet: how many there may be of one owner, and in all.


AT_A_TIME: Final = 4
"""Outcomes of one owner that are read from the store at a time. Only then is known how large they are."""

AT_A_TIME_OF_NOBODY: Final = 16
"""The same of all callers without an owner together."""

RETRY_AFTER: Final = timedelta(seconds=1)


class Unread:
    """Counts them for one server.

    Attributes:
        given_back: How often something was given back. As long as it is the same, there is no more room than before.
    """

    def __init__(self, limits: Limits) -> None:
        self.given_back: int = 0
        self._limits = limits
        self._of_owner: Counter[str] = Counter()
        self._total = 0
        self._turns: dict[str | None, _Turns] = {}

    @asynccontextmanager
    async def turn(self, owner: str | None) -> AsyncGenerator[None]:
        """While the block lasts, an outcome may be read for an owner. Waits for a turn."""
        turns = self._turns.get(owner)
        if turns is None:
            turns = self._turns[owner] = _Turns(AT_A_TIME_OF_NOBODY if owner is None else AT_A_TIME)
        turns.users += 1
        try:
            async with turns.semaphore:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[owner]

    def take(self, owner: str | None, size: int) -> None:
        """Count so many bytes more, until they are given back.

        Raises:
            LimitExceeded: They are too many, beside what is not read yet.
        """
        most, at_all = self._limits.owner_unread_bytes, self._limits.unread_bytes
        of_owner = 0 if owner is None else self._of_owner[owner]
        # A single one may be as large as it is.
        if owner is not None and most is not None and of_owner and of_owner + size > most:
            raise LimitExceeded(
                "owner_unread_bytes",
                f"You have not read {of_owner:,} bytes of earlier answers: read them, then ask again",
                retry_after=RETRY_AFTER,
            )
        if at_all is not None and self._total and self._total + size > at_all:
            raise LimitExceeded(
                "unread_bytes",
                "The server waits for clients to read as many bytes as it may keep for them: ask again",
                retry_after=RETRY_AFTER,
            )
        self._total += size
        if owner is not None:
            self._of_owner[owner] += size

    def give_back(self, owner: str | None, size: int) -> None:
        """Count so many bytes less."""
        self.given_back += 1
        self._total -= size
        if owner is not None:
            self._of_owner[owner] -= size
            if not self._of_owner[owner]:
                del self._of_owner[owner]


class _Turns:
    def __init__(self, at_a_time: int) -> None:
        self.semaphore = asyncio.Semaphore(at_a_time)
        self.users = 0


class Held:
    """What is counted for one response."""

    __slots__ = ("_is_over", "_owner", "_unread", "size")

    def __init__(self, unread: Unread) -> None:
        self.size: int = 0
        self._unread = unread
        self._owner: str | None = None
        self._is_over = False

    def take(self, owner: str | None, size: int) -> None:
        """Count a part of the response.

        Raises:
            LimitExceeded: There is no room for it.
        """
        if not self._is_over:
            self.give_back()
            self._unread.take(owner, size)
            self._owner, self.size = owner, size

    def give_back(self) -> None:
        """That part has been sent."""
        if self.size:
            self._unread.give_back(self._owner, self.size)
            self.size = 0

    def close(self) -> None:
        """The response is over, and nothing of it counts any more."""
        self.give_back()
        self._is_over = True


current_held: ContextVar[Held | None] = ContextVar("mcp_tasks_held", default=None)
"""What is counted for the response that is being made; None where responses are not counted."""


def hold(owner: str | None, read: list[Outcome | None]) -> Outcome | None:
    """Count an outcome that was read for the response that is being made. Gives the outcome.

    Args:
        read: The outcome, which is taken out: otherwise the exception, with the frames that it passes, would keep an
            outcome that is refused for longer than one would think.

    Raises:
        LimitExceeded: There is no room for it.
    """
    held = current_held.get()
    size = 0 if held is None or read[0] is None else len(read[0].body)
    if held is not None and size > LARGE:
        try:
            held.take(owner, size)
        except LimitExceeded:
            read.clear()
            raise
    return read.pop()


MOST_KNOWN: Final = 10_000
"""Owners, or tasks, whose pace is remembered: those that asked last. Who is forgotten begins anew."""

PATIENCE: Final = 1.0
"""Seconds by which an answer is held back for who asks too often, before who goes on is refused."""

REFUSED_AFTER: Final = 0.5
"""Seconds by which a refusal is held back. Who asks again as soon as it is answered would otherwise be refused as often
as this process can say no, and everybody else would wait for that."""

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
"""Seconds: what adding and taking away leaves over."""


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
        # What may come at once counts from the first, which always may.
        self._ahead = max(rate, 1.0) * self._step - self._step
        self._patience = min(patience, MOST_HELD_BACK * self._step)
        self._turns: BoundedDict[str, float] = BoundedDict(MOST_KNOWN)

    def take(self, key: str, turns: int = 1) -> tuple[float, bool]:
        """Seconds to wait, and whether it may then be done; if not, it does not count. What takes several turns has
        those that come after it wait."""
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
        """Let what was taken last not count."""
        if key in self._turns:
            self._turns[key] -= self._step


class Limiting:
    """Refuses or slows what is too much, for all doors of one server.

    Args:
        clock: Seconds that only go forward.
        free: The owner who may ask and start tasks as often as it likes: the one user of a pipe, on a server where
            others have names.

    Attributes:
        limits: What callers may take.
        unread: What clients have not read yet.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, *, free: str | None = None) -> None:
        self.limits: Limits = limits
        self.unread: Unread = Unread(limits)
        self._free = free
        self._requests = _pace(limits.owner_requests, clock, PATIENCE)
        self._polls = _pace(limits.task_polls, clock, PATIENCE)
        self._owner_creates = _pace(limits.owner_creates, clock)
        self._nameless: dict[Kind, tuple[Pace | None, Pace | None]] = {}
        if limits.anonymous:
            self._nameless = {
                "creates": _paces(limits.connection_creates, limits.creates, clock),
                "cancels": _paces(limits.connection_cancels, limits.cancels, clock),
                "unknown": _paces(limits.connection_unknown, limits.unknown, clock),
            }
        self._held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._refused: Counter[str] = Counter()

    # How often

    async def request(self, owner: str | None, turns: int = 1) -> None:
        """Let an owner ask about tasks; a moment later, if it has asked too often.

        Args:
            turns: As how many requests it counts.

        Raises:
            LimitExceeded: It asks far too often.
        """
        if owner is None or self._requests is None or owner == self._free:
            return
        wait, may = self._requests.take(owner, turns)
        if not may:
            raise await self._too_often("owner_requests", "You ask about tasks", wait, owner)
        if wait:
            await anyio.sleep(wait)

    def not_asked(self, owner: str | None) -> None:
        """Let the last request of an owner not count: it is handed to another door, where it counts."""
        if owner is not None and self._requests is not None and owner != self._free:
            self._requests.give_back(owner)

    @property
    def counts_polls(self) -> bool:
        """Whether it counts how often callers without a name ask for one task."""
        return self._polls is not None

    async def poll(self, task_id: str) -> None:
        """Let a caller without a name look at a task, which exists; a moment later, if that was done too often.

        Raises:
            LimitExceeded: It is done far too often.
        """
        if self._polls is None:
            return
        wait, may = self._polls.take(task_id)
        if not may:
            raise await self._too_often("task_polls", "You ask about this task", wait, task_id)
        if wait:
            await anyio.sleep(wait)

    async def create(self, owner: str | None, request: TaskRequest, *, connection: str | None = None) -> None:
        """Let a call become a task; of a caller without a name a moment later, if there were too many.

        Raises:
            LimitExceeded: It is one too many a second, or has more than a call may have.
        """
        if owner is None:
            await self._take_nameless("creates", connection)
        elif self._owner_creates is not None and owner != self._free:
            wait, may = self._owner_creates.take(owner)
            if not may:
                raise await self._too_often("owner_creates", "You start tasks", wait, owner)
        if any(is_large(part) for part in (request.arguments, request.meta, request.input_responses)):
            # Others are served meanwhile: to go through a mebibyte of brackets takes a tenth of a second.
            await asyncio.to_thread(self.check_request, request)
        else:
            self.check_request(request)

    async def cancel(self, owner: str | None, connection: str | None) -> None:
        """Let a task be cancelled; by a caller without a name a moment later, if there were too many.

        Raises:
            LimitExceeded: There were far too many.
        """
        if owner is None:
            await self._take_nameless("cancels", connection)

    async def unknown(self, owner: str | None, connection: str | None) -> None:
        """Let a caller be told that there is no such task; one without a name a moment later, if there were too many.

        Raises:
            LimitExceeded: There were far too many.
        """
        if owner is None:
            await self._take_nameless("unknown", connection)

    def not_counted(self, kind: Kind, owner: str | None, connection: str | None) -> None:
        """Let the last of these not count: it is handed to another door, where it counts."""
        if owner is None and connection is not None and kind in self._nameless:
            own, total = self._nameless[kind]
            if own is not None and connection:
                own.give_back(connection)
            if total is not None:
                total.give_back(_ALL)

    async def _take_nameless(self, kind: Kind, connection: str | None) -> None:
        if connection is None or kind not in self._nameless:
            return
        (own, total), what, waits = self._nameless[kind], _WHAT[kind], [0.0]
        # All callers have one that the HTTP server does not name: it would be a second total.
        if own is not None and connection:
            wait, may = own.take(connection)
            if not may:
                raise await self._too_often(
                    f"connection_{kind}", f"On this connection, {what}", wait, f"{kind} {connection}"
                )
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

    async def _too_often(self, limit: str, what: str, wait: float, who: str) -> LimitExceeded:
        """The refusal, a moment later."""
        if self._refused[who] < MOST_HELD_BACK:
            self._refused[who] += 1
            try:
                await anyio.sleep(min(wait, REFUSED_AFTER))
            finally:
                self._refused[who] -= 1
                if not self._refused[who]:
                    del self._refused[who]
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
        """See that a call has no more than it may have.

        Raises:
            LimitExceeded: It has.
        """
        limits = self.limits
        check_json(
            "argument_bytes",
            f"The arguments of {request.name[:100]!r}, with what else the call brings along,",
            [*map(_plain, (request.arguments, request.meta, request.input_responses)), request.request_state],
            most=limits.argument_bytes,
            depth=limits.json_depth,
            around=1,
            written=encode_plain,
        )
        check_json(
            "client_bytes",
            "What a client says of itself",
            [_plain(request.client_info), _plain(request.client_capabilities)],
            most=limits.client_bytes,
            depth=limits.json_depth,
            around=1,
            written=encode_plain,
        )

    def check_stream(self, ids: int) -> None:
        """See that a stream names no more tasks than it may.

        Raises:
            LimitExceeded: It does.
        """
        if ids > self.limits.stream_tasks:
            raise LimitExceeded(
                "stream_tasks",
                f"A stream may name {self.limits.stream_tasks} tasks, and this one names {ids}: open another for the "
                "rest",
            )

    # How many at a time

    def open_stream(self, owner: str | None) -> Callable[[], None]:
        """Let an owner have one more stream, until what this gives is called.

        Raises:
            LimitExceeded: It has as many as it may have.
        """
        return self._hold("owner_streams", owner, "streams open here", "name more tasks in one, or poll")

    def open_session(self, owner: str | None) -> Callable[[], None]:
        """Let an owner have one more session of an older version, until what this gives is called.

        Raises:
            LimitExceeded: It has as many as it may have.
        """
        advice = "end one with DELETE, or wait until one that is not used has expired"
        return self._hold("owner_sessions", owner, "sessions open here", advice, retry_after=60.0)

    @contextmanager
    def waiting(self, owner: str | None, *, again: bool = False) -> Generator[None]:
        """While the block lasts, let a request of an owner wait for a task.

        Args:
            again: Whether it goes on with a call that was let in before. Twice as many may wait then: a refusal would
                lose the call's result, and others may have begun meanwhile.

        Raises:
            LimitExceeded: As many wait as may.
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
            return _nothing
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


def _plain(value: JsonObject | None) -> JsonValue:
    # Of what is not there, a request has a mapping that is no dictionary.
    return None if value is None else dict(value)


def _pace(rate: float | None, clock: Callable[[], float], patience: float = 0.0) -> Pace | None:
    return None if rate is None else Pace(rate, clock, patience)


def _paces(
    connection: float | None, total: float | None, clock: Callable[[], float]
) -> tuple[Pace | None, Pace | None]:
    return _pace(connection, clock, PATIENCE), _pace(total, clock, PATIENCE)


def _nothing() -> None:
    pass
