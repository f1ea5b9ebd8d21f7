# pyright: basic, reportMissingImports=false
"""A FastMCP server with `fastmcp-tasks`, for our client to talk to: `python fastmcp_server.py --port N`."""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

TASK = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=200))

server = FastMCP("fastmcp-fixture")
server.add_extension(TasksExtension(url="memory://"))


def question(message: str, field: str, kind: str) -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


@server.tool
def greet(name: str) -> str:
    """Greet somebody, at once."""
    return f"Hello, {name}!"


@server.tool(task=TASK)
async def slow_compute(seconds: float, label: str, ctx: Context) -> str:
    """Take some time, and say how far it is."""
    for step in range(4):
        await ctx.report_progress(step, 4, f"{label}: step {step}")
        await asyncio.sleep(seconds / 4)
    return f"{label}: done after {seconds:g} s"


@server.tool(task=TaskConfig(mode="required", poll_interval=TASK.poll_interval))
async def failing_job() -> str:
    """Fail as tools fail."""
    raise ToolError("the job failed, as it always does")


@server.tool(task=TASK)
async def protocol_error_job() -> str:
    """Fail with a JSON-RPC error."""
    raise MCPError(code=INTERNAL_ERROR, message="the job ended in a protocol error, as it always does")


@server.tool(task=TASK)
async def park(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "ok"


@server.tool(task=TASK)
async def confirm_delete(filename: str, ctx: Context) -> str | InputRequiredResult:
    """Ask before deleting, in the way that FastMCP has for tasks: by returning the question."""
    answer = (ctx.input_responses or {}).get("confirm")
    if answer is None:
        return InputRequiredResult(input_requests={"confirm": question(f"Delete {filename}?", "confirm", "boolean")})
    accepted = isinstance(answer, ElicitResult) and answer.action == "accept" and (answer.content or {}).get("confirm")
    return f"deleted {filename}" if accepted else f"kept {filename}"


@server.tool(task=TASK)
async def multi_input(ctx: Context) -> str | InputRequiredResult:
    """Ask two things at once."""
    answers = ctx.input_responses or {}
    if not {"name", "confirm"} <= answers.keys():
        return InputRequiredResult(
            input_requests={
                "name": question("What is your name?", "name", "string"),
                "confirm": question("Are you sure?", "confirm", "boolean"),
            }
        )
    return f"name: {answers['name'].action}, confirmation: {answers['confirm'].action}"


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
server.run("http", host="127.0.0.1", port=parser.parse_args().port, path="/mcp", show_banner=False, log_level="warning")
