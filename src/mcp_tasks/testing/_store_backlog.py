"""Store suite: `backlog`, the number by which a fleet is scaled."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from mcp_tasks.core.record import ALWAYS
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.shares import Backlog
from mcp_tasks.testing._store_handing import PLENTY, claim, hand_out, save, task
from mcp_tasks.testing._store_tests import StoreTests, create_all
from mcp_tasks.testing.clock import NOON

SECOND = timedelta(seconds=1)
LATER = NOON + timedelta(hours=1)


class BacklogTests(StoreTests):
    """What waits in each queue, and since when."""

    async def test_an_empty_store_has_no_backlog(self, store: Store) -> None:
        assert await store.backlog("demo", LATER) == {}

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
            task(0, queue="gpu", wake_at=LATER + SECOND),
            task(0, queue="empty", wake_at=LATER + SECOND),
            task(0, queue="empty", status=TaskStatus.INPUT_REQUIRED),
            task(0, queue="empty", status=TaskStatus.FAILED, finished_at=NOON),
            task(0, namespace="another"),
        )
        assert await store.backlog("demo", LATER) == {
            "gpu": Backlog(ready=3, since=NOON + SECOND),
            "default": Backlog(ready=1, since=NOON + SECOND * 5),
            "☃": Backlog(ready=1, since=NOON + SECOND * 6),
        }
        assert await store.backlog("another", LATER) == {"default": Backlog(ready=1, since=NOON)}

    async def test_what_is_handed_out_and_not_claimed_still_waits(self, store: Store) -> None:
        records = [task(number) for number in range(3)]
        await create_all(store, *records)
        assert len(await hand_out(store, PLENTY, limit=2)) == 2
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=3, since=NOON)}
        await store.hand_back(records[0].id)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=3, since=NOON)}
        await claim(store, records[0])
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=2, since=NOON + SECOND)}
        await store.delete(records[1].id, expected=1)
        await claim(store, records[2])
        assert await store.backlog("demo", LATER) == {}

    async def test_a_task_waits_since_it_was_last_queued(self, store: Store) -> None:
        record = task()
        await create_all(store, record)
        # It stays queued, so it has waited since it was made.
        record = await save(store, record, updated_at=NOON + SECOND)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON)}
        record = await claim(store, record, started_at=NOON + SECOND * 5)
        assert await store.backlog("demo", LATER) == {}
        # A run that was given back moved nothing that a client can see: it was queued after it had begun.
        record = await save(store, record, worker=None)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON + SECOND * 5)}
        record = await claim(store, record)
        asking = replace(record, status=TaskStatus.INPUT_REQUIRED, worker=None, updated_at=NOON + SECOND * 7)
        record = await save(store, asking)
        record = await save(store, record, status=TaskStatus.WORKING, updated_at=NOON + SECOND * 9)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON + SECOND * 9)}

    async def test_what_sleeps_waits_from_the_moment_at_which_it_wakes(self, store: Store) -> None:
        sleeper, later = task(1, wake_at=NOON + SECOND * 60), task(2, wake_at=NOON + SECOND * 90)
        asking = task(3, queue="☃ :a", status=TaskStatus.INPUT_REQUIRED, wake_at=NOON + SECOND * 70)
        await create_all(store, sleeper, later, asking, task(4, queue="☃ ", wake_at=LATER))
        await create_all(store, task(0, namespace="another", wake_at=NOON))
        assert await store.backlog("demo", NOON + SECOND * 59) == {}
        first = Backlog(ready=1, since=NOON + SECOND * 60)
        assert await store.backlog("demo", NOON + SECOND * 60) == {"default": first}
        assert await store.backlog("demo", NOON + SECOND * 80) == {
            "default": first,
            "☃ :a": Backlog(ready=1, since=NOON + SECOND * 70),
        }
        # Who waits longest counts, whatever it waits for; what is queued counts whatever the clock says.
        await create_all(store, queued := task(65), ahead := task(9_999, queue="ahead"))
        backlog = await store.backlog("demo", NOON + SECOND * 90)
        assert backlog["default"] == Backlog(ready=3, since=NOON + SECOND * 60)
        assert backlog["ahead"] == Backlog(ready=1, since=ahead.created_at)
        await claim(store, sleeper)
        assert (await store.backlog("demo", LATER))["default"] == Backlog(ready=2, since=queued.created_at)
        await claim(store, queued)
        await save(store, later, queue="gpu")
        backlog = await store.backlog("demo", LATER)
        assert {queue: waits.ready for queue, waits in backlog.items()} == {"gpu": 1, "☃ :a": 1, "☃ ": 1, "ahead": 1}
        await store.delete(asking.id, expected=asking.version)
        assert "☃ :a" not in await store.backlog("demo", LATER)
