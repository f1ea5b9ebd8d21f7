"""`TaskTester` ends whatever the test did, and says what is wrong."""

import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TypeAlias

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from harness.waiting import eventually
from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import InvalidOption, TaskWasCancelled, UsageError
from mcp_tasks.testing import TaskTester
from tests.promises.test_waiting import Yes

Server: TypeAlias = MCPServer[dict[str, object]]


@pytest.fixture
def tasks() -> Tasks:
    return Tasks("memory://")


@pytest.fixture
def begun() -> list[str]:
    return []


@pytest.fixture
def server(tasks: Tasks, begun: list[str]) -> Server:
    server = MCPServer("tested", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun")
    async def works() -> str:
        begun.append("works")
        await current_task().step("for ever", anyio.sleep_forever)
        return "never"

    @server.tool()
    @tasks.task(recover="rerun")
    async def stubborn() -> str:
        begun.append("stubborn")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)  # sleep: the time that it takes to stop
        return "late"

    @server.tool()
    @tasks.task()
    def in_a_thread() -> str:
        begun.append("in_a_thread")
        while not current_task().cancelled:
            threading.Event().wait(0.01)
        return "told"

    @server.tool()
    @tasks.task(recover="rerun")
    async def asks(ctx: Context) -> str:
        begun.append("asks")
        return (await ctx.elicit("Sure?", Yes)).action

    @server.tool()
    @tasks.task()
    async def repeat(times: int) -> int:
        return times

    @server.tool()
    async def plain() -> str:
        return "plain"

    return server


@pytest.fixture
async def tester(server: Server, tasks: Tasks) -> AsyncGenerator[TaskTester]:
    async with TaskTester(server, tasks) as tester:
        yield tester


@pytest.mark.parametrize("tool", ["works", "stubborn", "in_a_thread", "asks"])
async def test_leaving_in_the_middle_of_a_run_ends_it(
    server: Server, tasks: Tasks, begun: list[str], tool: str
) -> None:
    with anyio.fail_after(10):
        async with TaskTester(server, tasks) as tester:
            for _ in range(3):
                await tester.call(tool)
            await eventually(lambda: begun == [tool] * 3)


async def test_a_failing_assertion_is_what_is_shown_also_when_the_test_was_cancelled(
    server: Server, tasks: Tasks
) -> None:
    async def fails_when_it_is_cancelled() -> None:
        with anyio.move_on_after(0.2):
            async with TaskTester(server, tasks) as tester:
                try:
                    await tester.result(await tester.call("works"))
                finally:
                    raise AssertionError("this one")

    with pytest.raises(AssertionError, match="this one"):
        await fails_when_it_is_cancelled()


@pytest.mark.parametrize("tool", ["nowhere", "plain"])
async def test_a_tool_that_is_no_task_is_refused(tester: TaskTester, tool: str) -> None:
    with pytest.raises(UsageError, match=tool):
        await tester.call(tool)


@pytest.mark.parametrize("arguments", [{}, {"times": "often"}, {"times": None}])
async def test_arguments_that_the_tool_does_not_take_are_refused_as_in_a_call(
    tester: TaskTester, arguments: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match=r"(?s)'repeat' does not take these arguments.*times"):
        await tester.call("repeat", arguments)
    result = await tester.result(await tester.call("repeat", {"times": "7"}))
    assert result.structured_content == {"result": 7}, "as lenient as the SDK"


async def test_a_result_that_waits_says_what_is_asked_and_takes_only_an_answer_that_fits(tester: TaskTester) -> None:
    task = await tester.call("asks")
    # Much less than the time that a tool has to end.
    with anyio.fail_after(5), pytest.raises(AssertionError) as refused:
        await tester.result(task)
    assert "Sure?" in str(refused.value)
    assert f"tester.answer({task!r}, ...)" in str(refused.value)
    with pytest.raises(MCPError, match="does not fit"):
        await tester.answer(task, {"yes": "perhaps"})
    await tester.answer(task, {"yes": True})
    assert (await tester.result(task)).structured_content == {"result": "accept"}


async def test_a_tool_that_ends_without_asking_is_told_in_words(tester: TaskTester) -> None:
    with pytest.raises(AssertionError, match=r"^the tool ended \(completed\) without asking$"):
        await tester.until_asked(await tester.call("repeat", {"times": 1}))
    with pytest.raises(AssertionError, match=r"without asking 2 things at a time"):
        await tester.until_asked(await tester.call("repeat", {"times": 1}), 2)


async def test_time_passes_by_a_timedelta(tester: TaskTester) -> None:
    with pytest.raises(InvalidOption, match=r"by must be a timedelta, got 3: write by=timedelta\(seconds=3\)"):
        await tester.advance(3)  # pyright: ignore[reportArgumentType]


def test_a_server_and_its_tasks_are_given_in_their_order(server: Server, tasks: Tasks) -> None:
    with pytest.raises(UsageError, match=r"TaskTester\(server, tasks\) takes an MCPServer and its Tasks"):
        TaskTester(tasks, server)  # pyright: ignore[reportArgumentType]


async def test_a_task_can_be_cancelled(tester: TaskTester) -> None:
    task = await tester.call("asks")
    await tester.until_asked(task)
    await tester.cancel(task)
    with pytest.raises(TaskWasCancelled):
        await tester.result(task)


async def test_what_still_runs_is_named_when_advance_gives_up(
    tester: TaskTester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks.testing.tester.LIMIT", timedelta(seconds=0.2))
    task = await tester.call("works")
    with pytest.raises(AssertionError, match=f"'works'.*{task}"):
        await tester.advance(timedelta(hours=1))
