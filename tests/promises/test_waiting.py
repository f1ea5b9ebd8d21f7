"""Tools that do several things at once while they wait for a person or a timer."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Unpack

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import UsageError
from mcp_tasks.model.record import NOBODY
from mcp_tasks.server.options import Recover, ToolOptions
from mcp_tasks.testing import TaskTester

AT_ONCE = timedelta(0)
"""Leaves memory as soon as it only waits."""


class Yes(BaseModel):
    yes: bool


class Bench:
    def __init__(self, tool: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        self.tasks = Tasks("memory://")
        self.server = MCPServer("promises", **self.tasks.wiring())
        usual: ToolOptions = {"recover": "rerun", "park_after": AT_ONCE}
        self.server.tool(name="tool")(self.tasks.task(**(usual | options))(tool))

    def tester(self, **options: Any) -> TaskTester:
        return TaskTester(self.server, self.tasks, **options)


def done(log: list[str], name: str) -> Callable[[], Awaitable[str]]:
    async def work() -> str:
        log.append(name)
        await anyio.sleep(0.01)  # sleep: work that takes a moment
        return name

    return work


async def value(tester: TaskTester, task: str) -> Any:
    result = await tester.result(task)
    assert not result.is_error, result.content
    structured: Any = result.structured_content or {}
    return structured.get("result")


async def value_after_a_crash(tool: Callable[..., Any]) -> Any:
    """What a tool gives whose process dies when it asks, and which is answered in the next."""
    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await tester.crash()
        await tester.answer(task, {"yes": True})
        return await value(tester, task)


async def test_a_deadline_around_a_question_fires_though_the_run_could_leave_memory() -> None:
    async def tool(ctx: Context) -> str:
        with anyio.move_on_after(0.3):
            await ctx.elicit("Sure?", Yes)
            return "answered"
        return "nobody answered"

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        assert await value(tester, task) == "nobody answered"
        assert not (await tester.record(task)).inputs.outstanding


async def test_a_durable_time_out_is_exact_over_restarts() -> None:
    async def tool(ctx: Context) -> str:
        try:
            answer = await current_task().ask(ctx.elicit("Sure?", Yes), timeout=timedelta(hours=1))
        except TimeoutError:
            return "nobody answered"
        return answer.action

    async with Bench(tool).tester() as tester:
        in_time, too_late, nobody = [await tester.call("tool") for _ in range(3)]
        await tester.advance(timedelta(minutes=59))
        await tester.crash()
        await tester.answer(in_time, {"yes": True})
        await tester.crash()
        await tester.advance(timedelta(minutes=1))
        # Nobody has looked at it since its time was over; the answer is late all the same.
        record = await tester.record(too_late)
        late = {key: {"action": "accept"} for key in record.inputs.outstanding}
        await tester.runtime.answer(record, late, actor=NOBODY)
        assert [await value(tester, task) for task in (in_time, too_late, nobody)] == [
            "accept",
            "nobody answered",
            "nobody answered",
        ]


async def test_of_several_sleeps_the_shortest_wakes_the_run() -> None:
    async def tool() -> str:
        naps = {hours: asyncio.create_task(current_task().sleep(timedelta(hours=hours))) for hours in (3, 1, 2)}
        await asyncio.wait(naps.values(), return_when=asyncio.FIRST_COMPLETED)
        first = next(hours for hours, nap in naps.items() if nap.done())
        for nap in naps.values():
            nap.cancel()
        return f"{first} h"

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.advance(timedelta(minutes=30))
        await tester.crash()
        await tester.advance(timedelta(minutes=31))
        assert await value(tester, task) == "1 h"


async def test_a_tool_that_does_something_else_the_second_time_is_refused_and_both_are_named() -> None:
    async def tool(ctx: Context) -> str:
        await current_task().step(f"of run {current_task().attempt}", done([], ""))
        await ctx.elicit("Sure?", Yes)
        return "never"

    def sync_tool(ctx: Context) -> str:
        anyio.from_thread.run(tool, ctx)
        return "never"

    for each in (tool, sync_tool):
        async with Bench(each).tester() as tester:
            task = await tester.call("tool")
            await tester.until_asked(task)
            await tester.crash()
            with pytest.raises(MCPError, match=r"'of run 2'.*'of run 1'"):
                await tester.result(task)


async def test_a_branch_that_does_something_else_the_second_time_is_not_refused() -> None:
    async def tool(ctx: Context) -> str:
        await asyncio.gather(current_task().step(f"of run {current_task().attempt}", done([], "")))
        return (await ctx.elicit("Sure?", Yes)).action

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await tester.crash()
        await tester.answer(task, {"yes": True})
        assert await value(tester, task) == "accept"


@pytest.mark.parametrize(("before", "after", "other"), [(0, 0.1, 0.2), (0, 0.3, 0.1), (0.2, 0, 0.3)])
async def test_a_race_has_the_same_winner_in_every_run_whatever_its_branches_do(
    before: float, after: float, other: float
) -> None:
    won: list[str] = []

    async def tool(ctx: Context) -> str:
        async def a() -> str:
            await anyio.sleep(before)  # sleep: work that is not recorded
            await current_task().step("a", done([], "a"))
            await anyio.sleep(after)  # sleep: work that is not recorded
            return "a"

        async def b() -> str:
            await anyio.sleep(other)  # sleep: work that is not recorded
            return await current_task().step("b", done([], "b"))

        winner, result = await current_task().first("race", a=a, b=b)
        won.append(winner)
        await ctx.elicit("Sure?", Yes)
        return result

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await tester.crash()
        await tester.answer(task, {"yes": True})
        assert [await value(tester, task)] * 2 == won


async def test_a_race_ends_with_the_exception_of_its_winner_and_cancels_the_others() -> None:
    ended: list[str] = []

    async def fails() -> str:
        raise ValueError("lost patience")

    async def waits() -> str:
        try:
            await current_task().sleep(timedelta(hours=1))
        finally:
            ended.append("waits")
        return "never"

    async def tool() -> str:
        with pytest.raises(ValueError, match="lost patience"):
            await current_task().first("race", fails=fails, waits=waits)
        with pytest.raises(UsageError, match="no branches"):
            await current_task().first("empty")
        return ",".join(ended)

    async with Bench(tool).tester() as tester:
        assert await value(tester, await tester.call("tool")) == "waits"


async def test_a_race_that_the_tool_gave_up_while_its_loser_ended_is_given_up_in_each_run() -> None:
    log: list[str] = []

    def slow() -> str:
        time.sleep(0.6)  # sleep: work of a thread, which cannot be cancelled
        return "slow"

    async def tool(ctx: Context) -> str:
        shipped = False
        with anyio.move_on_after(0.3):
            await current_task().first(
                "race",
                fast=lambda: current_task().step("fast", done([], "fast")),
                slow=lambda: current_task().step("slow", slow),
            )
            shipped = True
        await current_task().step("ship" if shipped else "refund", done(log, "ship" if shipped else "refund"))
        await ctx.elicit("Sure?", Yes)
        return "".join(log)

    assert await value_after_a_crash(tool) == "refund"


async def test_a_branch_that_lost_a_race_cleans_up_undisturbed() -> None:
    log: list[str] = []

    async def loses() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0.1)  # sleep: cleaning up takes a moment
            log.append("cleaned up")
        return "never"

    async def tool() -> str:
        winner, _ = await current_task().first(
            "race", wins=lambda: current_task().step("wins", done([], "wins")), loses=loses
        )
        return f"{winner}, {log}"

    async with Bench(tool).tester() as tester:
        assert await value(tester, await tester.call("tool")) == "wins, ['cleaned up']"


async def test_a_race_leaves_no_branch_behind_if_one_cannot_be_started() -> None:
    log: list[str] = []

    async def tool() -> str:
        with pytest.raises(TypeError):
            await current_task().first("race", a=done(log, "a"), b=None)  # pyright: ignore[reportArgumentType]
        await anyio.sleep(0.05)  # sleep: nothing happens meanwhile
        return ",".join(log)

    async with Bench(tool).tester() as tester:
        assert await value(tester, await tester.call("tool")) == ""


async def test_a_question_two_steps_deep_is_found_again() -> None:
    async def tool(ctx: Context) -> str:
        async def ask() -> str:
            return (await ctx.elicit("Sure?", Yes)).action

        return await current_task().step("outer", lambda: current_task().step("inner", ask))

    assert await value_after_a_crash(tool) == "accept"


@pytest.mark.parametrize("recover", ["rerun", "fail"])
async def test_a_branch_beside_a_thread_of_an_async_tool_is_not_taken_for_the_tool(recover: Recover) -> None:
    going_on = threading.Event()

    async def tool(ctx: Context) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.elicit, "Sure?", Yes)
            await anyio.to_thread.run_sync(going_on.wait)
        return "done"

    bench = Bench(tool, recover=recover)
    async with bench.tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        [run] = tester.runtime.runs()
        assert not run.branches.all_wait()
        going_on.set()
        await tester.answer(task, {"yes": True})
        assert await value(tester, task) == "done"


async def test_what_happens_inside_a_step_is_not_missed_once_the_step_is_recorded() -> None:
    log: list[str] = []

    async def tool(ctx: Context) -> str:
        async def outer() -> str:
            inner = await current_task().step("inner", done(log, "inner"))
            return f"{inner} {(await ctx.elicit('Inside?', Yes)).action}"

        value = await current_task().step("outer", outer)
        await ctx.elicit("Sure?", Yes)
        await current_task().step("after", done(log, "after"))
        return value

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        for _ in range(2):
            await tester.until_asked(task)
            await tester.crash()
            await tester.answer(task, {"yes": True})
            await tester.settle()
        assert await value(tester, task) == "inner accept"
    assert log == ["inner", "after"]


async def test_sync_tools_that_wait_do_not_delay_a_plain_sync_call() -> None:
    def asks(ctx: Context) -> str:
        return anyio.from_thread.run(ctx.elicit, "Sure?", Yes).action

    bench = Bench(asks, recover="fail", park_after=None)

    @bench.server.tool()
    def plain() -> str:
        return "here"

    async with bench.tester(concurrency=1) as tester:
        tasks = [await tester.call("tool") for _ in range(60)]
        for task in tasks:
            await tester.until_asked(task)
        with anyio.fail_after(5):
            await bench.server.call_tool("plain", {})
        for task in tasks:
            await tester.answer(task, {"yes": True})
            assert await value(tester, task) == "accept"


async def test_a_timeout_on_a_question_is_kept_whatever_limit_is_shorter() -> None:
    async def tool(ctx: Context) -> str:
        try:
            await current_task().ask(ctx.elicit("Sure?", Yes), timeout=timedelta(days=10))
        except TimeoutError:
            return "nobody answered"
        return "answered"

    # Shorter are the tool's `max_wait`, and `Limits.question_wait` with its 7 days.
    async with Bench(tool, max_wait=timedelta(hours=1)).tester() as tester:
        answered, unanswered = [await tester.call("tool") for _ in range(2)]
        for task in (answered, unanswered):
            await tester.until_asked(task)
        await tester.advance(timedelta(days=5))
        await tester.crash()
        await tester.advance(timedelta(days=4))
        await tester.answer(answered, {"yes": True})
        assert await value(tester, answered) == "answered"
        await tester.advance(timedelta(days=1))
        assert await value(tester, unanswered) == "nobody answered"


async def test_a_run_that_is_stopped_does_no_more_work_of_the_task() -> None:
    log: list[str] = []

    async def tool(ctx: Context) -> str:
        try:
            await ctx.elicit("Sure?", Yes)
        finally:
            await current_task().step("unlock", done(log, "unlock"))
        return "done"

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await tester.crash()
        await tester.until_asked(task)
        assert log == [], "the lock was given up while the question is open"
        await tester.answer(task, {"yes": True})
        assert await value(tester, task) == "done"
    assert log == ["unlock"]


async def test_a_recorded_step_is_not_held_back_until_the_time_out_around_it_fires() -> None:
    log: list[str] = []
    runs: list[int] = []

    async def tool(ctx: Context) -> str:
        runs.append(1)

        async def charge() -> str:
            try:
                async with asyncio.timeout(1):
                    return await current_task().step("charge-a", done(log, "charged a"))
            except TimeoutError:
                return await current_task().step("charge-b", done(log, "charged b"))

        async def note() -> None:
            # Slow in the second run, and recorded first in the first one.
            await anyio.sleep(0 if len(runs) == 1 else 1.3)  # sleep: longer than the limit beside it
            await current_task().step("note", done(log, "noted"))

        _, charged = await asyncio.gather(note(), charge())
        await ctx.elicit("Sure?", Yes)
        return charged

    assert await value_after_a_crash(tool) == "charged a"
    assert "charged b" not in log
