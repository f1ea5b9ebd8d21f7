"""Store suite: keys that count until their task has ended. Only who comes while it runs is given it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists
from mcp_tasks.stores.base import EVERYBODY, Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests, entries_of, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

ENDS = sorted(status for status in TaskStatus if status.is_final)
ENTRY = JournalEntry(kind="step", key="step", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")


async def join(store: Store, record: TaskRecord, key: str = "key") -> TaskRecord:
    """Create, or get the task that runs under the key."""
    return await store.create(record, REQUEST, key=key, key_until_end=True)


async def join_at_once(stores: list[Store], records: list[TaskRecord], key: str) -> list[TaskRecord]:
    """What each got that joined at the same time, on one store after another."""
    given: list[TaskRecord] = []

    async def run(number: int, record: TaskRecord) -> None:
        given.append(await join(stores[number % len(stores)], record, key))

    with anyio.fail_after(WAIT * 4):
        async with anyio.create_task_group() as group:
            for number, record in enumerate(records):
                group.start_soon(run, number, record)
    return given


async def ended_under(store: Store, key: str = "key", status: TaskStatus = TaskStatus.COMPLETED) -> TaskRecord:
    """A task that stands under the key and has ended."""
    record = make_record()
    await store.create(record, make_request(arguments={"n": 1}), key=key)
    ended = replace(record, version=2, status=status, finished_at=NOON)
    await store.save(ended, expected=1, entries=[ENTRY], outcome=OUTCOME)
    return ended


class JoiningTests(StoreTests):
    """Keys that count until their task has ended."""

    @pytest.mark.parametrize("status", sorted(status for status in TaskStatus if not status.is_final))
    async def test_a_task_that_has_not_ended_is_joined_as_it_is_now(self, store: Store, status: TaskStatus) -> None:
        first = make_record()
        assert await join(store, first) == first
        changed = replace(first, version=2, status=status, status_message="half way")
        await store.save(changed, expected=1)
        second = make_record()
        assert await join(store, second) == changed
        assert await store.get(second.id) is None
        assert await store.request(second.id) is None

    @pytest.mark.parametrize("status", ENDS)
    async def test_a_task_that_has_ended_stays_and_loses_its_key(self, store: Store, status: TaskStatus) -> None:
        ended = await ended_under(store, status=status)
        second = make_record()
        assert await join(store, second) == second
        assert await store.get(ended.id) == ended
        assert await store.request(ended.id) == make_request(arguments={"n": 1})
        assert await store.outcome(ended.id) == OUTCOME
        assert await entries_of(store, ended.id) == [ENTRY]
        assert set(ids((await store.list("", EVERYBODY, now=NOON)).records)) == {ended.id, second.id}
        # The key is the second's now, for every way of asking.
        assert await join(store, make_record()) == second
        assert await store.create(make_record(), REQUEST, key="key") == second

    async def test_a_task_that_lost_its_key_can_change_and_go_without_disturbing_the_next(self, store: Store) -> None:
        ended = await ended_under(store)
        second = make_record()
        await join(store, second)
        await store.save(replace(ended, version=3, session="s"), expected=2)
        await store.delete(ended.id, expected=3)
        assert await join(store, make_record()) == second

    async def test_an_expired_task_is_left_to_the_sweep(self, store: Store) -> None:
        expired = make_record(
            status=TaskStatus.COMPLETED, finished_at=NOON - timedelta(seconds=2), retention=timedelta(seconds=1)
        )
        await store.create(expired, REQUEST, key="key")
        second = make_record()
        assert await join(store, second) == second
        assert [task.task_id for task in await store.forget_expired(NOON, limit=9)] == [expired.id]

    async def test_who_does_not_join_still_gets_the_ended_task(self, store: Store) -> None:
        ended = await ended_under(store)
        assert await store.create(make_record(), REQUEST, key="key") == ended

    async def test_who_is_refused_does_not_take_the_key_away(self, store: Store) -> None:
        ended = await ended_under(store)
        taken = make_record()
        await store.create(taken, REQUEST)
        for task_id in (taken.id, ended.id):
            with pytest.raises(TaskExists):
                await join(store, make_record(id=task_id))
        assert await store.create(make_record(), REQUEST, key="key") == ended

    async def test_without_a_key_nothing_is_joined(self, store: Store) -> None:
        records = [make_record() for _ in range(3)]
        for record in records:
            assert await store.create(record, REQUEST, key_until_end=True) == record

    async def test_owners_and_servers_join_only_their_own(self, store: Store) -> None:
        places = [
            {"owner": owner, "namespace": namespace} for owner in ("alice", "", None) for namespace in ("", "demo")
        ]
        records = [make_record(**place) for place in places]
        for record in records:
            assert await join(store, record) == record
        for place, record in zip(places, records, strict=True):
            assert await join(store, make_record(**place)) == record

    async def test_of_many_at_once_after_an_end_exactly_one_makes_a_task(self, store: Store) -> None:
        ended = await ended_under(store)
        given = await join_at_once([store], [make_record() for _ in range(30)], "key")
        assert len({record.id for record in given}) == 1
        assert set(ids((await store.list("", EVERYBODY, now=NOON)).records)) == {ended.id, given[0].id}

    async def test_of_many_in_two_processes_after_an_end_exactly_one_makes_a_task(
        self, store: Store, peer: Store
    ) -> None:
        for number in range(5):
            await ended_under(store, f"key {number}")
            records = [make_record() for _ in range(10)]
            given = await join_at_once([store, peer], records, f"key {number}")
            assert len({record.id for record in given}) == 1
            assert [record for record in records if await peer.get(record.id)] == [given[0]]
