"""A store that is out of order for a moment, while clients listen."""

from __future__ import annotations

import pytest

from harness.http import serving
from harness.rpc import EVERYTHING, INTERNAL_ERROR, PATIENCE, Tasking, text_of
from harness.server import QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import resume_task
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.memory import MemoryStore
from tests.client.connecting import LONG, connect, text
from tests.push.listening import listen, listening

pytestmark = pytest.mark.anyio


class MoodyStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        """Reads that are still to fail."""

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now")
        return await super().get(task_id)


async def test_a_stream_whose_tasks_cannot_be_looked_up_is_refused_for_now(desk: Desk) -> None:
    store = MoodyStore()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("gated")
        await desk.started.wait()
        store.failures = 1
        reply = await wire.send(listen([task_id]))
        assert reply.code == INTERNAL_ERROR
        assert "try again later" in reply.error["message"]
        async with listening(wire, [task_id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task_id]}


async def test_a_state_that_cannot_be_read_at_first_does_not_end_the_stream() -> None:
    store, desk = MoodyStore(), Desk()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("gated")
        await desk.started.wait()
        async with listening(wire, [task_id]) as stream:
            await stream.acknowledged()
            await stream.task()
            # A run ends without reading; so the read that fails is the one for the stream.
            store.failures = 1
            desk.gate.set()
            await eventually(lambda: store.failures == 0)
            *_, done = await stream.until("completed")
    assert text_of(done["result"]) == "through"


async def test_a_client_of_ours_gets_its_result_although_streams_fail(desk: Desk) -> None:
    store = MoodyStore()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire, connect(wire.url, patience=LONG) as client:
        task_id = await Tasking(wire, EVERYTHING).create("gated")
        await desk.started.wait()
        store.failures = 3
        desk.gate.set()
        assert text(await resume_task(client, task_id).result(PATIENCE)) == "through"
