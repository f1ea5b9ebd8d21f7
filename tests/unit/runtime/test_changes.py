"""Changes of tasks: what is remembered of them, and told."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.model.machine import TaskCancelled, TaskCreated
from mcp_tasks.runtime import Ending, Run, TaskChange, changes
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.codec import new_write_id
from tests.unit.running import CLIENT, create, ok, running

pytestmark = pytest.mark.anyio


async def at_once(run: Run) -> Ending:
    return ok()


async def test_what_was_written_last_is_remembered_and_what_was_written_long_ago_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "MAX_REMEMBERED", 2)
    async with running(at_once, runs_tools=False) as runtime:
        written = [Hint(task.id, task.version) for task in [await create(runtime) for _ in range(3)]]
        assert [runtime.changes.wrote(hint) for hint in written] == [False, True, True]


async def test_of_events_that_happen_together_those_that_change_nothing_are_not_told() -> None:
    told: list[TaskChange] = []
    async with running(at_once, runs_tools=False, observers=[told.append]) as runtime:
        task = await create(runtime)
        once, twice = TaskCancelled(reason="enough"), TaskCancelled(reason="enough, I said")
        ended = await runtime.changes.change(task, once, twice, actor=CLIENT)
    assert ended.status_message == "enough"
    assert [change.event for change in told if isinstance(change.event, TaskCancelled)] == [once]


class Unanswered(MemoryStore):
    """Carries out the first save, and loses its answer."""

    is_lossy = True

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        saved = await super().save(record, **options)
        if self.is_lossy:
            self.is_lossy = False
            raise StoreUnavailable("the answer was lost", may_have_happened=True)
        return saved


@pytest.mark.parametrize("seen", [False, True])
async def test_observers_hear_once_of_a_change_whose_answer_was_lost(*, seen: bool) -> None:
    told: list[TaskChange] = []
    async with running(at_once, store=Unanswered(), runs_tools=False, observers=[told.append]) as runtime:
        task, write = await create(runtime), new_write_id()
        cancel = partial(runtime.changes.change, actor=CLIENT, write=write)
        with pytest.raises(StoreUnavailable):
            await cancel(task, TaskCancelled(reason="enough"))
        # The caller may have heard of its own change by then.
        again = await runtime.find(task.id) if seen else task
        assert (await cancel(again, TaskCancelled(reason="enough"))).version == 2
    assert [type(change.event) for change in told] == [TaskCreated, TaskCancelled]


async def test_observers_hear_once_of_a_change_that_is_made_from_two_places() -> None:
    told: list[TaskChange] = []
    async with running(at_once, runs_tools=False, observers=[told.append]) as runtime:
        task, write = await create(runtime), new_write_id()
        for _ in range(2):
            await runtime.changes.change(task, TaskCancelled(reason="enough"), actor=CLIENT, write=write)
    assert [type(change.event) for change in told] == [TaskCreated, TaskCancelled]
