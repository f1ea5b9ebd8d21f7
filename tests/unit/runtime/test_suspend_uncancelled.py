"""What must not be left half done runs to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.runtime.suspend import uncancelled
from tests.unit.running import settle
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


class Work:
    """Work that ends when the test says so."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.may_end = anyio.Event()
        self.done = False
        self._failure = failure

    async def do(self) -> str:
        await self.may_end.wait()
        self.done = True
        if self._failure is not None:
            raise self._failure
        return "done"


async def test_work_gives_what_it_gives_and_raises_what_it_raises() -> None:
    good, bad = Work(), Work(ValueError("no"))
    for work in (good, bad):
        work.may_end.set()
    assert await uncancelled(good.do()) == "done"
    with pytest.raises(ValueError, match="no"):
        await uncancelled(bad.do())


Wait: TypeAlias = Callable[[], Awaitable[object]]


def _by_task(wait: Wait) -> tuple[asyncio.Task[object], Callable[[], object]]:
    async def waiting() -> object:
        return await wait()

    task = asyncio.create_task(waiting())
    return task, task.cancel


def _by_scope(wait: Wait) -> tuple[asyncio.Task[object], Callable[[], object]]:
    scope = anyio.CancelScope()

    async def waiting() -> object:
        with scope:
            return await wait()
        raise asyncio.CancelledError

    return asyncio.create_task(waiting()), scope.cancel


@pytest.mark.parametrize("cancel_by", [_by_task, _by_scope], ids=["task", "scope"])
@pytest.mark.parametrize("failure", [None, ValueError("no")], ids=["succeeds", "fails"])
async def test_work_runs_to_its_end_and_the_cancellation_comes_after_it(
    cancel_by: Callable[[Wait], tuple[asyncio.Task[object], Callable[[], object]]], failure: Exception | None
) -> None:
    work, went_on = Work(failure), list[str]()

    async def wait() -> None:
        try:
            await uncancelled(work.do())
        except ValueError:
            went_on.append("with the failure")
        await anyio.lowlevel.checkpoint()
        went_on.append("behind the work")

    waiting, cancel = cancel_by(wait)
    await settle()
    for _ in range(3):
        cancel()
        await settle()
    assert (waiting.done(), work.done) == (False, False)
    work.may_end.set()
    await settle()
    assert (waiting.cancelled(), work.done) == (True, True)
    assert "behind the work" not in went_on


@simulated
async def test_a_time_limit_around_the_work_strikes_when_it_is_done() -> None:
    work = Work()

    async def wait() -> None:
        async with asyncio.timeout(1):
            await uncancelled(work.do())

    waiting = asyncio.create_task(wait())
    await time_passes(2)
    assert not waiting.done()
    work.may_end.set()
    with pytest.raises(TimeoutError):
        await waiting
    assert work.done


async def test_work_runs_in_the_context_that_it_is_given() -> None:
    async def who() -> str:
        return caller.get()

    elsewhere = contextvars.copy_context()
    caller.set("the tool")
    assert [await uncancelled(who()), await uncancelled(who(), context=elsewhere)] == ["the tool", "nobody"]


async def test_work_that_is_itself_cancelled_cancels_whoever_waits_for_it() -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    waiting = asyncio.create_task(uncancelled(cancels_itself()))
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_both_may_be_cancelled_the_work_and_whoever_waits_for_it() -> None:
    may_end = anyio.Event()

    async def cancels_itself() -> None:
        await may_end.wait()
        raise asyncio.CancelledError

    waiting = asyncio.create_task(uncancelled(cancels_itself()))
    await settle()
    waiting.cancel()
    await settle()
    assert not waiting.done()
    may_end.set()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
