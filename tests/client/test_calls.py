"""`client.call_tool` stays what it was, over every transport: the task behind it does not show."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from harness.forking import piped
from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.processes import ENVIRONMENT, ROOT, run
from harness.rpc import PATIENCE
from harness.server import CUSTOM_ERROR, QUICK, UNPACED, Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import (
    InvalidOption,
    Ledger,
    TaskHandle,
    TasksClient,
    TaskStatus,
    call_tool,
    pending_tasks,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.errors import UsageError
from mcp_tasks.stores import MemoryStore
from tests.client.connecting import Person, begin, connect, text

pytestmark = pytest.mark.anyio

WAYS = ["http-sse", "http-json", "http-reconnecting", "stdio", "memory"]


@pytest.fixture(scope="module", params=WAYS)
async def client(request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    way: str = request.param
    async with AsyncExitStack() as stack:
        target = await _target(way, stack)
        yield await stack.enter_async_context(connect(target, person=Person()))


async def _target(way: str, stack: AsyncExitStack) -> Any:
    if way == "stdio":
        command, *arguments = piped("harness.furnished", "stdio")
        return StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    server = build(Tasks("memory://", settings=QUICK))
    if way == "memory":
        return server
    wire = await stack.enter_async_context(serving(server, json_response=way == "http-json"))
    return reconnecting_http(wire.url) if way == "http-reconnecting" else wire.url


@pytest.mark.requirement("client/either-result")
async def test_a_tool_gives_its_result_whether_it_is_a_task_or_answers_inline(client: Client) -> None:
    assert text(await client.call_tool("echo", {"value": "hello"})) == "hello"
    assert text(await client.call_tool("must", {})) == "as a task"
    assert (await client.call_tool("point", {"x": 1})).structured_content == {"x": 1.0, "y": None}
    assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
    assert text(await client.call_tool("never", {})) == "task: None"


async def test_errors_are_those_of_a_plain_call(client: Client) -> None:
    assert (await client.call_tool("fails", {})).is_error
    with pytest.raises(MCPError) as caught:
        await client.call_tool("breaks", {})
    assert (caught.value.code, caught.value.error.data) == (CUSTOM_ERROR, {"hint": "ask again"})


@pytest.mark.requirement("client/inspects-input-requests")
async def test_questions_are_answered_before_the_task_and_in_the_middle(client: Client) -> None:
    for tool in ("ask_name", "ask_by_returning", "ask_before"):
        assert text(await client.call_tool(tool, {})) == "Hello, Ada!"


async def test_a_handle_is_there_for_who_wants_it_and_does_not_change_the_next_call(client: Client) -> None:
    handle = await begin(client, "echo", value=5)
    assert handle.tool == "echo"
    assert text(await client.call_tool("echo", {"value": 2})) == "2"
    assert text(await call_tool(client, "echo", {"value": 3}, timeout=60)) == "3"
    assert text(await resume_task(client, handle.id).result()) == "5"
    inline = await start_task(client, "greet", {"name": "Ada"})
    assert isinstance(inline, CallToolResult)


# Other servers and other clients


@pytest.mark.parametrize("push", [True, False])
async def test_a_low_level_server_that_pushes_nothing_is_polled(push: bool) -> None:
    server = build_lowlevel(Tasks("memory://", settings=QUICK))
    async with serving(server) as wire, connect(wire.url, person=Person(), push=push) as client:
        assert text(await client.call_tool("echo", {"value": 7})) == "7"
        assert text(await client.call_tool("ask_name", {})) == "Hello, Ada!"


@pytest.mark.parametrize("push", [True, False], ids=["push", "polls"])
async def test_a_hundred_calls_on_one_connection_all_get_their_result(push: bool) -> None:
    results: list[str] = []
    desk = Desk()
    server = build(Tasks("memory://", settings=QUICK, limits=UNPACED, concurrency=101), desk)
    async with serving(server) as wire, connect(wire.url, push=push) as client:

        async def call() -> None:
            results.append(text(await client.call_tool("gated")))

        await client.list_tools()
        with anyio.fail_after(2 * PATIENCE):
            async with anyio.create_task_group() as group:
                for _ in range(100):
                    group.start_soon(call)
                # All of them at once: none ends before this one has begun.
                await begin(client, "gated")
                desk.gate.set()
    assert results == ["through"] * 100


@pytest.mark.parametrize("ours", ["none", "another", "given"])
async def test_verbs_work_for_a_client_that_was_given_the_extension_and_say_so_otherwise(
    url: str, ours: str, path: Path
) -> None:
    tasks = TasksClient(ledger=path, server=url)
    extensions = {"none": None, "another": [TasksClient()], "given": [tasks]}[ours]
    async with Client(url, extensions=extensions) as client:
        arguments: Any = ("echo", {"value": 1})
        verbs: list[Any] = [
            lambda: tasks.resume(client, "x"),
            lambda: tasks.pending(client),
            lambda: tasks.start(client, *arguments),
            lambda: tasks.call(client, *arguments),
        ]
        functions: list[Any] = [
            lambda: resume_task(client, "x"),
            lambda: pending_tasks(client),
            lambda: start_task(client, *arguments),
            lambda: call_tool(client, *arguments),
        ]
        for verb in [] if ours == "given" else [*verbs, *(functions if ours == "none" else [])]:
            with pytest.raises(UsageError, match="TasksClient"):
                await verb()
        if ours == "given":
            handle = await tasks.start(client, "gated")
            assert isinstance(handle, TaskHandle)
            assert [(pending.id, pending.tool) for pending in tasks.pending(client)] == [(handle.id, "gated")]
            await handle.cancel()
            assert text(await tasks.call(client, *arguments, timeout=60)) == "1"


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"on_abandon": "kill"}, "on_abandon must be 'cancel' or 'leave', got 'kill'"),
        ({"patience": 5}, r"patience must be a Patience, got 5: write patience=Patience\(\.\.\.\)"),
        ({"ledger": 5}, "ledger must be the path of a file, or a Ledger; got 5"),
        ({"push": "no"}, "push must be True or False, got 'no'"),
        ({"on_progress": "x"}, "on_progress must be an async function of the progress, got 'x'"),
        ({"server": ""}, "server must be a non-empty string, got ''"),
        ({"identity": None}, "identity must be a string, got None"),
    ],
    ids=str,
)
def test_a_value_that_a_client_cannot_have_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        TasksClient(**mistake)


async def test_the_client_of_the_readme_is_a_program_that_comes_back_to_its_tasks(path: Path) -> None:
    server_code, client_code = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    store = MemoryStore()
    names: dict[str, Any] = {"__name__": "readme_server", "store": store}
    exec(compile(server_code.replace("Tasks()", "Tasks(store)"), "README.md", "exec"), names)
    program = path.with_name("client.py")

    async def run_program() -> tuple[int, int]:
        command = [sys.executable, program.name]
        said = (await asyncio.to_thread(run, command, cwd=program.parent, env=ENVIRONMENT, check=True)).stdout
        return said.count("published"), said.count("<TaskHandle")

    def left() -> set[str]:
        with closing(Ledger(path)) as ledger:
            return {entry.task_id for entry in ledger.entries()}

    async with serving(names["server"]) as wire:
        assert "http://127.0.0.1:8000/mcp" in client_code
        program.write_text(client_code.replace("http://127.0.0.1:8000/mcp", wire.url))
        assert await run_program() == (2, 1)
        # The task that the first run left in the ledger, and its own call.
        assert await run_program() == (4, 1)
        known = left()
        assert known
        for task_id in known:
            # Once it only waits for its answer: until then its run saves it again and again.
            version = await eventually(partial(version_asking, store, task_id))
            await store.delete(task_id, expected=version)
        # A task that the server has deleted meanwhile is dropped, and the program goes on.
        assert await run_program() == (2, 1)
        assert not known & left()


async def version_asking(store: MemoryStore, task_id: str) -> int:
    record = await store.get(task_id)
    return record.version if record is not None and record.status is TaskStatus.INPUT_REQUIRED else 0
