"""Store suite: idempotency keys. Under one key of an owner and a server there is one task."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists
from mcp_tasks.stores.base import EVERYBODY, Store
from mcp_tasks.stores.inspecting import FindsKeys
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

SECOND = timedelta(seconds=1)
STRANGE_KEYS = ("", " ", "key", "Key", "key ", "ké", "nul\0inside", "lone \ud800", "🦆", "'; --", "0", "long" * 10_000)


async def create_at_once(store: Store, records: list[TaskRecord], *others: Store, key: str) -> list[TaskRecord]:
    """What each got that created under one key at the same time, on one store after another."""
    stores = (store, *others)
    given: list[TaskRecord] = []

    async def create(number: int, record: TaskRecord) -> None:
        given.append(await stores[number % len(stores)].create(record, REQUEST, key=key))

    with anyio.fail_after(WAIT * 4):
        async with anyio.create_task_group() as group:
            for number, record in enumerate(records):
                group.start_soon(create, number, record)
    return given


class KeyTests(StoreTests):
    """Idempotency keys."""

    async def test_a_created_task_is_returned(self, store: Store) -> None:
        for key in (None, "key"):
            record = make_record()
            assert await store.create(record, REQUEST, key=key) == record

    async def test_a_key_gives_the_task_that_stands_under_it_as_it_is_now(self, store: Store) -> None:
        first = make_record()
        await store.create(first, make_request(arguments={"n": 1}), key="key")
        second = make_record()
        assert await store.create(second, make_request(arguments={"n": 2}), key="key") == first
        changed = replace(first, version=2, status_message="half way", worker="worker", attempt=1)
        await store.save(changed, expected=1)
        assert await store.create(second, REQUEST, key="key") == changed
        # Nothing was written.
        assert await store.get(second.id) is None
        assert await store.request(second.id) is None
        assert await store.request(first.id) == make_request(arguments={"n": 1})
        assert ids((await store.list("", EVERYBODY, now=NOON)).records) == [first.id]

    async def test_a_task_is_found_by_its_key_where_the_store_can(self, store: Store) -> None:
        if not isinstance(store, FindsKeys):
            return
        owned, nobodys = make_record(owner="ann", namespace="one"), make_record(owner=None, namespace="one")
        for number, key in enumerate(STRANGE_KEYS):
            assert await store.id_under(key, namespace="one", owner="ann") is None
            await store.create(mine := replace(owned, id=f"mine-{number}"), REQUEST, key=key)
            await store.create(other := replace(nobodys, id=f"other-{number}"), REQUEST, key=key)
            assert await store.id_under(key, namespace="one", owner="ann") == mine.id
            assert await store.id_under(key, namespace="one", owner=None) == other.id
            assert await store.id_under(key, namespace="two", owner="ann") is None
            assert await store.id_under(key, namespace="one", owner="") is None

    async def test_a_task_that_has_ended_stands_until_it_expires(self, store: Store) -> None:
        first = make_record(retention=SECOND)
        await store.create(first, REQUEST, key="key")
        ended = replace(first, version=2, status=TaskStatus.FAILED, finished_at=NOON)
        await store.save(ended, expected=1)
        just_before = make_record(created_at=NOON + SECOND - timedelta(microseconds=1))
        assert await store.create(just_before, REQUEST, key="key") == ended
        second = make_record(created_at=NOON + SECOND)
        assert await store.create(second, REQUEST, key="key") == second
        # The expired one gave way, with all that was beside it.
        assert await store.get(first.id) is None
        assert await store.request(first.id) is None
        assert await store.create(make_record(created_at=NOON + SECOND), REQUEST, key="key") == second

    async def test_a_task_that_is_kept_for_good_stands_for_good(self, store: Store) -> None:
        first = make_record(retention=None, status=TaskStatus.COMPLETED, finished_at=NOON)
        await store.create(first, REQUEST, key="key")
        assert await store.create(make_record(created_at=NOON + timedelta(days=9_999)), REQUEST, key="key") == first

    async def test_a_deleted_task_frees_its_key(self, store: Store) -> None:
        first, second = make_record(), make_record()
        await store.create(first, REQUEST, key="key")
        await store.delete(first.id, expected=1)
        assert await store.create(second, REQUEST, key="key") == second
        assert await store.get(second.id) == second

    async def test_owners_and_servers_have_keys_of_their_own(self, store: Store) -> None:
        places = [
            {"owner": owner, "namespace": namespace}
            for owner in ("alice", "bob", "", "0", "None", "lone \ud800", None)
            for namespace in ("", "demo", "Demo")
        ]
        records = [make_record(**place) for place in places]
        for record in records:
            assert await store.create(record, REQUEST, key="key") == record
        for place, record in zip(places, records, strict=True):
            assert await store.create(make_record(**place), REQUEST, key="key") == record

    async def test_keys_are_compared_exactly(self, store: Store) -> None:
        records = {key: make_record() for key in STRANGE_KEYS}
        for key, record in records.items():
            assert await store.create(record, REQUEST, key=key) == record
        for key, record in records.items():
            assert await store.create(make_record(), REQUEST, key=key) == record

    async def test_tasks_without_a_key_do_not_meet(self, store: Store) -> None:
        records = [make_record() for _ in range(3)]
        for record in records:
            assert await store.create(record, REQUEST) == record
        assert [await store.get(record.id) for record in records] == records

    async def test_an_id_that_is_taken_is_refused_under_a_new_key_and_the_key_stays_free(self, store: Store) -> None:
        await store.create(make_record(id="taken"), REQUEST)
        with pytest.raises(TaskExists):
            await store.create(make_record(id="taken"), REQUEST, key="key")
        record = make_record()
        assert await store.create(record, REQUEST, key="key") == record

    async def test_who_is_refused_does_not_remove_the_expired_task_under_its_key(self, store: Store) -> None:
        expired = make_record(status=TaskStatus.COMPLETED, finished_at=NOON - SECOND, retention=SECOND)
        await store.create(expired, REQUEST, key="key")
        taken = make_record()
        await store.create(taken, REQUEST)
        for task_id in (taken.id, expired.id):
            with pytest.raises(TaskExists):
                await store.create(make_record(id=task_id), REQUEST, key="key")
        assert await store.get(expired.id) == expired

    async def test_of_many_at_once_under_one_key_exactly_one_makes_a_task(self, store: Store) -> None:
        records = [make_record() for _ in range(50)]
        given = await create_at_once(store, records, key="key")
        assert len({record.id for record in given}) == 1
        assert [record for record in records if await store.get(record.id)] == [given[0]]

    async def test_of_many_at_once_one_replaces_the_expired_task(self, store: Store) -> None:
        expired = make_record(status=TaskStatus.COMPLETED, finished_at=NOON - SECOND, retention=SECOND)
        await store.create(expired, REQUEST, key="key")
        given = await create_at_once(store, [make_record() for _ in range(20)], key="key")
        assert len({record.id for record in given}) == 1
        assert ids((await store.list("", EVERYBODY, now=NOON - SECOND)).records) == [given[0].id]

    async def test_of_many_in_two_processes_under_one_key_exactly_one_makes_a_task(
        self, store: Store, peer: Store
    ) -> None:
        for number in range(5):
            records = [make_record() for _ in range(10)]
            given = await create_at_once(store, records, peer, key=f"key {number}")
            assert len({record.id for record in given}) == 1
            assert [record for record in records if await peer.get(record.id)] == [given[0]]

    async def test_a_key_is_known_after_the_store_was_closed(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST, key="key")
        await store.close()
        await store.open()
        assert await store.create(make_record(), REQUEST, key="key") == record
