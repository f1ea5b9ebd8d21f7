"""Who runs the tools: an engine carries "run task X" to a worker, at least once."""

from mcp_tasks.engines.base import Abilities, Engine, Execute, Lane, ReservedSlot, ReservesSlots, Slot
from mcp_tasks.engines.inline import InlineEngine
from mcp_tasks.engines.local import LocalEngine

__all__ = [
    "Abilities",
    "Engine",
    "Execute",
    "InlineEngine",
    "Lane",
    "LocalEngine",
    "ReservedSlot",
    "ReservesSlots",
    "Slot",
]
