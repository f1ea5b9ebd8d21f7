"""Store suite: one task at a time. `create`, `get`, `save`, `delete`, the journal, opening and closing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import StoreTests
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

ANY_VALUE: JsonObject = {
    "text": "snow ☃, astral 𝄞, nul \0, lone surrogate \ud800, quote \" ' \\",
    "": {"nested": [None, {"deeper": [[], {}, None]}]},
    "numbers": [0, -1, 2**63, -(10**40), 0.1, 1e-300, 1.7976931348623157e308, 5e-324],
    "flags": [True, False, None],
    "☃": "a key that is not ASCII",
}
"""JSON that is easily lost on the way."""


def full_record() -> TaskRecord:
    """A record with every field set, none to a round number."""
    created = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
    return TaskRecord(
        id="every-field",
        owner="https://issuer.example/ü|user☃",
        namespace="render farm ☃",
        request=TaskRequest(
            name="render",
            arguments=ANY_VALUE,
            method="tools/call",
            meta={"traceparent": "00-1-2-01", "progressToken": 7},
            protocol_version="2026-07-28",
            client_info={"name": "client", "version": "1"},
            client_capabilities={"elicitation": {"form": {}}},
            input_responses={"q0": ANY_VALUE},
            request_state="state ☃",
        ),
        created_at=created,
        updated_at=created + timedelta(microseconds=1),
        status=TaskStatus.INPUT_REQUIRED,
        status_message="half\nway \0 ☃",
        progress=Progress(progress=0.1, total=3, message="one of three"),
        inputs=InputBook(
            outstanding={
                "q2": InputRequest(method="elicitation/create", params=ANY_VALUE),
                "q3": InputRequest(method="roots/list", params={}, deadline=created + timedelta(microseconds=11)),
            },
            used=frozenset({"q1", "q2", "q3"}),
        ),
        result=ANY_VALUE,
        error={"code": -32603, "message": "broken", "data": ANY_VALUE},
        finished_at=created + timedelta(days=3, microseconds=7),
        ttl=timedelta(hours=6, microseconds=1),
        poll_interval=timedelta(milliseconds=1, microseconds=500),
        attempt=3,
        worker="worker-1",
        started_at=created + timedelta(microseconds=3),
        wake_at=created + timedelta(days=1, microseconds=5),
        lost=2,
        version=2**40,
    )


class RecordTests(StoreTests):
    """One task at a time."""

    async def test_a_created_task_is_found(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        assert await store.get(record.id) == record

    async def test_every_field_of_a_record_comes_back_exactly(self, store: Store) -> None:
        record = full_record()
        await store.create(record)
        assert await store.get(record.id) == record

    async def test_what_is_unset_stays_unset(self, store: Store) -> None:
        record = make_record(owner=None, ttl=None)
        await store.create(record)
        assert await store.get(record.id) == record

    async def test_ids_are_compared_exactly(self, store: Store) -> None:
        names = ["task", "Task", "task ", "tásk", "ta\u0301sk", "task%", "*"]
        for name in names:
            await store.create(make_record(id=name, owner=name))
        for name in names:
            found = await store.get(name)
            assert found is not None
            assert (found.id, found.owner) == (name, name)

    @pytest.mark.parametrize("task_id", STRANGE_IDS, ids=lambda text: ascii(text)[:20])
    async def test_any_string_may_be_asked_for(self, store: Store, task_id: str) -> None:
        await store.create(make_record(namespace="demo"))
        assert await store.get(task_id) is None
        assert list(await store.journal(task_id)) == []
        assert list((await store.list(owner=task_id)).records) == []
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
        await store.create(first)
        with pytest.raises(TaskExists) as refused:
            await store.create(make_record(id="twice", owner="mallory"))
        assert refused.value.task_id == "twice"
        assert await store.get("twice") == first

    async def test_a_save_replaces_the_record(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        changed = replace(full_record(), id=record.id, owner=record.owner, request=record.request, version=2)
        changed = replace(changed, namespace=record.namespace, created_at=record.created_at)
        await store.save(changed, expected=1)
        assert await store.get(record.id) == changed

    async def test_a_save_that_expects_an_old_version_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        current = replace(record, version=2, status_message="first")
        await store.save(current, expected=1)
        with pytest.raises(VersionConflict) as refused:
            await store.save(replace(record, version=2, status_message="late"), expected=1, entries=[ANSWER])
        assert (refused.value.task_id, refused.value.expected) == (record.id, 1)
        assert await store.get(record.id) == current
        assert list(await store.journal(record.id)) == []

    async def test_a_save_that_expects_a_version_to_come_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        with pytest.raises(VersionConflict):
            await store.save(replace(record, version=3), expected=2)
        assert await store.get(record.id) == record

    async def test_a_save_does_not_create(self, store: Store) -> None:
        with pytest.raises(VersionConflict):
            await store.save(make_record(id="gone", version=2), expected=1, entries=[STEP])
        assert await store.get("gone") is None
        assert list(await store.journal("gone")) == []

    async def test_entries_are_kept_in_the_order_of_writing(self, store: Store) -> None:
        record, other = make_record(), make_record()
        await store.create(record)
        await store.create(other)
        await store.save(replace(record, version=2), expected=1, entries=[STEP, ANSWER])
        await store.save(replace(other, version=2), expected=1, entries=[STEP])
        await store.save(replace(record, version=3), expected=2)
        again = replace(STEP, kind="timer", value=ANY_VALUE)
        await store.save(replace(record, version=4), expected=3, entries=[again, replace(STEP, kind="ask")])
        assert list(await store.journal(record.id)) == [STEP, ANSWER, again, replace(STEP, kind="ask")]
        assert list(await store.journal(other.id)) == [STEP]

    async def test_a_deleted_task_is_gone_with_its_journal(self, store: Store) -> None:
        record, other = make_record(), make_record()
        for each in (record, other):
            await store.create(each)
            await store.save(replace(each, version=2), expected=1, entries=[STEP])
        await store.delete(record.id, expected=2)
        assert await store.get(record.id) is None
        assert list(await store.journal(record.id)) == []
        assert list(await store.journal(other.id)) == [STEP]

    async def test_an_id_may_come_back_and_starts_with_an_empty_journal(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        await store.save(replace(record, version=2), expected=1, entries=[STEP])
        await store.delete(record.id, expected=2)
        await store.create(record)
        assert await store.get(record.id) == record
        assert list(await store.journal(record.id)) == []

    async def test_a_delete_that_expects_an_old_version_changes_nothing(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        current = replace(record, version=2)
        await store.save(current, expected=1, entries=[STEP])
        with pytest.raises(VersionConflict) as refused:
            await store.delete(record.id, expected=1)
        assert (refused.value.task_id, refused.value.expected) == (record.id, 1)
        assert await store.get(record.id) == current
        assert list(await store.journal(record.id)) == [STEP]

    async def test_opening_and_closing_twice_is_harmless(self, store: Store) -> None:
        record = make_record()
        await store.create(record)
        await store.open()
        assert await store.get(record.id) == record
        await store.close()
        await store.close()

    async def test_closing_and_opening_again_loses_nothing(self, store: Store) -> None:
        record = full_record()
        await store.create(record)
        await store.save(record, expected=record.version, entries=[STEP])
        await store.heartbeat("worker-2", namespace="demo")
        await store.close()
        await store.open(namespace="another server")
        assert await store.get(record.id) == record
        assert list(await store.journal(record.id)) == [STEP]
        assert await store.workers("demo") == {"worker-2": 1}
