# pyright: basic, reportMissingImports=false, reportCallIssue=false
"""An agent of the page on LangChain, with a script in place of a language model.

python recipe_langchain.py MODULE URL [SECONDS], in the folder that has the page's files; with seconds, the session of
LangChain's MCP adapter has a limit of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import timedelta
from importlib import import_module
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult


class ScriptedModel(BaseChatModel):
    """Calls the tool, does what its answer says to do, and says what came back."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        last = messages[-1]
        print(f"model: {last.type}", flush=True)
        told = re.search(r'call the tool "(\w+)" with (\{.*?\})', last.text)
        if last.type == "human":
            reply = AIMessage("", tool_calls=[ToolCall(name="render", args={"frames": 24}, id="call-1")])
        elif told is not None:
            print(f"told: {told[1]}", flush=True)
            call = ToolCall(name=told[1], args=json.loads(told[2]), id=f"call-{len(messages)}")
            reply = AIMessage("", tool_calls=[call])
        else:
            reply = AIMessage(f"The tool says: {last.text}")
        return ChatResult(generations=[ChatGeneration(message=reply)])


sys.path.insert(0, ".")
MODULE, URL, *limit = sys.argv[1:]
more: list[Any] = []
if limit:
    from mcp.types import Implementation

    name = Implementation(name="my-agent", version="1")
    more = [{"read_timeout_seconds": timedelta(seconds=float(limit[0])), "client_info": name}]
elif MODULE == "adapter_agent":
    more = [None]
agent = import_module(MODULE)
print(f"result: {asyncio.run(agent.answer(ScriptedModel(), 'Render a film.', URL, *more))}")
