"""Who lists tasks gets them, however many others a store passes over on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcp_tasks.fallback.companions import STDIO_SESSION, Mine, my_tasks
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.server.local import page_of
from mcp_tasks.stores import base as paging
from mcp_tasks.stores.base import EVERYBODY, InSession, full_page
from mcp_tasks.stores.sqlite import SqliteStore, queries
from mcp_tasks.testing import make_record, make_request
from tests.unit.tooling import NAMESPACE, new_server, running_tools

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
PASSED = queries.LOOKS * 2 + 100
OURS = InSession(STDIO_SESSION)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open(NAMESPACE)
    yield store
    await store.close()


async def fill(store: SqliteStore, *, retention: timedelta) -> list[TaskRecord]:
    """Tasks that have ended, and two behind them that have not; returns those."""
    ended = make_record(
        status=TaskStatus.COMPLETED,
        created_at=NOW - timedelta(hours=2),
        finished_at=NOW - timedelta(hours=1),
        retention=retention,
        session=STDIO_SESSION,
        namespace=NAMESPACE,
        owner=None,
    )
    open_ = replace(ended, status=TaskStatus.WORKING, finished_at=None, created_at=NOW)
    working = [replace(open_, id=f"working-{number}") for number in range(2)]
    records = [*(replace(ended, id=f"ended-{number:05}") for number in range(PASSED)), *working]
    await asyncio.gather(*(store.create(record, make_request()) for record in records))
    return working


async def test_a_page_is_filled_from_behind_what_is_passed_over(store: SqliteStore) -> None:
    working = await fill(store, retention=timedelta(0))
    page = await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=5)
    assert (list(page.records), page.cursor) == (working, None)
    first = await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=1)
    rest = await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=1, cursor=first.cursor)
    assert [list(first.records), list(rest.records), rest.cursor] == [working[:1], working[1:], None]


async def test_others_have_the_event_loop_meanwhile_and_it_ends_some_time(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = await fill(store, retention=timedelta(0))
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another")
    await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=5)
    assert turns
    monkeypatch.setattr(paging, "PATIENCE", 0)
    page = await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=5)
    assert not page.records
    found: list[TaskRecord] = []
    while page.cursor is not None:
        page = await full_page(store, NAMESPACE, EVERYBODY, now=NOW, limit=5, cursor=page.cursor)
        found += page.records
    assert found == working


async def test_a_caller_and_a_model_find_what_is_at_work_behind_what_has_ended(store: SqliteStore) -> None:
    working = await fill(store, retention=timedelta(days=1))
    async with running_tools(new_server(), store=store, runs_tools=False) as runtime:
        page = await runtime.list(OURS, status=TaskStatus.WORKING, limit=10)
        assert [record.id for record in page.records] == [record.id for record in working]
        found = await my_tasks(runtime, Mine(owner=None, whose=OURS))
    assert [record.id for record in found[:2]] == ["working-1", "working-0"]


async def test_others_have_the_event_loop_while_none_is_found_to_have_failed(store: SqliteStore) -> None:
    await fill(store, retention=timedelta(days=1))
    async with running_tools(new_server(), store=store, runs_tools=False) as runtime:
        turns: list[str] = []
        asyncio.get_running_loop().call_soon(turns.append, "another")
        page = await page_of(runtime, OURS, status="failed", page_size=100, cursor=None)
        assert (list(page.tasks), turns) == ([], ["another"])
