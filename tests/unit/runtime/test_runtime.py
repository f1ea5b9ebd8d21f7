"""`TaskRuntime`: whose a task is, who runs it, and what is heard of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.errors import StoreUnavailable, UnknownTask
from mcp_tasks.model import RunStarted, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.runtime.changes import MAX_ID_LENGTH
from mcp_tasks.runtime.launch import new_task_id
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    CLIENT,
    RERUN,
    DeafStore,
    FailingStore,
    PausingStore,
    Tool,
    create,
    finished,
    launch,
    make_runtime,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


# Creating and looking


async def test_a_created_task_is_there_before_anybody_runs_it() -> None:
    async with running(at_once) as runtime:
        record = await create(runtime, owner="alice", retention=HOUR)
        assert await runtime.get(record.id, owner="alice") == record
        assert (record.status, record.attempt) == (TaskStatus.WORKING, 0)


async def test_a_task_runs_to_its_result() -> None:
    async with running(at_once) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert (record.status, record.result, record.attempt) == (TaskStatus.COMPLETED, {"value": "ok"}, 1)


@pytest.mark.parametrize("owner", [None, "bob", "", "Alice"])
async def test_to_anybody_but_its_owner_a_task_does_not_exist(owner: str | None) -> None:
    async with running(at_once) as runtime:
        record = await create(runtime, owner="alice")
        with pytest.raises(UnknownTask):
            await runtime.get(record.id, owner=owner)


async def test_a_task_without_an_owner_is_not_anybodys() -> None:
    async with running(at_once) as runtime:
        record = await launch(runtime)
        with pytest.raises(UnknownTask):
            await runtime.get(record.id, owner="alice")


@pytest.mark.parametrize("task_id", ["", "task_unknown", "x" * (MAX_ID_LENGTH + 1), "\ud800", "\x00"])
async def test_an_id_that_names_nothing_is_unknown(task_id: str) -> None:
    async with running(at_once) as runtime:
        with pytest.raises(UnknownTask):
            await runtime.get(task_id, owner=None)


def test_ids_are_not_to_be_guessed() -> None:
    ids = {new_task_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(task_id) == len("task_") + 27 and len(task_id) <= MAX_ID_LENGTH for task_id in ids)


async def test_an_expired_task_is_unknown_before_anybody_removed_it() -> None:
    clock = FakeClock()
    async with running(at_once, clock=clock) as runtime:
        task = await until_final(runtime, await launch(runtime, retention=HOUR))
        clock.advance(HOUR - timedelta(microseconds=1))
        await runtime.get(task.id, owner=None)
        clock.advance(timedelta(microseconds=1))
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


def is_final(record: TaskRecord) -> bool:
    return record.is_final


async def test_waiting_for_a_task_ends_with_its_condition_or_its_time() -> None:
    async with running({"slow": Tool(never_ending), "quick": Tool(at_once)}) as runtime:
        slow, quick = await launch(runtime, "slow"), await launch(runtime, "quick")
        assert await runtime.wait_until(slow.id, is_final, timedelta(milliseconds=10)) is None
        finished = await runtime.wait_until(quick.id, is_final, HOUR)
        assert finished is not None
        assert finished.is_final


async def test_waiting_hears_of_what_another_process_wrote() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store) as one, running(never_ending, store=store) as other:
        task = await launch(one)
        waiting = asyncio.create_task(one.wait_until(task.id, is_final, timedelta(seconds=5)))
        await settle()
        await other.cancel(task, "enough", actor=CLIENT)
        ended = await waiting
        assert ended is not None
        assert ended.status is TaskStatus.CANCELLED


async def test_waiting_for_a_task_that_is_not_there_ends_at_once() -> None:
    async with running(at_once) as runtime:
        assert await runtime.wait_until("nobody", is_final, HOUR) is None


async def test_a_discarded_task_is_gone_and_discarding_it_twice_is_no_error() -> None:
    async with running(at_once) as runtime:
        task = await until_final(runtime, await launch(runtime))
        await runtime.discard(task)
        await runtime.discard(task)
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


async def test_a_ttl_beyond_the_calendar_keeps_the_task(tmp_path: Path) -> None:
    for store in (MemoryStore(), SqliteStore(tmp_path / "tasks.db")):
        async with running(at_once, store=store) as runtime:
            task = await until_final(runtime, await launch(runtime, retention=timedelta.max))
            assert await finished(runtime, await runtime.get(task.id, owner=None)) == task


# Taking


@pytest.mark.parametrize("store", [MemoryStore(), PausingStore()], ids=["memory", "pausing"])
async def test_of_two_runtimes_that_are_handed_a_task_exactly_one_runs_it(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    runs: Counter[str] = Counter()

    async def counted(run: Run) -> Ending:
        runs[run.record.id] += 1
        await anyio.lowlevel.checkpoint()
        return ok()

    async with running(counted, store=store) as one, running(counted, store=store) as other:
        tasks = [await create(one) for _ in range(50)]
        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(one.engine.submit, task.id)
                group.start_soon(other.engine.submit, task.id)
        for task in tasks:
            record = await until_final(one, task)
            assert (record.status, record.attempt) == (TaskStatus.COMPLETED, 1)
    assert set(runs.values()) == {1}
    assert len(runs) == 50
    assert not caplog.records, "coming second is nothing to speak of"


async def test_a_task_that_was_cancelled_in_the_queue_is_never_run() -> None:
    seen: list[str] = []

    async def noted(run: Run) -> Ending:
        seen.append(run.record.id)
        return ok()

    async with running({"slow": Tool(never_ending), "noted": Tool(noted)}, concurrency=1) as runtime:
        slow, queued = await launch(runtime, "slow"), await launch(runtime, "noted")
        cancelled = await runtime.cancel(queued, "no need", actor=CLIENT)
        assert cancelled.status is TaskStatus.CANCELLED
        await runtime.cancel(slow, "no need", actor=CLIENT)
        await settle()
        assert seen == []


async def test_a_store_that_fails_while_a_task_is_taken_leaves_it_to_the_next_sweep() -> None:
    store = FailingStore()
    async with running(at_once, store=store) as runtime:
        store.refuse_save(lambda record: record.worker is not None, times=1)
        task = await launch(runtime)
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 0
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_store_that_fails_right_after_a_task_was_taken_does_not_lose_it() -> None:
    store = FailingStore()
    store.refuse_journal()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await create(runtime)
        # An earlier process had it, so the journal is asked for.
        await runtime.changes.change(task, RunStarted(worker="earlier"), actor=CLIENT)
        await runtime.janitor.sweep()
        await settle()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Launching


REQUEST = TaskRequest(name="tool", arguments={})


async def test_a_task_for_which_there_is_room_is_written_as_taken() -> None:
    store = FailingStore()
    async with running(at_once, store=store) as runtime:
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        assert (task.worker, task.attempt, task.status) == (runtime.worker, 1, TaskStatus.WORKING)
        assert (await until_final(runtime, task)).attempt == 1
        assert store.saves == 1


async def test_a_task_for_which_there_is_no_room_is_queued() -> None:
    end = anyio.Event()

    async def slow(run: Run) -> Ending:
        await end.wait()
        return ok()

    async with running(slow, concurrency=1) as runtime:
        tasks = [await runtime.launch(REQUEST, owner=None, retention=None) for _ in range(3)]
        assert [task.attempt for task in tasks] == [1, 0, 0]
        assert [task.worker for task in tasks] == [runtime.worker, None, None]
        end.set()
        for task in tasks:
            assert (await until_final(runtime, task)).attempt == 1


class SlowCreateStore(MemoryStore):
    """Takes its time to keep a new task, and can refuse to."""

    def __init__(self) -> None:
        super().__init__()
        self.creating, self.go_on = anyio.Event(), anyio.Event()
        self.refuse = False

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        self.creating.set()
        await self.go_on.wait()
        if self.refuse:
            raise StoreUnavailable("the disk is full")
        return await super().create(record, request, **options)


async def test_a_task_that_could_not_be_kept_takes_no_place() -> None:
    store = SlowCreateStore()
    store.refuse = True
    store.go_on.set()
    async with running(at_once, store=store, concurrency=1) as runtime:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await runtime.launch(REQUEST, owner=None, retention=None)
        store.refuse = False
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        assert task.attempt == 1
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_request_that_is_given_up_while_its_task_is_kept_does_not_leave_it_behind() -> None:
    store = SlowCreateStore()
    async with running(at_once, store=store) as runtime:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await runtime.launch(REQUEST, owner=None, retention=None)

            group.start_soon(call)
            await store.creating.wait()
            group.cancel_scope.cancel()
            store.go_on.set()
        (task,) = (await runtime.list(EVERYBODY)).records
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_task_that_was_kept_while_its_process_stopped_is_run_by_the_next_one() -> None:
    store = SlowCreateStore()
    runtime = make_runtime(at_once, store=store)
    await runtime.start()
    calling = asyncio.ensure_future(runtime.launch(REQUEST, owner=None, retention=None))
    await store.creating.wait()
    await runtime.stop()
    store.go_on.set()
    task = await calling
    async with running(at_once, store=store) as other:
        # It never began, and nobody died: there is nothing that it could have done in part.
        assert (await until_final(other, task)).status is TaskStatus.COMPLETED


async def test_a_task_that_is_cancelled_before_its_run_has_begun_is_not_run() -> None:
    seen: list[str] = []
    looked_up = anyio.Event()

    async def noted(run: Run) -> Ending:
        await anyio.lowlevel.checkpoint()
        seen.append(run.record.id)
        return ok()

    async with running(noted) as runtime:
        policy = runtime.policy

        async def slow_policy(method: str, name: str) -> ToolPolicy | None:
            await looked_up.wait()
            return await policy(method, name)

        # Asked for by whoever claims the task, before the run begins.
        runtime.policy = slow_policy
        task = await launch(runtime)
        await settle()
        await runtime.cancel(task, "no need", actor=CLIENT)
        looked_up.set()
        await settle()
        assert seen == []


# Hints that were lost


async def test_a_run_learns_of_its_end_although_every_hint_is_lost() -> None:
    store, stopped = DeafStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    async with running(body, store=store) as one, running(body, store=store) as other:
        task = await launch(one)
        await settle()
        await other.cancel(await other.get(task.id, owner=None), "from elsewhere", actor=CLIENT)
        await one.lookout.look()
        with anyio.fail_after(5):
            await stopped.wait()


async def test_whoever_listens_learns_of_a_change_although_every_hint_is_lost() -> None:
    store = DeafStore()
    async with running(never_ending, store=store) as one, running(never_ending, store=store) as other:
        task = await launch(other)
        await settle()
        with one.hints.listen([task.id]) as hints:
            await one.lookout.look()
            seen = await anext(hints)
            await one.lookout.look()
            assert hints.pop() is None, "what did not change is no news"
            cancelled = await other.cancel(await other.get(task.id, owner=None), "enough", actor=CLIENT)
            await one.lookout.look()
            assert (await anext(hints)).version == cancelled.version > seen.version


async def test_looks_come_by_themselves_and_outlive_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store, stopped = BlindStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    async with (
        running(body, store=store, look_interval=timedelta(milliseconds=5)) as one,
        running(body, store=store) as other,
    ):
        task = await launch(one)
        await settle()
        store.refusals = 2
        await other.cancel(await other.get(task.id, owner=None), "from elsewhere", actor=CLIENT)
        with anyio.fail_after(5):
            await stopped.wait()
    assert store.refusals == 0
    assert "could not be compared with the store" in caplog.text


class BlindStore(DeafStore):
    """Tells nobody of a change, and refuses some looks."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the disk is full")
        return await super().versions(task_ids)


# Cancelling


async def test_a_cancelled_task_is_cancelled_from_any_process() -> None:
    store, stopped = MemoryStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    async with running(body, store=store) as one, running(body, store=store) as other:
        task = await launch(one)
        await until(one, task, lambda record: record.attempt == 1)
        record = await other.cancel(await other.get(task.id, owner=None), "from elsewhere", actor=CLIENT)
        assert record.status is TaskStatus.CANCELLED
        with anyio.fail_after(5):
            await stopped.wait()


async def test_cancelling_from_an_old_view_of_the_task_works_on_what_it_is_by_now() -> None:
    async with running(at_once) as runtime:
        old = await launch(runtime)
        ended = await until_final(runtime, old)
        assert await finished(runtime, await runtime.cancel(old, "too late", actor=CLIENT)) == ended


# Serving without running tools


async def test_a_process_that_runs_no_tools_claims_nothing_and_needs_no_lease() -> None:
    store = MemoryStore()
    async with running(at_once, store=store, runs_tools=False) as serving:
        task = await serving.launch(REQUEST, owner=None, retention=None)
        await serving.janitor.sweep()
        await settle()
        assert (await serving.get(task.id, owner=None)).attempt == 0
        assert await store.workers("") == {}
        async with running(at_once, store=store) as worker:
            assert (await until_final(worker, task)).attempt == 1
            assert await serving.outcome(task.id) is not None


async def test_a_process_that_runs_no_tools_answers_cancels_and_waits_for_those_of_others() -> None:
    store = MemoryStore()

    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async with (
        running(asking, store=store, runs_tools=False) as serving,
        running(asking, store=store, policy=RERUN) as worker,
    ):
        answered, cancelled = await launch(worker), await launch(worker)
        for task in (answered, cancelled):
            await until_asking(worker, task)
        await serving.answer(await serving.get(answered.id, owner=None), {"elicitation-1": "yes"}, actor=CLIENT)
        await serving.cancel(await serving.get(cancelled.id, owner=None), "enough", actor=CLIENT)
        ended = await serving.wait_until(answered.id, is_final, timedelta(seconds=5))
        assert ended is not None
        assert (await finished(serving, ended)).result == {"value": "yes"}
        assert (await serving.get(cancelled.id, owner=None)).status is TaskStatus.CANCELLED


async def test_a_process_that_runs_no_tools_forgets_what_has_expired() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with running(at_once, store=store, clock=clock) as worker:
        task = await until_final(worker, await launch(worker, retention=HOUR))
    async with running(at_once, store=store, clock=clock, runs_tools=False) as serving:
        clock.advance(2 * HOUR)
        await serving.janitor.sweep()
        assert await store.get(task.id) is None


# Listing


async def test_a_listing_says_whose_tasks_it_is_about() -> None:
    async with running(at_once) as runtime:
        for owner in ("ann", "bob", None):
            await create(runtime, owner=owner)
        listed = {
            whose: [record.owner for record in (await runtime.list(whose)).records]
            for whose in (OwnedBy("ann"), UNOWNED, EVERYBODY)
        }
        assert listed == {OwnedBy("ann"): ["ann"], UNOWNED: [None], EVERYBODY: ["ann", "bob", None]}


async def test_a_listing_shows_neither_what_has_expired_nor_what_is_of_another_server() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(at_once, clock=clock, store=store, namespace="here") as runtime:
        await until_final(runtime, await launch(runtime, retention=HOUR))
        async with running(at_once, clock=clock, store=store, namespace="there") as other:
            await create(other)
        clock.advance(2 * HOUR)
        kept = await create(runtime)
        assert (await runtime.list(EVERYBODY)).records == [kept]
