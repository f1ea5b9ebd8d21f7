"""Who runs a task: taking over from dead processes, claims, and tasks that take their process down."""

import logging
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.machine import InputRequested, RunReleased, RunStarted, StepRecorded
from mcp_tasks.model.record import Trial
from mcp_tasks.runtime import Ending, Run, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.claims import TRIES_TO_LOOK_UP
from mcp_tasks.runtime.lease import LeaseTimes, new_worker_name
from mcp_tasks.runtime.sweeps import LONGEST_PAUSE, ORPHANS_EVERY, PER_SWEEP, TROUBLES_BEFORE_THE_END
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock, make_record
from tests.unit.losing import ANOTHER, GONE, as_of_now, claimed_by, queued, sweep_for
from tests.unit.processes import dead_worker, other_process, renamed
from tests.unit.running import (
    HOUR,
    ONCE,
    QUIET,
    REQUEST,
    RERUN,
    SECOND,
    Held,
    Meddle,
    MeddledStore,
    PausingStore,
    Seconds,
    TogetherStore,
    Tool,
    all_end,
    at_once,
    cancel,
    create,
    error_type,
    finished,
    launch,
    loop_time,
    make_runtime,
    never_ending,
    ok,
    opened_by,
    question,
    running,
    settle,
    start,
    started,
    until,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

SILENCE = timedelta(seconds=LeaseTimes.of(QUIET.lease_duration, HOUR).takeover)
"""For how long a heartbeat stays the same before tasks are taken over."""

TOOLS = {"again": Tool(at_once, RERUN), "once": Tool(at_once, ONCE)}


def lines_about(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# Who is dead


@contextmanager
def a_worker(**parts: str) -> Generator[str]:
    """A living process, or another name for it."""
    with other_process() as (worker, _):
        yield renamed(worker, **parts)


@contextmanager
def signalled(number: int, *, reaped: bool = False) -> Generator[str]:
    with other_process() as (worker, process):
        process.send_signal(number)
        if reaped:
            process.wait()
        elif number == signal.SIGKILL:
            # Returns when it is dead, and leaves it there as a zombie.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield worker


def named(name: str | None = None, **parts: str) -> AbstractContextManager[str]:
    return nullcontext(renamed(new_worker_name(), **parts) if name is None else name)


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")


@ON_LINUX
@pytest.mark.parametrize(
    ("worker", "is_gone"),
    [
        pytest.param(lambda: signalled(signal.SIGKILL, reaped=True), True, id="killed and reaped"),
        pytest.param(lambda: signalled(signal.SIGKILL), True, id="killed"),
        pytest.param(lambda: signalled(signal.SIGSTOP), False, id="stopped"),
        pytest.param(a_worker, False, id="alive"),
        pytest.param(lambda: a_worker(started="1"), True, id="its id was used again"),
        pytest.param(lambda: a_worker(started="?"), False, id="its start is not known"),
        pytest.param(named, False, id="this process by another name"),
        pytest.param(lambda: named(started="1"), True, id="our id was used before"),
        # Process 1 belongs to root; as root it is simply a process that runs.
        pytest.param(lambda: named(pid="1", started="?"), False, id="another user's"),
        *(
            pytest.param(partial(named, place=place, pid="999999"), False, id=f"at {place!r}")
            for place in ("another-boot:pid:[1]", "", "another-machine")
        ),
        *(pytest.param(partial(named, pid=pid), False, id=f"id {pid!r}") for pid in ("", "x", "-1", str(2**70))),
        *(pytest.param(partial(named, name), False, id=f"{name!r}") for name in ("/", "worker-1", "a/b/c", "a/1")),
    ],
)
async def test_tasks_of_a_process_that_is_certainly_gone_are_taken_at_once_and_no_others(
    worker: Callable[[], AbstractContextManager[str]], is_gone: bool
) -> None:
    with worker() as name:
        async with running(TOOLS) as runtime:
            await runtime.store.heartbeat(name, namespace="", beats=1)
            task = await claimed_by(runtime, name, "once")
            await runtime.janitor.sweep()
            ended = await finished(runtime, await as_of_now(runtime, task))
            assert error_type(ended) == ("interrupted" if is_gone else None)
            assert (name in await runtime.store.workers("")) is not is_gone


@pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")
async def test_without_start_times_a_process_is_known_by_machine_and_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> NoReturn:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "read_bytes", missing)
    assert new_worker_name().split("/")[:3] == [os.uname().nodename, str(os.getpid()), "?"]
    with other_process() as (alive, _):
        dead = dead_worker()
        async with running(TOOLS) as runtime:
            tasks: list[TaskRecord] = []
            for name in (alive, dead):
                await runtime.store.heartbeat(name, namespace="", beats=1)
                tasks.append(await claimed_by(runtime, name, "once"))
            await runtime.janitor.sweep()
            assert [(await as_of_now(runtime, task)).is_final for task in tasks] == [False, True]


@asynccontextmanager
async def elsewhere(**options: Any) -> AsyncGenerator[tuple[TaskRuntime, Seconds, TaskRecord]]:
    """A process that watches another one, by a clock that the test moves, and what that one does."""
    monotonic = Seconds()
    async with running(never_ending, policy=RERUN, monotonic=monotonic, **options) as runtime:
        await runtime.store.heartbeat("elsewhere", namespace="", beats=1)
        yield runtime, monotonic, await claimed_by(runtime, "elsewhere")


@pytest.mark.parametrize("of_this_machine", [True, False])
async def test_the_tasks_of_a_living_process_are_its_own_until_it_has_been_silent_for_the_lease(
    of_this_machine: bool,
) -> None:
    monotonic = Seconds()
    with a_worker() as alive:
        worker = alive if of_this_machine else "elsewhere"
        async with running(TOOLS, monotonic=monotonic) as runtime:
            await runtime.store.heartbeat(worker, namespace="", beats=1)
            again, once = await claimed_by(runtime, worker, "again"), await claimed_by(runtime, worker, "once")
            await sweep_for(runtime, monotonic, SILENCE - SECOND)
            assert (await as_of_now(runtime, again)).worker == worker
            await sweep_for(runtime, monotonic, SECOND)
            recovered = await until_final(runtime, again)
            assert (recovered.status, recovered.attempt) == (TaskStatus.COMPLETED, 2)
            assert (await as_of_now(runtime, once)).status is TaskStatus.FAILED


async def test_a_process_that_beats_keeps_its_tasks_however_late_it_is() -> None:
    async with elsewhere() as (runtime, monotonic, task):
        for beats in range(2, 7):
            await runtime.store.heartbeat("elsewhere", namespace="", beats=beats)
            await sweep_for(runtime, monotonic, SILENCE - SECOND)
        assert await as_of_now(runtime, task) == task


@pytest.mark.parametrize("jump", [500 * HOUR, -500 * HOUR], ids=["ahead", "back"])
@pytest.mark.parametrize("which", ["clock", "monotonic"])
async def test_a_clock_that_jumps_takes_nothing_from_anybody(which: str, jump: timedelta) -> None:
    clock = FakeClock()
    async with elsewhere(clock=clock) as (runtime, monotonic, task):
        await runtime.janitor.sweep()
        # As after a sleep: what the others did meanwhile is not known.
        (clock if which == "clock" else monotonic).advance(jump)
        await sweep_for(runtime, monotonic, SECOND)
        assert await as_of_now(runtime, task) == task


async def test_time_in_which_an_answer_was_on_its_way_proves_nothing() -> None:
    store = MeddledStore()
    async with elsewhere(store=store) as (runtime, monotonic, task):

        async def slowly(*args: Any) -> None:
            monotonic.advance(10 * SILENCE)

        store.after["workers"] = slowly
        for _ in range(5):
            await runtime.janitor.sweep()
            monotonic.advance(SECOND)
        assert await as_of_now(runtime, task) == task


async def test_a_process_whose_heartbeat_a_failover_lost_is_waited_for() -> None:
    async with elsewhere() as (runtime, monotonic, task):
        await runtime.janitor.sweep()
        await runtime.store.retire("elsewhere")
        await runtime.janitor.sweep()
        assert await as_of_now(runtime, task) == task
        await sweep_for(runtime, monotonic, SILENCE)
        await until(runtime, task, lambda record: record.worker == runtime.worker)


@pytest.mark.parametrize("was_seen", [True, False])
@pytest.mark.parametrize("away", [2 * SECOND, 2 * SILENCE])
async def test_a_process_whose_heartbeat_was_lost_while_it_had_no_task_is_waited_for_also_by_who_never_saw_it(
    was_seen: bool, away: timedelta
) -> None:
    monotonic = Seconds()
    async with running(never_ending, policy=RERUN, monotonic=monotonic) as runtime:
        if was_seen:
            await runtime.store.heartbeat("elsewhere", namespace="", beats=1)
            await runtime.janitor.sweep()
            await runtime.store.retire("elsewhere")
        await sweep_for(runtime, monotonic, away, sweeps=20)
        # It claims a task before it sends the next one.
        task = await claimed_by(runtime, "elsewhere")
        await sweep_for(runtime, monotonic, SILENCE - SECOND)
        assert await as_of_now(runtime, task) == task
        await sweep_for(runtime, monotonic, 2 * SECOND)
        await until(runtime, task, lambda record: record.worker == runtime.worker)


@asynccontextmanager
async def observed() -> AsyncGenerator[tuple[MeddledStore, TaskRuntime, Seconds, TaskRuntime]]:
    """A process that only serves and sees a worker by a clock that the test moves, and that worker."""
    store, monotonic = MeddledStore(), Seconds()
    async with (
        running(never_ending, store=store, policy=RERUN, runs_tools=False, monotonic=monotonic) as observer,
        running(never_ending, store=store, policy=RERUN) as worker,
    ):
        yield store, observer, monotonic, worker


async def is_not_taken(observer: TaskRuntime, task: TaskRecord, worker: TaskRuntime) -> bool:
    record = await as_of_now(observer, task)
    return (record.worker, record.attempt, record.lost) == (worker.worker, 1, 0)


async def test_a_worker_that_is_back_before_it_is_forgotten_keeps_its_heartbeat() -> None:
    async with observed() as (store, observer, monotonic, worker):
        beats = (await store.workers(""))[worker.worker]

        async def is_back(name: str, **options: Any) -> None:
            if name == worker.worker:
                store.before.clear()
                await store.heartbeat(name, namespace="", beats=beats + 1)

        store.before["claimed"] = is_back
        await sweep_for(observer, monotonic, SILENCE)
        assert await store.workers("") == {worker.worker: beats + 1}


async def test_what_a_worker_claims_that_is_back_just_as_it_is_forgotten_is_not_taken_from_it() -> None:
    async with observed() as (store, observer, monotonic, worker):

        async def is_back(name: str) -> None:
            store.before.clear()
            await worker.lease.renew()

        store.before["retire"] = is_back
        await sweep_for(observer, monotonic, SILENCE)
        # It may claim tasks: its lease is good, and its next heartbeat is not due yet.
        task = await started(worker)
        assert await store.workers("") == {worker.worker: 0}
        await sweep_for(observer, monotonic, SECOND)
        assert await is_not_taken(observer, task, worker)


# Our own


@simulated
@pytest.mark.parametrize("announced", [True, False])
async def test_a_task_of_our_own_that_nothing_runs_is_given_up_some_time_and_not_as_lost(announced: bool) -> None:
    options: dict[str, Any] = {"sweep_interval": SECOND, "monotonic": loop_time, "uptime": loop_time}
    async with running(at_once, policy=TaskOptions(recover="rerun", max_lost_runs=1), **options) as runtime:
        task = await claimed_by(runtime, runtime.worker, announced=announced)
        await time_passes(ORPHANS_EVERY + 0.5)
        assert (await as_of_now(runtime, task)).worker == runtime.worker, "it may be just beginning or ending"
        ended = await until_final(runtime, task, limit=600)
        assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 2)


async def test_a_lost_run_of_a_task_that_is_not_announced_yet_is_run_again() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store, policy=RERUN) as dying:
        task = await start(dying, announced=False)
        await settle()
        await dying.abandon()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        # Where engines carry ids to other processes, the one that has the call is not the one that died.
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Coming second


async def test_two_processes_that_recover_the_same_tasks_do_so_once() -> None:
    store = PausingStore()
    async with running(TOOLS, store=store) as one, running(TOOLS, store=store) as other:
        tasks = [await claimed_by(one, GONE, name) for name in ("again", "once") for _ in range(10)]
        async with anyio.create_task_group() as group:
            group.start_soon(one.janitor.sweep)
            group.start_soon(other.janitor.sweep)
        ended = [await until_final(one, task) for task in tasks]
    expected = [(TaskStatus.COMPLETED, 2)] * 10 + [(TaskStatus.FAILED, 1)] * 10
    assert [(record.status, record.attempt) for record in ended] == expected


def once(meanwhile: Callable[[], Awaitable[None]], store: MeddledStore, verb: str) -> Meddle:
    """Something that happens in the middle of a verb, the next time."""

    async def happens(*args: Any, **options: Any) -> None:
        store.before.pop(verb, None)
        store.after.pop(verb, None)
        await meanwhile()

    return happens


async def test_a_task_that_another_process_recovered_and_runs_is_not_taken_from_it() -> None:
    store = MeddledStore()
    async with (
        running(never_ending, store=store, policy=RERUN) as one,
        running(never_ending, store=store, policy=RERUN) as other,
    ):
        task = await claimed_by(one, GONE)

        async def other_is_first() -> None:
            await other.janitor.sweep()
            await until(other, task, lambda record: record.worker == other.worker)

        store.before["get"] = once(other_is_first, store, "get")
        await one.janitor.sweep()
        await settle()
        record = await as_of_now(one, task)
        assert (record.worker, record.attempt) == (other.worker, 2)


@pytest.mark.parametrize("claims_again", [True, False], ids=["claims another time", "writes first"])
async def test_a_silent_worker_that_is_back_keeps_its_run(claims_again: bool) -> None:
    store = MeddledStore()
    async with elsewhere(store=store) as (runtime, monotonic, task):

        async def is_back() -> None:
            await store.heartbeat("elsewhere", namespace="", beats=2)
            again = RunReleased(attempt=1), RunStarted(worker="elsewhere")
            events = again if claims_again else (StepRecorded(attempt=1),)
            await runtime.changes.change(task, *events, actor=ANOTHER)

        # While its tasks are looked up, or when one is being taken over.
        if claims_again:
            store.after["claimed"] = once(is_back, store, "claimed")
        else:
            store.before["save"] = once(is_back, store, "save")
        await sweep_for(runtime, monotonic, HOUR)
        record = await as_of_now(runtime, task)
        assert (record.worker, record.attempt, record.lost) == ("elsewhere", 1 + claims_again, 0)


async def test_a_worker_that_was_forgotten_and_is_back_does_not_look_silent_to_who_missed_that() -> None:
    async with observed() as (store, observer, monotonic, worker):
        lease = observer.settings.lease_duration
        await sweep_for(observer, monotonic, lease * 2 / 3)
        # Another process finds it dead and forgets it. It is back before the observer looks again.
        await store.retire(worker.worker)
        await worker.lease.renew()
        task = await started(worker)
        monotonic.advance(lease / 3)
        await observer.janitor.sweep()
        assert await is_not_taken(observer, task, worker)


# Left alone


async def test_tasks_that_cannot_be_recovered_here_do_not_hide_those_behind_them() -> None:
    async with running({"ours": Tool(at_once, RERUN)}) as runtime:
        for _ in range(PER_SWEEP + 1):
            await claimed_by(runtime, GONE, "theirs")
        ours = await claimed_by(runtime, GONE, "ours")
        await runtime.janitor.sweep()
        assert (await as_of_now(runtime, ours)).worker == GONE, "one sweep does only so much"
        await runtime.janitor.sweep()
        assert (await until_final(runtime, ours)).status is TaskStatus.COMPLETED


async def test_tasks_of_another_server_in_the_same_store_are_left_alone() -> None:
    store = MemoryStore()
    theirs = make_runtime(at_once, store=store, namespace="theirs")
    waiting, lost = await create(theirs), await claimed_by(theirs, GONE)
    async with running(at_once, store=store, namespace="ours", policy=RERUN) as ours:
        await ours.janitor.sweep()
        # Also one that is carried here by mistake.
        await ours.dispatch.resubmit(waiting.id)
        await settle()
        assert [await as_of_now(ours, task) for task in (waiting, lost)] == [waiting, lost]
    async with running(at_once, store=store, namespace="theirs", policy=RERUN) as theirs:
        await all_end(theirs, waiting, lost)


async def test_tasks_of_a_tool_that_this_process_lacks_wait_for_one_that_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    async with running({"here": Tool(at_once)}, store=store) as one:
        waiting = [await create(one, "there") for _ in range(3)]
        lost = [await claimed_by(one, GONE, "there") for _ in range(3)]
        for _ in range(3):
            await one.janitor.sweep()
            await settle()
        assert [await as_of_now(one, task) for task in (*waiting, *lost)] == [*waiting, *lost]
        assert lines_about(caplog, "this server has no tool 'there'") == 1
        async with running({"there": Tool(at_once, RERUN)}, store=store) as other:
            await all_end(other, *waiting, *lost)


# Trouble with one of many


async def broken(method: str, name: str) -> TaskOptions | None:
    if name == "good":
        return RERUN
    raise RuntimeError("the tool cannot be looked up")


@pytest.mark.parametrize("works_again", [True, False])
async def test_a_look_up_that_raises_is_tried_with_each_sweep_and_then_the_task_ends(
    works_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running({"good": Tool(at_once, RERUN), "bad": Tool(at_once, RERUN)}) as runtime:
        policy, runtime.policy = runtime.policy, broken
        bad, good = await claimed_by(runtime, GONE, "bad"), await claimed_by(runtime, GONE, "good")
        for _ in range(TROUBLES_BEFORE_THE_END - 1):
            await runtime.janitor.sweep()
            assert (await as_of_now(runtime, bad)).worker == GONE
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED
        if works_again:
            runtime.policy = policy
        await runtime.janitor.sweep()
        assert error_type(await until_final(runtime, bad)) == (None if works_again else "interrupted")
        assert lines_about(caplog, "is left as it is, and the others go on: RuntimeError") == 1


@pytest.mark.parametrize("works_again", [True, False])
async def test_a_task_whose_tool_could_not_be_looked_up_when_it_was_made_is_run_later_or_ends(
    works_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    monotonic = Seconds()
    async with running(at_once, policy=ONCE, monotonic=monotonic) as runtime:
        policy, runtime.policy = runtime.policy, broken
        task = await start(runtime)
        await settle()
        # It never began, so there is nothing that it could have done in part.
        assert (await as_of_now(runtime, task)).worker is None
        if works_again:
            runtime.policy = policy
        for _ in range(1 if works_again else TRIES_TO_LOOK_UP - 1):
            assert not (await as_of_now(runtime, task)).is_final
            await runtime.janitor.sweep()
            await settle(10)
            monotonic.advance(LONGEST_PAUSE)
        assert error_type(await until_final(runtime, task)) == (None if works_again else "cannot_start")
    assert lines_about(caplog, "is left as it is, and the others go on: RuntimeError") == 1


async def test_a_row_that_cannot_be_read_is_one_bad_task_and_is_spoken_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, monotonic = MeddledStore(), Seconds()
    async with running(at_once, store=store, policy=RERUN, monotonic=monotonic) as runtime:
        bad = await claimed_by(runtime, GONE), await create(runtime)
        damaged = {task.id for task in bad}

        async def read(task_id: str) -> None:
            if task_id in damaged:
                raise TaskUnreadable(task_id, "the row is damaged")

        store.before["get"] = read
        fine = [await claimed_by(runtime, GONE), await claimed_by(runtime, dead_worker())]
        for _ in range(3):
            await runtime.janitor.sweep()
            await settle()
        await all_end(runtime, *fine)
        assert [lines_about(caplog, task.id[:12]) for task in bad] == [1, 1]
        # Nothing of it is lost: with the damage undone it goes on.
        damaged.clear()
        monotonic.advance(LONGEST_PAUSE)
        await runtime.janitor.sweep()
        await all_end(runtime, *bad)


# Losing runs

SUSPECT = TaskOptions(recover="rerun", max_lost_runs=2)
"""One lost run makes a suspect of a task."""


async def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("lost", "trial", "is_ended"),
    [
        (1, "alone", False),
        (2, None, False),
        (2, "beside", False),
        (2, "alone", True),
        (10, None, False),
        (11, None, True),
    ],
)
async def test_only_who_is_lost_alone_or_for_ever_is_ended(lost: int, trial: Trial | None, is_ended: bool) -> None:
    async with running(at_once, policy=RERUN) as runtime:
        record = make_record(name="tool", worker=GONE, attempt=lost + 1, lost=lost, trial=trial)
        task = await runtime.store.create(record, REQUEST)
        await runtime.janitor.sweep()
        assert ((await as_of_now(runtime, task)).status is TaskStatus.FAILED) is is_ended


async def test_a_tool_that_takes_its_process_down_is_given_up_after_so_many_runs() -> None:
    store = MemoryStore()
    task = await create(make_runtime(never_ending, store=store))
    for attempt in (1, 2, 3):
        async with running(never_ending, store=store, policy=RERUN) as runtime:
            await until(runtime, task, lambda record, n=attempt: record.attempt == n and record.worker is not None)
            await runtime.abandon()
    async with running(never_ending, store=store, policy=RERUN) as runtime:
        ended = await until_final(runtime, task)
        assert (ended.status, ended.attempt, error_type(ended)) == (TaskStatus.FAILED, 3, "lost")


async def test_a_run_that_gets_further_begins_the_count_anew_and_keeps_no_other_back() -> None:
    async def stepping(run: Run) -> Ending:
        await current_task().step("further", _nothing)
        return await never_ending(run)

    async with running({"stepping": Tool(stepping, RERUN), "quick": Tool(at_once, RERUN)}) as runtime:
        one, other = await queued(runtime, "stepping", lost=2), await queued(runtime, "quick", lost=2)
        await runtime.engine.submit(one.id)
        further = await until(runtime, one, lambda record: record.attempt == 3 and record.lost == 0)
        assert further.worker == runtime.worker
        await runtime.engine.submit(other.id)
        assert (await until_final(runtime, other)).status is TaskStatus.COMPLETED


async def test_a_task_that_cannot_be_lost_once_more_runs_apart_from_others_like_it() -> None:
    order: list[str] = []
    ended: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def suspect(run: Run) -> Ending:
        order.append(run.record.id)
        await ended[run.record.id].wait()
        return ok()

    async with running({"suspect": Tool(suspect, RERUN), "fine": Tool(at_once, RERUN)}) as runtime:
        suspects = [await queued(runtime, "suspect", lost=2) for _ in range(3)]
        lost_once = await queued(runtime, "suspect", lost=1)
        fine = await launch(runtime, "fine")
        await runtime.janitor.sweep()
        await settle()
        assert order == [suspects[0].id, lost_once.id]
        assert (await until_final(runtime, fine)).status is TaskStatus.COMPLETED
        for now, following in pairwise(suspects):
            ended[now.id].set()
            await until_final(runtime, now)
            # Without a sweep: whoever was turned away is called.
            await until(runtime, following, lambda record: record.worker is not None)
            await settle()
            assert order[-1] == following.id


@pytest.mark.parametrize("what", ["journal", "store", "cancelled"])
async def test_a_suspect_that_could_not_be_started_does_not_keep_the_others_back(what: str) -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        bad, good = await queued(runtime, lost=2), await queued(runtime, lost=2)
        if what == "journal":
            store.refuse(TaskUnreadable(bad.id, "the journal is damaged"), "journal", times=1)
        else:
            store.go_away("journal", times=1)
        await runtime.engine.submit(bad.id)
        await settle()
        if what == "cancelled":
            await cancel(runtime, await as_of_now(runtime, bad))
        await runtime.engine.submit(good.id)
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED


@simulated
@pytest.mark.parametrize(("lost", "seconds"), [(1, 10), (3, 40)])
async def test_a_suspect_that_lasts_for_long_enough_has_passed_its_trial(lost: int, seconds: int) -> None:
    async with running(never_ending, policy=SUSPECT) as runtime:
        task = await queued(runtime, lost=lost)
        await runtime.engine.submit(task.id)
        await time_passes(seconds - 1)
        assert (await as_of_now(runtime, task)).trial is not None
        await time_passes(2)
        passed = await as_of_now(runtime, task)
        assert (passed.trial, passed.attempt, passed.worker) == (None, lost + 1, runtime.worker)


@simulated
async def test_a_trial_goes_on_if_its_end_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.claims")
    store = MeddledStore()
    store.go_away("save", when=lambda record, _: record.attempt == 2 and record.trial is None)
    async with running(never_ending, store=store, policy=SUSPECT) as runtime:
        task = await queued(runtime, lost=1)
        await runtime.engine.submit(task.id)
        await time_passes(15)
        assert "goes on: the disk is full" in caplog.text
        assert (await as_of_now(runtime, task)).trial is not None
        assert runtime.has(task.id)
        store.before.clear()


# At the limit


async def test_a_task_beyond_a_limit_is_not_tried_again_before_a_run_has_ended() -> None:
    store, gate = MeddledStore(), anyio.Event()
    async with running(opened_by(gate), store=store, policy=TaskOptions(max_at_work=1)) as runtime:
        first, second = await started(runtime), await launch(runtime)
        await settle()
        looks = store.calls["get"]
        await settle(500)
        assert store.calls["get"] == looks
        gate.set()
        await all_end(runtime, first, second)


async def test_of_two_runtimes_that_are_handed_a_task_exactly_one_runs_it(caplog: pytest.LogCaptureFixture) -> None:
    store, runs = PausingStore(), Counter[str]()

    async def counted(run: Run) -> Ending:
        runs[run.record.id] += 1
        await anyio.lowlevel.checkpoint()
        return ok()

    async with running(counted, store=store) as one, running(counted, store=store) as other:
        tasks = [await create(one) for _ in range(50)]
        async with anyio.create_task_group() as group:
            for task, runtime in product(tasks, (one, other)):
                group.start_soon(runtime.engine.submit, task.id)
        assert {(await until_final(one, task)).attempt for task in tasks} == {1}
    assert runs == {task.id: 1 for task in tasks}
    assert not caplog.records, "coming second is nothing to speak of"


# What is read of a task first


async def test_a_task_that_is_cancelled_while_its_request_is_read_never_begins() -> None:
    hold, begun = Held(), list[str]()

    async def noted(run: Run) -> Ending:
        begun.append(run.record.id)
        return ok()

    async with running(noted, store=MeddledStore(request=hold), policy=RERUN) as runtime:
        task = await launch(runtime)
        await hold.came.wait()
        # However long it takes, the task is nobody's: it is not found as claimed and not run.
        for _ in range(2):
            await runtime.janitor.recovery.release_orphans()
        await cancel(runtime, await as_of_now(runtime, task))
        hold.goes_on.set()
        await settle()
        assert ((await as_of_now(runtime, task)).status, begun) == (TaskStatus.CANCELLED, [])


@pytest.mark.parametrize("verb", ["save", "journal", "request"])
async def test_a_store_that_fails_while_a_task_is_taken_leaves_it_to_a_later_sweep_and_it_is_not_counted_as_lost(
    verb: str,
) -> None:
    store, monotonic = MeddledStore(), Seconds()
    async with running(at_once, store=store, policy=RERUN, monotonic=monotonic) as runtime:
        task = await queued(runtime, lost=1)
        store.go_away(verb, times=1)
        await runtime.engine.submit(task.id)
        await settle()
        waiting = await as_of_now(runtime, task)
        assert (waiting.attempt, waiting.lost, waiting.worker) == (1, 1, None)
        await sweep_for(runtime, monotonic, SECOND)
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_task_whose_request_cannot_be_read_ends_and_says_so() -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        bad = await create(runtime)
        store.damaged = {"request"}
        await runtime.engine.submit(bad.id)
        assert error_type(await until_final(runtime, bad)) == "request"


@pytest.mark.parametrize(
    "entry",
    [
        None,
        JournalEntry(kind="step", key="s", value=7),
        JournalEntry(kind="step", key="s", value={}),
        JournalEntry(kind="step", key="s", value={"error": {}}),
        JournalEntry(kind="step", key="s", value={"error": {"type": 1, "arguments": None, "message": "no"}}),
        JournalEntry(kind="timer", key="t", value={}),
        JournalEntry(kind="timer", key="t", value={"until": "noon"}),
        JournalEntry(kind="timer", key="t", value={"until": 10**30}),
        JournalEntry(kind="ask", key="q", value=None),
        JournalEntry(kind="ask", key="q", value={"params": {}}),
        JournalEntry(kind="done", key="q", value=None),
        JournalEntry(kind="done", key="q", value={}),
    ],
    ids=str,
)
async def test_a_task_whose_journal_is_damaged_or_makes_no_sense_ends_and_says_so(entry: JournalEntry | None) -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await claimed_by(runtime, GONE)
        asked = InputRequested(attempt=1, requests={"q": question("Sure?")})
        await runtime.changes.change(task, asked, actor=ANOTHER, entries=[entry] if entry else [])
        if entry is None:
            store.refuse(TaskUnreadable(task.id, "the journal is damaged"), "journal")
        await runtime.janitor.sweep()
        ended = await until_final(runtime, task)
        assert (error_type(ended), ended.worker) == ("journal", None)
        store.before.clear()


async def test_a_task_that_cannot_be_started_and_has_ended_meanwhile_stays_as_it_ended() -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await queued(runtime, lost=1)

        async def cancelled(task_id: str, **options: Any) -> None:
            await cancel(runtime, await as_of_now(runtime, task))
            raise TaskUnreadable(task_id, "its journal is damaged")

        store.before["journal"] = cancelled
        await runtime.engine.submit(task.id)
        ended = await until_final(runtime, task)
        assert (ended.status, ended.status_message) == (TaskStatus.CANCELLED, "enough")
