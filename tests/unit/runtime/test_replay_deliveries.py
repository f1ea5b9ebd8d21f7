"""The order in which a tool learns of things: the same in every run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import ReplayMismatch
from mcp_tasks.runtime.replay import BRANCH, PATIENCE, SETTLE, Branches, Deliveries, ResultId
from tests.unit.running import settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

mark: contextvars.ContextVar[Any] = contextvars.ContextVar("mark", default=None)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Run:
    """A run that is started again, with a tool that asks for recorded results and begins new things."""

    def __init__(self, recorded: Sequence[str] = (), begun: Sequence[str] = (), *, in_branches: bool = False) -> None:
        self.branches = Branches(mark, self)
        self.refused: list[ReplayMismatch] = []
        self.log: list[str] = []
        tag: Mapping[str, Any] = {BRANCH: True} if in_branches else {}
        self.deliveries = Deliveries(
            {ResultId("step", name): {"value": name, **tag} for name in recorded},
            {ResultId("timer", name): {"until": 0, **tag} for name in begun},
            self.branches,
            contextvars.copy_context(),
            self.refused.append,
        )

    async def get(self, name: str) -> str:
        """A recorded step."""
        stored = await self.deliveries.recorded(ResultId("step", name))
        self.log.append(name)
        return stored["value"]

    async def begin(self, name: str) -> None:
        """Something new."""
        await self.deliveries.caught_up(f"step {name!r}")
        self.log.append(f"new {name}")

    @asynccontextmanager
    async def running(self, tool: Callable[[], Awaitable[object]]) -> AsyncGenerator[asyncio.Task[None]]:
        async def body() -> None:
            mark.set(self)
            self.branches.enter()
            await tool()

        own = asyncio.create_task(body())
        try:
            yield own
        finally:
            self.deliveries.close()
            own.cancel()
            await asyncio.wait({own})

    async def to_the_end(self, tool: Callable[[], Awaitable[object]]) -> list[str]:
        """What the tool learned of, in order."""
        async with self.running(tool) as own:
            with anyio.fail_after(100 * PATIENCE):
                await asyncio.wait({own})
            own.result()
        return self.log


async def test_a_first_run_waits_for_nothing() -> None:
    run = Run()
    assert await run.to_the_end(lambda: asyncio.gather(run.begin("a"), run.begin("b"))) == ["new a", "new b"]


async def test_what_one_branch_comes_to_in_order_it_gets_at_once() -> None:
    run = Run(["a", "b"])

    async def tool() -> None:
        await run.get("a")
        await run.get("b")
        await run.begin("c")

    assert await run.to_the_end(tool) == ["a", "b", "new c"]


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
async def test_branches_are_handed_what_was_recorded_in_the_recorded_order_whatever_they_ask_first(order: str) -> None:
    run = Run(["b", "c", "a"])
    assert await run.to_the_end(lambda: asyncio.gather(*(run.get(name) for name in order))) == ["b", "c", "a"]


async def test_what_follows_from_a_result_happens_before_the_next_is_handed_over() -> None:
    run = Run(["second", "first"])

    async def branch(name: str) -> None:
        await run.get(name)
        for _ in range(3):
            await asyncio.sleep(0)
        run.log.append(f"after {name}")

    assert await run.to_the_end(lambda: asyncio.gather(branch("first"), branch("second"))) == [
        "second",
        "after second",
        "first",
        "after first",
    ]


async def test_nothing_new_begins_before_everything_recorded_was_handed_over() -> None:
    run = Run(["a", "b"])

    async def slow() -> None:
        for name in "ab":
            await asyncio.sleep(0)
            await run.get(name)

    assert await run.to_the_end(lambda: asyncio.gather(run.begin("c"), slow())) == ["a", "b", "new c"]


async def test_a_branch_that_is_busy_elsewhere_is_waited_for() -> None:
    run = Run(["a"], in_branches=True)

    async def busy() -> None:
        await time_passes(PATIENCE / 2)
        await run.get("a")

    assert await run.to_the_end(lambda: asyncio.gather(run.begin("b"), busy())) == ["a", "new b"]


@pytest.mark.parametrize("turns", range(1, 3 * SETTLE))
async def test_a_branch_is_waited_for_in_whatever_turn_its_own_tasks_end(turns: int) -> None:
    """When they have ended, and until it is told, it seems to wait for ever."""
    run = Run(["a", "b"], in_branches=True)

    async def work() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def busy() -> None:
        await run.get("a")
        await asyncio.gather(asyncio.gather(work()))
        await run.get("b")

    assert await run.to_the_end(lambda: asyncio.gather(busy(), run.begin("c"))) == ["a", "b", "new c"]
    assert run.refused == []


async def test_a_branch_that_is_busy_for_too_long_is_not_waited_for_for_ever() -> None:
    run = Run(["a"], in_branches=True)

    async def busy() -> None:
        await time_passes(10 * PATIENCE)
        await run.get("a")

    assert await run.to_the_end(lambda: asyncio.gather(run.begin("b"), busy())) == ["new b", "a"]
    assert run.refused == []


async def test_a_tool_that_begins_something_new_without_what_was_recorded_is_refused() -> None:
    run = Run(["charge"])
    async with run.running(lambda: run.begin("refund")) as own:
        await time_passes(2 * PATIENCE)
        assert not own.done(), "it goes no further"
    assert run.log == []
    (mismatch,) = run.refused
    assert "came to step 'refund', which is new, without coming to step 'charge'" in str(mismatch)


async def test_a_tool_that_does_not_come_to_a_timer_that_it_had_begun_is_refused() -> None:
    run = Run(begun=["review"])
    async with run.running(lambda: run.begin("refund")):
        await time_passes(2 * PATIENCE)
    assert [str(mismatch).count("timer 'review'") for mismatch in run.refused] == [1]


async def test_a_timer_that_the_tool_came_to_holds_nothing_up() -> None:
    run = Run(begun=["review"])

    async def tool() -> None:
        run.deliveries.met(ResultId("timer", "review"))
        await run.begin("a")

    assert await run.to_the_end(tool) == ["new a"]


async def test_what_was_recorded_for_a_branch_that_lost_a_race_is_not_missed() -> None:
    run = Run(["won", "lost"], in_branches=True)

    async def race() -> None:
        async def branch(name: str) -> None:
            await run.get("won") if name == "won" else await anyio.sleep_forever()

        branches = [asyncio.create_task(branch(name)) for name in ("won", "lost")]
        await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
        branches[1].cancel()
        await asyncio.wait(branches)
        await run.begin("after")

    assert await run.to_the_end(race) == ["won", "new after"]
    assert run.refused == []


async def test_a_branch_that_is_cancelled_while_it_waits_for_its_result_does_not_hold_the_others_up() -> None:
    run = Run(["a", "b"])

    async def tool() -> None:
        given_up = asyncio.create_task(run.get("b"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
        await run.get("a")
        await run.begin("c")

    assert await run.to_the_end(tool) == ["a", "new c"]
    assert run.refused == []


async def test_results_are_recorded_one_at_a_time() -> None:
    run, inside, most = Run(), 0, 0

    async def record() -> None:
        nonlocal inside, most
        async with run.deliveries.turn():
            inside += 1
            most = max(most, inside)
            await settle(5)
            inside -= 1

    await run.to_the_end(lambda: asyncio.gather(*(record() for _ in range(5))))
    assert most == 1


async def test_what_follows_from_a_new_result_happens_before_the_next_is_recorded() -> None:
    run = Run()

    async def record(name: str) -> None:
        run.branches.contact(look_around=False)
        await asyncio.sleep(0)
        async with run.deliveries.turn():
            run.log.append(name)
        for _ in range(3):
            await asyncio.sleep(0)
        run.log.append(f"after {name}")

    log = await run.to_the_end(lambda: asyncio.gather(record("a"), record("b")))
    assert log == ["a", "after a", "b", "after b"]


async def test_a_branch_that_comes_back_to_wait_is_not_waited_for_any_longer() -> None:
    run = Run(["first", "second", "third"])
    loop = asyncio.get_running_loop()

    async def works_and_comes_back() -> None:
        await run.get("first")
        await anyio.sleep(PATIENCE / 10)  # sleep: the time is simulated
        await run.get("third")

    began = loop.time()
    assert await run.to_the_end(lambda: asyncio.gather(works_and_comes_back(), run.get("second"))) == [
        "first",
        "second",
        "third",
    ]
    assert loop.time() - began < PATIENCE


@pytest.mark.parametrize("turns", range(1, SETTLE + 10))
async def test_a_branch_may_be_cancelled_at_any_moment_of_a_hand_over(turns: int) -> None:
    """Whoever hands over comes to it before or after the branch itself has noticed."""
    run = Run(["first", "second"], in_branches=True)

    async def cancelled_meanwhile() -> None:
        branch = asyncio.create_task(run.get("second"))
        for _ in range(turns):
            await asyncio.sleep(0)
        # By a timer, whose turn is after that of all who only gave way.
        asyncio.get_running_loop().call_later(0, branch.cancel)
        await asyncio.wait({branch})

    async def tool() -> None:
        await asyncio.gather(run.get("first"), cancelled_meanwhile())
        await run.begin("last")

    learned = await run.to_the_end(tool)
    assert [name for name in learned if name != "second"] == ["first", "new last"]
    assert run.refused == []
