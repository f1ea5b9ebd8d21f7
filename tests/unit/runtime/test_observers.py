"""Observers and the log: told of everything that happens to tasks, and unable to break or delay one."""

import logging
import re
import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import Progress, TaskStatus
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
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime import AskedOnCall, Ending, Failure, Run, Success, TaskChange, TaskOptions, current_task
from mcp_tasks.runtime import observers as watching
from mcp_tasks.runtime.observers import Observers, Refusal, TaskAccess, Troubles, Wanted, Watcher
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.testing import FakeClock, make_record
from tests.unit.running import (
    CLIENT,
    HOUR,
    ONCE,
    PARKS,
    RERUN,
    MeddledStore,
    Tool,
    answer,
    asks,
    at_once,
    cancel,
    create,
    launch,
    never_ending,
    ok,
    question,
    running,
    settle,
    start,
    started,
    until,
    until_asking,
    until_final,
    until_parked,
)


class Seen:
    """Keeps what it is told, and by which thread; it can be held up."""

    def __init__(self, *, held: bool = False) -> None:
        self.told: list[object] = []
        self.threads: set[int] = set()
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        if not held:
            self.may_go_on.set()

    def __call__(self, change: TaskChange) -> None:
        self.begun.set()
        self.may_go_on.wait(10)
        self.threads.add(threading.get_ident())
        self.told.append(change)

    @property
    def changes(self) -> list[TaskChange]:
        return [each for each in self.told if isinstance(each, TaskChange)]

    @property
    def events(self) -> list[type]:
        return [type(change.event) for change in self.changes]


class Choosing(Seen, Watcher):
    """Wants to be told of some things, and can change its mind."""

    def __init__(self, *wanted: type[Wanted], held: bool = False) -> None:
        super().__init__(held=held)
        self.likes: Collection[type[Wanted]] = wanted
        self.asked = 0
        self.closed = False

    def wanted(self) -> Collection[type[Wanted]]:
        self.asked += 1
        return self.likes

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


def created(number: int) -> TaskChange:
    return TaskChange(before=None, event=TaskCreated(), after=make_record(id=str(number)), actor=CLIENT)


async def test_every_change_of_a_task_is_told_with_who_made_it() -> None:
    seen = Seen()

    async def body(run: Run) -> Ending:
        await current_task().step("one", lambda: 1)
        return await asks(run)

    async with running(body, observers=[seen], policy=PARKS) as runtime:
        task = await start(runtime, owner="ann", announced=False)
        task = await runtime.announce(task)
        task = await until_parked(runtime, task, "elicitation-1")
        await runtime.answer(task, {"elicitation-1": "hunter2"}, actor=Actor("client", "ann"))
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
    assert "hunter2" not in repr(seen.changes), "answers are told by their keys alone"
    assert len(seen.threads) == 1
    assert threading.get_ident() not in seen.threads


async def test_each_change_begins_where_the_last_one_ended_also_of_those_written_together() -> None:
    seen = Seen()

    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        await settle()
        await run.report(Progress(progress=2))
        return ok()

    async with running(body, observers=[seen], progress_interval=HOUR) as runtime:
        await until_final(runtime, await launch(runtime))
    assert seen.events == [TaskCreated, RunStarted, ProgressReported, ProgressReported, RunCompleted]
    assert seen.changes[0].before is None
    for earlier, later in pairwise(seen.changes):
        assert later.before == earlier.after
    reported = seen.changes[-2].task
    assert (reported.progress, reported.is_final) == (Progress(progress=2), False)
    assert seen.changes[-1].task.status is TaskStatus.COMPLETED


async def test_what_made_no_difference_is_not_told() -> None:
    seen = Seen()
    async with running(at_once, observers=[seen]) as runtime:
        for _ in range(2):
            task = await until_final(runtime, await start(runtime, key="k"))
            await cancel(runtime, task)
            await runtime.announce(task)
    assert seen.events == [TaskCreated, RunStarted, RunCompleted]


async def test_a_change_whose_answer_was_lost_is_told_once_and_of_several_what_changed_something() -> None:
    seen, store = Seen(), MeddledStore()
    async with running(at_once, store=store, runs_tools=False, observers=[seen]) as runtime:
        task, write = await create(runtime), new_write_id()
        again = partial(runtime.changes.change, actor=CLIENT, write=write)

        async def lose(*args: Any, **options: Any) -> None:
            store.after.clear()
            raise StoreUnavailable("the answer was lost", may_have_happened=True)

        store.after["save"] = lose
        once, more = TaskCancelled(reason="enough"), TaskCancelled(reason="enough, I said")
        with pytest.raises(StoreUnavailable):
            await again(task, once, more)
        # The caller may have heard of its own change by then.
        for known in (task, await runtime.find(task.id)):
            assert (await again(known, once, more)).status_message == "enough"
    assert [change.event for change in seen.changes[1:]] == [once]


async def test_expiry_is_told_with_the_task_that_is_gone() -> None:
    seen, clock = Seen(), FakeClock()
    async with running(at_once, observers=[seen], clock=clock) as runtime:
        task = await until_final(runtime, await launch(runtime, retention=HOUR))
        clock.advance(2 * HOUR)
        await runtime.janitor.sweep()
    gone = seen.changes[-1]
    assert (type(gone.event), gone.after, gone.task.id) == (TaskDeleted, None, task.id)
    assert gone.actor == Actor("sweep", runtime.worker)


async def test_a_change_is_told_in_the_process_that_made_it_until_it_has_stopped_or_died() -> None:
    here, there, store = Seen(), Seen(), MemoryStore()
    async with running(asks, observers=[there], store=store, policy=RERUN) as other:
        async with running(asks, observers=[here], store=store, policy=RERUN) as one:
            task, left = [await until_asking(one, await launch(one)) for _ in range(2)]
            await cancel(other, task)
        assert TaskCancelled not in here.events
        assert here.events[-1] in (RunReleased, RunParked)
        await until(other, left, lambda record: record.worker != one.worker)
        await eventually(lambda: TaskCancelled in there.events)
        await other.abandon()
        told = list(there.events)
    assert there.events == told
    assert TaskCancelled in told


# Neither broken nor delayed


async def test_an_observer_that_blocks_delays_no_task_no_other_observer_and_no_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, seen = Seen(held=True), Seen()
    async with running(at_once, observers=[stuck, seen], stop_timeout=timedelta(milliseconds=10)) as runtime:
        for _ in range(20):
            await until_final(runtime, await launch(runtime))
        await eventually(lambda: seen.events.count(RunCompleted) == 20)
        with anyio.fail_after(5):
            await runtime.stop()
    assert stuck.changes == []
    assert "was not told of all changes" in caplog.text
    stuck.may_go_on.set()


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
    slow = Seen(held=True)
    observers = Observers([slow], max_waiting=10)
    for number in range(25):
        observers.tell(created(number))
    slow.may_go_on.set()
    await eventually(lambda: len(slow.changes) == 10)
    observers.tell(created(99))
    await observers.stop(timedelta(seconds=5))
    assert [change.task.id for change in slow.changes] == [*map(str, range(10)), "99"]
    assert "15 changes of tasks were not told to <tests" in caplog.text


# Those who choose


async def test_an_observer_is_told_of_what_it_wants_and_may_change_its_mind() -> None:
    picky, before = Choosing(), set(threading.enumerate())
    async with running(at_once, observers=[picky], look_interval=timedelta(milliseconds=5)) as runtime:
        await until_final(runtime, await launch(runtime))
        assert set(threading.enumerate()) <= before, "with nobody who wants to know there is no thread"
        picky.likes = (RunCompleted,)
        asked = picky.asked
        await eventually(lambda: picky.asked > asked)
        await until_final(runtime, await launch(runtime))
    assert picky.events == [RunCompleted]


async def test_an_observer_is_not_asked_what_it_wants_with_every_change() -> None:
    picky, greedy = Choosing(RunCompleted), Seen()
    async with running(at_once, observers=[picky, greedy]) as runtime:
        asked = picky.asked
        for _ in range(5):
            await until_final(runtime, await launch(runtime))
        assert picky.asked == asked
    assert (set(picky.events), set(greedy.events)) == ({RunCompleted}, {TaskCreated, RunStarted, RunCompleted})


LOOK = TaskAccess("read", "tasks/get", "alice", 0.0, "task_1")


async def test_looks_and_refusals_are_for_watchers_that_want_them() -> None:
    everything, looks, refusals = Seen(), Choosing(TaskAccess), Choosing(Refusal)
    observers = Observers([everything, looks, refusals])
    refused = LOOK._replace(refused=Refusal.UNKNOWN)
    observers.note(LOOK)
    observers.note(refused)
    await observers.stop(HOUR)
    assert (looks.told, refusals.told) == ([LOOK], [refused])
    assert everything.changes == []
    assert looks.closed


async def test_a_watcher_is_told_what_it_was_not_told_and_that_time_goes_by() -> None:
    watching = Choosing(TaskAccess, held=True)
    observers = Observers([watching], max_waiting=3)
    for _ in range(5):
        observers.note(LOOK)
    await eventually(lambda: observers.lost)
    watching.may_go_on.set()
    observers.ask()
    await observers.stop(HOUR)
    assert watching.told == [LOOK, LOOK, LOOK, "lost 2", "tick"]
    assert observers.lost == 2


@pytest.mark.parametrize("abandoned", [True, False])
async def test_a_watcher_that_is_too_slow_to_the_end_is_told_how_much_it_missed_unless_its_process_died(
    abandoned: bool,
) -> None:
    watching, threads = Choosing(TaskAccess, held=True), set(threading.enumerate())
    observers = Observers([watching])
    for _ in range(3):
        observers.note(LOOK)
    await eventually(watching.begun.is_set)
    if abandoned:
        observers.abandon()
    else:
        await observers.stop(timedelta(milliseconds=20))
    watching.may_go_on.set()
    await eventually(lambda: set(threading.enumerate()) <= threads)
    assert (watching.told, watching.closed) == (([LOOK], False) if abandoned else ([LOOK, "lost 2"], True))


# The log: one line for each thing that an operator wants to know of a task, and nothing of what it was about

LOGGER, SECRET = "mcp_tasks.runtime.observers", "hunter2"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was said of the tasks, without which task it was."""
    caplog.set_level(logging.INFO, logger=LOGGER)

    def lines() -> list[str]:
        said = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        return [re.sub(r"^task task_[\w-]{7}… \(\w+\) ", "", line) for line in said]

    return lines


async def test_the_life_of_a_task_is_in_the_log_and_nothing_of_what_it_is_about(log: Callable[[], list[str]]) -> None:
    clock = FakeClock()

    async def body(run: Run) -> Ending:
        await run.ask(question(SECRET))
        clock.advance(timedelta(seconds=12.34))
        return ok(SECRET) if run.request.arguments["works"] else Failure({"code": -1, "message": SECRET})

    async with running(body, clock=clock) as runtime:
        for works in (True, False):
            task = await until_asking(runtime, await launch(runtime, works=works, secret=SECRET))
            await answer(runtime, task, elicitation_1=SECRET)
            await until_final(runtime, task)
        await cancel(runtime, await until_asking(runtime, await launch(runtime)), SECRET)
    begins = ["was created", "was started: run 1", "waits: it asks the client 1 question (1 open)"]
    assert log()[:8] == [*begins, "completed after 12.3 s, in run 1", *begins, "failed after 12.3 s, in run 1"]
    assert SECRET not in "\n".join(log())


async def test_each_thing_that_an_operator_wants_to_know_has_its_line(
    log: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def on_call(run: Run) -> Ending:
        await run.ask_on_call({"question": SECRET})
        return AskedOnCall()

    async def wrong(run: Run) -> Ending:
        return Success({"content": [], "isError": True})

    store, lost = MemoryStore(), {"again": Tool(never_ending, RERUN), "once": Tool(never_ending, ONCE)}
    limited = Tool(never_ending, TaskOptions(max_runtime=timedelta(milliseconds=10)))
    tools = {"asks": Tool(asks, PARKS), "on_call": Tool(on_call), "wrong": Tool(wrong), "endless": limited, **lost}
    async with running(tools, store=store) as one:
        await cancel(one, await until_parked(one, await launch(one, "asks")))
        for name in ("on_call", "wrong", "endless"):
            task = await start(one, name, announced=False)
            await until_final(one, task)
        again, once = await started(one, "again"), await started(one, "once")
        await eventually(lambda: sum(line == "was started: run 1" for line in log()) == 6)
        await one.abandon()
    async with running(lost, store=store) as other:
        await until_final(other, once)
        await until(other, again, lambda record: record.attempt == 2 and record.worker is not None)
    said = "\n".join(log())
    assert SECRET not in said
    for line in (
        r"waits: it asks the client 1 question \(1 open\)",
        r"was parked: run 1 waits and has left memory",
        r".* its tool asks on the original call",
        r"completed with an error of its tool \(isError\) after .*",
        r".* in run 1: max_runtime",
        r"was recovered: run 1 died with its process, and it will run again",
        r"failed after \S+ s, in run 1: interrupted",
        r"was released: run 2 was given up, and it will run again",
    ):
        assert re.search(f"^{line}$", said, re.MULTILINE), line
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "max_runtime" in warnings[0], "a failure that is not the tool's"


async def test_a_log_level_counts_also_when_it_is_changed_and_where_nobody_reads_it_nothing_is_queued(
    log: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=LOGGER)
    async with running(at_once, look_interval=timedelta(milliseconds=5)) as runtime:
        await until_final(runtime, await launch(runtime))
        assert "mcp-tasks-observers" not in {thread.name for thread in threading.enumerate()}
        assert log() == []
        caplog.set_level(logging.INFO, logger=LOGGER)

        async def another_is_told_of() -> bool:
            await until_final(runtime, await launch(runtime))
            return "was created" in log()

        await eventually(another_is_told_of)


async def test_deletion_is_for_those_who_want_to_know_everything(caplog: pytest.LogCaptureFixture) -> None:
    for level, said in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.set_level(level, logger="mcp_tasks.runtime.observers")
        async with running(at_once) as runtime:
            await runtime.discard(await until_final(runtime, await launch(runtime)))
        assert caplog.text.count("was deleted") == said


def test_only_so_many_tasks_are_remembered_that_gave_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_TROUBLES", 2)
    noted = Troubles()
    tasks = ("one", "two", "one", "three", "one", "two")
    assert [noted.note(task, ValueError("odd")) for task in tasks] == [1, 1, 2, 1, 3, 1]


def test_a_change_of_no_task_is_none() -> None:
    change = TaskChange(before=None, event=TaskCreated(), after=None, actor=CLIENT)
    with pytest.raises(ValueError, match="a change is one of some task"):
        _ = change.task
