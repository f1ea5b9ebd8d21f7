"""Observers: told of everything that happens to tasks, and unable to break or delay one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from datetime import timedelta

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.model import TaskRequest, TaskStatus
from mcp_tasks.model.machine import (
    InputAnswered,
    InputRequested,
    ProgressReported,
    RunCompleted,
    RunParked,
    RunReleased,
    RunStarted,
    StepRecorded,
    TaskAnnounced,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.model.record import Actor, Progress
from mcp_tasks.runtime import Ending, Run, TaskChange, ToolPolicy, current_task
from mcp_tasks.runtime.observers import Choosy, Observed, Observers, Refusal, TaskAccess, Wanted, Watcher
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock, make_record
from tests.unit.running import (
    CLIENT,
    RERUN,
    answer,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

REQUEST = TaskRequest(name="tool", arguments={})
HOUR = timedelta(hours=1)


class Seen:
    """Keeps what it is told, and can be waited for."""

    def __init__(self) -> None:
        self.changes: list[TaskChange] = []
        self.threads: set[int] = set()

    def __call__(self, change: TaskChange) -> None:
        self.threads.add(threading.get_ident())
        self.changes.append(change)

    @property
    def events(self) -> list[type]:
        return [type(change.event) for change in self.changes]


async def at_once(run: Run) -> Ending:
    return ok()


async def asking(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


async def test_every_change_of_a_task_is_told_with_who_made_it() -> None:
    seen = Seen()

    async def body(run: Run) -> Ending:
        await current_task().step("one", lambda: 1)
        return await asking(run)

    async with running(body, observers=[seen], policy=ToolPolicy(rerun=True, park_after=timedelta(0))) as runtime:
        task = await runtime.launch(REQUEST, owner="ann", retention=None, announced=False)
        task = await runtime.announce(task)
        task = await until(runtime, task, lambda record: bool(record.inputs.outstanding) and record.worker is None)
        await runtime.answer(task, {"elicitation-1": True}, actor=Actor("client", "ann"))
        await runtime.discard(await until(runtime, task, lambda record: record.is_final))
        process = runtime.worker
    told = [(type(change.event), change.actor.kind, change.actor.name) for change in seen.changes]
    assert told == [
        (TaskCreated, "client", "ann"),
        (RunStarted, "client", "ann"),
        (TaskAnnounced, "client", "ann"),
        (StepRecorded, "run", process),
        (InputRequested, "run", process),
        (RunParked, "worker", process),
        (InputAnswered, "client", "ann"),
        (RunStarted, "worker", process),
        (StepRecorded, "run", process),
        (RunCompleted, "run", process),
        (TaskDeleted, "client", "ann"),
    ]


async def test_each_change_begins_where_the_last_one_ended() -> None:
    seen = Seen()

    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        return ok()

    async with running(body, observers=[seen]) as runtime:
        await until_final(runtime, await launch(runtime))
    assert seen.events == [TaskCreated, RunStarted, ProgressReported, RunCompleted]
    assert seen.changes[0].before is None
    for earlier, later in zip(seen.changes, seen.changes[1:], strict=False):
        assert later.before == earlier.after
    assert seen.changes[-1].task.status is TaskStatus.COMPLETED


async def test_what_is_written_together_is_told_one_by_one() -> None:
    seen = Seen()

    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        await settle()
        await run.report(Progress(progress=2))
        return ok()

    async with running(body, observers=[seen], progress_interval=HOUR) as runtime:
        await until_final(runtime, await launch(runtime))
    assert seen.events[-2:] == [ProgressReported, RunCompleted]
    reported = seen.changes[-2].after
    assert reported is not None
    assert (reported.progress, reported.is_final) == (Progress(progress=2), False)


async def test_what_made_no_difference_is_not_told() -> None:
    seen = Seen()
    async with running(at_once, observers=[seen]) as runtime:
        task = await until_final(runtime, await launch(runtime))
        await runtime.cancel(task, "too late", actor=CLIENT)
        await runtime.announce(task)
    assert seen.events == [TaskCreated, RunStarted, RunCompleted]


async def test_a_task_that_stood_under_its_key_is_not_told_as_created() -> None:
    seen = Seen()
    async with running(at_once, observers=[seen]) as runtime:
        await runtime.launch(REQUEST, owner=None, retention=None, key="k")
        await until_final(runtime, await runtime.launch(REQUEST, owner=None, retention=None, key="k"))
    assert seen.events.count(TaskCreated) == 1


async def test_expiry_is_told_with_the_task_that_is_gone() -> None:
    seen, clock = Seen(), FakeClock()
    async with running(at_once, observers=[seen], clock=clock) as runtime:
        task = await until_final(runtime, await launch(runtime, retention=HOUR))
        clock.advance(2 * HOUR)
        await runtime.janitor.sweep()
        process = runtime.worker
    gone = seen.changes[-1]
    assert (type(gone.event), gone.after, gone.task.id) == (TaskDeleted, None, task.id)
    assert gone.actor == Actor("sweep", process)


async def test_a_change_that_another_process_made_is_told_there() -> None:
    here, there, store = Seen(), Seen(), MemoryStore()
    async with (
        running(asking, observers=[here], store=store) as one,
        running(asking, observers=[there], store=store) as other,
    ):
        task = await until_asking(one, await launch(one))
        await other.cancel(task, "enough", actor=CLIENT)
        await until_final(one, task)
    assert there.events == [TaskCancelled]
    assert TaskCancelled not in here.events


async def test_handing_over_is_told_before_the_process_has_stopped() -> None:
    seen = Seen()
    async with running(asking, observers=[seen], policy=RERUN) as runtime:
        await until_asking(runtime, await launch(runtime))
    assert seen.events[-1] in (RunReleased, RunParked)


# Neither broken nor delayed


async def test_an_observer_is_called_in_one_thread_of_its_own() -> None:
    seen = Seen()
    async with running(at_once, observers=[seen]) as runtime:
        for _ in range(10):
            await until_final(runtime, await launch(runtime))
    assert len(seen.threads) == 1
    assert threading.get_ident() not in seen.threads


async def test_an_observer_that_blocks_delays_no_task() -> None:
    go_on = threading.Event()

    def slow(change: TaskChange) -> None:
        go_on.wait(10)

    try:
        async with running(at_once, observers=[slow], stop_timeout=timedelta(milliseconds=10)) as runtime:
            for _ in range(100):
                await until_final(runtime, await launch(runtime))
            assert not go_on.is_set()
    finally:
        go_on.set()


@pytest.mark.parametrize("exception", [RuntimeError("a defect"), SystemExit(1)])
async def test_an_observer_that_raises_is_named_once_and_costs_the_others_nothing(
    exception: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    def broken(change: TaskChange) -> None:
        raise exception

    async with running(at_once, observers=[broken, seen]) as runtime:
        for _ in range(3):
            await until_final(runtime, await launch(runtime))
    assert seen.events.count(RunCompleted) == 3
    named = [record for record in caplog.records if "failed to observe a change" in record.getMessage()]
    assert len(named) == 1
    assert "broken" in named[0].getMessage()


async def test_an_observer_that_cannot_keep_up_loses_changes_and_the_log_says_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on, told = threading.Event(), list[TaskChange]()

    def slow(change: TaskChange) -> None:
        go_on.wait(10)
        told.append(change)

    observers = Observers([slow], max_waiting=10)
    for number in range(25):
        observers.tell(_created(number))
    go_on.set()
    await observers.stop(timedelta(seconds=5))
    assert [change.task.id for change in told] == [str(number) for number in range(10)]
    assert "15 changes of tasks were not told to <function" in caplog.text


async def test_after_an_overflow_observers_are_told_of_what_comes_next() -> None:
    seen = Seen()
    observers = Observers([seen], max_waiting=2)
    for number in range(5):
        observers.tell(_created(number))
    with anyio.fail_after(5):
        while len(seen.changes) < 2:  # noqa: ASYNC110 - a thread appends to it
            await asyncio.sleep(0.005)
    observers.tell(_created(9))
    await observers.stop(timedelta(seconds=5))
    assert [change.task.id for change in seen.changes] == ["0", "1", "9"]


async def test_stopping_waits_for_observers_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def stuck(change: TaskChange) -> None:
        go_on.wait(10)

    observers = Observers([stuck])
    observers.tell(_created(1))
    with anyio.fail_after(5):
        await observers.stop(timedelta(milliseconds=20))
    go_on.set()
    assert "was not told of all changes" in caplog.text


async def test_an_observer_that_is_stuck_holds_up_no_other() -> None:
    go_on, seen = threading.Event(), Seen()

    def stuck(change: TaskChange) -> None:
        go_on.wait(10)

    try:
        async with running(at_once, observers=[stuck, seen], stop_timeout=timedelta(milliseconds=10)) as runtime:
            await until_final(runtime, await launch(runtime))
            with anyio.fail_after(5):
                while RunCompleted not in seen.events:  # noqa: ASYNC110 - a thread appends to it
                    await asyncio.sleep(0.005)
            assert not go_on.is_set()
    finally:
        go_on.set()


async def until_seen(condition: Callable[[], bool]) -> None:
    """Return when a thread of an observer has come so far."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - threads are waited for
            await asyncio.sleep(0.005)


async def test_a_process_that_is_abandoned_tells_nothing_more() -> None:
    seen = Seen()
    async with running(asking, observers=[seen]) as runtime:
        await until_asking(runtime, await launch(runtime))
        await runtime.abandon()
        told = len(seen.changes)
    assert len(seen.changes) == told


# Nobody observes


class Picky(Seen, Choosy):
    """Wants to be told of some events, and can change its mind."""

    def __init__(self, *wanted: type[Observed]) -> None:
        super().__init__()
        self.likes: Collection[type[Observed]] = wanted
        self.asked = 0

    def wanted(self) -> Collection[type[Observed]]:
        self.asked += 1
        return self.likes


async def test_an_observer_is_told_of_what_it_wants_and_not_asked_with_every_change() -> None:
    picky, greedy = Picky(RunCompleted), Seen()
    async with running(at_once, observers=[picky, greedy]) as runtime:
        asked = picky.asked
        for _ in range(5):
            await until_final(runtime, await launch(runtime))
        assert picky.asked == asked
    assert set(picky.events) == {RunCompleted}
    assert set(greedy.events) == {TaskCreated, RunStarted, RunCompleted}


async def test_an_observer_may_change_its_mind() -> None:
    picky = Picky()
    async with running(at_once, observers=[picky], look_interval=timedelta(milliseconds=5)) as runtime:
        await until_final(runtime, await launch(runtime))
        picky.likes = (RunCompleted,)
        asked = picky.asked
        with anyio.fail_after(5):
            while picky.asked == asked:  # noqa: ASYNC110 - the runtime asks by itself
                await asyncio.sleep(0.005)
        await until_final(runtime, await launch(runtime))
    assert picky.events == [RunCompleted]


async def test_with_nobody_who_wants_to_know_there_is_no_thread() -> None:
    picky, before = Picky(), set(threading.enumerate())
    async with running(at_once, observers=[picky]) as runtime:
        await until_final(runtime, await launch(runtime))
        assert set(threading.enumerate()) <= before
    assert picky.changes == []


def _created(number: int) -> TaskChange:
    return TaskChange(before=None, event=TaskCreated(), after=make_record(id=str(number)), actor=CLIENT)


async def test_answers_are_told_by_their_keys_alone() -> None:
    seen = Seen()
    async with running(asking, observers=[seen]) as runtime:
        task = await until_asking(runtime, await launch(runtime, secret_argument="hunter2"))
        await answer(runtime, task, elicitation_1="hunter2")
        await until_final(runtime, task)
    assert InputAnswered in seen.events
    assert "hunter2" not in repr(seen.changes)


class Watching(Watcher):
    """Keeps all that a watcher is told; it can be held up."""

    def __init__(self, *wanted: type[Wanted]) -> None:
        self.told: list[object] = []
        self.closed = False
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._wanted = wanted

    def wanted(self) -> Collection[type[Wanted]]:
        return self._wanted

    def __call__(self, change: TaskChange) -> None:
        self.told.append(change)

    def access(self, access: TaskAccess) -> None:
        self.begun.set()
        self.may_go_on.wait(10)
        self.told.append(access)

    def lost(self, count: int) -> None:
        self.told.append(f"lost {count}")

    def tick(self) -> None:
        self.told.append("tick")

    def close(self) -> None:
        self.closed = True


LOOK = TaskAccess("read", "tasks/get", "alice", 0.0, "task_1")


async def test_looks_and_refusals_are_for_watchers_that_want_them() -> None:
    everything, looks, refusals = Seen(), Watching(TaskAccess), Watching(Refusal)
    observers = Observers([everything, looks, refusals])
    refused = LOOK._replace(refused=Refusal.UNKNOWN)
    observers.note(LOOK)
    observers.note(refused)
    await observers.stop(HOUR)
    assert (looks.told, refusals.told) == ([LOOK], [refused])
    assert everything.changes == []
    assert looks.closed


async def test_a_watcher_is_told_what_it_was_not_told_and_that_time_goes_by() -> None:
    watching = Watching(TaskAccess)
    observers = Observers([watching], max_waiting=3)
    watching.may_go_on.clear()
    for _ in range(5):
        observers.note(LOOK)
    await eventually(lambda: observers.lost)
    watching.may_go_on.set()
    observers.ask()
    await observers.stop(HOUR)
    assert watching.told == [LOOK, LOOK, LOOK, "lost 2", "tick"]
    assert observers.lost == 2


def test_nobody_wants_looks_unless_somebody_says_so() -> None:
    assert not Observers([Seen()]).want(TaskAccess)
    assert not Observers([Seen()]).want(Refusal)


async def test_a_watcher_of_a_process_that_is_abandoned_is_not_told_what_waits_nor_closed() -> None:
    watching, threads = Watching(TaskAccess), set(threading.enumerate())
    observers = Observers([watching])
    watching.may_go_on.clear()
    for _ in range(3):
        observers.note(LOOK)
    await until_seen(watching.begun.is_set)
    observers.abandon()
    watching.may_go_on.set()
    await until_seen(lambda: set(threading.enumerate()) <= threads)
    assert (watching.told, watching.closed) == ([LOOK], False)


async def test_a_watcher_that_is_too_slow_to_the_end_is_told_how_much_it_missed() -> None:
    watching = Watching(TaskAccess)
    observers = Observers([watching])
    watching.may_go_on.clear()
    for _ in range(3):
        observers.note(LOOK)
    await observers.stop(timedelta(milliseconds=20))
    watching.may_go_on.set()
    await until_seen(lambda: watching.closed)
    assert watching.told == [LOOK, "lost 2"]


async def test_nobody_is_told_of_a_change_that_nobody_wants() -> None:
    picky, before = Picky(RunCompleted), set(threading.enumerate())
    observers = Observers([picky])
    observers.tell(_created(1))
    await observers.stop(HOUR)
    assert picky.changes == []
    assert set(threading.enumerate()) <= before


def test_a_change_of_no_task_is_none() -> None:
    change = TaskChange(before=None, event=TaskCreated(), after=None, actor=CLIENT)
    with pytest.raises(ValueError, match="a change is one of some task"):
        _ = change.task
