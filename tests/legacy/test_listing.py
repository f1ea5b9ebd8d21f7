"""`tasks/list` on the 2025-11-25 wire: whose tasks are there, and in which pages."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness.auth import Tokens
from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, Tasking
from harness.server import QUICK, UNPACED, Desk, build
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.legacy.server import PAGE_SIZE
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.legacy.tasking import over_http

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(store: MemoryStore | None = None, *, auth: bool = False, **options: Any) -> AsyncGenerator[HttpWire]:
    tasks = Tasks(store or MemoryStore(), settings=QUICK, limits=UNPACED, **options)
    async with serving(build(tasks, Desk(), verifier=Tokens() if auth else None)) as wire:
        yield wire


async def test_a_session_without_a_name_lists_what_was_made_in_it() -> None:
    async with served() as wire:
        one, other = await over_http(wire), await over_http(wire)
        made = [(await one.create("gated"))["taskId"] for _ in range(3)]
        assert await other.listed() == []
        assert await one.listed() == made
        [first, *_] = (await one.page())["tasks"]
        assert first == await one.get(made[0])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_whatever_is_found_by_its_id_is_listed_from_then_on(method: str) -> None:
    async with served() as wire:
        one, other = await over_http(wire), await over_http(wire)
        task_id = (await one.create("must" if method == "tasks/result" else "gated"))["taskId"]
        own = (await other.create("gated"))["taskId"]
        assert (await other.ask(method, {"taskId": task_id})).result
        assert (await other.ask(method, {"taskId": "unknown"})).code == INVALID_PARAMS
        # Again, and it is still there once.
        await other.ask("tasks/get", {"taskId": task_id})
        assert await other.listed() == [own, task_id]
        assert await one.listed() == [task_id]


async def test_an_owner_lists_the_same_in_every_session_and_nobody_elses() -> None:
    async with served(auth=True) as wire:
        alice, again, bob = [await over_http(wire.as_user(token)) for token in ("alice-1", "alice-2", "bob-1")]
        made = [(await client.create("gated"))["taskId"] for client in (alice, again)]
        modern = await Tasking(wire.as_user("alice-3"), EVERYTHING).create("gated")
        bobs = (await bob.create("gated"))["taskId"]
        assert await alice.listed() == await again.listed() == [*made, modern]
        assert await bob.listed() == [bobs]
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await bob.ask(method, {"taskId": made[0]})).code == INVALID_PARAMS
        assert await bob.listed() == [bobs]


async def test_a_long_list_comes_in_pages() -> None:
    async with served() as wire:
        one, other = await over_http(wire), await over_http(wire)
        made = [(await one.create("echo", {"value": n}))["taskId"] for n in range(PAGE_SIZE + 3)]
        first = await one.page()
        second = await one.page(first["nextCursor"])
        assert (len(first["tasks"]), len(second["tasks"]), "nextCursor" in second) == (PAGE_SIZE, 3, False)
        assert await one.listed() == made
        # Adopted ones come in pages as well, after its own.
        own = (await other.create("gated"))["taskId"]
        for task_id in made:
            await other.get(task_id)
        page = await other.page()
        assert len(page["tasks"]) == PAGE_SIZE
        assert await other.listed() == [own, *made]


@pytest.mark.parametrize("gone", [PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1], ids=["last shown", "next", "later"])
async def test_a_task_that_expires_between_two_pages_takes_no_other_with_it(gone: int) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    async with served(clock=clock) as wire:
        one, other = await over_http(wire), await over_http(wire)
        made: list[str] = []
        for n in range(PAGE_SIZE + 3):
            task = await one.create("echo", {"value": n}, ttl=1_000 if n in (3, gone) else 3_600_000)
            made.append(task["taskId"])
            await one.until(task["taskId"], "completed")
            await other.get(task["taskId"])
        first = await other.page()
        assert [task["taskId"] for task in first["tasks"]] == made[:PAGE_SIZE]
        clock.advance(timedelta(minutes=1))
        second = await other.page(first["nextCursor"])
        expected = [task_id for n, task_id in enumerate(made) if n >= PAGE_SIZE and n != gone]
        assert [task["taskId"] for task in second["tasks"]] == expected
        assert "nextCursor" not in second
        # Once more, now that the session has forgotten what is gone.
        assert await other.page(first["nextCursor"]) == second


async def test_a_list_that_just_fits_a_page_has_no_next() -> None:
    async with served(auth=True) as wire:
        alice = await over_http(wire.as_user("alice"))
        for n in range(PAGE_SIZE):
            await alice.create("echo", {"value": n})
        page = await alice.page()
        assert (len(page["tasks"]), "nextCursor" in page) == (PAGE_SIZE, False)


FORGED: list[Any] = [
    *(7, {}, "", "nope", "☃", "A" * 100_000),
    *(
        base64.urlsafe_b64encode(text).decode()
        for text in (b"", b"x1", b"s", b"snope", b"a", b"a-1", b"a1", b"a" + b"9" * 5000, b"a\xff")
    ),
]


@pytest.mark.parametrize("auth", [False, True], ids=["session", "owner"])
@pytest.mark.parametrize("cursor", FORGED, ids=lambda cursor: repr(cursor)[:20])
async def test_a_cursor_that_is_not_ours_is_refused(cursor: Any, auth: bool) -> None:
    async with served(auth=auth) as wire:
        client = await over_http(wire.as_user("alice") if auth else wire)
        await client.create("gated")
        assert (await client.ask("tasks/list", {"cursor": cursor})).code == INVALID_PARAMS


async def test_a_task_of_which_nobody_was_told_is_not_listed() -> None:
    store = MemoryStore()
    async with served(store, auth=True) as wire:
        alice = Tasking(wire.as_user("alice"), EVERYTHING)
        asked = await alice.call("ask_by_returning")
        assert asked["resultType"] == "input_required"
        created = await alice.create("gated")
        old = await over_http(wire.as_user("alice"))
        assert await old.listed() == [created]
    assert all(task.announced for task in await all_tasks(store))
