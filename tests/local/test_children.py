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
from mcp_types import CallToolResult

from harness.waiting import eventually
from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskFailed
from mcp_tasks.errors import ResultExpired, TaskWasCancelled, WaitTimedOut
from mcp_tasks.model.record import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import TaskTester
from mcp_tasks.testing.clock import NOON
from tests.local.serving import LIMIT, QUICK, Confirmed, Office


class Family:
    """A server with a parent, and children that are counted."""

    def __init__(self, body: Callable[[Family, Context], Awaitable[Any]], **options: Any) -> None:
        self.store = MemoryStore()
        self.tasks = tasks = Tasks(self.store, settings=QUICK, **options)
        self.server = server = MCPServer("family", **tasks.wiring())
        self.born: list[str] = []
        self.seen: set[tuple[str | None, str | None]] = set()
        self.gate = asyncio.Event()

        @server.tool()
        @tasks.task(recover="rerun", park_after=timedelta(0))
        async def parent(ctx: Context) -> dict[str, Any]:
            return {"result": await body(self, ctx)}

        @server.tool()
        @tasks.task(ttl=timedelta(minutes=3), recover="rerun")
        async def child(name: str) -> str:
            self.born.append(name)
            self.seen.add((current_task().parent, current_task().session))
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

    async def born_of(self, name: str, **options: Any) -> str:
        return text(await (await self.tasks.start("child", {"name": name}, **options)).wait())

    async def run(self, **whose: Any) -> Any:
        return text(await (await self.tasks.start("parent", **whose)).wait(LIMIT))

    async def run_twice(self) -> Any:
        """What a parent comes to whose process dies while it asks, and that runs again then."""
        async with TaskTester(self.server, self.tasks) as tester:
            task = await tester.call("parent", owner="alice")
            await tester.until_asked(task)
            self.gate.set()
            await tester.settle()
            await tester.crash()
            await tester.answer(task, action="decline")
            found = text(await tester.result(task))
            await tester.settle()
            return found


def text(result: CallToolResult) -> Any:
    assert result.structured_content is not None, result
    return result.structured_content["result"]


@pytest.mark.requirement("local/child")
async def test_a_child_has_its_parent_its_own_ttl_and_the_parents_owner_and_session() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        bea = await family.born_of("Bea", ttl=timedelta(seconds=30), owner="bea", session="s2")
        return [await family.born_of("Ann"), bea]

    family = Family(body)
    async with family.tasks.running(family.server):
        parent = await family.tasks.start("parent", owner="alice", session="s1")
        assert text(await parent.wait(LIMIT)) == ["Ann of alice", "Bea of bea"]
        bea, ann = (await family.tasks.list(parent=parent.id)).tasks
        assert (ann.parent, ann.owner, ann.session) == (parent.id, "alice", "s1")
        assert (bea.parent, bea.owner, bea.session) == (parent.id, "bea", "s2")
        kept = [task.expires_at - task.finished_at for task in (ann, bea) if task.expires_at and task.finished_at]
        assert kept == [timedelta(minutes=3), timedelta(seconds=30)]
        assert family.seen == {(parent.id, "s1"), (parent.id, "s2")}
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
        async def started(name: str) -> str:
            return (await family.tasks.start("child", {"name": name})).id

        ids = [await started(name) for name in ("Ann", "Bea", "Ann")]
        said = [*await asyncio.gather(family.born_of("Cid"), family.born_of("Dan"))]
        ids.append(await current_task().step("from a step", started, "Eve"))
        answer = await ctx.elicit("More?", Confirmed)
        said += [text(await family.tasks.handle(ids[-1]).wait()), await family.born_of("Fay")]
        return [*said, answer.action, len(set(ids))]

    family = Family(body)
    assert await family.run_twice() == ["Cid of alice", "Dan of alice", "Eve of alice", "Fay of alice", "decline", 4]
    assert sorted(family.born) == ["Ann", "Ann", "Bea", "Cid", "Dan", "Eve", "Fay"]


async def test_how_a_child_ended_or_a_wait_was_given_up_is_the_same_in_every_run() -> None:
    seen: list[str] = []

    async def body(family: Family, ctx: Context) -> Any:
        slow = await family.tasks.start("slow_child")
        try:
            await slow.wait(timeout=0.01)
        except WaitTimedOut:
            seen.append("timed out")
        try:
            await asyncio.wait_for(slow.wait(), 0.1)
        except TimeoutError:
            seen.append("given up")
        await current_task().step("late", note)
        failing = await family.tasks.start("failing_child")
        try:
            await failing.wait()
        except TaskFailed as exc:
            seen.append(f"{exc.code} {exc.message}")
        prompt = await family.tasks.start_prompt("line", {"of": "verse"})
        messages = (await prompt.wait()).messages
        await ctx.elicit("More?", Confirmed)
        return [len(messages), text(await slow.wait())]

    async def note() -> None:
        noted.append("late")

    noted: list[str] = []
    family = Family(body)
    # In the second run it would not time out any more.
    assert await family.run_twice() == [1, "slow"]
    assert seen == ["timed out", "given up", "-32050 no luck"] * 2
    assert noted == ["late"]


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
        await eventually(lambda: store.kept)
        await tester.crash()
        assert text(await tester.result(task)) == [store.kept[0], "Ann of None"]
        assert set(store.kept) == {store.kept[0]}
        assert family.born == ["Ann"]


@pytest.mark.requirement("local/child-once")
async def test_a_child_that_has_expired_is_not_started_again_by_the_next_run_of_its_parent() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        if store.kept:
            await family.gate.wait()
        child = await family.tasks.start("child", {"name": "Ann"}, ttl=timedelta(seconds=1))
        try:
            return [child.id, text(await child.wait())]
        except ResultExpired as exc:
            return [child.id, str(exc)]

    family = Family(body)
    tester = TaskTester(family.server, family.tasks)
    tester.store = store = DyingStore()
    async with tester:
        task = await tester.call("parent")
        await eventually(lambda: store.kept)
        await tester.crash()
        # The child runs, ends, and its result expires before the parent goes on.
        await tester.finish(store.kept[0])
        tester.clock.advance(timedelta(seconds=2))
        await tester.runtime.janitor.sweep()
        assert await store.get(store.kept[0]) is None
        family.gate.set()
        child, said = text(await tester.result(task))
        assert (child, family.born) == (store.kept[0], ["Ann"])
        assert "is gone: its ttl was over" in said


@pytest.mark.requirement("local/child-once")
async def test_a_task_has_one_child_under_a_key_and_none_for_a_tool_that_it_calls() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        children = [await family.tasks.start("child", {"name": "Ann"}, key="the one") for _ in range(2)]
        return [len({child.id for child in children}), text(await family.tasks.call("child", {"name": "Bea"}))]

    family = Family(body)
    async with family.tasks.running(family.server):
        assert [await family.run(owner="alice") for _ in range(2)] == [[1, "Bea of alice"]] * 2
        assert len((await family.tasks.list(everybody=True)).tasks) == 4


@pytest.mark.requirement("local/child")
async def test_a_task_that_waits_holds_no_slot_that_the_other_needs() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return [text(await family.tasks.handle(other.id).wait()), await family.born_of("Ann")]

    family = Family(body, concurrency=1)
    async with family.tasks.running(family.server):
        # One of them is not its child.
        other = await family.tasks.start("child", {"name": "Bea"})
        parents = [await family.tasks.start("parent") for _ in range(3)]
        for parent in parents:
            assert text(await parent.wait(LIMIT)) == ["Bea of None", "Ann of None"]
        assert (await other.fetch()).parent is None


@pytest.mark.requirement("local/child-cancel")
async def test_cancelling_a_parent_leaves_its_children() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await (await family.tasks.start("slow_child")).wait())

    family = Family(body)
    async with family.tasks.running(family.server):
        parent = await family.tasks.start("parent")
        await eventually(lambda: family.born)
        await parent.cancel()
        (child,) = (await family.tasks.list(parent=parent.id)).tasks
        assert child.status is TaskStatus.WORKING
        family.gate.set()
        assert text(await family.tasks.handle(child.id).wait(LIMIT)) == "slow"


async def test_a_task_cannot_wait_for_itself() -> None:
    async def body(family: Family, ctx: Context) -> Any:
        return text(await family.tasks.handle(current_task().id or "").wait())

    family = Family(body)
    async with family.tasks.running(family.server):
        result = await (await family.tasks.start("parent")).wait(LIMIT)
        assert result.is_error
        assert "a task cannot wait for itself" in str(result.content)


async def test_a_sync_tool_starts_and_waits_from_its_thread(office: Office) -> None:
    @office.server.tool()
    @office.tasks.task()
    def from_a_thread() -> list[str]:
        child = anyio.from_thread.run(partial(office.tasks.start, "report", {"id": 5}))
        result = anyio.from_thread.run(child.wait)
        return [child.id, str(result.structured_content)]

    task = await office.tasks.start("from_a_thread")
    child, said = text(await task.wait(LIMIT))
    assert "ready" in said
    assert (await office.tasks.handle(child).fetch()).parent == task.id
