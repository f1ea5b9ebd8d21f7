"""A store while it is open, and what it has, for tests that look behind the wire."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from mcp_tasks.model import TaskRecord
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.codec import new_write_id

S = TypeVar("S", bound=Store)


@asynccontextmanager
async def opened(store: S) -> AsyncGenerator[S]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def changed(record: TaskRecord, **fields: Any) -> TaskRecord:
    """The record with these fields, and the id of a write of its own."""
    return record.but(**fields).written(new_write_id())


async def all_tasks(store: Store, namespace: str = "furnished") -> list[TaskRecord]:
    """Every task of a server, by its name: that of the furnished one unless said otherwise."""
    return list((await store.list(namespace, EVERYBODY, now=datetime.now(UTC))).records)
