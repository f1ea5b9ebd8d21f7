"""Waiting for something, or for an instant on a clock that may be set."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from mcp_tasks.runtime.suspend import FOREVER, LOOK_AGAIN, Alarms, Bell, later
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from tests.unit.running import settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


@pytest.mark.parametrize("until", [None, NOON + HOUR], ids=["for good", "an hour"])
async def test_a_bell_that_is_rung_ends_the_wait(until: datetime | None) -> None:
    alarms, bell = Alarms(FakeClock()), Bell()
    waiting = asyncio.create_task(alarms.wait(bell, until))
    await time_passes(100 * LOOK_AGAIN)
    assert not waiting.done()
    bell.ring()
    await settle()
    assert waiting.result() is True


async def test_a_bell_that_was_rung_before_is_not_waited_for() -> None:
    bell = Bell()
    bell.ring()
    assert await Alarms(FakeClock()).wait(bell, None) is True
    assert await Alarms(FakeClock()).wait(bell, NOON - HOUR) is True, "what is there counts, however late"


async def test_an_instant_that_has_come_is_not_waited_for() -> None:
    assert await Alarms(FakeClock()).wait(Bell(), NOON) is False


async def test_an_instant_is_waited_for_on_the_clock_and_not_on_the_event_loop() -> None:
    clock = FakeClock()
    alarms = Alarms(clock)
    waiting = asyncio.create_task(alarms.wait(Bell(), NOON + timedelta(seconds=10)))
    await time_passes(100 * LOOK_AGAIN)
    assert not waiting.done(), "the clock stood still"
    clock.advance(HOUR)
    await time_passes(2 * LOOK_AGAIN)
    assert waiting.result() is False


async def test_everybody_looks_at_a_clock_that_was_moved_at_once_when_told() -> None:
    clock = FakeClock()
    alarms = Alarms(clock)
    waiting = [asyncio.create_task(alarms.wait(Bell(), NOON + hours * HOUR)) for hours in (1, 2, 3)]
    await settle()
    clock.advance(2 * HOUR)
    alarms.stir()
    await settle()
    assert [each.done() for each in waiting] == [True, True, False]
    waiting[2].cancel()


async def test_a_clock_that_goes_back_wakes_nobody_early() -> None:
    clock = FakeClock()
    alarms = Alarms(clock)
    waiting = asyncio.create_task(alarms.wait(Bell(), NOON + HOUR))
    await settle()
    clock.advance(-HOUR)
    alarms.stir()
    clock.advance(HOUR)
    alarms.stir()
    await settle()
    assert not waiting.done()
    clock.advance(HOUR)
    alarms.stir()
    await settle()
    assert waiting.done()


async def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    alarms, bell = Alarms(FakeClock()), Bell()
    waiting = asyncio.create_task(alarms.wait(bell, None))
    await settle()
    waiting.cancel()
    await settle()
    bell.ring()
    alarms.stir()
    assert waiting.cancelled()
    assert await alarms.wait(bell, None) is True


@pytest.mark.parametrize(("duration", "instant"), [(HOUR, NOON + HOUR), (timedelta.max, FOREVER)])
def test_a_time_that_no_calendar_reaches_is_the_last_one_there_is(duration: timedelta, instant: datetime) -> None:
    assert later(NOON, duration) == instant
