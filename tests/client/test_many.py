"""Many tasks at once on one connection."""

from __future__ import annotations

import time

import anyio
import pytest

from harness.http import serving
from harness.server import QUICK, UNPACED
from mcp_tasks import Tasks
from mcp_tasks.client import resume_task
from mcp_tasks.testing import fixture_server
from tests.client.connecting import begin, connect, text

pytestmark = pytest.mark.anyio

MANY = 200


@pytest.mark.parametrize("push", [True, False], ids=["push", "polls"])
async def test_two_hundred_calls_on_one_connection_all_get_their_result(push: bool) -> None:
    results: list[str] = []
    server = fixture_server.build(Tasks("memory://", settings=QUICK, limits=UNPACED, concurrency=MANY))
    async with serving(server) as wire, connect(wire.url, push=push) as client:

        async def call() -> None:
            results.append(text(await client.call_tool("park", {"seconds": 0.5})))

        await client.list_tools()
        began = time.monotonic()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(MANY):
                    group.start_soon(call)
    assert results == ["ok"] * MANY
    # One after another they would take a hundred seconds.
    assert time.monotonic() - began < MANY * 0.5 / 2


async def test_two_hundred_finished_tasks_are_collected_at_once() -> None:
    results: list[str] = []
    server = fixture_server.build(Tasks("memory://", settings=QUICK, limits=UNPACED))
    async with serving(server) as wire, connect(wire.url) as client:
        ids = [(await begin(client, "noop")).id for _ in range(MANY)]

        async def collect(task_id: str) -> None:
            results.append(text(await resume_task(client, task_id).result()))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for task_id in ids:
                    group.start_soon(collect, task_id)
    assert results == ["ok"] * MANY
