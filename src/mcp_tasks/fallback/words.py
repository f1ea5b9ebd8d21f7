"""What a model reads of a task that it has to come back for, and of one that ended without a result.

Models misread what leaves room: they call the tool again, or take a first answer for the result. So each text says what
is not the case, what not to do, and what to do, in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import valid_text
from mcp_tasks.wire.render import status_message


@dataclass(frozen=True, slots=True)
class CompanionNames:
    """What the companion tools are called here.

    Attributes:
        answer: None where a model may not answer for a person.
    """

    status: str
    cancel: str
    answer: str | None = None


def handle_result(record: TaskRecord, companions: CompanionNames | None) -> dict[str, Any]:
    """The ordinary result that says that a tool is still running.

    Args:
        companions: None where the caller has none.
    """
    message = _message(record)
    lines = [_state(record), _what_to_do(record, companions), f"Task: {record.id}", f"Status: {message}"]
    return {
        "content": [{"type": "text", "text": valid_text("\n".join(lines))}],
        "structuredContent": {
            "taskId": record.id,
            "status": record.status.value,
            "statusMessage": valid_text(message),
        },
        "isError": False,
    }


def _state(record: TaskRecord) -> str:
    if record.status is TaskStatus.INPUT_REQUIRED:
        return f"The tool {record.name!r} waits for an answer and has not finished. This is not its result."
    return f"The tool {record.name!r} is still running and has not finished. This is not its result."


def _what_to_do(record: TaskRecord, companions: CompanionNames | None) -> str:
    again = f"Do not call {record.name!r} again: that would start the work a second time."
    if companions is None:
        return f"{again} The work goes on, and its result is kept under the id below."
    return (
        f"{again} To get the result, call the tool {companions.status!r} with the task_id {record.id!r}; it waits, and "
        "returns the result once there is one."
    )


def _message(record: TaskRecord) -> str:
    said = status_message(record)
    if said:
        return said
    return "waiting for an answer" if record.status is TaskStatus.INPUT_REQUIRED else "running"
