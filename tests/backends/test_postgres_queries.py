"""That no number of stored tasks makes a statement of the Postgres store slow: which index each uses, whatever the
statistics say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from harness.databases import Postgres
from harness.postgres_store import new_store_url
from mcp_tasks.model import TaskStatus
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, ChildrenOf, InSession, OwnedBy, Share, Whose
from mcp_tasks.stores.postgres import PostgresStore, database, queries, writes
from mcp_tasks.stores.postgres import writes as creating
from mcp_tasks.stores.postgres import writes as handing
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

FILL = """
INSERT INTO mcp_tasks_tasks (
    id, version, namespace, owner, method, name, queue, rank, status, worker, created, ready, since, expires, handed,
    at_work, state
)
SELECT '{kind}' || n, 1, 'demo', 'alice', 'tools/call', 'tool', 'default', 0, '{status}', {worker}, n, {ready}, {since},
    {expires}, {handed}, {at_work}, ''
FROM generate_series({first}, {last}) n
"""
NONE = {"worker": "NULL", "ready": "NULL", "since": "NULL", "expires": "NULL", "handed": "false", "at_work": "false"}
KINDS: dict[str, dict[str, Any]] = {
    "done": {**NONE, "status": "completed", "expires": "n"},
    "queued": {**NONE, "status": "working", "ready": queries.AT_ANY_TIME, "since": "n"},
    "handed": {**NONE, "status": "working", "ready": queries.AT_ANY_TIME, "since": "n", "handed": "true"},
    "claimed": {**NONE, "status": "working", "worker": "'w'", "at_work": "true"},
    "asleep": {**NONE, "status": "working", "ready": "n"},
}


def listing(whose: Whose, status: TaskStatus | None = None, *, newest_first: bool = False) -> database.Query:
    return queries.listing("demo", whose, now=NOON, status=status, cursor="5.x", limit=10, newest_first=newest_first)


LOOK: dict[str, Any] = {
    "namespace": "demo",
    "queues": None,
    "limit": 10,
    "of_owner": 10,
    "at_work": 10,
    "method": "tools/call",
    "tools": ["tool"],
    "most": [10],
    **{name: [] for name in ("queues_seen", "ranks", "owners", "methods", "names")},
}

STATEMENTS: dict[str, tuple[database.Query, set[str]]] = {
    "get": ((queries.GET, {"id": "x"}), {"id"}),
    "request": ((queries.REQUEST, {"id": "x"}), {"id", "requests_pkey"}),
    "outcome": ((queries.OUTCOME, {"id": "x"}), {"id", "outcomes_pkey"}),
    "journal": ((queries.JOURNAL, {"id": "x", "after": 0}), {"id", "journal_pkey"}),
    "versions": ((queries.VERSIONS, {"ids": ["x", "y"]}), {"id"}),
    "workers": ((queries.WORKERS, {"namespace": "demo"}), {"claimed", "heartbeats_pkey"}),
    "backlog": (queries.backlog("demo", NOON), {"backlog"}),
    "queued": (queries.queued("demo", handed_out=None, cursor="5.x", limit=10), {"queued"}),
    "handed out": (queries.queued("demo", handed_out=True, cursor=None, limit=10), {"queued"}),
    "not handed out": (queries.queued("demo", handed_out=False, cursor=None, limit=10), {"queued"}),
    "due": (queries.due("demo", NOON, cursor="5.x", limit=10), {"due"}),
    "claimed": (queries.claimed("w", cursor="5.x", limit=10), {"claimed"}),
    "forget expired": (
        writes.forget_expired(NOON, limit=10, states=False),
        {"expires", "id", "spent_until", "spent_keys_pkey"},
    ),
    "delete": ((writes.DELETE, {"id": "x", "expected": 1, "now": 1}), {"id"}),
    "usage of an owner": (queries.usage("demo", OwnedBy("alice")), {"owner", "kept"}),
    "usage of nobody": (queries.usage("demo", UNOWNED), {"owner", "kept"}),
    "usage of everybody": (queries.usage("demo", EVERYBODY), {"status"}),
    "hand out": ((handing.LOOK, LOOK), {"waiting", "in_hand_of_owner", "in_hand_of_tool"}),
    "everybody": (listing(EVERYBODY), {"status"}),
    "everybody in a status": (listing(EVERYBODY, TaskStatus.WORKING), {"status"}),
    "an owner": (listing(OwnedBy("alice")), {"owner"}),
    "nobody": (listing(UNOWNED), {"owner"}),
    "the newest of an owner": (listing(OwnedBy("alice"), newest_first=True), {"owner"}),
    "the newest of an owner in a status": (listing(OwnedBy("alice"), TaskStatus.WORKING, newest_first=True), {"owner"}),
    "the newest of a session": (listing(InSession("s"), newest_first=True), {"session"}),
    "an owner in a status": (listing(OwnedBy("alice"), TaskStatus.WORKING), {"owner"}),
    "a session": (listing(InSession("s")), {"session"}),
    "children in a status": (listing(ChildrenOf("p"), TaskStatus.WORKING), {"parent"}),
}


MOMENTS = {"nothing": [], **{f"all {kind}": [kind] for kind in KINDS}, "all": [*KINDS]}


@pytest.fixture(scope="module", params=MOMENTS)
def connection(request: pytest.FixtureRequest, url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection as the store has it, to tables of which is known what was in them at some moment in the past."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"TRUNCATE mcp_tasks_tasks")
        for kind in MOMENTS[request.param]:
            connection.execute(FILL.format(kind=kind, first=1, last=3_000, **KINDS[kind]).encode())
        connection.execute(b"ANALYZE")
        connection.execute(b"TRUNCATE mcp_tasks_tasks")
        connection.execute(FILL.format(kind="now", first=1, last=10_000, **KINDS["done"]).encode())
        for kind, columns in KINDS.items():
            connection.execute(FILL.format(kind=kind, first=3_001, last=3_050, **columns).encode())
        connection.execute(b"TRUNCATE mcp_tasks_spent_keys")
        spent = b"INSERT INTO mcp_tasks_spent_keys SELECT n, 'demo', 'alice', n FROM generate_series(1, 3000) n"
        connection.execute(spent)
        connection.execute(database.CONFIGURE)
        yield connection


@pytest.fixture(scope="module")
def url(shared_postgres: Postgres) -> str:
    return new_store_url(shared_postgres)


@pytest.mark.anyio
@pytest.mark.parametrize("mark", [True, False])
async def test_of_more_owners_than_one_look_sees_each_has_its_turn(url: str, mark: bool) -> None:
    store = PostgresStore(url)
    await store.open()
    owners = handing.MOST_GROUPS * 2 + 100
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"TRUNCATE mcp_tasks_tasks")
        fill = FILL.format(kind="task", first=1, last=owners, **KINDS["queued"])
        connection.execute(fill.replace("'alice'", "'owner ' || n").encode())
    served: set[str | None] = set()
    for _ in range(20):
        found = await store.hand_out("demo", Share(owner=1), mark=mark, limit=1_000)
        assert found
        served |= {ready.owner for ready in found}
        if len(served) == owners:
            break
    assert len(served) == owners
    assert bool(await store.hand_out("demo", Share(owner=1), mark=mark, limit=1)) != mark
    await store.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_uses_its_index(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    (sql, values), indexes = STATEMENTS[name]
    lines = connection.execute(b"EXPLAIN " + sql, values).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert set(re.findall(r" using mcp_tasks_(\w+)", plan)) <= indexes, plan
    # The few rows of who is alive may be read all.
    assert set(re.findall(r"Seq Scan on (mcp_tasks_\w+)", plan)) <= {"mcp_tasks_heartbeats"}, plan


def test_a_task_under_a_key_is_made_by_seeks(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    new = creating.Create(
        make_record(namespace="demo"),
        state=b"",
        request=b"",
        key="key",
        key_until_end=False,
        key_outlives=timedelta(days=1),
        handing=None,
        job=None,
        outcome=None,
    )
    sql, values = new.query
    plan = "\n".join(line for (line,) in connection.execute(b"EXPLAIN " + sql, values).fetchall())
    assert set(re.findall(r" using mcp_tasks_(\w+)", plan)) == {"key", "spent_keys_pkey"}, plan
    assert "Seq Scan" not in plan


def test_what_is_handed_out_is_counted_by_all_that_it_is_counted_by(
    connection: psycopg.Connection[tuple[Any, ...]],
) -> None:
    lines = connection.execute(b"EXPLAIN " + handing.LOOK, LOOK).fetchall()
    plan = "\n".join(line for (line,) in lines)
    handed, at_work = re.findall(r"using mcp_tasks_in_hand_of_owner .*\n +Index Cond: (.*)", plan)
    # However many of the owner are handed out of other queues and tools, none of them is looked at.
    assert {f"({column} = g" in handed for column in ("owner", "queue", "name", "method")} == {True}, plan
    assert "(owner = g" in at_work, plan
