"""What may happen to a task: pure values and rules, no I/O, no clock, no SDK.

Glossary:

- *task*: an MCP task (SEP-2663), never an asyncio task.
- *tool*: the author's function. *Run*: one execution of a tool for a task; runs are numbered by `attempt`.
- *record*: everything known of a task at one moment, with its `version`.
- *event*: something that happened to a task, in the past tense. `apply` turns record and event into a record.
- *worker*: a process that runs tools. A record names the worker that claimed it; a worker's lease is its right to
  its claims, and its heartbeat renews it.
- *queued*: a task that could run and that no worker has claimed; *parked*: one that was suspended because it waits.
- *lost*: a run whose process died.
- *outcome*: the result or the error of a task that ended. *Retention*: how long that is kept.
- *journal*: answers and steps of a task, appended and never changed.
"""

from mcp_tasks.model.json import JsonObject, JsonValue
from mcp_tasks.model.record import (
    FINAL_STATUSES,
    ChildProcess,
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)

__all__ = [
    "FINAL_STATUSES",
    "ChildProcess",
    "InputBook",
    "InputRequest",
    "JournalEntry",
    "JsonObject",
    "JsonValue",
    "Outcome",
    "Progress",
    "TaskRecord",
    "TaskRequest",
    "TaskStatus",
]
