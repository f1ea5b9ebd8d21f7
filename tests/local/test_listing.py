"""Listing tasks in the server's own process, by owner, by session and by parent, page by page (document 004)."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.server import TaskPage
from tests.local.serving import LIMIT, Office, open_office

pytestmark = pytest.mark.anyio


def ids(page: TaskPage) -> list[str]:
    return [task.id for task in page.tasks]


async def report(office: Office, tool: str = "report", **whose: Any) -> str:
    """The id of a task that has ended."""
    task = await office.tasks.start(tool, {"id": 1} if tool == "report" else {}, **whose)
    await task.wait(LIMIT)
    return task.id


@pytest.mark.requirement("local/list")
async def test_tasks_are_listed_by_owner_and_by_session_in_the_order_of_creation() -> None:
    async with open_office() as office:
        alice = await report(office, owner="alice", session="s1")
        bob = await report(office, owner="bob", session="s1")
        nobody = await report(office)
        tasks = office.tasks
        assert ids(await tasks.list(owner="alice")) == [alice]
        assert ids(await tasks.list(owner=None)) == [nobody]
        assert ids(await tasks.list(session="s1")) == [alice, bob]
        assert ids(await tasks.list(session="another")) == []
        assert ids(await tasks.list(everybody=True)) == [alice, bob, nobody]
        (seen,) = (await tasks.list(owner="bob")).tasks
        assert (seen.status, seen.session, seen.name) == (TaskStatus.COMPLETED, "s1", "report")


@pytest.mark.requirement("local/list-pages")
async def test_pages_hold_every_task_once() -> None:
    async with open_office() as office:
        made = [await report(office, session="release-session") for _ in range(5)]
        first = await office.tasks.list(session="release-session", page_size=2)
        second = await office.tasks.list(session="release-session", page_size=2, cursor=first.next_cursor)
        third = await office.tasks.list(session="release-session", page_size=2, cursor=second.next_cursor)
        assert [ids(page) for page in (first, second, third)] == [made[:2], made[2:4], made[4:]]
        assert third.next_cursor is None
        assert [task.id async for task in office.tasks.list_all(session="release-session")] == made


@pytest.mark.requirement("local/list")
@pytest.mark.parametrize("page_size", [1, 2, 100])
async def test_a_status_is_that_of_the_snapshots(page_size: int) -> None:
    async with open_office() as office:
        ended, broken = await report(office), await report(office, "broken")
        refused = await office.tasks.start("refusing")
        with pytest.raises(Exception, match="not today"):
            await refused.wait(LIMIT)
        slow = await office.tasks.start("slow")
        broken_again = await report(office, "broken")
        expected = {
            "completed": [ended],
            "failed": [broken, refused.id, broken_again],
            "working": [slow.id],
            "cancelled": [],
        }
        for status, made in expected.items():
            found: list[str] = []
            cursor: str | None = None
            while True:
                page = await office.tasks.list(owner=None, status=status, page_size=page_size, cursor=cursor)
                assert len(page.tasks) <= page_size
                found += ids(page)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == made
        assert [task.id async for task in office.tasks.list_all(owner=None, status=TaskStatus.WORKING)] == [slow.id]


@pytest.mark.parametrize(
    "whose", [{}, {"owner": "alice", "session": "s1"}, {"parent": "p", "everybody": True}, {"everybody": False}]
)
async def test_whose_tasks_must_be_said_in_one_way(whose: dict[str, Any]) -> None:
    async with open_office() as office:
        with pytest.raises(UsageError, match="say whose tasks to list, in one way"):
            await office.tasks.list(**whose)


async def test_values_that_are_none_are_refused() -> None:
    async with open_office() as office:
        for wrong in ({"page_size": 0}, {"page_size": "many"}, {"status": "lost"}, {"cursor": "nonsense"}):
            with pytest.raises(InvalidOption, match=next(iter(wrong))):
                await office.tasks.list(owner=None, **wrong)  # pyright: ignore[reportArgumentType]
        for whose in ({"owner": 5}, {"session": b"s1"}, {"parent": ["p"]}):
            with pytest.raises(InvalidOption, match=f"{next(iter(whose))} must be a string"):
                await office.tasks.list(**whose)  # pyright: ignore[reportArgumentType]
