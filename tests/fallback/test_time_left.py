"""How much of its time a host has left when a request of its call arrives: by a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.rpc import PATIENCE, accept, text_of
from harness.server import Name
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback, Host
from mcp_tasks.testing import FakeClock
from tests.fallback.matrix.legs import Call
from tests.fallback.moods import Jobs, client_of, quick_tasks, server_of

pytestmark = pytest.mark.anyio

LIMIT = timedelta(seconds=60)
"""A host that gives up after this is answered within 50 seconds."""

NEARLY_OVER = timedelta(seconds=49.9)
WAIT = timedelta(seconds=0.2)
OFTEN = timedelta(seconds=0.05)


def waiting_server(tasks: Tasks, jobs: Jobs) -> MCPServer[Any]:
    """A server with a tool that asks when the gate is open, and does not come to an end."""
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    async def asks_late(job: str, ctx: Context) -> str:
        """Work, ask, and go on for ever."""
        await jobs.work(job)
        await ctx.elicit("What is your name?", Name)
        await anyio.sleep_forever()
        return ""

    @server.tool()
    @tasks.task()
    async def asks(ctx: Context) -> str:
        """Ask at once."""
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    return server


def handle_of(result: dict[str, Any]) -> str:
    """The id in the answer that the tool is still running."""
    assert result["resultType"] == "complete", result
    assert "It has not finished, and this is not its result." in text_of(result)
    return result["structuredContent"]["taskId"]


async def test_the_legs_of_task_status_keep_to_the_limit_of_the_host_together() -> None:
    clock, jobs = FakeClock(), Jobs()
    tasks = quick_tasks(clock=clock, fallback=Fallback(wait=WAIT, legs=1), hosts={"raw": Host(limit=LIMIT)})
    async with client_of(waiting_server(tasks, jobs)) as client:
        call = Call("asks_late", {"job": "status"})
        await call.begin(client)
        task_id = handle_of((await call.leg(client)).result)
        jobs.gate.set()
        look = Call("task_status", {"task_id": task_id, "wait_seconds": 60})
        [key] = (await look.begin(client))["inputRequests"]
        clock.advance(NEARLY_OVER)
        # Were this a call of its own, it would wait for 50 seconds.
        with anyio.fail_after(PATIENCE):
            assert handle_of((await look.leg(client, {key: accept(name="Ada")})).result) == task_id


@pytest.mark.parametrize(
    ("json_response", "heartbeat", "is_kept"),
    [
        pytest.param(False, OFTEN, True, id="often"),
        pytest.param(False, 2 * LIMIT, False, id="seldom"),
        pytest.param(True, OFTEN, False, id="plain JSON"),
    ],
)
async def test_progress_extends_the_time_only_where_it_is_sent_and_often_enough(
    json_response: bool, heartbeat: timedelta, is_kept: bool
) -> None:
    clock = FakeClock()
    hosts = {"raw": Host(limit=LIMIT, progress_extends=True)}
    tasks = quick_tasks(clock=clock, fallback=Fallback(wait=WAIT, heartbeat=heartbeat), hosts=hosts)
    async with client_of(waiting_server(tasks, Jobs()), json_response=json_response) as client:
        call = Call("asks_late", {"job": "progress"})
        first = await call.leg(client, progress_token="token")
        assert first.result["resultType"] == "input_required"
        clock.advance(NEARLY_OVER)
        last = await call.leg(client, progress_token="token")
        assert (last.result["resultType"] == "input_required") is is_kept
        assert bool(first.notifications) is is_kept


async def test_without_legs_task_status_asks_what_the_call_did_not() -> None:
    tasks = quick_tasks(fallback=Fallback(wait=WAIT, legs=0))
    async with client_of(waiting_server(tasks, Jobs())) as client:
        told = await client.call("asks")
        assert "It also puts the question to the user, where this client can." in text_of(told)
        look = Call("task_status", {"task_id": handle_of(told)})
        [key] = (await look.begin(client))["inputRequests"]
        assert text_of(await look.end(client, {key: accept(name="Ada")})) == "Hello, Ada!"
