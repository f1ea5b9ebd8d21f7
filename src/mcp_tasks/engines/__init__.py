"""Who runs the tools: an engine carries "run task X" to a worker, at least once."""

from mcp_tasks.engines.base import (
    ANYWHERE,
    EVERYTHING,
    Abilities,
    Engine,
    Execute,
    Lane,
    ReservedSlot,
    ReservesSlots,
    Route,
    Serves,
    Slot,
    WritesJobs,
)
from mcp_tasks.engines.local import LocalEngine
from mcp_tasks.engines.remote import Carrier, Deliver, RemoteEngine

__all__ = [
    "ANYWHERE",
    "EVERYTHING",
    "Abilities",
    "Carrier",
    "Deliver",
    "Engine",
    "Execute",
    "Lane",
    "LocalEngine",
    "RemoteEngine",
    "ReservedSlot",
    "ReservesSlots",
    "Route",
    "Serves",
    "Slot",
    "WritesJobs",
]
