"""A page of a listing that is as full as it can be: where a store passes over much, it is asked again."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Page, Store, Whose

PATIENCE: Final = 1.0
"""Seconds for which a page is filled. A store passes over several hundred thousand tasks meanwhile."""


async def full_page(
    store: Store,
    namespace: str,
    whose: Whose,
    *,
    now: datetime,
    status: TaskStatus | None = None,
    cursor: str | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> Page:
    """`Store.list`, with a page that is short of `limit` only if it is the last, or took longer than `PATIENCE`.

    Raises:
        ValueError: The cursor is not one of the store's.
    """
    until = anyio.current_time() + PATIENCE
    look = partial(store.list, namespace, whose, now=now, status=status, newest_first=newest_first)
    page = await look(cursor=cursor, limit=limit)
    records: list[TaskRecord] = list(page.records)
    while page.cursor is not None and len(records) < limit and anyio.current_time() < until:
        # A store that never waits would have the event loop for itself.
        await checkpoint()
        left = limit - len(records)
        page = await look(cursor=page.cursor, limit=left)
        records += page.records
    return Page(records=records, cursor=page.cursor)
