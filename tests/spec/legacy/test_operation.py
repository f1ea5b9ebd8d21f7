"""What the protocol asks of whoever runs a server: what is documented, what is logged, what can be watched."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from harness.http import serving
from harness.older import http_session
from harness.rpc import PATIENCE
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import TaskChange
from tests.spec.legacy.furnished import furnished

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "eras.md"


def _page() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.requirement("older/documented-exposure")
def test_it_is_documented_that_without_authentication_the_id_is_the_key() -> None:
    assert "Without authentication, whoever has the id of a task has the task." in _page()


@pytest.mark.requirement("older/documented-ttl")
def test_the_longest_ttl_is_documented() -> None:
    assert "`Tasks(max_ttl=)`, or `Limits.ttl`, 30 days by default" in _page()
    assert timedelta(days=30) == Limits().ttl


@pytest.mark.requirement("older/documented-concurrency")
def test_it_is_documented_which_limits_hold_per_requestor() -> None:
    assert "a rate limit and a limit of tasks per requestor: both hold for callers with a name" in _page()


@pytest.mark.requirement("older/audit-owner", "older/monitoring")
async def test_an_observer_is_told_whose_task_was_made_and_how_it_ended() -> None:
    changes: list[TaskChange] = []
    server = furnished(Tasks("memory://", settings=QUICK, observers=[changes.append]), guarded=True)
    async with serving(server) as way, http_session(way.as_user("alice")) as alice:
        task_id = await alice.start("nothing")
        await alice.until(task_id, "completed")
        with anyio.fail_after(PATIENCE):
            while not (changes and changes[-1].task.is_final):  # noqa: ASYNC110
                await anyio.sleep(0.01)
    assert {change.task.id for change in changes} == {task_id}
    assert all("alice" in (change.task.owner or "") for change in changes)
    assert type(changes[0].event).__name__ == "TaskCreated"


@pytest.mark.requirement("older/audit-log")
async def test_the_log_has_a_line_for_the_creation_and_one_for_the_end(caplog: pytest.LogCaptureFixture) -> None:
    # Before the server starts: it asks once whether anybody reads such lines.
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        async with serving(furnished(Tasks("memory://", settings=QUICK))) as way, http_session(way) as client:
            task_id = await client.start("nothing")
            await client.until(task_id, "completed")
            with anyio.fail_after(PATIENCE):
                while not any("completed after" in line for line in caplog.messages):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
    lines = [line for line in caplog.messages if task_id[:12] in line]
    assert any("was created" in line for line in lines)
    # A log is read by more people than a task is meant for, so no line has enough of the id to use it.
    assert not any(task_id in line for line in caplog.messages)
