"""A task as code in the server's own process sees it: fetch, wait, result, cancel, and lists of tasks."""

import asyncio
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent

from harness.older import RELATED
from mcp_tasks.client import TaskFailed, TaskHandle, TasksClient, resume_task, start_task
from mcp_tasks.errors import (
    InvalidOption,
    StoreUnavailable,
    TaskWasCancelled,
    UnknownTask,
    UsageError,
    ValueNotStorable,
    WaitTimedOut,
    WiringError,
)
from mcp_tasks.model.record import Progress, TaskRequest, TaskStatus
from mcp_tasks.server import TaskPage
from mcp_tasks.stores import MemoryStore
from tests.local.serving import FULL, LIMIT, Office, open_office, until


@pytest.mark.requirement("local/as-a-task", "local/result-related-task")
async def test_a_tool_started_as_a_task_gives_a_handle_with_which_to_fetch_and_wait(office: Office) -> None:
    task = await office.tasks.start("report", {"id": 42}, owner="alice", session="release-session")
    result = await task.wait(timeout=LIMIT)
    assert result.structured_content == {"id": 42, "status": "ready"}
    assert result.meta == {RELATED: {"taskId": task.id}}
    assert office.seen == [task.id]
    seen = await task.fetch()
    assert (seen.id, seen.kind, seen.name) == (task.id, "tool", "report")
    assert (seen.status, seen.is_final, seen.is_error) == (TaskStatus.COMPLETED, True, False)
    assert (seen.owner, seen.session, seen.parent) == ("alice", "release-session", None)
    assert seen.finished_at is not None
    assert seen.finished_at >= seen.created_at
    assert seen.expires_at == seen.finished_at + timedelta(hours=6)
    assert await task.result() == result
    # What has ended is not cancelled.
    assert (await task.cancel()).status is TaskStatus.COMPLETED


@pytest.mark.requirement("local/progress-is-state", "local/await-timeout")
async def test_progress_is_part_of_the_state_and_a_wait_that_takes_too_long_leaves_the_task_alone(
    office: Office,
) -> None:
    task = await office.tasks.start("slow")
    seen = await until(task, lambda task: task.progress is not None)
    assert seen.progress == Progress(progress=2, total=3, message="Rendering report")
    assert (seen.status, seen.is_final, seen.expires_at) == (TaskStatus.WORKING, False, None)
    for timeout in (0.05, timedelta(milliseconds=50), 0):
        with pytest.raises(WaitTimedOut, match="did not end within") as waited:
            await task.wait(timeout)
        assert isinstance(waited.value, TimeoutError)
        assert f"tasks.handle({task.id!r})" in str(waited.value)
    office.gate.set()
    result = await office.tasks.handle(task.id).wait(LIMIT)
    assert result.content == [TextContent(type="text", text="done")]


@pytest.mark.requirement("local/outcome-error-result", "local/outcome-raised", "local/outcome-message")
async def test_an_error_result_is_returned_and_a_raised_error_is_raised_again_with_all_that_it_carries(
    office: Office,
) -> None:
    task = await office.tasks.start("broken")
    result = await task.wait(LIMIT)
    assert result.is_error
    assert result.content == [TextContent(type="text", text=FULL)]
    seen = await task.fetch()
    assert (seen.status, seen.is_error, seen.message) == (TaskStatus.FAILED, True, FULL)
    task = await office.tasks.start("refusing")
    for _ in range(2):
        with pytest.raises(TaskFailed) as failed:
            await task.wait(LIMIT)
        assert isinstance(failed.value, MCPError)
        assert (failed.value.code, failed.value.message) == (-32099, "not today")
        assert (failed.value.data, failed.value.task_id) == ({"why": "closed"}, task.id)
    seen = await task.fetch()
    assert (seen.status, seen.message) == (TaskStatus.FAILED, "not today")


@pytest.mark.requirement("local/cancel")
async def test_a_cancelled_task_is_cancelled_and_stays_so(office: Office) -> None:
    task = await office.tasks.start("slow")
    seen = await task.cancel("not needed any more")
    assert (seen.status, seen.message) == (TaskStatus.CANCELLED, "not needed any more")
    with pytest.raises(TaskWasCancelled, match="not needed any more"):
        await task.wait(LIMIT)
    office.gate.set()
    assert (await task.cancel()).message == "not needed any more"


@pytest.mark.requirement("local/ttl")
async def test_a_ttl_is_given_with_the_start_and_otherwise_is_the_tools_own() -> None:
    async with open_office(default_ttl=timedelta(hours=2)) as office:
        kept: list[timedelta | None] = []
        for start in (
            office.tasks.start("report", {"id": 1}, ttl=timedelta(seconds=30)),
            office.tasks.start("report", {"id": 1}, ttl=None),
            office.tasks.start("report", {"id": 1}),
            office.tasks.start("deploy", {"environment": "x"}),
            office.tasks.start_resource("memo://monday/notes", ttl=timedelta(seconds=15)),
            office.tasks.start_resource("memo://monday/notes"),
        ):
            task = await start
            await task.wait(LIMIT)
            seen = await task.fetch()
            assert seen.finished_at is not None
            kept.append(None if seen.expires_at is None else seen.expires_at - seen.finished_at)
        seconds, hours = timedelta(seconds=1), timedelta(hours=1)
        assert kept == [30 * seconds, None, 6 * hours, 2 * hours, 15 * seconds, timedelta(minutes=5)]


@pytest.mark.requirement("local/modes")
async def test_what_never_becomes_a_task_or_is_not_there_is_not_started(office: Office) -> None:
    tasks = office.tasks
    for start, why in (
        (tasks.start("ping"), "tool 'ping' never becomes a task: its mode is \"forbidden\""),
        (tasks.start("plain"), "tool 'plain' never becomes a task: it is not marked"),
        (tasks.start("nothing"), "the server has no tool 'nothing'"),
        (tasks.start("report", {"id": "x"}), "tool 'report' does not take these arguments"),
        (tasks.start_prompt("plain_prompt"), "prompt 'plain_prompt' never becomes a task: it is not marked"),
        (tasks.start_prompt("nothing"), "the server has no prompt 'nothing'"),
        (tasks.start_resource("memo://plain"), "resource 'memo://plain' never becomes a task"),
        (tasks.start_resource("memo://nothing"), "the server has no resource 'memo://nothing'"),
    ):
        with pytest.raises(UsageError) as refused:
            await start
        assert str(refused.value).startswith(why)
    assert (await tasks.list(everybody=True)).tasks == []


async def test_values_that_are_none_are_refused_before_anything_is_started(office: Office) -> None:
    tasks = office.tasks
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ttl": 5}, InvalidOption, "ttl"),
        ({"ttl": timedelta(0)}, InvalidOption, "ttl"),
        ({"owner": 7}, InvalidOption, "owner"),
        ({"session": 7}, InvalidOption, "session"),
        ({"key": ""}, InvalidOption, "key"),
    ]
    for options, error, said in wrong:
        with pytest.raises(error, match=said):
            await tasks.start("report", {"id": 1}, **options)
    with pytest.raises(InvalidOption, match="the names of arguments must be strings, got 7"):
        await tasks.start("report", {7: 1})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueNotStorable):
        await tasks.start("echo", {"extra": object()})
    with pytest.raises(InvalidOption, match="task_id"):
        tasks.handle("")
    assert (await tasks.list(everybody=True)).tasks == []
    task = await tasks.start("report", {"id": 1})
    with pytest.raises(InvalidOption, match="timeout"):
        await task.wait("soon")  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("local/poll-interval")
async def test_a_task_carries_the_poll_interval_that_its_author_fixed(office: Office) -> None:
    task = await office.tasks.start("deploy", {"environment": "test"})
    assert (await task.fetch()).poll_interval == timedelta(seconds=1)
    adapted = await office.tasks.start("slow")
    assert timedelta(0) < (await adapted.fetch()).poll_interval < timedelta(seconds=1)


async def test_a_wait_ends_when_the_server_stops_and_a_handle_is_made_of_an_id_after_a_restart() -> None:
    async with open_office() as office:
        ended = await office.tasks.start("report", {"id": 7})
        await ended.wait(LIMIT)
        task = await office.tasks.start("slow")
        waiting = asyncio.create_task(task.wait())
        await until(task, lambda seen: seen.progress is not None)
    with pytest.raises(WiringError, match="server 'office' has stopped"), anyio.fail_after(LIMIT):
        await waiting
    async with office.tasks.running(office.server):
        result = await office.tasks.handle(ended.id).result()
        assert result.structured_content == {"id": 7, "status": "ready"}


async def test_of_starts_under_one_key_one_makes_a_task(office: Office) -> None:
    tasks = office.tasks
    first = await tasks.start("report", {"id": 1}, key="release 1")
    again = await tasks.start("report", {"id": 1}, key="release 1")
    others = await tasks.start("report", {"id": 1}, key="release 1", owner="alice")
    assert first.id == again.id != others.id
    with pytest.raises(UsageError, match="the key 'release 1' belongs to another call, of 'report'"):
        await tasks.start("report", {"id": 2}, key="release 1")
    with pytest.raises(UsageError, match="belongs to another call, of 'report'"):
        await tasks.start("slow", key="release 1")


class NoRequests(MemoryStore):
    async def request(self, task_id: str) -> TaskRequest | None:
        raise StoreUnavailable("the disk is full")


async def test_a_start_whose_task_was_made_before_the_store_went_away_may_have_happened() -> None:
    async with open_office(store=NoRequests()) as office:
        with pytest.raises(StoreUnavailable, match="the disk is full") as unavailable:
            await office.tasks.start("report", {"id": 1}, key="release 1")
        assert unavailable.value.may_have_happened
        assert len((await office.tasks.list(everybody=True)).tasks) == 1


async def test_a_task_is_its_owners_on_the_wire_wherever_it_was_started(office: Office) -> None:
    async with Client(office.server, extensions=[TasksClient()]) as client:
        mine = await office.tasks.start("slow")
        others = await office.tasks.start("slow", owner="alice")
        assert (await resume_task(client, mine.id).status()).status is TaskStatus.WORKING
        with pytest.raises(UnknownTask):
            await resume_task(client, others.id).status()
        office.gate.set()
        result = await resume_task(client, mine.id).result(LIMIT)
        assert result.content == [TextContent(type="text", text="done")]
        handle = await start_task(client, "report", {"id": 3})
        assert isinstance(handle, TaskHandle)
        result = await office.tasks.handle(handle.id).wait(LIMIT)
        assert result.structured_content == {"id": 3, "status": "ready"}


# --- lists ----------------------------------------------------------------------------------------------------------


def ids(page: TaskPage) -> list[str]:
    return [task.id for task in page.tasks]


async def ended(office: Office, tool: str = "report", **whose: Any) -> str:
    task = await office.tasks.start(tool, {"id": 1} if tool == "report" else {}, **whose)
    await until(task, lambda seen: seen.is_final)
    return task.id


@pytest.mark.requirement("local/list")
async def test_tasks_are_listed_by_owner_and_by_session_in_the_order_of_creation(office: Office) -> None:
    alice = await ended(office, owner="alice", session="s1")
    bob = await ended(office, owner="bob", session="s1")
    nobody = await ended(office)
    tasks = office.tasks
    assert ids(await tasks.list(owner="alice")) == [alice]
    assert ids(await tasks.list(owner=None)) == [nobody]
    assert ids(await tasks.list(session="s1")) == [alice, bob]
    assert ids(await tasks.list(session="another")) == []
    assert ids(await tasks.list(everybody=True)) == [alice, bob, nobody]
    (seen,) = (await tasks.list(owner="bob")).tasks
    assert (seen.status, seen.session, seen.name) == (TaskStatus.COMPLETED, "s1", "report")


@pytest.mark.requirement("local/list", "local/list-pages")
@pytest.mark.parametrize("page_size", [1, 2, 100])
async def test_pages_hold_every_task_of_a_status_once(office: Office, page_size: int) -> None:
    made = {
        "completed": [await ended(office)],
        "failed": [await ended(office, tool) for tool in ("broken", "refusing", "broken")],
        "working": [(await office.tasks.start("slow")).id],
        "cancelled": list[str](),
    }
    for status, expected in made.items():
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await office.tasks.list(owner=None, status=status, page_size=page_size, cursor=cursor)
            assert len(page.tasks) <= page_size
            found += ids(page)
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == expected
        assert [task.id async for task in office.tasks.list_all(owner=None, status=TaskStatus(status))] == expected


async def test_whose_tasks_must_be_said_in_one_way_and_with_values_that_there_are(office: Office) -> None:
    unclear: list[dict[str, Any]] = [
        {},
        {"owner": "alice", "session": "s1"},
        {"parent": "p", "everybody": True},
        {"everybody": False},
    ]
    for whose in unclear:
        with pytest.raises(UsageError, match="pass exactly one of owner="):
            await office.tasks.list(**whose)
    wrong: list[dict[str, Any]] = [{"page_size": 0}, {"page_size": "many"}, {"status": "lost"}, {"cursor": "nonsense"}]
    for options in wrong:
        with pytest.raises(InvalidOption, match=next(iter(options))):
            await office.tasks.list(owner=None, **options)
    mistyped: list[dict[str, Any]] = [{"owner": 5}, {"session": b"s1"}, {"parent": ["p"]}]
    for whose in mistyped:
        with pytest.raises(InvalidOption, match=f"{next(iter(whose))} must be a string"):
            await office.tasks.list(**whose)
