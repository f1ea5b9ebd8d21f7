"""Store suite: `list` and its cursor."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, ChildrenOf, InSession, OwnedBy, Store, Whose
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, create_all, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def pages(store: Store, whose: Whose = EVERYBODY, *, limit: int, **options: Any) -> list[list[TaskRecord]]:
    """All pages of a listing of the server `demo`."""
    page = await store.list("demo", whose, now=NOON, limit=limit, **options)
    found = [list(page.records)]
    while page.cursor is not None:
        page = await store.list("demo", whose, now=NOON, limit=limit, cursor=page.cursor, **options)
        found.append(list(page.records))
    return found


def task(**fields: Any) -> TaskRecord:
    """A task of the server `demo`."""
    return make_record(**{"namespace": "demo", **fields})


async def listed(
    store: Store, whose: Whose = EVERYBODY, *, status: TaskStatus | None = None, now: datetime = NOON
) -> list[str]:
    """The ids in a listing of the server `demo`."""
    page = await store.list("demo", whose, now=now, status=status)
    assert page.cursor is None
    return ids(page.records)


class ListingTests(StoreTests):
    """Pages of tasks, for people and programs that look at them."""

    async def test_tasks_are_listed_by_creation_and_then_by_id(self, store: Store) -> None:
        later = task(id="a", created_at=NOON + MICROSECOND)
        same = [task(id=name, created_at=NOON) for name in ("b", "B", "é", "☃", "𝄞", "b2")]
        early = task(id="z", created_at=datetime(1969, 12, 31, tzinfo=UTC))
        await create_all(store, later, *same, early)
        # By code point, as Python compares strings: no collation of a language.
        assert await listed(store) == ["z", "B", "b", "b2", "é", "☃", "𝄞", "a"]

    async def test_an_empty_store_has_one_empty_page(self, store: Store) -> None:
        page = await store.list("", EVERYBODY, now=NOON)
        assert (list(page.records), page.cursor) == ([], None)

    async def test_a_listing_says_whose_tasks_and_in_which_status(self, store: Store) -> None:
        failed, working = {"status": TaskStatus.FAILED}, {"status": TaskStatus.WORKING}
        await create_all(
            store,
            task(id="1", owner="alice", **working),
            task(id="2", owner="bob", **failed),
            task(id="3", owner="alice", **failed),
            task(id="4", owner=None, **working),
            task(id="5", owner=None, **failed),
            task(id="6", owner="", **failed),
            task(id="7", owner="None", **working),
        )
        assert await listed(store) == ["1", "2", "3", "4", "5", "6", "7"]
        assert await listed(store, OwnedBy("alice")) == ["1", "3"]
        assert await listed(store, OwnedBy("carol")) == []
        assert await listed(store, UNOWNED) == ["4", "5"]
        assert await listed(store, OwnedBy("")) == ["6"]
        assert await listed(store, status=TaskStatus.FAILED) == ["2", "3", "5", "6"]
        assert await listed(store, OwnedBy("alice"), status=TaskStatus.FAILED) == ["3"]
        assert await listed(store, UNOWNED, status=TaskStatus.WORKING) == ["4"]
        assert await listed(store, OwnedBy("bob"), status=TaskStatus.COMPLETED) == []

    async def test_a_listing_is_of_one_session_or_of_one_parent(self, store: Store) -> None:
        failed = {"status": TaskStatus.FAILED}
        await create_all(
            store,
            task(id="1", session="s1", owner="alice"),
            task(id="2", session="s1", owner=None, **failed),
            task(id="3", session="s2", parent="1"),
            task(id="4", session="", parent="1", **failed),
            task(id="5", session="lone \ud800", parent="lone \ud800"),
            task(id="6"),
            task(id="7", session="s1", finished_at=NOON - SECOND, retention=SECOND, **failed),
            make_record(id="8", namespace="another", session="s1", parent="1"),
        )
        assert await listed(store, InSession("s1")) == ["1", "2"]
        assert await listed(store, InSession("s1"), status=TaskStatus.FAILED) == ["2"]
        assert await listed(store, InSession("")) == ["4"]
        assert await listed(store, InSession("lone \ud800")) == ["5"]
        assert await listed(store, InSession("unknown")) == []
        assert await listed(store, ChildrenOf("1")) == ["3", "4"]
        assert await listed(store, ChildrenOf("1"), status=TaskStatus.WORKING) == ["3"]
        assert await listed(store, ChildrenOf("lone \ud800")) == ["5"]
        assert await listed(store, ChildrenOf("2")) == []

    async def test_a_save_moves_a_task_from_one_session_to_the_next(self, store: Store) -> None:
        record = task(id="moving", session=None)
        await store.create(record, REQUEST)
        for version, session in enumerate(("s1", "s2", None, "s1"), 2):
            await store.save(replace(record, version=version, session=session), expected=version - 1)
            for each in ("s1", "s2"):
                assert await listed(store, InSession(each)) == (["moving"] if each == session else [])

    async def test_a_listing_is_of_one_server(self, store: Store) -> None:
        for namespace in ("", "demo", "Demo", "demo "):
            for owner in ("alice", None):
                await store.create(make_record(id=f"{namespace}/{owner}", namespace=namespace, owner=owner), REQUEST)
        assert await listed(store) == ["demo/None", "demo/alice"]
        assert await listed(store, OwnedBy("alice"), status=TaskStatus.WORKING) == ["demo/alice"]
        assert await listed(store, UNOWNED) == ["demo/None"]
        page = await store.list("another", EVERYBODY, now=NOON)
        assert list(page.records) == []

    async def test_a_listing_leaves_out_what_has_expired(self, store: Store) -> None:
        ended = {"status": TaskStatus.COMPLETED, "finished_at": NOON}
        await create_all(
            store,
            task(id="running", created_at=NOON - timedelta(days=999), retention=SECOND),
            task(id="ended", retention=SECOND, **ended),
            task(id="for good", retention=None, **ended),
            task(id="unowned", owner=None, retention=SECOND * 2, **ended),
        )
        assert await listed(store, now=NOON + SECOND - MICROSECOND) == ["running", "ended", "for good", "unowned"]
        assert await listed(store, now=NOON + SECOND) == ["running", "for good", "unowned"]
        assert await listed(store, status=TaskStatus.COMPLETED, now=NOON + SECOND) == ["for good", "unowned"]
        assert await listed(store, OwnedBy("alice"), now=NOON + SECOND) == ["running", "for good"]
        assert await listed(store, UNOWNED, status=TaskStatus.COMPLETED, now=NOON + SECOND * 2) == []

    async def test_a_save_moves_a_task_from_one_listing_to_the_next(self, store: Store) -> None:
        record = task(id="moving")
        await store.create(record, REQUEST)
        for version, status in enumerate((TaskStatus.INPUT_REQUIRED, TaskStatus.FAILED), 2):
            await store.save(replace(record, version=version, status=status), expected=version - 1)
            for each in TaskStatus:
                expected = ["moving"] if each is status else []
                assert await listed(store, status=each) == expected
                assert await listed(store, OwnedBy("alice"), status=each) == expected

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
    async def test_pages_hold_every_task_once(self, store: Store, limit: int) -> None:
        # Four creations share an instant, so a page may end among tasks that only their ids tell apart.
        records = [task(id=f"t{n:02}", created_at=NOON + SECOND * (n // 4)) for n in range(10)]
        expired = task(id="t04b", status=TaskStatus.FAILED, finished_at=NOON - SECOND, retention=SECOND)
        await create_all(store, *reversed(records), task(id="t99", owner="bob"), expired)
        found = await pages(store, OwnedBy("alice"), limit=limit)
        assert [record for page in found for record in page] == records
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit

    @pytest.mark.parametrize("limit", [1, 2, 5, 6])
    async def test_pages_of_a_session_hold_every_task_of_it_once(self, store: Store, limit: int) -> None:
        records = [task(id=f"t{n}", created_at=NOON + SECOND * (n // 4), session=f"s{n % 2}") for n in range(10)]
        await create_all(store, *reversed(records))
        found = await pages(store, InSession("s1"), limit=limit)
        assert [record for page in found for record in page] == records[1::2]
        assert all(len(page) == limit for page in found[:-1])

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
    @pytest.mark.parametrize("status", [None, TaskStatus.WORKING], ids=["any status", "one status"])
    async def test_the_newest_come_first_if_asked_for(
        self, store: Store, limit: int, status: TaskStatus | None
    ) -> None:
        records = [task(id=f"t{n:02}", created_at=NOON + SECOND * (n // 4), session="s1") for n in range(10)]
        early = task(id="t10", created_at=datetime(1969, 12, 31, tzinfo=UTC), session="s1")
        expired = task(id="t04b", status=TaskStatus.FAILED, finished_at=NOON - SECOND, retention=SECOND, session="s1")
        await create_all(store, *records, early, expired, task(id="t99", owner="bob"))
        for whose in (OwnedBy("alice"), InSession("s1")):
            found = await pages(store, whose, limit=limit, newest_first=True, status=status)
            assert [record for page in found for record in page] == [*reversed(records), early]
            assert all(len(page) == limit for page in found[:-1])
        everybody = await store.list("demo", EVERYBODY, now=NOON, limit=3, newest_first=True, status=status)
        assert ids(everybody.records) == ["t09", "t08", "t07"]

    async def test_tasks_that_come_and_go_between_pages_do_not_move_the_others(self, store: Store) -> None:
        records = [task(id=f"t{n}", created_at=NOON + SECOND * n) for n in range(6)]
        await create_all(store, *records)
        first = await store.list("demo", EVERYBODY, now=NOON, limit=3)
        # The task that the cursor names goes, one before it comes, and one that is still to be listed changes.
        await store.delete("t2", expected=1)
        await store.create(task(id="t1b", created_at=NOON + SECOND), REQUEST)
        await store.save(replace(records[4], version=2), expected=1)
        rest = await store.list("demo", EVERYBODY, now=NOON, limit=10, cursor=first.cursor)
        assert ids(first.records) + ids(rest.records) == ["t0", "t1", "t2", "t3", "t4", "t5"]

    @pytest.mark.parametrize(
        "cursor", ["", "nonsense", "12", ".", "x.y", "9" * 19 + ".x", "9" * 30 + ".x", "\ud800", "1\0.x"]
    )
    async def test_a_cursor_of_somebody_else_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await store.list("demo", EVERYBODY, now=NOON, cursor=cursor)
