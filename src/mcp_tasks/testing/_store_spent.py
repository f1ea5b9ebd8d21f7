"""Store suite: idempotency keys that outlive their task. What was called is not called again by mistake."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import anyio
import pytest

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import KeySpent, TaskExists
from mcp_tasks.stores.base import EVERYBODY, Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

DAY, HOUR, SECOND, MICROSECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1), timedelta(microseconds=1)
EXPIRES = NOON + HOUR
"""When the tasks of `make_ended` expire."""

STRANGE_KEYS = ("", " ", "key", "Key", "nul\0inside", "lone \ud800", "🦆", "'; --", "0", "long" * 1_000)


async def make_ended(
    store: Store, key: str = "key", *, outlives: timedelta | None = DAY, **fields: object
) -> TaskRecord:
    """A task under a key, made at noon, that has ended."""
    ended = {"status": TaskStatus.COMPLETED, "finished_at": NOON, "retention": HOUR}
    record = make_record(**{**ended, **fields})
    return await store.create(record, REQUEST, key=key, key_outlives=outlives)


async def is_spent(store: Store, at: datetime, key: str = "key", **fields: object) -> bool:
    """Whether whoever creates under the key at this moment is refused. It makes a task otherwise, which is deleted."""
    record = make_record(created_at=at, **fields)
    try:
        made = await store.create(record, REQUEST, key=key)
    except KeySpent:
        assert await store.get(record.id) is None
        return True
    assert made == record
    await store.delete(record.id, expected=record.version)
    return False


class SpentKeyTests(StoreTests):
    """Keys that outlive their task."""

    async def test_a_task_that_is_there_is_returned_as_without(self, store: Store) -> None:
        record = await make_ended(store)
        for outlives in (None, DAY):
            again = make_record(created_at=EXPIRES - MICROSECOND)
            assert await store.create(again, REQUEST, key="key", key_outlives=outlives) == record

    async def test_the_key_of_an_expired_task_that_is_still_there_is_spent_until_its_time_is_over(
        self, store: Store
    ) -> None:
        record = await make_ended(store)
        for at in (EXPIRES, EXPIRES + DAY - MICROSECOND):
            assert await is_spent(store, at)
        # The task is still there, with what was beside it, and no task was made.
        assert await store.get(record.id) == record
        assert ids((await store.list("", EVERYBODY, now=NOON)).records) == [record.id]
        assert not await is_spent(store, EXPIRES + DAY)
        assert await store.get(record.id) is None

    @pytest.mark.parametrize("late", [timedelta(0), HOUR])
    async def test_the_key_of_a_forgotten_task_is_spent_for_its_time_after_the_expiry(
        self, store: Store, late: timedelta
    ) -> None:
        record = await make_ended(store)
        assert [task.task_id for task in await store.forget_expired(EXPIRES + late, limit=9)] == [record.id]
        for at in (EXPIRES + late, EXPIRES + DAY - MICROSECOND):
            assert await is_spent(store, at)
        assert not await is_spent(store, EXPIRES + DAY)

    async def test_a_sweep_that_comes_too_late_for_the_key_spends_none(self, store: Store) -> None:
        await make_ended(store)
        await store.forget_expired(EXPIRES + 2 * DAY, limit=9)
        assert not await is_spent(store, EXPIRES + 2 * DAY)

    @pytest.mark.parametrize("status", [TaskStatus.WORKING, TaskStatus.COMPLETED])
    async def test_the_key_of_a_deleted_task_is_spent_from_then_on(self, store: Store, status: TaskStatus) -> None:
        finished = NOON if status.is_final else None
        record = await make_ended(store, status=status, finished_at=finished)
        await store.delete(record.id, expected=1, now=NOON + 9 * SECOND)
        for at in (NOON, NOON + 9 * SECOND + DAY - MICROSECOND):
            assert await is_spent(store, at)
        assert not await is_spent(store, NOON + 9 * SECOND + DAY)

    async def test_who_deletes_without_saying_when_goes_by_the_times_of_the_task(self, store: Store) -> None:
        expires = await make_ended(store, "expires")
        for_good = await make_ended(store, "for good", retention=None)
        await store.delete(expires.id, expected=1)
        await store.delete(for_good.id, expected=1)
        assert await is_spent(store, EXPIRES + DAY - MICROSECOND, "expires")
        assert not await is_spent(store, EXPIRES + DAY, "expires")
        assert await is_spent(store, NOON + DAY - MICROSECOND, "for good")
        assert not await is_spent(store, NOON + DAY, "for good")

    async def test_a_key_that_does_not_outlive_its_task_is_free(self, store: Store) -> None:
        for number, outlives in enumerate((None, timedelta(0))):
            key = f"key {number}"
            record = await make_ended(store, key, outlives=outlives)
            await store.delete(record.id, expected=1, now=NOON)
            assert not await is_spent(store, NOON, key)
            await make_ended(store, key, outlives=outlives)
            await store.forget_expired(EXPIRES, limit=9)
            assert not await is_spent(store, EXPIRES, key)
            await make_ended(store, key, outlives=outlives)
            assert not await is_spent(store, EXPIRES, key)

    async def test_who_made_the_task_said_how_long_its_key_outlives_it(self, store: Store) -> None:
        record = await make_ended(store, outlives=None)
        again = make_record()
        assert await store.create(again, REQUEST, key="key", key_outlives=DAY) == record
        await store.delete(record.id, expected=1, now=NOON)
        assert not await is_spent(store, NOON)

    async def test_without_a_key_nothing_outlives(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST, key_outlives=DAY)
        await store.delete(record.id, expected=1, now=NOON)
        for key in ("", "None", "key"):
            assert not await is_spent(store, NOON, key)

    async def test_owners_and_servers_have_spent_keys_of_their_own(self, store: Store) -> None:
        await make_ended(store, owner="alice", namespace="demo")
        await make_ended(store, owner=None, namespace="demo")
        await store.forget_expired(EXPIRES, limit=9)
        spent = {("alice", "demo"), (None, "demo")}
        for owner in ("alice", "bob", "", "0", None):
            for namespace in ("", "demo"):
                expected = (owner, namespace) in spent
                assert await is_spent(store, EXPIRES, owner=owner, namespace=namespace) is expected

    async def test_spent_keys_are_compared_exactly(self, store: Store) -> None:
        for number, key in enumerate(STRANGE_KEYS):
            await make_ended(store, key, outlives=DAY + number * SECOND)
        await store.forget_expired(EXPIRES, limit=len(STRANGE_KEYS))
        for number, key in enumerate(STRANGE_KEYS):
            assert await is_spent(store, EXPIRES + DAY + number * SECOND - MICROSECOND, key)
            assert not await is_spent(store, EXPIRES + DAY + number * SECOND, key)

    async def test_a_key_whose_time_is_over_can_be_spent_again(self, store: Store) -> None:
        later = EXPIRES + DAY
        for _ in range(2):
            record = await make_ended(store)
            await store.delete(record.id, expected=1, now=EXPIRES)
            again = make_record(created_at=later)
            assert await store.create(again, REQUEST, key="key", key_outlives=HOUR) == again
            assert await store.create(make_record(created_at=later), REQUEST, key="key") == again
            await store.delete(again.id, expected=1, now=later)
            assert await is_spent(store, later + HOUR - MICROSECOND)
            assert not await is_spent(store, later + HOUR)

    async def test_until_its_end_only_a_task_takes_a_spent_key_over(self, store: Store) -> None:
        gone, there = await make_ended(store, "gone"), await make_ended(store, "there", retention=None)
        await store.delete(gone.id, expected=1, now=NOON)
        for key in ("gone", "there"):
            record = make_record()
            assert await store.create(record, REQUEST, key=key, key_until_end=True) == record
            assert await store.create(make_record(), REQUEST, key=key) == record
            # Its own key does not outlive it, and the other's is no more.
            await store.delete(record.id, expected=1, now=NOON)
            assert not await is_spent(store, NOON, key)
        # Nor is it spent when the one goes that lost it.
        assert await store.get(there.id) == there
        await store.delete(there.id, expected=1, now=NOON)
        assert not await is_spent(store, NOON, "there")

    async def test_with_both_the_key_outlives_for_those_who_create_without(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST, key="key", key_until_end=True, key_outlives=DAY)
        await store.delete(record.id, expected=1, now=NOON)
        assert await is_spent(store, NOON)
        second = make_record()
        assert await store.create(second, REQUEST, key="key", key_until_end=True, key_outlives=DAY) == second

    async def test_who_is_refused_for_the_id_leaves_the_spent_key_as_it_is(self, store: Store) -> None:
        await store.create(make_record(id="taken"), REQUEST)
        record = await make_ended(store)
        await store.delete(record.id, expected=1, now=NOON)
        with pytest.raises(TaskExists):
            await store.create(make_record(id="taken"), REQUEST, key="key", key_until_end=True)
        assert await is_spent(store, NOON)

    async def test_a_task_that_is_saved_in_between_keeps_its_key(self, store: Store) -> None:
        record = make_record(retention=HOUR)
        await store.create(record, REQUEST, key="key", key_outlives=DAY)
        ended = replace(record, version=2, status=TaskStatus.FAILED, finished_at=NOON)
        await store.save(ended, expected=1)
        assert await store.create(make_record(), REQUEST, key="key") == ended
        assert await is_spent(store, EXPIRES)
        await store.forget_expired(EXPIRES, limit=9)
        assert await is_spent(store, EXPIRES + DAY - MICROSECOND)

    async def test_sweeps_forget_keys_and_no_task_for_them(self, store: Store) -> None:
        for number in range(5):
            await make_ended(store, f"key {number}", outlives=DAY + number * SECOND)
        assert len(await store.forget_expired(EXPIRES, limit=9)) == 5
        over = EXPIRES + DAY + 2 * SECOND
        for _ in range(5):
            assert list(await store.forget_expired(over, limit=9)) == []
        found = [await is_spent(store, over, f"key {number}") for number in range(5)]
        assert found == [False, False, False, True, True]

    async def test_the_key_of_a_child_stays_with_its_id_until_its_parent_has_ended(
        self, store: Store, peer: Store
    ) -> None:
        parent = await store.create(make_record(), REQUEST)
        children: dict[str, str] = {}
        for key in ("expired", "forgotten", "deleted"):
            child = await make_ended(store, key, outlives=None, parent=parent.id)
            children[key] = child.id
            again = make_record(created_at=EXPIRES - MICROSECOND, parent=parent.id)
            assert await peer.create(again, REQUEST, key=key) == child
            if key == "forgotten":
                await store.forget_expired(EXPIRES, limit=9)
            elif key == "deleted":
                await store.delete(child.id, expected=child.version, now=NOON)
        late = EXPIRES + 9 * DAY
        await store.forget_expired(EXPIRES - SECOND, limit=9)
        for key in [*children, *children]:
            with pytest.raises(KeySpent) as spent:
                await peer.create(make_record(created_at=late, parent=parent.id), REQUEST, key=key)
            assert spent.value.task_id == children[key]
            await store.forget_expired(late, limit=9)
        # To others, the key is free.
        assert not await is_spent(store, late, "deleted")
        other = await store.create(make_record(), REQUEST)
        assert not await is_spent(store, late, "forgotten", parent=other.id)
        await store.save(
            replace(parent, version=2, status=TaskStatus.FAILED, finished_at=NOON), expected=parent.version
        )
        for key in children:
            assert not await is_spent(peer, late, key)

    async def test_no_child_is_created_under_a_key_once_its_parent_has_ended_or_is_gone(self, store: Store) -> None:
        ended = await store.create(make_record(status=TaskStatus.CANCELLED, finished_at=NOON), REQUEST)
        gone = await store.create(make_record(), REQUEST)
        await store.delete(gone.id, expected=1)
        for parent in (ended.id, gone.id, "never there"):
            assert await is_spent(store, NOON, parent=parent)
            # Without a key, or by one that takes the key over, it is.
            for key in (None, f"of {parent}"):
                record = make_record(parent=parent)
                assert await store.create(record, REQUEST, key=key, key_until_end=True) == record
        # A child that is there is found, whatever became of its parent.
        parent = await store.create(make_record(), REQUEST)
        child = await store.create(make_record(parent=parent.id), REQUEST, key="found")
        expired = await make_ended(store, "expired", outlives=None, parent=parent.id)
        await store.save(replace(parent, version=2, status=TaskStatus.FAILED, finished_at=NOON), expected=1)
        assert await store.create(make_record(parent=parent.id), REQUEST, key="found") == child
        with pytest.raises(KeySpent) as spent:
            await store.create(make_record(created_at=EXPIRES, parent=parent.id), REQUEST, key="expired")
        assert spent.value.task_id is None
        assert await store.get(expired.id) == expired

    async def test_the_key_of_a_child_goes_with_its_parent(self, store: Store) -> None:
        for end in ("deleted", "expired"):
            parent = await store.create(make_record(retention=HOUR), REQUEST)
            child = await make_ended(store, end, outlives=None, parent=parent.id)
            await store.delete(child.id, expected=child.version, now=NOON)
            if end == "deleted":
                assert await is_spent(store, NOON, end, parent=parent.id)
                await store.delete(parent.id, expected=1, now=NOON)
            else:
                ended = replace(parent, version=2, status=TaskStatus.COMPLETED, finished_at=NOON)
                await store.save(ended, expected=1)
                await store.forget_expired(EXPIRES, limit=9)
            assert not await is_spent(store, NOON, end)
            # It is free for a task of the same id, if one were made again.
            if end == "deleted":
                await store.create(replace(parent, version=1_000), REQUEST)
                assert not await is_spent(store, NOON, end, parent=parent.id)

    async def test_until_its_end_only_a_task_takes_the_key_of_a_child_over(self, store: Store) -> None:
        parent = await store.create(make_record(), REQUEST)
        gone = await make_ended(store, outlives=None, parent=parent.id)
        await store.delete(gone.id, expected=gone.version, now=NOON)
        second = make_record(parent=parent.id)
        assert await store.create(second, REQUEST, key="key", key_until_end=True) == second
        await store.delete(second.id, expected=1, now=NOON)
        with pytest.raises(KeySpent) as spent:
            await store.create(make_record(parent=parent.id), REQUEST, key="key")
        assert spent.value.task_id == second.id

    async def test_of_many_at_once_under_a_spent_key_all_are_refused(self, store: Store, peer: Store) -> None:
        record = await make_ended(store)
        refused: list[bool] = []

        async def create(at: Store) -> None:
            refused.append(await is_spent(at, EXPIRES))

        with anyio.fail_after(WAIT * 4):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    if number == 10:
                        group.start_soon(lambda: peer.forget_expired(EXPIRES, limit=9))
                    group.start_soon(create, (store, peer)[number % 2])
        assert refused == [True] * 20
        assert await store.get(record.id) is None

    async def test_a_spent_key_is_known_after_the_store_was_closed(self, store: Store) -> None:
        there, gone = await make_ended(store, "there"), await make_ended(store, "gone")
        await store.delete(gone.id, expected=1, now=NOON)
        await store.close()
        await store.open()
        assert await is_spent(store, EXPIRES, "there")
        assert await is_spent(store, NOON, "gone")
        await store.delete(there.id, expected=1, now=NOON)
        assert await is_spent(store, NOON, "there")
