# pyright: basic, reportMissingImports=false
"""The page's agent on LangChain's MCP adapter, with tasks, and with a script in place of a language model.

python recipe_adapter_tasks.py URL, in the folder that has the page's files.
"""

from __future__ import annotations

import asyncio
import sys

from scripted_chat_model import ScriptedModel

sys.path.insert(0, ".")

from adapter_tasks_agent import answer

print(f"result: {asyncio.run(answer(ScriptedModel(), 'Render a film.', sys.argv[1]))}")
