"""The older era over every way to a server: what each can carry, and what it says of what it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.server.mcpserver import Context

from harness.forking import piped
from harness.http import serving, serving_app
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import PATIENCE
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.client import TaskFailed, TasksClient, call_tool, reconnecting_http, stdio_transport, with_tasks
from tests.client.connecting import Person, begin, text

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Client]:
    async with Client(
        reconnecting_http(url), mode="legacy", elicitation_callback=Person(), extensions=[TasksClient()]
    ) as client:
        yield client


async def test_tasks_and_their_questions_pass_where_answers_are_no_streams() -> None:
    desk = Desk()
    server = build(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=True) as wire, connected(wire.url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("echo", {"value": 7})) == "7"
            assert text(await client.call_tool("ask_name")) == "Hello, Ada!"
            handle = await begin(client, "gated")
            waiting = asyncio.create_task(handle.result())
            desk.gate.set()
            assert text(await waiting) == "through"


async def test_a_result_of_some_megabytes_arrives() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = build(tasks, Desk())

    @server.tool()
    @tasks.task()
    def large(size: int) -> str:  # pyright: ignore[reportUnusedFunction]
        return "x" * size

    async with serving(server) as wire, connected(wire.url) as client:
        with anyio.fail_after(PATIENCE):
            handle = await begin(client, "large", size=3 * 2**20)
            assert len(text(await handle.result())) == 3 * 2**20


def errors_of_client(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the client's side logged. The server is in this process too, and the SDK says when a session is deleted
    under an answer."""
    of_server = ("mcp.server", "uvicorn")
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    return [record.getMessage() for record in errors if not record.name.startswith(of_server)]


async def test_leaving_while_the_server_still_speaks_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    async with serving(build(Tasks("memory://", settings=QUICK), desk)) as wire:
        with anyio.fail_after(PATIENCE):
            async with connected(wire.url) as client:
                handles = [await begin(client, "progressing", steps=200, total=None, message=None) for _ in "123"]
                handles += [await begin(client, "gated") for _ in "123"]
                waits = [asyncio.create_task(handle.result()) for handle in handles]
                await desk.started.wait()
                desk.gate.set()
                await asyncio.sleep(0.02)  # sleep: it leaves in the middle of what is said
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
    assert errors_of_client(caplog) == []


async def test_leaving_in_the_middle_of_a_stream_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    server = build(Tasks("memory://", settings=QUICK), Desk())
    heard = asyncio.Event()

    @server.tool()
    async def talks(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        for step in range(3000):
            await ctx.report_progress(step, None, "on and on")
            await asyncio.sleep(0)
        return "done"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async with serving(server) as wire:
        with anyio.fail_after(PATIENCE):
            async with connected(wire.url) as client:
                calls = [asyncio.create_task(client.call_tool("talks", progress_callback=hear)) for _ in "123"]
                await heard.wait()
            await asyncio.gather(*calls, return_exceptions=True)
    assert errors_of_client(caplog) == []


async def test_without_sessions_tasks_work_and_a_question_fails_clearly() -> None:
    server = build(Tasks("memory://", settings=QUICK), Desk())
    async with serving(server, stateless=True) as wire, connected(wire.url) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("echo", {"value": 7})) == "7"
            handle = await begin(client, "ask_name")
            with pytest.raises(TaskFailed, match="stateless"):
                await handle.result()


async def test_a_stdio_server_is_driven(tmp_path: Path) -> None:
    command, *arguments = piped("tests.cli.asking_server", "--db", str(tmp_path / "tasks.db"))
    server = StdioServerParameters(command=command, args=arguments, env=dict(ENVIRONMENT), cwd=ROOT)
    tasks = TasksClient(ledger=tmp_path / "ledger.db")
    async with Client(stdio_transport(server), mode="legacy", extensions=[tasks]) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("slow", {"seconds": 0.1})) == "slow done"
            assert text(await call_tool(client, "slow", {"seconds": 0.1})) == "slow done"
        assert tasks.pending(client) == []


async def test_the_old_sse_transport_carries_tasks_when_wrapped() -> None:
    server = build(Tasks("memory://", settings=QUICK), Desk())
    async with serving_app(server.sse_app()) as base:
        transport = with_tasks(sse_client(f"{base}/sse"))
        async with Client(
            transport, mode="legacy", elicitation_callback=Person(), extensions=[TasksClient()]
        ) as client:
            with anyio.fail_after(PATIENCE):
                assert text(await client.call_tool("ask_name")) == "Hello, Ada!"
