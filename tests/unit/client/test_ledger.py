"""What a ledger says of one task, and which tasks it gives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.client import Ledger, TaskSnapshot, TaskStatus
from mcp_tasks.client.ledger import UNKNOWN, LedgerEntry
from mcp_tasks.errors import TaskNotRemembered

STARTED = datetime(2026, 8, 1, 10, tzinfo=UTC)


def test_a_task_as_json_has_what_has_a_value() -> None:
    entry = LedgerEntry(
        task_id="task_1", server="https://farm.example/mcp", tool="render", started_at=STARTED, status="working"
    )
    assert entry.to_json() == {
        "taskId": "task_1",
        "server": "https://farm.example/mcp",
        "tool": "render",
        "status": "working",
        "startedAt": "2026-08-01T10:00:00+00:00",
    }


def test_a_task_whose_tool_failed_says_so_as_json() -> None:
    result: dict[str, Any] = {"content": [], "isError": True}
    entry = LedgerEntry(
        task_id="task_1",
        server="peer",
        tool="render",
        started_at=STARTED,
        finished_at=STARTED,
        status="completed",
        identity="ann",
        result=result,
    )
    said = entry.to_json()
    assert (said["isError"], said["result"], said["identity"]) == (True, result, "ann")
    assert said["finishedAt"] == said["startedAt"]


HERE, THERE = "https://farm.example/mcp", "https://mill.example/mcp"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger(tmp_path / "ledger.db", keep_results=True)
    book.add("task_done", server=HERE, tool="render", arguments={"scene": "Forest"})
    book.add("task_lost", server=HERE, tool="render")
    book.add("task_busy", server=THERE, tool="grind", identity="ann")
    book.lost("task_lost", server=HERE)
    ended = TaskSnapshot(id="task_done", status=TaskStatus.COMPLETED, created_at=STARTED, updated_at=STARTED)
    book.saw(HERE, ended)
    return book


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["done", "lost", "busy"]),
        ({"server": HERE}, ["done", "lost"]),
        ({"identity": "ann"}, ["busy"]),
        ({"active": True}, ["lost", "busy"]),
        ({"active": False}, ["done"]),
        ({"status": UNKNOWN}, ["lost"]),
        ({"search": "forest"}, ["done"]),
        ({"search": "MILL.example"}, ["busy"]),
        ({"search": "render", "active": True}, ["lost"]),
    ],
)
def test_tasks_are_listed_by_what_is_asked_for(ledger: Ledger, wanted: dict[str, Any], found: list[str]) -> None:
    assert [entry.task_id for entry in ledger.entries(**wanted)] == [f"task_{name}" for name in found]


def test_several_tasks_are_found_each_once_and_in_order(ledger: Ledger) -> None:
    assert [entry.task_id for entry in ledger.find_all(["busy", "do", "task_busy"])] == ["task_busy", "task_done"]


def test_with_a_server_a_task_need_not_be_in_the_ledger(ledger: Ledger) -> None:
    [entry] = ledger.find_all(["task_new"], server=THERE, identity="ann")
    assert (entry.key, entry.status) == ((THERE, "ann", "task_new"), "working")
    with pytest.raises(TaskNotRemembered, match="begins with 'task_new'") as raised:
        ledger.find_all(["task_new"])
    assert raised.value.start == "task_new"


def test_what_is_over_is_pruned(ledger: Ledger) -> None:
    assert ledger.prune(older_than=timedelta(hours=1)) == []
    assert [entry.task_id for entry in ledger.prune(dry_run=True)] == ["task_done", "task_lost"]
    assert [entry.task_id for entry in ledger.prune()] == ["task_done", "task_lost"]
    assert [entry.task_id for entry in ledger.entries()] == ["task_busy"]
