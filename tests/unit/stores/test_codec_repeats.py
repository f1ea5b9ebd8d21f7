"""Writes that meet a conflict which may be their own doing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tasks.errors import StoreUnavailable, TaskExists
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.codec import made_before, saved_before
from mcp_tasks.testing import make_record, make_request

pytestmark = pytest.mark.anyio


async def away(task_id: str) -> TaskRecord | None:
    raise StoreUnavailable("away")


async def test_a_conflict_that_cannot_be_looked_at_may_be_with_an_earlier_attempt() -> None:
    record = make_record()
    with pytest.raises(StoreUnavailable) as made:
        await made_before(away, record)
    with pytest.raises(StoreUnavailable) as saved:
        await saved_before(away, record, 1)
    assert made.value.may_have_happened
    assert saved.value.may_have_happened


async def test_an_id_that_another_call_has_taken_is_refused() -> None:
    store, record = MemoryStore(), make_record()
    await store.create(record, make_request())
    with pytest.raises(TaskExists):
        await store.create(replace(record, status_message="another"), make_request())
