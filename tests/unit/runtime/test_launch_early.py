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
from mcp_tasks.errors import StoreUnavailable, UnknownTask, ValueNotStorable
from mcp_tasks.model import Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.machine import RunCompleted, RunStarted, TaskCreated
from mcp_tasks.model.record import NOBODY, Outcome, WriteId
from mcp_tasks.runtime import Ending, Run, Success, TaskChange, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.changes import Write
from mcp_tasks.runtime.context import current_task
from mcp_tasks.runtime.launch import MAX_KNOWN, EarlyStart, Unwritten
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import make_record
from tests.unit.carrying import Broker, carrying_engine
from tests.unit.running import (
    CLIENT,
    LIMIT,
    RERUN,
    Tool,
    finished,
    make_runtime,
    ok,
    question,
    running,
    settle,
    until_final,
)

pytestmark = pytest.mark.anyio

EARLY = replace(RERUN, early_start=True)


class SlowStore(MemoryStore):
    """Notes what is written, in which order, and makes new tasks wait if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []
        self.inserts = 0
        self.may_create = anyio.Event()
        self.may_create.set()
        self.failure: Exception | None = None
        self.forgets = False

    def hold(self) -> None:
        """Let no new task be written before `may_create`."""
        self.may_create = anyio.Event()

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        self.inserts += 1
        await self.may_create.wait()
        if self.failure is not None:
            raise self.failure
        created = await super().create(record, request, **options)
        self.written.append(f"created {record.status.value}")
        if self.forgets:
            await self.delete(created.id, expected=created.version, now=created.created_at)
        return created

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        saved = await super().save(record, **options)
        self.written.append(f"saved {record.status.value}")
        return saved


class Work:
    """A tool that is quick the first time, and does what it is told to from then on."""

    def __init__(self, then: Callable[[Run], Awaitable[Ending]] | None = None) -> None:
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
    request = TaskRequest(name="tool", arguments={})
    with anyio.fail_after(LIMIT):
        return await runtime.launch(request, owner="alice", retention=None, **options)


@asynccontextmanager
async def known(
    work: Work, policy: ToolPolicy = EARLY, **options: Any
) -> AsyncGenerator[tuple[TaskRuntime, SlowStore]]:
    """A runtime in which the tool has run once, and was quick."""
    store = SlowStore()
    async with running(work, store=store, policy=policy, **options) as runtime:
        await until_final(runtime, await start(runtime))
        store.written.clear()
        store.inserts = 0
        try:
            yield runtime, store
        finally:
            # Whatever failed, the runtime can stop.
            store.may_create.set()


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
    work = Work(lambda run: _return_after(run, 10))
    async with known(work) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        assert (work.begun, store.written, starting.done()) == (2, [], False)
        store.may_create.set()
        task = await starting
        assert task.status is TaskStatus.WORKING
        assert (await until_final(runtime, task)).result == {"value": "in the end"}
        assert store.written == ["created working", "saved completed"]


async def test_the_tool_knows_its_task_though_it_is_not_there_yet() -> None:
    seen: list[str | None] = []

    async def body(run: Run) -> Ending:
        seen.append(current_task().id)
        return ok()

    async with known(Work(body)) as (runtime, _):
        task = await start(runtime)
        assert seen == [task.id]


async def test_the_tool_finds_its_own_task_once_it_is_there() -> None:
    found: list[TaskRecord] = []

    async def body(run: Run) -> Ending:
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


async def test_the_tool_can_cancel_its_own_task() -> None:
    async def body(run: Run) -> Ending:
        await runtime.cancel(await runtime.find(run.record.id), "enough", actor=CLIENT)
        await anyio.sleep_forever()
        return ok()

    work = Work(body)
    async with known(work) as (runtime, _):
        task = await until_final(runtime, await start(runtime))
        await settle()
        assert (task.status, work.stopped, runtime.runs()) == (TaskStatus.CANCELLED, 1, [])


async def test_a_tool_that_looks_for_its_own_task_is_not_kept_if_that_cannot_be_written() -> None:
    async def body(run: Run) -> Ending:
        with pytest.raises(UnknownTask):
            await runtime.find(run.record.id)
        await anyio.sleep_forever()
        return ok()

    work = Work(body)
    async with known(work) as (runtime, store):
        store.failure = StoreUnavailable("the disk is full")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await start(runtime)
        await settle()
        assert (work.stopped, runtime.runs()) == (1, [])


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
    async with known(work, policy) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime, **options))
        await settle()
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


async def test_the_first_run_of_a_tool_and_the_one_after_a_long_run_do_not_start_early() -> None:
    work = Work(_return_after_milliseconds)
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


async def test_only_so_many_tools_are_remembered() -> None:
    runs: list[Run] = []

    async def body(run: Run) -> Ending:
        runs.append(run)
        return ok()

    async with running(body, policy=EARLY) as runtime:
        task = await until_final(runtime, await start(runtime))
        early = EarlyStart(runtime)
        timed = early.timed(body)
        for number in range(MAX_KNOWN + 1):
            runs[0].record = replace(task, name=f"tool {number}")
            await timed(runs[0])
        known = [early.is_for(replace(task, name=f"tool {number}"), EARLY, key=None) for number in (0, 1, MAX_KNOWN)]
        assert known == [False, True, True]


# What a run writes


async def _report(run: Run) -> Ending:
    await run.report(Progress(progress=1))
    await settle(10)
    return ok()


async def _ask(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


async def _step(run: Run) -> Ending:
    async def once() -> str:
        return "done"

    return ok(await run.step("one", once))


async def _sleep(run: Run) -> Ending:
    await run.sleep(timedelta(milliseconds=1))
    return ok()


@pytest.mark.parametrize("body", [_report, _ask, _step, _sleep], ids=["progress", "question", "step", "timer"])
async def test_what_a_run_writes_waits_for_its_task(body: Callable[[Run], Awaitable[Ending]]) -> None:
    async with known(Work(body)) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        assert store.written == []
        store.may_create.set()
        task = await starting
        if body is _ask:
            while (record := await runtime.get(task.id, owner="alice")).status is not TaskStatus.INPUT_REQUIRED:
                await settle(1)
            await runtime.answer(record, {"elicitation-1": "yes"}, actor=CLIENT)
        await until_final(runtime, task)
        assert store.written[0] == "created working"
        assert store.written[-1] == "saved completed"


async def test_a_step_is_not_begun_before_its_task_is_written() -> None:
    done: list[str] = []

    async def body(run: Run) -> Ending:
        async def once() -> None:
            done.append("step")

        await run.step("one", once)
        return ok()

    async with known(Work(body)) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        assert done == []
        store.may_create.set()
        await until_final(runtime, await starting)
        assert done == ["step"]


async def test_progress_that_was_reported_on_the_way_is_written_with_the_outcome() -> None:
    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=1, total=1))
        return ok()

    async with known(Work(body)) as (runtime, store):
        task = await until_final(runtime, await start(runtime))
        assert task.progress == Progress(progress=1, total=1)
        assert store.written[0].startswith("created")


# What may go wrong


@pytest.mark.parametrize("turns", [0, 10], ids=["ended at once", "still at work"])
async def test_a_task_that_cannot_be_written_is_an_error_for_its_caller_and_its_run_is_stopped(turns: int) -> None:
    work = Work(lambda run: _return_after(run, turns and 10_000))
    async with known(work, concurrency=1) as (runtime, store):
        store.failure = StoreUnavailable("the disk is full")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await start(runtime)
        await settle()
        assert (work.begun, work.stopped, runtime.runs()) == (2, 1 if turns else 0, [])
        assert store.written == []
        # Its slot is free again, and the tool may start early again.
        store.failure = None
        assert (await start(runtime)).id


@pytest.mark.parametrize("turns", [0, 10], ids=["ended at once", "still at work"])
@pytest.mark.parametrize("by_scope", [False, True], ids=["by asyncio", "by anyio"])
async def test_a_caller_that_goes_away_leaves_the_task(turns: int, by_scope: bool) -> None:
    ids: list[str | None] = []

    async def body(run: Run) -> Ending:
        ids.append(run.record.id)
        return await _return_after(run, turns)

    async with known(Work(body)) as (runtime, store):
        store.hold()
        with anyio.CancelScope() as scope:
            starting = asyncio.ensure_future(start(runtime)) if not by_scope else None
            async with anyio.create_task_group() as group:
                if starting is None:
                    group.start_soon(start, runtime)
                await settle()
                scope.cancel() if starting is None else starting.cancel()
        store.may_create.set()
        await settle()
        record = await store.get(ids[0] or "")
        assert record is not None
        assert (await until_final(runtime, record)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("turns", [0, 10_000], ids=["ended at once", "still at work"])
async def test_a_caller_that_went_away_before_its_task_could_not_be_written_leaves_nothing(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(lambda run: _return_after(run, turns))
    async with known(work, concurrency=1) as (runtime, store):
        store.hold()
        starting = asyncio.ensure_future(start(runtime))
        await settle()
        starting.cancel()
        await settle()
        store.failure = StoreUnavailable("the disk is full")
        store.may_create.set()
        await settle()
        assert (work.begun, work.stopped, runtime.runs()) == (2, 1 if turns else 0, [])
        assert store.written == []
        # Its slot is free again.
        store.failure = None
        assert (await until_final(runtime, await start(runtime))).status is TaskStatus.COMPLETED
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    # An exception that nobody retrieved would fail the test: its runner is told of these.
    del starting
    gc.collect()
    await settle()


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


@pytest.mark.parametrize("cut", [_cut_by_asyncio, _cut_by_anyio], ids=["by asyncio", "by anyio"])
@pytest.mark.parametrize("body", [_step, _ask, _sleep], ids=["step", "question", "timer"])
async def test_a_branch_that_its_tool_cancels_does_not_take_the_task_with_it(
    body: Callable[[Run], Awaitable[Ending]], cut: Callable[[Awaitable[Any]], Awaitable[None]]
) -> None:
    gone_on = anyio.Event()

    async def cutting(run: Run) -> Ending:
        await cut(body(run))
        gone_on.set()
        await _return_after(run, 10)
        return ok("without it")

    async with known(Work(cutting)) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        # The tool does not wait for what it does not want any more.
        assert gone_on.is_set()
        assert store.inserts == 1
        store.may_create.set()
        task = await until_final(runtime, await starting)
        assert (task.result, task.attempt) == ({"value": "without it"}, 1)
        assert (store.inserts, store.written[0]) == (1, "created working")


async def test_what_cannot_be_stored_as_a_result_fails_the_task_and_says_so() -> None:
    async def body(run: Run) -> Ending:
        return Success({"value": object()})

    async with known(Work(body)) as (runtime, store):
        task = await finished(runtime, await start(runtime))
        assert task.status is TaskStatus.FAILED
        assert store.written == ["created failed"]


async def test_an_outcome_that_the_store_does_not_take_fails_the_task_and_says_so() -> None:
    class Picky(SlowStore):
        async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
            outcome: Outcome | None = options.get("outcome")
            if outcome is not None and b"too much" in outcome.body and record.status is TaskStatus.COMPLETED:
                raise ValueNotStorable("a value is too large")
            return await super().create(record, request, **options)

    async def body(run: Run) -> Ending:
        return ok("too much")

    async with running(Work(body), store=Picky(), policy=EARLY) as runtime:
        await until_final(runtime, await start(runtime))
        task = await finished(runtime, await start(runtime))
        assert (task.status, task.attempt) == (TaskStatus.FAILED, 1)
        assert "a value is too large" in str(task.error)


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


@pytest.mark.parametrize("lost", [True, False], ids=["lease lost", "stopped"])
async def test_a_run_that_is_stopped_while_its_task_is_being_written_leaves_that_task(lost: bool) -> None:
    work = Work(lambda run: _return_after(run, 10_000 if work.begun == 2 else 0))
    async with known(work) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        assert store.inserts == 1
        runtime.lease.is_valid = not lost
        for run in runtime.runs():
            run.stop()
        await settle()
        assert not starting.done()
        store.may_create.set()
        task = await starting
        # The one that was on its way, and not another.
        assert (task.attempt, store.inserts) == (1, 1)
        if lost:
            await settle()
            assert await store.get(task.id) == task
            await runtime.janitor.take_up()
            runtime.lease.is_valid = True
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_task_that_is_gone_as_soon_as_it_was_written_is_not_run_again() -> None:
    work = Work(lambda run: _return_after(run, 10_000))
    async with known(work) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle()
        for run in runtime.runs():
            run.stop()
        store.forgets = True
        store.may_create.set()
        task = await starting
        await settle()
        assert await store.get(task.id) is None
        assert (runtime.runs(), work.begun) == ([], 2)


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


async def test_a_look_at_the_store_does_not_stop_what_is_not_there_yet() -> None:
    work = Work(lambda run: _return_after(run, 100))
    async with known(work) as (runtime, store), asyncio.TaskGroup() as group:
        store.hold()
        starting = group.create_task(start(runtime))
        await settle(10)
        await runtime.lookout.look()
        store.may_create.set()
        assert (await until_final(runtime, await starting)).status is TaskStatus.COMPLETED
        assert work.stopped == 0


@pytest.mark.parametrize("turns", [0, 10_000], ids=["ended at once", "still at work"])
async def test_a_server_that_stops_meanwhile_leaves_all_of_the_task_or_nothing(turns: int) -> None:
    store = SlowStore()
    work = Work(lambda run: _return_after(run, turns))
    runtime = make_runtime(work, store=store, policy=EARLY)
    await runtime.start()
    await until_final(runtime, await start(runtime))
    store.hold()
    starting = asyncio.ensure_future(start(runtime))
    await settle()
    stopping = asyncio.ensure_future(runtime.stop())
    await settle()
    store.may_create.set()
    with anyio.fail_after(LIMIT):
        task = await starting
        await stopping
    record = await store.get(task.id)
    assert record is not None
    if turns:
        assert (record.status, record.worker) == (TaskStatus.WORKING, None)
    else:
        assert (record.status, await store.outcome(task.id)) == (
            TaskStatus.COMPLETED,
            Outcome(body=b'{"value":"in the end"}'),
        )


async def test_observers_are_told_in_order_and_who_did_what() -> None:
    told: list[TaskChange] = []
    async with known(Work(), observers=[told.append]) as (runtime, _):
        task = await start(runtime)
    changes = [change for change in told if change.task.id == task.id]
    assert [type(change.event) for change in changes] == [TaskCreated, RunStarted, RunCompleted]
    assert [change.task.version for change in changes] == [1, 2, 3]
    assert [change.actor.kind for change in changes] == ["client", "client", "run"]


async def _return_after(run: Run, turns: int) -> Ending:
    for _ in range(turns):
        await asyncio.sleep(0)
    return ok("in the end")


async def _return_after_milliseconds(run: Run) -> Ending:
    await asyncio.sleep(0.005)  # sleep: a tool that is not quick
    return ok()


# A task that is not written yet

REQUEST = TaskRequest(name="tool", arguments={})
STARTED = RunStarted(worker="here")
ENDING = Write(events=[RunCompleted(attempt=1)], actor=NOBODY, outcome=Outcome(body=b"{}"))


class Insert:
    """Writes a task when the test says so, and never with its ending."""

    def __init__(self) -> None:
        self.may_end = anyio.Event()

    async def __call__(
        self,
        record: TaskRecord,
        request: TaskRequest,
        started: RunStarted,
        /,
        *,
        ending: Write | None = None,
        write: WriteId | None = None,
    ) -> TaskRecord:
        await self.may_end.wait()
        if ending is not None:
            raise ValueNotStorable("a value is too large")
        return record


def unwritten_task(insert: Insert) -> tuple[Unwritten, TaskRecord]:
    record = make_record()
    return Unwritten(record, REQUEST, STARTED, insert), record


async def test_a_task_that_cannot_be_written_with_its_ending_is_written_for_those_who_have_none() -> None:
    insert = Insert()
    unwritten, record = unwritten_task(insert)
    with_ending, without = (
        asyncio.create_task(unwritten.write(ending, context=contextvars.copy_context())) for ending in (ENDING, None)
    )
    await settle()
    insert.may_end.set()
    await asyncio.wait({with_ending, without})
    assert isinstance(with_ending.exception(), ValueNotStorable)
    assert without.result() == unwritten.written.result() == record


async def test_a_task_that_was_given_up_while_it_could_not_be_written_is_left_to_others() -> None:
    insert = Insert()
    unwritten, _ = unwritten_task(insert)
    writing = asyncio.create_task(unwritten.write(ENDING, context=contextvars.copy_context()))
    await settle()
    unwritten.give_up()
    insert.may_end.set()
    await asyncio.wait({writing})
    assert isinstance(writing.exception(), ValueNotStorable)
    assert unwritten.written.result() is None
    assert await unwritten.write(context=contextvars.copy_context()) is None


def test_an_event_loop_that_is_closed_meanwhile_leaves_nobody_waiting() -> None:
    async def begin_to_write() -> Unwritten:
        unwritten, _ = unwritten_task(Insert())
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
    insert = Insert()
    async with running(Work(), policy=EARLY) as runtime:
        record = make_record()
        assert await runtime.early.start(NoSlot(), record, REQUEST, EARLY, insert) is None
        assert not runtime.has(record.id)
