"""Tasks that a task starts: once each, with a ttl of their own and a parent that can be seen (document 004)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskFailed
from mcp_tasks.errors import TaskWasCancelled, WaitTimedOut
from mcp_tasks.model.record import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import TaskTester
from mcp_tasks.testing.clock import NOON
from tests.local.serving import LIMIT, QUICK, Confirmed, open_office

pytestmark = pytest.mark.anyio


class Family:
    """A server with a parent, and children that are counted."""

    def __init__(self, body: Callable[[Family, Context], Awaitable[Any]], **options: Any) -> None:
        self.store = MemoryStore()
        self.tasks = tasks = Tasks(self.store, settings=QUICK, **options)
        self.server = server = MCPServer("family", **tasks.wiring())
        self.born: list[str] = []
        self.seen: list[tuple[str | None, str | None]] = []
        self.gate = asyncio.Event()

        @server.tool()
        @tasks.task(recover="rerun", park_after=timedelta(0))
        async def parent(ctx: Context) -> dict[str, Any]:
            return {"result": await body(self, ctx)}

        @server.tool()
        @tasks.task(ttl=timedelta(minutes=3), recover="rerun")
        async def child(name: str) -> str:
            self.born.append(name)
            self.seen.append((current_task().parent, current_task().session))
            return f"{name} of {current_task().owner}"

        @server.tool()
        @tasks.task(recover="rerun")
        async def slow_child() -> str:
            self.born.append("slow")
            await self.gate.wait()
            return "slow"

        @server.tool()
        @tasks.task()
        def failing_child() -> str:
            raise MCPError(-32050, "no luck")

        @server.prompt()
        @tasks.task(kind="prompt")
        def line(of: str) -> str:
            return f"a line of {of}"


def text(result: CallToolResult) -> Any:
    assert result.structured_content is not None
    return result.structured_content["result"]


@pytest.mark.requirement("local/child")
async def test_a_child_has_its_parent_its_own_ttl_and_the_parents_owner_and_session() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        one = await family.tasks.start("child", {"name": "Ann"})
        two = await family.tasks.start("child", {"name": "Bea"}, ttl=timedelta(seconds=30), owner="bea", session="s2")
        return [text(await one.wait()), text(await two.wait())]

    family = Family(body)
    async with family.tasks.running(family.server):
        parent = await family.tasks.start("parent", owner="alice", session="s1")
        assert text(await parent.wait(LIMIT)) == ["Ann of alice", "Bea of bea"]
        ann, bea = (await family.tasks.list(parent=parent.id)).tasks
        assert (ann.parent, ann.owner, ann.session) == (parent.id, "alice", "s1")
        assert (bea.parent, bea.owner, bea.session) == (parent.id, "bea", "s2")
        kept = [task.expires_at - task.finished_at for task in (ann, bea) if task.expires_at and task.finished_at]
        assert kept == [timedelta(minutes=3), timedelta(seconds=30)]
        assert set(family.seen) == {(parent.id, "s1"), (parent.id, "s2")}
        assert (await parent.fetch()).parent is None
        assert (await family.tasks.list(parent=ann.id)).tasks == []


async def test_a_run_that_has_not_heard_that_its_task_was_cancelled_starts_no_child() -> None:
    stopped: list[str] = []

    async def body(family: Family, ctx: Context) -> Any:
        record = await family.store.get(str(current_task().id))
        assert record is not None
        cancelled = replace(record, version=record.version + 1, status=TaskStatus.CANCELLED, finished_at=NOON)
        await family.store.save(cancelled, expected=record.version)
        try:
            await family.tasks.start("child", {"name": "Ann"})
        except asyncio.CancelledError:
            stopped.append(record.id)
            raise

    family = Family(body)
    async with family.tasks.running(family.server):
        parent = await family.tasks.start("parent", ttl=None)
        with pytest.raises(TaskWasCancelled):
            await parent.wait(LIMIT)
        assert (stopped, family.born) == ([parent.id], [])
        assert (await family.tasks.list(parent=parent.id)).tasks == []


@pytest.mark.requirement("local/child-once")
async def test_a_parent_that_runs_again_finds_its_children_and_starts_none_twice() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        names = ["Ann", "Bea", "Ann"]
        children = [await family.tasks.start("child", {"name": name}) for name in names]
        answer = await ctx.elicit("More?", Confirmed)
        last = await family.tasks.start("child", {"name": "Cid"})
        return [*[child.id for child in children], last.id, answer.action]

    family = Family(body)
    async with TaskTester(family.server, family.tasks) as tester:
        task = await tester.call("parent", owner="alice")
        await tester.until_asked(task)
        await tester.settle()
        await tester.crash()
        await tester.answer(task, action="decline")
        *ids, action = text(await tester.result(task))
        await tester.settle()
        assert action == "decline"
        assert len(set(ids)) == 4
        assert sorted(family.born) == ["Ann", "Ann", "Bea", "Cid"]
        records = [await tester.record(child) for child in ids]
        assert [(record.name, record.parent, record.owner) for record in records] == [("child", task, "alice")] * 4


class DyingStore(MemoryStore):
    """Keeps the first child, and does not get to say so: the process dies in that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        created = await super().create(record, request, **options)
        if record.parent is not None:
            self.kept.append(created.id)
            if len(self.kept) == 1:
                await asyncio.get_running_loop().create_future()
        return created


@pytest.mark.requirement("local/child-once")
@pytest.mark.parametrize("key", [None, "the one"])
async def test_a_child_that_was_kept_but_not_journalled_is_found_again(key: str | None) -> None:
    async def body(family: Family, ctx: Context) -> Any:
        child = await family.tasks.start("child", {"name": "Ann"}, key=key)
        return [child.id, text(await child.wait())]

    family = Family(body)
    tester = TaskTester(family.server, family.tasks)
    tester.store = store = DyingStore()
    async with tester:
        task = await tester.call("parent")
        with anyio.fail_after(LIMIT):
            while not store.kept:  # noqa: ASYNC110 - the store has no event
                await anyio.sleep(0.01)
        await tester.crash()
        assert text(await tester.result(task)) == [store.kept[0], "Ann of None"]
        assert set(store.kept) == {store.kept[0]}
        assert family.born == ["Ann"]


@pytest.mark.requirement("local/child-once")
async def test_under_one_key_a_task_has_one_child() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        children = [await family.tasks.start("child", {"name": "Ann"}, key="the one") for _ in range(2)]
        return len({child.id for child in children})

    family = Family(body)
    async with family.tasks.running(family.server):
        for _ in range(2):
            assert text(await (await family.tasks.start("parent")).wait(LIMIT)) == 1
        assert len((await family.tasks.list(everybody=True)).tasks) == 4


@pytest.mark.requirement("local/child")
async def test_a_parent_that_waits_holds_no_slot_that_its_child_needs() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await (await family.tasks.start("child", {"name": "Ann"})).wait())

    family = Family(body, concurrency=1)
    async with family.tasks.running(family.server):
        parents = [await family.tasks.start("parent") for _ in range(3)]
        for parent in parents:
            assert text(await parent.wait(LIMIT)) == "Ann of None"


async def test_how_a_child_ended_is_the_same_in_every_run() -> None:
    seen: list[str] = []

    async def body(family: Family, ctx: Context) -> Any:
        slow = await family.tasks.start("slow_child")
        try:
            await slow.wait(timeout=0.01)
        except WaitTimedOut:
            seen.append("timed out")
        failing = await family.tasks.start("failing_child")
        try:
            await failing.wait()
        except TaskFailed as exc:
            seen.append(f"{exc.code} {exc.message}")
        prompt = await family.tasks.start_prompt("line", {"of": "verse"})
        messages = (await prompt.wait()).messages
        await ctx.elicit("More?", Confirmed)
        return [len(messages), text(await slow.wait())]

    family = Family(body)
    async with TaskTester(family.server, family.tasks) as tester:
        task = await tester.call("parent")
        await tester.until_asked(task)
        assert seen == ["timed out", "-32050 no luck"]
        # By now it would not time out any more.
        family.gate.set()
        await tester.settle()
        await tester.crash()
        await tester.answer(task, action="decline")
        assert text(await tester.result(task)) == [1, "slow"]
        assert seen[2:] == ["timed out", "-32050 no luck"]


@pytest.mark.requirement("local/child-cancel")
async def test_cancelling_a_parent_leaves_its_children() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await (await family.tasks.start("slow_child")).wait())

    family = Family(body)
    async with family.tasks.running(family.server):
        parent = await family.tasks.start("parent")
        with anyio.fail_after(LIMIT):
            while not family.born:  # noqa: ASYNC110 - what the tool did is what is waited for
                await anyio.sleep(0.01)
        await parent.cancel()
        (child,) = (await family.tasks.list(parent=parent.id)).tasks
        assert child.status is TaskStatus.WORKING
        family.gate.set()
        assert text(await family.tasks.handle(child.id).wait(LIMIT)) == "slow"


async def test_a_tool_that_is_called_in_a_task_is_a_part_of_it() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await family.tasks.call("child", {"name": "Ann"}))

    family = Family(body)
    async with TaskTester(family.server, family.tasks) as tester:
        task = await tester.call("parent", owner="alice")
        assert text(await tester.result(task)) == "Ann of alice"
        assert len(await tester.store.versions([task])) == 1


async def test_a_task_cannot_wait_for_itself() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await family.tasks.handle(current_task().id or "").wait())

    family = Family(body)
    async with family.tasks.running(family.server):
        result = await (await family.tasks.start("parent")).wait(LIMIT)
        assert result.is_error
        assert "a task cannot wait for itself" in str(result.content)


async def test_a_task_waits_for_one_that_is_not_its_child() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await family.tasks.handle(other.id).wait())

    family = Family(body, concurrency=1)
    async with family.tasks.running(family.server):
        other = await family.tasks.start("child", {"name": "Ann"})
        assert text(await (await family.tasks.start("parent")).wait(LIMIT)) == "Ann of None"
        assert (await other.fetch()).parent is None


async def test_children_are_started_at_once_in_branches_and_from_steps() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        async def born(name: str) -> str:
            return text(await (await family.tasks.start("child", {"name": name})).wait())

        both = await asyncio.gather(born("Ann"), born("Bea"))

        async def started() -> str:
            return (await family.tasks.start("child", {"name": "Cid"})).id

        cid = await current_task().step("third", started)
        await ctx.elicit("More?", Confirmed)
        return [*both, text(await family.tasks.handle(cid).wait())]

    family = Family(body)
    async with TaskTester(family.server, family.tasks) as tester:
        task = await tester.call("parent")
        await tester.until_asked(task)
        await tester.settle()
        await tester.crash()
        await tester.answer(task, action="decline")
        assert text(await tester.result(task)) == ["Ann of None", "Bea of None", "Cid of None"]
        assert sorted(family.born) == ["Ann", "Bea", "Cid"]


async def test_a_wait_that_the_tool_gave_up_is_given_up_in_every_run() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        slow = await family.tasks.start("slow_child")
        try:
            said = await asyncio.wait_for(slow.wait(), 0.3)
        except TimeoutError:
            said = None
        late = await current_task().step("late", note)
        await ctx.elicit("More?", Confirmed)
        return [said, late, text(await slow.wait())]

    async def note() -> str:
        noted.append("late")
        return "late"

    noted: list[str] = []
    family = Family(body)
    async with TaskTester(family.server, family.tasks) as tester:
        task = await tester.call("parent")
        await tester.until_asked(task)
        await tester.crash()
        family.gate.set()
        await tester.answer(task, action="decline")
        assert text(await tester.result(task)) == [None, "late", "slow"]
        assert noted == ["late"]


async def test_a_sync_tool_starts_and_waits_from_its_thread() -> None:
    async with open_office(concurrency=1) as office:

        @office.server.tool()
        @office.tasks.task()
        def from_a_thread() -> list[str]:
            child = anyio.from_thread.run(partial(office.tasks.start, "report", {"id": 5}))
            result = anyio.from_thread.run(child.wait)
            return [child.id, text_of(result)]

        task = await office.tasks.start("from_a_thread")
        child, said = text(await task.wait(LIMIT))
        assert "ready" in said
        assert (await office.tasks.handle(child).fetch()).parent == task.id


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text
