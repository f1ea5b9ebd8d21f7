"""What a tool in a task sends to a call that is still open for it, and what it knows of the call."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.rpc import text_of
from harness.server import QUICK
from mcp_tasks import Fallback, Tasks, current_task
from mcp_tasks.errors import UnknownTask
from mcp_tasks.server.local import LocalTask
from tests.unit.virtual_time import SIMULATED, simulated, time_passes

HOUR = timedelta(hours=1)


def _now() -> datetime:
    return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)


def new_server(**options: Any) -> tuple[MCPServer[Any], Tasks]:
    """A server whose calls wait for their tasks, in this process."""
    tasks = Tasks("memory://", fallback=Fallback(wait=HOUR), settings=QUICK, clock=_now, **options)
    return MCPServer("open", **tasks.wiring(), log_level="CRITICAL"), tasks


async def test_what_a_tool_sends_reaches_the_call_in_order_and_progress_of_another_token_does_not() -> None:
    server, tasks = new_server()
    heard, logged = list[Any](), list[Any]()
    others: list[str] = []
    outside: list[str | None] = []
    from_thread: Any = anyio.from_thread.run

    @server.tool()
    @tasks.task()
    def tool(ctx: Context) -> str:
        for done in range(3):
            from_thread(ctx.report_progress, done, 3, f"frame {done}")
        send, meta = ctx.session.send_progress_notification, ctx.request_context.meta or {}
        from_thread(partial(send, meta.get("progress_token", ""), 3, 3, "by itself", related_request_id=ctx.request_id))
        from_thread(send, "of somebody else", 4, 4)
        from_thread(ctx.session.send_resource_updated, "test://a")
        from_thread(ctx.error, "half \ud800")  # pyright: ignore[reportDeprecated]
        return "done"

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        # The tool's own context is not that of whoever hears it.
        outside.append(current_task().id)

    async def log(params: Any) -> None:
        logged.append((params.level, params.data))

    async def message(message: Any) -> None:
        others.append(message.method)

    async with Client(server, mode="legacy", logging_callback=log, message_handler=message) as client:
        result = await client.call_tool("tool", {}, progress_callback=progress)
    assert text_of(result.model_dump()) == "done"
    frames = [(done, 3, f"frame {done}") for done in range(3)]
    assert (heard, logged) == ([*frames, (3, 3, "by itself")], [("error", "half \ufffd")])
    assert outside == [None] * 4
    assert "notifications/resources/updated" in others
    gc.collect()


@simulated
async def test_a_client_that_reads_nothing_holds_the_tool_up_once_and_hears_again_when_it_reads() -> None:
    heard: list[float] = []
    took: list[float] = []
    reads, reading, last = anyio.Event(), anyio.Event(), anyio.Event()
    server, tasks = new_server()

    @server.tool()
    @tasks.task()
    async def tool(ctx: Context) -> str:
        begun = asyncio.get_running_loop().time()
        for done in (1, 2, 3):
            await ctx.report_progress(done)
        took.append(asyncio.get_running_loop().time() - begun)
        reading.set()
        await last.wait()
        await ctx.report_progress(4)
        return "done"

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        await reads.wait()

    async with Client(server) as client, anyio.create_task_group() as group:

        async def call() -> None:
            await client.call_tool("tool", {}, progress_callback=progress)

        group.start_soon(call)
        await reading.wait()
        reads.set()
        await time_passes(1)
        last.set()
    assert 1 < took[0] < 4, "once, for as long as a client has to take something"
    assert heard[-1] == 4


# Tasks of this process, in a tool that waits for one


@pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")])
async def test_that_a_task_is_gone_is_recorded_so_a_later_run_is_told_the_same() -> None:
    runs: list[int] = []
    server, tasks = new_server()

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0))
    async def waits() -> str:
        runs.append(1)
        with pytest.raises(UnknownTask) as caught:
            await tasks.handle("gone").wait()
        await current_task().sleep(timedelta(minutes=1))
        return caught.value.task_id

    async with tasks.running(server):
        task = await tasks.start("waits", {})
        assert text_of((await task.wait()).model_dump()) == "gone"
    assert len(runs) == 2


@pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")])
async def test_tools_that_come_back_from_a_sleep_while_a_child_is_waited_for_leave_the_slots_to_the_children() -> None:
    server, tasks = new_server(concurrency=2)

    @server.tool()
    @tasks.task()
    async def parent() -> str:
        child: LocalTask[Any] = await tasks.start("child", {})
        await asyncio.gather(current_task().sleep(timedelta(seconds=0.1)), child.wait())
        return "done"

    @server.tool()
    @tasks.task()
    async def child() -> str:
        await current_task().sleep(timedelta(seconds=1))
        return "done"

    async with tasks.running(server):
        parents = [await tasks.start("parent", {}) for _ in range(3)]
        with anyio.fail_after(600):
            assert [text_of((await each.wait()).model_dump()) for each in parents] == ["done"] * 3
