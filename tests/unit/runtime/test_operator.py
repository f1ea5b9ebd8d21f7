"""An operator at the store: which tasks are found, and what may be done to them."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.errors import StoreError, StoreUnavailable, TaskUnreadable, UnknownTask, UsageError
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import TaskChange
from mcp_tasks.runtime import operator as filtering
from mcp_tasks.runtime.lease import NOTE, draining_workers
from mcp_tasks.runtime.operator import Operator, Wanted
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.losing import as_of_now
from tests.unit.running import HOUR, MeddledStore, at_once, launch, loop_time, running, until_final
from tests.unit.virtual_time import simulated, time_passes

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)


REQUEST = TaskRequest(name="render", arguments={"scene": "forest"})


def record(task_id: str, **fields: Any) -> TaskRecord:
    made = TaskRecord(id=task_id, owner="ann", name="render", created_at=NOW, updated_at=NOW, namespace="farm")
    return made.but(**fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def store(path: Path) -> SqliteStore:
    """A store that a server has made, and closed."""
    made = SqliteStore(path)
    await made.open()
    await made.close()
    return made


@pytest.fixture
async def operator(store: SqliteStore) -> AsyncIterator[Operator]:
    async with Operator(store, name="ops", clock=lambda: NOW).opened() as one:
        yield one


async def fill(operator: Operator, *records: TaskRecord) -> None:
    for each in records:
        await operator.store.create(each, REQUEST)
        if each.is_final:
            await operator.store.save(each, expected=each.version, outcome=Outcome(body=b"{}"))


async def listed(operator: Operator, wanted: Wanted, namespaces: Sequence[str] = ("farm",)) -> list[str]:
    found = await operator.list(namespaces, wanted)
    assert found.cursor is None
    return [each.id for each in found.records]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), "old bobs claimed ended failed nobodys raised"),
        (Wanted(status=TaskStatus.COMPLETED), "ended raised"),
        (Wanted(owner="bob"), "bobs"),
        (Wanted(owner=""), "nobodys"),
        (Wanted(session="s1"), "nobodys"),
        (Wanted(session="s1", owner="ann"), ""),
        (Wanted(queue="gpu"), "bobs"),
        (Wanted(tool="paint"), "claimed"),
        (Wanted(worker="w1"), "claimed"),
        (Wanted(before=NOW - timedelta(days=1)), "old"),
        (Wanted(errors=True), "failed raised"),
        (Wanted(errors=True, status=TaskStatus.COMPLETED), "raised"),
    ],
    ids=str,
)
async def test_tasks_are_found_by_what_they_are(operator: Operator, wanted: Wanted, found: str) -> None:
    old = NOW - timedelta(days=2)
    await fill(
        operator,
        record("old", created_at=old, updated_at=old),
        record("ended", status=TaskStatus.COMPLETED, finished_at=NOW),
        record("bobs", owner="bob", queue="gpu"),
        record("nobodys", owner=None, session="s1"),
        record("claimed", worker="w1", attempt=1, name="paint"),
        record("raised", status=TaskStatus.COMPLETED, finished_at=NOW, is_error=True),
        record("failed", status=TaskStatus.FAILED, finished_at=NOW),
    )
    assert await listed(operator, wanted) == found.split()
    await fill(operator, record("elsewhere", namespace="other", worker="w1", attempt=1))
    assert await operator.store.namespaces() == ["farm", "other"]
    everywhere = [*found.split(), *(["elsewhere"] if wanted in (Wanted(), Wanted(worker="w1")) else [])]
    assert await listed(operator, wanted, ["farm", "other"]) == everywhere


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_show_each_task_once_whatever_is_left_out(
    operator: Operator, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "LOOKED_AT_ONCE", 4)
    monkeypatch.setattr(filtering, "MOST_LOOKED_AT", 8)
    tasks = [
        record(f"{server}-{n:02}", namespace=server, queue="gpu" if n % 3 else "default")
        for server in ("a", "b")
        for n in range(20)
    ]
    await fill(operator, *tasks)
    seen: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        found = await operator.list(["b", "a"], Wanted(queue="gpu"), cursor=cursor, limit=limit)
        assert len(found.records) <= limit
        seen += [each.id for each in found.records]
        cursor, pages = found.cursor, pages + 1
        assert pages < 100
    assert seen == [each.id for each in tasks if each.queue == "gpu"]


@pytest.mark.parametrize("cursor", ["", "x", "bnVsbA", "WzEsMl0", "é"])
async def test_a_cursor_that_is_none_is_refused(operator: Operator, cursor: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        await operator.list(["farm"], Wanted(), cursor=cursor)


async def test_what_an_operator_does_is_seen_with_their_name(store: SqliteStore) -> None:
    changes: list[TaskChange] = []
    async with Operator(store, name="ops", observers=[changes.append], clock=lambda: NOW).opened() as operator:
        await fill(operator, record("one"))
        ended = await operator.cancel(await operator.find("one"), "Enough")
        await operator.run_again(ended)
        await operator.delete(ended)
    assert {change.actor for change in changes} == {operator.actor}
    assert (operator.actor.kind, operator.actor.name) == ("operator", "ops")
    assert [type(change.event).__name__ for change in changes] == ["TaskCancelled", "TaskCreated", "TaskDeleted"]


async def test_a_task_is_run_again_as_a_new_one_for_the_same_owner(operator: Operator) -> None:
    await fill(operator, record("one", retention=HOUR, queue="gpu", session="s"))
    ended = await operator.cancel(await operator.find("one"), "Enough")
    assert (ended.status, ended.status_message) == (TaskStatus.CANCELLED, "Enough")
    assert await operator.cancel(ended, "Again") == ended
    new = await operator.run_again(ended)
    assert await operator.run_again(ended) == new
    assert new == record("one", retention=HOUR, queue="gpu", session="s", id=new.id, rerun_of="one", writes=new.writes)
    assert await operator.store.request(new.id) == REQUEST
    with pytest.raises(UsageError, match="has not ended"):
        await operator.run_again(new)
    newest = await operator.run_again(await operator.cancel(new, "Enough"))
    assert newest.rerun_of == new.id


async def test_only_what_has_ended_is_deleted_as_it_is_by_now_and_not_run_again_after_that(operator: Operator) -> None:
    await fill(operator, record("one"))
    one = await operator.find("one")
    with pytest.raises(UsageError, match="has not ended"):
        await operator.delete(one)
    ended = await operator.cancel(one, "Enough")
    # It goes by what the task is now.
    await operator.delete(replace(ended, version=ended.version - 1))
    for act in (operator.look("one"), operator.find("one"), operator.run_again(ended)):
        with pytest.raises(UnknownTask):
            await act


async def test_a_key_of_a_client_does_not_pass_for_a_rerun(operator: Operator) -> None:
    await fill(operator, record("one", status=TaskStatus.FAILED, finished_at=NOW))
    await operator.store.create(record("planted"), REQUEST, key="mcp-tasks/rerun/one")
    with pytest.raises(UsageError, match="planted"):
        await operator.run_again(await operator.find("one"))


async def test_a_task_that_cannot_be_read_is_said_to_be_so_and_can_be_deleted(store: SqliteStore, path: Path) -> None:
    changes: list[TaskChange] = []
    async with Operator(store, name="ops", observers=[changes.append]).opened() as operator:
        await fill(operator, record("bad"), record("half", status=TaskStatus.COMPLETED, finished_at=NOW))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE tasks SET state = 'nonsense' WHERE id = 'bad'")
            connection.execute("UPDATE requests SET request = 'nonsense'")
            connection.commit()
        with pytest.raises(TaskUnreadable):
            await operator.find("bad")
        await operator.delete_unreadable("bad")
        with pytest.raises(UnknownTask):
            await operator.delete_unreadable("bad")
        half = await operator.look("half")
        assert (half.request, set(half.unreadable), half.outcome is None) == (None, {"request"}, False)
    assert changes == [], "of a task that cannot be read there is nothing to show"


async def test_workers_that_are_gone_are_not_kept_in_mind(operator: Operator) -> None:
    for name in ("w1", "w2"):
        await operator.store.heartbeat(name, namespace="farm", beats=1)
    first, second = await operator.workers(["farm"])
    await operator.drain(first)
    await operator.drain(second)
    assert set(await draining_workers(operator.store, "farm")) == {"w1", "w2"}
    await operator.store.retire("w1")
    await operator.undrain(first)
    assert dict(await draining_workers(operator.store, "farm")) == {"w2": "ops"}
    [left] = await operator.workers(["farm"])
    assert (left.name, left.draining, left.beats, left.claimed) == ("w2", "ops", 1, 0)


async def test_a_store_of_a_newer_release_is_neither_opened_nor_changed(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("UPDATE meta SET compatible_from = 99")
        connection.commit()
        with pytest.raises((UsageError, StoreError), match="this release knows up to"):
            async with Operator(store, name="ops").opened():
                raise AssertionError("it is not to be opened")
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)


async def test_where_no_server_has_kept_tasks_there_is_nothing_to_operate_on(path: Path) -> None:
    # The first look makes none either.
    for _ in range(2):
        with pytest.raises(UsageError, match="no server has kept tasks there yet"):
            async with Operator(SqliteStore(path), name="ops").opened():
                raise AssertionError("it was opened")


# Draining


@pytest.mark.parametrize(
    ("note", "drains"),
    [*((note, False) for note in (b"{", b"[]", b"7", b"\xff", b"")), (b'{"w1": {"by": "ops", "until": 7}}', True)],
)
async def test_a_damaged_note_of_who_drains_is_written_anew_and_one_of_a_newer_release_counts(
    operator: Operator, note: bytes, drains: bool
) -> None:
    await operator.store.heartbeat("w1", namespace="farm", beats=1)
    await operator.store.set_note("farm", NOTE, note, expected=None)
    [worker] = await operator.workers(["farm"])
    assert (worker.draining is not None) is drains
    await operator.drain(worker)
    assert [each.draining for each in await operator.workers(["farm"])] == ["ops"]


async def test_two_operators_at_once_are_both_heard() -> None:
    store = MeddledStore()
    for name in ("a", "b"):
        await store.heartbeat(name, namespace="", beats=1)

    async def by_another(*args: Any, **options: Any) -> None:
        store.before.clear()
        await store.set_note("", NOTE, b'{"b": "another"}', expected=None)

    store.before["set_note"] = by_another
    async with Operator(store, name="ops").opened() as operator:
        first, second = await operator.workers([""])
        await operator.drain(first)
        assert [each.draining for each in await operator.workers([""])] == ["ops", "another"]
        await operator.undrain(second)
        assert [each.draining for each in await operator.workers([""])] == ["ops", None]


@simulated
async def test_a_worker_that_drains_takes_nothing_until_it_is_told_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    store = MeddledStore()
    times: dict[str, Any] = {"lease_duration": timedelta(seconds=15), "monotonic": loop_time, "uptime": loop_time}
    async with running(at_once, store=store, **times) as runtime, Operator(store, name="ops").opened() as operator:
        [worker] = await operator.workers([""])
        await operator.drain(worker)
        await time_passes(60)
        task = await launch(runtime)
        for failure in (StoreUnavailable("the disk is full"), RuntimeError("a fault")):
            # A store that is away is reported by whoever needs it; a fault is not.
            store.refuse(failure, "note", times=1)
            await time_passes(60)
        assert (await as_of_now(runtime, task)).attempt == 0
        await operator.undrain(worker)
        await time_passes(60)
        assert (await until_final(runtime, task)).result == {"value": "ok"}
    said = [entry.levelname for entry in caplog.records if "to drain could not be looked up" in entry.message]
    assert said == ["ERROR"]
