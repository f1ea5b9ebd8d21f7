"""The verbs of `TasksClient` as functions, for code that has only the `Client` at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult

from mcp_tasks.client.connected import ConnectedClient, extensions_of
from mcp_tasks.client.extension import TasksClient
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.errors import UsageError
from mcp_tasks.wire.parse import TaskSnapshot


async def call_tool(
    client: ConnectedClient,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    timeout: timedelta | float | None = None,
    on_progress: OnProgress | None = None,
    on_abandon: OnAbandon | None = None,
    ttl: timedelta | None = None,
    idempotency_key: str | None = None,
) -> CallToolResult:
    """`TasksClient.call` of the client's own `TasksClient`."""
    return await tasks_of(client).call(
        client,
        name,
        arguments,
        timeout=timeout,
        on_progress=on_progress,
        on_abandon=on_abandon,
        ttl=ttl,
        idempotency_key=idempotency_key,
    )


async def start_task(
    client: ConnectedClient,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    read_timeout_seconds: float | None = None,
    progress_callback: ProgressFnT | None = None,
    ttl: timedelta | None = None,
    idempotency_key: str | None = None,
) -> TaskHandle | CallToolResult:
    """`TasksClient.start` of the client's own `TasksClient`."""
    return await tasks_of(client).start(
        client,
        name,
        arguments,
        read_timeout_seconds=read_timeout_seconds,
        progress_callback=progress_callback,
        ttl=ttl,
        idempotency_key=idempotency_key,
    )


def resume_task(client: ConnectedClient, task_id: str, *, tool: str = "") -> TaskHandle:
    """`TasksClient.resume` of the client's own `TasksClient`."""
    return tasks_of(client).resume(client, task_id, tool=tool)


def pending_tasks(client: ConnectedClient) -> list[TaskHandle]:
    """`TasksClient.pending` of the client's own `TasksClient`."""
    return tasks_of(client).pending(client)


def list_tasks(client: ConnectedClient) -> AsyncIterator[TaskSnapshot]:
    """`TasksClient.list` of the client's own `TasksClient`."""
    return tasks_of(client).list(client)


def tasks_of(client: ConnectedClient) -> TasksClient:
    """The client's own `TasksClient`.

    Raises:
        UsageError: It has none, or does not show its extensions.
    """
    extensions = extensions_of(client)
    if extensions is None:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise UsageError(
            f"a {kind} does not show its extensions; use the methods of its TasksClient: tasks.call(client)"
        )
    for extension in extensions:
        if isinstance(extension, TasksClient):
            return extension
    raise UsageError("this client has no TasksClient; make it with Client(..., extensions=[TasksClient()])")
