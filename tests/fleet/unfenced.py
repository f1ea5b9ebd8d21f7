"""A store whose writes take their time, with or without the fence that keeps stale ones out.

The fence is that `save` names the version that it expects. Without it the last one wins: whoever checks a fleet must
then find something wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

from mcp_tasks.errors import VersionConflict
from mcp_tasks.model.record import JournalEntry, Outcome, TaskRecord
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import WorkLimits

Fence: TypeAlias = Literal["kept", "slow", "removed"]

SLOWEST = 0.1
"""Seconds that a write may take longer than usual: a network does that."""


def delayed(store: Store, fence: Fence) -> Store:
    """The store with slow writes, and without its fence if that is removed."""
    return cast(Store, _Delayed(store, fenced=fence != "removed"))


class _Delayed:
    """Hands on everything but what is saved."""

    def __init__(self, inner: Store, *, fenced: bool) -> None:
        self._inner = inner
        self._fenced = fenced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        await asyncio.sleep(random.uniform(0.0, SLOWEST))
        while True:
            try:
                return await self._inner.save(
                    record, expected=expected, entries=entries, outcome=outcome, limits=limits
                )
            except VersionConflict:
                found = None if self._fenced else await self._inner.get(record.id)
                if found is None:
                    raise
                record, expected = replace(record, version=found.version + 1), found.version
