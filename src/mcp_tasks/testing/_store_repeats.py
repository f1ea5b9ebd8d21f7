"""Store suite: writes that were carried out and whose answer was lost, done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias, TypeVar

import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import OTHER_WRITES, Outcome, TaskRecord, WriteId
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import StoreUnavailable, TaskExists, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.repeats import new_write_id
from mcp_tasks.stores.shares import Handing, Share, WorkLimits
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, entries_of
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

T = TypeVar("T")

Lossy: TypeAlias = tuple[Store, Callable[[], None]]
"""A store, and what has it lose its next answer."""

ENTRY = JournalEntry(kind="step", key="done", value={"value": 1})
RESULT = Outcome(body=b'{"content":[]}', meta=b"{}")
PLENTY = Share(owner=100)


async def lost_and_repeated(lossy: Lossy, act: Callable[[], Awaitable[T]]) -> T:
    """What the act gives whose first answer is lost. A store may repeat it by itself."""
    _, lose_next = lossy
    lose_next()
    try:
        return await act()
    except StoreUnavailable as exc:
        assert exc.may_have_happened
        return await act()


def new(**fields: object) -> TaskRecord:
    """A queued task with the write id of its creation."""
    return make_record(**fields).written(new_write_id())


def following(record: TaskRecord, write: WriteId, **changes: object) -> TaskRecord:
    """The record one version later, by this write."""
    return record.but(version=record.version + 1, **changes).written(write)


async def others_write(store: Store, record: TaskRecord, times: int) -> TaskRecord:
    """So many writes of others."""
    for _ in range(times):
        record = await store.save(following(record, new_write_id()), expected=record.version)
    return record


class RepeatTests(StoreTests):
    """Lost answers."""

    @pytest.mark.parametrize("key", [None, "key"])
    async def test_a_task_is_made_once(self, lossy: Lossy, key: str | None) -> None:
        store, _ = lossy
        record = new()
        made = await lost_and_repeated(lossy, lambda: store.create(record, REQUEST, key=key))
        assert made == await store.get(record.id) == record

    async def test_a_task_that_is_made_as_ended_is_made_once(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = new(status=TaskStatus.COMPLETED, finished_at=NOON)
        await lost_and_repeated(lossy, lambda: store.create(record, REQUEST, outcome=RESULT))
        assert await store.outcome(record.id) == RESULT

    async def test_a_creation_is_answered_with_the_task_as_it_is_by_then(self, store: Store) -> None:
        record = new()
        await store.create(record, REQUEST)
        claimed = await store.save(following(record, new_write_id(run=True), worker="w", attempt=1), expected=1)
        assert await store.create(record, REQUEST) == claimed

    async def test_another_task_of_the_same_id_is_refused(self, store: Store) -> None:
        record = new()
        await store.create(record, REQUEST)
        with pytest.raises(TaskExists):
            await store.create(new(id=record.id), REQUEST)

    @pytest.mark.parametrize("claimed", [False, True], ids=["queued", "claimed"])
    async def test_a_creation_that_cannot_be_recognised_any_more_may_have_happened(
        self, store: Store, claimed: bool
    ) -> None:
        record = new()
        current = await store.create(record, REQUEST)
        if claimed:
            current = await store.save(following(record, new_write_id(run=True), worker="w", attempt=1), expected=1)
        await others_write(store, current, OTHER_WRITES)
        with pytest.raises(StoreUnavailable) as unknown:
            await store.create(record, REQUEST)
        assert unknown.value.may_have_happened

    async def test_a_creation_with_a_claim_may_have_happened_if_another_run_has_the_task(self, store: Store) -> None:
        record = make_record(worker="w", attempt=1).written(new_write_id(run=True))
        await store.create(record, REQUEST)
        released = await store.save(following(record, new_write_id(), worker=None), expected=1)
        await store.save(following(released, new_write_id(run=True), worker="other", attempt=2), expected=2)
        with pytest.raises(StoreUnavailable) as unknown:
            await store.create(record, REQUEST)
        assert unknown.value.may_have_happened

    async def test_a_change_is_made_once(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = await store.create(new(), REQUEST)
        ended = following(record, new_write_id(), status=TaskStatus.COMPLETED, finished_at=NOON)
        saved = await lost_and_repeated(lossy, lambda: store.save(ended, expected=1, entries=[ENTRY], outcome=RESULT))
        assert saved == await store.get(record.id) == ended
        assert await entries_of(store, record.id) == [ENTRY]

    async def test_a_claim_is_made_once_and_takes_one_place(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = await store.create(new(), REQUEST)
        claimed = following(record, new_write_id(run=True), worker="w", attempt=1)
        limits = WorkLimits(tool=1, owner=1)
        assert await lost_and_repeated(lossy, lambda: store.save(claimed, expected=1, limits=limits)) == claimed

    async def test_a_write_of_a_run_is_recognised_however_many_others_follow(self, store: Store) -> None:
        record = await store.create(new(), REQUEST)
        run = new_write_id(run=True)
        claimed = await store.save(following(record, run, worker="w", attempt=1), expected=1)
        step = following(claimed, WriteId(run.writer, 2))
        current = await others_write(store, await store.save(step, expected=2, entries=[ENTRY]), OTHER_WRITES * 3)
        assert await store.save(step, expected=2, entries=[ENTRY]) == current
        assert await entries_of(store, record.id) == [ENTRY]

    async def test_a_change_by_another_is_a_conflict_that_shows_the_record(self, store: Store) -> None:
        record = await store.create(new(), REQUEST)
        current = await others_write(store, record, 1)
        with pytest.raises(VersionConflict) as conflict:
            await store.save(following(record, new_write_id()), expected=1)
        assert conflict.value.current == current

    async def test_ids_of_writes_take_little_room(self, store: Store) -> None:
        record = await store.create(new(), REQUEST)
        run = WriteId(new_write_id().writer, 9_999_999)
        claimed = await store.save(following(record, run, worker="w", attempt=1), expected=1)
        current = await others_write(store, claimed, 20)
        assert sum(len(write.writer) + len(str(write.number or "")) for write in current.writes) <= 64

    async def test_a_note_is_kept_once(self, lossy: Lossy) -> None:
        store, _ = lossy
        assert await lost_and_repeated(lossy, lambda: store.set_note("", "note", b"1", expected=None))
        assert await lost_and_repeated(lossy, lambda: store.set_note("", "note", b"2", expected=b"1"))
        assert await store.note("", "note") == b"2"

    async def test_a_task_is_deleted_once(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = await store.create(new(), REQUEST)
        try:
            await lost_and_repeated(lossy, lambda: store.delete(record.id, expected=1))
        except VersionConflict as conflict:
            assert conflict.current is None
        assert await store.get(record.id) is None

    async def test_expired_tasks_are_forgotten(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = await store.create(
            new(status=TaskStatus.COMPLETED, finished_at=NOON, retention=timedelta(seconds=1)), REQUEST
        )
        later = NOON + timedelta(seconds=2)
        await lost_and_repeated(lossy, lambda: store.forget_expired(later, limit=10))
        assert await store.get(record.id) is None

    async def test_a_worker_that_beats_is_alive_and_one_that_retires_is_gone(self, lossy: Lossy) -> None:
        store, _ = lossy
        await store.heartbeat("w", namespace="")
        before = (await store.workers(""))["w"]
        await lost_and_repeated(lossy, lambda: store.heartbeat("w", namespace=""))
        assert (await store.workers(""))["w"] > before
        await lost_and_repeated(lossy, lambda: store.retire("w"))
        assert await store.workers("") == {}

    async def test_tasks_of_a_lost_choice_stay_marked_and_can_be_handed_back(self, lossy: Lossy) -> None:
        store, _ = lossy
        record = await store.create(new(), REQUEST)
        await lost_and_repeated(lossy, lambda: store.hand_out("", PLENTY, limit=1))
        assert list((await store.queued("", handed_out=True, limit=10)).ids) == [record.id]
        await lost_and_repeated(lossy, lambda: store.hand_back(record.id))
        assert [task.id for task in await store.hand_out("", PLENTY, limit=1)] == [record.id]

    async def test_a_task_that_is_handed_out_with_its_creation_is_made_once(self, lossy: Lossy) -> None:
        store, _ = lossy
        record, handing = new(), Handing(share=PLENTY)
        await lost_and_repeated(lossy, lambda: store.create(record, REQUEST, handing=handing))
        assert list((await store.queued("", handed_out=True, limit=10)).ids) == [record.id]
