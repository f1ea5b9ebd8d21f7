"""Which calls become tasks: which tool a mark belongs to, what the author chose, and whose the tasks are."""

import functools
import gc
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import pytest
from mcp.server import Server
from mcp.server.mcpserver import Context, Resolve
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from mcp_types import Tool as McpTool

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    MODERN,
    NOTHING,
    PATIENCE,
    Tasking,
    request,
    text_of,
)
from harness.server import QUICK, Desk, Name, build
from harness.stored import all_tasks
from mcp_tasks import TaskMode, Tasks, current_task
from mcp_tasks.server import Caller
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import TaskTester
from tests.wire.servers import kind_of, new_tasks, server_of, where


async def test_a_mark_belongs_to_its_tool_whatever_that_is_called_and_its_function_is_wrapped_in() -> None:
    tasks = new_tasks()
    server = server_of(tasks)

    @server.tool(name="render", description="Described elsewhere.")
    @tasks.task(mode="required", ttl=timedelta(seconds=7))
    async def render_impl(ctx: Context) -> str:
        return where()

    def logged(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return f"logged {function(*args, **kwargs)}"

        return wrapper

    @server.tool(name="outer")
    @logged
    @tasks.task()
    def inner(value: int) -> str:
        return where()

    def opaque(function: Callable[..., str]) -> Callable[..., str]:
        def wrapper(anything: str = "") -> str:
            return function(5)

        return wrapper

    # Of this function nothing is to be seen: the mark names its tool.
    @server.tool(name="hidden")
    @opaque
    @tasks.task(name="hidden")
    def innermost(value: int) -> str:
        return where()

    async with in_memory(server) as wire:
        created = await Tasking(wire).call("render")
        assert (created["resultType"], created["ttlMs"]) == ("task", 7000)
        calls = {"render": {}, "outer": {"value": 1}, "hidden": {"anything": "x"}}
        said = [text_of((await Tasking(wire).finish(tool, **given))["result"]) for tool, given in calls.items()]
        assert said == ["in a task", "logged in a task", "in a task"]
    async with in_memory(server, declares=False) as wire:
        assert await kind_of(Tasking(wire, NOTHING), "render") == str(MISSING_CAPABILITY)


async def test_a_renamed_tool_that_may_run_again_is_started_again_after_a_crash() -> None:
    tasks = new_tasks()
    server = server_of(tasks)

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
    tasks = new_tasks()

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool(name="convert", input_schema={"type": "object"})])

    @tasks.task(mode="required")
    async def convert(arguments: dict[str, Any]) -> str:
        return f"{arguments['path']} {where()}"

    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=await convert(params.arguments or {}))])

    server: Server[Any] = Server("low", on_list_tools=list_tools, on_call_tool=call_tool)
    tasks.attach(server)
    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("convert", path="a.mov"))["result"]) == "a.mov in a task"


def _always(params: CallToolRequestParams) -> bool:
    return True


async def test_a_tool_that_is_not_there_is_answered_as_the_plain_call_answers() -> None:
    tasks = new_tasks(augment=_always)
    server = server_of(tasks)
    tasks.mark("gone")
    async with in_memory(server) as wire:
        for tool in ("gone", "never there"):
            result = await Tasking(wire).call(tool)
            assert (result["resultType"], result["isError"]) == ("complete", True)


async def test_functions_that_are_called_the_same_are_told_apart() -> None:
    def twin() -> str:
        """One of two."""
        return where()

    def twin_that_takes_more(value: str = "") -> str:
        """One of two."""
        return where()

    def twin_that_says_more() -> str:
        """The other one."""
        return where()

    def other_twin() -> str:
        """One of two."""
        return where()

    for function in (twin_that_takes_more, twin_that_says_more, other_twin):
        function.__name__ = "twin"
    # Told apart by what they take, by what they say, and by the name they are registered under.
    for name, other in (("first", twin_that_takes_more), ("first", twin_that_says_more), ("twin", other_twin)):
        tasks = new_tasks()
        server = server_of(tasks)
        server.tool(name="second")(other)
        server.tool(name=name)(tasks.task(mode="required")(twin))
        async with in_memory(server) as wire:
            client = Tasking(wire)
            assert await kind_of(client, name) == "task"
            assert text_of(await client.call("second")) == "in a call"


async def test_a_mark_that_belongs_to_no_tool_is_warned_of_at_the_start_with_the_tools_that_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = new_tasks()
    server = server_of(tasks)

    @tasks.task()
    def forgotten() -> None: ...

    tasks.mark("misspelled")

    @server.tool()
    @tasks.task()
    def known() -> str:
        return "here"

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("known"))["result"]) == "here"
    lowlevel = new_tasks()
    low = build_lowlevel(lowlevel)
    lowlevel.mark("unlisted")
    async with in_memory(low):
        pass
    high, low_one = [record.getMessage() for record in caplog.records if record.name.startswith("mcp_tasks")]
    marked, _, there = high.partition("It has ")
    assert "'forgotten'" in marked
    assert "'misspelled'" in marked
    assert "'known'" in there
    assert "'known'" not in marked
    assert "no such tool: 'unlisted'. It has 'ask_name', 'crashes', 'echo'" in low_one


async def test_the_two_decorators_of_a_tool_may_stand_in_either_order_unless_it_asks_for_its_parameters() -> None:
    tasks = new_tasks()
    server = server_of(tasks)

    @tasks.task(mode="required")
    @server.tool()
    def turned() -> str:
        return "as a task"

    @tasks.task(mode="required")
    @server.tool()
    def asking(who: Annotated[Name, Resolve(_known_name)]) -> str:
        return f"Hello, {who.name}!"

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("turned"))["result"]) == "as a task"
        refused = await Tasking(wire).ask("tools/call", {"name": "asking", "arguments": {}})
    assert "put @server.tool() above @tasks.task()" in refused.message["error"]["message"]


def _known_name() -> Name:
    return Name(name="Ada")


async def test_a_tool_that_is_marked_first_and_added_while_the_server_runs_becomes_a_task() -> None:
    tasks = new_tasks()
    server = server_of(tasks)
    tasks.mark("late")

    @tasks.task(mode="required")
    def later() -> str:
        return "here at last"

    async with in_memory(server) as wire:

        @server.tool()
        def late() -> str:
            return "here now"

        server.tool(name="renamed")(later)
        assert text_of((await Tasking(wire).finish("late"))["result"]) == "here now"
        assert text_of((await Tasking(wire).finish("renamed"))["result"]) == "here at last"


LONG = timedelta(seconds=PATIENCE)


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (None, {"unmarked": "complete", "optional": "task", "required": "task", "forbidden": "complete"}),
        (True, {"unmarked": "task", "optional": "task", "required": "task", "forbidden": "complete"}),
        (False, {"unmarked": "complete", "optional": "complete", "required": "task", "forbidden": "complete"}),
    ],
    ids=["no rule", "a rule that agrees", "a rule that declines"],
)
async def test_mode_and_rule_decide_together_and_only_for_clients_that_declare(
    augment: bool | None, expected: dict[str, str]
) -> None:
    seen: list[Any] = []

    def rule(params: CallToolRequestParams) -> bool:
        seen.append(params.arguments)
        return augment is True

    # Without it, calls of clients that do not declare are answered by a task that they do not see.
    tasks = Tasks("memory://", augment=None if augment is None else rule, settings=QUICK, fallback="inline")
    modes: dict[str, TaskMode | None] = {
        "unmarked": None,
        "optional": "optional",
        "required": "required",
        "forbidden": "forbidden",
    }
    server = server_of(tasks)
    for name, mode in modes.items():
        server.add_tool(where, name=name)
        if mode is not None:
            tasks.mark(name, mode=mode)
    async with serving(server) as wire:
        client, plain = Tasking(wire), Tasking(wire, NOTHING)
        assert {tool: await kind_of(client, tool) for tool in expected} == expected
        assert await kind_of(plain, "required") == str(MISSING_CAPABILITY)
        for tool in ("unmarked", "optional", "forbidden"):
            assert text_of(await plain.call(tool)) == "in a call"
    assert seen == ([] if augment is None else [{}] * len(seen))
    assert bool(seen) == (augment is not None)


async def test_a_handler_that_returns_a_task_by_itself_is_an_error_that_names_the_tool_and_the_extension() -> None:
    times = dict.fromkeys(("createdAt", "lastUpdatedAt"), "2026-07-28T10:30:00Z")
    stray = {"resultType": "task", "taskId": "x", "status": "working", "ttlMs": None, **times}

    async def call_tool(ctx: Any, params: Any) -> Any:
        return stray

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="stray", input_schema={"type": "object"})])

    server: Server[Any] = Server("stray", on_call_tool=call_tool, on_list_tools=list_tools)
    Tasks("memory://").attach(server)
    async with in_memory(server, declares=False) as wire:
        refused = await Tasking(wire, NOTHING).ask("tools/call", {"name": "stray", "arguments": {}})
    assert refused.code == INTERNAL_ERROR
    said = "Tool 'stray' returned a CreateTaskResult, and the client did not declare the extension"
    assert refused.error["message"].startswith(said)


# Whom a task belongs to, by a rule of the author's; `tests/trust` has what follows from it


async def test_the_rule_sees_the_caller_whole() -> None:
    callers: list[Caller] = []

    def rule(caller: Caller) -> str | None:
        callers.append(caller)
        return "everybody"

    async with serving(build(Tasks("memory://", settings=QUICK, principal=rule))) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("ask_name")
        await client.get(task_id)
    created, looked = callers
    assert (created.protocol_version, created.principal) == (MODERN, None)
    assert created.client_info == {"name": "raw", "version": "1"}
    assert created.capabilities == EVERYTHING
    assert (created.headers["mcp-name"], looked.headers["mcp-name"]) == ("ask_name", task_id)


async def a_name() -> str:
    return "alice"


@pytest.mark.filterwarnings("error")
async def test_a_rule_that_returns_no_name_is_reported_and_nothing_is_written(caplog: pytest.LogCaptureFixture) -> None:
    store, returned = MemoryStore(), list[Callable[[], Any]]([lambda: "alice"])
    tasks = Tasks(store, settings=QUICK, principal=lambda _: returned[0]())
    async with serving(build(tasks, Desk())) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("tools/call", {"name": "gated", "arguments": {}}),
            ("tasks/get", {"taskId": task_id}),
            ("tasks/cancel", {"taskId": task_id}),
            ("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}),
        ]
        for returned[0] in (lambda: 7, lambda: b"alice", a_name):
            for method, params in calls:
                caplog.clear()
                reply = await wire.send(request(method, params, capabilities=EVERYTHING))
                assert reply.code == INTERNAL_ERROR, method
                assert "This server cannot tell whose tasks yours are" in reply.error["message"]
                said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
                [line] = [line for line in said if "principal=" in line]
                assert "a str or None" in line
        gc.collect()
        returned[0] = lambda: "alice"
        assert (await client.get(task_id))["status"] == "working"
        assert [task.id for task in await all_tasks(store)] == [task_id]
