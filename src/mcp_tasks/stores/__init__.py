"""Where task records live: compare-and-swap, nothing cleverer."""

from mcp_tasks.encryption import Cipher
from mcp_tasks.stores.base import (
    EVERYBODY,
    LARGEST_NOTE,
    UNOWNED,
    Anyone,
    ChildrenOf,
    Forgotten,
    Hint,
    IdPage,
    InSession,
    Notifier,
    OwnedBy,
    Page,
    Store,
    Whose,
    owned_by,
)
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.memory import MemoryStore

__all__ = [
    "EVERYBODY",
    "LARGEST_NOTE",
    "UNOWNED",
    "Anyone",
    "ChildrenOf",
    "Cipher",
    "Codec",
    "Forgotten",
    "Hint",
    "IdPage",
    "InSession",
    "MemoryStore",
    "Notifier",
    "OwnedBy",
    "Page",
    "Store",
    "Whose",
    "owned_by",
]
