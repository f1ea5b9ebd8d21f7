"""One bad row is one bad task: rows that were damaged in the file, beside others that were not."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.errors import StoreCorrupt, TaskUnreadable
from mcp_tasks.model import InputBook, InputRequest, JournalEntry, Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, Forgotten, OwnedBy, Share, Whose
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON

pytestmark = pytest.mark.anyio

BEFORE, BAD, AFTER = (
    make_record(
        id=name,
        owner="alice",
        namespace="demo",
        created_at=NOON + timedelta(seconds=number),
        progress=Progress(progress=1, total=2, message="half"),
        inputs=InputBook(outstanding={"q": InputRequest(method="roots/list", params={})}, used=frozenset({"q"})),
    )
    for number, name in enumerate(("before", "bad", "after"))
)
REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store with three tasks, each with a journal."""
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    for record in (BEFORE, BAD, AFTER):
        await store.create(record, REQUEST)
        await store.save(record, expected=1, entries=[STEP], outcome=OUTCOME)
    yield store
    await store.close()


def execute(store: SqliteStore, sql: str, *values: Any) -> None:
    """Change the file as somebody else would."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        assert connection.execute(sql, values).rowcount > 0


def change_state(store: SqliteStore, **changes: Any) -> None:
    """Write other values into the state of the bad task."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        ((state,),) = connection.execute("SELECT state FROM tasks WHERE id = 'bad'").fetchall()
    execute(store, "UPDATE tasks SET state = ? WHERE id = 'bad'", json.dumps(json.loads(state) | changes).encode())


async def listed(store: SqliteStore, whose: Whose = EVERYBODY) -> list[TaskRecord]:
    """The tasks that can be read."""
    return list((await store.list("demo", whose, now=NOON)).records)


async def steps_of(store: SqliteStore, task_id: str) -> list[JournalEntry]:
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


ROW = "WHERE task = (SELECT key FROM tasks WHERE id = 'bad')"

DAMAGES = {
    "cut short": "UPDATE tasks SET state = substr(state, 1, 40) WHERE id = 'bad'",
    "empty": "UPDATE tasks SET state = x'' WHERE id = 'bad'",
    "a number": "UPDATE tasks SET state = 7 WHERE id = 'bad'",
    "text": "UPDATE tasks SET state = CAST(state AS TEXT) WHERE id = 'bad'",
    "not UTF-8": "UPDATE tasks SET state = x'7b22ff227d' WHERE id = 'bad'",
    "text that is not UTF-8": "UPDATE tasks SET state = CAST(x'7b22ff227d' AS TEXT) WHERE id = 'bad'",
    "a list": "UPDATE tasks SET state = CAST('[]' AS BLOB) WHERE id = 'bad'",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_row_is_one_unreadable_task(store: SqliteStore, damage: str) -> None:
    execute(store, DAMAGES[damage])
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its row is damaged") as unreadable:
        await store.get("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    assert unreadable.value.__cause__ is not None
    assert [await store.get(record.id) for record in (BEFORE, AFTER)] == [BEFORE, AFTER]
    assert await listed(store, OwnedBy("alice")) == [BEFORE, AFTER]
    # What needs nothing of the damaged part goes on.
    assert await steps_of(store, "bad") == [STEP]
    assert await store.request("bad") == REQUEST
    assert await store.outcome("bad") == OUTCOME
    assert list((await store.queued("demo", limit=9)).ids) == ["before", "bad", "after"]
    assert await store.versions(["bad", "after"]) == {"bad": 1, "after": 1}
    await store.delete("bad", expected=1)
    assert await store.get("bad") is None


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_cannot_be_read_expires_like_any_other(store: SqliteStore, damage: str) -> None:
    over = {"status": TaskStatus.FAILED, "finished_at": NOON, "retention": timedelta(0)}
    for record in (BEFORE, BAD):
        await store.save(replace(record, version=2, **over), expected=1)
    execute(store, DAMAGES[damage])
    forgotten = await store.forget_expired(NOON, limit=9, records=True)
    assert list(forgotten) == [Forgotten("before", 2, replace(BEFORE, version=2, **over)), Forgotten("bad", 2)]
    assert await store.versions(["before", "bad", "after"]) == {"after": 1}
    assert await steps_of(store, "bad") == []


WRONG_FIELDS: Sequence[dict[str, Any]] = [
    {"status": "invented"},
    {"status": None},
    {"format": "2"},
    {"owner": 5},
    {"version": "1"},
    {"attempt": None},
    {"attempt": [1]},
    {"created": "yesterday"},
    {"created": 10**30},
    {"updated": 1.5},
    {"finished": {}},
    {"retention": "long"},
    {"retention": 10**30},
    {"name": None},
    {"method": 7},
    {"announced": "yes"},
    {"lost": "often"},
    {"message": ["text"]},
    {"worker": 7},
    {"progress": [1]},
    {"progress": ["half", None, None]},
    {"progress": [1, 2, 3]},
    {"inputs": []},
    {"inputs": {"open": {"q": "text"}, "used": []}},
    {"inputs": {"open": {"q": ["roots/list", []]}, "used": []}},
    {"inputs": {"open": {"q": ["roots/list", {}, "soon"]}, "used": []}},
]


@pytest.mark.parametrize("changes", WRONG_FIELDS, ids=str)
async def test_a_field_that_is_not_what_it_should_be_is_damage(store: SqliteStore, changes: dict[str, Any]) -> None:
    change_state(store, **changes)
    with pytest.raises(TaskUnreadable, match="its row is damaged") as unreadable:
        await store.get("bad")
    assert unreadable.value.owner == "alice"
    assert await listed(store) == [BEFORE, AFTER]


async def test_a_task_of_a_newer_release_says_so(store: SqliteStore) -> None:
    change_state(store, format=99, readable=99, status="a status of tomorrow")
    with pytest.raises(TaskUnreadable, match=r"format 99.*use the release that wrote it, or a newer one") as unreadable:
        await store.get("bad")
    assert unreadable.value.owner == "alice"
    page = await store.list("demo", EVERYBODY, now=NOON, status=TaskStatus.WORKING)
    assert list(page.records) == [BEFORE, AFTER]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"UPDATE journal SET value = x'7b' {ROW}", "its journal entry 'done' is damaged"),
        (f"UPDATE journal SET value = '{{' {ROW}", "its journal entry 'done' is damaged"),
        (f"UPDATE journal SET value = x'22ff22' {ROW}", "its journal entry 'done' is damaged"),
        (f"UPDATE journal SET value = CAST(x'22ff22' AS TEXT) {ROW}", "its journal entry 'done' is damaged"),
        (f"UPDATE journal SET kind = 'dream' {ROW}", "unknown kind 'dream'.*use the release that wrote it"),
        (f"UPDATE journal SET kind = x'ff' {ROW}", "unknown kind"),
    ],
)
async def test_a_damaged_journal_is_one_unreadable_journal(store: SqliteStore, statement: str, message: str) -> None:
    execute(store, statement)
    with pytest.raises(TaskUnreadable, match=message) as unreadable:
        await store.journal("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    # The task itself can be read, and so can all others with their journals.
    assert await store.get("bad") == BAD
    assert await steps_of(store, "after") == [STEP]


REQUEST_DAMAGES = {
    "cut short": f"UPDATE requests SET request = substr(request, 1, 40) {ROW}",
    "gone": f"DELETE FROM requests {ROW}",
    "text": f"UPDATE requests SET request = '{{}}' {ROW}",
    "of another shape": f"UPDATE requests SET request = CAST('{{\"name\":7}}' AS BLOB) {ROW}",
    "large and cut short": f"UPDATE requests SET request = CAST(printf('[%.*c', 1000000, 'x') AS BLOB) {ROW}",
}


@pytest.mark.parametrize("damage", REQUEST_DAMAGES)
async def test_a_damaged_request_costs_only_itself(store: SqliteStore, damage: str) -> None:
    execute(store, REQUEST_DAMAGES[damage])
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its request is damaged") as unreadable:
        await store.request("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    # Whoever only looks at the task sees it, and so it is with all other tasks.
    assert await store.get("bad") == BAD
    assert await listed(store) == [BEFORE, BAD, AFTER]
    assert await store.request("after") == REQUEST


async def test_an_outcome_that_is_not_bytes_costs_only_itself(store: SqliteStore) -> None:
    execute(store, f"UPDATE outcomes SET body = 'text' {ROW}")
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its outcome is damaged") as unreadable:
        await store.outcome("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    assert await store.get("bad") == BAD
    assert await store.outcome("after") == OUTCOME


async def test_what_stands_under_a_key_and_cannot_be_read_is_not_made_again(store: SqliteStore) -> None:
    await store.create(make_record(id="keyed"), REQUEST, key="key")
    execute(store, "UPDATE tasks SET state = x'7b' WHERE id = 'keyed'")
    with pytest.raises(TaskUnreadable, match="task keyed cannot be read"):
        await store.create(make_record(id="second"), REQUEST, key="key")
    assert await store.get("second") is None


@pytest.mark.parametrize("mark", [True, False])
async def test_what_cannot_be_read_is_not_handed_out_and_keeps_nothing_back(store: SqliteStore, mark: bool) -> None:
    execute(store, "UPDATE tasks SET state = x'7b' WHERE id = 'before'")
    execute(store, "UPDATE tasks SET id = x'ff00' WHERE id = 'bad'")
    # Two that stand before it in the line of their owner, who may have one task handed out.
    chosen = await store.hand_out("demo", Share(owner=1), mark=mark, limit=1)
    assert [ready.id for ready in chosen] == ["after"]
    assert (await store.backlog("demo", NOON))["default"].ready == 3


async def test_a_page_goes_on_after_tasks_that_cannot_be_read(store: SqliteStore) -> None:
    execute(store, "UPDATE tasks SET state = '{' WHERE id IN ('before', 'bad')")
    page = await store.list("demo", EVERYBODY, now=NOON, limit=1)
    seen = [list(page.records)]
    while page.cursor is not None:
        page = await store.list("demo", EVERYBODY, now=NOON, limit=1, cursor=page.cursor)
        seen.append(list(page.records))
    assert seen == [[], [], [AFTER]]


async def test_an_unreadable_task_is_logged_once_with_what_to_do(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    execute(store, "UPDATE tasks SET state = '{' WHERE id = 'bad'")
    with caplog.at_level(logging.ERROR, logger="mcp_tasks"):
        for _ in range(3):
            await listed(store)
    (logged,) = caplog.messages
    assert "task bad cannot be read" in logged
    assert str(store.path) in logged
    assert "DELETE FROM tasks WHERE id = 'bad'" in logged


async def test_memory_of_what_was_logged_is_bounded(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    records = [make_record(namespace="demo", created_at=NOON + timedelta(minutes=1)) for _ in range(1_100)]
    for record in records:
        await store.create(record, REQUEST)
    execute(store, "UPDATE tasks SET state = '{' WHERE created = (SELECT max(created) FROM tasks)")
    with caplog.at_level(logging.ERROR, logger="mcp_tasks"):
        await store.list("demo", EVERYBODY, now=NOON, limit=9_999)
        assert len(caplog.messages) == 1_100
        page = await store.list("demo", EVERYBODY, now=NOON, limit=9_999)
    assert list(page.records) == [BEFORE, BAD, AFTER]
    # Some were forgotten, and are logged again.
    assert len(caplog.messages) > 1_100


async def test_what_is_private_is_not_in_the_message(store: SqliteStore) -> None:
    execute(store, "UPDATE tasks SET state = CAST('{\"secret\":\"' || x'ff' AS BLOB) WHERE id = 'bad'")
    with pytest.raises(TaskUnreadable) as unreadable:
        await store.get("bad")
    assert "secret" not in str(unreadable.value)


async def test_an_id_that_is_not_text_stops_no_sweep(store: SqliteStore) -> None:
    execute(store, "UPDATE tasks SET id = x'ff00' WHERE id = 'bad'")
    found = await store.queued("demo", limit=9)
    assert {"before", "after"} < set(found.ids)
    # What it is called names no task.
    (other,) = set(found.ids) - {"before", "after"}
    assert await store.get(other) is None
    assert len(await listed(store)) == 3


async def test_a_damaged_page_is_a_damaged_store(store: SqliteStore) -> None:
    for number in range(50):
        await store.create(make_record(id=f"t{number}", namespace="demo", status_message="x" * 2_000), REQUEST)
    await store.close()
    content = store.path.read_bytes()
    page = content.index(b"x" * 1_000) // 4096 * 4096
    store.path.write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
    await store.open()
    with pytest.raises(StoreCorrupt, match=r"is damaged\. Restore a backup") as corrupt:
        await listed(store)
    assert not isinstance(corrupt.value, TaskUnreadable)


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("beside", [True, False])
async def test_a_damaged_page_keeps_no_other_task_from_expiring(
    store: SqliteStore, records: bool, beside: bool
) -> None:
    over: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": NOON, "retention": timedelta(0)}
    request = make_request(arguments={"text": "x" * 2_000}) if beside else REQUEST
    message = "" if beside else "x" * 2_000
    ids = [f"t{number:02}" for number in range(50)]
    for task_id in ids:
        await store.create(make_record(id=task_id, namespace="demo", status_message=message, **over), request)
    await store.close()
    content = store.path.read_bytes()
    page = content.rindex(b"x" * 1_000) // 4096 * 4096
    store.path.write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
    await store.open()
    gone = {task.task_id for task in await store.forget_expired(NOON, limit=100, records=records)}
    assert 40 <= len(gone) < 50
    # They are gone, and those that cannot be removed are told of, each time.
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await store.forget_expired(NOON, limit=100, records=records)
    assert (await store.versions(sorted(gone))) == {}
    for other in (BEFORE, BAD, AFTER):
        assert await store.versions([other.id])
    # Of what is left none is half removed.
    left = set(ids) - gone
    with closing(sqlite3.connect(store.path)) as connection:
        found = connection.execute("SELECT id FROM tasks INDEXED BY tasks_expires WHERE expires IS NOT NULL").fetchall()
    assert {row[0] for row in found} == left


async def test_a_readable_task_can_be_written_over_a_damaged_one(store: SqliteStore) -> None:
    execute(store, "UPDATE tasks SET state = '{' WHERE id = 'bad'")
    await store.save(replace(BAD, version=2), expected=1)
    assert await store.get("bad") == replace(BAD, version=2)
