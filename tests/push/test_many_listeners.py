"""Hundreds of listeners, each with a task of its own, on one server process; a thousand in `make soak`."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from harness.http import serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, Desk, build
from harness.thoroughness import TIMES
from mcp_tasks import Tasks
from tests.push.listening import ACKNOWLEDGED, listen
from tests.push.raw import RawStream, allow_open_files, open_raw

pytestmark = pytest.mark.anyio

LISTENERS = 1_000 if TIMES > 1 else 300
AT_ONCE = 50
LIMIT = 100.0


async def test_many_listeners_are_each_told_of_their_own_change() -> None:
    if not allow_open_files(2 * LISTENERS + 200):
        pytest.skip("this process may not open that many files")
    desk = Desk()
    async with serving(build(Tasks("memory://", settings=QUICK, concurrency=LISTENERS), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        turn = asyncio.Semaphore(AT_ONCE)
        streams: dict[str, RawStream] = {}

        async def open_one() -> None:
            async with turn:
                task_id = await client.create("gated")
                stream = streams[task_id] = await open_raw(wire.url, listen([task_id]))
                acknowledged = await stream.frame()
                assert acknowledged["method"] == ACKNOWLEDGED
                assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as group:
                for _ in range(LISTENERS):
                    group.start_soon(open_one)
            desk.gate.set()
            told = {task_id: await stream.until("completed") for task_id, stream in streams.items()}
        for stream in streams.values():
            stream.close()
    assert len(told) == LISTENERS
    for task_id, frames in told.items():
        assert {frame["params"]["taskId"] for frame in frames} == {task_id}
