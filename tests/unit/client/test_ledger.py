"""What a ledger says of one task."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mcp_tasks.client.ledger import LedgerEntry

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
