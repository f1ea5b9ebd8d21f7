"""Tools that do several things at once while they wait for a person or a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Never, Unpack

import anyio
import anyio.from_thread
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from harness.waiting import eventually
from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import TaskUnreadable, UsageError
from mcp_tasks.model.record import NOBODY
from mcp_tasks.server.options import ToolOptions
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import TaskTester

pytestmark = pytest.mark.anyio

AT_ONCE = timedelta(0)
"""Leaves memory as soon as it only waits."""


class Yes(BaseModel):
    """Yes or no."""

    yes: bool


class Bench:
    """A server with one tool, and what the tool did."""

    def __init__(self, tool: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        self.tasks = Tasks("memory://")
        self.server = MCPServer("promises", **self.tasks.wiring())
        self.server.tool(name="tool")(tool)
        usual: ToolOptions = {"recover": "rerun", "park_after": AT_ONCE}
        self.tasks.mark("tool", **(usual | options))

    def tester(self, **options: Any) -> TaskTester:
        return TaskTester(self.server, self.tasks, **options)


def done(log: list[str], name: str) -> Callable[[], Awaitable[str]]:
    """A piece of work that says that it was done."""

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


async def test_steps_beside_a_question_go_on_and_none_runs_twice() -> None:
    log: list[str] = []

    async def tool(ctx: Context) -> list[str]:
        async def steps() -> None:
            for number in range(10):
                await current_task().step(f"step-{number}", done(log, f"step-{number}"))
                await anyio.sleep(0.02)  # sleep: between two steps the run only waits

        answer, _ = await asyncio.gather(ctx.elicit("Sure?", Yes), steps())
        return [answer.action]

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await eventually(lambda: len(log) == 10)
        await tester.answer(task, {"yes": True})
        assert await value(tester, task) == ["accept"]
    assert sorted(log) == sorted(set(log)), "a step ran twice"


async def test_work_that_races_a_long_sleep_finishes_and_ends_the_task() -> None:
    async def tool() -> str:
        async def work() -> str:
            await anyio.sleep(0.2)  # sleep: work that takes a moment
            return "worked"

        ways = {asyncio.create_task(work()), asyncio.create_task(current_task().sleep(timedelta(hours=1)))}
        ended, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in rest:
            way.cancel()
        return next(iter(ended)).result() or "slept"

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        assert await value(tester, task) == "worked"
        assert (await tester.record(task)).attempt == 1


async def test_background_work_that_the_tool_started_before_it_asks_is_not_run_twice() -> None:
    log: list[str] = []

    async def tool(ctx: Context) -> str:
        async def work() -> str:
            log.append("began")
            await anyio.sleep(0.3)  # sleep: work that is not over when the tool asks
            return "worked"

        background = asyncio.create_task(work())
        await ctx.elicit("Sure?", Yes)
        return await background

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        await anyio.sleep(0.1)  # sleep: the time in which it would leave memory, and must not
        await tester.answer(task, {"yes": True})
        assert await value(tester, task) == "worked"
    assert log == ["began"]


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


async def test_the_first_of_two_answers_wakes_a_task_that_left_memory() -> None:
    async def tool(ctx: Context) -> str:
        asks = {name: asyncio.create_task(ctx.elicit(f"{name}?", Yes)) for name in ("Ann", "Bob")}
        await asyncio.wait(asks.values(), return_when=asyncio.FIRST_COMPLETED)
        first = next(name for name, ask in asks.items() if ask.done())
        for ask in asks.values():
            ask.cancel()
        return first

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        questions = await tester.until_asked(task, 2)
        await tester.crash()
        bob = next(key for key, question in questions.items() if question.params["message"] == "Bob?")
        await tester.answer(task, {"yes": True}, key=bob)
        await tester.advance(timedelta(0))
        assert await value(tester, task) == "Bob"


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


async def test_branches_that_come_in_another_order_the_next_time_get_their_own_answers() -> None:
    runs: list[int] = []

    async def tool(ctx: Context) -> list[bool]:
        runs.append(1)

        async def ask(name: str, wait: float) -> bool:
            await anyio.sleep(wait)  # sleep: they ask one after the other
            answer = await ctx.elicit(f"{name}?", Yes)
            assert answer.action == "accept"
            return answer.data.yes

        # The quick one is the slow one in every other run.
        waits = (0.0, 0.05) if len(runs) % 2 else (0.05, 0.0)
        return list(await asyncio.gather(ask("Ann", waits[0]), ask("Bob", waits[1])))

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        questions = await tester.until_asked(task, 2)
        keys = {str(question.params["message"]): key for key, question in questions.items()}
        await tester.answer(task, {"yes": True}, key=keys["Ann?"])
        await tester.crash()
        await tester.until_asked(task, 1)
        await tester.answer(task, {"yes": False}, key=keys["Bob?"])
        assert await value(tester, task) == [True, False]


async def test_what_a_lost_race_recorded_is_not_missed() -> None:
    log: list[str] = []

    async def tool(ctx: Context) -> str:
        async def quick() -> str:
            return await current_task().step("quick", done(log, "quick"))

        async def slow() -> str:
            await current_task().step("slow-1", done(log, "slow-1"))
            await anyio.sleep(0.1)  # sleep: the other branch is ahead
            return await current_task().step("slow-2", done(log, "slow-2"))

        ways = [asyncio.create_task(way()) for way in (slow, quick)]
        ended, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in rest:
            way.cancel()
        await ctx.elicit("Sure?", Yes)
        await current_task().step("after", done(log, "after"))
        return next(iter(ended)).result()

    assert await value_after_a_crash(tool) == "quick"
    assert log.count("after") == 1


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


async def test_a_step_that_failed_has_failed_in_every_later_run() -> None:
    tries: list[str] = []

    async def fetch(source: str) -> str:
        tries.append(source)
        if source == "b" and tries.count("b") == 1:
            raise ConnectionError("b is away")
        return source

    async def tool(ctx: Context) -> str:
        got: list[str] = []
        for source in "abc":
            try:
                got.append(await current_task().step(source, fetch, source))
            except ConnectionError as exc:
                got.append(str(exc))
        answer = await ctx.elicit(f"Go on with {', '.join(got)}?", Yes)
        return f"{answer.action}: {', '.join(got)}"

    assert await value_after_a_crash(tool) == "accept: a, b is away, c"
    assert tries == ["a", "b", "c"]


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


async def test_a_timer_that_is_due_is_not_kept_back_by_a_backlog() -> None:
    ended: list[str] = []

    async def nap() -> str:
        await current_task().sleep(timedelta(hours=1))
        ended.append("nap")
        return "awake"

    async def work() -> str:
        await anyio.sleep(0.005)  # sleep: work that takes a moment
        ended.append("work")
        return "worked"

    bench = Bench(nap)
    bench.server.tool()(bench.tasks.task()(work))
    async with bench.tester(concurrency=1) as tester:
        sleeper = await tester.call("tool")
        await tester.settle()
        for _ in range(100):
            await tester.call("work")
        tester.clock.advance(timedelta(hours=1))
        await tester.runtime.janitor.sweep()
        await tester.finish(sleeper)
    assert ended.count("work") < 50, "it waited for the whole backlog"


async def test_a_journal_that_cannot_be_read_ends_its_task_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tool(ctx: Context) -> str:
        await current_task().step("first", dict)
        return (await ctx.elicit("Sure?", Yes)).action

    async def unreadable(store: MemoryStore, task_id: str) -> Never:
        raise TaskUnreadable(task_id, "it is damaged")

    async with Bench(tool).tester() as tester:
        task = await tester.call("tool")
        await tester.until_asked(task)
        monkeypatch.setattr(MemoryStore, "journal", unreadable)
        await tester.crash()
        with pytest.raises(MCPError) as ended:
            await tester.result(task)
    assert ended.value.data == {"reason": "journal"}
