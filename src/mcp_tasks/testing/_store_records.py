"""Store suite: one task at a time. `create`, `get`, `save`, `delete`, opening and closing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import EVERYBODY, OwnedBy, Store
from mcp_tasks.testing._store_tests import ANY_VALUE, REQUEST, StoreTests, entries_of
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

ANSWER = JournalEntry(kind="answer", key="q1", value={"action": "accept", "content": {"ok": True}})
STEP = JournalEntry(kind="step", key="frame-1", value={"value": [1, None, "done"]})

STRANGE_IDS = (
    "",
    " ",
    "no-such-task",
    "nul\0inside",
    "lone surrogate \ud800",
    "🦆",
    "'; DROP TABLE tasks; --",
    "%",
    "*",
    "../x",
    "long" * 250_000,
)
"""What a client may send as an id: any JSON string."""


def full_record() -> TaskRecord:
    """A record with every field set, none to a round number."""
    created = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
    return TaskRecord(
        id="every-field",
        owner="https://issuer.example/ü|user☃",
        namespace="render farm ☃",
        method="prompts/get",
        name="render ☃ \ud800",
        created_at=created,
        updated_at=created + timedelta(microseconds=1),
        status=TaskStatus.INPUT_REQUIRED,
        status_message="half\nway \0 ☃",
        progress=Progress(progress=0.1, total=3, message="one of three"),
        inputs=InputBook(
            outstanding={
                "q2": InputRequest(method="elicitation/create", params=ANY_VALUE, hosted_as="theirs"),
                "q3": InputRequest(method="roots/list", params={}, deadline=created + timedelta(microseconds=11)),
            },
            used=frozenset({"q1", "q2", "q3"}),
        ),
        finished_at=created + timedelta(days=3, microseconds=7),
        retention=timedelta(hours=6, microseconds=1),
        poll_interval=timedelta(milliseconds=1, microseconds=500),
        attempt=3,
        worker="worker-1",
        started_at=created + timedelta(microseconds=3),
        wake_at=created + timedelta(days=1, microseconds=5),
        lost=2,
        trial="alone",
        announced=False,
        version=2**40,
    )


class RecordTests(StoreTests):
    """One task at a time."""

    async def test_a_created_task_is_found(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        assert await store.get(record.id) == record

    async def test_every_field_of_a_record_comes_back_exactly(self, store: Store) -> None:
        record = full_record()
        await store.create(record, REQUEST)
        assert await store.get(record.id) == record

    async def test_what_is_unset_stays_unset(self, store: Store) -> None:
        record = make_record(owner=None, retention=None)
        await store.create(record, REQUEST)
        assert await store.get(record.id) == record

    async def test_ids_are_compared_exactly(self, store: Store) -> None:
        names = ["task", "Task", "task ", "tásk", "ta\u0301sk", "task%", "*"]
        for name in names:
            await store.create(make_record(id=name, owner=name), REQUEST)
        for name in names:
            found = await store.get(name)
            assert found is not None
            assert (found.id, found.owner) == (name, name)

    @pytest.mark.parametrize("task_id", STRANGE_IDS, ids=lambda text: ascii(text)[:20])
    async def test_any_string_may_be_asked_for(self, store: Store, task_id: str) -> None:
        await store.create(make_record(namespace="demo"), REQUEST)
        assert await store.get(task_id) is None
        assert list(await store.journal(task_id)) == []
        assert await store.request(task_id) is None
        assert await store.outcome(task_id) is None
        assert list((await store.list("demo", OwnedBy(task_id), now=NOON)).records) == []
        assert list((await store.list(task_id, EVERYBODY, now=NOON)).records) == []
        for page in (await store.claimed(task_id, limit=1), await store.queued(task_id, limit=1)):
            assert (list(page.ids), page.cursor) == ([], None)
        assert list((await store.due(task_id, NOON, limit=1)).ids) == []
        assert await store.workers(task_id) == {}
        assert await store.versions([task_id]) == {}
        with pytest.raises(VersionConflict):
            await store.save(make_record(id=task_id, version=2), expected=1)
        with pytest.raises(VersionConflict):
            await store.delete(task_id, expected=1)

    async def test_an_id_is_created_once_and_the_first_stays(self, store: Store) -> None:
        first = make_record(id="twice")
        await store.create(first, REQUEST)
        with pytest.raises(TaskExists) as refused:
            await store.create(make_record(id="twice", owner="mallory"), REQUEST)
        assert refused.value.task_id == "twice"
        assert await store.get("twice") == first

    async def test_a_save_replaces_the_record(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        changed = replace(full_record(), id=record.id, owner=record.owner, namespace=record.namespace, version=2)
        changed = replace(changed, method=record.method, name=record.name, created_at=record.created_at)
        await store.save(changed, expected=1)
        assert await store.get(record.id) == changed

    async def test_a_save_that_expects_an_old_version_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        current = replace(record, version=2, status_message="first")
        await store.save(current, expected=1)
        with pytest.raises(VersionConflict) as refused:
            await store.save(replace(record, version=2, status_message="late"), expected=1, entries=[ANSWER])
        assert (refused.value.task_id, refused.value.expected) == (record.id, 1)
        assert await store.get(record.id) == current
        assert list(await store.journal(record.id)) == []

    async def test_a_save_that_expects_a_version_to_come_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        with pytest.raises(VersionConflict):
            await store.save(replace(record, version=3), expected=2)
        assert await store.get(record.id) == record

    async def test_a_save_does_not_create(self, store: Store) -> None:
        with pytest.raises(VersionConflict):
            await store.save(make_record(id="gone", version=2), expected=1, entries=[STEP])
        assert await store.get("gone") is None
        assert list(await store.journal("gone")) == []

    async def test_a_delete_that_expects_an_old_version_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        current = replace(record, version=2)
        await store.save(current, expected=1, entries=[STEP])
        with pytest.raises(VersionConflict) as refused:
            await store.delete(record.id, expected=1)
        assert (refused.value.task_id, refused.value.expected) == (record.id, 1)
        assert await store.get(record.id) == current
        assert await entries_of(store, record.id) == [STEP]

    async def test_opening_and_closing_twice_is_harmless(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        await store.open()
        assert await store.get(record.id) == record
        await store.close()
        await store.close()

    async def test_closing_and_opening_again_loses_nothing(self, store: Store) -> None:
        record = full_record()
        await store.create(record, REQUEST)
        await store.save(record, expected=record.version, entries=[STEP])
        await store.heartbeat("worker-2", namespace="demo")
        await store.close()
        await store.open(namespace="another server")
        assert await store.get(record.id) == record
        assert await entries_of(store, record.id) == [STEP]
        assert await store.workers("demo") == {"worker-2": 1}
