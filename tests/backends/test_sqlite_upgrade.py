"""Files of older releases become files of this one, with all that is in them.

`schema_1.sqlite` is one of the first release (0.1.0). The files were written by the releases themselves, at the commits
1acc012, aa51081, eb8c067 and 3f0e52d. A file of a new schema is written with `create`, `save`, `heartbeat`
and `set_note`.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.errors import KeySpent, LimitReached, StoreUnavailable, TaskUnreadable
from mcp_tasks.model import (
    InputBook,
    InputRequest,
    JournalEntry,
    JsonObject,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.model.json import encode_json
from mcp_tasks.stores.base import EVERYBODY, Backlog, ChildrenOf, InSession, Share, WorkLimits, owned_by
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.file import from_text
from mcp_tasks.stores.sqlite.schema import migrations, prepare
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON
from tests.backends.places import SqlitePlace

pytestmark = pytest.mark.anyio


Fields: TypeAlias = dict[str, Any]
"""A task by the names that its fields had in the release that wrote it."""

HOUR = timedelta(hours=1)

ODD: JsonObject = {
    "snow": "☃",
    "lone": "\ud800",
    "nul": "\0",
    "numbers": [2**70, 0.1, -0.0, 5e-324],
    "": [None, {"a": [[]]}],
}


@dataclass(frozen=True)
class OldFile:
    """One file: its tasks, their journals, and the notes of the server."""

    schema: int
    tasks: Sequence[Fields]
    journals: Mapping[str, Sequence[JournalEntry]]
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def path(self) -> Path:
        return Path(__file__).with_name(f"schema_{self.schema}.sqlite")


def task(*, request: TaskRequest | None = None, **fields: Any) -> Fields:
    """A task that is the same whoever makes it."""
    return {"request": request or TaskRequest(name="render", arguments={"scene": "forest"}), **fields}


SCHEMA_1 = OldFile(
    1,
    [
        task(id="queued", request=TaskRequest(name="render", arguments=ODD, meta=ODD, client_info=ODD)),
        task(id="held", holder="a process of yesterday", attempt=1, started_at=NOON, version=2),
        task(
            id="parked",
            request=TaskRequest(name="ask", arguments={}, input_responses={"q0": ODD}, request_state="state"),
            status=TaskStatus.INPUT_REQUIRED,
            inputs=InputBook(
                outstanding={"q2": InputRequest(method="elicitation/create", params={"message": "Publish?"})},
                used=frozenset({"q1", "q2"}),
            ),
            attempt=1,
            progress=Progress(progress=0.5, total=3, message="one of three"),
            version=5,
        ),
        task(id="asleep", wake_at=NOON + timedelta(days=1), attempt=1, version=4, owner=None),
        task(
            id="ended",
            status=TaskStatus.COMPLETED,
            result={"content": [], "structuredContent": ODD},
            finished_at=NOON + timedelta(hours=1),
            version=3,
        ),
        task(id="lone \ud800 surrogate", owner="lone \udfff surrogate", ttl=None),
    ],
    {
        "parked": [
            JournalEntry(kind="step", key="nothing", value=None),
            JournalEntry(kind="step", key="odd", value=ODD),
            JournalEntry(kind="step", key="looks like an outcome", value={"value": 1}),
            JournalEntry(kind="ask", key="q1", value={"message": "Sure?"}),
            JournalEntry(kind="answer", key="q1", value={"action": "accept"}),
        ],
        "asleep": [JournalEntry(kind="timer", key="nap", value="2026-01-02T12:00:00+00:00")],
        "lone \ud800 surrogate": [JournalEntry(kind="step", key="\ud800", value="\ud800")],
    },
)


ENDED: Fields = {"finished_at": NOON + HOUR, "attempt": 1, "version": 3, "namespace": "demo"}
SCHEMA_2 = OldFile(
    2,
    [
        task(id="queued", namespace="demo"),
        task(id="of another server", namespace="another", request=TaskRequest(name="other", arguments=ODD)),
        task(
            id="held",
            namespace="demo",
            request=TaskRequest(name="prompt", arguments={}, method="prompts/get"),
            holder="a process of yesterday",
            attempt=3,
            lost=2,
            trial="alone",
            version=2,
        ),
        task(
            id="parked",
            namespace="demo",
            status=TaskStatus.INPUT_REQUIRED,
            status_message="half way",
            inputs=InputBook(
                outstanding={
                    "q1": InputRequest(method="roots/list", params={}, deadline=NOON + timedelta(hours=2)),
                    "q2": InputRequest(method="elicitation/create", params=ODD),
                },
                used=frozenset({"q1", "q2"}),
            ),
            wake_at=NOON + timedelta(hours=2),
            poll_interval=timedelta(seconds=1.5),
            version=7,
        ),
        task(
            id="completed",
            status=TaskStatus.COMPLETED,
            result={"resultType": "complete", "content": [], "structuredContent": ODD, "_meta": {"trace": ODD}},
            **ENDED,
        ),
        task(id="completed without meta", status=TaskStatus.COMPLETED, result={"content": []}, ttl=None, **ENDED),
        task(
            id="failed",
            status=TaskStatus.FAILED,
            status_message="broken",
            error={"code": -32603, "message": "broken", "data": ODD},
            **ENDED,
        ),
        task(id="cancelled", status=TaskStatus.CANCELLED, status_message="not wanted", **ENDED),
        task(
            id="large",
            status=TaskStatus.COMPLETED,
            request=TaskRequest(name="render", arguments={"image": "x" * 70_000}),
            result={"content": [{"type": "text", "text": "y" * 70_000}]},
            **ENDED,
        ),
    ],
    {
        "parked": [
            JournalEntry(kind="step", key="done", value={"value": ODD}),
            JournalEntry(kind="ask", key="q1", value={"message": "Sure?"}),
            JournalEntry(kind="done", key="q1", value="question"),
        ],
        "completed": [JournalEntry(kind="step", key="\ud800", value={"value": "\ud800"})],
    },
)


# The last one without queues: tasks are handed to nobody, and at work for nobody's share. They may have sessions,
# parents, keys, and questions that the client holds; those of the second schema have the words of now.
RENAMED = {"holder": "worker", "ttl": "retention"}
HOSTED = InputRequest(method="sampling/createMessage", params=ODD, hosted_as="theirs")
AT_WORK: Fields = {"owner": "bob", "namespace": "demo", "worker": "a process of yesterday", "attempt": 1, "version": 2}
SCHEMA_5 = OldFile(
    5,
    [
        *({RENAMED.get(name, name): value for name, value in fields.items()} for fields in SCHEMA_2.tasks),
        task(id="under a key", namespace="demo", key="the key", announced=False),
        task(id="with a session", namespace="demo", session="s1", parent="under a key"),
        task(
            id="hosted",
            namespace="demo",
            status=TaskStatus.INPUT_REQUIRED,
            inputs=InputBook(outstanding={"q1": HOSTED}, used=frozenset({"q1"})),
            attempt=1,
            version=4,
        ),
        task(
            id="completed with an error",
            status=TaskStatus.COMPLETED,
            is_error=True,
            result={"content": [], "isError": True},
            key="a key of an ended task",
            **ENDED,
        ),
        task(id="queued again", namespace="demo", owner=None, attempt=1, version=4, updated_at=NOON + HOUR),
        task(id="at work for bob", **AT_WORK),
        task(id="asks in memory", status=TaskStatus.INPUT_REQUIRED, **AT_WORK),
    ],
    SCHEMA_2.journals,
    notes={"note": b"value", "\u2603": b"\0"},
)

# The last one that did not count what is kept of whom.
CAROL: Fields = {"namespace": "demo", "owner": "carol", "version": 1}
SCHEMA_7 = OldFile(
    7,
    [
        *SCHEMA_5.tasks,
        task(id="very large", request=TaskRequest(name="render", arguments={"text": "x" * 10_000}), **CAROL),
        task(id="very small", key="a key of now", **CAROL),
    ],
    SCHEMA_5.journals,
    notes=SCHEMA_5.notes,
)


# What becomes of them


TOMORROW = NOON + timedelta(days=1)
REQUEST = TaskRequest(name="render", arguments={})
FILES = pytest.mark.parametrize(
    "file", [SCHEMA_1, SCHEMA_2, SCHEMA_5, SCHEMA_7], ids=lambda file: f"schema {file.schema}"
)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SqlitePlace:
    """A copy of the file of a test's own `file`, or of its mark `of`."""
    file: OldFile = request.getfixturevalue("file") if "file" in request.fixturenames else request.param
    return SqlitePlace(Path(shutil.copy(file.path, tmp_path / "tasks.db")))


def of(file: OldFile) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", [file], indirect=True, ids=[f"schema {file.schema}"])


@asynccontextmanager
async def opened(place: SqlitePlace, namespace: str = "demo") -> AsyncGenerator[SqliteStore]:
    store = place.store()
    await store.open(namespace)
    try:
        yield store
    finally:
        await store.close()


def schema(place: SqlitePlace) -> list[Any]:
    statement = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    return [*place.run(statement), *place.run("PRAGMA user_version")]


def record_of(fields: Fields) -> TaskRecord:
    request: TaskRequest = fields["request"]
    kept = {RENAMED.get(name, name): value for name, value in fields.items()}
    for name in ("request", "result", "error", "key"):
        kept.pop(name, None)
    return make_record(**{"namespace": "demo", **kept, "method": request.method, "name": request.name})


def outcome_of(fields: Fields) -> Outcome | None:
    """What this release keeps of the result: nothing that belongs to an era, and `_meta` apart."""
    whole = fields.get("result", fields.get("error"))
    if whole is None:
        return None
    body = {name: value for name, value in whole.items() if name not in ("resultType", "_meta")}
    meta = whole.get("_meta")
    return Outcome(body=encode_json(body), meta=None if meta is None else encode_json(meta))


def steps_of(file: OldFile, task_id: str) -> list[JournalEntry]:
    """The journal as this release has it: the value of a step is one of its outcomes."""
    return [
        replace(entry, value={"value": entry.value}) if entry.kind == "step" and file.schema == 1 else entry
        for entry in file.journals.get(task_id, ())
    ]


async def journal(store: SqliteStore, task_id: str) -> list[JournalEntry]:
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


async def assert_complete(store: SqliteStore, file: OldFile, *, but: str | None = None) -> None:
    """Everything of the file is in the store, except for one task."""
    for fields in file.tasks:
        task_id = fields["id"]
        if task_id != but:
            assert await store.get(task_id) == record_of(fields)
            assert await store.request(task_id) == fields["request"]
            assert await store.outcome(task_id) == outcome_of(fields)
            assert await journal(store, task_id) == steps_of(file, task_id)


@FILES
async def test_everything_in_a_file_of_an_older_release_is_there(file: OldFile, place: SqlitePlace) -> None:
    async with opened(place) as store:
        await assert_complete(store, file)
    async with opened(place, "another") as store:
        await assert_complete(store, file)


@of(SCHEMA_1)
async def test_tasks_of_the_first_release_are_found_by_the_server_that_opens_the_file(place: SqlitePlace) -> None:
    async with opened(place) as store:
        assert list((await store.queued("demo", limit=9)).ids) == ["queued", "lone \ud800 surrogate"]
        assert list((await store.due("demo", TOMORROW, limit=9)).ids) == ["asleep"]
        assert list((await store.claimed("a process of yesterday", limit=9)).ids) == ["held"]
        assert [task.task_id for task in await store.forget_expired(TOMORROW, limit=9)] == ["ended"]
        # When it was last alive by a clock of then says nothing now.
        assert await store.workers("demo") == {"a process of yesterday": 0}
    async with opened(place, "another") as store:
        record = await store.get("queued")
        assert record is not None
        assert record.namespace == "demo", "they are given away once"
        assert list((await store.queued("another", limit=9)).ids) == []


@of(SCHEMA_2)
async def test_tasks_of_the_second_schema_are_found_where_they_were(place: SqlitePlace) -> None:
    async with opened(place, "yet another") as store:
        assert list((await store.queued("demo", limit=9)).ids) == ["queued"]
        assert list((await store.queued("another", limit=9)).ids) == ["of another server"]
        assert list((await store.due("demo", TOMORROW, limit=9)).ids) == ["parked"]
        assert list((await store.claimed("a process of yesterday", limit=9)).ids) == ["held"]
        assert await store.workers("demo") == {"a process of yesterday": 1}
        page = await store.list("demo", EVERYBODY, now=NOON)
        assert {record.id for record in page.records} == {
            fields["id"] for fields in SCHEMA_2.tasks if fields["namespace"] == "demo"
        }
        expired = {task.task_id for task in await store.forget_expired(TOMORROW, limit=9)}
        assert expired == {"completed", "failed", "cancelled", "large"}


@of(SCHEMA_1)
async def test_of_servers_that_open_the_file_at_the_same_time_one_gets_the_tasks(place: SqlitePlace) -> None:
    stores = [place.store() for _ in range(4)]
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(store.open, f"server {number}")
    found = [(await store.queued(f"server {number}", limit=9)).ids for number, store in enumerate(stores)]
    assert sorted(len(ids) for ids in found) == [0, 0, 0, 2]
    for store in stores:
        await store.close()


@of(SCHEMA_5)
async def test_tasks_of_the_fifth_schema_are_found_handed_out_and_counted(
    place: SqlitePlace,
) -> None:
    async with opened(place) as store:
        of_session = await store.list("demo", InSession("s1"), now=NOON)
        of_parent = await store.list("demo", ChildrenOf("under a key"), now=NOON)
        assert [record.id for record in (*of_session.records, *of_parent.records)] == ["with a session"] * 2
        running = await store.create(make_record(namespace="demo"), REQUEST, key="the key", key_until_end=True)
        assert running.id == "under a key"
        standing = await store.create(make_record(namespace="demo"), REQUEST, key="a key of an ended task")
        assert standing.id == "completed with an error"
        queued = ["queued", "queued again", "under a key", "with a session"]
        assert list((await store.queued("demo", handed_out=False, limit=9)).ids) == queued
        # Since when they wait, nobody has written down: since they were made, at the earliest.
        assert await store.backlog("demo", NOON) == {"default": Backlog(ready=4, since=NOON)}
        bob = make_record(namespace="demo", owner="bob")
        await store.create(bob, REQUEST)
        with pytest.raises(LimitReached):
            await store.save(replace(bob, version=2, worker="w"), expected=1, limits=WorkLimits(owner=2))
        # One does something, and one waits for an answer in the memory of its worker.
        with pytest.raises(LimitReached):
            await store.save(replace(bob, version=2, worker="w"), expected=1, limits=WorkLimits(tool=2))
        await store.save(replace(bob, version=2, worker="w"), expected=1, limits=WorkLimits(owner=3, tool=3))
        chosen = await store.hand_out("demo", Share(owner=9), limit=9)
        assert {ready.id for ready in chosen} == set(queued)
        assert {ready.name for ready in chosen} == {"render"}
        assert {name: await store.note("demo", name) for name in SCHEMA_5.notes} == SCHEMA_5.notes


@FILES
async def test_what_older_releases_kept_of_each_owner_is_counted(file: OldFile, place: SqlitePlace) -> None:
    parts = (("requests", "request"), ("outcomes", "body"), ("outcomes", "meta"), ("journal", "value"))
    async with opened(place) as store:
        kept: Counter[tuple[str, str | bytes | None]] = Counter()
        for table, column in parts:
            sql = f"SELECT t.namespace, t.owner, {column} FROM {table} JOIN tasks t ON t.key = task"
            for namespace, owner, data in place.run(sql):
                kept[namespace, owner] += len(data or b"")
        assert kept["demo", "alice"] > 0
        for (namespace, owner), size in kept.items():
            whose = owned_by(None if owner is None else from_text(owner))
            assert (await store.usage(namespace, whose)).stored_bytes == size
        # What was counted goes with what it was counted of.
        for task_id, version in place.run("SELECT id, version FROM tasks"):
            await store.delete(from_text(task_id), expected=version)
    assert place.run("SELECT count(*) FROM stored") == [(0,)]


@of(SCHEMA_7)
async def test_a_file_of_the_seventh_schema_counts_open_tasks_and_its_keys_do_not_outlive_their_tasks(
    place: SqlitePlace,
) -> None:
    async with opened(place) as store:
        usage = await store.usage("demo", owned_by("carol"))
        assert (usage.open_tasks, usage.stored_bytes > 10_000) == (2, True)
        await store.delete("very small", expected=1, now=NOON)
        again = make_record(namespace="demo", owner="carol")
        assert await store.create(again, REQUEST, key="a key of now", key_outlives=HOUR) == again
        await store.delete(again.id, expected=1, now=NOON)
        with pytest.raises(KeySpent):
            await store.create(make_record(namespace="demo", owner="carol"), REQUEST, key="a key of now")


@of(SCHEMA_5)
async def test_tasks_that_the_upgrade_cannot_read_are_counted_once_they_are_saved(place: SqlitePlace) -> None:
    # As with a cipher: what is encrypted says nothing to a migration.
    place.run("UPDATE tasks SET state = x'00' WHERE id = 'at work for bob'")
    async with opened(place) as store:
        wanted = make_record(namespace="demo")
        await store.create(wanted, REQUEST)
        claimed = replace(wanted, version=2, worker="w")
        fields = next(fields for fields in SCHEMA_5.tasks if fields["id"] == "at work for bob")
        await store.save(replace(record_of(fields), version=3), expected=2)
        with pytest.raises(LimitReached):
            await store.save(claimed, expected=1, limits=WorkLimits(tool=1))


@FILES
async def test_an_upgraded_file_goes_on_like_a_new_one(file: OldFile, place: SqlitePlace, tmp_path: Path) -> None:
    fresh = SqlitePlace(tmp_path / "new.db")
    async with opened(place) as store, opened(fresh):
        record = await store.get("held")
        assert record is not None
        entry = JournalEntry(kind="step", key="today", value={"value": 1})
        outcome = Outcome(body=b"{}", meta=b"{}")
        await store.save(replace(record, version=3, worker=None), expected=2, entries=[entry], outcome=outcome)
        await store.heartbeat("a process of today", namespace="demo")
        assert (await store.queued("demo", limit=9)).ids[:2] == ["held", "queued"]
        assert await journal(store, "held") == [entry]
        assert await store.outcome("held") == outcome
        workers = await store.workers("demo")
        assert workers["a process of today"] == 1
        new = make_record(namespace="demo")
        assert await store.create(new, REQUEST, key="key") == new
        for fields in file.tasks:
            current = await store.get(fields["id"])
            assert current is not None
            await store.delete(current.id, expected=current.version)
    assert schema(place) == schema(fresh)
    assert schema(place)[-1] == (len(migrations()),)
    # Nothing is left behind of what was deleted.
    assert place.run("SELECT count(*) FROM outcomes") == [(0,)]
    assert place.run("SELECT count(*) FROM journal") == [(0,)]
    assert place.run("PRAGMA integrity_check") == [("ok",)]


ROW = "WHERE task = (SELECT key FROM tasks WHERE id = 'completed')"


@pytest.mark.parametrize(
    ("task_id", "verb", "damage"),
    [
        ("completed", "get", "UPDATE tasks SET state = substr(state, 1, 40) WHERE id = 'completed'"),
        ("completed", "get", "UPDATE tasks SET state = CAST(x'7b22ff227d' AS TEXT) WHERE id = 'completed'"),
        ("completed", "get", "UPDATE tasks SET state = '{\"format\":99}' WHERE id = 'completed'"),
        ("completed", "get", f"DELETE FROM requests {ROW}"),
        ("completed", "get", f"UPDATE requests SET request = '{{' {ROW}"),
        ("parked", "journal", "UPDATE journal SET value = CAST(x'22ff22' AS TEXT) WHERE key = 'q1'"),
    ],
    ids=["cut short", "not UTF-8", "of a newer release", "request gone", "request not JSON", "journal"],
)
@of(SCHEMA_2)
async def test_one_damaged_part_costs_one_task_and_not_the_upgrade(
    place: SqlitePlace, task_id: str, verb: str, damage: str
) -> None:
    place.run(damage)
    async with opened(place) as store:
        with pytest.raises(TaskUnreadable, match=f"task {task_id} cannot be read") as unreadable:
            await getattr(store, verb)(task_id)
        assert unreadable.value.owner == "alice"
        await assert_complete(store, SCHEMA_2, but=task_id)
        await store.delete(task_id, expected=3 if task_id == "completed" else 7)


@of(SCHEMA_2)
async def test_a_result_that_is_not_an_object_is_no_outcome(place: SqlitePlace) -> None:
    state = json.loads(place.take("completed", "row"))
    place.put("completed", "row", json.dumps(state | {"result": "text"}))
    async with opened(place) as store:
        assert await store.outcome("completed") is None
        assert await store.get("completed") is not None


@of(SCHEMA_2)
async def test_an_upgrade_by_another_program_is_waited_for(
    place: SqlitePlace, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(place.path, busy_timeout=timedelta(milliseconds=10))
    with place.locked("BEGIN IMMEDIATE", wal=True) as other:
        async with anyio.create_task_group() as group:
            group.start_soon(store.open, "demo")
            await eventually(lambda: bool(caplog.messages))
            # Another one does not, and gives up.
            with anyio.move_on_after(0.3) as scope:
                await SqliteStore(place.path, busy_timeout=timedelta(milliseconds=10)).open("demo")
            assert scope.cancelled_caught
            other.execute("ROLLBACK")
    await store.close()
    assert {(record.levelname, record.getMessage()) for record in caplog.records} == {
        ("WARNING", f"{place.path} is being upgraded by another process; waiting for it, for up to 600 s")
    }


@of(SCHEMA_2)
def test_an_upgrade_that_takes_too_long_is_not_to_be_killed(place: SqlitePlace) -> None:
    with place.locked("BEGIN IMMEDIATE", wal=True), pytest.raises(StoreUnavailable) as refused:
        prepare(place.path, namespace="demo", patience=0.01, upgrade_patience=0.1)
    assert str(refused.value) == f"{place.path} is being upgraded by another process; wait for it, and start again."


@of(SCHEMA_1)
async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(place: SqlitePlace) -> None:
    # The last script finds it in its way, after all others have run.
    place.run("CREATE TABLE outcomes (in_the_way)")
    before = schema(place)
    with pytest.raises(StoreUnavailable, match="outcomes"):
        await place.store().open("demo")
    assert schema(place) == before
    place.run("DROP TABLE outcomes")
    async with opened(place) as store:
        await assert_complete(store, SCHEMA_1)
