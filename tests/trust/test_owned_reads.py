"""A store sees whose a task is before it reads anything of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from harness.databases import postgres, valkey
from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.model import Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores.base import ReadsOwned, ReadsTogether
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

AnyStore = SqliteStore | PostgresStore | RedisStore

OWNERS = ("ada", "", "=", "\\-", "nul\0", "\ud800", '["app","https://issuer.example","ada"]', None)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        match request.param:
            case "postgres":
                yield stack.enter_context(postgres(durable=False)).new_database()
            case "redis":
                yield stack.enter_context(valkey()).url
            case _:
                yield str(tmp_path_factory.mktemp("owned") / "tasks.db")


def store_at(url: str, codec: Codec | None = None) -> AnyStore:
    if url.startswith("postgresql"):
        return PostgresStore(url, codec=codec)
    return RedisStore(url, codec=codec) if url.startswith("redis") else SqliteStore(Path(url), codec=codec)


@pytest.fixture
async def store(url: str) -> AsyncIterator[AnyStore]:
    store = store_at(url)
    await store.open()
    yield store
    await store.close()


def owned_by(owner: str | None) -> TaskRecord:
    now = datetime.now(UTC)
    return TaskRecord(id=f"task_{uuid4().hex}", owner=owner, name="noop", created_at=now, updated_at=now)


@pytest.mark.parametrize("owner", OWNERS, ids=ascii)
async def test_a_task_is_found_for_its_owner_alone(store: AnyStore, owner: str | None) -> None:
    record, outcome = owned_by(owner), Outcome(body=b'{"text":"x"}')
    await store.create(record, TaskRequest(name="noop", arguments={}))
    ended = replace(record, status=TaskStatus.COMPLETED, finished_at=record.created_at, version=2)
    await store.save(ended, expected=1, outcome=outcome)
    assert isinstance(store, ReadsOwned)
    for other in OWNERS:
        expected = ended if other == owner else None
        assert await store.get_owned(record.id, other) == expected
        if isinstance(store, ReadsTogether):
            found = await store.get_with_outcome(record.id, other)
            assert found == (None if expected is None else (ended, outcome))
    assert await store.get_owned("task_of_nobody \0", owner) is None


class Garbled(Codec):
    """Writes what nobody can read."""

    def encode_state(self, record: TaskRecord) -> bytes:
        return super().encode_state(record)[:-5]


async def test_of_what_cannot_be_read_only_the_owner_hears(
    url: str, store: AnyStore, caplog: pytest.LogCaptureFixture
) -> None:
    other = store_at(url, Garbled())
    await other.open()
    try:
        record = owned_by("ada")
        await other.create(record, TaskRequest(name="noop", arguments={}))
        with caplog.at_level(logging.DEBUG, "mcp_tasks"):
            assert await store.get_owned(record.id, "bob") is None
            assert await store.get_owned(record.id, None) is None
        assert caplog.records == []
        with pytest.raises(TaskUnreadable):
            await store.get_owned(record.id, "ada")
    finally:
        await other.close()
