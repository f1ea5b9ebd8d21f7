"""Changes of tasks: what is remembered of them, and told."""

from __future__ import annotations

import pytest

from mcp_tasks.core.events import TaskCancelled
from mcp_tasks.runtime import Ending, Run, TaskChange, changes
from mcp_tasks.stores.base import Hint
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
