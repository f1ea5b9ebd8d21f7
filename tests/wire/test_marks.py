"""Marks that cannot work are refused where they are written; the others belong to their function's tool."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as McpTool

from harness.official import in_memory
from harness.rpc import MISSING_CAPABILITY, NOTHING, Tasking, text_of
from harness.server import QUICK
from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import UsageError
from mcp_tasks.testing import TaskTester

pytestmark = pytest.mark.anyio

NO_DURATIONS = [60, 0.5, "60", True, -1, float("nan")]


def _tasks(**options: Any) -> Tasks:
    return Tasks("memory://", settings=QUICK, **options)


def _server(tasks: Tasks) -> MCPServer[Any]:
    return MCPServer("marked", **tasks.wiring(), log_level="CRITICAL")


def _where() -> str:
    return "in a task" if current_task().id else "in a call"


# What is refused


def test_two_functions_under_one_name_are_refused() -> None:
    tasks = _tasks()

    @tasks.task()
    def work() -> None: ...

    with pytest.raises(UsageError, match="'work'") as refused:

        @tasks.task()
        def work() -> None: ...  # pyright: ignore[reportRedeclaration]

    assert "name=" in str(refused.value)


def test_a_function_under_the_name_that_another_was_given_is_refused() -> None:
    tasks = _tasks()
    tasks.task(name="work")(lambda: None)
    with pytest.raises(UsageError, match="'work'"):
        tasks.task(name="work")(lambda: 1)


def test_a_mark_without_parentheses_is_refused_and_says_so() -> None:
    tasks: Any = _tasks()
    with pytest.raises(UsageError, match=r"write @tasks\.task\(\)") as refused:

        @tasks.task
        def work() -> None: ...

    assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=repr)
@pytest.mark.parametrize("option", ["ttl", "max_runtime", "poll_interval", "grace", "park_after"])
def test_a_duration_of_a_tool_that_is_no_timedelta_is_refused_where_it_is_written(option: str, wrong: Any) -> None:
    tasks: Any = _tasks()
    for mark in (tasks.task, functools.partial(tasks.mark, "work")):
        with pytest.raises(UsageError, match=rf"{option}=timedelta\(seconds=") as refused:
            mark(**{option: wrong})
        assert isinstance(refused.value, TypeError)


def test_the_number_that_was_given_is_in_what_to_write() -> None:
    for wrong in (60, 0.5):
        with pytest.raises(UsageError, match=rf"max_runtime=timedelta\(seconds={wrong}\)"):
            _tasks().task(max_runtime=wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=repr)
@pytest.mark.parametrize("option", ["default_ttl", "grace"])
def test_a_duration_of_the_server_that_is_no_timedelta_is_refused_where_it_is_written(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=rf"{option}=timedelta\(seconds="):
        _tasks(**{option: wrong})


@pytest.mark.parametrize("wrong", [0.5, "60", True, 10**30], ids=repr)
def test_milliseconds_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"default_ttl=timedelta\("):
        _tasks(default_ttl_ms=wrong)


@pytest.mark.parametrize("option", ["ttl", "max_runtime", "poll_interval", "grace", "park_after"])
def test_a_duration_that_is_negative_is_refused_as_a_usage_error_and_a_value_error(option: str) -> None:
    tasks: Any = _tasks()
    with pytest.raises(UsageError, match=option) as refused:
        tasks.task(**{option: -timedelta(seconds=1)})
    assert isinstance(refused.value, ValueError)


# Which tool a mark belongs to


async def _kind(client: Tasking, tool: str) -> str:
    reply = await client.ask("tools/call", {"name": tool, "arguments": {}})
    return str(reply.code) if "error" in reply.message else reply.result["resultType"]


async def test_a_tool_under_another_name_than_its_function_keeps_its_options() -> None:
    tasks = _tasks()
    server = _server(tasks)

    @server.tool(name="render", description="Described elsewhere.")
    @tasks.task(mode="required", ttl=timedelta(seconds=7))
    async def render_impl(ctx: Context) -> str:
        """Render."""
        return _where()

    async with in_memory(server) as wire:
        created = await Tasking(wire).call("render")
        assert (created["resultType"], created["ttlMs"]) == ("task", 7000)
        done = await Tasking(wire).until(created["taskId"], "completed")
        assert text_of(done["result"]) == "in a task"
    async with in_memory(server, declares=False) as wire:
        assert await _kind(Tasking(wire, NOTHING), "render") == str(MISSING_CAPABILITY)


async def test_another_function_under_the_name_of_a_marked_one_does_not_get_its_options() -> None:
    tasks = _tasks()
    server = _server(tasks)

    @server.tool(name="own")
    @tasks.task(mode="required")
    def shared() -> str:
        return _where()

    @server.tool(name="shared")
    def other() -> str:
        return _where()

    async with in_memory(server) as wire:
        client = Tasking(wire)
        assert await _kind(client, "own") == "task"
        assert text_of(await client.call("shared")) == "in a call"


def _twin() -> Callable[..., str]:
    def twin() -> str:
        """One of two."""
        return _where()

    return twin


def _twin_that_takes_more() -> Callable[..., str]:
    def twin(value: str = "") -> str:
        """One of two."""
        return _where()

    return twin


def _twin_that_says_more() -> Callable[..., str]:
    def twin() -> str:
        """The other one."""
        return _where()

    return twin


@pytest.mark.parametrize(
    ("name", "other"),
    [("first", _twin_that_takes_more), ("first", _twin_that_says_more), ("twin", _twin)],
    ids=["by what they take", "by what they say", "by the name they are registered under"],
)
async def test_functions_that_are_called_the_same_are_told_apart(name: str, other: Callable[[], Any]) -> None:
    tasks = _tasks()
    server = _server(tasks)
    server.tool(name="second")(other())
    server.tool(name=name)(tasks.task()(_twin()))
    async with in_memory(server) as wire:
        client = Tasking(wire)
        assert await _kind(client, name) == "task"
        assert text_of(await client.call("second")) == "in a call"


async def test_a_function_behind_a_decorator_of_the_authors_own_keeps_its_options() -> None:
    tasks = _tasks()
    server = _server(tasks)

    def logged(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return f"logged {function(*args, **kwargs)}"

        return wrapper

    @server.tool(name="outer")
    @logged
    @tasks.task()
    def inner(value: int) -> str:
        return _where()

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("outer", value=1))["result"]) == "logged in a task"


async def test_a_mark_that_names_its_tool_belongs_to_that_whatever_its_function_is() -> None:
    tasks = _tasks()
    server = _server(tasks)

    def opaque(function: Callable[..., str]) -> Callable[..., str]:
        def wrapper(anything: str = "") -> str:
            return function(5)

        return wrapper

    @server.tool(name="outer")
    @opaque
    @tasks.task(name="outer")
    def inner(value: int) -> str:
        return _where()

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("outer", anything="x"))["result"]) == "in a task"


async def test_a_renamed_tool_that_may_run_again_is_started_again_after_a_crash() -> None:
    tasks = _tasks()
    server = _server(tasks)

    @server.tool(name="render")
    @tasks.task(recover="rerun")
    async def render_impl() -> str:
        if current_task().attempt == 1:
            await current_task().sleep(timedelta(days=1))
        return f"attempt {current_task().attempt}"

    async with TaskTester(server, tasks) as tester:
        task = await tester.call("render")
        await tester.settle()
        await tester.crash()
        await tester.advance(timedelta(days=2))
        assert (await tester.result(task)).structured_content == {"result": "attempt 2"}


async def test_a_mark_on_a_function_of_a_low_level_server_belongs_to_the_tool_of_its_name() -> None:
    tasks = _tasks()

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool(name="convert", input_schema={"type": "object"})])

    @tasks.task(mode="required")
    async def convert(arguments: dict[str, Any]) -> str:
        return f"{arguments['path']} {_where()}"

    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=await convert(params.arguments or {}))])

    server: Server[Any] = Server("low", on_list_tools=list_tools, on_call_tool=call_tool)
    tasks.attach(server)
    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("convert", path="a.mov"))["result"]) == "a.mov in a task"


def _always(params: CallToolRequestParams) -> bool:
    return True


async def test_a_tool_that_is_not_there_is_answered_as_the_plain_call_answers() -> None:
    tasks = _tasks(augment=_always)
    server = _server(tasks)
    tasks.mark("gone")
    async with in_memory(server) as wire:
        for tool in ("gone", "never there"):
            result = await Tasking(wire).call(tool)
            assert (result["resultType"], result["isError"]) == ("complete", True)
