"""Calling a tool, up to the task that the call becomes: in the way of the server's era, and made once."""

from __future__ import annotations

from typing import Any

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult

from mcp_tasks.client.connected import ConnectedClient, call_over, takes_meta, timeout_of
from mcp_tasks.client.handle import TaskHandle, tool_result
from mcp_tasks.client.handles import Handles, new
from mcp_tasks.client.port import OlderTasks
from mcp_tasks.client.repeating import honours_keys, make_once
from mcp_tasks.client.requests import LONGEST_PAUSE, in_time
from mcp_tasks.client.tool_name import HandleWanted, ToolName
from mcp_tasks.wire.parse import TaskSnapshot


async def start_call(
    handles: Handles,
    client: ConnectedClient,
    older: OlderTasks | None,
    tool: ToolName,
    arguments: dict[str, Any] | None,
    timeout: float | None = None,
    progress: ProgressFnT | None = None,
) -> TaskHandle | CallToolResult:
    """The handle of the task that a call becomes, or the result if the server answers inline.

    Args:
        older: The tasks of an older era, if that is what the server has.
        tool: The tool's name, with the options of the call.
        timeout: Seconds for the server to answer; None for as long as the client waits otherwise.

    Raises:
        CallLost: The call got no answer.
        MCPError: The call failed.
    """

    async def send(meta: dict[str, Any] | None) -> TaskHandle | CallToolResult:
        if older is not None:
            started = await _start_older(handles, client, older, tool, arguments, timeout, meta)
            if started is not None:
                return started
        try:
            return await call_over(client, tool, arguments, timeout, progress, meta)
        except HandleWanted as signal:
            return signal.handle

    async def send_in_time(meta: dict[str, Any] | None) -> TaskHandle | CallToolResult:
        # Who gives a call some seconds has no more of them for waiting until it may be made.
        longest = LONGEST_PAUSE if timeout is None else min(timeout, LONGEST_PAUSE)
        return await in_time(lambda: send(meta), longest)

    return await make_once(
        send_in_time,
        tool=str(tool),
        key=tool.options.idempotency_key,
        is_honoured=takes_meta(client) and honours_keys(client.session),
        patience=handles.patience,
    )


async def _start_older(
    handles: Handles,
    client: ConnectedClient,
    older: OlderTasks,
    tool: ToolName,
    arguments: dict[str, Any] | None,
    timeout: float | None,
    meta: dict[str, Any] | None,
) -> TaskHandle | CallToolResult | None:
    """The same in an older era; None if the tool is not offered as a task."""
    timeout = timeout_of(client) if timeout is None else timeout
    started = await older.start(str(tool), arguments, ttl=tool.options.ttl, timeout=timeout, meta=meta)
    if started is None:
        return None
    if not isinstance(started, TaskSnapshot):
        return tool_result(started, f"the call of {str(tool)!r}")
    return new(handles.of_client(older, client, started.id, str(tool), started), arguments)
