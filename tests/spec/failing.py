"""A store that fails, and with what: for what a client is told then, in either era."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mcp_tasks.core import TaskRecord
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.memory import MemoryStore

with_each_failure = pytest.mark.parametrize(
    "failure",
    [StoreUnavailable("secret-host:5432 refused"), StoreCorrupt("secret row"), RuntimeError("secret defect")],
    ids=["unavailable", "corrupt", "defect"],
)


class FailingStore(MemoryStore):
    """A store that fails every read of a record, from when it is told to."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure
        self.fails = False

    async def get(self, task_id: str) -> TaskRecord | None:
        self._fail()
        return await super().get(task_id)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        self._fail()
        return await super().versions(task_ids)

    def _fail(self) -> None:
        if self.fails:
            raise self.failure
