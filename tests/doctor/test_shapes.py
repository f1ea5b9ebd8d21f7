"""Each flaw of a task is found, whatever server sent it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mcp_tasks.doctor.report import flaws_of_ack, flaws_of_created, flaws_of_detailed, flaws_of_id, flaws_of_time
from mcp_tasks.model.json import JsonObject

NOW = "2026-07-28T12:00:00Z"
TASK: JsonObject = {
    "taskId": "0123456789abcdef0123",
    "status": "working",
    "createdAt": NOW,
    "lastUpdatedAt": NOW,
    "ttlMs": None,
}


@pytest.mark.parametrize(
    "change",
    [
        {"taskId": 7},
        {"status": "done"},
        {"statusMessage": None},
        {"createdAt": "2026-07-28T12:00:00"},
        {"lastUpdatedAt": "2026-07-28T11:00:00Z"},
        {"ttlMs": 1.5},
        {"pollIntervalMs": "5"},
        {"pollInterval": 5},
        {"status": "completed"},
        {"status": "failed", "error": {"message": "no code"}},
        {"status": "input_required", "inputRequests": {}},
        {"status": "input_required", "inputRequests": {"a": {"params": {}}}},
        {"result": {}},
    ],
)
def test_every_flaw_of_a_task_is_found(change: dict[str, Any]) -> None:
    assert list(flaws_of_detailed(TASK)) == []
    assert "fail" in [flaw.verdict for flaw in flaws_of_detailed({**TASK, **change})]


def test_flaws_of_new_tasks_acknowledgements_ids_and_times_are_found() -> None:
    now = datetime.fromisoformat(NOW)
    assert list(flaws_of_created({"resultType": "task", **TASK})) == []
    assert next(flaws_of_created({"task": TASK})).verdict == "fail"
    assert next(flaws_of_created({**TASK, "result": {}})).verdict == "warn"
    assert list(flaws_of_created({key: value for key, value in TASK.items() if key != "ttlMs"}))
    assert list(flaws_of_ack({"resultType": "complete", "_meta": {}})) == []
    assert len(list(flaws_of_ack({"resultType": "task", "taskId": "x"}))) == 2
    assert list(flaws_of_id("0123456789abcdef0123")) == []
    assert [len(list(flaws_of_id(weak))) for weak in ("1", "12345678901234567890", "aaaaaaaaaaaaaaaaaaaa")] == [1] * 3
    assert list(flaws_of_time(TASK, now)) == []
    assert len(list(flaws_of_time({**TASK, "ttlMs": 0, "createdAt": "2020-01-01T00:00:00Z"}, now))) == 2
    completed: JsonObject = {**TASK, "status": "completed", "result": {"content": []}}
    assert [flaw.verdict for flaw in flaws_of_detailed(completed)] == ["warn"]
