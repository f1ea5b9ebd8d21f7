"""Two processes on one SQLite file: what changes in the one is told by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.furnished import http_process
from harness.http import HttpWire, http_client, serving
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.server import QUICK, build
from mcp_tasks import Tasks
from tests.push.listening import as_pushed, listening, timeless

pytestmark = pytest.mark.anyio


async def test_changes_made_by_another_process_arrive(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    with http_process("--store", store) as url:
        async with http_client() as http, serving(build(Tasks(store, settings=QUICK))) as here:
            there = Tasking(HttpWire(url, http), EVERYTHING)
            task_id = await there.create("ask_name")
            async with listening(here, [task_id]) as stream:
                assert await stream.acknowledged() == {"taskIds": [task_id]}
                *_, asking = await stream.until("input_required")
                assert timeless(asking) == timeless(as_pushed(await there.get(task_id)))
                # Answered here, run there (or here), and told here.
                [key] = asking["inputRequests"]
                await Tasking(here, EVERYTHING).update(task_id, **{key: accept(name="Ada")})
                *_, done = await stream.until("completed")
            assert done == as_pushed(await there.get(task_id))
            assert text_of(done["result"]) == "Hello, Ada!"
            # And the other way round: cancelled there, told here.
            other = await there.create("ask_name")
            async with listening(here, [other]) as stream:
                await stream.acknowledged()
                await there.cancel(other)
                await stream.until("cancelled")
