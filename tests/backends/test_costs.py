"""No verb of a store in a database takes longer because many tasks are stored: what it looks at is counted.

In a file these are the steps of SQLite's virtual machine, in Postgres the pages that a statement touches. Each verb is
measured twice: with few tasks, and with thousands that have ended, or belong to another server.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from harness.stored import opened
from mcp_tasks.errors import LimitReached
from mcp_tasks.model import JournalEntry, Outcome, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import (
    EVERYBODY,
    UNOWNED,
    ChildrenOf,
    Handing,
    InSession,
    OwnedBy,
    Share,
    Whose,
    WorkLimits,
    full_page,
)
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.places import Place, PostgresPlace, SqlitePlace

REQUEST = make_request()
SHARE = Share(owner=20, tools={"render": 99}, owner_at_work=99)
FIELDS: dict[str, dict[str, Any]] = {
    "ended": {"status": TaskStatus.COMPLETED, "finished_at": NOON, "session": "s", "parent": "p"},
    "queued": {},
    "handed": {},
    "claimed": {"worker": "w", "attempt": 1},
    "asleep": {"wake_at": NOON},
}
"""How the tasks stand that there are."""

SERVERS = ("demo", "another")


async def fill(store: Store, place: Place, *, each: int, many: int) -> None:
    """So many tasks of each kind; of this server many that have ended, of another one many of every kind."""
    assert isinstance(place, SqlitePlace | PostgresPlace)
    await store.heartbeat("w", namespace="demo", beats=1)
    for server in SERVERS:
        for kind, fields in FIELDS.items():
            first = make_record(id=f"{server} {kind}", namespace=server, **fields)
            handing = Handing(share=Share(owner=9_999)) if kind == "handed" else None
            await store.create(first, REQUEST, handing=handing)
            count = many if kind == "ended" or server == "another" else each
            copy(place, first.id, count)


def copy(place: SqlitePlace | PostgresPlace, task_id: str, count: int) -> None:
    """Rows like that of the task, as if so many had been created one after another."""
    table = f"{place.prefix}tasks"
    info = "SELECT name FROM pragma_table_info('tasks')"
    if place.name == "postgres":
        info = f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
    names: list[str] = [name for (name,) in place.run(info) if name != "key"]
    changes = {"id": "id || ' ' || n", "created": "created + n"}
    place.run(
        f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
        f"INSERT INTO {table} ({', '.join(names)}) "
        f"SELECT {', '.join(changes.get(name, name) for name in names)} FROM {table}, c WHERE id = {place.mark}",
        task_id,
    )


def verbs(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every verb there is, on what `fill` has made."""
    one, claimed = "demo queued 7", make_record(id="demo queued 8", namespace="demo", version=2, worker="w", attempt=1)
    limits = WorkLimits(tool=10, owner=10)
    demo = partial(make_record, namespace="demo")
    found: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: store.get(one),
        "request": lambda: store.request("demo queued"),
        "outcome": lambda: store.outcome("demo ended"),
        "journal": lambda: store.journal(one, after=3),
        "note": lambda: store.note("demo", "note"),
        "versions": lambda: store.versions([one, "demo handed 2"]),
        "workers": lambda: store.workers("demo"),
        "backlog": lambda: store.backlog("demo", NOON),
        "due": lambda: store.due("demo", NOON, limit=10),
        "claimed": lambda: store.claimed("w", limit=10),
        "nothing to forget": lambda: store.forget_expired(NOON, limit=10),
        "forget": lambda: store.forget_expired(NOON + timedelta(days=1), limit=10),
        "hand out": lambda: store.hand_out("demo", SHARE, mark=False, limit=10),
        "create": lambda: store.create(demo(), REQUEST, handing=Handing(share=SHARE)),
        "create under a key": lambda: store.create(demo(), REQUEST, key="key", key_outlives=timedelta(days=1)),
        "create again": lambda: store.create(demo(), REQUEST, key="key"),
        "save": lambda: store.save(replace(claimed, version=3), expected=1, entries=[], outcome=Outcome(body=b"1")),
        "delete": lambda: store.delete("demo queued 9", expected=1),
        "heartbeat": lambda: store.heartbeat("w", namespace="demo", beats=1),
    }

    async def claim() -> None:
        with pytest.raises(LimitReached):
            await store.save(replace(claimed, id="demo queued 10"), expected=1, limits=limits)

    found["claim within limits"] = claim
    for handed in (None, True, False):
        found[f"queued, handed out: {handed}"] = partial(store.queued, "demo", handed_out=handed, limit=10)
    for whose in (EVERYBODY, OwnedBy("alice"), UNOWNED):
        found[f"usage of {whose}"] = partial(store.usage, "demo", whose)
    everything: tuple[Whose, ...] = (EVERYBODY, OwnedBy("alice"), UNOWNED, InSession("s"), ChildrenOf("p"))
    for whose in everything:
        # Of a session or a parent, only all tasks have an index.
        of_status = () if isinstance(whose, InSession | ChildrenOf) else (TaskStatus.COMPLETED, TaskStatus.WORKING)
        for status in (None, *of_status):
            for newest_first in (False, True):
                options = {"now": NOON, "status": status, "limit": 10, "newest_first": newest_first}
                found[f"{whose} {options}"] = partial(store.list, "demo", whose, **options)
    return found


Counter = Callable[[], int]


async def measured(store: Store, count: Counter) -> dict[str, int]:
    costs: dict[str, int] = {}
    for name, verb in verbs(store).items():
        before = count()
        await verb()
        costs[name] = count() - before
    return costs


def grown(few: dict[str, int], many: dict[str, int], *, room: int) -> dict[str, tuple[int, int]]:
    return {name: (cost, many[name]) for name, cost in few.items() if many[name] > 2 * cost + room}


@contextmanager
def steps_of_sqlite(monkeypatch: pytest.MonkeyPatch) -> Generator[Counter]:
    """The steps that all connections have made which are opened while this is entered."""
    steps = 0
    connect = sqlite3.connect

    def count() -> None:
        nonlocal steps
        steps += 1

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.set_progress_handler(count, 1)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        yield lambda: steps


async def test_no_verb_takes_more_steps_in_a_larger_file(sqlite: SqlitePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[dict[str, int]] = []
    for many in (100, 3_000):
        place = SqlitePlace(sqlite.path.with_name(f"{many}.db"))
        async with opened(place.store()) as store:
            await fill(store, place, each=30, many=many)
        with steps_of_sqlite(monkeypatch) as count:
            async with opened(place.store()) as store:
                costs.append(await measured(store, count))
    assert grown(*costs, room=300) == {}


@contextmanager
def pages_of_postgres(monkeypatch: pytest.MonkeyPatch) -> Generator[Counter]:
    """The pages that all statements touch which are executed while this is entered: each is tried before it counts."""
    pages = 0
    execute = psycopg.AsyncConnection.execute

    async def explained(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        nonlocal pages
        if any(verb in query[:12].upper() for verb in (b"SELECT", b"WITH", b"INSERT", b"UPDATE", b"DELETE")):
            alone = self.info.transaction_status == TransactionStatus.IDLE
            await execute(self, b"BEGIN" if alone else b"SAVEPOINT before")
            [(plan,)] = await (
                await execute(self, b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, params)
            ).fetchall()
            await execute(self, b"ROLLBACK" if alone else b"ROLLBACK TO before")
            pages += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        return await execute(self, query, params, **options)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.AsyncConnection, "execute", explained)
        yield lambda: pages


async def costs_in_postgres(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    with pages_of_postgres(monkeypatch) as count:
        async with opened(place.store()) as store:
            # Connections set themselves up, and look at the catalogue.
            await store.versions([])
            return await measured(store, count)


async def filled(place: PostgresPlace, **numbers: int) -> None:
    place.run("TRUNCATE mcp_tasks_tasks, mcp_tasks_spent_keys")
    async with opened(place.store()) as store:
        await fill(store, place, **numbers)


async def test_no_verb_touches_more_pages_in_a_larger_database_whatever_its_statistics_say(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgres_place
    await filled(place, each=30, many=100)
    few = await costs_in_postgres(place, monkeypatch)
    # What is kept of an owner is added up.
    del few[f"usage of {OwnedBy('alice')}"]
    for moment in ("nothing", "queued", "ended"):
        # What was in the tables at some moment in the past is all that is known of them.
        await filled(place, each=1_000, many=1_000)
        which = "true" if moment == "nothing" else f"id NOT LIKE '%% {moment} %%'"
        place.run(f"DELETE FROM mcp_tasks_tasks WHERE {which}")
        place.run("VACUUM ANALYZE mcp_tasks_tasks")
        await filled(place, each=30, many=6_000)
        many = await costs_in_postgres(place, monkeypatch)
        assert grown(few, many, room=60) == {}, moment


# What a listing passes over


@pytest.fixture
async def store(sqlite: SqlitePlace) -> AsyncIterator[Store]:
    async with opened(sqlite.store()) as store:
        yield store


@pytest.mark.parametrize("whose", [EVERYBODY, OwnedBy("alice"), InSession("s")], ids=repr)
async def test_a_page_is_short_where_much_is_passed_over_and_a_full_one_is_filled_from_behind_it(
    store: Store, sqlite: SqlitePlace, whose: Whose
) -> None:
    over: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": NOON, "retention": timedelta(0)}
    await store.create(make_record(id="over", session="s", **over), REQUEST)
    # More than a store passes over in two looks.
    copy(sqlite, "over", 2_100)
    living = [make_record(id=f"living {number}", session="s", created_at=NOON + timedelta(days=1)) for number in (1, 2)]
    for record in living:
        await store.create(record, REQUEST)
    page, found = await store.list("", whose, now=NOON, limit=5), list[Any]()
    assert not page.records
    while page.cursor is not None:
        page = await store.list("", whose, now=NOON, limit=5, cursor=page.cursor)
        found += page.records
    assert found == living
    # Others have the event loop meanwhile.
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another")
    full = await full_page(store, "", whose, now=NOON, limit=5)
    assert (list(full.records), full.cursor, turns) == (living, None, ["another"])
    first = await full_page(store, "", whose, now=NOON, limit=1)
    rest = await full_page(store, "", whose, now=NOON, limit=1, cursor=first.cursor)
    assert [*first.records, *rest.records, rest.cursor] == [*living, None]


async def test_what_another_program_does_to_what_is_kept_is_counted_too(store: Store, sqlite: SqlitePlace) -> None:
    async def stored() -> int:
        return (await store.usage("", OwnedBy("alice"))).stored_bytes

    record = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOON)
    await store.create(record, REQUEST)
    entry, outcome = JournalEntry(kind="step", key="one", value={"value": 1}), Outcome(body=b"{}", meta=b"{}")
    await store.save(replace(record, version=2), expected=1, entries=[entry], outcome=outcome)
    # As when all of it is encrypted with another key, or a release writes that does not know of counting.
    sqlite.run("UPDATE requests SET request = x'01'")
    sqlite.run("UPDATE outcomes SET body = x'0102', meta = NULL")
    sqlite.run("UPDATE journal SET value = x'01'")
    assert await stored() == 4
    sqlite.run("UPDATE outcomes SET meta = zeroblob(1000)")
    assert await stored() == 1004
    sqlite.run("DELETE FROM tasks")
    assert await stored() == 0
    assert sqlite.run("SELECT count(*) FROM stored") == [(0,)]


async def test_keys_that_are_over_are_forgotten_some_at_a_time(store: Store, sqlite: SqlitePlace) -> None:
    counting = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 405)"
    sqlite.run(f"{counting} INSERT INTO spent_keys SELECT n, '', 0, n FROM c")
    left: list[int] = []
    for _ in range(3):
        assert list(await store.forget_expired(NOON, limit=1)) == []
        left += sqlite.run("SELECT count(*) FROM spent_keys")[0]
    assert left == [205, 5, 0]


# Who has a turn


async def test_of_more_owners_than_one_look_sees_each_has_its_turn(postgres_place: PostgresPlace) -> None:
    owners = 2_100
    async with opened(postgres_place.store()) as store:
        await store.create(make_record(id="task", namespace="demo"), REQUEST)
        copy(postgres_place, "task", owners - 1)
        postgres_place.run("UPDATE mcp_tasks_tasks SET owner = 'owner ' || id")
        served: set[str | None] = set()
        for _ in range(20):
            found = await store.hand_out("demo", Share(owner=1), limit=1_000)
            assert found
            served |= {ready.owner for ready in found}
            if len(served) == owners:
                break
        assert len(served) == owners
        assert not await store.hand_out("demo", Share(owner=1), limit=1)
