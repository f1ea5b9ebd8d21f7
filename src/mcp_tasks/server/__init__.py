"""What authors of servers use: the `Tasks` object, its options, and its life with the server."""

from mcp_tasks.adapters.asgi import Counts, Handover
from mcp_tasks.fallback.hosts import HOSTS, Host
from mcp_tasks.fallback.ways import Fallback, ShownTo, Ways
from mcp_tasks.protocol import Caller, Identity
from mcp_tasks.server.backlog import Waiting, waiting_in
from mcp_tasks.server.list_changes import ChangesWiring, ListChanges
from mcp_tasks.server.local_handle import LocalSnapshot, LocalTask
from mcp_tasks.server.local_listing import TaskPage
from mcp_tasks.server.options import Recover, TaskMode, TaskOptions, ToolOptions
from mcp_tasks.server.tasks import Tasks
from mcp_tasks.server.wiring import Lifespan, Wiring
from mcp_tasks.server.working import Worker
from mcp_tasks.tools.elicitation import Accepted, Elicited, elicit

__all__ = [
    "HOSTS",
    "Accepted",
    "Caller",
    "ChangesWiring",
    "Counts",
    "Elicited",
    "Fallback",
    "Handover",
    "Host",
    "Identity",
    "Lifespan",
    "ListChanges",
    "LocalSnapshot",
    "LocalTask",
    "Recover",
    "ShownTo",
    "TaskMode",
    "TaskOptions",
    "TaskPage",
    "Tasks",
    "ToolOptions",
    "Waiting",
    "Ways",
    "Wiring",
    "Worker",
    "elicit",
    "waiting_in",
]
