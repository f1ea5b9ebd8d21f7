"""Engine suite: what a remote engine carries from one process to another."""

from __future__ import annotations

import anyio

from mcp_tasks.engines.base import Engine
from mcp_tasks.testing._engine_tests import EngineTests
from mcp_tasks.testing._engine_work import LONG, NONE, WAIT, at_work


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
