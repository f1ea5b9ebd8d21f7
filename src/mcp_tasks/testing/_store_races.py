"""Store suite: many at once. Compare-and-swap, callers that give up, and a second process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import anyio
import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, TaskExists, UsageError, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests
from mcp_tasks.testing.records import make_record


async def race(*acts: Callable[[], Awaitable[object]]) -> Sequence[Exception | None]:
    """Start all at once and say what each came to."""
    outcomes: list[Exception | None] = [None] * len(acts)

    async def attempt(place: int) -> None:
        try:
            await acts[place]()
        except (StoreError, UsageError) as exc:
            outcomes[place] = exc

    with anyio.fail_after(WAIT * 4):
        async with anyio.create_task_group() as group:
            for place in range(len(acts)):
                group.start_soon(attempt, place)
    return outcomes


def saver(store: Store, record: TaskRecord, name: str) -> Callable[[], Awaitable[object]]:
    """Saves version 2 of `record`, marked with `name`, with one entry."""
    entry = JournalEntry(kind="step", key=name, value=name)
    changed = replace(record, version=record.version + 1, status_message=name)
    return lambda: store.save(changed, expected=record.version, entries=[entry])


class RaceTests(StoreTests):
    """Many at once."""

    async def test_one_of_fifty_savers_of_a_version_wins(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        outcomes = await race(*(saver(store, record, f"saver {n}") for n in range(50)))
        assert [type(outcome) for outcome in outcomes if outcome] == [VersionConflict] * 49
        winner = f"saver {outcomes.index(None)}"
        saved = await store.get(record.id)
        assert saved is not None
        assert (saved.version, saved.status_message) == (2, winner)
        assert [entry.key for entry in await store.journal(record.id)] == [winner]

    async def test_one_of_twenty_creators_of_an_id_wins(self, store: Store) -> None:
        records = [make_record(id="wanted", owner=f"owner {n}") for n in range(20)]
        outcomes = await race(*(lambda record=record: store.create(record, REQUEST) for record in records))
        assert [type(outcome) for outcome in outcomes if outcome] == [TaskExists] * 19
        assert await store.get("wanted") == records[outcomes.index(None)]

    async def test_a_conflict_does_not_disturb_those_who_write_at_the_same_time(self, store: Store) -> None:
        taken = make_record()
        await store.create(taken, REQUEST)
        records = [make_record() for _ in range(30)]
        creators = [lambda record=record: store.create(record, REQUEST) for record in records]
        outcomes = await race(*(act for creator in creators for act in (lambda: store.create(taken, REQUEST), creator)))
        assert [type(outcome) for outcome in outcomes[::2]] == [TaskExists] * 30
        assert list(outcomes[1::2]) == [None] * 30
        assert [await store.get(record.id) for record in records] == records

    async def test_savers_that_try_again_lose_no_update(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)

        async def count_up() -> object:
            while True:
                current = await store.get(record.id)
                assert current is not None
                try:
                    return await saver(store, current, "one more")()
                except VersionConflict:
                    continue

        assert list(await race(*[count_up] * 20)) == [None] * 20
        counted = await store.get(record.id)
        assert counted is not None
        assert counted.version == 21
        assert len(await store.journal(record.id)) == 20

    async def test_a_delete_and_a_save_of_one_version_do_not_both_happen(self, store: Store) -> None:
        for _ in range(10):
            record = make_record()
            await store.create(record, REQUEST)
            deleted, saved = await race(
                lambda record=record: store.delete(record.id, expected=1), saver(store, record, "saved")
            )
            assert (deleted is None) != (saved is None)
            assert (await store.get(record.id) is None) == (deleted is None)

    async def test_a_caller_that_gives_up_breaks_nothing(self, store: Store) -> None:
        abandoned = [make_record() for _ in range(20)]
        async with anyio.create_task_group() as group:
            for record in abandoned:
                group.start_soon(store.create, record, REQUEST)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        record = make_record()
        await store.create(record, REQUEST)
        assert await store.get(record.id) == record
        # Written or not, but never in part and never something else.
        for each in abandoned:
            assert await store.get(each.id) in (None, each)

    async def test_closing_finishes_what_was_asked_for(self, store: Store) -> None:
        records = [make_record() for _ in range(50)]
        creators = [lambda record=record: store.create(record, REQUEST) for record in records]
        outcomes = await race(*creators, store.close)
        await store.open()
        for record, outcome in zip(records, outcomes, strict=False):
            # Either it was acknowledged and is there, or it was refused and is not.
            assert await store.get(record.id) == (record if outcome is None else None)

    async def test_a_second_process_sees_a_task_as_soon_as_it_is_created(self, store: Store, peer: Store) -> None:
        for _ in range(20):
            record = make_record()
            await store.create(record, REQUEST)
            assert await peer.get(record.id) == record
            await peer.save(replace(record, version=2), expected=1)
            assert await store.get(record.id) == replace(record, version=2)
            await store.delete(record.id, expected=2)
            assert await peer.get(record.id) is None

    async def test_one_of_the_savers_in_two_processes_wins(self, store: Store, peer: Store) -> None:
        for _ in range(10):
            record = make_record()
            await store.create(record, REQUEST)
            outcomes = await race(*(saver(each, record, "x") for each in (store, peer) * 3))
            assert sum(outcome is None for outcome in outcomes) == 1

    async def test_an_id_taken_in_one_process_is_taken_in_all(self, store: Store, peer: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        with pytest.raises(TaskExists):
            await peer.create(record, REQUEST)

    async def test_a_process_that_closes_does_not_disturb_another(self, store: Store, peer: Store) -> None:
        before, after = make_record(), make_record()
        await store.create(before, REQUEST)
        await peer.close()
        await store.create(after, REQUEST)
        assert await store.get(before.id) == before
        assert await store.get(after.id) == after
