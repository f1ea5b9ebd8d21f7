"""Task records and requests for tests, made in one line."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.testing.clock import NOON

_numbers = count(1)


def make_record(**overrides: Any) -> TaskRecord:
    """A new, queued task with an id of its own; `overrides` are fields of `TaskRecord`."""
    fields: dict[str, Any] = {
        "id": f"task-{next(_numbers)}",
        "owner": "alice",
        "name": "render",
        "created_at": NOON,
        "retention": timedelta(hours=1),
    } | overrides
    return TaskRecord(**{"updated_at": fields["created_at"], **fields})


def make_request(**overrides: Any) -> TaskRequest:
    """The request of `make_record`; `overrides` are fields of `TaskRequest`."""
    fields: dict[str, Any] = {"name": "render", "arguments": {"scene": "forest"}, **overrides}
    return TaskRequest(**fields)
