# pyright: basic, reportMissingImports=false
"""The MCP client of AWS Strands, with its tasks switched on, against our server."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from common import PARKED, drive_each, filled_in, give_up, report, run_all, until_begun
from mcp.types import ElicitResult
from strands.tools.mcp import MCPClient


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=filled_in(params.requested_schema))


def shown(result: Any) -> dict[str, Any]:
    """What `call_tool_async` gives: Strands says `isError` only where a tool did."""
    return {"text": result["content"][0]["text"], "isError": result.get("isError", False), "status": result["status"]}


def signalled(client: MCPClient) -> Callable[[dict[str, Any]], Awaitable[bool]]:
    """A call that is told to stop when the tool has begun; whether it says that it was cancelled."""

    async def begin(arguments: dict[str, Any]) -> bool:
        gone = threading.Event()
        waiting = asyncio.create_task(until_begun(arguments))
        waiting.add_done_callback(lambda _: gone.set())
        result = await client.call_tool_async("use-1", "job", arguments, cancel_signal=gone)
        return result.get("cancelled", False)

    return begin


async def drive(client: MCPClient, stranger: MCPClient, untasked: MCPClient) -> dict[str, Any]:
    async def call(tool: str, arguments: dict[str, Any] | None = None, *, by: MCPClient = client) -> dict[str, Any]:
        return shown(await by.call_tool_async("use-1", tool, arguments))

    async def followed(task_id: str, *until: str) -> tuple[Any, list[str | None]]:
        """The first state with one of these statuses, and the status messages before it."""
        messages = []
        while (state := await client.get_task_async(task_id)).status not in until:
            messages.append(state.status_message)
            await asyncio.sleep(0.1)
        return state, messages

    async def status() -> dict[str, Any]:
        task = await client.submit_tool_async("slow_compute", {"seconds": 2, "label": "status"})
        state, messages = await followed(task.task_id, "completed")
        text = state.result.content[0].text
        return {"created": task.status, "messages": messages, "text": text, "isError": state.result.is_error}

    async def failed() -> dict[str, Any]:
        task = await client.submit_tool_async("protocol_error_job")
        state, _ = await followed(task.task_id, "failed")
        return {"status": state.status, "jsonrpc": {"code": state.error.code, "message": state.error.message}}

    async def cancel() -> dict[str, Any]:
        task = await client.submit_tool_async("park", {"seconds": PARKED})
        before = (await client.get_task_async(task.task_id)).status
        await client.cancel_task_async(task.task_id)
        return {"before": before, "after": (await client.get_task_async(task.task_id)).status}

    async def answered_by_hand() -> dict[str, Any]:
        task = await client.submit_tool_async("confirm_delete", {"filename": "b.txt"})
        asking, _ = await followed(task.task_id, "input_required")
        answers: dict[str, Any] = dict.fromkeys(asking.input_requests, ElicitResult(action="decline"))
        await client.update_task_async(task.task_id, answers)
        final, _ = await followed(task.task_id, "completed")
        return {"text": final.result.content[0].text, "isError": final.result.is_error}

    async def unknown_task() -> dict[str, Any]:
        return {"status": (await client.get_task_async("no-such-task")).status}

    return await run_all(
        {
            "plain": lambda: call("greet", {"name": "Ada"}),
            "task": lambda: call("slow_compute", {"seconds": 1.2, "label": "task"}),
            "status": status,
            "is_error": lambda: call("failing_job"),
            "failed": failed,
            "failed_call": lambda: call("protocol_error_job"),
            "cancel": cancel,
            "given_up": lambda: give_up(signalled(client)),
            "elicitation": lambda: call("confirm_delete", {"filename": "a.txt"}),
            "two_questions": lambda: call("multi_input"),
            "answered_by_hand": answered_by_hand,
            "mrtr": lambda: call("test_tool_with_task"),
            "undeclared_input": lambda: call("confirm_delete", {"filename": "x"}, by=stranger),
            "unknown_task": unknown_task,
            "without_tasks": lambda: call("park", {"seconds": 0.1}, by=untasked),
            "without_tasks_required": lambda: call("failing_job", by=untasked),
        }
    )


async def drive_server(url: str) -> dict[str, Any]:
    with (
        MCPClient(url=url, elicitation_callback=answer, tasks_config={}) as client,
        MCPClient(url=url, tasks_config={}) as stranger,
        MCPClient(url=url) as untasked,
    ):
        return await drive(client, stranger, untasked)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # it logs what it also returns
    report(asyncio.run(drive_each(drive_server, sys.argv[1:])), version=version("strands-agents"), sdk=version("mcp"))
