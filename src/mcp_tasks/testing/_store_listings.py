"""Store suite: `list` and its cursor."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import StoreTests, create_all, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def pages(store: Store, *, limit: int, owner: str | None = None) -> list[list[TaskRecord]]:
    """All pages of a listing."""
    page = await store.list(owner=owner, limit=limit)
    found = [list(page.records)]
    while page.cursor is not None:
        page = await store.list(owner=owner, limit=limit, cursor=page.cursor)
        found.append(list(page.records))
    return found


class ListingTests(StoreTests):
    """Pages of tasks, for people and programs that look at them."""

    async def test_tasks_are_listed_by_creation_and_then_by_id(self, store: Store) -> None:
        later = make_record(id="a", created_at=NOON + MICROSECOND)
        same = [make_record(id=name, created_at=NOON) for name in ("b", "B", "é", "☃", "𝄞", "b2")]
        early = make_record(id="z", created_at=datetime(1969, 12, 31, tzinfo=UTC))
        await create_all(store, later, *same, early)
        page = await store.list()
        # By code point, as Python compares strings: no collation of a language.
        assert ids(page.records) == ["z", "B", "b", "b2", "é", "☃", "𝄞", "a"]
        assert page.cursor is None

    async def test_an_empty_store_has_one_empty_page(self, store: Store) -> None:
        page = await store.list()
        assert (list(page.records), page.cursor) == ([], None)

    async def test_a_listing_is_of_one_owner_or_all_and_of_one_status_or_any(self, store: Store) -> None:
        failed, working = {"status": TaskStatus.FAILED}, {"status": TaskStatus.WORKING}
        await create_all(
            store,
            make_record(id="1", owner="alice", **working),
            make_record(id="2", owner="bob", **failed),
            make_record(id="3", owner="alice", **failed),
            make_record(id="4", owner=None, **working),
        )
        assert ids((await store.list()).records) == ["1", "2", "3", "4"]
        assert ids((await store.list(owner="alice")).records) == ["1", "3"]
        assert ids((await store.list(status=TaskStatus.FAILED)).records) == ["2", "3"]
        assert ids((await store.list(owner="alice", status=TaskStatus.FAILED)).records) == ["3"]
        assert ids((await store.list(owner="carol")).records) == []

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
    async def test_pages_hold_every_task_once(self, store: Store, limit: int) -> None:
        # Four creations share an instant, so a page may end among tasks that only their ids tell apart.
        records = [make_record(id=f"t{n:02}", created_at=NOON + SECOND * (n // 4)) for n in range(10)]
        await create_all(store, *reversed(records), make_record(id="t99", owner="bob"))
        found = await pages(store, limit=limit, owner="alice")
        assert [record for page in found for record in page] == records
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit

    async def test_tasks_that_come_and_go_between_pages_do_not_move_the_others(self, store: Store) -> None:
        records = [make_record(id=f"t{n}", created_at=NOON + SECOND * n) for n in range(6)]
        await create_all(store, *records)
        first = await store.list(limit=3)
        # The task that the cursor names goes, one before it comes, and one that is still to be listed changes.
        await store.delete("t2", expected=1)
        await store.create(make_record(id="t1b", created_at=NOON + SECOND))
        await store.save(replace(records[4], version=2), expected=1)
        rest = await store.list(limit=10, cursor=first.cursor)
        assert ids(first.records) + ids(rest.records) == ["t0", "t1", "t2", "t3", "t4", "t5"]

    @pytest.mark.parametrize(
        "cursor", ["", "nonsense", "12", ".", "x.y", "9" * 19 + ".x", "9" * 30 + ".x", "\ud800", "1\0.x"]
    )
    async def test_a_cursor_of_somebody_else_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await store.list(cursor=cursor)
