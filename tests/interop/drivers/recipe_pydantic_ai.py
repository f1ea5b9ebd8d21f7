# pyright: basic, reportMissingImports=false
"""The page's agent of Pydantic AI, with a script in place of a language model: `python recipe_pydantic_ai.py URL`.

Run in the folder that has the page's files.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

sys.path.insert(0, ".")

from pydantic_agent import answer
from pydantic_ai import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


def scripted(messages: Any, info: Any) -> ModelResponse:
    """Call the tool, then say what came back."""
    last = messages[-1].parts[-1]
    print(f"model: {last.part_kind}", flush=True)
    if last.part_kind == "user-prompt":
        return ModelResponse(parts=[ToolCallPart("render", {"frames": 24}, tool_call_id="call-1")])
    return ModelResponse(parts=[TextPart(f"The tool says: {last.content}")])


print(f"result: {asyncio.run(answer(FunctionModel(scripted), 'Render a film.', sys.argv[1]))}")
