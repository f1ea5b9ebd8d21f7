"""What authors of servers use: the `Tasks` object, its options, and its life with the server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_tasks.fallback.options import HOSTS, Host, ShownTo
    from mcp_tasks.model.options import Fallback, Recover, TaskMode, TaskOptions, Ways
    from mcp_tasks.protocol.owners import Caller, Identity
    from mcp_tasks.server.fast_path.requests import Counts, Handover
    from mcp_tasks.server.lifecycle import Lifespan, Wiring
    from mcp_tasks.server.list_changes import ChangesWiring, ListChanges
    from mcp_tasks.server.local import LocalSnapshot, LocalTask, TaskPage
    from mcp_tasks.server.options import ToolOptions
    from mcp_tasks.server.tasks import Tasks
    from mcp_tasks.server.tool_runner import Accepted, Elicited, elicit
    from mcp_tasks.server.worker import Worker
    from mcp_tasks.telemetry.metrics import Waiting, waiting_in

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

_HOMES = {
    "HOSTS": "mcp_tasks.fallback.options",
    "Accepted": "mcp_tasks.server.tool_runner",
    "Caller": "mcp_tasks.protocol.owners",
    "ChangesWiring": "mcp_tasks.server.list_changes",
    "Counts": "mcp_tasks.server.fast_path.requests",
    "Elicited": "mcp_tasks.server.tool_runner",
    "Fallback": "mcp_tasks.model.options",
    "Handover": "mcp_tasks.server.fast_path.requests",
    "Host": "mcp_tasks.fallback.options",
    "Identity": "mcp_tasks.protocol.owners",
    "Lifespan": "mcp_tasks.server.lifecycle",
    "ListChanges": "mcp_tasks.server.list_changes",
    "LocalSnapshot": "mcp_tasks.server.local",
    "LocalTask": "mcp_tasks.server.local",
    "Recover": "mcp_tasks.model.options",
    "ShownTo": "mcp_tasks.fallback.options",
    "TaskMode": "mcp_tasks.model.options",
    "TaskOptions": "mcp_tasks.model.options",
    "TaskPage": "mcp_tasks.server.local",
    "Tasks": "mcp_tasks.server.tasks",
    "ToolOptions": "mcp_tasks.server.options",
    "Waiting": "mcp_tasks.telemetry.metrics",
    "Ways": "mcp_tasks.model.options",
    "Wiring": "mcp_tasks.server.lifecycle",
    "Worker": "mcp_tasks.server.worker",
    "elicit": "mcp_tasks.server.tool_runner",
    "waiting_in": "mcp_tasks.telemetry.metrics",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: modules of this package can be imported without all of it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
