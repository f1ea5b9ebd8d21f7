"""What the queries of the SQLite store look at: as much as they give, and nothing beside a task's row."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks.model import JournalEntry, Outcome, TaskStatus
from mcp_tasks.stores import Hint
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, ChildrenOf, InSession, OwnedBy, Owners, Whose
from mcp_tasks.stores.sqlite import SqliteStore, operations, queries
from mcp_tasks.stores.sqlite import file as reader
from mcp_tasks.stores.sqlite import operations as expiring
from mcp_tasks.stores.sqlite import operations as waiting
from mcp_tasks.stores.sqlite.file import Values, fetch
from mcp_tasks.testing import make_record, make_request

REQUEST = make_request()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


def execute(store: SqliteStore, sql: str) -> None:
    """Change the file as somebody else would."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute(sql)


QUERIES: dict[str, queries.Query] = {
    "get": (queries.GET, ("x",)),
    "request": (queries.REQUEST, {"id": "x", "limit": 1}),
    "outcome": (queries.OUTCOME, {"id": "x", "limit": 1}),
    "journal": (queries.JOURNAL, {"id": "x", "after": 3, "limit": 1}),
    "note": (queries.NOTE, ("x", "y")),
    "version": (queries.VERSION, ("x",)),
    "versions": next(queries.versions(["x", "y"])),
}


def plan_of(store: SqliteStore, query: queries.Query) -> list[str]:
    """How SQLite goes about it."""
    sql, values = query
    with closing(sqlite3.connect(store.path)) as connection:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.anyio
@pytest.mark.parametrize("name", QUERIES)
async def test_no_query_looks_at_all_tasks(store: SqliteStore, name: str) -> None:
    tables = [step for step in plan_of(store, QUERIES[name]) if step.startswith("SCAN")]
    # The size of a journal is one row, made by the query itself.
    assert tables in ([], ["SCAN s"])


LISTINGS: dict[str, tuple[Whose, TaskStatus | None, str]] = {
    "everybody's": (EVERYBODY, None, "tasks_created (namespace=? AND"),
    "everybody's in a status": (EVERYBODY, TaskStatus.FAILED, "tasks_status (namespace=? AND status=? AND"),
    "an owner's": (OwnedBy("x"), None, "tasks_owner (namespace=? AND owner=? AND"),
    "unowned": (UNOWNED, None, "tasks_owner (namespace=? AND owner=? AND"),
    "an owner's in a status": (
        OwnedBy("x"),
        TaskStatus.FAILED,
        "tasks_owner_status (namespace=? AND owner=? AND status=? AND",
    ),
    "a session's": (InSession("x"), None, "tasks_session (namespace=? AND session=? AND"),
    "a session's in a status": (InSession("x"), TaskStatus.FAILED, "tasks_session (namespace=? AND session=? AND"),
    "a task's children": (ChildrenOf("x"), None, "tasks_parent (namespace=? AND parent=? AND"),
    "unowned in a status": (
        UNOWNED,
        TaskStatus.FAILED,
        "tasks_owner_status (namespace=? AND owner=? AND status=? AND",
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("name", LISTINGS)
async def test_a_listing_looks_only_at_what_is_on_its_page(store: SqliteStore, name: str, newest_first: bool) -> None:
    whose, status, index = LISTINGS[name]
    steps = plan_of(
        store,
        queries.listing("x", whose, now=NOW, status=status, cursor="1.x", limit=1, newest_first=newest_first),
    )
    # Found by all that is asked for, from where the last page ended, and in order: nothing is sorted, or kept.
    by = f"INDEX {index} (created,id){'<' if newest_first else '>'}(?,?))"
    page, end = steps[: steps.index("UNION ALL")], steps[steps.index("UNION ALL") :]
    assert [step for step in page if "tasks" in step] == [f"SEARCH tasks USING {by}"]
    # The end of what was looked at is found in the index alone.
    assert [step for step in end if "tasks" in step] == [f"SEARCH tasks USING COVERING {by}"]
    assert not [step for step in steps if "TEMP" in step]


@pytest.mark.anyio
async def test_what_is_deleted_while_a_listing_reads_hides_no_other_task(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = make_record(status=TaskStatus.COMPLETED, finished_at=NOW, retention=timedelta(0))
    ids = [f"t{number:05}" for number in range(queries.LOOKS + 50)]
    living = [replace(over, id=f"u{number}", retention=None, version=1) for number in range(3)]
    records = [*(replace(over, id=task_id) for task_id in ids), *living]
    await asyncio.gather(*(store.create(record, REQUEST) for record in records))
    # Many behind them, so that another look from the start ends beyond those that live.
    behind = [replace(over, id=f"v{number:05}") for number in range(queries.LOOKS)]
    await asyncio.gather(*(store.create(record, REQUEST) for record in behind))

    def fetch_and_delete(connection: sqlite3.Connection, sql: str, values: Values) -> list[Any]:
        rows = fetch(connection, sql, values)
        execute(store, "DELETE FROM tasks WHERE id LIKE 't%'")
        return rows

    monkeypatch.setattr(reader, "fetch", fetch_and_delete)
    page = await store.list("", EVERYBODY, now=NOW, limit=5)
    found = list(page.records)
    while page.cursor is not None:
        page = await store.list("", EVERYBODY, now=NOW, limit=5, cursor=page.cursor)
        found += page.records
    assert found == living


@pytest.mark.anyio
async def test_a_listing_that_passes_over_many_gives_a_short_page_and_goes_on_behind_them(store: SqliteStore) -> None:
    over = make_record(status=TaskStatus.COMPLETED, finished_at=NOW, retention=timedelta(0), session="s", owner="a")
    ids = [f"t{number:05}" for number in range(queries.LOOKS * 2)]
    last = replace(over, id="u", retention=None, version=1)
    await asyncio.gather(*(store.create(replace(over, id=task_id), REQUEST) for task_id in ids))
    await store.create(last, REQUEST)
    for whose in (EVERYBODY, OwnedBy("a"), InSession("s")):
        pages = [await store.list("", whose, now=NOW, limit=5)]
        while pages[-1].cursor is not None:
            pages.append(await store.list("", whose, now=NOW, limit=5, cursor=pages[-1].cursor))
        assert [list(page.records) for page in pages] == [[], [last]]


@pytest.mark.anyio
async def test_polls_listings_sweeps_and_listeners_never_touch_what_is_beside_a_task(store: SqliteStore) -> None:
    record = make_record(worker="worker", namespace="demo")
    await store.create(record, REQUEST, key="key")
    for table in ("requests", "outcomes", "journal"):
        execute(store, f"DROP TABLE {table}")
    # All of this still works, so none of it looked there.
    assert await store.get(record.id) == record
    for whose in (EVERYBODY, UNOWNED, OwnedBy("alice"), InSession("s"), ChildrenOf("p")):
        for status in (None, *TaskStatus):
            await store.list("demo", whose, now=NOW, status=status)
    assert list((await store.claimed("worker", limit=9)).ids) == [record.id]
    assert list((await store.queued("demo", limit=9)).ids) == []
    assert list((await store.due("demo", NOW, limit=9)).ids) == []
    assert await store.versions([record.id]) == {record.id: 1}
    assert await store.workers("demo") == {"worker": 0}
    assert (await store.usage("demo", OwnedBy("alice"))).open_tasks == 1
    await store.save(replace(record, version=2), expected=1)
    assert await store.create(make_record(namespace="demo"), REQUEST, key="key") == replace(record, version=2)
    async with store.notifier().listen() as hints:
        execute(store, "UPDATE tasks SET version = 3, seq = 99")
        with anyio.fail_after(5):
            assert await anext(hints) == Hint(record.id, 3)


SWEEPS: dict[str, tuple[queries.Query, str]] = {
    "handed out": (queries.queued("x", handed_out=True, cursor="1.x", limit=1), "tasks_queued"),
    "not handed out": (queries.queued("x", handed_out=False, cursor="1.x", limit=1), "tasks_queued"),
    "due": (queries.due("x", NOW, cursor="1.x", limit=1), "tasks_due"),
    "claimed": (queries.claimed("x", cursor="1.x", limit=1), "tasks_claimed"),
    "any expired": (expiring.any_expired(NOW), "tasks_expires"),
    "expired": (expiring.keys(NOW, limit=1), "tasks_expires"),
    "any key that is over": (expiring.any_key_over(NOW), "spent_keys_until"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", SWEEPS)
async def test_a_sweep_reads_its_index_in_order_and_no_row(store: SqliteStore, name: str) -> None:
    query, index = SWEEPS[name]
    # One step: no row is fetched, and nothing is sorted, so what is not asked for is not looked at.
    (step,) = plan_of(store, query)
    assert re.match(rf"SEARCH (tasks|t|spent_keys) USING COVERING INDEX {index} \(", step)


@pytest.mark.anyio
async def test_workers_are_read_from_the_heartbeats_and_the_index_of_claimed_tasks(store: SqliteStore) -> None:
    plan = plan_of(store, (queries.WORKERS, {"namespace": "x"}))
    # To the first worker, from each to the next, and whether each has a task here.
    searches = [step for step in plan if "tasks" in step]
    assert [step.split("tasks_claimed ")[1] for step in searches] == ["(worker>?)", "(worker>?)", "(worker=?)"]
    # Newer versions of SQLite say of the last that one row is enough.
    assert all(re.match("SEARCH tasks (EXISTS )?USING COVERING INDEX", step) for step in searches)
    assert [step for step in plan if "TEMP" in step] == []


@pytest.mark.anyio
async def test_what_is_queued_is_merged_from_two_parts_of_its_index(store: SqliteStore) -> None:
    merging, *steps = plan_of(store, queries.queued("x", cursor="1.x", limit=1))
    step = "SEARCH tasks USING COVERING INDEX tasks_queued (namespace=? AND hand=? AND (created,id)>(?,?))"
    assert (merging, steps) == ("MERGE (UNION ALL)", ["LEFT", step, "RIGHT", step])


@pytest.mark.anyio
@pytest.mark.parametrize("name", waiting.QUERIES)
async def test_a_choice_goes_through_its_index_by_seeks(store: SqliteStore, name: str) -> None:
    sql = waiting.QUERIES[name]
    steps = [step for step in plan_of(store, (sql, ["1"] * sql.count("?"))) if not step.startswith("CO-ROUTINE")]
    # A count has the rows that it counts as another step.
    (step,) = [step for step in steps if not step.startswith("SCAN (subquery")]
    # Nothing is sorted, and no row is fetched but that of a task which is chosen.
    assert step.startswith("SEARCH tasks USING COVERING INDEX tasks_" if name != "task" else "SEARCH tasks USING INDEX")
    # Each goes right to where it is to look.
    asked = sql.split("WHERE")[1].split("ORDER")[0]
    assert step.count("?") >= asked.count("?") - asked.count("LIMIT ?")


@pytest.mark.anyio
async def test_a_backlog_is_read_from_its_index(store: SqliteStore) -> None:
    searches = [step for step in plan_of(store, queries.backlog("x", NOW)) if "tasks" in step]
    assert len(searches) == 5
    assert all(step.startswith("SEARCH tasks USING COVERING INDEX tasks_backlog (namespace=?") for step in searches)


@pytest.mark.anyio
@pytest.mark.parametrize("whose", [OwnedBy("x"), UNOWNED, EVERYBODY])
async def test_usage_is_counted_in_an_index_and_read_from_one_row(store: SqliteStore, whose: Owners) -> None:
    steps = [step for step in plan_of(store, queries.usage("x", whose)) if step.startswith(("SEARCH", "SCAN"))]
    index = "tasks_status (namespace=?" if whose is EVERYBODY else "tasks_owner_status (namespace=? AND owner=?"
    assert f"SEARCH tasks USING COVERING INDEX {index} AND status=?)" in steps
    steps = [step for step in steps if "tasks" not in step and not step.startswith("SCAN (subquery")]
    kept = [] if whose is EVERYBODY else ["SEARCH stored USING PRIMARY KEY (namespace=? AND owner=?)"]
    assert steps == kept


@pytest.mark.anyio
@pytest.mark.parametrize("sql", [operations.SPENT, operations.FREE_SPENT, operations.SPEND, expiring.FORGET_KEYS])
async def test_spent_keys_are_found_by_seeks(store: SqliteStore, sql: str) -> None:
    plan = plan_of(store, (sql, (1,) * sql.count("?")))
    assert [step for step in plan if step.startswith("SCAN") or "TEMP" in step] == []
    assert [step for step in plan if step.startswith("SEARCH spent_keys")]


@pytest.mark.anyio
async def test_keys_that_are_over_are_forgotten_some_at_a_time(store: SqliteStore) -> None:
    values = ", ".join(f"('{number}', '', 0, {number})" for number in range(2 * expiring.KEYS_AT_ONCE + 5))
    execute(store, f"INSERT INTO spent_keys VALUES {values}")
    left: list[int] = []
    for _ in range(3):
        assert list(await store.forget_expired(NOW, limit=1)) == []
        with closing(sqlite3.connect(store.path)) as connection:
            left += connection.execute("SELECT count(*) FROM spent_keys").fetchone()
    assert left == [expiring.KEYS_AT_ONCE + 5, 5, 0]


@pytest.mark.anyio
async def test_what_another_program_does_to_what_is_kept_is_counted_too(store: SqliteStore) -> None:
    record = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOW)
    await store.create(record, REQUEST, outcome=Outcome(body=b"{}", meta=b"{}"))
    entry = JournalEntry(kind="step", key="one", value={"value": 1})
    await store.save(replace(record, version=2), expected=1, entries=[entry])
    # As when all of it is encrypted with another key, or a release writes that does not know of counting.
    for change in (
        "requests SET request = x'01'",
        "outcomes SET body = x'0102', meta = NULL",
        "journal SET value = x'01'",
    ):
        execute(store, f"UPDATE {change}")
    assert (await store.usage("", OwnedBy("alice"))).stored_bytes == 4
    execute(store, "UPDATE outcomes SET meta = zeroblob(1000)")
    assert (await store.usage("", OwnedBy("alice"))).stored_bytes == 1004
    execute(store, "DELETE FROM tasks")
    assert (await store.usage("", OwnedBy("alice"))).stored_bytes == 0
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("SELECT count(*) FROM stored").fetchone() == (0,)


@pytest.mark.anyio
@pytest.mark.parametrize("sql", [expiring.IDS, expiring.STATES, expiring.DELETE])
async def test_what_has_expired_is_found_and_removed_by_seeks(store: SqliteStore, sql: str) -> None:
    plan = plan_of(store, (sql, (1, 1)))
    assert [step for step in plan if step.startswith("SCAN") or "TEMP" in step] == []
    assert [step for step in plan if "tasks_expires (expires<?)" in step]
