# pyright: basic, reportMissingImports=false
"""Pydantic AI's `MCPToolset`, by itself and under an agent, against our server."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from importlib.metadata import version
from typing import Any

from common import answer_fastmcp, cancelled_when_begun, drive_each, give_up, report, run_all
from fastmcp.exceptions import ToolError
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel


def scripted(messages: Any, info: Any) -> ModelResponse:
    """In place of a language model: call one tool, then say what came back."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"The tool says: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("slow_compute", {"seconds": 0.6, "label": "agent"})])


async def drive(url: str) -> dict[str, Any]:
    toolset = MCPToolset(url, elicitation_handler=answer_fastmcp, tool_error_behavior="error")
    async with toolset:

        async def call(tool: str, arguments: dict[str, Any] | None = None, *, use_task: bool = False) -> dict[str, Any]:
            try:
                text = await toolset.direct_call_tool(tool, arguments or {}, use_task=use_task)
            except ToolError as exc:
                return {"text": str(exc), "isError": True}
            return {"text": text, "isError": False}

        async def agent() -> dict[str, Any]:
            result = await Agent(FunctionModel(scripted), toolsets=[toolset]).run("Compute.")
            return {"text": result.output}

        return await run_all(
            {
                "plain": lambda: call("greet", {"name": "Ada"}),
                "task": lambda: call("slow_compute", {"seconds": 1.2, "label": "task"}),
                "use_task": lambda: call("slow_compute", {"seconds": 0.6, "label": "use_task"}, use_task=True),
                "use_task_plain": lambda: call("greet", {"name": "Ada"}, use_task=True),
                "is_error": lambda: call("failing_job"),
                "failed_call": lambda: call("protocol_error_job"),
                "elicitation": lambda: call("confirm_delete", {"filename": "a.txt"}),
                "two_questions": lambda: call("multi_input"),
                "mrtr": lambda: call("test_tool_with_task"),
                "given_up": lambda: give_up(partial(cancelled_when_begun, partial(toolset.direct_call_tool, "job"))),
                "agent": agent,
            }
        )


report(asyncio.run(drive_each(drive, sys.argv[1:])), version=version("pydantic-ai-slim"))
