"""The client side of the extension: calls that wait for tasks by themselves, and handles for those who want them."""

from mcp_tasks.client.backend import CallLost
from mcp_tasks.client.extension import TasksClient, call_tool, list_tasks, pending_tasks, resume_task, start_task
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.client.http import reconnecting_http
from mcp_tasks.client.ledger import Ledger, LedgerEntry, user_ledger
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.transport import Hosting, ServerTransport, stdio_transport, with_tasks
from mcp_tasks.errors import (
    InvalidResponse,
    QuestionUnanswered,
    TasksError,
    TaskWasCancelled,
    UnknownTask,
    WaitAbandoned,
    WaitTimedOut,
)
from mcp_tasks.failure import TaskFailed
from mcp_tasks.model.record import Progress, TaskStatus
from mcp_tasks.protocol.shapes import TaskSnapshot

__all__ = [
    "CallLost",
    "Hosting",
    "InvalidResponse",
    "Ledger",
    "LedgerEntry",
    "OnAbandon",
    "OnProgress",
    "Patience",
    "Progress",
    "QuestionUnanswered",
    "ServerTransport",
    "TaskFailed",
    "TaskHandle",
    "TaskSnapshot",
    "TaskStatus",
    "TaskWasCancelled",
    "TasksClient",
    "TasksError",
    "UnknownTask",
    "WaitAbandoned",
    "WaitTimedOut",
    "call_tool",
    "list_tasks",
    "pending_tasks",
    "reconnecting_http",
    "resume_task",
    "start_task",
    "stdio_transport",
    "user_ledger",
    "with_tasks",
]
