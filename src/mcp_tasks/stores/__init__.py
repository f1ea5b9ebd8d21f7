"""Where task records live: compare-and-swap, nothing cleverer."""

from mcp_tasks.stores.base import Hint, IdPage, Notifier, Page, Store
from mcp_tasks.stores.memory import MemoryStore

__all__ = ["Hint", "IdPage", "MemoryStore", "Notifier", "Page", "Store"]
