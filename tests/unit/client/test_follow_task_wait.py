"""The wait for one task, whose server goes away and comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from mcp_tasks.client import Followed, Follower, Hooks, LedgerEntry, TaskHandle, TaskSnapshot, TaskStatus
from mcp_tasks.client.follow import TaskWait

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 8, 1, 10, tzinfo=UTC)
ENTRY = LedgerEntry.begun("task_1", server="https://farm.example/mcp", tool="render")


class Handle:
    """A task that cannot be seen for a moment, and then has ended."""

    async def watch(
        self, *, questions: bool, on_outage: Callable[[timedelta | None], None]
    ) -> AsyncGenerator[TaskSnapshot]:
        on_outage(timedelta(seconds=1))
        on_outage(timedelta(seconds=2))
        yield TaskSnapshot(id="task_1", status=TaskStatus.COMPLETED, created_at=NOW, updated_at=NOW)


class Told(Hooks):
    def __init__(self) -> None:
        self.away: list[datetime | None] = []
        self.ended = False

    def on_change(self, followed: Followed) -> None:
        if followed.is_final:
            self.ended = True
        else:
            self.away.append(followed.away_since)

    def on_back(self, followed: Followed, after: timedelta) -> None:
        assert after >= timedelta(seconds=1)
        self.away.append(followed.away_since)


async def test_since_when_a_server_is_out_of_reach_is_known_of_its_task() -> None:
    told = Told()
    follower = Follower(told)
    await TaskWait(follower, cast("TaskHandle", Handle()), ENTRY).run()
    first, again, back = told.away
    assert first is not None
    assert first == again
    assert back is None
    assert told.ended
    assert (follower.seen[ENTRY.key].status, follower.seen[ENTRY.key].away_since) == ("completed", None)
