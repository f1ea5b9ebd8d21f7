# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""The MCP client of AWS Strands on the Python SDK 1.x, with its tasks switched on: `python older_strands.py PLAN`."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import defaultdict
from importlib.metadata import version
from typing import Any

from common import PARKED, PATIENCE, PLAN, filled_in, give_up, kill_server, related, visit
from mcp import StdioServerParameters, stdio_client
from mcp.types import ElicitRequestParams, ElicitResult
from strands.tools.mcp import MCPClient
from strands_client import shown, signalled

warnings.simplefilter("ignore", DeprecationWarning)

asked: dict[str | None, list[str]] = defaultdict(list)


async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
    asked[related(params.model_dump(by_alias=True).get("_meta"))].append(params.message)
    if "keep.txt" in params.message:
        return ElicitResult(action="decline")
    return ElicitResult(action="accept", content=filled_in(params.requestedSchema))


def client(**options: Any) -> MCPClient:
    if "url" in PLAN:
        return MCPClient(url=PLAN["url"], **options)
    command, *arguments = PLAN["command"]
    parameters = StdioServerParameters(command=command, args=arguments, cwd=PLAN.get("cwd"))
    return MCPClient(lambda: stdio_client(parameters), **options)


async def drive(tasked: MCPClient, untasked: MCPClient) -> None:
    tasked.list_tools_sync()  # from which it knows which tools may be tasks

    async def call(tool: str, arguments: dict[str, Any] | None = None, *, by: MCPClient = tasked) -> dict[str, Any]:
        return shown(await by.call_tool_async("use-1", tool, arguments))

    async def question() -> dict[str, Any]:
        result = await call("confirm_delete", {"filename": "a.txt"})
        about = [task for task, messages in asked.items() if messages == ["Delete a.txt?"]]
        return {**result, "asked": asked[about[0]] if about else [], "related": about != [None]}

    async def no_handle() -> dict[str, Any]:
        """What it would resume a task by is for the newer wire only."""
        refused = {}
        for name, arguments in {
            "submit_tool_async": ("park", {"seconds": PARKED}),
            "get_task_async": ("some-task",),
            "cancel_task_async": ("some-task",),
        }.items():
            try:
                await getattr(tasked, name)(*arguments)
            except RuntimeError as exc:
                refused[name] = str(exc)
        return {"refused": refused, "lists": [name for name in dir(tasked) if "list_task" in name]}

    async def restart() -> dict[str, Any]:
        """A call that is under way when the server is killed."""
        waiting = asyncio.create_task(call("slow_compute", {"seconds": 5, "label": "restart"}))
        await asyncio.sleep(PATIENCE)
        kill_server()
        return await waiting

    scenarios = {
        "plain": lambda: call("greet", {"name": "Ada"}),
        "create": lambda: call("slow_compute", {"seconds": 0.2, "label": "create"}),
        "result": lambda: call("slow_compute", {"seconds": 3, "label": "result"}),
        "failed": lambda: call("failing_job"),
        "protocol_error": lambda: call("protocol_error_job"),
        "question": question,
        "two_questions": lambda: call("multi_input"),
        "question_first": lambda: call("test_tool_with_task"),
        "question_declined": lambda: call("confirm_delete", {"filename": "keep.txt"}),
        "cancel": lambda: give_up(signalled(tasked)),
        "no_handle": no_handle,
        "without_tasks": lambda: call("park", {"seconds": 0.1}, by=untasked),
        "without_tasks_required": lambda: call("failing_job", by=untasked),
    }
    # The last one kills the server, and so stands where others leave tasks behind.
    await visit(f"{version('strands-agents')}/{version('mcp')}", scenarios, restart, None)


async def main() -> None:
    with client(elicitation_callback=answer, tasks_config={}) as tasked, client() as untasked:
        await drive(tasked, untasked)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # it logs what it also returns
    asyncio.run(main())
