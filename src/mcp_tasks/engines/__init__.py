"""Who runs the tools: an engine carries "run task X" to a worker, at least once."""

from mcp_tasks.engines.base import Engine, Execute, Slot
from mcp_tasks.engines.inline import InlineEngine
from mcp_tasks.engines.local import LocalEngine

__all__ = ["Engine", "Execute", "InlineEngine", "LocalEngine", "Slot"]
