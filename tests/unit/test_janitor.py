"""Housekeeping: who is alive, what was lost, what has expired."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from mcp_tasks.core import InputRequested, RunStarted, TaskRecord, TaskRequest, TaskStatus, apply
from mcp_tasks.errors import StoreUnavailable, UnknownTask
from mcp_tasks.runtime import Outcome, Run, TaskRuntime
from mcp_tasks.runtime.holder import new_holder
from mcp_tasks.runtime.janitor import BATCH
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    ONCE,
    RERUN,
    FailingStore,
    PausingStore,
    Tool,
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


async def at_once(run: Run) -> Outcome:
    return ok()


async def never_ending(run: Run) -> Outcome:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


TOOLS = {"again": Tool(at_once, RERUN), "once": Tool(at_once, ONCE)}


def dead_holder() -> str:
    """The name of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as process:
        process.wait()
    place, _, _, nonce = new_holder().split("/")
    return f"{place}/{process.pid}/1/{nonce}"


async def held_by(runtime: TaskRuntime, holder: str, tool: str) -> TaskRecord:
    """A task whose run another process has."""
    task = await runtime.create(TaskRequest(name=tool, arguments={}), owner=None, ttl=HOUR)
    return await runtime.change(task, RunStarted(holder=holder))


# What was lost


@pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")
async def test_tasks_of_a_dead_process_are_recovered_at_once_whatever_its_lease_says() -> None:
    runtime = make_runtime(TOOLS)
    dead = dead_holder()
    await runtime.store.beat(dead, until=runtime.now() + HOUR)
    again, once = await held_by(runtime, dead, "again"), await held_by(runtime, dead, "once")
    await runtime.start()
    try:
        assert (await until_final(runtime, again)).attempt == 2
        failed = await runtime.get(once.id, owner=None)
        assert (failed.status, failed.attempt) == (TaskStatus.FAILED, 1)
        assert failed.error is not None
        assert failed.error["data"] == {"type": "Interrupted"}
        assert dead not in await runtime.store.holders()
    finally:
        await runtime.stop()


async def test_tasks_of_a_process_elsewhere_are_its_own_until_its_lease_has_run_out() -> None:
    clock = FakeClock()
    async with running(TOOLS, clock=clock) as runtime:
        await runtime.store.beat("elsewhere", until=clock() + HOUR)
        task = await held_by(runtime, "elsewhere", "again")
        clock.advance(HOUR - timedelta(seconds=1))
        await runtime.janitor.sweep()
        assert (await runtime.get(task.id, owner=None)).holder == "elsewhere"
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).attempt == 2


@contextmanager
def _living() -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    """Another process of this machine, and the name that it would have given itself."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        place, _, _, nonce = new_holder().split("/")
        yield "/".join((place, str(process.pid), stat[stat.rindex(")") + 2 :].split()[19], nonce)), process


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times are read from /proc")
async def test_a_living_process_of_this_machine_keeps_its_tasks_when_every_lease_has_run_out() -> None:
    clock, store = FakeClock(), MemoryStore()
    with _living() as (alive, process):
        async with running(at_once, store=store, clock=clock, policy=ONCE) as runtime:
            record = await runtime.create(TaskRequest(name="tool", arguments={}), owner=None, ttl=None)
            await store.save(apply(record, RunStarted(holder=alive), clock()), expected=record.version)
            await store.beat(alive, until=clock())
            # As after a machine was suspended: the time is over, and nobody is gone.
            clock.advance(48 * HOUR)
            await runtime.janitor.sweep()
            assert (await runtime.get(record.id, owner=None)).holder == alive
            process.kill()
            process.wait()
            await runtime.janitor.sweep()
            assert (await runtime.get(record.id, owner=None)).status is TaskStatus.FAILED


async def test_a_holder_that_never_said_it_was_alive_is_not_believed_to_be() -> None:
    async with running(TOOLS) as runtime:
        task = await held_by(runtime, "never heard of", "again")
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_task_that_waited_for_a_person_in_a_dead_process_waits_on_without_it() -> None:
    async def asking(run: Run) -> Outcome:
        return ok(await run.ask(question("Sure?")))

    store = MemoryStore()
    async with running(asking, store=store, policy=RERUN) as one:
        task = await until_asking(one, await launch(one))
        await one.abandon()
        async with running(asking, store=store, policy=RERUN) as other:
            await settle()
            parked = await other.get(task.id, owner=None)
            assert (parked.status, parked.holder, parked.attempt) == (TaskStatus.INPUT_REQUIRED, None, 1)
            await other.answer(parked, {"elicitation-1": "yes"})
            assert (await until_final(other, task)).result == {"value": "yes"}


async def test_a_question_of_a_task_that_may_not_run_again_is_withdrawn_when_it_is_lost() -> None:
    async with running(TOOLS) as runtime:
        task = await held_by(runtime, "never heard of", "once")
        await runtime.change(task, InputRequested(attempt=1, requests={"a": question("Sure?")}))
        await runtime.janitor.sweep()
        failed = await runtime.get(task.id, owner=None)
        assert failed.status is TaskStatus.FAILED
        assert not failed.inputs.outstanding


async def test_a_sweep_leaves_the_runs_of_its_own_process_alone() -> None:
    clock = FakeClock()
    async with running(never_ending, clock=clock, policy=RERUN) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
        clock.advance(48 * HOUR)
        await runtime.janitor.sweep()
        await settle()
        assert await runtime.get(task.id, owner=None) == task


async def test_a_task_of_our_own_that_nothing_runs_is_given_up_at_the_second_look() -> None:
    async with running(at_once, policy=RERUN) as runtime:
        record = await runtime.create(TaskRequest(name="tool", arguments={}), owner=None, ttl=None)
        taken = apply(record, RunStarted(holder=runtime.holder), runtime.now())
        await runtime.store.save(taken, expected=record.version)
        await runtime.janitor.release_orphans()
        assert (await runtime.get(record.id, owner=None)).holder == runtime.holder
        await runtime.janitor.release_orphans()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, record)).status is TaskStatus.COMPLETED


async def test_more_lost_tasks_than_one_look_takes_are_all_recovered() -> None:
    count = BATCH + 10
    async with running(TOOLS) as runtime:
        tasks = [await held_by(runtime, "gone", "again" if n % 2 else "once") for n in range(count)]
        await runtime.janitor.sweep()
        records = [await until_final(runtime, task) for task in tasks]
        assert [record.status for record in records] == [TaskStatus.FAILED, TaskStatus.COMPLETED] * (count // 2)


async def test_more_queued_tasks_than_one_look_takes_are_all_run_without_a_pause_in_between() -> None:
    store = MemoryStore()
    earlier = make_runtime(TOOLS, store=store)
    count = 3 * BATCH
    tasks = [await earlier.create(TaskRequest(name="once", arguments={}), owner=None, ttl=HOUR) for _ in range(count)]
    async with running(TOOLS, store=store, concurrency=4) as runtime:
        for task in tasks:
            assert (await until_final(runtime, task, limit=20)).status is TaskStatus.COMPLETED


async def test_two_processes_that_recover_the_same_tasks_do_so_once() -> None:
    store = PausingStore()
    async with running(TOOLS, store=store) as one, running(TOOLS, store=store) as other:
        tasks = [await held_by(one, "gone", "again" if n % 2 else "once") for n in range(20)]
        async with anyio.create_task_group() as group:
            group.start_soon(one.janitor.sweep)
            group.start_soon(other.janitor.sweep)
        for number, task in enumerate(tasks):
            record = await until_final(one, task)
            assert (record.status, record.attempt) == (
                (TaskStatus.COMPLETED, 2) if number % 2 else (TaskStatus.FAILED, 1)
            )


# Being alive


async def test_a_process_says_again_and_again_that_it_is_alive() -> None:
    async with running(at_once, lease=timedelta(milliseconds=30)) as runtime:
        first = (await runtime.store.holders())[runtime.holder]
        with anyio.fail_after(5):
            while (await runtime.store.holders())[runtime.holder] == first:  # noqa: ASYNC110 - nobody tells of a beat
                await anyio.sleep(0.005)


class MuteStore(MemoryStore):
    """Refuses to note that a process is alive, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self.refused = anyio.Event()

    async def beat(self, holder: str, *, until: datetime) -> None:
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise StoreUnavailable("the disk is full")
        await super().beat(holder, until=until)


async def test_a_beat_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    store = MuteStore()
    async with running(at_once, store=store, lease=timedelta(milliseconds=30)) as runtime:
        store.refusals = 2
        with anyio.fail_after(5):
            await store.refused.wait()
            refused = (await store.holders())[runtime.holder]
            while (await store.holders())[runtime.holder] == refused:  # noqa: ASYNC110 - nobody tells of a beat
                await anyio.sleep(0.005)
    assert "could not renew the lease" in caplog.text


async def test_a_process_that_stopped_is_no_longer_among_the_living() -> None:
    async with running(at_once) as runtime:
        assert runtime.holder in await runtime.store.holders()
    assert await runtime.store.holders() == {}


# Sweeping


async def test_sweeps_come_by_themselves() -> None:
    async with running(TOOLS, sweep=timedelta(milliseconds=10)) as runtime:
        task = await held_by(runtime, "gone", "again")
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_sweep_that_fails_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    store = FailingStore()
    async with running(TOOLS, store=store, sweep=timedelta(milliseconds=10)) as runtime:
        task = await held_by(runtime, "gone", "again")
        store.refuse_save(lambda record: record.holder is None, times=3)
        assert (await until_final(runtime, task)).attempt == 2
    assert "a sweep did not finish" in caplog.text


async def test_a_sweep_outlives_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    async with running(TOOLS, sweep=timedelta(milliseconds=10)) as runtime:
        broken = anyio.Event()
        sweep = runtime.janitor.sweep

        async def fail_once() -> None:
            runtime.janitor.sweep = sweep
            broken.set()
            raise RuntimeError("a defect")

        runtime.janitor.sweep = fail_once
        with anyio.fail_after(5):
            await broken.wait()
        task = await held_by(runtime, "gone", "again")
        assert (await until_final(runtime, task)).attempt == 2
    assert "a sweep failed" in caplog.text


async def test_a_task_that_was_forgotten_on_its_way_to_the_engine_is_started() -> None:
    async with running(at_once) as runtime:
        task = await runtime.create(TaskRequest(name="tool", arguments={}), owner=None, ttl=HOUR)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Expiry


async def test_an_expired_task_is_removed_with_its_journal() -> None:
    clock = FakeClock()

    async def stepping(run: Run) -> Outcome:
        return ok(await run.step("a", _one))

    async with running(stepping, clock=clock) as runtime:
        task = await until_final(runtime, await launch(runtime, ttl=HOUR))
        clock.advance(HOUR - timedelta(seconds=1))
        await runtime.janitor.sweep()
        assert await runtime.store.get(task.id) == task
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        assert await runtime.store.get(task.id) is None
        assert await runtime.journal(task.id) == ()


async def _one() -> int:
    return 1


async def test_a_running_task_never_expires() -> None:
    clock, end = FakeClock(), anyio.Event()

    async def slow(run: Run) -> Outcome:
        await end.wait()
        return ok()

    async with running(slow, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime, ttl=timedelta(seconds=1)), lambda record: record.attempt == 1)
        clock.advance(1000 * HOUR)
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == task
        end.set()
        ended = await until_final(runtime, task)
        clock.advance(timedelta(milliseconds=999))
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == ended
        clock.advance(timedelta(milliseconds=1))
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


async def test_a_queued_or_waiting_task_never_expires() -> None:
    async def asking(run: Run) -> Outcome:
        return ok(await run.ask(question("Sure?")))

    clock = FakeClock()
    async with running({"ask": Tool(asking), "hog": Tool(never_ending)}, clock=clock, concurrency=1) as runtime:
        waiting = await until_asking(runtime, await launch(runtime, "ask", ttl=timedelta(seconds=1)))
        await launch(runtime, "hog")
        queued = await launch(runtime, "hog", ttl=timedelta(seconds=1))
        clock.advance(1000 * HOUR)
        await runtime.janitor.sweep()
        for task in (waiting, queued):
            assert await runtime.get(task.id, owner=None) == task


async def test_a_task_without_a_ttl_is_never_removed() -> None:
    clock = FakeClock()
    async with running(at_once, clock=clock) as runtime:
        task = await until_final(runtime, await launch(runtime, ttl=None))
        clock.advance(100_000 * HOUR)
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == task


async def test_more_expired_tasks_than_one_look_takes_are_all_removed_by_two_processes_at_once() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(at_once, clock=clock, store=store) as one, running(at_once, clock=clock, store=store) as other:
        tasks = [await launch(one, ttl=HOUR) for _ in range(BATCH + 10)]
        for task in tasks:
            await until_final(one, task)
        clock.advance(HOUR)
        async with anyio.create_task_group() as group:
            group.start_soon(one.janitor.sweep)
            group.start_soon(other.janitor.sweep)
        assert not (await store.list()).records
