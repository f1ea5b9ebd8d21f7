"""What a store has, for tests that look behind the wire."""

from __future__ import annotations

from datetime import UTC, datetime

from mcp_tasks.core import TaskRecord
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY


async def all_tasks(store: Store, namespace: str = "furnished") -> list[TaskRecord]:
    """Every task of a server, by its name: that of the furnished one unless said otherwise."""
    return list((await store.list(namespace, EVERYBODY, now=datetime.now(UTC))).records)
