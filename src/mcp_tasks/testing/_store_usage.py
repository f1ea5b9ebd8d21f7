"""Store suite: what is kept of whose tasks. Limits go by it, so it must be neither forgotten nor counted twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy, Owners, Store
from mcp_tasks.stores.shares import Usage
from mcp_tasks.testing._store_tests import REQUEST, StoreTests
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

NOTHING = Usage(open_tasks=0, stored_bytes=0)
ALICE = OwnedBy("alice")
LARGE = "x" * 10_000


def ended(record: TaskRecord, **changes: object) -> TaskRecord:
    """The task one version later, when it has ended."""
    return replace(
        record, **{"version": record.version + 1, "status": TaskStatus.COMPLETED, "finished_at": NOON, **changes}
    )


async def bytes_of(store: Store, whose: Owners = ALICE) -> int:
    """What is kept of somebody's tasks, without a namespace."""
    return (await store.usage("", whose)).stored_bytes


class UsageTests(StoreTests):
    """Open tasks and stored bytes."""

    async def test_of_nobody_who_has_tasks_nothing_is_kept(self, store: Store) -> None:
        for whose in (ALICE, OwnedBy("never \ud800 there"), OwnedBy("nul\0"), UNOWNED, EVERYBODY):
            assert await store.usage("", whose) == NOTHING

    async def test_open_tasks_are_those_that_have_not_ended(self, store: Store) -> None:
        for status in TaskStatus:
            finished = NOON if status.is_final else None
            await store.create(make_record(owner="alice", status=status, finished_at=finished), REQUEST)
        record = make_record(owner="alice")
        await store.create(record, REQUEST)
        for whose in (ALICE, EVERYBODY):
            assert (await store.usage("", whose)).open_tasks == 3
        await store.save(replace(record, version=2, worker="w", status_message="half way"), expected=1)
        assert (await store.usage("", ALICE)).open_tasks == 3
        await store.save(ended(record, version=3), expected=2)
        for whose in (ALICE, EVERYBODY):
            assert (await store.usage("", whose)).open_tasks == 2

    async def test_owners_and_servers_are_counted_apart(self, store: Store) -> None:
        owners = ("alice", "Alice", "", "0", "None", "lone \ud800", None)
        for number, owner in enumerate(owners, start=1):
            for namespace in ("", "demo"):
                for _ in range(number):
                    await store.create(make_record(owner=owner, namespace=namespace), REQUEST)
        one = await bytes_of(store)
        assert one > 0
        for number, owner in enumerate(owners, start=1):
            whose = UNOWNED if owner is None else OwnedBy(owner)
            for namespace in ("", "demo"):
                assert await store.usage(namespace, whose) == Usage(open_tasks=number, stored_bytes=number * one)
        together = sum(range(1, len(owners) + 1))
        for namespace in ("", "demo"):
            # The bytes of everybody are nobody's limit.
            assert await store.usage(namespace, EVERYBODY) == Usage(open_tasks=together, stored_bytes=0)
        assert await store.usage("Demo", EVERYBODY) == NOTHING

    @pytest.mark.parametrize("owner", ["alice", None])
    async def test_requests_journals_and_outcomes_count_and_nothing_else_does(
        self, store: Store, owner: str | None
    ) -> None:
        whose = UNOWNED if owner is None else ALICE
        record = make_record(owner=owner, retention=None)
        await store.create(record, make_request(arguments={"text": LARGE}))
        size = await bytes_of(store, whose)
        assert size > len(LARGE)
        await store.save(replace(record, version=2, worker="w", status_message=LARGE), expected=1)
        assert await bytes_of(store, whose) == size
        entries = [JournalEntry(kind="step", key=key, value={"value": LARGE}) for key in ("one", "two")]
        await store.save(replace(record, version=3, worker="w"), expected=2, entries=entries)
        size, before = await bytes_of(store, whose), size
        assert size > before + 2 * len(LARGE)
        outcome = Outcome(body=f'"{LARGE}"'.encode(), meta=f'{{"a":"{LARGE}"}}'.encode())
        await store.save(ended(record, version=4), expected=3, outcome=outcome)
        size, before = await bytes_of(store, whose), size
        # Those of a task that has ended are still kept.
        assert size > before + 2 * len(LARGE)
        await store.delete(record.id, expected=4)
        assert await store.usage("", whose) == NOTHING

    async def test_an_outcome_that_takes_the_place_of_another_counts_once(self, store: Store) -> None:
        record = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOON, retention=None)
        large, small = Outcome(body=f'"{LARGE}"'.encode(), meta=b"{}"), Outcome(body=b'"small"')
        await store.create(record, REQUEST, outcome=small)
        before = await bytes_of(store)
        await store.save(replace(record, version=2), expected=1, outcome=large)
        assert await bytes_of(store) > len(LARGE)
        await store.save(replace(record, version=3), expected=2, outcome=small)
        assert await bytes_of(store) == before

    async def test_what_was_not_written_does_not_count(self, store: Store) -> None:
        record = make_record(owner="alice")
        await store.create(record, REQUEST, key="key")
        usage = await store.usage("", ALICE)
        with pytest.raises(TaskExists):
            await store.create(record, make_request(arguments={"text": LARGE}))
        await store.create(make_record(owner="alice"), make_request(arguments={"text": LARGE}), key="key")
        entry = JournalEntry(kind="step", key="one", value={"value": LARGE})
        with pytest.raises(VersionConflict):
            await store.save(ended(record), expected=7, entries=[entry], outcome=Outcome(body=LARGE.encode()))
        with pytest.raises(VersionConflict):
            await store.delete(record.id, expected=7)
        assert await store.usage("", ALICE) == usage

    async def test_what_has_expired_counts_until_it_is_forgotten(self, store: Store) -> None:
        for number in range(3):
            record = make_record(owner="alice", retention=timedelta(0), created_at=NOON + timedelta(seconds=number))
            await store.create(record, make_request(arguments={"text": LARGE}))
            await store.save(ended(record), expected=1, outcome=Outcome(body=b"{}"))
        full = await bytes_of(store)
        assert full > 3 * len(LARGE)
        for left in (2, 1, 0):
            await store.forget_expired(NOON, limit=1)
            assert await store.usage("", ALICE) == Usage(open_tasks=0, stored_bytes=full // 3 * left)

    async def test_what_gives_way_to_another_under_its_key_does_not_count(self, store: Store) -> None:
        expired = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOON, retention=timedelta(0))
        await store.create(expired, make_request(arguments={"text": LARGE}), key="key")
        await store.create(make_record(owner="alice"), REQUEST, key="key")
        usage = await store.usage("", ALICE)
        assert usage.open_tasks == 1
        assert 0 < usage.stored_bytes < len(LARGE)

    async def test_many_that_write_at_once_are_all_counted(self, store: Store, peer: Store) -> None:
        records = [make_record(owner="alice", retention=timedelta(0)) for _ in range(20)]
        entry = JournalEntry(kind="step", key="one", value={"value": 1})

        async def live(at: Store, record: TaskRecord) -> None:
            await at.create(record, REQUEST)
            await at.save(replace(record, version=2, worker="w"), expected=1, entries=[entry])
            await at.save(ended(record, version=3), expected=2, outcome=Outcome(body=b"{}"))

        async with anyio.create_task_group() as group:
            for number, record in enumerate(records):
                group.start_soon(live, (store, peer)[number % 2], record)
        await live(store, make_record(owner="bob", retention=None))
        one = await bytes_of(store, OwnedBy("bob"))
        for at in (store, peer):
            assert await at.usage("", ALICE) == Usage(open_tasks=0, stored_bytes=20 * one)
        async with anyio.create_task_group() as group:
            for at in (store, peer, store, peer):
                group.start_soon(lambda at=at: at.forget_expired(NOON, limit=5))
        while await store.forget_expired(NOON, limit=5):
            pass
        for at in (store, peer):
            assert await at.usage("", ALICE) == NOTHING

    async def test_usage_is_known_after_the_store_was_closed(self, store: Store) -> None:
        await store.create(make_record(owner="alice"), REQUEST)
        usage = await store.usage("", ALICE)
        await store.close()
        await store.open()
        assert await store.usage("", ALICE) == usage
