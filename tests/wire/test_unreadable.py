"""A task that the store cannot read: its caller is told, and everything else goes on."""

from __future__ import annotations

from typing import Any

import pytest

from harness.http import serving
from harness.rpc import EVERYTHING, INTERNAL_ERROR, INVALID_PARAMS, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.memory import MemoryStore
from tests.push.listening import listening

pytestmark = pytest.mark.anyio

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("tasks/get", {}),
    ("tasks/cancel", {}),
    ("tasks/update", {"inputResponses": {}}),
]


class TornStore(MemoryStore):
    """A store in which one row is torn."""

    def __init__(self) -> None:
        super().__init__()
        self.torn: str | None = None
        self.owner: str | None = None

    async def get(self, task_id: str) -> TaskRecord | None:
        if task_id == self.torn:
            raise TaskUnreadable(task_id, "its row is torn", owner=self.owner)
        return await super().get(task_id)


async def test_a_task_that_cannot_be_read_answers_with_an_error_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store, desk = TornStore(), Desk()
    async with serving(build(Tasks(store, settings=QUICK), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        bad, good = await client.create("gated"), await client.create("gated")
        store.torn = bad
        for method, more in METHODS:
            reply = await client.ask(method, {"taskId": bad, **more})
            assert reply.code == INTERNAL_ERROR
            assert reply.error["message"] == "This task cannot be read; the server's log says why"
        async with listening(wire, [bad, good]) as stream:
            assert await stream.acknowledged() == {"taskIds": [good]}
        store.owner = "somebody else"
        assert (await client.ask("tasks/get", {"taskId": bad})).code == INVALID_PARAMS
        # The run of it goes on, and ends.
        store.torn = None
        desk.gate.set()
        await client.until(bad, "completed")
    assert "its row is torn" in caplog.text
