"""Waiting runs leave memory once it is certain that they only wait."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.runtime.suspend import LOOK_AGAIN, TOGETHER, Parking, WaitingRoom
from tests.unit.running import settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

mark: contextvars.ContextVar[Any] = contextvars.ContextVar("mark", default=None)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Waiting:
    """A run that waits, and notes when it was parked and what was at work when it was looked at."""

    def __init__(self, parking: Parking, *, able: bool = True) -> None:
        self.able = able
        self.branches: set[str] = set()
        self.looks = 0
        self.parked_at: float | None = None
        self._parking = parking

    def may_park(self, branches: set[asyncio.Task[Any]]) -> bool:
        self.looks += 1
        self.branches = {branch.get_name() for branch in branches}
        return self.able

    async def park(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.parked_at = asyncio.get_running_loop().time()
        self._parking.remove(self)


@asynccontextmanager
async def parking(seats: int = 100) -> AsyncGenerator[Parking]:
    parking = Parking(mark, WaitingRoom(seats))
    serving = asyncio.create_task(parking.serve())
    await settle()
    yield parking
    serving.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_runs_are_parked_each_when_its_time_has_come() -> None:
    async with parking() as place:
        begun, runs = now(), {after: Waiting(place) for after in (30.0, 0.0, 5.0)}
        for after, run in runs.items():
            place.add(run, after)
        await time_passes(60)
        assert {after: (run.parked_at or 0.0) - begun for after, run in runs.items()} == pytest.approx(
            {after: after for after in runs}
        )


async def test_a_run_that_does_not_wait_any_more_is_not_parked() -> None:
    async with parking() as place:
        run = Waiting(place)
        place.add(run, 30)
        await time_passes(29)
        place.remove(run)
        place.remove(run)
        await time_passes(1_000)
        assert (run.looks, run.parked_at) == (0, None)


async def test_a_run_that_would_rather_stay_is_left_alone() -> None:
    async with parking() as place:
        run = Waiting(place)
        place.add(run, inf)
        await time_passes(1_000)
        await place.park_all()
        assert run.looks == 0


async def test_a_run_that_cannot_be_parked_is_looked_at_again_and_not_all_the_time() -> None:
    async with parking() as place:
        run = Waiting(place, able=False)
        place.add(run, 0)
        await time_passes(10.5 * LOOK_AGAIN)
        assert 10 <= run.looks <= 11
        assert run.parked_at is None
        run.able = True
        await time_passes(LOOK_AGAIN)
        assert run.parked_at is not None


async def test_with_too_many_waiting_in_memory_a_run_is_parked_at_once() -> None:
    async with parking(seats=0) as place:
        run = Waiting(place)
        place.add(run, 3_600)
        await settle()
        assert run.parked_at == pytest.approx(now())


async def test_a_process_that_stops_parks_everything_that_can_be_parked() -> None:
    async with parking() as place:
        runs = [Waiting(place, able=number % 2 == 0) for number in range(3 * TOGETHER)]
        for run in runs:
            place.add(run, 3_600)
        await place.park_all()
        assert [run.parked_at is not None for run in runs] == [True, False] * (3 * TOGETHER // 2)


async def test_a_run_is_told_which_asyncio_tasks_are_its_own() -> None:
    async with parking() as place:
        run, other = Waiting(place), Waiting(place)
        tasks = [_task_of(run, "own"), _task_of(run, "branch"), _task_of(other, "other")]
        await settle()
        for each in (run, other):
            place.add(each, 0)
        await settle()
        assert (run.branches, other.branches) == ({"own", "branch"}, {"other"})
        for task in tasks:
            task.cancel()


def _task_of(run: Waiting, name: str) -> asyncio.Task[None]:
    context = contextvars.copy_context()
    context.run(mark.set, run)
    return asyncio.get_running_loop().create_task(anyio.sleep_forever(), name=name, context=context)
