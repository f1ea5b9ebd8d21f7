"""Store suite: `backlog`, the number by which a fleet is scaled."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from mcp_tasks.core.record import ALWAYS
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Backlog, Store
from mcp_tasks.testing._store_handing import PLENTY, claim, hand_out, save, task
from mcp_tasks.testing._store_tests import StoreTests, create_all
from mcp_tasks.testing.clock import NOON

SECOND = timedelta(seconds=1)


class BacklogTests(StoreTests):
    """What waits in each queue, and since when."""

    async def test_an_empty_store_has_no_backlog(self, store: Store) -> None:
        assert await store.backlog("demo") == {}

    async def test_a_backlog_counts_what_is_queued_in_each_queue(self, store: Store) -> None:
        await create_all(
            store,
            task(3, queue="gpu"),
            task(1, queue="gpu", priority=9),
            task(2, queue="gpu", owner=None),
            task(5),
            task(6, queue="☃", status=TaskStatus.INPUT_REQUIRED, wake_at=ALWAYS),
            # None of these is queued.
            task(0, queue="gpu", worker="worker"),
            task(0, queue="gpu", wake_at=NOON),
            task(0, queue="empty", status=TaskStatus.INPUT_REQUIRED),
            task(0, queue="empty", status=TaskStatus.FAILED, finished_at=NOON),
            task(0, namespace="another"),
        )
        assert await store.backlog("demo") == {
            "gpu": Backlog(ready=3, since=NOON + SECOND),
            "default": Backlog(ready=1, since=NOON + SECOND * 5),
            "☃": Backlog(ready=1, since=NOON + SECOND * 6),
        }
        assert await store.backlog("another") == {"default": Backlog(ready=1, since=NOON)}

    async def test_what_is_handed_out_and_not_claimed_still_waits(self, store: Store) -> None:
        records = [task(number) for number in range(3)]
        await create_all(store, *records)
        assert len(await hand_out(store, PLENTY, limit=2)) == 2
        assert await store.backlog("demo") == {"default": Backlog(ready=3, since=NOON)}
        await store.hand_back(records[0].id)
        assert await store.backlog("demo") == {"default": Backlog(ready=3, since=NOON)}
        await claim(store, records[0])
        assert await store.backlog("demo") == {"default": Backlog(ready=2, since=NOON + SECOND)}
        await store.delete(records[1].id, expected=1)
        await claim(store, records[2])
        assert await store.backlog("demo") == {}

    async def test_a_task_waits_since_it_was_last_queued(self, store: Store) -> None:
        record = task()
        await create_all(store, record)
        # It stays queued, so it has waited since it was made.
        record = await save(store, record, updated_at=NOON + SECOND)
        assert await store.backlog("demo") == {"default": Backlog(ready=1, since=NOON)}
        record = await claim(store, record, started_at=NOON + SECOND * 5)
        assert await store.backlog("demo") == {}
        # A run that was given back moved nothing that a client can see: it was queued after it had begun.
        record = await save(store, record, worker=None)
        assert await store.backlog("demo") == {"default": Backlog(ready=1, since=NOON + SECOND * 5)}
        record = await claim(store, record)
        asking = replace(record, status=TaskStatus.INPUT_REQUIRED, worker=None, updated_at=NOON + SECOND * 7)
        record = await save(store, asking)
        record = await save(store, record, status=TaskStatus.WORKING, updated_at=NOON + SECOND * 9)
        assert await store.backlog("demo") == {"default": Backlog(ready=1, since=NOON + SECOND * 9)}
