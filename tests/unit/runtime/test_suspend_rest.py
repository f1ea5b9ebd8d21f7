"""What a run holds while it works, and gives back while it only waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from mcp_tasks.runtime.replay import Branches
from mcp_tasks.runtime.suspend import Life, Rest, State, Turn, WaitingRoom
from tests.unit.running import settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

mark: contextvars.ContextVar[Any] = contextvars.ContextVar("mark", default=None)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class OneSlot:
    """A slot that others want too: it is had back when the test says so."""

    def __init__(self) -> None:
        self.held = True
        self.releases = 0
        self.free = anyio.Event()
        self.free.set()

    def claimed(self) -> None: ...

    def release(self) -> None:
        self.held = False
        self.releases += 1

    async def acquire(self) -> None:
        await self.free.wait()
        self.held = True


class Resting:
    """One run, as far as it rests."""

    def __init__(self, seats: int = 100) -> None:
        context = contextvars.copy_context()
        mark.set(self)
        self.life, self.slot, self.room = Life(), OneSlot(), WaitingRoom(seats)
        self.branches = Branches(mark, self)
        self.branches.enter()
        self.life.take(Turn.ENTERED)
        self.rest = Rest(self.life, self.slot, self.branches, self.room, context)

    async def wait(self, reached: anyio.Event, *, parkable: bool = False) -> None:
        async with self.rest.waiting(parkable=parkable):
            await reached.wait()
        assert self.slot.held or not self.life.counts, "nothing goes on without a slot"

    @asynccontextmanager
    async def waits(self, **options: bool) -> AsyncGenerator[anyio.Event]:
        """A branch that waits meanwhile, until it is told, or to the end."""
        reached = anyio.Event()
        waiting = asyncio.create_task(self.wait(reached, **options))
        await settle()
        yield reached
        reached.set()
        await waiting


async def test_a_run_that_waits_has_no_slot_and_has_it_again_before_it_goes_on() -> None:
    run = Resting()
    async with run.waits() as answered:
        assert (run.slot.held, run.rest.is_resting, run.life.state) == (False, True, State.WAITING)
        run.slot.free = anyio.Event()
        answered.set()
        await settle()
        assert run.rest.waits == 1, "it stands in line"
        run.slot.free.set()
    assert (run.slot.held, run.rest.is_resting, run.life.state) == (True, False, State.WORKING)


async def test_branches_that_wait_together_give_one_slot_back() -> None:
    run = Resting()
    async with run.waits(), run.waits() as other:
        assert (run.slot.releases, run.rest.waits) == (1, 2)
        other.set()
        await settle()
        assert (run.slot.held, run.rest.waits) == (True, 1)
    assert run.slot.releases == 1


async def test_a_step_keeps_the_slot_however_many_branches_wait() -> None:
    run = Resting()
    async with run.rest.stepping(), run.waits():
        assert (run.slot.held, run.rest.in_steps, run.life.state) == (True, True, State.WORKING)
    assert not run.rest.in_steps


async def test_with_its_last_step_done_a_run_that_waits_rests() -> None:
    run, done = Resting(), anyio.Event()

    async def step() -> None:
        async with run.rest.stepping():
            await done.wait()

    stepping = asyncio.create_task(step())
    await settle()
    async with run.waits():
        assert run.slot.held
        done.set()
        await stepping
        assert (run.slot.held, run.life.state) == (False, State.WAITING)


async def test_a_step_that_begins_while_the_run_rests_has_the_slot_first() -> None:
    run = Resting()
    async with run.waits():
        async with run.rest.stepping():
            assert (run.slot.held, run.life.state) == (True, State.WORKING)
        assert not run.slot.held


async def test_time_at_rest_is_counted_and_time_in_line_too() -> None:
    run = Resting()
    async with run.waits() as answered:
        await time_passes(60)
        assert run.rest.rested == pytest.approx(60)
        run.slot.free = anyio.Event()
        answered.set()
        await time_passes(30)
        run.slot.free.set()
        await settle()
    await time_passes(1_000)
    assert run.rest.rested == pytest.approx(90)


async def test_a_run_that_is_over_does_not_stand_in_line_for_a_slot() -> None:
    run = Resting()
    async with run.waits() as answered:
        run.slot.free = anyio.Event()
        answered.set()
        await settle()
        assert run.rest.is_resting
        run.life.take(Turn.STOPPED)
        await settle()
        assert (run.rest.is_resting, run.rest.waits) == (False, 0)
    assert not run.slot.held


async def test_a_branch_that_is_cancelled_while_it_waits_does_not_work_without_a_slot() -> None:
    run, went_on = Resting(), list[bool]()

    async def branch() -> None:
        try:
            await run.wait(anyio.Event())
        except asyncio.CancelledError:
            went_on.append(run.slot.held)

    waiting = asyncio.create_task(branch())
    await settle()
    run.slot.free = anyio.Event()
    waiting.cancel()
    await settle()
    assert went_on == []
    run.slot.free.set()
    await waiting
    assert went_on == [True]


async def test_beyond_a_number_of_waiting_runs_the_next_one_keeps_its_slot() -> None:
    run = Resting(seats=0)
    async with run.waits():
        assert (run.slot.held, run.rest.is_resting, run.life.state) == (True, False, State.WORKING)


async def test_one_that_can_be_parked_at_once_needs_no_seat() -> None:
    run = Resting(seats=0)
    async with run.waits(parkable=True):
        assert (run.slot.held, run.life.state) == (False, State.WAITING)
        assert run.room.is_full


async def test_a_seat_is_given_back_with_the_end_of_the_wait_or_of_the_run() -> None:
    run = Resting(seats=1)
    async with run.waits():
        assert run.room.is_full
    assert not run.room.is_full
    async with run.waits():
        run.life.take(Turn.STOPPED)
        run.rest.end()
        run.rest.end()
        assert not run.room.is_full
    assert run.room.enter(standing=False)
    assert not run.room.enter(standing=False), "there is one seat, however it was given back"


async def test_a_thread_that_waits_is_made_up_for() -> None:
    run = Resting()
    limiter = anyio.to_thread.current_default_thread_limiter()
    before = limiter.total_tokens
    seen: list[float] = []

    async def ask() -> None:
        async with run.rest.waiting(parkable=False):
            seen.append(limiter.total_tokens)

    await anyio.to_thread.run_sync(anyio.from_thread.run, ask)
    assert (seen, limiter.total_tokens) == ([before + 1], before)


async def test_a_step_does_not_begin_in_a_run_that_is_stopped_while_it_stands_in_line() -> None:
    run, begun = Resting(), list[str]()

    async def step() -> None:
        async with run.rest.stepping():
            begun.append("step")

    async with run.waits():
        run.slot.free = anyio.Event()
        stepping = asyncio.create_task(step())
        await settle()
        assert not stepping.done()
        run.life.take(Turn.STOPPED)
        await asyncio.wait({stepping})
    assert (stepping.cancelled(), begun, run.rest.in_steps) == (True, [], False)
