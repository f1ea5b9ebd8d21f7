"""Calls with more to say than `client.call_tool` has room for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult

from mcp_tasks.client.extension import CallOptions, HandleWanted, TasksClient, ToolName
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.client.transport import ServerTransport
from mcp_tasks.errors import UsageError


async def call_tool(
    client: Client,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    timeout: timedelta | float | None = None,
    on_progress: OnProgress | None = None,
    on_abandon: OnAbandon | None = None,
) -> CallToolResult:
    """`client.call_tool`, with a time limit, progress, and a say in what becomes of the task when it is given up.

    What is not said is as the `TasksClient` was made.
    """
    _check_address(client)
    options = CallOptions(timeout=timeout, on_progress=on_progress, on_abandon=on_abandon)
    return await client.call_tool(ToolName(name, options), arguments)


async def start_task(
    client: Client,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    read_timeout_seconds: float | None = None,
    progress_callback: ProgressFnT | None = None,
) -> TaskHandle | CallToolResult:
    """Call a tool and come back at once: with a handle, or with the result if the server answered inline.

    The timeout and the progress are those of `client.call_tool`: of the call, for a server that answers it inline.
    """
    _check_address(client)
    tool = ToolName(name, CallOptions(want_handle=True))
    try:
        return await client.call_tool(tool, arguments, read_timeout_seconds, progress_callback)
    except HandleWanted as signal:
        return signal.handle


def resume_task(client: Client, task_id: str) -> TaskHandle:
    """A handle of a task by its id: from another process, or another day."""
    return tasks_of(client).handle(client.session, task_id, transport=_transport_of(client))


def pending_tasks(client: Client) -> list[TaskHandle]:
    """Handles of the tasks that were started with this server and not seen to end, from the ledger."""
    return tasks_of(client).pending(client.session, _transport_of(client))


def tasks_of(client: Client) -> TasksClient:
    """The client's own `TasksClient`.

    Raises:
        UsageError: It has none.
    """
    for extension in client.extensions or ():
        if isinstance(extension, TasksClient):
            return extension
    raise UsageError("this client does not do tasks: Client(..., extensions=[TasksClient()])")


def _check_address(client: Client) -> None:
    """Find out before anything is sent whether the ledger will know the server."""
    tasks = tasks_of(client)
    if tasks.ledger is not None:
        tasks.address(client.session, _transport_of(client))


def _transport_of(client: Client) -> ServerTransport | None:
    return client.server if isinstance(client.server, ServerTransport) else None
