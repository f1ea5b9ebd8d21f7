"""Which workers are alive: this process's own lease, and its view of the others.

Times of two machines are never compared. A heartbeat is a number that grows; the observer measures on its own clock for
how long it has not, and counts only time in which it was itself awake and looking. So a clock that is set, a laptop
that sleeps and a virtual machine that is resumed end nothing.

A process that cannot renew its lease in time must expect that its tasks are given to others, so it stops its runs
before that. It measures on a clock that goes on while the machine sleeps, and after a long gap it looks at the store
before it does anything else.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import StoreError
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.stores.base import Store

# ---- worker name
# Who this process is, and whether another one that wrote its name into the store is still there.


def new_worker_name() -> str:
    return "/".join((boot(), str(os.getpid()), _start_time(os.getpid()) or "?", secrets.token_hex(4)))


def is_gone(worker: str) -> bool:
    """Whether the process of that name is known to have ended. False when that cannot be told."""
    pid, started = process_here(worker)
    if pid is None:
        return False
    if pid == os.getpid():
        # A name of our own process that is not ours: an earlier runtime in this process, still running or
        # stopped in order. Only a start time that differs says that the id was used again.
        return started not in ("?", _start_time(pid))
    return not _is_running(pid, started)


_abandoned: Final[set[str]] = set()


def abandon(worker: str) -> None:
    """From now on a worker of this process counts as dead while it has no heartbeat. For tests of recovery."""
    _abandoned.add(worker)


def process_here(worker: str) -> tuple[int | None, str]:
    """Process id and start time in a name that was given on this boot and in this id space; no id for any other."""
    place, _, rest = worker.partition("/")
    pid, _, rest = rest.partition("/")
    started, _, _ = rest.partition("/")
    return (int(pid) if place == boot() and pid.isdecimal() else None), started


def _is_running(pid: int, started: str) -> bool:
    if os.name == "nt":  # pragma: no cover - Windows, where the tests of processes do not run
        # There `os.kill` with 0 is not a question but an interrupt.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError, OSError):
        return True
    now = _start_time(pid)
    return started == "?" or now is None or now == started


def boot() -> str:
    """What makes a process id meaningful: this boot of this machine, and this container's id space."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # No /proc: a machine name is the best there is, and ids are taken at their word.
        return "-".join(os.uname().nodename.replace("/", " ").split()) if hasattr(os, "uname") else "this-machine"


def _start_time(pid: int) -> str | None:
    """When the process started, in the kernel's ticks; "dead" for one that only waits to be reaped."""
    fields = stat_of(pid)
    if fields is None:
        return None
    return "dead" if fields[0] in (b"Z", b"X") else fields[19].decode()


def stat_of(pid: int) -> list[bytes] | None:
    """What Linux says of a process, from its state on; None if it is not there, and on other systems."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, so count from the last one.
    return stat[stat.rindex(b")") + 2 :].split()


logger: Final = get_logger(__name__)

HEARTBEATS_PER_LEASE = 6
"""One may be late and some lost before anything comes of it."""

_ATTEMPTS_PER_HEARTBEAT = 5
"""How much more often a renewal that failed is tried again: an outage may end just before the runs must stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTimes:
    """When a process that cannot renew its lease stops, and when others take its tasks over: seconds, in this order.

    `stop` and `kill` count from the moment at which the process *sent* its last renewal, call it S. `takeover` counts
    on the clock of an observer, and never from before S:

    - The observer sees a count for the first time after the store took the renewal, so after S. If it looks rarely, or
      its timers are late, that is later still, and it only waits longer.
    - It adds up stretches of its own clock, each from the answer to one look until it asked for the next. In none of
      them did the count change. They do not overlap, so their sum is at most the time from its first sight of the
      count to the moment at which it asked for the last look. How long an answer takes counts for nothing.
    - So a takeover begins at S + `takeover` at the earliest. An acknowledgement that was lost moves S only for the
      observer, to a later moment.

    Between any two of the limits is a fifteenth of the lease, one second of the usual 15. From `stop` to `kill` it is
    for tools and child processes that end when they are asked to. From `kill` to `takeover` it is the margin: for
    clocks of two machines that run at different rates (at most a thousandth, if both are being adjusted: 23 ms of 15
    s), for timers that are late on a busy machine, and for the kernel to end what was killed.

    A process that is paused, or whose event loop is blocked, cannot keep any limit. When it goes on, `make_sure`
    stands before each step, question and child process.

    Attributes:
        heartbeat: Between two renewals.
        stop: The runs are stopped, also while a renewal is under way.
        kill: Their child processes get SIGKILL.
        takeover: For how long an observer sees the same count before it takes tasks over.
        longest_step: What one stretch may count for at most. Time in which an observer did not look proves little, so
            one look alone never proves a death.
    """

    heartbeat: float
    stop: float
    kill: float
    takeover: float
    longest_step: float

    @classmethod
    def of(cls, lease: timedelta, sweep_interval: timedelta) -> LeaseTimes:
        """The limits for a lease, where each process looks at the others once in a sweep interval.

        A count is seen up to a sweep after it was made, and so is the end of the waiting. The wait is shorter by a
        sweep, as far as the margin allows it, so that a death is found within the lease and one sweep.
        """
        length, sweep = lease.total_seconds(), sweep_interval.total_seconds()
        return cls(
            heartbeat=length / HEARTBEATS_PER_LEASE,
            stop=length * 10 / 15,
            kill=length * 11 / 15,
            takeover=max(length - sweep, length * 12 / 15),
            # A few sweeps may be late.
            longest_step=min(max(sweep * 3, length / 3), length / 2),
        )

    @property
    def late(self) -> float:
        """By how much a timer is late if the event loop was blocked, or the process paused."""
        return (self.kill - self.stop) / 4


def _clock_of_the_machine() -> Callable[[], float]:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    # Without it: macOS's CLOCK_MONOTONIC goes on too; elsewhere there is nothing better than `monotonic`.
    if clock is None:
        clock = getattr(time, "CLOCK_MONOTONIC", None)
    return time.monotonic if clock is None else partial(time.clock_gettime, clock)


uptime: Final = _clock_of_the_machine()
"""Seconds on a clock that is never set, and that goes on while the machine sleeps."""


class Lease:
    """This process's right to its claims.

    Args:
        heartbeat: Writes a heartbeat with this count into the store. Returns the count that was there before.
        look: Compares the runs of this process with their rows.
        stop_runs: Stops them all, without a word to the store.
        kill_children: Kills what is left of their child processes.
        take_up: Gives up what is claimed by this process and not run by it any more.
        clock: Goes on while the machine sleeps.
    """

    def __init__(
        self,
        times: LeaseTimes,
        *,
        heartbeat: Callable[[int], Awaitable[int]],
        look: Callable[[], Awaitable[None]],
        stop_runs: Callable[[], None],
        kill_children: Callable[[], None],
        take_up: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._times = times
        self._heartbeat = heartbeat
        self._look = look
        self._stop_runs = stop_runs
        self._kill_children = kill_children
        self._take_up = take_up
        self._clock = clock
        self._renewed = clock()
        # Counted here: no number comes twice, also when the store has forgotten the row or its last writes.
        self._beats = count(1)
        self._acknowledged: deque[tuple[int, float]] = deque(maxlen=HEARTBEATS_PER_LEASE * _ATTEMPTS_PER_HEARTBEAT)
        """The last heartbeats, with the time at which each was sent."""
        self._hurries_until = 0.0
        self._making_sure = asyncio.Lock()
        self._context = contextvars.copy_context()
        self._under_way = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._asking_late: asyncio.Task[None] | None = None
        self._is_kept = False
        self.is_valid: bool = True
        """Whether this process may claim tasks and run them."""

    async def renew(self) -> None:
        began = self._clock()
        lapsed = self.is_valid and self._time_left <= 0
        if lapsed:
            # Others may have claimed what we run, while this machine slept or its event loop was blocked.
            await self._look()
        if not await self._beat(began):
            return
        if lapsed:
            # Those who found us dead just before that may have claimed something since the first look.
            await self._look()
        if not self.is_valid:
            logger.warning("the lease of this process is renewed; its tasks are taken up again")
            # The next runs of the tasks may begin at once.
            self._kill_children()
            await self._look()
            await self._take_up()
            self.is_valid = True
            self._set_timer()

    async def _beat(self, began: float) -> bool:
        """Send a heartbeat, and say whether the lease is good by it.

        The lease counts from when the heartbeat was sent: the store may answer late.

        A failover may lose heartbeats that the store has acknowledged. Other processes then still see an older count.
        The next heartbeats repair that, and follow soon, for as long as the older count could make others take over.
        If heartbeats are lost again in that time, the others may have seen none of them: the lease then counts from
        the last heartbeat that the store still had.
        """
        known = list(self._acknowledged)
        beats = next(self._beats)
        before = await self._heartbeat(beats)
        self._acknowledged.append((beats, began))
        if not known or before >= known[-1][0]:
            self._renewed = max(self._renewed, began)
            return True
        logger.warning("the store has lost heartbeats of this process, most likely in a failover")
        kept = [sent for count, sent in known if count <= before] or [known[0][1]]
        self._renewed = kept[-1] if began < self._hurries_until else max(self._renewed, began)
        self._hurries_until = kept[-1] + self._times.takeover
        return self._time_left > 0

    async def keep(self) -> None:
        """Renew it for as long as this process serves. A timer stops the runs when that does not succeed in time."""
        times, loop, failures = self._times, asyncio.get_running_loop(), 0
        self._is_kept = True
        self._set_timer()
        pause = times.heartbeat
        try:
            while True:
                await asyncio.sleep(pause)
                began = loop.time()
                try:
                    # A store that does not answer is as bad as one that refuses. Once the runs are stopped there is no
                    # hurry, and a store that is slow has to be asked more than once.
                    hurried = times.heartbeat * (2 if self._time_left > 0 else 1)
                    await self._in_time(self._renew_whole(), hurried if self.is_valid else times.stop)
                    failures = 0
                except (StoreError, TimeoutError) as exc:
                    failures += 1
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    why = str(exc) or type(exc).__name__
                    logger.log(level, "the lease of this process could not be renewed: %s", why)
                except Exception:
                    failures += 1
                    logger.error("the lease of this process could not be renewed", exc_info=quietly())
                self._check()
                hurries = (failures or self._clock() < self._hurries_until) and self.is_valid
                pause = times.heartbeat / _ATTEMPTS_PER_HEARTBEAT if hurries else times.heartbeat
                pause = max(pause - (loop.time() - began), 0.0)
        finally:
            self._is_kept = False
            self._cancel_timer()
            if self._asking_late is not None:
                self._asking_late.cancel()

    async def _renew_whole(self) -> None:
        await self.renew()
        if self._time_left <= 0 and self._clock() >= self._hurries_until:
            # The machine slept in the middle of it. What was renewed is over by now, and the store is fine.
            await self.renew()

    async def make_sure(self) -> None:
        """Return when the lease is good, or the runs are stopped. Cheap while it is good; call it before work begins.

        After a machine slept or its event loop was blocked, tools may go on before the lease's own timer comes round,
        and what they would do may have been done elsewhere. The clock is looked at before anything is awaited.
        """
        if not self.is_valid or self._renewed + self._times.stop > self._clock():
            return
        async with self._making_sure:
            if self._time_left > 0 or not self.is_valid:
                return
            # As long as no one else may have begun, the stop may wait until the children must be killed, not longer.
            left = self._left_until(self._times.kill)
            try:
                await self._in_time(self.renew(), self._times.heartbeat if left <= 0 else max(left, self._times.late))
            except (StoreError, TimeoutError) as exc:
                logger.warning("the lease of this process could not be renewed: %s", str(exc) or type(exc).__name__)
            self._check()

    async def _in_time(self, work: Coroutine[Any, Any, None], limit: float) -> None:
        """Do the work, or give up on it when its time is over, without waiting for it to notice: a driver whose network
        is cut may take long for that.
        """
        task = self._start(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError
        task.result()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not in the context of a tool that makes sure: it is no part of it.
        return self._under_way.start(work, context=self._context.copy())

    @property
    def _time_left(self) -> float:
        """Seconds until the runs must be stopped; negative once they must."""
        return self._left_until(self._times.stop)

    def _left_until(self, limit: float) -> float:
        return self._renewed + limit - self._clock()

    def _check(self) -> None:
        if self.is_valid and self._time_left <= 0:
            self.is_valid = False
            logger.error("the lease of this process could not be renewed in time; its runs are stopped")
            self._stop_runs()
            self._set_timer()

    def _set_timer(self) -> None:
        """Wake up when the runs must be stopped, or when their child processes must be killed."""
        self._cancel_timer()
        if self._is_kept:
            limit = self._times.stop if self.is_valid else self._times.kill
            # An event loop may call a timer a nanosecond early, and again, and again.
            seconds = max(self._left_until(limit), 1e-6)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_up(self) -> None:
        if not self.is_valid:
            self._kill_children()
        elif self._time_left > 0:
            # It was renewed meanwhile.
            self._set_timer()
        elif self._time_left > -self._times.late:
            self._check()
        else:
            # The event loop was blocked, or the process paused: it is too late to be in time, and no renewal had its
            # turn. The store says whether anything was lost by that.
            self._asking_late = self._start(self._make_sure_late())

    async def _make_sure_late(self) -> None:
        # If it raises, no timer is set: that would be over at once, and again, and again.
        await self.make_sure()
        if self.is_valid:
            self._set_timer()


class Watch:
    """What one process sees of the heartbeats of the others.

    Args:
        times: How long a heartbeat may stay the same.
        clock: A clock that is never set.
    """

    def __init__(self, times: LeaseTimes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._times = times
        self._clock = clock
        self._answered = clock()
        self._heartbeats: dict[str, int] = {}
        self._silent: dict[str, float] = {}

    def dead(self, heartbeats: dict[str, int], *, asked: float) -> list[str]:
        """Those of the workers that are dead, given their heartbeats, which the store was `asked` for then and has
        given just now."""
        # Up to when they were asked for: later than that, each may have been renewed.
        step = min(max(asked - self._answered, 0.0), self._times.longest_step)
        self._answered = self._clock()
        self._silent = {
            worker: self._silent.get(worker, 0.0) + step if self._heartbeats.get(worker) == count else 0.0
            for worker, count in heartbeats.items()
        }
        self._heartbeats = dict(heartbeats)
        return [worker for worker, count in heartbeats.items() if self._is_dead(worker, count)]

    def is_unchanged(self, worker: str, heartbeats: dict[str, int]) -> bool:
        """Whether a worker has not come back since the last look."""
        return heartbeats.get(worker) == self._heartbeats.get(worker)

    def _is_dead(self, worker: str, count: int) -> bool:
        # One that has tasks and no heartbeat is waited for like any other. Most likely it has signed off. But a
        # failover may have lost the heartbeat, or a process removed it that found the worker dead just before it was
        # back, and whoever sees that may never have seen it beat.
        return self._silent[worker] >= self._times.takeover or is_gone(worker) or (count == 0 and worker in _abandoned)


# ---- draining
# The workers that an operator wants to drain, as a note in the store.


NOTE: Final = "draining workers"


async def draining_workers(store: Store, namespace: str) -> Mapping[str, str]:
    """The workers that are to drain, with the operator who asked for it."""
    return _read(await store.note(namespace, NOTE))


async def set_draining(
    store: Store, namespace: str, *, add: Mapping[str, str] | None = None, remove: Collection[str] = ()
) -> None:
    """Add workers, each with the operator who asks, or remove them. Workers that are gone are removed as well."""
    while True:
        before = await store.note(namespace, NOTE)
        there = await store.workers(namespace)
        wanted = {**_read(before), **(add or {})}
        kept = {worker: by for worker, by in wanted.items() if worker in there and worker not in remove}
        if await store.set_note(namespace, NOTE, json.dumps(kept).encode(), expected=before):
            return


def _read(note: bytes | None) -> dict[str, str]:
    # A later release may write more about a worker than a name.
    with suppress(ValueError):
        value: Any = json.loads(note or b"{}")
        if isinstance(value, dict):
            return {worker: str(by) for worker, by in cast("dict[str, Any]", value).items()}
    return {}
