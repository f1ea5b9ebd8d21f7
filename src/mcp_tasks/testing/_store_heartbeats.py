"""Store suite: heartbeats, by which processes know of each other."""

from __future__ import annotations

from dataclasses import replace

import anyio

from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, create_all
from mcp_tasks.testing.records import make_record


class HeartbeatTests(StoreTests):
    """Who is alive."""

    async def test_a_heartbeat_is_a_number_that_grows_by_one(self, store: Store) -> None:
        for expected in (1, 2, 3):
            await store.heartbeat("worker", namespace="demo")
            assert await store.workers("demo") == {"worker": expected}
        await store.heartbeat("other ☃", namespace="demo")
        assert await store.workers("demo") == {"worker": 3, "other ☃": 1}

    async def test_workers_are_known_to_the_server_they_beat_for(self, store: Store) -> None:
        await store.heartbeat("one", namespace="demo")
        await store.heartbeat("two", namespace="another")
        assert await store.workers("demo") == {"one": 1}
        assert await store.workers("another") == {"two": 1}
        assert await store.workers("") == {}

    async def test_a_worker_beats_for_the_namespace_it_named_last(self, store: Store) -> None:
        await store.heartbeat("worker", namespace="demo")
        await store.heartbeat("worker", namespace="another")
        assert await store.workers("demo") == {}
        assert await store.workers("another") == {"worker": 2}

    async def test_a_worker_that_never_beat_is_known_by_its_tasks(self, store: Store) -> None:
        await create_all(
            store,
            make_record(worker="silent", namespace="demo"),
            make_record(worker="silent", namespace="demo"),
            make_record(worker="beating", namespace="demo"),
            make_record(worker="elsewhere", namespace="another"),
            make_record(namespace="demo"),
        )
        await store.heartbeat("beating", namespace="demo")
        assert await store.workers("demo") == {"silent": 0, "beating": 1}
        assert await store.workers("another") == {"elsewhere": 0}

    async def test_a_worker_that_beats_for_another_server_is_alive_for_its_tasks_here(self, store: Store) -> None:
        await store.create(make_record(worker="worker", namespace="demo"), REQUEST)
        await store.heartbeat("worker", namespace="another")
        assert await store.workers("demo") == {"worker": 1}

    async def test_a_retired_worker_is_known_only_while_it_has_a_task(self, store: Store) -> None:
        record = make_record(worker="busy", namespace="demo")
        await store.create(record, REQUEST)
        for worker in ("busy", "idle"):
            await store.heartbeat(worker, namespace="demo")
        for worker in ("busy", "idle", "unknown"):
            await store.retire(worker)
        assert await store.workers("demo") == {"busy": 0}
        await store.save(replace(record, version=2, worker=None), expected=1)
        assert await store.workers("demo") == {}

    async def test_a_retired_worker_that_beats_again_begins_at_one(self, store: Store) -> None:
        for _ in range(3):
            await store.heartbeat("worker", namespace="demo")
        await store.retire("worker")
        await store.heartbeat("worker", namespace="demo")
        assert await store.workers("demo") == {"worker": 1}

    async def test_a_worker_may_count_its_heartbeats_itself(self, store: Store) -> None:
        # An earlier beat may come late, and a repeated one twice.
        for beats, expected in ((2, 2), (2, 2), (7, 7), (6, 7), (None, 8)):
            await store.heartbeat("worker", namespace="demo", beats=beats)
            assert await store.workers("demo") == {"worker": expected}
        await store.retire("worker")
        await store.heartbeat("worker", namespace="demo", beats=9)
        assert await store.workers("demo") == {"worker": 9}

    async def test_beats_at_the_same_time_are_all_counted(self, store: Store) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(lambda: store.heartbeat("worker", namespace="demo"))
        assert await store.workers("demo") == {"worker": 30}

    async def test_beats_of_one_process_are_seen_to_grow_by_another(self, store: Store, peer: Store) -> None:
        for beats in (1, 2, 3):
            await peer.heartbeat("worker", namespace="demo")
            assert await store.workers("demo") == {"worker": beats}
        await store.heartbeat("worker", namespace="demo")
        assert await peer.workers("demo") == {"worker": 4}
        await store.retire("worker")
        assert await peer.workers("demo") == {}
