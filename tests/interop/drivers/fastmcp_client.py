# pyright: basic, reportMissingImports=false
"""FastMCP's client, with `fastmcp-tasks`, against our server."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import fastmcp_tasks
from common import PARKED, answer_fastmcp, cancelled_when_begun, drive_each, give_up, report, run_all
from fastmcp import Client
from fastmcp_tasks import call_tool_task


def shown(result: Any) -> dict[str, Any]:
    return {"text": result.content[0].text, "isError": result.is_error}


async def drive(url: str) -> dict[str, Any]:
    async with Client(url, elicitation_handler=answer_fastmcp) as client, Client(url) as stranger:

        async def call(tool: str, arguments: dict[str, Any] | None = None, *, by: Client = client) -> dict[str, Any]:
            return shown(await by.call_tool(tool, arguments, raise_on_error=False))

        async def status() -> dict[str, Any]:
            handle = await call_tool_task(client, "slow_compute", {"seconds": 2, "label": "status"})
            messages = []
            while (state := await handle.status()).status == "working":
                messages.append(state.status_message)
                await asyncio.sleep(0.2)
            return {"created": handle.create_result.status, "messages": messages, **shown(await handle.result())}

        async def failed() -> dict[str, Any]:
            handle = await call_tool_task(client, "protocol_error_job")
            state = await handle.wait()
            return {"status": state.status, "jsonrpc": state.error}

        async def cancel() -> dict[str, Any]:
            handle = await call_tool_task(client, "park", {"seconds": PARKED})
            before = (await handle.status()).status
            await handle.cancel()
            return {"before": before, "after": (await handle.wait()).status}

        async def mrtr_handle() -> dict[str, Any]:
            handle = await call_tool_task(client, "test_tool_with_task")
            return shown(await handle.result())

        return await run_all(
            {
                "plain": lambda: call("greet", {"name": "Ada"}),
                "task": lambda: call("slow_compute", {"seconds": 1.2, "label": "task"}),
                "status": status,
                "is_error": lambda: call("failing_job"),
                "failed": failed,
                "failed_call": lambda: call("protocol_error_job"),
                "cancel": cancel,
                "given_up": lambda: give_up(partial(cancelled_when_begun, partial(client.call_tool, "job"))),
                "elicitation": lambda: call("confirm_delete", {"filename": "a.txt"}),
                "two_questions": lambda: call("multi_input"),
                "undeclared_input": lambda: call("confirm_delete", {"filename": "x"}, by=stranger),
                "mrtr": lambda: call("test_tool_with_task"),
                "mrtr_handle": mrtr_handle,
            }
        )


report(asyncio.run(drive_each(drive, sys.argv[1:])), version=fastmcp_tasks.__version__)
