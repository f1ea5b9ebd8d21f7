"""Noticing signals, whoever handles them besides."""

import os
import signal
from collections.abc import Generator
from typing import Any

import anyio
import pytest

from mcp_tasks.server.signals import Stopping
from tests.unit.running import settle

TERM = signal.SIGTERM


class Handler:
    """Counts signals, and ends nothing."""

    def __init__(self) -> None:
        self.told = 0
        self._next = anyio.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.told += 1
        self._next.set()

    async def until_told(self) -> None:
        with anyio.fail_after(5):
            await self._next.wait()


@pytest.fixture(autouse=True)
def first() -> Generator[Handler]:
    """What handles the signal before anything here does."""
    handler = Handler()
    before = signal.signal(TERM, handler)
    yield handler
    signal.signal(TERM, before)


async def told(stopping: Stopping) -> bool:
    os.kill(os.getpid(), TERM)
    await settle()
    return stopping.event.is_set()


async def test_it_goes_before_the_handler_that_is_there_and_is_gone_afterwards(first: Handler) -> None:
    stopping = Stopping()
    stopping.watch()
    ours = signal.getsignal(TERM)
    stopping.watch()
    assert signal.getsignal(TERM) is ours, "watching again changes nothing if nobody else came"
    assert await told(stopping)
    # Who hears of the stop has a moment for a last word.
    assert first.told == 0
    await first.until_told()
    assert first.told == 1
    stopping.unwatch()
    assert signal.getsignal(TERM) is first


@pytest.mark.parametrize("seen", [True, False], ids=["after it was seen", "however busy the loop is"])
async def test_a_second_signal_is_handed_on_at_once(first: Handler, seen: bool) -> None:
    stopping = Stopping()
    stopping.watch()
    os.kill(os.getpid(), TERM)
    if seen:
        await settle()
    os.kill(os.getpid(), TERM)
    assert first.told == 2
    stopping.unwatch()


async def test_what_has_not_been_handed_on_is_when_the_watching_ends_even_if_that_ends_the_process() -> None:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(3)

    signal.signal(TERM, leave)
    stopping = Stopping()
    stopping.watch()
    assert await told(stopping)
    with pytest.raises(SystemExit):
        stopping.unwatch()
    assert signal.getsignal(TERM) is leave


def test_a_signal_after_the_end_of_its_loop_is_handed_on_at_once(first: Handler) -> None:
    async def leave_it_there() -> None:
        Stopping().watch()

    anyio.run(leave_it_there)
    os.kill(os.getpid(), TERM)
    assert first.told == 1


async def test_it_goes_before_one_that_is_put_there_later_as_well(first: Handler) -> None:
    stopping, later = Stopping(), Handler()
    stopping.watch()
    # As uvicorn does, which puts back what it found at its end.
    found = signal.signal(TERM, later)
    stopping.watch()
    assert await told(stopping)
    await later.until_told()
    assert (first.told, later.told) == (0, 1)
    signal.signal(TERM, found)
    stopping.unwatch()
    assert signal.getsignal(TERM) is first


@pytest.mark.parametrize("seen", [True, False], ids=["watched", "put there last"])
async def test_a_handler_of_others_that_stays_is_left_there(seen: bool) -> None:
    stopping, later = Stopping(), Handler()
    stopping.watch()
    signal.signal(TERM, later)
    if seen:
        stopping.watch()
    stopping.unwatch()
    # What was there when it came; what is behind that is not its own to change.
    assert signal.getsignal(TERM) is later
