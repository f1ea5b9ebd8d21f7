"""A store forgets the keys of children when their parent has ended or is deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest
from redis.asyncio import Redis

from harness.databases import Postgres, Valkey
from harness.stored import opened
from mcp_tasks.errors import KeySpent
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON

pytestmark = pytest.mark.anyio

Kept: TypeAlias = tuple[Store, Callable[[], Awaitable[int]]]
"""A store, and for how many parents or children it keeps keys."""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Kept]:
    if request.param == "sqlite":
        path = tmp_path / "tasks.db"

        async def rows() -> int:
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute("SELECT count(*) FROM child_keys").fetchone()[0]

        async with opened(SqliteStore(path)) as store:
            yield store, rows
    elif request.param == "redis":
        server: Valkey = request.getfixturevalue("shared_valkey")
        prefix, redis = uuid4().hex, Redis.from_url(server.url)

        async def keys() -> int:
            found: list[Any] = await redis.keys(f"{{{prefix}}}:children:*")
            return len(found)

        async with opened(RedisStore(server.url, prefix=prefix)) as store, redis:
            yield store, keys
    else:
        shared: Postgres = request.getfixturevalue("shared_postgres")
        url = shared.new_database()

        async def table() -> int:
            with psycopg.connect(url) as connection:
                found = connection.execute("SELECT count(*) FROM mcp_tasks_child_keys").fetchone()
            return -1 if found is None else found[0]

        async with opened(PostgresStore(url)) as store:
            yield store, table


@pytest.mark.parametrize("end", ["ended", "deleted"])
async def test_nothing_is_left_of_the_keys_of_children(kept: Kept, end: str) -> None:
    store, count = kept
    parent = await store.create(make_record(), make_request())
    child = await store.create(make_record(parent=parent.id), make_request(), key="key")
    await store.delete(child.id, expected=child.version, now=NOON)
    assert await count() == 1
    if end == "deleted":
        await store.delete(parent.id, expected=parent.version, now=NOON)
    else:
        ended = replace(parent, version=2, status=TaskStatus.COMPLETED, finished_at=NOON)
        await store.save(ended, expected=parent.version)
    assert await count() == 0
    # Nor does a run that does not know it yet have any kept.
    with pytest.raises(KeySpent):
        await store.create(make_record(parent=parent.id), make_request(), key="key")
    assert await count() == 0
