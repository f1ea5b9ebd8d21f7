"""Store suite: the hooks and fixtures of all parts; records, what is kept beside them, keys, races, repeated writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import anyio
import pytest

from mcp_tasks.errors import (
    KeySpent,
    StoreError,
    StoreUnavailable,
    TaskExists,
    UsageError,
    ValueNotStorable,
    VersionConflict,
)
from mcp_tasks.model.json import JsonObject, encode_json
from mcp_tasks.model.record import (
    OTHER_WRITES,
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
    WriteId,
)
from mcp_tasks.stores.base import EVERYBODY, Handing, OwnedBy, Share, Store, WorkLimits
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

T = TypeVar("T")

REQUEST = make_request()
"""The request, where a test does not care."""

ANY_VALUE: JsonObject = {
    "text": "snow ☃, astral 𝄞, nul \0, lone surrogate \ud800, quote \" ' \\",
    "": {"nested": [None, {"deeper": [[], {}, None]}]},
    "numbers": [0, -1, 2**63, -(10**40), 0.1, 1e-300, 1.7976931348623157e308, 5e-324],
    "flags": [True, False, None],
    "☃": "a key that is not ASCII",
}
"""JSON that is easily lost on the way."""

WAIT = 5
"""Seconds after which what must happen is taken not to happen."""


WRITES = frozenset(
    ("create", "save", "delete", "set_note", "hand_out", "hand_back", "forget_expired", "heartbeat", "retire")
)
"""The verbs that write."""


@pytest.mark.anyio
class StoreTests:
    """A test class with a store of its own for each test."""

    shared: ClassVar[bool] = True

    def open_store(self) -> AbstractAsyncContextManager[Store]:
        """An open store on this test's own place, closed at the end."""
        raise NotImplementedError("a store suite needs `open_store`")

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        """An open store, and what has it carry out its next write and lose the answer.

        Override it for a store that is reached over a network: lose the answer there, and leave the rest to the store.
        """
        async with self.open_store() as store:
            lossy = _LossyStore(store)
            yield cast(Store, lossy), lossy.lose_next

    @pytest.fixture
    async def lossy(self) -> AsyncIterator[tuple[Store, Callable[[], None]]]:
        """A store that can lose an answer."""
        async with self.open_lossy() as lossy:
            yield lossy

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Stores are built for asyncio."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        """An empty store."""
        async with self.open_store() as store:
            yield store

    @pytest.fixture
    async def peer(self, store: Store) -> AsyncIterator[Store]:
        """A second store on the same place, as another process would have it; the same one, if it cannot be shared."""
        if not self.shared:
            yield store
            return
        async with self.open_store() as peer:
            yield peer


class _LossyStore:
    """Raises after a write that was carried out."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._loses = False

    def lose_next(self) -> None:
        """Lose the next answer to a write."""
        self._loses = True

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not (self._loses and verb in WRITES):
            return found

        async def lost(*args: Any, **kwargs: Any) -> None:
            self._loses = False
            await found(*args, **kwargs)
            raise StoreUnavailable("the answer was lost", may_have_happened=True)

        return lost


async def create_all(store: Store, *records: TaskRecord) -> None:
    """Create the records in this order."""
    for record in records:
        await store.create(record, REQUEST)


async def entries_of(store: Store, task_id: str) -> list[JournalEntry]:
    """The task's journal as it was written, without the numbers, which are the store's to give."""
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


def ids(records: Sequence[TaskRecord]) -> list[str]:
    """The ids, in order."""
    return [record.id for record in records]


async def at_once(*acts: Callable[[], Awaitable[T]]) -> list[T]:
    """The results of some acts that begin at the same time."""
    given: dict[int, T] = {}

    async def act(number: int) -> None:
        given[number] = await acts[number]()

    with anyio.fail_after(WAIT * 4):
        async with anyio.create_task_group() as group:
            for number in range(len(acts)):
                group.start_soon(act, number)
    return [given[number] for number in range(len(acts))]


# ---- records

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
"""Ids that a client may send: any JSON string."""


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
    async def test_a_created_task_comes_back_exactly(self, store: Store) -> None:
        for record in (make_record(), full_record(), make_record(owner=None, retention=None)):
            assert await store.create(record, REQUEST) == record
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
        first = await store.create(make_record(id="twice"), REQUEST)
        with pytest.raises(TaskExists) as refused:
            await store.create(make_record(id="twice", owner="mallory"), REQUEST)
        assert refused.value.task_id == "twice"
        assert await store.get("twice") == first

    async def test_a_save_replaces_the_record(self, store: Store) -> None:
        record = await store.create(make_record(), REQUEST)
        changed = replace(full_record(), id=record.id, owner=record.owner, namespace=record.namespace, version=2)
        changed = replace(changed, method=record.method, name=record.name, created_at=record.created_at)
        await store.save(changed, expected=1)
        assert await store.get(record.id) == changed

    async def test_a_save_that_expects_another_version_changes_nothing(self, store: Store) -> None:
        record = await store.create(make_record(), REQUEST)
        current = await store.save(replace(record, version=2, status_message="first"), expected=1)
        for late, expected in ((current, 1), (replace(record, version=4), 3), (make_record(version=2), 1)):
            with pytest.raises(VersionConflict) as refused:
                await store.save(late, expected=expected, entries=[ANSWER], outcome=RESULT)
            assert (refused.value.task_id, refused.value.expected) == (late.id, expected)
            assert await store.get(late.id) == (current if late.id == record.id else None)
            assert list(await store.journal(late.id)) == []
            assert await store.outcome(late.id) is None

    async def test_a_delete_that_expects_an_old_version_changes_nothing(self, store: Store) -> None:
        record = await store.create(make_record(), REQUEST)
        current = replace(record, version=2)
        await store.save(current, expected=1, entries=[STEP])
        with pytest.raises(VersionConflict) as refused:
            await store.delete(record.id, expected=1)
        assert (refused.value.task_id, refused.value.expected) == (record.id, 1)
        assert await store.get(record.id) == current
        assert await entries_of(store, record.id) == [STEP]

    async def test_opening_and_closing_twice_is_harmless(self, store: Store) -> None:
        record = await store.create(make_record(), REQUEST)
        await store.open()
        assert await store.get(record.id) == record
        await store.close()
        await store.close()

    async def test_closing_and_opening_again_loses_nothing(self, store: Store) -> None:
        record = full_record()
        await store.create(record, REQUEST, key="key")
        await store.save(record, expected=record.version, entries=[STEP])
        gone = await store.create(make_record(), REQUEST, key="gone", key_outlives=timedelta(days=1))
        await store.delete(gone.id, expected=1, now=NOON)
        await store.heartbeat("worker-2", namespace="demo", beats=1)
        await store.set_note("demo", "note", b"kept", expected=None)
        usage = await store.usage(record.namespace, OwnedBy(record.owner or ""))
        await store.close()
        await store.open()
        assert await store.get(record.id) == record
        assert await entries_of(store, record.id) == [STEP]
        assert await store.id_under("key", namespace=record.namespace, owner=record.owner) == record.id
        with pytest.raises(KeySpent):
            await store.create(make_record(), REQUEST, key="gone")
        assert await store.workers("demo") == {"worker-2": 1}
        assert await store.note("demo", "note") == b"kept"
        assert await store.usage(record.namespace, OwnedBy(record.owner or "")) == usage


# ---- parts

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

    async def test_an_outcome_is_kept_byte_by_byte(self, store: Store) -> None:
        # Nothing of it is parsed, so its spaces and escapes are still there.
        for number, outcome in enumerate(
            (
                Outcome(body=b"{ }", meta=b"{}"),
                Outcome(body=b'"\\ud800\\u0000"', meta=b"[1.50, 1E2]"),
                Outcome(body='{"é":"é ☃ 𝄞","a":1,"a":2}'.encode()),
            )
        ):
            record = await store.create(make_record(id=f"task {number}"), REQUEST)
            await store.save(ended(record), expected=1, outcome=outcome)
            assert await store.outcome(record.id) == outcome

    async def test_a_later_save_without_an_outcome_keeps_it_and_one_with_another_replaces_it(
        self, store: Store
    ) -> None:
        record = await store.create(make_record(), REQUEST)
        await store.save(replace(record, version=2), expected=1, outcome=RESULT)
        await store.save(replace(record, version=3), expected=2)
        assert await store.outcome(record.id) == RESULT
        await store.save(replace(record, version=4), expected=3, outcome=Outcome(body=b"[]"))
        assert await store.outcome(record.id) == Outcome(body=b"[]")

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


# ---- keys

SECOND = timedelta(seconds=1)
STRANGE_KEYS = ("", " ", "key", "Key", "key ", "ké", "nul\0inside", "lone \ud800", "🦆", "'; --", "0", "long" * 10_000)


async def one_of_many(stores: Sequence[Store], **key: Any) -> TaskRecord:
    """The one task that is made by many that create under one key at the same time."""
    records = [make_record() for _ in range(20)]
    acts = (partial(stores[n % len(stores)].create, each, REQUEST, **key) for n, each in enumerate(records))
    given = await at_once(*acts)
    assert len({record.id for record in given}) == 1
    assert [record for record in records if await stores[-1].get(record.id)] == [given[0]]
    return given[0]


class KeyTests(StoreTests):
    async def test_tasks_without_a_key_do_not_meet(self, store: Store) -> None:
        for until_end in (False, True):
            records = [make_record() for _ in range(3)]
            for record in records:
                assert await store.create(record, REQUEST, key_until_end=until_end) == record
            assert [await store.get(record.id) for record in records] == records

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

    async def test_a_task_is_found_by_its_key(self, store: Store) -> None:
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

    @pytest.mark.parametrize("until_end", [False, True])
    async def test_owners_and_servers_have_keys_of_their_own(self, store: Store, until_end: bool) -> None:
        places = [
            {"owner": owner, "namespace": namespace}
            for owner in ("alice", "bob", "", "0", "None", "lone \ud800", None)
            for namespace in ("", "demo", "Demo")
        ]
        records = [make_record(**place) for place in places]
        for record in records:
            assert await store.create(record, REQUEST, key="key", key_until_end=until_end) == record
        for place, record in zip(places, records, strict=True):
            assert await store.create(make_record(**place), REQUEST, key="key", key_until_end=until_end) == record

    async def test_keys_are_compared_exactly(self, store: Store) -> None:
        records = {key: make_record() for key in STRANGE_KEYS}
        for key, record in records.items():
            assert await store.create(record, REQUEST, key=key) == record
        for key, record in records.items():
            assert await store.create(make_record(), REQUEST, key=key) == record

    async def test_an_id_that_is_taken_is_refused_under_a_new_key_and_the_key_stays_free(self, store: Store) -> None:
        await store.create(make_record(id="taken"), REQUEST)
        with pytest.raises(TaskExists):
            await store.create(make_record(id="taken"), REQUEST, key="key")
        record = make_record()
        assert await store.create(record, REQUEST, key="key") == record

    async def test_who_is_refused_does_not_remove_the_expired_task_under_its_key(self, store: Store) -> None:
        expired = make_record(status=TaskStatus.COMPLETED, finished_at=NOON - SECOND, retention=SECOND)
        await store.create(expired, REQUEST, key="key")
        taken = await store.create(make_record(), REQUEST)
        for task_id in (taken.id, expired.id):
            with pytest.raises(TaskExists):
                await store.create(make_record(id=task_id), REQUEST, key="key")
        assert await store.get(expired.id) == expired

    async def test_of_many_at_once_one_replaces_the_expired_task(self, store: Store) -> None:
        expired = make_record(status=TaskStatus.COMPLETED, finished_at=NOON - SECOND, retention=SECOND)
        await store.create(expired, REQUEST, key="key")
        made = await one_of_many([store], key="key")
        assert ids((await store.list("", EVERYBODY, now=NOON - SECOND)).records) == [made.id]

    async def test_of_many_under_one_key_exactly_one_makes_a_task(self, store: Store, peer: Store) -> None:
        for number in range(5):
            await one_of_many([store, peer], key=f"key {number}")


# ---- joining

ENDS = sorted(status for status in TaskStatus if status.is_final)
ENTRY = JournalEntry(kind="step", key="step", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")


async def join(store: Store, record: TaskRecord, key: str = "key") -> TaskRecord:
    """Create, or get the task that runs under the key."""
    return await store.create(record, REQUEST, key=key, key_until_end=True)


async def ended_under(store: Store, key: str = "key", status: TaskStatus = TaskStatus.COMPLETED) -> TaskRecord:
    """A task that stands under the key and has ended."""
    record = make_record()
    await store.create(record, make_request(arguments={"n": 1}), key=key)
    ended = replace(record, version=2, status=status, finished_at=NOON)
    await store.save(ended, expected=1, entries=[ENTRY], outcome=OUTCOME)
    return ended


class JoiningTests(StoreTests):
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
        taken = await store.create(make_record(), REQUEST)
        for task_id in (taken.id, ended.id):
            with pytest.raises(TaskExists):
                await join(store, make_record(id=task_id))
        assert await store.create(make_record(), REQUEST, key="key") == ended

    async def test_of_many_after_an_end_exactly_one_makes_a_task(self, store: Store, peer: Store) -> None:
        for number in range(5):
            await ended_under(store, f"key {number}")
            await one_of_many([store, peer], key=f"key {number}", key_until_end=True)


# ---- spent

DAY, HOUR, MICROSECOND = timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)
EXPIRES = NOON + HOUR
"""When the tasks of `make_ended` expire."""


async def make_ended(
    store: Store, key: str = "key", *, outlives: timedelta | None = DAY, **fields: object
) -> TaskRecord:
    """A task under a key, made at noon, that has ended."""
    ended = {"status": TaskStatus.COMPLETED, "finished_at": NOON, "retention": HOUR}
    record = make_record(**{**ended, **fields})
    return await store.create(record, REQUEST, key=key, key_outlives=outlives)


async def is_spent(store: Store, at: datetime, key: str = "key", **fields: object) -> bool:
    """Whether a creation under the key at this moment is refused. Otherwise its task is deleted again."""
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
        # A child that is there is found, also when its parent has ended.
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
        acts = [partial(is_spent, (store, peer)[number % 2], EXPIRES) for number in range(20)]
        refused = await at_once(*acts[:10], partial(peer.forget_expired, EXPIRES, limit=9), *acts[10:])
        assert refused.count(True) == 20
        assert await store.get(record.id) is None


# ---- races


async def race(*acts: Callable[[], Awaitable[object]]) -> Sequence[Exception | None]:
    """The exceptions of some acts that begin at the same time."""

    async def attempt(act: Callable[[], Awaitable[object]]) -> Exception | None:
        try:
            await act()
        except (StoreError, UsageError) as exc:
            return exc
        return None

    return await at_once(*(partial(attempt, act) for act in acts))


def saver(store: Store, record: TaskRecord, name: str) -> Callable[[], Awaitable[object]]:
    """Saves version 2 of `record`, marked with `name`, with one entry."""
    entry = JournalEntry(kind="step", key=name, value=name)
    changed = replace(record, version=record.version + 1, status_message=name)
    return lambda: store.save(changed, expected=record.version, entries=[entry])


class RaceTests(StoreTests):
    async def test_one_of_fifty_savers_of_a_version_wins(self, store: Store, peer: Store) -> None:
        record = await store.create(make_record(), REQUEST)
        outcomes = await race(*(saver((store, peer)[n % 2], record, f"saver {n}") for n in range(50)))
        assert [type(outcome) for outcome in outcomes if outcome] == [VersionConflict] * 49
        winner = f"saver {outcomes.index(None)}"
        saved = await store.get(record.id)
        assert saved is not None
        assert (saved.version, saved.status_message) == (2, winner)
        assert [entry.key for entry in await store.journal(record.id)] == [winner]

    async def test_one_of_twenty_creators_of_an_id_wins(self, store: Store, peer: Store) -> None:
        records = [make_record(id="wanted", owner=f"owner {n}") for n in range(20)]
        creators = [(store, peer)[n % 2].create for n in range(20)]
        outcomes = await race(
            *(partial(create, record, REQUEST) for create, record in zip(creators, records, strict=True))
        )
        assert [type(outcome) for outcome in outcomes if outcome] == [TaskExists] * 19
        assert await store.get("wanted") == records[outcomes.index(None)]

    async def test_a_conflict_does_not_disturb_those_who_write_at_the_same_time(self, store: Store) -> None:
        taken = await store.create(make_record(), REQUEST)
        records = [make_record() for _ in range(30)]
        creators = [lambda record=record: store.create(record, REQUEST) for record in records]
        outcomes = await race(*(act for creator in creators for act in (lambda: store.create(taken, REQUEST), creator)))
        assert [type(outcome) for outcome in outcomes[::2]] == [TaskExists] * 30
        assert list(outcomes[1::2]) == [None] * 30
        assert [await store.get(record.id) for record in records] == records

    async def test_savers_that_try_again_lose_no_update(self, store: Store) -> None:
        record = await store.create(make_record(), REQUEST)

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
            record = await store.create(make_record(), REQUEST)
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
        record = await store.create(make_record(), REQUEST)
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
            record = await store.create(make_record(), REQUEST)
            assert await peer.get(record.id) == record
            await peer.save(replace(record, version=2), expected=1)
            assert await store.get(record.id) == replace(record, version=2)
            await store.delete(record.id, expected=2)
            assert await peer.get(record.id) is None

    async def test_a_process_that_closes_does_not_disturb_another(self, store: Store, peer: Store) -> None:
        if peer is store:
            pytest.skip("only one process can have this store")
        before, after = make_record(), make_record()
        await store.create(before, REQUEST)
        await peer.close()
        await store.create(after, REQUEST)
        assert await store.get(before.id) == before
        assert await store.get(after.id) == after


# ---- repeats

Lossy: TypeAlias = tuple[Store, Callable[[], None]]
"""A store, and what has it lose its next answer."""

PLENTY = Share(owner=100)


async def lost_and_repeated(lossy: Lossy, act: Callable[[], Awaitable[T]]) -> T:
    """The result of an act whose first answer is lost. A store may repeat it by itself."""
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
    @pytest.mark.parametrize("key", [None, "key"])
    async def test_a_task_is_made_once(self, lossy: Lossy, key: str | None) -> None:
        store, _ = lossy
        record = new()
        made = await lost_and_repeated(lossy, lambda: store.create(record, REQUEST, key=key))
        assert made == await store.get(record.id) == record

    async def test_a_creation_is_answered_with_the_task_as_it_is_by_then(self, store: Store) -> None:
        record = await store.create(new(), REQUEST)
        claimed = await store.save(following(record, new_write_id(run=True), worker="w", attempt=1), expected=1)
        assert await store.create(record, REQUEST) == claimed

    async def test_another_task_of_the_same_id_is_refused(self, store: Store) -> None:
        record = await store.create(new(), REQUEST)
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
        saved = await lost_and_repeated(lossy, lambda: store.save(ended, expected=1, entries=[ENTRY], outcome=OUTCOME))
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
        await store.heartbeat("w", namespace="", beats=1)
        await lost_and_repeated(lossy, lambda: store.heartbeat("w", namespace="", beats=2))
        assert await store.workers("") == {"w": 2}
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
