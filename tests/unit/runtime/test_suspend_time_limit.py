"""The limit on running time: time at rest does not count, and time at work all does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks.errors import RanTooLong
from mcp_tasks.runtime.replay import Branches
from mcp_tasks.runtime.suspend import Life, Rest, TimeLimit, Turn, WaitingRoom
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

LIMIT = timedelta(seconds=60)

mark: contextvars.ContextVar[Any] = contextvars.ContextVar("mark", default=None)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class FreeSlot:
    """A slot that nobody else wants."""

    def claimed(self) -> None: ...

    def release(self) -> None: ...

    async def acquire(self) -> None: ...


class Limited:
    """A run with a limit, and the verdict over it."""

    def __init__(self) -> None:
        life = Life()
        life.take(Turn.ENTERED)
        self.rest = Rest(life, FreeSlot(), Branches(mark, self), WaitingRoom(1), contextvars.copy_context())
        self.verdicts: list[RanTooLong] = []
        self.limit = TimeLimit(LIMIT, self.rest, self._judge)

    async def _judge(self, verdict: RanTooLong) -> None:
        self.verdicts.append(verdict)

    async def wait_for(self, seconds: float) -> None:
        """Wait for a person."""
        async with self.rest.waiting(parkable=False):
            await time_passes(seconds)


@asynccontextmanager
async def limited() -> AsyncGenerator[Limited]:
    run = Limited()
    watching = asyncio.create_task(run.limit.watch("report"))
    yield run
    watching.cancel()
    await asyncio.wait({watching})


async def test_a_run_is_judged_when_it_has_worked_for_as_long_as_it_may() -> None:
    async with limited() as run:
        await time_passes(59)
        assert run.verdicts == []
        await time_passes(2)
        (verdict,) = run.verdicts
        assert (verdict.tool, verdict.limit) == ("report", LIMIT)


async def test_time_at_rest_does_not_count_however_long_and_how_often() -> None:
    async with limited() as run:
        for _ in range(5):
            await time_passes(11)
            await run.wait_for(10_000)
        assert run.verdicts == []
        await time_passes(4)
        assert run.verdicts == []
        await time_passes(3)
        assert len(run.verdicts) == 1


async def test_a_run_that_rests_when_its_time_would_be_over_is_not_judged() -> None:
    async with limited() as run:
        await time_passes(55)
        await run.wait_for(100_000)
        assert run.verdicts == []
        await time_passes(7)
        assert len(run.verdicts) == 1
