# pyright: basic, reportMissingImports=false
"""The page's agent of LangChain, with a script in place of a language model: `python recipe_langchain.py URL`.

Run in the folder that has the page's files.
"""

from __future__ import annotations

import asyncio
import sys

from scripted_chat_model import ScriptedModel

sys.path.insert(0, ".")

from langchain_agent import answer

print(f"result: {asyncio.run(answer(ScriptedModel(), 'Render a film.', sys.argv[1]))}")
