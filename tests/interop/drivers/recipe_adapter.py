# pyright: basic, reportMissingImports=false, reportCallIssue=false
"""The page's agent on LangChain's MCP adapter, with a script in place of a language model.

python recipe_adapter.py URL [SECONDS], in the folder that has the page's files; with seconds, a limit of its own.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from mcp.types import Implementation
from scripted_chat_model import ScriptedModel

sys.path.insert(0, ".")

from adapter_agent import answer

URL, *limit = sys.argv[1:]
NAME = Implementation(name="my-agent", version="1")
SESSION = {"read_timeout_seconds": timedelta(seconds=float(limit[0])), "client_info": NAME} if limit else None

print(f"result: {asyncio.run(answer(ScriptedModel(), 'Render a film.', URL, SESSION))}")
