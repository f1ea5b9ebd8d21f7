"""Store suite: what is kept beside a task's record. Its request, its outcome and its journal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json_bytes import encode_json
from mcp_tasks.core.record import Outcome, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, ValueNotStorable, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import ANY_VALUE, REQUEST, StoreTests, entries_of
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

ANSWER = JournalEntry(kind="answer", key="q1", value={"action": "accept", "content": {"ok": True}})
STEP = JournalEntry(kind="step", key="frame-1", value={"value": [1, None, "done"]})

FULL_REQUEST = TaskRequest(
    name="render ☃ \ud800",
    arguments=ANY_VALUE,
    method="tools/call",
    meta={"traceparent": "00-1-2-01", "progressToken": 7},
    protocol_version="2026-07-28",
    client_info={"name": "client", "version": "1"},
    client_capabilities={"elicitation": {"form": {}}},
    input_responses={"q0": ANY_VALUE},
    request_state="state ☃",
)
"""A request with every field set."""

RESULT = Outcome(body=encode_json({"content": [], "structuredContent": ANY_VALUE}), meta=encode_json(ANY_VALUE))

LARGE_VALUES = {
    "one string": "x" * 3_000_000,
    "many small values": [{"n": n, "text": "snow ☃", "nothing": None} for n in range(50_000)],
    "a lone surrogate": ["\ud800", "x" * 1_000_000],
}


def too_deep() -> Any:
    """JSON that is nested deeper than any encoder goes."""
    value: Any = None
    for _ in range(100_000):
        value = [value]
    return value


NOT_JSON: dict[str, Any] = {"an object": object(), "bytes": b"x", "a set": {1}, "too deep": too_deep()}


def ended(record: TaskRecord, **fields: Any) -> TaskRecord:
    """The record one version on, completed."""
    return replace(record, version=record.version + 1, status=TaskStatus.COMPLETED, **fields)


class PartTests(StoreTests):
    """Requests, outcomes and journals."""

    async def test_every_field_of_a_request_comes_back_exactly(self, store: Store) -> None:
        for task_id, request in (("full", FULL_REQUEST), ("small", TaskRequest(name="render", arguments={}))):
            await store.create(make_record(id=task_id), request)
            assert await store.request(task_id) == request

    async def test_a_request_is_what_the_caller_gave_and_nobody_can_change_it(self, store: Store) -> None:
        arguments = {"scenes": ["forest"]}
        await store.create(make_record(id="task"), make_request(arguments=arguments))
        arguments["scenes"].append("changed by its caller")
        first = await store.request("task")
        assert first is not None
        assert first == make_request(arguments={"scenes": ["forest"]})
        first.arguments["scenes"].append("changed by the tool")
        assert await store.request("task") == make_request(arguments={"scenes": ["forest"]})

    async def test_a_save_leaves_the_request_as_it_is(self, store: Store) -> None:
        record = make_record()
        await store.create(record, FULL_REQUEST)
        await store.save(ended(record), expected=1, entries=[STEP], outcome=RESULT)
        assert await store.request(record.id) == FULL_REQUEST

    async def test_an_outcome_is_there_once_it_was_saved(self, store: Store) -> None:
        record, other = make_record(), make_record()
        for each in (record, other):
            await store.create(each, REQUEST)
        assert await store.outcome(record.id) is None
        await store.save(ended(record), expected=1, outcome=RESULT)
        assert await store.outcome(record.id) == RESULT
        assert await store.outcome(other.id) is None
        await store.save(ended(other), expected=1, outcome=Outcome(body=b'{"code":-32603,"message":"broken"}'))
        assert await store.outcome(other.id) == Outcome(body=b'{"code":-32603,"message":"broken"}', meta=None)

    async def test_a_task_may_be_created_as_ended_with_its_outcome(self, store: Store) -> None:
        for outcome in (RESULT, Outcome(body=b'{"code":-32603,"message":"broken"}')):
            record = ended(make_record(), finished_at=NOON)
            assert await store.create(record, FULL_REQUEST, outcome=outcome) == record
            assert await store.get(record.id) == record
            assert (await store.request(record.id), await store.outcome(record.id)) == (FULL_REQUEST, outcome)
            with pytest.raises(TaskExists):
                await store.create(record, FULL_REQUEST, outcome=Outcome(body=b"{}"))
            assert await store.outcome(record.id) == outcome

    async def test_a_task_that_stands_under_a_key_keeps_its_own_outcome(self, store: Store) -> None:
        standing, late = make_record(), ended(make_record(), finished_at=NOON)
        await store.create(standing, REQUEST, key="once")
        assert (await store.create(late, REQUEST, key="once", outcome=RESULT)).id == standing.id
        assert (await store.outcome(standing.id), await store.outcome(late.id)) == (None, None)

    async def test_an_outcome_is_kept_byte_by_byte(self, store: Store) -> None:
        # Nothing of it is parsed, so its spaces and escapes are still there.
        for number, outcome in enumerate(
            (
                Outcome(body=b"{ }", meta=b"{}"),
                Outcome(body=b'"\\ud800\\u0000"', meta=b"[1.50, 1E2]"),
                Outcome(body='{"é":"é ☃ 𝄞","a":1,"a":2}'.encode()),
            )
        ):
            record = make_record(id=f"task {number}")
            await store.create(record, REQUEST)
            await store.save(ended(record), expected=1, outcome=outcome)
            assert await store.outcome(record.id) == outcome

    async def test_a_later_save_without_an_outcome_keeps_it_and_one_with_another_replaces_it(
        self, store: Store
    ) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        await store.save(replace(record, version=2), expected=1, outcome=RESULT)
        await store.save(replace(record, version=3), expected=2)
        assert await store.outcome(record.id) == RESULT
        await store.save(replace(record, version=4), expected=3, outcome=Outcome(body=b"[]"))
        assert await store.outcome(record.id) == Outcome(body=b"[]")

    async def test_a_save_that_loses_leaves_no_outcome(self, store: Store) -> None:
        record = make_record()
        await store.create(record, REQUEST)
        with pytest.raises(VersionConflict):
            await store.save(ended(record), expected=7, outcome=RESULT)
        assert await store.outcome(record.id) is None

    @pytest.mark.parametrize("name", LARGE_VALUES)
    async def test_what_is_large_comes_back_exactly(self, store: Store, name: str) -> None:
        value = LARGE_VALUES[name]
        record, request = make_record(), make_request(arguments={"large": value})
        outcome = Outcome(body=encode_json({"large": value}), meta=encode_json(value))
        steps = [replace(STEP, value=value), replace(STEP, key="small"), replace(STEP, value=[value])]
        await store.create(record, request)
        await store.save(ended(record), expected=1, entries=steps, outcome=outcome)
        assert await store.get(record.id) == ended(record)
        assert await store.request(record.id) == request
        assert await store.outcome(record.id) == outcome
        assert await entries_of(store, record.id) == steps

    @pytest.mark.parametrize("name", NOT_JSON)
    async def test_what_is_not_json_is_refused_and_nothing_is_kept(self, store: Store, name: str) -> None:
        value, record = NOT_JSON[name], make_record()
        asked = InputBook(outstanding={"q": InputRequest(method="m", params={"x": value})}, used=frozenset({"q"}))
        for bad in (
            lambda: store.create(make_record(id="bad"), make_request(arguments={"x": value})),
            lambda: store.create(make_record(id="bad", inputs=asked), REQUEST),
        ):
            with pytest.raises(ValueNotStorable, match="JSON") as refused:
                await bad()
            assert refused.value.__cause__ is not None
        assert await store.get("bad") is None
        await store.create(record, REQUEST)
        for worse in (
            lambda: store.save(ended(record), expected=1, entries=[STEP, replace(STEP, value=value)]),
            lambda: store.save(ended(record, inputs=asked), expected=1, entries=[STEP], outcome=RESULT),
        ):
            with pytest.raises(ValueNotStorable, match="JSON"):
                await worse()
        assert await store.get(record.id) == record
        assert list(await store.journal(record.id)) == []
        assert await store.outcome(record.id) is None

    async def test_entries_are_kept_in_the_order_of_writing(self, store: Store) -> None:
        record, other = make_record(), make_record()
        await store.create(record, REQUEST)
        await store.create(other, REQUEST)
        await store.save(replace(record, version=2), expected=1, entries=[STEP, ANSWER])
        await store.save(replace(other, version=2), expected=1, entries=[STEP])
        await store.save(replace(record, version=3), expected=2)
        again = replace(STEP, kind="timer", value=ANY_VALUE)
        await store.save(replace(record, version=4), expected=3, entries=[again, replace(STEP, kind="ask")])
        assert await entries_of(store, record.id) == [STEP, ANSWER, again, replace(STEP, kind="ask")]
        assert await entries_of(store, other.id) == [STEP]

    async def test_numbers_of_entries_only_grow_and_say_what_came_later(self, store: Store) -> None:
        record, other = make_record(), make_record()
        await store.create(record, REQUEST)
        await store.create(other, REQUEST)
        for version in range(2, 7):
            entries = [replace(STEP, key=f"{version}.{n}", number=99) for n in range(3)]
            await store.save(replace(record, version=version), expected=version - 1, entries=entries)
            await store.save(replace(other, version=version), expected=version - 1, entries=[STEP])
        journal = list(await store.journal(record.id))
        numbers = [entry.number for entry in journal]
        assert [entry.key for entry in journal] == [f"{version}.{n}" for version in range(2, 7) for n in range(3)]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        for place, number in enumerate(numbers):
            assert list(await store.journal(record.id, after=number)) == journal[place + 1 :]
        assert list(await store.journal(record.id, after=0)) == journal
        assert list(await store.journal("no such task", after=3)) == []

    async def test_a_deleted_task_is_gone_with_all_that_was_beside_it(self, store: Store) -> None:
        record, other = make_record(), make_record()
        for each in (record, other):
            await store.create(each, REQUEST)
            await store.save(ended(each), expected=1, entries=[STEP], outcome=RESULT)
        await store.delete(record.id, expected=2)
        assert await store.get(record.id) is None
        assert await store.request(record.id) is None
        assert await store.outcome(record.id) is None
        assert list(await store.journal(record.id)) == []
        assert await store.request(other.id) == REQUEST
        assert await store.outcome(other.id) == RESULT
        assert await entries_of(store, other.id) == [STEP]

    async def test_an_id_may_come_back_and_has_nothing_of_its_earlier_life(self, store: Store) -> None:
        record = make_record()
        await store.create(record, FULL_REQUEST)
        await store.save(ended(record), expected=1, entries=[STEP], outcome=RESULT)
        await store.delete(record.id, expected=2)
        await store.create(record, REQUEST)
        assert await store.get(record.id) == record
        assert await store.request(record.id) == REQUEST
        assert await store.outcome(record.id) is None
        assert list(await store.journal(record.id)) == []

    async def test_a_second_process_sees_what_is_beside_a_task(self, store: Store, peer: Store) -> None:
        record = make_record()
        await store.create(record, FULL_REQUEST)
        assert await peer.request(record.id) == FULL_REQUEST
        await peer.save(ended(record), expected=1, entries=[STEP], outcome=RESULT)
        assert await store.outcome(record.id) == RESULT
        assert await entries_of(store, record.id) == [STEP]
