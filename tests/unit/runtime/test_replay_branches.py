"""What of a tool is there to go on: its asyncio tasks, and what each of them waits for."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from mcp_tasks.runtime.replay import Branches, context_of, tasks_by_value
from tests.unit.running import settle

pytestmark = pytest.mark.anyio

mark: contextvars.ContextVar[Any] = contextvars.ContextVar("mark", default=None)


class Run:
    """A run whose tool can wait for us, and for other things."""

    def __init__(self) -> None:
        self.branches = Branches(mark, self)
        self.answered = anyio.Event()
        self.elsewhere = anyio.Event()

    async def ask(self) -> None:
        """Wait for us."""
        branch = self.branches.rest()
        try:
            await self.answered.wait()
        finally:
            self.branches.go_on(branch)

    async def work(self) -> None:
        """Wait for something that we know nothing of."""
        await self.elsewhere.wait()


Tool: TypeAlias = Callable[[Run], Awaitable[object]]


@asynccontextmanager
async def at_work(tool: Tool) -> AsyncGenerator[Run]:
    """A run whose tool has come as far as it comes by itself."""
    run = Run()

    async def body() -> None:
        mark.set(run)
        run.branches.enter()
        await tool(run)

    own = asyncio.create_task(body())
    await settle()
    try:
        yield run
    finally:
        run.answered.set()
        run.elsewhere.set()
        with anyio.fail_after(5):
            await asyncio.wait({own})
        own.result()


async def _asks(run: Run) -> None:
    await run.ask()


async def _gathers(run: Run) -> None:
    await asyncio.gather(run.ask(), run.ask())


async def _gathers_deeply(run: Run) -> None:
    await asyncio.gather(_gathers(run), asyncio.gather(run.ask(), _gathers(run)))


async def _awaits_a_task(run: Run) -> None:
    await asyncio.create_task(run.ask())


async def _waits_for_the_first(run: Run) -> None:
    asking = {asyncio.create_task(run.ask()), asyncio.create_task(run.ask())}
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(asking)


async def _has_a_group(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.ask())
        group.create_task(run.ask())


async def _has_a_group_of_anyio(run: Run) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(run.ask)
        group.start_soon(run.ask)


async def _asks_from_a_thread(run: Run) -> None:
    await anyio.to_thread.run_sync(anyio.from_thread.run, run.ask)


ONLY_WAITING = (
    _asks,
    _gathers,
    _gathers_deeply,
    _awaits_a_task,
    _waits_for_the_first,
    _has_a_group,
    _has_a_group_of_anyio,
    _asks_from_a_thread,
)


@pytest.mark.parametrize("tool", ONLY_WAITING, ids=lambda tool: tool.__name__)
async def test_a_tool_of_which_everything_waits_for_us_cannot_go_on_without_us(tool: Tool) -> None:
    async with at_work(tool) as run:
        with anyio.fail_after(5):
            # A thread takes a moment to come here.
            while run.branches.can_advance():  # noqa: ASYNC110
                await anyio.sleep(0.001)


async def _works(run: Run) -> None:
    await run.work()


async def _asks_and_works(run: Run) -> None:
    await asyncio.gather(run.ask(), run.work())


async def _asks_beside_a_task_left_running(run: Run) -> None:
    left = asyncio.create_task(run.work())
    await run.ask()
    await left


async def _waits_with_a_time_limit(run: Run) -> None:
    await asyncio.wait({asyncio.create_task(run.ask())}, timeout=60)


async def _asks_deep_inside_beside_work(run: Run) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_gathers, run)
        group.start_soon(_asks_and_works, run)


async def _works_in_a_generator(run: Run) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @types.coroutine
    def waits() -> Generator[Any, Any, None]:
        yield from future

    async def ends_it() -> None:
        await run.elsewhere.wait()
        future.set_result(None)

    async with asyncio.TaskGroup() as group:
        group.create_task(ends_it())
        await waits()


async def _takes_turns(run: Run) -> None:
    while not run.elsewhere.is_set():  # noqa: ASYNC110 - this is what it is about
        await asyncio.sleep(0)


AT_WORK = (
    _works,
    _works_in_a_generator,
    _takes_turns,
    _asks_and_works,
    _asks_beside_a_task_left_running,
    _waits_with_a_time_limit,
    _asks_deep_inside_beside_work,
)


@pytest.mark.parametrize("tool", AT_WORK, ids=lambda tool: tool.__name__)
async def test_a_tool_that_waits_for_anything_else_as_well_may_go_on_without_us(tool: Tool) -> None:
    async with at_work(tool) as run:
        assert run.branches.can_advance()


async def test_what_others_do_is_not_a_tools_doing() -> None:
    async with at_work(_works), at_work(_asks) as run:
        assert not run.branches.can_advance()


async def test_a_branch_that_goes_on_is_at_work_again() -> None:
    async def asks_then_works(run: Run) -> None:
        await run.ask()
        await run.work()

    async with at_work(asks_then_works) as run:
        assert not run.branches.can_advance()
        run.answered.set()
        await settle()
        assert run.branches.can_advance()


# Who is who


async def test_the_tools_own_task_is_told_from_its_branches() -> None:
    seen: dict[str, bool] = {}

    async def tool(run: Run) -> None:
        async def note(name: str) -> None:
            seen[name] = run.branches.in_own

        await note("own")
        await asyncio.create_task(note("branch"))
        await anyio.to_thread.run_sync(anyio.from_thread.run, note, "own thread")

    async with at_work(tool) as run:
        assert run.branches.own is not None
        with anyio.fail_after(5):
            await asyncio.wait({run.branches.own})
    assert seen == {"own": True, "branch": False, "own thread": True}


async def test_a_tool_has_several_branches_from_contact_with_one_to_its_end() -> None:
    seen: list[bool] = []

    async def tool(run: Run) -> None:
        async def come_here() -> None:
            run.branches.contact(look_around=False)
            seen.append(run.branches.several)

        await come_here()
        await asyncio.create_task(come_here())
        seen.append(run.branches.several)

    async with at_work(tool):
        assert seen == [False, True, False]


async def test_contact_with_one_branch_looks_around_for_its_siblings() -> None:
    async def in_contact(run: Run) -> None:
        run.branches.contact(look_around=True)

    async with at_work(lambda run: asyncio.gather(in_contact(run), run.work())) as run:
        assert run.branches.several
    assert not run.branches.several


async def test_branches_that_the_tool_cancelled_are_counted() -> None:
    async def tool(run: Run) -> None:
        async def branch() -> None:
            run.branches.contact(look_around=False)
            await run.ask()

        lost = [asyncio.create_task(branch()) for _ in range(2)]
        await settle(5)
        for each in lost:
            each.cancel()
        await asyncio.wait(lost)
        await run.work()

    async with at_work(tool) as run:
        assert (run.branches.cancelled, run.branches.several) == (2, False)


async def test_when_a_run_is_over_nothing_of_it_waits_for_us_any_more() -> None:
    ended: list[str] = []

    async def branch(run: Run) -> None:
        try:
            await run.ask()
        except asyncio.CancelledError:
            ended.append("branch")
            raise

    async def tool(run: Run) -> None:
        left = asyncio.create_task(branch(run))
        await run.work()
        await asyncio.wait({left})

    async with at_work(tool) as run:
        run.branches.cancel_leftovers()
        await settle()
        assert ended == ["branch"]


async def test_asyncio_tasks_are_found_by_the_run_that_they_belong_to() -> None:
    async with at_work(_asks_and_works) as one, at_work(_asks) as other:
        found = tasks_by_value(mark)
        assert {run: len(tasks) for run, tasks in found.items()} == {one: 3, other: 1}
        assert all(context_of(task) is not None for task in asyncio.all_tasks())


async def test_a_branch_is_at_work_until_it_ends_or_waits_for_us() -> None:
    async def tool(run: Run) -> None:
        async def works_then_asks() -> None:
            await run.work()
            await run.ask()

        await asyncio.gather(works_then_asks(), run.work())

    async with at_work(tool) as run:
        branches = [task for task in tasks_by_value(mark)[run] if task is not run.branches.own]
        waiting = [asyncio.create_task(run.branches.until_not_at_work(branch)) for branch in branches]
        await settle()
        assert [each.done() for each in waiting] == [False, False]
        run.elsewhere.set()
        await settle()
        assert [each.done() for each in waiting] == [True, True]
