"""What a listener is told when the store fails in between."""

from __future__ import annotations

import pytest

from mcp_tasks.core import TaskRecord
from mcp_tasks.core.record import Outcome
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.protocol import Listening, ModernDialect
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.stores import MemoryStore
from tests.unit.running import CLIENT, create, launch, ok, running, until_final

pytestmark = pytest.mark.anyio


async def body(run: Run) -> Ending:
    return ok()


class Unsteady(MemoryStore):
    """A store that is away for a while, or forgets how a task ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.forgets = False

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.is_away:
            raise StoreUnavailable("the disk is full")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        return None if self.forgets else await super().outcome(task_id)


async def test_a_state_that_cannot_be_read_is_told_with_the_next_change() -> None:
    store = Unsteady()
    async with running(body, store=store) as runtime:
        task = await create(runtime)
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        store.is_away = True
        assert await following.next() is None
        store.is_away = False
        # Nothing changed since: the client polls as well.
        assert await following.next() is None
        await runtime.cancel(task, "enough", actor=CLIENT)
        told = await following.next()
        assert told is not None
        assert told.fields["status"] == "cancelled"
        following.stop()


async def test_a_task_that_expires_while_it_is_read_is_not_told_of() -> None:
    store = Unsteady()
    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await until_final(runtime, task)
        store.forgets = True
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        assert await following.next() is None
        following.stop()
