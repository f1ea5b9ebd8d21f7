"""Waiting runs leave memory here, once it is certain that they only wait.

A run adds itself when its tool's own asyncio task waits for an answer or a timer. After a while its asyncio tasks are
looked at, in one look for all runs whose time has come: if the tool's own is the only one, nothing else is at work.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary, proxy

import anyio
import anyio.to_thread

from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import LimitReached, RanTooLong
from mcp_tasks.model.machine import RunParked, RunPaused, RunResumed, RunResumeRequested, StepRecorded
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.replay import Branches, Replay, ResultId, Timer, done_entry, tasks_by_value, timer_entry
from mcp_tasks.stores.base import WorkLimits

if TYPE_CHECKING:
    from mcp_tasks.model.record import TaskRecord
    from mcp_tasks.runtime.run import Host, Run

# ---- place
# The place of one run under the limits of its tool and its owner (`WorkLimits`): given up while the run only waits,
# and taken again before it goes on.


GIVES_UP_AFTER: Final = 0.05
"""Seconds that a run has to wait before it gives up its place: a shorter wait costs no writes."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between two tries to take a place that a run of another process may have given up."""


class Lines:
    """The runs of one process that want a place and found none: of one tool and owner, only the first one tries."""

    def __init__(self) -> None:
        self._first: WeakValueDictionary[tuple[str, str, str | None], asyncio.Lock] = WeakValueDictionary()
        # Ordered: who has waited longest is first.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def of(self, record: TaskRecord) -> asyncio.Lock:
        """The line of the tasks of the same tool and owner: who has the lock is the first."""
        return self._first.setdefault((record.method, record.name, record.owner), asyncio.Lock())

    def stir(self) -> None:
        """A run of this process gave up its place, or ended: there may be a free one."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return when there may be a free place."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            del self._waiting[waiting]


class Place:
    """The place of one run. `Rest` says when: it calls one method at a time."""

    def __init__(self, run: Run, limits: WorkLimits, lines: Lines, made_room: Callable[[], None]) -> None:
        # Not kept alive by its own parts, as in `Recording`.
        self._run: Run = proxy(run)
        self._limits = limits
        self._lines = lines
        self._made_room = made_room

    def help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the tool, until the run is over."""
        return self._run.help(work)

    async def give_up(self) -> None:
        """Let another run have it."""
        run = self._run
        if run.record.pause is None and await run.recording.write_patiently(RunPaused(attempt=run.attempt)):
            self._made_room()

    async def take(self, slot: Slot) -> None:
        """Return when the run has its place and a slot.

        Returns without the place if the task is not the run's any more. The run is being stopped then.
        """
        if await self._take(slot):
            return
        slot.release()
        run = self._run
        await run.recording.write_patiently(RunResumeRequested(attempt=run.attempt))
        async with self._lines.of(run.record):
            pause = FIRST_PAUSE
            while not await self._take(slot):
                slot.release()
                await self._lines.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only to be out of step
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _take(self, slot: Slot) -> bool:
        """Take a slot and the place; False if there is no place."""
        await slot.acquire()
        run = self._run
        try:
            if run.record.pause is not None:
                await run.recording.write_patiently(RunResumed(attempt=run.attempt), limits=self._limits)
        except LimitReached:
            return False
        return True


# ---- life
# The life of one run, as one table.


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


# ---- leaving
# How one run leaves memory while it only waits, so that it can be brought back by what was journalled.


logger: Final = get_logger(__name__)


class Leaving:
    """Whether one run may be parked, and how it is."""

    def __init__(self, run: Run, host: Host) -> None:
        self._run = run
        self._host = host
        self._parks_for: RunParked | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the tool's own asyncio task waits for something that would bring the run back."""
        return self._parks_for is not None

    @asynccontextmanager
    async def while_waiting(
        self, *, keys: frozenset[str] = frozenset(), wake_at: datetime | None = None
    ) -> AsyncGenerator[None]:
        """While this is entered, and nothing else of the tool is at work, the run may leave memory.

        Only in the tool's own asyncio task, and only with no deadline around it: what else waits for this one, and with
        which time-out, cannot be seen from a branch.
        """
        run = self._run
        own = asyncio.current_task() is run.branches.own
        if not (own and run.policy.rerun and anyio.current_effective_deadline() == inf):
            async with run.rest.waiting(parkable=False):
                yield
            return
        async with run.rest.waiting(parkable=True):
            self._parks_for = RunParked(attempt=run.attempt, keys=keys, wake_at=wake_at)
            self._host.parking.add(run, self._after(keys, wake_at))
            try:
                yield
            finally:
                # Before it stands in line for a slot: what it waited for is there.
                self.stay()

    def stay(self) -> None:
        """Do not leave: there is something to do, or the run has ended."""
        self._parks_for = None
        self._host.parking.remove(self._run)

    @contextmanager
    def held(self) -> Generator[None]:
        """While this is entered, the run does not leave: what it waited for may be there."""
        parks_for, self._parks_for = self._parks_for, None
        try:
            yield
        finally:
            self._parks_for = parks_for

    async def park(self) -> None:
        """Leave memory."""
        run = self._run
        if self._parks_for is None or not run.life.take(Turn.PARKS):
            return
        try:
            written = await run.recording.write_leaving(*run.reported(), self._parks_for)
        except Exception as exc:
            logger.info("task %s… waits on in memory: %s", run.record.id[:12], what(exc))
            run.life.take(Turn.STAYS)
            return
        run.stop()
        if not written:
            return
        if run.record.is_queued(run.now()):
            # What it waited for came while it was being parked.
            await self._host.submit(run.record)
        else:
            await self._host.submit_later(run.record)

    def _after(self, keys: frozenset[str], wake_at: datetime | None) -> float:
        """Seconds to stay in memory first. A sleep is known to be long or short; an answer may come any time."""
        stay = self._run.policy.park_after.total_seconds()
        if keys or wake_at is None:
            return stay
        return 0.0 if (wake_at - self._run.now()).total_seconds() > stay else inf


# ---- alarms
# Waiting for something to happen, or for an instant on the runtime's clock: that clock may be set, or be a test's.


LOOK_AGAIN = 1.0
"""Seconds between two looks at the clock: it need not run like the event loop's."""


FOREVER = datetime.max.replace(tzinfo=UTC)


def later(now: datetime, duration: timedelta) -> datetime:
    """The instant that is `duration` from `now`, or the last one that a datetime can express."""
    try:
        return now + duration
    except OverflowError:
        return FOREVER


class Bell:
    """Rung once, by whoever has what a branch waits for."""

    def __init__(self) -> None:
        self.rung: bool = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """What was waited for is there."""
        self.rung = True
        self.stir()

    def stir(self) -> None:
        """Have whoever waits look again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return when it is rung or stirred, or the time is over."""
        self._sleeper = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._sleeper}, timeout=seconds)


class Alarms:
    """Everybody who waits for an instant."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._bells: set[Bell] = set()

    def stir(self) -> None:
        """Have everybody look at the clock again, because it was moved."""
        for bell in self._bells:
            bell.stir()

    async def wait(self, bell: Bell, until: datetime | None) -> bool:
        """Wait for the bell, or for the instant if there is one; whether the bell was rung."""
        self._bells.add(bell)
        try:
            while not bell.rung:
                seconds = None if until is None else (until - self._now()).total_seconds()
                if seconds is not None and seconds <= 0:
                    return False
                await bell.wait(None if seconds is None else min(seconds, LOOK_AGAIN))
            return True
        finally:
            self._bells.discard(bell)


# ---- timers
# Sleeps that survive restarts: each is set once in the life of the task.


class Timers:
    """The sleeps of one run."""

    def __init__(self, run: Run, replay: Replay) -> None:
        self._run = run
        self._replay = replay

    async def sleep(self, duration: timedelta | None, until: datetime | None, name: str | None) -> None:
        """Wait for a time that is set once in the life of the task."""
        run = self._run
        await run.make_sure()
        key, recorded = self._replay.find_timer(_identity(duration, until, name))
        result = ResultId("timer", key)
        run.deliveries.met(result)
        if self._replay.gives_up(result):
            await run.give_up_again()
        async with run.recording.giving_up(result):
            if run.deliveries.has(result):
                await run.deliveries.recorded(result)
            else:
                await self._sleep(result, recorded or _end(run.now(), duration, until), is_set=recorded is not None)

    async def _sleep(self, result: ResultId, until: datetime, *, is_set: bool) -> None:
        run = self._run
        place = run.place
        if not is_set:
            run.recording.require_room()
            timer = Timer(key=result.key, until=until)
            await run.deliveries.caught_up(str(result))
            await run.recording.record(StepRecorded(attempt=run.attempt), entries=[timer_entry(timer, place)])
        async with run.leaving.while_waiting(wake_at=until):
            await run.alarms.wait(Bell(), until)
        await run.deliveries.caught_up(f"the end of {result}")
        entry = done_entry(result, "over", place)
        await run.recording.record_in_turn(StepRecorded(attempt=run.attempt), entries=[entry])


def _identity(duration: timedelta | None, until: datetime | None, name: str | None) -> str:
    if name is not None:
        return f"name:{name}"
    return f"until:{until.isoformat()}" if until is not None else f"sleep:{duration}"


def _end(now: datetime, duration: timedelta | None, until: datetime | None) -> datetime:
    return until if until is not None else later(now, duration or timedelta(0))


# ---- uncancelled
# Finishing what must not be left half done, although the code that waits for it is cancelled.


T = TypeVar("T")


async def uncancelled(
    work: Coroutine[Any, Any, T] | asyncio.Task[T],
    *,
    context: contextvars.Context | None = None,
    unless: asyncio.Future[None] | None = None,
) -> T:
    """The result of `work`, which runs to its end. A cancellation that comes meanwhile is raised after that.

    A shield of anyio's holds off the cancellation of a scope and not `Task.cancel()`; this holds off both. When
    `unless` is done first, the work is cancelled and not waited for.
    """
    done, cancelled = await to_the_end(work, context=context, unless=unless)
    if not done.done():
        done.cancel()
        _cancelled.add(done)
        done.add_done_callback(_cancelled.discard)
        raise cancelled or asyncio.CancelledError
    if cancelled is not None:
        if not done.cancelled():
            # Looked at, so that asyncio does not report it as never retrieved.
            done.exception()
        raise cancelled
    return done.result()


_cancelled: Final[set[asyncio.Task[Any]]] = set()
"""Work that was cancelled and has not ended: a driver whose network is cut may take long for that."""


async def to_the_end(
    work: Coroutine[Any, Any, T] | asyncio.Task[T],
    *,
    context: contextvars.Context | None = None,
    unless: asyncio.Future[None] | None = None,
) -> tuple[asyncio.Task[T], asyncio.CancelledError | None]:
    """`work` once it has ended, and the cancellation that came meanwhile and is the caller's to raise.

    Also when `unless` is done: the work may go on then.
    """
    inner = work if isinstance(work, asyncio.Task) else asyncio.get_running_loop().create_task(work, context=context)
    cancelled: asyncio.CancelledError | None = None
    waited_for = {inner} if unless is None else {inner, unless}
    with anyio.CancelScope(shield=True):
        while not inner.done() and not (unless is not None and unless.done()):
            try:
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as exc:
                cancelled = exc
    return inner, cancelled


def uncancel() -> None:
    """Take back every cancellation of the calling asyncio task."""
    current = asyncio.current_task()
    while current is not None and current.cancelling() > 0:
        current.uncancel()


# ---- rest
# What a run occupies while it works and gives back while it only waits: its slot, its thread, its running time, and
# its place under the limits of its tool and its owner (`suspend.py`).


RESTS_AGAIN_AFTER = 0.25
"""Seconds for which a branch that goes on keeps the slot, while others wait and it does no step."""


class WaitingRoom:
    """How many runs may wait in memory without a slot."""

    def __init__(self, seats: int) -> None:
        self._free = seats

    @property
    def is_full(self) -> bool:
        """Whether the next one would have to keep its slot."""
        return self._free <= 0

    def enter(self, *, standing: bool) -> bool:
        """Take a seat if there is one. Who leaves soon may stand."""
        if self.is_full and not standing:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """Give the seat back."""
        self._free += 1


class Rest:
    """One run at work and at rest.

    Attributes:
        place: Its place under the limits; None where there are no limits.
    """

    place: Place | None = None

    def __init__(
        self, life: Life, slot: Slot, branches: Branches, room: WaitingRoom, context: contextvars.Context
    ) -> None:
        self._context = context
        self._life = life
        self._slot = slot
        self._branches = branches
        self._room = room
        self._waits = 0
        self._standing = 0
        self._steps = 0
        self._idle = False
        self._resting = False
        self._thread_lent = False
        self._changing = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._rested_since = 0.0
        self._rested = 0.0

    @property
    def is_resting(self) -> bool:
        """Whether the run occupies no slot."""
        return self._resting

    @property
    def in_steps(self) -> bool:
        """Whether a step is being done, or recorded."""
        return self._steps > 0

    @property
    def waits(self) -> int:
        """How many branches wait."""
        return self._waits

    @property
    def rested(self) -> float:
        """Seconds that the run has spent at rest: no running time."""
        now = asyncio.get_running_loop().time()
        return self._rested + (now - self._rested_since if self._resting else 0.0)

    @asynccontextmanager
    async def waiting(self, *, parkable: bool, to_give_up: bool = False) -> AsyncGenerator[None]:
        """A branch waits while this is entered, and has the slot again before it goes on.

        A run that can be parked while it waits needs no seat: with none free, it is parked at once. A branch that waits
        to give up does not wait for us.
        """
        self._waits += 1
        self._standing += parkable
        try:
            with self._branches.waiting(to_give_up=to_give_up):
                self._rest_if_idle()
                yield
        finally:
            try:
                await self._life.parking_decided()
                await self._resume()
            finally:
                self._waits -= 1
                self._standing -= parkable
                self._watch()

    @asynccontextmanager
    async def stepping(self) -> AsyncGenerator[None]:
        """A step is being done while this is entered."""
        self._steps += 1
        try:
            with self._branches.stepping():
                await self._resume()
                if not self._life.counts:
                    # Stopped while it stood in line for its slot: nothing begins in such a run, and it has no slot.
                    raise asyncio.CancelledError
                yield
        finally:
            self._steps -= 1
            self._rest_if_idle()

    async def begin(self) -> None:
        """Wait for a place before the tool is entered: the run was suspended, and was claimed without a place."""
        self._idle = True
        self._rest(standing=True)
        await self._resume()

    def end(self) -> None:
        """The run is over; give back what it still has, but for the slot, which is the engine's to take."""
        if self._watching is not None:
            self._watching.cancel()
        if self._resting:
            self._get_up()

    def _watch(self) -> None:
        """A branch goes on, and others wait: rest again in a moment, unless it does a step."""
        is_watched = self._watching is not None and not self._watching.done()
        if self._waits and not self._idle and not is_watched and self._life.counts:
            self._watching = asyncio.get_running_loop().create_task(self._rest_again(), context=self._context.copy())

    async def _rest_again(self) -> None:
        # The others may wait for something that needs the slot. Nothing tells when the branch ends, or waits for them.
        await asyncio.sleep(RESTS_AGAIN_AFTER)
        self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        # Not while a branch is coming back: it would go on without what is given up now.
        if not self._waits or self._steps or not self._life.counts or self._changing.locked():
            return
        self._idle = True
        if self.place is not None and (self._giving_up is None or self._giving_up.done()):
            self._giving_up = self.place.help(self._give_up_soon(self.place))
        if not self._resting:
            self._rest(standing=self._standing > 0)

    def _rest(self, *, standing: bool) -> None:
        if self._room.enter(standing=standing):
            self._resting = True
            self._rested_since = asyncio.get_running_loop().time()
            self._lend_thread()
            self._slot.release()
            self._life.take(Turn.WAITS)

    async def _give_up_soon(self, place: Place) -> None:
        """Give up the place, if the run still waits in a moment: a short wait costs no writes."""
        await asyncio.sleep(GIVES_UP_AFTER)
        # A branch that comes back before this keeps the place; one that comes after it takes it again.
        async with self._changing:
            if self._idle and self._life.counts:
                await place.give_up()

    async def _resume(self) -> None:
        """Have the slot and the place again, if the run is at rest.

        Not to be cancelled: a branch whose time-out fired goes on behind it, and must not work without them.
        """
        if self._resting or (self._idle and self.place is not None):
            await uncancelled(self._go_on(), context=self._context.copy())
        else:
            self._idle = False

    async def _go_on(self) -> None:
        # Branches that come back at once share the slot and the place, and wait for them together.
        async with self._changing:
            if self._idle and self._life.counts:
                # The time in line does not count as running time either.
                await self._acquire_unless_over()
            self._idle = False
            if self._resting:
                self._get_up()

    async def _acquire_unless_over(self) -> None:
        acquiring = asyncio.ensure_future(self._slot.acquire() if self.place is None else self.place.take(self._slot))
        over = asyncio.ensure_future(self._life.over.wait())
        await asyncio.wait({acquiring, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not acquiring.done():
            acquiring.cancel()
            await asyncio.wait({acquiring})
        elif not acquiring.cancelled():
            acquiring.result()
        if not self._life.counts:
            # A branch that was left behind. The engine took the slot back when the run ended, and does so only once.
            self._slot.release()

    def _get_up(self) -> None:
        self._resting = False
        self._rested += asyncio.get_running_loop().time() - self._rested_since
        self._room.leave()
        if self._thread_lent:
            self._thread_lent = False
            anyio.to_thread.current_default_thread_limiter().total_tokens -= 1
        self._life.take(Turn.GOES_ON)

    def _lend_thread(self) -> None:
        """A sync tool that waits keeps its thread; the others get one more in its place."""
        limiter = anyio.to_thread.current_default_thread_limiter()
        if self._branches.own in limiter.statistics().borrowers:
            self._thread_lent = True
            limiter.total_tokens += 1


TOGETHER = 100
"""Runs that are parked at a time, so that a store which groups its commits can."""


class Parkable(Protocol):
    """A run, as far as it is parked."""

    def may_park(self, branches: set[asyncio.Task[Any]]) -> bool:
        """Whether it only waits, given the asyncio tasks that belong to it."""
        ...

    async def park(self) -> None:
        """Leave memory."""
        ...


class Parking:
    """The runs of a process that may leave memory."""

    def __init__(self, mark: contextvars.ContextVar[Any], room: WaitingRoom) -> None:
        self.room = room
        self._mark = mark
        self._due: dict[Parkable, float] = {}
        self._added = asyncio.Event()

    def add(self, run: Parkable, after: float) -> None:
        """Park this run after so many seconds, if it still waits then; at once if too many wait in memory."""
        if after < inf:
            self._due[run] = asyncio.get_running_loop().time() + (0.0 if self.room.is_full else after)
            self._added.set()

    def remove(self, run: Parkable) -> None:
        """It does not wait any more."""
        self._due.pop(run, None)

    async def park_all(self) -> None:
        """Park everything that can be, however short it has waited: the process stops."""
        await self._park(list(self._due))

    async def serve(self) -> None:
        """Park what has waited long enough."""
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now = loop.time()
            due = [run for run, at in self._due.items() if at <= now]
            if due:
                await self._park(due)
            else:
                await self._sleep(min(self._due.values(), default=inf) - now)

    async def _park(self, due: list[Parkable]) -> None:
        tasks = tasks_by_value(self._mark)
        later = asyncio.get_running_loop().time() + LOOK_AGAIN
        able = [run for run in due if run.may_park(tasks.get(run, set()))]
        # Of those that go, the entry goes with them.
        self._due.update(dict.fromkeys((run for run in due if run in self._due), later))
        for start in range(0, len(able), TOGETHER):
            await asyncio.gather(*(run.park() for run in able[start : start + TOGETHER]))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                await self._added.wait()
        except TimeoutError:
            pass


# ---- time limit
# The limit on running time. Time at rest does not count.


class TimeLimit:
    """Watches one run, and judges it when its time is over."""

    def __init__(self, limit: timedelta, rest: Rest, judge: Callable[[RanTooLong], Awaitable[None]]) -> None:
        self._limit = limit
        self._rest = rest
        self._judge = judge

    async def watch(self, tool: str) -> None:
        """Wait until the run has worked for as long as it may."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        left = self._limit.total_seconds()
        while left > 0:
            # At rest the end moves on with the time, and is looked at again soon.
            await anyio.sleep(max(left, 1.0) if self._rest.is_resting else left)
            left = started + self._limit.total_seconds() + self._rest.rested - loop.time()
        await self._judge(RanTooLong(tool, self._limit))
