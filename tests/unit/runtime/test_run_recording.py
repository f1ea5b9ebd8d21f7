"""Writes whose answer is lost, and stores that go back in time: each thing happens once, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import (
    InputAnswered,
    JournalEntry,
    RunStarted,
    StepRecorded,
    TaskRecord,
    TaskRequest,
    TaskStatus,
    apply,
)
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.questions import Asking
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.codec import new_write_id
from tests.unit.running import (
    ONCE,
    RERUN,
    Seconds,
    answer,
    create,
    launch,
    ok,
    question,
    running,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated")])]

WRITES = ("create", "save")
OUTAGE = 12.0


class LossyStore(MemoryStore):
    """Carries out one write, loses its answer, and cannot be reached for some seconds after that."""

    def __init__(self) -> None:
        super().__init__()
        self.is_met: Callable[[TaskRecord], bool] = lambda record: False
        self.lost = 0
        self._back_at = 0.0

    async def create(self, record: TaskRecord, *args: Any, **options: Any) -> TaskRecord:
        self._check_up()
        return self._answer(await super().create(record, *args, **options))

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        self._check_up()
        return self._answer(await super().save(record, **options))

    async def get(self, task_id: str) -> TaskRecord | None:
        self._check_up()
        return await super().get(task_id)

    async def answer_elsewhere(self, task_id: str, key: str, value: Any) -> None:
        """Another process, which can reach the store, takes an answer."""
        record = await super().get(task_id)
        assert record is not None
        answered = apply(record, InputAnswered(keys={key}), record.updated_at).written(new_write_id())
        entry = JournalEntry(kind="answer", key=key, value=value)
        await super().save(answered, expected=record.version, entries=[entry])

    def _check_up(self) -> None:
        if asyncio.get_running_loop().time() < self._back_at:
            raise StoreUnavailable("unreachable")

    def _answer(self, record: TaskRecord) -> TaskRecord:
        if not self.lost and self.is_met(record):
            self.lost += 1
            self._back_at = asyncio.get_running_loop().time() + OUTAGE
            raise StoreUnavailable("the answer was lost", may_have_happened=True)
        return record


async def journal(runtime: TaskRuntime, task: TaskRecord) -> Counter[tuple[str, str]]:
    return Counter((entry.kind, entry.key) for entry in await runtime.store.journal(task.id))


async def test_a_question_whose_write_was_not_answered_is_open_once() -> None:
    store = LossyStore()
    store.is_met = lambda record: record.status is TaskStatus.INPUT_REQUIRED

    async def body(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE * 2)
        assert store.lost == 1
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}
        assert set((await journal(runtime, task)).values()) == {1}


async def test_a_question_is_open_once_although_many_others_write_before_the_run_asks_again() -> None:
    store = LossyStore()
    store.is_met = lambda record: len(record.inputs.outstanding) == 10

    async def body(run: Run) -> Ending:
        first = asyncio.gather(*(run.ask(question(f"{number}?")) for number in range(9)))
        await time_passes(1)
        last = asyncio.ensure_future(run.ask(question("Last?")))
        return ok([*await first, await last])

    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE)
        # Answers reach the store through another process before the run does.
        for number in range(1, 10):
            await store.answer_elsewhere(task.id, f"elicitation-{number}", number)
        await time_passes(OUTAGE)
        await answer(runtime, task, elicitation_10=10)
        assert (await until_final(runtime, task)).result == {"value": list(range(1, 11))}
        assert set((await journal(runtime, task)).values()) == {1}


async def test_a_step_that_is_given_up_is_recorded_once_and_every_run_sees_the_same() -> None:
    store = LossyStore()
    store.is_met = lambda record: record.attempt == 1 and record.version == 3
    runs = 0

    async def body(run: Run) -> Ending:
        nonlocal runs
        runs += 1
        with anyio.move_on_after(1) as scope:
            await run.step("slow", partial(asyncio.sleep, 5))
        await run.step("after", partial(asyncio.sleep, 0))
        await run.ask(question("Sure?"))
        return ok(scope.cancelled_caught)

    async with running(body, store=store, policy=ToolPolicy(rerun=True, park_after=timedelta(0))) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE * 2)
        assert store.lost == 1
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": True}
        assert runs == 2
        assert set((await journal(runtime, task)).values()) == {1}


class SlowStore(MemoryStore):
    """Takes a second for each save, and three to give a journal."""

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        await time_passes(1)
        return await super().save(record, **options)

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        await time_passes(3)
        return await super().journal(task_id, after=after)


async def winners(*racers: Callable[[Run], Awaitable[object]]) -> list[int]:
    """Who wins the race of a tool that runs twice, with a store that is slow."""
    won: list[int] = []
    loop = asyncio.get_running_loop()

    def clock() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=loop.time())

    async def body(run: Run) -> Ending:
        running_ones = [asyncio.ensure_future(racer(run)) for racer in racers]
        await asyncio.wait(running_ones, return_when=asyncio.FIRST_COMPLETED)
        won.append(next(place for place, racer in enumerate(running_ones) if racer.done()))
        await asyncio.wait(running_ones)
        for each in running_ones:
            each.exception()
        # Long enough for the run to leave memory.
        await run.sleep(timedelta(minutes=1))
        return ok()

    policy = ToolPolicy(rerun=True, park_after=timedelta(0))
    async with running(body, store=SlowStore(), policy=policy, clock=clock) as runtime:
        task = await launch(runtime)
        await time_passes(40)
        assert not runtime.runs()
        await time_passes(60)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task, limit=60)).result == {"value": "ok"}
    return won


async def fails_in_a_group(run: Run) -> None:
    """Ends when its first branch has failed, which cancels the other one."""

    async def fails() -> None:
        await run.step("fails", nothing)
        raise ValueError

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        group.start_soon(run.step, "other", after_a_moment)


async def cancels_the_other(run: Run) -> None:
    """The same without a group."""
    other = asyncio.ensure_future(run.step("other", after_a_moment))
    await run.step("fails", nothing)
    other.cancel()
    await asyncio.wait({other})


async def nothing() -> None:
    pass


async def after_a_moment() -> None:
    await time_passes(0.2)


@pytest.mark.parametrize("racer", [fails_in_a_group, cancels_the_other])
async def test_a_branch_that_is_cancelled_in_line_for_its_turn_ends_at_the_same_time_in_every_run(
    racer: Callable[[Run], Awaitable[object]],
) -> None:
    async def between(run: Run) -> None:
        await run.step("between", partial(time_passes, 0.1))

    assert await winners(racer, between) == [0, 0]


async def test_that_a_question_timed_out_is_learned_before_anything_that_is_recorded_after_it() -> None:
    async def times_out(run: Run) -> None:
        await run.ask(question("Sure?"), Asking(timeout=timedelta(seconds=5)))

    async def is_done_then(run: Run) -> None:
        await run.step("done then", partial(time_passes, 10.5))

    assert await winners(times_out, is_done_then) == [0, 0]


@pytest.mark.parametrize("policy", [ONCE, RERUN])
async def test_a_claim_whose_answer_was_lost_runs_the_tool_once(policy: ToolPolicy) -> None:
    store = LossyStore()
    store.is_met = lambda record: record.worker is not None

    async def body(run: Run) -> Ending:
        return ok(run.attempt)

    async with running(body, store=store, policy=policy) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await time_passes(OUTAGE + 2)
        assert store.lost == 1
        assert (await until_final(runtime, task)).result == {"value": 1}


async def test_a_claim_that_is_not_confirmed_while_the_lease_lasts_is_released_as_not_started() -> None:
    store = LossyStore()
    store.is_met = lambda record: record.worker is not None

    async def body(run: Run) -> Ending:
        return ok(run.attempt)

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await time_passes(1)
        runtime.lease.is_valid = False
        await time_passes(OUTAGE)
        runtime.lease.is_valid = True
        await runtime.janitor.sweep()
        done = await until_final(runtime, task)
        assert (done.result, done.attempt) == ({"value": 2}, 2)


async def test_a_claim_that_arrives_after_a_limit_refused_its_repeat_is_released_as_not_started() -> None:
    let_go = anyio.Event()

    class LateStore(MemoryStore):
        late: Callable[[], Awaitable[TaskRecord]] | None = None

        async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
            if record.id == "second" and self.late is None:
                self.late = partial(super().save, record, **{**options, "limits": None})
                raise StoreUnavailable("no answer", may_have_happened=True)
            return await super().save(record, **options)

    async def body(run: Run) -> Ending:
        await let_go.wait()
        return ok(run.attempt)

    store = LateStore()
    async with running(body, store=store, policy=ToolPolicy(max_at_work=1)) as runtime:
        await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None, task_id="first")
        task = await runtime.launch(
            TaskRequest(name="tool", arguments={}), owner=None, retention=None, task_id="second"
        )
        await time_passes(2)
        assert store.late is not None
        assert (await store.late()).worker == runtime.worker
        await runtime.janitor.sweep()
        assert (await runtime.get(task.id, owner=None)).worker is None
        let_go.set()
        assert (await until_final(runtime, task)).result == {"value": 2}


async def test_a_start_that_is_cancelled_while_its_task_is_created_leaves_a_task_that_runs() -> None:
    is_creating, may_create = anyio.Event(), anyio.Event()

    async def body(run: Run) -> Ending:
        return ok()

    class SlowStore(MemoryStore):
        async def create(self, record: TaskRecord, *args: Any, **options: Any) -> TaskRecord:
            created = await super().create(record, *args, **options)
            is_creating.set()
            await may_create.wait()
            return created

    async with running(body, store=SlowStore(), policy=ONCE) as runtime:
        request = TaskRequest(name="tool", arguments={})
        starting = asyncio.create_task(runtime.launch(request, owner=None, retention=None, task_id="task"))
        await is_creating.wait()
        starting.cancel()
        await time_passes(1)
        may_create.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert (await until_final(runtime, await runtime.find("task"))).status is TaskStatus.COMPLETED


async def test_a_task_whose_creation_was_not_answered_runs_once_the_store_is_back() -> None:
    store = LossyStore()
    store.is_met = lambda record: record.version == 2
    entered = 0

    async def body(run: Run) -> Ending:
        nonlocal entered
        entered += 1
        return ok()

    async with running(body, store=store, policy=ONCE) as runtime:
        with pytest.raises(StoreUnavailable) as lost:
            await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None, task_id="task")
        assert lost.value.may_have_happened
        await time_passes(OUTAGE)
        await runtime.janitor.sweep()
        record = await store.get("task")
        assert record is not None
        assert (await until_final(runtime, record)).status is TaskStatus.COMPLETED
        assert entered == 1


# A failover to a replica that lags behind


class RewindingStore(MemoryStore):
    """Can go back to what it was."""

    def remember(self) -> dict[str, Any]:
        return _copied({name: value for name, value in vars(self).items() if name != "_notifier"})

    def go_back(self, to: dict[str, Any]) -> None:
        vars(self).update(_copied(to))


class CancellingStore(RewindingStore):
    """Has a task cancelled by another process, which makes it as many versions as it is told, while one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.cancels_as: int | None = None

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        version, self.cancels_as = self.cancels_as, None
        if version is not None:
            record = await self.get(task_id)
            assert record is not None
            cancelled = record.but(version=version, status=TaskStatus.CANCELLED, worker=None).written(new_write_id())
            await self.save(cancelled, expected=record.version)
        return await super().journal(task_id, after=after)


def _copied(kept: dict[str, Any]) -> dict[str, Any]:
    # Records are values, and hold mappings that cannot be copied.
    return deepcopy(kept, {id(record): record for record in kept["_records"].values()})


@pytest.mark.parametrize("lost", ["question", "claim"])
async def test_a_run_writes_again_what_a_failover_lost(lost: str) -> None:
    store = RewindingStore()
    entered = 0
    may_ask = anyio.Event()

    async def body(run: Run) -> Ending:
        nonlocal entered
        entered += 1
        await run.step("first", partial(asyncio.sleep, 0))
        await may_ask.wait()
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await create(runtime)
        before_claim = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        before_question = store.remember()
        may_ask.set()
        asked = await until_asking(runtime, task)
        store.go_back(before_question if lost == "question" else before_claim)
        await runtime.lookout.look()
        again = await until_asking(runtime, task)
        assert again.inputs.outstanding == asked.inputs.outstanding
        assert again.version > asked.version
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}
        assert entered == 1
        assert await journal(runtime, task) == {
            ("step", "first"): 1,
            ("ask", "elicitation-1"): 1,
            ("answer", "elicitation-1"): 1,
            ("done", "elicitation-1"): 1,
        }


async def test_a_run_that_writes_before_it_hears_of_the_failover_loses_nothing() -> None:
    store = RewindingStore()
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await run.step("first", partial(asyncio.sleep, 0))
        await go_on.wait()
        await run.step("second", partial(asyncio.sleep, 0))
        return ok()

    async with running(body, store=store, policy=RERUN) as runtime:
        task = await create(runtime)
        start = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        store.go_back(start)
        go_on.set()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
        assert await journal(runtime, task) == {("step", "first"): 1, ("step", "second"): 1}


async def test_an_answer_that_a_run_has_not_read_is_asked_for_again() -> None:
    store = RewindingStore()

    async def body(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        before = store.remember()
        # The answer is taken, and lost before the run reads it.
        record = await store.get(task.id)
        assert record is not None
        (run,) = runtime.runs()
        run.reconcile(record.but(version=record.version + 1))
        store.go_back(before)
        await runtime.lookout.look()
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


class ForgetsAnAnswer(RewindingStore):
    """Acknowledges an answer, and loses it before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        before = self.remember()
        saved = await super().save(record, **options)
        if not self.lost and any(entry.kind == "answer" for entry in options.get("entries", ())):
            self.go_back(before)
            self.lost += 1
        return saved


async def test_a_question_whose_answer_a_failover_lost_does_not_time_out() -> None:
    store = ForgetsAnAnswer()

    async def body(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?"), Asking(timeout=timedelta(hours=1))))

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="no")
        await time_passes(1)
        assert store.lost
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_a_run_notices_a_lost_write_though_another_has_written_as_often() -> None:
    store = RewindingStore()
    may_ask = anyio.Event()

    async def body(run: Run) -> Ending:
        await may_ask.wait()
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await launch(runtime)
        await time_passes(1)
        before = store.remember()
        may_ask.set()
        asked = await until_asking(runtime, task)
        store.go_back(before)
        record = await store.get(task.id)
        assert record is not None
        await store.save(record.but(version=asked.version).written(new_write_id()), expected=record.version)
        await runtime.lookout.look()
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_an_answer_that_came_after_the_failover_is_kept() -> None:
    store = RewindingStore()

    async def body(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        (run,) = runtime.runs()
        before = store.remember()
        await run.recording.record(StepRecorded(attempt=1))
        store.go_back(before)
        answered = apply(task, InputAnswered(keys={"elicitation-1"}), task.updated_at).written(new_write_id())
        entry = JournalEntry(kind="answer", key="elicitation-1", value="yes")
        await store.save(answered, expected=task.version, entries=[entry])
        assert answered.version == run.record.version
        await runtime.lookout.look()
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_after_a_failover_two_runs_of_one_number_are_told_apart() -> None:
    store = RewindingStore()
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await go_on.wait()
        await run.step("late", partial(asyncio.sleep, 0))
        return ok()

    async with running(body, store=store, policy=RERUN) as runtime:
        task = await create(runtime)
        before = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        store.go_back(before)
        claimed = apply(task, RunStarted(worker="another"), task.created_at).written(new_write_id(run=True))
        await store.save(claimed, expected=task.version)
        reported = await store.save(claimed.but(version=3).written(new_write_id()), expected=2)
        go_on.set()
        await time_passes(1)
        assert await store.get(task.id) == reported
        assert await journal(runtime, task) == {}


@pytest.mark.parametrize("policy", [ONCE, RERUN])
async def test_a_store_that_goes_back_further_than_a_run_remembers_has_it_end_or_begin_again(
    policy: ToolPolicy,
) -> None:
    store, clock = RewindingStore(), Seconds()
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await run.step("first", partial(asyncio.sleep, 0))
        await run.step("second", partial(asyncio.sleep, 0))
        if run.attempt == 1:
            await go_on.wait()
        await run.step("third", partial(asyncio.sleep, 0))
        return ok()

    async with running(body, store=store, policy=policy, monotonic=clock) as runtime:
        task = await create(runtime)
        start = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        clock.advance(timedelta(minutes=2))
        (run,) = runtime.runs()
        await run.recording.record()
        store.go_back(start)
        await runtime.lookout.look()
        done = await until_final(runtime, task)
        if policy is RERUN:
            assert done.status is TaskStatus.COMPLETED
            assert (await journal(runtime, task))["step", "first"] == 1
        else:
            assert done.error is not None
            assert done.error["data"]["type"] == "Interrupted"


async def test_a_run_whose_task_has_ended_in_the_store_that_went_back_is_stopped() -> None:
    store = RewindingStore()

    async def body(run: Run) -> Ending:
        await run.ask(question("Sure?"))
        return ok()

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        (run,) = runtime.runs()
        run.reconcile(task.but(version=100))
        await MemoryStore.save(
            store, task.but(version=task.version + 1, status=TaskStatus.CANCELLED, worker=None), expected=task.version
        )
        await runtime.lookout.look()
        await until(runtime, task, lambda record: not runtime.has(record.id) or record.is_final)
        assert run.stopped.is_set()


async def test_a_run_whose_task_is_cancelled_while_it_writes_again_what_was_lost_is_stopped() -> None:
    """The cancelled task has as many versions as the run knows of."""
    store, may_begin, may_go_on = CancellingStore(), anyio.Event(), anyio.Event()

    async def body(run: Run) -> Ending:
        await may_begin.wait()
        await run.step("first", nothing)
        await run.step("second", may_go_on.wait)
        return ok()

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await launch(runtime)
        await time_passes(1)
        before = store.remember()
        may_begin.set()
        await time_passes(1)
        (run,) = runtime.runs()
        store.go_back(before)
        store.cancels_as = run.record.version
        may_go_on.set()
        await time_passes(1)
        assert run.stopped.is_set()
        assert (await until_final(runtime, task)).status is TaskStatus.CANCELLED
