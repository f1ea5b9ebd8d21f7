"""Tools that start while their task is being written."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.engines import Engine, LocalEngine
from mcp_tasks.errors import StoreUnavailable, ValueNotStorable
from mcp_tasks.model import Progress, RunStarted, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.machine import RunCompleted
from mcp_tasks.model.record import NOBODY, Outcome
from mcp_tasks.runtime import Body, Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime import launch as early
from mcp_tasks.runtime.changes import Write
from mcp_tasks.runtime.launch import Unwritten
from mcp_tasks.testing import make_record
from tests.unit.carrying import Broker, carrying_engine
from tests.unit.losing import as_of_now
from tests.unit.running import (
    LIMIT,
    REQUEST,
    RERUN,
    MeddledStore,
    Tool,
    answer,
    asks,
    at_once,
    finished,
    ok,
    running,
    settle,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

EARLY = replace(RERUN, early_start=True)


class SlowStore(MeddledStore):
    """Notes what is written, in which order, and makes new tasks wait if it is told to."""

    def __init__(self) -> None:
        super().__init__(create=self._wait)
        self.after = {"create": self._created, "save": self._saved}
        self.written: list[str] = []
        self.may_create = anyio.Event()
        self.may_create.set()
        self.failure: Exception | None = None
        self.forgets = False

    def hold(self) -> None:
        """Let no new task be written before `may_create`."""
        self.may_create = anyio.Event()

    @property
    def inserts(self) -> int:
        return self.calls["create"]

    async def _wait(self, *args: Any, **options: Any) -> None:
        await self.may_create.wait()
        if self.failure is not None:
            raise self.failure

    async def _created(self, created: TaskRecord, *args: Any, **options: Any) -> None:
        self.written.append(f"created {created.status.value}")
        if self.forgets:
            await self.delete(created.id, expected=created.version, now=created.created_at)

    async def _saved(self, saved: TaskRecord, *args: Any, **options: Any) -> None:
        self.written.append(f"saved {saved.status.value}")


class Work:
    """A tool that is quick the first time, and does what it is told to from then on."""

    def __init__(self, then: Body | None = None) -> None:
        self.begun = 0
        self.stopped = 0
        self._then = then

    async def __call__(self, run: Run) -> Ending:
        self.begun += 1
        if self.begun == 1 or self._then is None:
            return ok(self.begun)
        try:
            return await self._then(run)
        except asyncio.CancelledError:
            self.stopped += 1
            raise


async def start(runtime: TaskRuntime, **options: Any) -> TaskRecord:
    with anyio.fail_after(LIMIT):
        return await runtime.launch(REQUEST, owner="alice", retention=None, **options)


@asynccontextmanager
async def known(
    work: Work, policy: ToolPolicy = EARLY, **options: Any
) -> AsyncGenerator[tuple[TaskRuntime, SlowStore]]:
    """A runtime in which the tool has run once, and was quick."""
    store = SlowStore()
    async with running(work, store=store, policy=policy, **options) as runtime:
        await until_final(runtime, await start(runtime))
        store.written.clear()
        store.calls.clear()
        try:
            yield runtime, store
        finally:
            # Whatever failed, the runtime can stop.
            store.may_create.set()


@asynccontextmanager
async def being_written(
    work: Work, policy: ToolPolicy = EARLY, **options: Any
) -> AsyncGenerator[tuple[TaskRuntime, SlowStore, asyncio.Task[TaskRecord]]]:
    """A start whose task is not written before the store may."""
    async with known(work, policy) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime, **options))
        await settle()
        yield runtime, store, starting


def returns_after(turns: int) -> Body:
    """A tool that takes so many turns of the event loop."""

    async def body(run: Run) -> Ending:
        await settle(turns)
        return ok("in the end")

    return body


AT_ONCE_OR_LATER = pytest.mark.parametrize("turns", [0, 10_000], ids=["ended at once", "still at work"])


async def test_an_instant_outcome_is_written_with_its_task() -> None:
    async with known(Work()) as (runtime, store):
        task = await start(runtime)
        assert store.written == ["created completed"]
        assert (task.status, task.attempt, task.worker, task.owner) == (TaskStatus.COMPLETED, 1, None, "alice")
        # Created is 1, claimed is 2, as for any other task.
        assert task.version == 3
        assert await store.get(task.id) == task
        assert (await finished(runtime, task)).result == {"value": 2}
        await settle()
        assert not runtime.runs()


async def test_the_tool_works_while_its_task_is_being_written_and_the_caller_waits_for_that() -> None:
    work = Work(returns_after(200))
    async with being_written(work) as (runtime, store, starting):
        assert (work.begun, store.written, starting.done()) == (2, [], False)
        # What is not there yet is not stopped by a look at the store.
        await runtime.lookout.look()
        store.may_create.set()
        task = await starting
        assert task.status is TaskStatus.WORKING
        assert (await until_final(runtime, task)).result == {"value": "in the end"}
        assert (store.written, work.stopped) == (["created working", "saved completed"], 0)


async def test_the_tool_knows_its_own_task_and_finds_it_once_it_is_there() -> None:
    found: list[TaskRecord] = []

    async def body(run: Run) -> Ending:
        assert current_task().id == run.record.id
        found.append(await runtime.find(run.record.id))
        found.append(await runtime.get(run.record.id, owner="alice"))
        return ok()

    async with known(Work(body)) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        assert found == []
        store.may_create.set()
        task = await until_final(runtime, await starting)
        assert [record.id for record in found] == [task.id, task.id]


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (RERUN, {}),
        (replace(EARLY, rerun=False), {}),
        (EARLY, {"key": "once"}),
        (EARLY, {"announced": False}),
        (replace(EARLY, max_at_work=5), {}),
    ],
    ids=["not asked for", "may not run again", "under a key", "not announced", "limited"],
)
async def test_a_tool_that_must_not_start_early_does_not(policy: ToolPolicy, options: dict[str, Any]) -> None:
    work = Work()
    async with being_written(work, policy, **options) as (runtime, store, starting):
        assert work.begun == 1
        store.may_create.set()
        await until_final(runtime, await starting)
        assert store.written[0] == "created working"


@pytest.mark.parametrize(
    ("engine", "policy", "said"),
    [
        (lambda: carrying_engine(Broker()), EARLY, 1),
        (lambda: carrying_engine(Broker()), RERUN, 0),
        (LocalEngine, EARLY, 0),
    ],
    ids=["in vain", "not asked for", "possible"],
)
async def test_it_is_said_where_an_early_start_is_asked_for_in_vain(
    engine: Callable[[], Engine], policy: ToolPolicy, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running({"instant": Tool(Work(), policy)}, engine=engine()):
        pass
    lines = [line for line in caplog.messages if "early_start does nothing" in line]
    assert len(lines) == said
    assert all("instant" in line for line in lines)


async def test_after_a_long_run_a_tool_does_not_start_early() -> None:
    async def slowly(run: Run) -> Ending:
        await asyncio.sleep(0.005)  # sleep: a tool that is not quick
        return ok()

    work = Work(slowly)
    async with known(work) as (runtime, store):
        # Early, because the first was quick, and known to be slow from now on.
        await until_final(runtime, await start(runtime))
        store.hold()
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(start(runtime))
            await settle()
            assert work.begun == 2
            store.may_create.set()
            await until_final(runtime, await starting)


async def test_only_so_many_tools_are_remembered_as_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "MAX_KNOWN", 1)
    store, tools = SlowStore(), {name: Tool(at_once, EARLY) for name in ("first", "second")}
    async with running(tools, store=store) as runtime:
        for name in ("first", "second", "first", "first"):
            task = await runtime.launch(replace(REQUEST, name=name), owner=None, retention=None)
            await until_final(runtime, task)
    created = [line for line in store.written if line.startswith("created")]
    assert created == ["created working"] * 3 + ["created completed"]


# What a run writes


done: list[str] = []
"""The steps that were done in a test."""


async def _report(run: Run) -> Ending:
    await run.report(Progress(progress=1))
    await settle(10)
    return ok()


async def _step(run: Run) -> Ending:
    await current_task().step("one", lambda: done.append("step"))
    return ok()


async def _sleep(run: Run) -> Ending:
    await run.sleep(timedelta(milliseconds=1))
    return ok()


@pytest.mark.parametrize("body", [_report, asks, _step, _sleep], ids=["progress", "question", "step", "timer"])
async def test_what_a_run_writes_waits_for_its_task_and_no_step_is_begun_before(body: Body) -> None:
    done.clear()
    async with being_written(Work(body)) as (runtime, store, starting):
        assert (store.written, done) == ([], [])
        store.may_create.set()
        task = await starting
        if body is asks:
            await answer(runtime, await until_asking(runtime, task), elicitation_1="yes")
        task = await until_final(runtime, task)
        assert (store.written[0], store.written[-1]) == ("created working", "saved completed")
        assert task.progress == (Progress(progress=1) if body is _report else None)
        assert done == ["step"] * (body is _step)


# What may go wrong


async def _cut_by_asyncio(doing: Awaitable[Any]) -> None:
    branch = asyncio.ensure_future(doing)
    await settle(10)
    branch.cancel()
    await asyncio.wait({branch})


async def _cut_by_anyio(doing: Awaitable[Any]) -> None:
    async def do() -> None:
        await doing

    async with anyio.create_task_group() as group:
        group.start_soon(do)
        await settle(10)
        group.cancel_scope.cancel()


@AT_ONCE_OR_LATER
async def test_a_task_that_cannot_be_written_is_an_error_for_its_caller_and_its_run_is_stopped(turns: int) -> None:
    work = Work(returns_after(turns))
    async with known(work, concurrency=1) as (runtime, store):
        store.failure = StoreUnavailable("the disk is full")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await start(runtime)
        await settle()
        assert (work.begun, work.stopped, runtime.runs(), store.written) == (2, 1 if turns else 0, [], [])
        # Its slot is free again, and the tool may start early again.
        store.failure = None
        assert (await start(runtime)).id


@AT_ONCE_OR_LATER
@pytest.mark.parametrize("cut", [_cut_by_asyncio, _cut_by_anyio], ids=["by asyncio", "by anyio"])
async def test_a_caller_that_goes_away_leaves_the_task(
    turns: int, cut: Callable[[Awaitable[Any]], Awaitable[None]]
) -> None:
    ids: list[str] = []

    async def body(run: Run) -> Ending:
        ids.append(run.record.id)
        return await returns_after(turns and 10)(run)

    async with known(Work(body)) as (runtime, store):
        store.hold()
        await cut(start(runtime))
        store.may_create.set()
        await settle()
        assert (await until_final(runtime, await runtime.find(ids[0]))).status is TaskStatus.COMPLETED


@AT_ONCE_OR_LATER
async def test_a_caller_that_went_away_before_its_task_could_not_be_written_leaves_nothing(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(returns_after(turns))
    async with known(work, concurrency=1) as (runtime, store):
        store.hold()
        await _cut_by_asyncio(start(runtime))
        store.failure = StoreUnavailable("the disk is full")
        store.may_create.set()
        await settle()
        assert (work.begun, work.stopped, runtime.runs(), store.written) == (2, 1 if turns else 0, [], [])
        # Its slot is free again.
        store.failure = None
        assert (await until_final(runtime, await start(runtime))).status is TaskStatus.COMPLETED
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    # An exception that nobody retrieved would fail the test: its runner is told of these.
    gc.collect()
    await settle()


@pytest.mark.parametrize("cut", [_cut_by_asyncio, _cut_by_anyio], ids=["by asyncio", "by anyio"])
@pytest.mark.parametrize("body", [_step, asks, _sleep], ids=["step", "question", "timer"])
async def test_a_branch_that_its_tool_cancels_does_not_take_the_task_with_it(
    body: Body, cut: Callable[[Awaitable[Any]], Awaitable[None]]
) -> None:
    gone_on = anyio.Event()

    async def cutting(run: Run) -> Ending:
        await cut(body(run))
        gone_on.set()
        return await returns_after(10)(run)

    async with being_written(Work(cutting)) as (runtime, store, starting):
        # The tool does not wait for what it does not want any more.
        assert gone_on.is_set()
        assert store.inserts == 1
        store.may_create.set()
        task = await until_final(runtime, await starting)
        assert (task.result, task.attempt) == ({"value": "in the end"}, 1)
        assert (store.inserts, store.written[0]) == (1, "created working")


async def test_an_outcome_that_cannot_be_kept_fails_the_task_and_says_so() -> None:
    given: list[Any] = ["the first is quick", "too much", object()]

    async def body(run: Run) -> Ending:
        return ok(given.pop(0))

    async def refuse(record: TaskRecord, request: TaskRequest, outcome: Outcome | None = None, **options: Any) -> None:
        if outcome is not None and b"too much" in outcome.body and record.status is TaskStatus.COMPLETED:
            raise ValueNotStorable("a value is too large")

    async with running(body, store=MeddledStore(create=refuse), policy=EARLY) as runtime:
        await until_final(runtime, await start(runtime))
        for said in ("a value is too large", "not JSON"):
            task = await finished(runtime, await start(runtime))
            assert (task.status, task.attempt) == (TaskStatus.FAILED, 1)
            assert said in str(task.error)


async def test_a_run_that_is_stopped_before_its_task_is_written_leaves_it_to_the_queue() -> None:
    async def body(run: Run) -> Ending:
        run.stop()
        await anyio.sleep_forever()
        return ok()

    work = Work(body)
    async with known(work) as (runtime, store):
        starting = asyncio.ensure_future(start(runtime))
        while work.begun < 3:
            await settle(1)
        # The second time by the queue.
        assert store.written[0] == "created working"
        assert (await starting).attempt == 0


@pytest.mark.parametrize("how", ["lease lost", "stopped", "task gone"])
async def test_a_run_that_is_stopped_while_its_task_is_being_written_leaves_that_task(how: str) -> None:
    work = Work(lambda run: returns_after(10_000 if work.begun == 2 else 0)(run))
    async with being_written(work) as (runtime, store, starting):
        runtime.lease.is_valid = how != "lease lost"
        for run in runtime.runs():
            run.stop()
        await settle()
        assert not starting.done()
        store.forgets = how == "task gone"
        store.may_create.set()
        task = await starting
        # The one that was on its way, and not another.
        assert (task.attempt, store.inserts) == (1, 1)
        await settle()
        if how == "task gone":
            assert (await store.get(task.id), runtime.runs(), work.begun) == (None, [], 2)
            return
        if how == "lease lost":
            assert await store.get(task.id) == task
            await runtime.janitor.take_up()
            runtime.lease.is_valid = True
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_lease_that_is_lost_in_that_moment_leaves_the_task_to_the_queue() -> None:
    work = Work()
    async with known(work) as (runtime, store):
        starting = asyncio.ensure_future(start(runtime))
        while not runtime.engine.is_idle:  # pyright: ignore[reportAttributeAccessIssue]
            await settle(1)
        await asyncio.sleep(0)
        runtime.lease.is_valid = False
        task = await starting
        assert (task.worker, task.attempt, work.begun) == (None, 0, 1)
        runtime.lease.is_valid = True
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
        assert store.written[0] == "created working"


@AT_ONCE_OR_LATER
async def test_a_server_that_stops_meanwhile_leaves_all_of_the_task_or_nothing(turns: int) -> None:
    async with being_written(Work(returns_after(turns))) as (runtime, store, starting):
        stopping = asyncio.ensure_future(runtime.stop())
        await settle()
        store.may_create.set()
        with anyio.fail_after(LIMIT):
            task = await starting
            await stopping
        record, outcome = await as_of_now(runtime, task), await store.outcome(task.id)
        if turns:
            assert (record.status, record.worker, outcome) == (TaskStatus.WORKING, None, None)
        else:
            assert (record.status, outcome) == (TaskStatus.COMPLETED, Outcome(body=b'{"value":"in the end"}'))


# A task that is not written yet


class Insert:
    """Writes a task when the test says so, and never with its ending."""

    def __init__(self) -> None:
        self.may_end = anyio.Event()

    async def __call__(self, record: TaskRecord, *args: Any, ending: Write | None = None, **options: Any) -> TaskRecord:
        await self.may_end.wait()
        if ending is not None:
            raise ValueNotStorable("a value is too large")
        return record


async def test_a_task_that_was_given_up_while_it_could_not_be_written_is_left_to_others() -> None:
    insert = Insert()
    unwritten = Unwritten(make_record(), REQUEST, RunStarted(worker="here"), insert)
    ending = Write(events=[RunCompleted(attempt=1)], actor=NOBODY, outcome=Outcome(body=b"{}"))
    writing = asyncio.create_task(unwritten.write(ending, context=contextvars.copy_context()))
    await settle()
    unwritten.give_up()
    insert.may_end.set()
    await asyncio.wait({writing})
    assert isinstance(writing.exception(), ValueNotStorable)
    assert unwritten.written.result() is None
    assert await unwritten.write(context=contextvars.copy_context()) is None


def test_an_event_loop_that_is_closed_meanwhile_leaves_nobody_waiting() -> None:
    async def begin_to_write() -> Unwritten:
        unwritten = Unwritten(make_record(), REQUEST, RunStarted(worker="here"), Insert())
        with anyio.move_on_after(0):
            await unwritten.write(context=contextvars.copy_context())
        await settle()
        assert not unwritten.written.done()
        return unwritten

    assert asyncio.run(begin_to_write()).written.cancelled()


class NoSlot:
    """A slot of an engine that starts nothing any more."""

    def start(self, task_id: str) -> bool:
        return False

    def release(self) -> None: ...


async def test_where_nothing_is_started_any_more_nothing_is_written_by_an_early_start() -> None:
    async with running(at_once, policy=EARLY) as runtime:
        record = make_record()
        assert await runtime.early.start(NoSlot(), record, REQUEST, EARLY, Insert()) is None
        assert not runtime.has(record.id)
