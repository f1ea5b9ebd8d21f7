"""Store suite: many tasks. `list` and its cursor, `queued`, `held`, `expired`, and the holders."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import NEVER_SEEN, Store
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


def finished(finished_at: datetime, *, ttl: timedelta | None) -> TaskRecord:
    """A completed task."""
    return make_record(status=TaskStatus.COMPLETED, result={}, finished_at=finished_at, ttl=ttl)


class ListingTests(StoreTests):
    """Many tasks."""

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

    @pytest.mark.parametrize("cursor", ["", "nonsense", "12", ".", "x.y", "9" * 30 + ".x", "\ud800", "1\0.x"])
    async def test_a_cursor_of_somebody_else_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await store.list(cursor=cursor)

    async def test_queued_are_those_that_could_run_and_nobody_has_oldest_first(self, store: Store) -> None:
        await create_all(
            store,
            make_record(id="late", created_at=NOON + SECOND),
            make_record(id="b", created_at=NOON),
            make_record(id="a", created_at=NOON),
            make_record(id="held", holder="worker"),
            make_record(id="parked", status=TaskStatus.INPUT_REQUIRED),
            make_record(id="ended", status=TaskStatus.CANCELLED),
        )
        assert ids(await store.queued(NOON, limit=10)) == ["a", "b", "late"]
        assert ids(await store.queued(NOON, limit=2)) == ["a", "b"]

    async def test_a_sleeping_task_is_queued_once_its_time_has_come(self, store: Store) -> None:
        await create_all(
            store,
            make_record(id="awake", created_at=NOON + SECOND),
            make_record(id="asleep", wake_at=NOON + SECOND * 5),
            make_record(id="parked", created_at=NOON + SECOND * 2, status=TaskStatus.INPUT_REQUIRED, wake_at=NOON),
            make_record(id="ended", status=TaskStatus.FAILED, wake_at=NOON),
        )
        just_before = NOON + SECOND * 5 - MICROSECOND
        assert ids(await store.queued(just_before, limit=10)) == ["awake", "parked"]
        assert ids(await store.queued(NOON + SECOND * 5, limit=10)) == ["asleep", "awake", "parked"]
        assert ids(await store.queued(NOON + SECOND * 5, limit=2)) == ["asleep", "awake"]

    async def test_held_are_the_tasks_of_one_holder_oldest_first(self, store: Store) -> None:
        await create_all(
            store,
            make_record(id="late", created_at=NOON + SECOND, holder="worker"),
            make_record(id="b", holder="worker"),
            make_record(id="a", holder="worker", status=TaskStatus.INPUT_REQUIRED),
            make_record(id="other", holder="worker 2"),
            make_record(id="free"),
        )
        assert ids(await store.held("worker", limit=10)) == ["a", "b", "late"]
        assert ids(await store.held("worker", limit=2)) == ["a", "b"]
        assert ids(await store.held("nobody", limit=10)) == []

    async def test_expired_are_the_ended_ones_whose_time_is_over_longest_overdue_first(self, store: Store) -> None:
        minute = timedelta(minutes=1)
        due_now = finished(NOON - minute, ttl=minute)
        overdue = finished(NOON - minute, ttl=SECOND)
        await create_all(
            store,
            due_now,
            overdue,
            finished(NOON - minute, ttl=minute + MICROSECOND),
            finished(NOON - minute, ttl=None),
            make_record(created_at=NOON - timedelta(days=999), ttl=SECOND),
        )
        assert list(await store.expired(NOON, limit=10)) == [overdue, due_now]
        assert list(await store.expired(NOON, limit=1)) == [overdue]
        assert list(await store.expired(NOON - MICROSECOND, limit=10)) == [overdue]

    async def test_a_save_moves_a_task_from_one_listing_to_the_next(self, store: Store) -> None:
        record = make_record(ttl=SECOND)
        held = replace(record, version=2, holder="worker", attempt=1)
        ended = replace(held, version=3, holder=None, status=TaskStatus.COMPLETED, finished_at=NOON)
        later = NOON + SECOND

        async def seen() -> tuple[list[str], list[str], list[str], list[str]]:
            return (
                ids(await store.queued(later, limit=9)),
                ids(await store.held("worker", limit=9)),
                ids((await store.list(status=TaskStatus.COMPLETED)).records),
                ids(await store.expired(later, limit=9)),
            )

        await store.create(record)
        assert await seen() == ([record.id], [], [], [])
        await store.save(held, expected=1)
        assert await seen() == ([], [record.id], [], [])
        await store.save(ended, expected=2)
        assert await seen() == ([], [], [record.id], [record.id])
        await store.delete(record.id, expected=3)
        assert await seen() == ([], [], [], [])

    async def test_a_holder_is_believed_until_its_last_beat_says(self, store: Store) -> None:
        await store.beat("worker", until=NOON)
        await store.beat("other ☃", until=NOON + MICROSECOND)
        await store.beat("worker", until=NOON - MICROSECOND)
        assert await store.holders() == {"worker": NOON - MICROSECOND, "other ☃": NOON + MICROSECOND}

    async def test_a_holder_that_never_beat_is_known_by_its_tasks(self, store: Store) -> None:
        record = make_record(holder="silent")
        await create_all(store, record, make_record(holder="silent"), make_record(holder="beating"))
        await store.beat("beating", until=NOON)
        assert await store.holders() == {"silent": NEVER_SEEN, "beating": NOON}

    async def test_a_retired_holder_is_known_only_while_it_has_a_task(self, store: Store) -> None:
        record = make_record(holder="busy")
        await store.create(record)
        await store.beat("busy", until=NOON)
        await store.beat("idle", until=NOON)
        for holder in ("busy", "idle", "unknown"):
            await store.retire(holder)
        assert await store.holders() == {"busy": NEVER_SEEN}
        await store.save(replace(record, version=2, holder=None), expected=1)
        assert await store.holders() == {}
