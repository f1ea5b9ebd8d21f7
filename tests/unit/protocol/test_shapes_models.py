"""The models of a task on the wire, as document 001 has them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

import mcp_tasks
from mcp_tasks import EXTENSION_ID, CreateTaskResult, Task, Tasks, TaskStatus
from mcp_tasks.protocol.shapes import render_created
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

FIELDS: dict[str, Any] = {
    "task_id": "task_1",
    "status": "working",
    "created_at": "2026-08-01T12:00:00Z",
    "last_updated_at": "2026-08-01T12:00:00Z",
}


@pytest.mark.parametrize("name", ["CreateTaskResult", "EXTENSION_ID", "Task", "TaskStatus", "Tasks"])
def test_the_names_of_document_001_are_in_the_package(name: str) -> None:
    assert name in mcp_tasks.__all__


def test_the_extension_is_the_one_that_the_server_declares() -> None:
    assert Tasks.identifier == EXTENSION_ID == "io.modelcontextprotocol/tasks"


@pytest.mark.parametrize("retention", [None, timedelta(hours=1)])
def test_what_the_server_answers_is_read_and_written_as_it_was(retention: timedelta | None) -> None:
    record = make_record(id="task_1", retention=retention)
    rendered = render_created(record, NOON)
    read = CreateTaskResult.model_validate(rendered)
    assert read.status is TaskStatus.WORKING
    assert read.model_dump(by_alias=True, mode="json", exclude_none=True) == rendered


@pytest.mark.parametrize("model", [Task, CreateTaskResult])
def test_a_task_that_is_kept_for_good_says_so(model: type[Task | CreateTaskResult]) -> None:
    written = model.model_validate(FIELDS).model_dump(by_alias=True, mode="json", exclude_none=True)
    assert written.pop("ttlMs") is None
    assert written.pop("resultType", "task") == "task"
    assert written == {
        "taskId": "task_1",
        "status": "working",
        "createdAt": FIELDS["created_at"],
        "lastUpdatedAt": FIELDS["last_updated_at"],
    }
    assert model.model_validate(FIELDS).model_dump()["ttl_ms"] is None


@pytest.mark.parametrize("status", ["working", "input_required", "completed", "failed", "cancelled"])
def test_a_status_is_the_word_of_the_wire(status: str) -> None:
    assert Task.model_validate({**FIELDS, "status": status}).status == status == TaskStatus(status)


def test_a_status_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        Task.model_validate({**FIELDS, "status": "on fire"})
