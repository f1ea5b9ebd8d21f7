"""A task and its request in one look, in the stores where a look is a round trip."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from harness.backends import Backend, BackendName
from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.model import Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores.base import LARGEST, ReadsTogether
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore

pytestmark = pytest.mark.anyio

NetworkStore = PostgresStore | RedisStore


@pytest.fixture(scope="module", params=["postgres", "redis"])
def url(request: pytest.FixtureRequest, shared_backend: Callable[[BackendName], Backend]) -> str:
    return shared_backend(request.param).fresh()


def store_at(url: str, codec: Codec | None = None) -> NetworkStore:
    return PostgresStore(url, codec=codec) if url.startswith("postgresql") else RedisStore(url, codec=codec)


@pytest.fixture
async def store(url: str) -> AsyncIterator[NetworkStore]:
    store = store_at(url)
    await store.open()
    yield store
    await store.close()


def new_record() -> TaskRecord:
    now = datetime.now(UTC)
    return TaskRecord(id=f"task_{uuid4().hex}", owner="alice", name="noop", created_at=now, updated_at=now)


async def test_a_task_and_its_request_are_one_round_trip(store: NetworkStore) -> None:
    record, request = new_record(), TaskRequest(name="noop", arguments={"text": "ä\0"})
    await store.create(record, request)
    assert isinstance(store, ReadsTogether)
    await store.get_with_request(record.id)
    before = store.round_trips
    assert await store.get_with_request(record.id) == (record, request)
    assert store.round_trips == before + 1


async def test_a_task_and_its_outcome_are_one_round_trip(store: NetworkStore) -> None:
    record, outcome = new_record(), Outcome(body=b'{"text":"x"}', meta=b"{}")
    await store.create(record, TaskRequest(name="noop", arguments={}))
    assert await store.get_with_outcome(record.id, record.owner) == (record, None)
    ended = replace(record, status=TaskStatus.COMPLETED, finished_at=record.created_at, version=2)
    await store.save(ended, expected=1, outcome=outcome)
    before = store.round_trips
    assert await store.get_with_outcome(record.id, record.owner) == (ended, outcome)
    assert store.round_trips == before + 1


async def test_a_large_request_is_left_out(store: NetworkStore) -> None:
    record, request = new_record(), TaskRequest(name="noop", arguments={"text": "x" * LARGEST})
    await store.create(record, request)
    assert await store.get_with_request(record.id) == (record, None)
    assert await store.request(record.id) == request


async def test_nothing_is_found_of_an_unknown_task(store: NetworkStore) -> None:
    assert await store.get_with_request("task_of_nobody \0") is None
    assert await store.get_with_outcome("task_of_nobody \0", None) is None


async def test_what_cannot_be_read_is_said(store: NetworkStore) -> None:
    record = replace(new_record(), owner=None, unknown={"format": 99, "readable": 99})
    await store.create(record, TaskRequest(name="noop", arguments={}))
    with pytest.raises(TaskUnreadable):
        await store.get_with_request(record.id)
    with pytest.raises(TaskUnreadable):
        await store.get_with_outcome(record.id, record.owner)
