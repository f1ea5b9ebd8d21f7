"""What a tool in a task sends to calls that are still open, and what it knows of the call that it was started for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.from_thread
import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.model import TaskStatus
from mcp_tasks.model.record import Progress
from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.runtime.context import current_run
from mcp_tasks.server.tool_runner import CloseStream, OpenCalls
from mcp_tasks.stores import MemoryStore
from tests.unit.running import settle
from tests.unit.tooling import call_of, finish, new_server, outcome_of, running_tools, until, until_status

pytestmark = pytest.mark.anyio

TASK = "task_that_the_caller_chose"
TOKEN = "token-of-the-call"
USER = AuthenticatedUser(AccessToken(token="secret", client_id="ada", scopes=["a"]))


@dataclass
class Request:
    """The transport's request."""

    headers: Mapping[str, str] = field(default_factory=lambda: {"x-trace": "1"})


@dataclass(eq=False)
class Call:
    """An open call that keeps what it is sent."""

    name: str = "tool"
    meta: Mapping[str, Any] = field(default_factory=lambda: {"progress_token": TOKEN, "example.com/a": 1})
    request: Any = field(default_factory=Request)
    user: Any = USER
    close_stream: CloseStream | None = None
    close_connection_stream: CloseStream | None = None
    reports: list[Any] = field(default_factory=list[Any])
    notices: list[Any] = field(default_factory=list[Any])
    runs: list[Any] = field(default_factory=list[Any])

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.runs.append(current_run.get())
        self.reports.append((progress, total, message))

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        self.notices.append((method, params, related))

    async def ping(self, timeout: float | None) -> bool:
        return True


@dataclass(eq=False)
class StuckCall(Call):
    """One whose client reads nothing until the test lets it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        await super().progress(progress, total, message)
        await self.gate.wait()


class BrokenCall(Call):
    """One that cannot be reached."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        raise OSError("the pipe is broken")


async def test_progress_reaches_the_call_as_it_is_said_and_becomes_the_progress_of_the_task() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        for done in range(3):
            await ctx.report_progress(done, 3, f"frame {done}")
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            ended = await finish(runtime, call_of("tool"))
    assert call.reports == [(0, 3, "frame 0"), (1, 3, "frame 1"), (2, 3, "frame 2")]
    assert ended.progress == Progress(progress=2, total=3, message="frame 2")


async def test_what_is_sent_does_not_carry_the_context_of_the_tool() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            await finish(runtime, call_of("tool"))
    assert call.runs == [None]


@pytest.mark.parametrize("version", [LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION])
async def test_logs_of_every_level_reach_the_call(version: str) -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.debug("small \ud800")  # pyright: ignore[reportDeprecated]
        await ctx.error("large")  # pyright: ignore[reportDeprecated]
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            await finish(runtime, call_of("tool", version=version))
    assert call.notices == [
        ("notifications/message", {"level": "debug", "data": "small \ufffd"}, True),
        ("notifications/message", {"level": "error", "data": "large"}, True),
    ]


async def test_a_notification_that_belongs_to_the_connection_says_so() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.session.send_resource_updated("test://a")
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            await finish(runtime, call_of("tool", version=LATEST_HANDSHAKE_VERSION))
    assert call.notices == [("notifications/resources/updated", {"uri": "test://a"}, False)]


async def test_progress_sent_with_the_token_of_the_call_is_progress_and_with_any_other_it_is_not() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        token = (ctx.request_context.meta or {}).get("progress_token", "")
        await ctx.session.send_progress_notification(token, 1, 2, "half", related_request_id=ctx.request_id)
        await ctx.session.send_progress_notification("of somebody else", 2, 2)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            ended = await finish(runtime, call_of("tool"))
    assert ended.status is TaskStatus.COMPLETED
    assert call.reports == [(1, 2, "half")]
    assert call.notices == []
    assert ended.progress == Progress(progress=1, total=2, message="half")


async def test_the_first_run_knows_the_call_and_the_next_one_does_not() -> None:
    server, calls, call, store = new_server(), OpenCalls(), Call(), MemoryStore()
    seen: list[Any] = []
    started, gate = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def tool(ctx: Context) -> str:
        token = get_access_token()
        seen.append((ctx.request_context.meta, ctx.headers, None if token is None else token.client_id))
        started.set()
        await gate.wait()
        await ctx.report_progress(1)
        return "done"

    policy = ToolPolicy(rerun=True)
    with calls.open(TASK, call):
        async with running_tools(server, calls=calls, new_id=lambda: TASK, store=store, policy=policy) as runtime:
            await runtime.launch(call_of("tool"), owner=None, retention=None)
            await started.wait()
        gate.set()
        async with running_tools(server, calls=calls, store=store, policy=policy) as runtime:
            ended = await until(runtime, TASK, lambda task: task.is_final)
    assert ended.attempt == 2
    assert seen == [(call.meta, call.request.headers, "ada"), ({}, None, None)]
    assert call.reports == [(1, None, None)], "an open call hears of every run"


async def test_a_call_that_only_waits_for_the_task_is_reached_and_is_not_the_call_of_the_tool() -> None:
    server, calls, waiting = new_server(), OpenCalls(), Call(name="task_status")
    seen: list[Any] = []

    @server.tool()
    async def tool(ctx: Context) -> str:
        seen.append((ctx.request_context.meta, ctx.headers, get_access_token()))
        await ctx.report_progress(1)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, waiting):
            await finish(runtime, replace(call_of("tool"), meta={"example.com/a": 2}))
    assert seen == [({"example.com/a": 2}, None, None)]
    assert waiting.reports == [(1, None, None)]


async def test_a_sync_tool_reports_from_its_thread_as_in_a_plain_call() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    def tool(ctx: Context) -> str:
        for done in range(3):
            anyio.from_thread.run(ctx.report_progress, done)
        token = get_access_token()
        return "nobody" if token is None else token.client_id

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            result, _ = await outcome_of(runtime, (await finish(runtime, call_of("tool"))).id)
    assert result["content"] == [{"type": "text", "text": "ada"}]
    assert [done for done, _, _ in call.reports] == [0, 1, 2]


async def test_a_task_without_a_call_knows_none_and_sends_nothing() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()
    seen: list[Any] = []

    @server.tool()
    async def tool(ctx: Context) -> str:
        seen.append((ctx.request_context.meta, ctx.headers, get_access_token()))
        await ctx.report_progress(1)
        await ctx.info("hello")  # pyright: ignore[reportDeprecated]
        return "done"

    async with running_tools(server, calls=calls) as runtime:
        with calls.open("another task", call):
            ended = await finish(runtime, call_of("tool"))
    assert ended.status is TaskStatus.COMPLETED
    assert seen == [({}, None, None)]
    assert (call.reports, call.notices) == ([], [])


async def test_a_call_that_has_closed_hears_nothing_more_and_the_tool_goes_on() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()
    gate, reported = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.report_progress(1)
        reported.set()
        await gate.wait()
        await ctx.report_progress(2)
        await ctx.info("hello")  # pyright: ignore[reportDeprecated]
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            await runtime.launch(call_of("tool"), owner=None, retention=None)
            await reported.wait()
        assert calls.of(TASK) == []
        gate.set()
        await until_status(runtime, TASK, TaskStatus.COMPLETED)
    assert call.reports == [(1, None, None)]
    assert call.notices == []


async def test_a_call_that_is_opened_twice_is_sent_everything_once() -> None:
    server, calls, call = new_server(), OpenCalls(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, call):
            with calls.open(TASK, call):
                pass
            with calls.open(TASK, call):
                await finish(runtime, call_of("tool"))
            assert calls.of(TASK) == [call]
    assert calls.of(TASK) == []
    assert call.reports == [(1, None, None)]


async def test_a_client_that_reads_nothing_holds_the_tool_up_once_and_others_get_everything() -> None:
    server, calls, stuck, other = new_server(), OpenCalls(patience=0.05), StuckCall(), Call()

    @server.tool()
    async def tool(ctx: Context) -> str:
        for done in range(3):
            await ctx.report_progress(done)
        await ctx.info("hello")  # pyright: ignore[reportDeprecated]
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, stuck), calls.open(TASK, other):
            ended = await finish(runtime, call_of("tool"))
    assert ended.status is TaskStatus.COMPLETED
    assert (stuck.reports, stuck.notices) == ([(0, None, None)], [])
    assert [done for done, _, _ in other.reports] == [0, 1, 2]
    assert len(other.notices) == 1


async def test_a_client_that_reads_again_is_sent_what_comes_then() -> None:
    server, calls, stuck = new_server(), OpenCalls(patience=0.05), StuckCall()
    reading, read_again = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.report_progress(1)
        await ctx.report_progress(2)
        reading.set()
        await read_again.wait()
        await ctx.report_progress(3)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, stuck):
            await runtime.launch(call_of("tool"), owner=None, retention=None)
            await reading.wait()
            stuck.gate.set()
            await settle()
            read_again.set()
            await until_status(runtime, TASK, TaskStatus.COMPLETED)
    assert [done for done, _, _ in stuck.reports] == [1, 3]


async def test_a_call_that_cannot_be_reached_is_no_failure_of_the_tool() -> None:
    server, calls = new_server(), OpenCalls()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    async with running_tools(server, calls=calls, new_id=lambda: TASK) as runtime:
        with calls.open(TASK, BrokenCall()):
            ended = await finish(runtime, call_of("tool"))
    assert ended.status is TaskStatus.COMPLETED
