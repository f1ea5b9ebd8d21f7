"""Store suite: which queued tasks are in the hands of an engine. `create`, `hand_out`, `hand_back`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.core.record import ALWAYS, TaskRecord
from mcp_tasks.core.statement import Statement
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.shares import Handing, Ready, Share
from mcp_tasks.testing._store_sweeps import swept
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, create_all
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

SECOND = timedelta(seconds=1)

PLENTY = Share(owner=1_000_000)
"""A share that nobody comes to the end of."""


def task(number: int = 0, **fields: Any) -> TaskRecord:
    """A queued task of the server `demo`, made so many seconds after noon."""
    return make_record(**{"namespace": "demo", "created_at": NOON + SECOND * number, **fields})


async def create_at_once(store: Store, records: Sequence[TaskRecord], share: Share | None = None) -> list[Handing]:
    """Create all of them at once, each with a share if there is one."""
    handings = [Handing(share=share or PLENTY) for _ in records]
    async with anyio.create_task_group() as group:
        for record, handing in zip(records, handings, strict=True):
            group.start_soon(partial(store.create, record, REQUEST, handing=handing if share else None))
    return handings


async def hand_out(store: Store, share: Share = PLENTY, *, limit: int = 100, **how: Any) -> list[str]:
    """The ids that the server `demo` is given."""
    return [ready.id for ready in await store.hand_out("demo", share, limit=limit, **how)]


async def create_handed(store: Store, record: TaskRecord, share: Share = PLENTY) -> bool:
    """Create a task; whether it was handed out."""
    handing = Handing(share=share)
    await store.create(record, REQUEST, handing=handing)
    assert not handing.carried
    return handing.handed


async def claim(store: Store, record: TaskRecord, **fields: Any) -> TaskRecord:
    """Claim a task as it is."""
    changed = {"version": record.version + 1, "worker": "worker", "attempt": record.attempt + 1, "wake_at": None}
    claimed = replace(record, **{**changed, **fields})
    await store.save(claimed, expected=record.version)
    return claimed


async def save(store: Store, record: TaskRecord, **fields: Any) -> TaskRecord:
    """Save a task one version on."""
    changed = replace(record, version=record.version + 1, **fields)
    await store.save(changed, expected=record.version)
    return changed


async def waiting(store: Store) -> list[str]:
    """What is queued and not handed out."""
    return await swept(partial(store.queued, "demo", handed_out=False))


async def in_hand(store: Store) -> list[str]:
    """What is queued and handed out."""
    return await swept(partial(store.queued, "demo", handed_out=True))


class HandingTests(StoreTests):
    """Queued tasks in the hands of an engine, and those that wait for it in the store."""

    async def test_a_task_is_handed_out_as_it_is_made_if_that_is_asked_for(self, store: Store) -> None:
        plain, handed = task(1), task(2)
        await store.create(plain, REQUEST)
        assert await create_handed(store, handed)
        assert (await waiting(store), await in_hand(store)) == ([plain.id], [handed.id])
        assert await swept(partial(store.queued, "demo")) == [plain.id, handed.id]
        assert await store.get(handed.id) == handed

    async def test_only_a_queued_task_is_handed_out_as_it_is_made(self, store: Store) -> None:
        others: Sequence[dict[str, Any]] = (
            {"worker": "worker"},
            {"wake_at": NOON},
            {"status": TaskStatus.INPUT_REQUIRED},
            {"status": TaskStatus.CANCELLED, "finished_at": NOON},
        )
        for fields in others:
            assert not await create_handed(store, task(**fields))
        assert await in_hand(store) == []
        assert await create_handed(store, task(status=TaskStatus.INPUT_REQUIRED, wake_at=ALWAYS))

    async def test_an_owner_has_a_share_of_what_is_handed_out(self, store: Store) -> None:
        share = Share(owner=2)
        handed = [
            await create_handed(store, task(number, owner=owner), share)
            for number, owner in enumerate(
                ["alice", "alice", "alice", "bob", "bob", "alice", "bob", None, "", None, None]
            )
        ]
        # Tasks that nobody owns count as one owner's, who is nobody else.
        assert handed == [True, True, False, True, True, False, False, True, True, True, False]
        # Another server's tasks count for nothing here.
        assert await create_handed(store, task(namespace="another", owner="alice"), share)

    async def test_a_share_has_room_again_when_a_task_is_claimed(self, store: Store) -> None:
        share, first = Share(owner=1), task(1)
        assert await create_handed(store, first, share)
        assert not await create_handed(store, task(2), share)
        await claim(store, first)
        assert await create_handed(store, task(3), share)

    async def test_a_tool_has_a_share_of_what_is_handed_out_or_at_work(self, store: Store) -> None:
        share = Share(owner=100, tools={"render": 2, "none": 0})
        first, second = task(1, owner="alice"), task(2, owner="bob")
        assert await create_handed(store, first, share)
        assert await create_handed(store, second, share)
        assert not await create_handed(store, task(3), share)
        assert await create_handed(store, task(3, name="other"), share)
        assert not await create_handed(store, task(3, name="none"), share)
        claimed = await claim(store, first)
        assert not await create_handed(store, task(4), share)
        # A run that waits for an answer counts as long as a worker has it.
        asking = await save(store, claimed, status=TaskStatus.INPUT_REQUIRED)
        assert not await create_handed(store, task(5), share)
        await save(store, asking, worker=None)
        assert await create_handed(store, task(6), share)
        assert await create_handed(store, task(namespace="another"), share)

    async def test_a_share_is_of_an_owner_a_queue_and_a_tool(self, store: Store) -> None:
        share = Share(owner=1)
        others: Sequence[dict[str, Any]] = (
            {},
            {"queue": "gpu"},
            {"name": "other"},
            {"method": "prompts/get"},
            {"owner": "bob"},
            {"queue": "gpu", "name": "other"},
        )
        for fields in others:
            # Whatever nobody serves keeps nothing else back.
            assert await create_handed(store, task(1, **fields), share)
            assert not await create_handed(store, task(2, **fields, priority=7), share)
        assert await hand_out(store, share) == []
        assert len(await waiting(store)) == len(others)

    async def test_a_task_that_is_moved_counts_where_it_is(self, store: Store) -> None:
        share, moving = Share(owner=1), task(1)
        assert await create_handed(store, moving, share)
        moving = await save(store, moving, queue="gpu")
        assert await create_handed(store, task(2), share)
        assert not await create_handed(store, task(3, queue="gpu"), share)
        await store.hand_back(moving.id)
        assert await hand_out(store, share, queues=["gpu"]) == [moving.id]

    async def test_an_owner_with_enough_at_work_is_handed_no_more(self, store: Store) -> None:
        share = Share(owner=100, owner_at_work=2)
        first, second = task(1), task(2, queue="gpu")
        # What is handed out is not at work, whoever serves its queue.
        assert await create_handed(store, first, share)
        assert await create_handed(store, second, share)
        assert await create_handed(store, task(3, name="other"), share)
        claimed = await claim(store, first)
        assert await create_handed(store, task(4), share)
        await claim(store, second)
        last = task(5, name="other")
        assert not await create_handed(store, last, share)
        assert await hand_out(store, share) == []
        assert await create_handed(store, task(6, owner=None), share)
        asking = await save(store, claimed, status=TaskStatus.INPUT_REQUIRED)
        assert not await create_handed(store, task(7, queue="gpu"), share)
        await save(store, asking, status=TaskStatus.COMPLETED, worker=None, finished_at=NOON)
        assert last.id in await hand_out(store, share)
        assert await create_handed(store, task(8), share)

    async def test_what_stands_under_a_key_is_not_handed_out_again(self, store: Store) -> None:
        standing, handing = task(), Handing(share=PLENTY)
        await store.create(standing, REQUEST, key="key")
        assert await store.create(task(), REQUEST, key="key", handing=handing) == standing
        assert (handing.handed, handing.carried) == (False, False)
        assert await in_hand(store) == []
        with pytest.raises(TaskExists):
            await store.create(standing, REQUEST, handing=handing)
        assert not handing.handed

    async def test_a_job_for_another_place_is_not_carried(self, store: Store) -> None:
        job = Statement(place="somewhere else altogether", text="not a statement of any database", values={"id": "x"})
        record, handing = task(), Handing(share=PLENTY, job=job)
        assert await store.create(record, REQUEST, handing=handing) == record
        assert (handing.handed, handing.carried) == (True, False)
        assert await store.get(record.id) == record

    async def test_a_task_that_stays_queued_stays_as_handed_out_as_it_was(self, store: Store) -> None:
        handed, plain = task(1), task(2)
        assert await create_handed(store, handed)
        await store.create(plain, REQUEST)
        for record in (handed, plain):
            await save(store, record, announced=False)
        assert (await in_hand(store), await waiting(store)) == ([handed.id], [plain.id])
        assert await hand_out(store) == [plain.id]

    async def test_a_task_that_is_queued_anew_is_not_handed_out(self, store: Store) -> None:
        release = {"worker": None}
        ways: Sequence[Sequence[dict[str, Any]]] = (
            [{"worker": "worker", "attempt": 1}, release],
            [{"wake_at": NOON}, {"wake_at": None}],
            [{"status": TaskStatus.INPUT_REQUIRED}, {"status": TaskStatus.WORKING}],
            [{"status": TaskStatus.INPUT_REQUIRED}, {"wake_at": ALWAYS}],
        )
        for number, way in enumerate(ways):
            record = task(number)
            assert await create_handed(store, record)
            for fields in way:
                assert record.id not in await waiting(store)
                record = await save(store, record, **fields)
                assert record.id not in await in_hand(store)
            assert await waiting(store) == [record.id]
            assert await hand_out(store) == [record.id]

    async def test_what_is_gone_is_not_handed_out(self, store: Store) -> None:
        deleted, ended, asleep = task(1), task(2), task(3)
        await create_all(store, deleted, ended, asleep)
        await store.delete(deleted.id, expected=1)
        await save(store, ended, status=TaskStatus.CANCELLED, finished_at=NOON)
        await save(store, asleep, wake_at=NOON)
        assert await hand_out(store) == []
        # Nor do they count for a share, whatever they were before.
        assert await create_handed(store, task(4), Share(owner=1, tools={"render": 1}, owner_at_work=1))

    async def test_what_is_handed_out_says_where_it_goes(self, store: Store) -> None:
        record = task(owner=None, method="prompts/get", name="☃ \ud800", queue="gpu", priority=-7)
        await store.create(record, REQUEST)
        assert list(await store.hand_out("demo", PLENTY, limit=1)) == [
            Ready(id=record.id, owner=None, method="prompts/get", name="☃ \ud800", queue="gpu", priority=-7)
        ]
        assert await store.get(record.id) == record

    async def test_a_task_is_handed_out_once_and_again_after_it_was_handed_back(self, store: Store) -> None:
        record = task()
        await store.create(record, REQUEST)
        assert await hand_out(store) == [record.id]
        assert await hand_out(store) == []
        await store.hand_back(record.id)
        assert await waiting(store) == [record.id]
        await store.hand_back(record.id)
        assert await hand_out(store) == [record.id]
        assert await store.get(record.id) == record

    async def test_handing_back_what_is_not_queued_does_nothing(self, store: Store) -> None:
        record = task()
        assert await create_handed(store, record)
        claimed = await claim(store, record)
        for task_id in (record.id, "unknown", "\ud800"):
            await store.hand_back(task_id)
        assert await store.get(record.id) == claimed
        assert await swept(partial(store.queued, "demo")) == []
        assert await hand_out(store) == []

    async def test_a_choice_that_is_not_marked_changes_nothing(self, store: Store) -> None:
        records = [task(number) for number in range(3)]
        await create_all(store, *records)
        for _ in range(2):
            assert await hand_out(store, mark=False, limit=2) == [records[0].id, records[1].id]
        assert await in_hand(store) == []
        assert await hand_out(store, Share(owner=1)) == [records[0].id]
        assert await hand_out(store, mark=False) == [records[1].id, records[2].id]

    async def test_nothing_is_handed_out_where_nothing_is_asked_for(self, store: Store) -> None:
        assert await hand_out(store) == []
        await store.create(task(), REQUEST)
        assert await hand_out(store, limit=0) == []
        assert await hand_out(store, Share(owner=0)) == []
        assert len(await hand_out(store)) == 1

    async def test_of_many_that_hand_out_at_once_no_two_get_the_same_task(self, store: Store) -> None:
        records = [task(number, owner=f"owner {number % 7}") for number in range(60)]
        await create_at_once(store, records)
        found: list[str] = []

        async def take() -> None:
            while some := await hand_out(store, limit=4):
                found.extend(some)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(take)
        assert sorted(found) == sorted(record.id for record in records)

    async def test_two_processes_are_not_handed_the_same_task(self, store: Store, peer: Store) -> None:
        records = [task(number, owner=f"owner {number % 3}") for number in range(30)]
        await create_at_once(store, records)
        found: list[str] = []

        async def take(mine: Store) -> None:
            while some := await hand_out(mine, limit=3):
                found.extend(some)

        async with anyio.create_task_group() as group:
            for each in (store, peer) * 2:
                group.start_soon(take, each)
        assert sorted(found) == sorted(record.id for record in records)
        assert await in_hand(peer) == [record.id for record in records]

    async def test_a_task_that_is_claimed_while_others_hand_out_is_in_nobodys_hands(self, store: Store) -> None:
        records = [task(number) for number in range(20)]
        await create_at_once(store, records)
        async with anyio.create_task_group() as group:
            for record in records:
                group.start_soon(claim, store, record)
            group.start_soon(hand_out, store)
        assert (await waiting(store), await in_hand(store)) == ([], [])
        with pytest.raises(VersionConflict):
            await claim(store, records[0])

    async def test_pages_of_what_is_handed_out_hold_every_task_once(self, store: Store) -> None:
        # Pairs share an instant, so that only their ids tell them apart.
        records = [task(number // 2, id=f"t{number:02}") for number in range(12)]
        await create_all(store, *records)
        handed = set(await hand_out(store, limit=5))
        for limit in (1, 2, 3, 20):
            for handed_out in (True, False):
                expected = [record.id for record in records if (record.id in handed) == handed_out]
                assert await swept(partial(store.queued, "demo", handed_out=handed_out), limit=limit) == expected
            assert await swept(partial(store.queued, "demo"), limit=limit) == [record.id for record in records]
