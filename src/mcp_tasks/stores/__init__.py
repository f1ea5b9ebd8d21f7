"""Where task records live: compare-and-swap, nothing cleverer."""

from mcp_tasks.stores.base import Hint, Notifier, Page, Store
from mcp_tasks.stores.memory import MemoryStore

__all__ = ["Hint", "MemoryStore", "Notifier", "Page", "Store"]
