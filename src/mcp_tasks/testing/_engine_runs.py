"""Engine suite: what is submitted is run, in this process."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.engines.base import Engine, ReservesSlots, Route, Serves
from mcp_tasks.testing._engine_work import (
    LONG,
    NONE,
    SHORT,
    WAIT,
    EngineTests,
    at_work,
    caller,
    serving,
    settle,
    submitting,
)


class RunTests(EngineTests):
    """Starting, running, draining and stopping."""

    async def test_every_id_is_run_whatever_its_lane_and_owner(self, engine: Engine) -> None:
        ids = [f"task-{number}" for number in range(100)]
        async with at_work(engine) as work:
            work.end(*ids)
            for number, task_id in enumerate(ids):
                owner = None if number % 3 == 0 else f"owner {number % 3}"
                await engine.submit(task_id, lane="again" if number % 2 else "new", owner=owner)
            await work.until(*(f"end {task_id}" for task_id in ids))

    async def test_an_id_is_any_string(self, engine: Engine) -> None:
        odd = "task ☃/../'; --\n"
        async with at_work(engine) as work:
            work.end(odd)
            await engine.submit(odd)
            await work.until(f"end {odd}")

    async def test_a_run_sees_the_context_of_the_start_and_not_of_who_submitted_it(self, engine: Engine) -> None:
        caller.set("server")
        async with at_work(engine) as work:
            caller.set("request")
            work.end("a")
            await engine.submit("a")
            await work.until("end a")
            assert work.callers == {"a": "server"}

    async def test_a_task_is_run_once_at_a_time_and_once_more_if_it_was_wanted_meanwhile(self, engine: Engine) -> None:
        async with at_work(engine) as work, submitting(engine, "a"):
            await work.until("start a")
            await engine.submit("a", lane="again")
            await anyio.sleep(self.grace)
            assert work.log == ["start a"]
            work.end("a")
            with anyio.fail_after(WAIT):
                while work.log != ["start a", "end a"] * 2:
                    await anyio.lowlevel.checkpoint()

    async def test_a_slot_may_be_released_twice_and_acquired_twice(self, engine: Engine) -> None:
        async with at_work(engine) as work, submitting(engine, "a"):
            await work.until("start a")
            with anyio.fail_after(WAIT):
                for _ in range(3):
                    work.slots["a"].release()
                    work.slots["a"].release()
                    await work.slots["a"].acquire()
                    await work.slots["a"].acquire()
            work.end("a")
            await work.until("end a")

    async def test_draining_starts_nothing_more_here_and_waits_for_what_runs(self, engine: Engine) -> None:
        async with at_work(engine) as work, submitting(engine, "a"), anyio.create_task_group() as group:
            await work.until("start a")
            group.start_soon(engine.drain, LONG)
            await settle()
            await engine.submit("b")
            await anyio.sleep(self.grace)
            work.end("a", "b")
        assert work.log == ["start a", "end a"]

    async def test_draining_gives_up_after_its_time_and_what_runs_goes_on(self, engine: Engine) -> None:
        async with at_work(engine) as work, submitting(engine, "a"):
            await work.until("start a")
            with anyio.fail_after(WAIT):
                await engine.drain(SHORT)
            assert work.running == {"a"}
            work.end("a")

    async def test_stopping_is_safe_twice_and_before_the_start(self, engine: Engine) -> None:
        with anyio.fail_after(WAIT):
            await engine.stop(NONE)
            await engine.stop(NONE)
            async with at_work(engine):
                await engine.drain(NONE)
                await engine.stop(NONE)

    async def test_an_engine_that_was_stopped_can_be_started_again(self, engine: Engine) -> None:
        for life in ("first", "second"):
            async with at_work(engine) as work:
                work.end(life)
                await engine.submit(life)
                await work.until(f"end {life}")

    async def test_a_process_that_runs_nothing_may_submit_drain_and_stop(self, engine: Engine) -> None:
        await engine.start(None)
        with anyio.fail_after(WAIT):
            await engine.submit("a")
            await engine.submit("a", lane="again", owner="somebody")
            assert not engine.has_room
            await engine.drain(SHORT)
            await engine.stop(SHORT)

    async def test_there_is_room_only_where_something_is_run(self, engine: Engine) -> None:
        assert not engine.has_room
        async with at_work(engine):
            assert engine.has_room is not engine.abilities.remote
            await engine.drain(NONE)
            assert not engine.has_room

    async def test_nothing_waits_in_an_engine_with_nothing_to_do(self, engine: Engine) -> None:
        assert engine.backlog == 0
        async with at_work(engine) as work:
            work.end("a")
            await engine.submit("a", lane="again")
            await work.until("end a")
            await settle()
            assert engine.backlog == 0

    async def test_a_reserved_slot_runs_a_task_at_once_or_is_given_back(self, engine: Engine) -> None:
        if not isinstance(engine, ReservesSlots):
            pytest.skip("this engine keeps no slots for tasks that are being made")
        assert engine.reserve() is None, "it has not been started"
        async with at_work(engine) as work:
            for _ in range(1_000):
                kept = engine.reserve()
                assert kept is not None, "a slot was given back, and is not there any more"
                kept.release()
            slot = engine.reserve()
            assert slot is not None
            assert slot.start("a")
            await work.until("start a")
            late = engine.reserve()
            assert late is not None
            await engine.drain(NONE)
            assert not late.start("b")
            work.end("a", "b")
            await settle()
            assert "start b" not in work.log


# ---- engine carrying
# Engine suite: what a remote engine carries from one process to another.


class CarryingTests(EngineTests):
    """Two processes and what is between them."""

    async def test_what_a_process_that_runs_nothing_submits_is_run_in_another(
        self, engine: Engine, peer: Engine
    ) -> None:
        ids = [f"task-{number}" for number in range(20)]
        async with at_work(engine) as work:
            await peer.start(None)
            work.end(*ids)
            for task_id in ids:
                await peer.submit(task_id)
            await work.until(*(f"end {task_id}" for task_id in ids))
            await peer.stop(LONG)

    async def test_what_is_submitted_while_nobody_runs_anything_is_run_by_who_comes_later(
        self, engine: Engine, peer: Engine
    ) -> None:
        await peer.start(None)
        await peer.submit("a")
        await peer.stop(LONG)
        async with at_work(engine) as work:
            work.end("a")
            await work.until("end a")

    async def test_what_waits_behind_a_busy_process_is_run_by_another_once_that_drains(
        self, engine: Engine, peer: Engine
    ) -> None:
        ids = [f"task-{number}" for number in range(200)]
        async with at_work(engine) as busy:
            for task_id in ids:
                await engine.submit(task_id)
            await busy.until(f"start {ids[0]}")
            await engine.drain(NONE)
            begun = set(busy.started)
            async with at_work(peer) as work:
                work.end(*ids)
                await work.until(*(f"end {task_id}" for task_id in ids if task_id not in begun))

    async def test_what_a_draining_process_is_handed_is_carried_to_another(self, engine: Engine, peer: Engine) -> None:
        async with at_work(engine) as draining, at_work(peer) as work:
            await engine.drain(NONE)
            work.end("a")
            await engine.submit("a")
            await work.until("end a")
            assert draining.log == []

    async def test_two_processes_share_what_there_is_to_do(self, engine: Engine, peer: Engine) -> None:
        ids = [f"task-{number}" for number in range(40)]
        async with at_work(engine) as one, at_work(peer) as other:
            for task_id in ids:
                await engine.submit(task_id)
            with anyio.fail_after(WAIT):
                # Runs end only when they are told to, so a process that takes more than its slots shows here.
                while not (one.started and other.started):  # noqa: ASYNC110 - how it ends, not when
                    await anyio.sleep(0.001)
            one.end(*ids)
            other.end(*ids)
            with anyio.fail_after(WAIT):
                while {*one.started, *other.started} != set(ids):  # noqa: ASYNC110
                    await anyio.sleep(0.001)


# ---- engine routes
# Engine suite: which worker an id is carried to, when, and which one first.


DELAY = timedelta(milliseconds=300)


class RouteTests(EngineTests):
    """Queues, tools, namespaces, priorities and delays."""

    async def test_a_worker_takes_the_tasks_of_its_queues_alone(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(queues=("gpu", "large"))) as special,
            at_work(peer) as usual,
        ):
            for work in special, usual:
                work.end("a", "b", "c")
            await engine.submit("a")
            await peer.submit("b", route=Route(queue="gpu"))
            await peer.submit("c", route=Route(queue="large"))
            await special.until("end b", "end c")
            await usual.until("end a")
            assert (sorted(special.started), usual.started) == (["b", "c"], ["a"])

    async def test_a_worker_takes_the_tasks_of_the_tools_it_has_alone(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(tools=("render", "draw"))) as renders,
            at_work(peer, Serves(tools=("draw", "count"))) as counts,
        ):
            for work in renders, counts:
                work.end("a", "b", "c", "d")
            for task_id, tool in ("a", "render"), ("b", "count"), ("c", "draw"), ("d", None):
                await engine.submit(task_id, route=Route(tool=tool))
            await renders.until("end a")
            await counts.until("end b")
            with anyio.fail_after(5):
                while {*renders.started, *counts.started} != {"a", "b", "c", "d"}:  # noqa: ASYNC110 - how, not when
                    await anyio.sleep(0.001)
            assert "b" not in renders.started
            assert "a" not in counts.started

    async def test_a_task_whose_tool_nobody_has_waits_for_a_worker_that_has_it(
        self, engine: Engine, peer: Engine
    ) -> None:
        async with at_work(engine, Serves(tools=("count",))) as counts:
            await engine.submit("a", route=Route(tool="render"))
            await anyio.sleep(self.grace)
            async with at_work(peer, Serves(tools=("render",))) as renders:
                renders.end("a")
                await renders.until("end a")
            assert counts.log == []

    async def test_a_tool_of_a_queue_is_another_in_another_queue(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(queues=("gpu",), tools=("render",))) as special,
            at_work(peer, Serves(tools=("render",))) as usual,
        ):
            for work in special, usual:
                work.end("a", "b")
            await peer.submit("a", route=Route(queue="gpu", tool="render"))
            await engine.submit("b", route=Route(tool="render"))
            await special.until("end a")
            await usual.until("end b")
            assert (special.started, usual.started) == (["a"], ["b"])

    async def test_servers_that_share_what_carries_their_tasks_have_each_their_own(
        self, engine: Engine, peer: Engine
    ) -> None:
        # Names that are put together the wrong way look the same.
        async with (
            at_work(engine, Serves(namespace="one", queues=("two:three",))) as mine,
            at_work(peer, Serves(namespace="one:two", queues=("three",))) as yours,
        ):
            for work in mine, yours:
                work.end("a", "b")
            await engine.submit("a", route=Route(queue="two:three"))
            await peer.submit("b", route=Route(queue="three"))
            await mine.until("end a")
            await yours.until("end b")
            assert (mine.started, yours.started) == (["a"], ["b"])

    async def test_names_are_any_strings(self, engine: Engine, peer: Engine) -> None:
        queue, tool, namespace = "a queue: ☃ {x}*" * 20, "tool/../'; --\n" * 20, "ñ" * 200
        async with (
            serving(peer, namespace),
            at_work(engine, Serves(namespace=namespace, queues=(queue,), tools=(tool,))) as work,
        ):
            work.end("a")
            await peer.submit("a", route=Route(queue=queue, tool=tool, priority=10**12))
            await work.until("end a")

    async def test_a_higher_priority_goes_first(self, engine: Engine, peer: Engine) -> None:
        if not engine.abilities.priority:
            pytest.skip("this engine knows no priorities")
        async with serving(peer):
            for number in range(10):
                await peer.submit(f"low-{number}", route=Route(priority=-1))
            for number in range(10):
                await peer.submit(f"usual-{number}")
            await peer.submit("high", route=Route(priority=5))
        async with at_work(engine) as work:
            # Not more than can run at a time: those that run are the ones that were fetched first.
            await work.until("start high")
            await anyio.sleep(self.grace)
            assert not [task_id for task_id in work.started if task_id.startswith("low")]
            work.end(*(f"{kind}-{number}" for kind in ("low", "usual") for number in range(10)), "high")
            await work.until(*(f"end low-{number}" for number in range(10)))
            assert work.started[0] == "high"

    async def test_what_is_delayed_is_run_when_its_time_has_come(self, engine: Engine, peer: Engine) -> None:
        if not engine.abilities.delay:
            pytest.skip("this engine keeps nothing back")
        async with serving(peer), at_work(engine) as work:
            work.end("now", "later")
            began = anyio.current_time()
            await peer.submit("later", lane="again", delay=DELAY)
            await peer.submit("now", delay=timedelta(0))
            await work.until("end now", "end later")
            # Half of it: the clocks of two machines may take part.
            assert anyio.current_time() - began > DELAY.total_seconds() / 2
            assert work.started == ["now", "later"]


# ---- engine arrivals
# Engine suite: that an id is carried until its task is claimed, and no longer.


START = 30
"""Seconds that another process may take to say something."""


class ArrivalTests(EngineTests):
    """Runs that claim nothing, runs that are long, and processes that end."""

    async def test_an_id_whose_run_could_not_find_out_who_has_the_task_is_carried_again(
        self, engine: Engine, peer: Engine
    ) -> None:
        async with at_work(engine) as one:
            one.in_vain.add("a")
            one.end("a")
            await engine.submit("a")
            await one.until("in vain a", "end a")

    async def test_an_id_is_not_carried_again_however_long_its_run_is_and_however_long_its_process_drains(
        self, engine: Engine, peer: Engine
    ) -> None:
        observer = self.make_engine()
        async with at_work(engine) as one:
            await engine.submit("a")
            await one.until("start a")
            async with at_work(peer) as other:
                # Until the second one has something, the first is left out.
                ids = iter(f"task-{number}" for number in range(1_000))
                with anyio.fail_after(WAIT):
                    while not other.started:
                        await engine.submit(task_id := next(ids))
                        one.end(task_id)
                        await anyio.sleep(0.01)
                draining = asyncio.create_task(peer.drain(LONG))
                async with at_work(observer) as idle:
                    await anyio.sleep(self.outlasts)
                    assert one.log.count("start a") == 1
                    assert not {"a", *other.running} & set(idle.started)
                    idle.end(*idle.running)
                other.end(*other.running)
                await draining
            one.end("a")

    async def test_what_a_process_had_taken_and_not_claimed_when_it_was_killed_is_carried_to_another(
        self, engine: Engine, command: Sequence[str]
    ) -> None:
        if self.rescues is None:
            pytest.skip("this engine leaves that to the sweeps")
        async with serving(engine), other_process(*command, "--claim-nothing") as process:
            await engine.submit("a")
            await said(process, "start a")
            process.kill()
            await process.wait()
        async with at_work(engine) as work:
            work.end("a")
            with anyio.fail_after(self.rescues + WAIT):
                while "end a" not in work.log:  # noqa: ASYNC110 - `until` has less patience
                    await anyio.sleep(0.01)

    async def test_a_process_that_is_told_to_stop_ends_what_it_runs_and_leaves_the_rest_to_others(
        self, engine: Engine, peer: Engine, command: Sequence[str]
    ) -> None:
        async with serving(peer), other_process(*command) as process:
            await peer.submit("a")
            await said(process, "start a")
            process.send_signal(signal.SIGTERM)
            await said(process, "draining")
            await peer.submit("b")
            async with at_work(engine) as work:
                work.end("a", "b")
                await work.until("end b")
                assert process.stdin is not None
                process.stdin.close()
                await said(process, "end a")
                with anyio.fail_after(START):
                    assert await process.wait() == 0
                assert work.started == ["b"]


@asynccontextmanager
async def other_process(*command: str) -> AsyncGenerator[Process]:
    """A process that takes ids; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        await said(process, "ready")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: Process, line: str) -> None:
    """Return when the process has said this."""
    assert process.stdout is not None
    with anyio.fail_after(START):
        while (read := (await process.stdout.readline()).decode()) != f"{line}\n":
            assert read, f"the process has ended without having said {line!r}"
