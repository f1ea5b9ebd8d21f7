"""Engine suite: what is submitted is run, in this process."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.engines.base import Engine, ReservesSlots
from mcp_tasks.testing._engine_tests import EngineTests
from mcp_tasks.testing._engine_work import LONG, NONE, SHORT, WAIT, at_work, caller, settle, submitting


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
