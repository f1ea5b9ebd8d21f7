"""Store suite: forgetting what has expired. What goes and what stays, in which order, and many that do it at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import VersionConflict
from mcp_tasks.stores.base import EVERYBODY, Forgotten, Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests, create_all, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


def ended(*, ago: timedelta = MINUTE, retention: timedelta | None = SECOND, **overrides: Any) -> TaskRecord:
    """A completed task; as it is here, one that has expired."""
    fields: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": NOON - ago, "retention": retention}
    return make_record(**{**fields, **overrides})


async def forget_all(store: Store, *, limit: int, now: datetime = NOON) -> list[str]:
    """Forget until nothing is left."""
    forgotten: list[str] = []
    while some := await store.forget_expired(now, limit=limit):
        assert len(some) <= limit
        forgotten += [task.task_id for task in some]
    return forgotten


class ExpiryTests(StoreTests):
    """Forgetting what has expired."""

    async def test_ended_tasks_whose_time_is_over_are_forgotten_longest_overdue_first(self, store: Store) -> None:
        due_now = ended(retention=MINUTE, version=7, namespace="demo")
        overdue = ended()
        others = [
            ended(retention=MINUTE + MICROSECOND),
            ended(retention=None),
            make_record(created_at=NOON - timedelta(days=999), retention=SECOND),
        ]
        await create_all(store, due_now, overdue, *others)
        assert list(await store.forget_expired(NOON - MINUTE, limit=10)) == []
        assert list(await store.forget_expired(NOON - MICROSECOND, limit=10)) == [Forgotten(overdue.id, 1)]
        assert list(await store.forget_expired(NOON, limit=10)) == [Forgotten(due_now.id, 7)]
        assert list(await store.forget_expired(NOON, limit=10)) == []
        assert [await store.get(record.id) for record in (due_now, overdue, *others)] == [None, None, *others]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    async def test_slices_of_any_size_come_to_the_same(self, store: Store, limit: int) -> None:
        # Some expire at one instant: those come in the order of their creation, and then by id.
        tasks = [
            ended(id=f"t{number}", ago=MINUTE - SECOND * (number // 3), created_at=NOON + SECOND * (number % 3 // 2))
            for number in range(7)
        ]
        await create_all(store, *reversed(tasks))
        assert await forget_all(store, limit=limit) == ids(tasks)

    async def test_no_limit_is_too_small_or_too_large(self, store: Store) -> None:
        await create_all(store, ended(id="a"))
        assert list(await store.forget_expired(NOON, limit=0)) == []
        assert await store.get("a") is not None
        assert await forget_all(store, limit=1_000_000) == ["a"]

    async def test_all_that_is_kept_beside_a_task_goes_with_it(self, store: Store) -> None:
        record = make_record(id="task", namespace="demo", owner="alice", session="s", parent="kept", retention=SECOND)
        kept = make_record(id="kept", namespace="demo", owner="alice")
        await store.create(kept, REQUEST)
        await store.create(record, REQUEST, key="key")
        over = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=NOON - MINUTE, worker="worker")
        entries = [JournalEntry(kind="step", key="done", value=1)]
        await store.save(over, expected=1, entries=entries, outcome=Outcome(body=b'{"x":1}', meta=b"{}"))
        await store.save(replace(kept, version=2), expected=1, entries=entries)
        assert await forget_all(store, limit=9) == ["task"]
        assert await store.request("task") is None
        assert await store.outcome("task") is None
        assert await store.journal("task") == []
        assert await store.workers("demo") == {}
        assert len(await store.journal("kept")) == 1
        early = NOON - timedelta(days=1)
        assert ids((await store.list("demo", EVERYBODY, now=early)).records) == ["kept"]
        # Neither the id nor the key is taken any more, and nothing of the old task is found under them.
        again = replace(record, parent=None)
        assert await store.create(again, REQUEST, key="key") == again
        assert await store.journal("task") == []

    async def test_the_records_are_given_to_who_wants_them(self, store: Store) -> None:
        first = ended(id="first", owner="alice", namespace="demo", ago=MINUTE * 2)
        second = ended(id="second", version=3, status_message="lone \ud800")
        await create_all(store, second, first)
        forgotten = await store.forget_expired(NOON, limit=9, records=True)
        assert list(forgotten) == [Forgotten("first", 1, first), Forgotten("second", 3, second)]

    async def test_a_task_that_is_kept_for_longer_by_now_stays(self, store: Store) -> None:
        record = ended()
        await store.create(record, REQUEST)
        longer = replace(record, version=2, retention=MINUTE * 5)
        await store.save(longer, expected=1)
        assert await forget_all(store, limit=9) == []
        assert await store.get(record.id) == longer
        assert await forget_all(store, limit=9, now=NOON + MINUTE * 4) == [record.id]

    async def test_tasks_with_much_beside_them_all_go(self, store: Store) -> None:
        tasks = [ended(id=f"t{number}", ago=MINUTE - SECOND * number, version=2) for number in range(6)]
        for task in tasks:
            await store.create(replace(task, version=1, status=TaskStatus.WORKING, finished_at=None), REQUEST)
            await store.save(task, expected=1, outcome=Outcome(body=b'"%s"' % (b"x" * 600_000)))
        assert await forget_all(store, limit=100) == ids(tasks)
        assert [await store.outcome(task.id) for task in tasks] == [None] * 6

    async def test_of_many_at_once_each_is_given_other_tasks(self, store: Store) -> None:
        await self._forget_at_once([store] * 8)

    async def test_of_two_processes_each_is_given_other_tasks(self, store: Store, peer: Store) -> None:
        await self._forget_at_once([store, peer] * 4)

    async def _forget_at_once(self, stores: list[Store]) -> None:
        tasks = [ended(id=f"t{number:02}", ago=MINUTE - SECOND * (number % 7)) for number in range(60)]
        await create_all(stores[0], *tasks)
        given: list[str] = []

        async def forget(store: Store) -> None:
            given.extend(await forget_all(store, limit=7))

        with anyio.fail_after(WAIT * 4):
            async with anyio.create_task_group() as group:
                for store in stores:
                    group.start_soon(forget, store)
        given += await forget_all(stores[0], limit=7)
        assert Counter(given) == Counter(ids(tasks))
        assert await stores[0].versions(ids(tasks)) == {}

    async def test_a_task_is_either_forgotten_or_deleted(self, store: Store) -> None:
        tasks = [ended(id=f"t{number:02}") for number in range(20)]
        await create_all(store, *tasks)
        gone: list[str] = []

        async def delete(task: TaskRecord) -> None:
            try:
                await store.delete(task.id, expected=1)
            except VersionConflict:
                return
            gone.append(task.id)

        async def forget() -> None:
            gone.extend(await forget_all(store, limit=3))

        async with anyio.create_task_group() as group:
            group.start_soon(forget)
            for task in reversed(tasks):
                group.start_soon(delete, task)
        gone += await forget_all(store, limit=3)
        assert Counter(gone) == Counter(ids(tasks))
