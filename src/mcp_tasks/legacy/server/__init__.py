"""Tasks of 2025-11-25 on a server: one runtime with the newest era, other words on the wire.

Here the caller decides what becomes a task (`params.task`), a result is fetched with `tasks/result`, tasks can be
listed, and what a tool asks goes to the client as a request.
"""

from mcp_tasks.legacy.server.client_task_errors import ClientTasksUnsupported, ClientTaskTimedOut
from mcp_tasks.legacy.server.client_tasks import (
    ClientTask,
    client_task,
    elicit_as_task,
    list_client_tasks,
    sample_as_task,
)

__all__ = [
    "ClientTask",
    "ClientTaskTimedOut",
    "ClientTasksUnsupported",
    "client_task",
    "elicit_as_task",
    "list_client_tasks",
    "sample_as_task",
]
