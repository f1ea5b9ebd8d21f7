"""Engine suite: that an id is carried until its task is claimed, and no longer."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from mcp_tasks.engines.base import Engine
from mcp_tasks.testing._engine_tests import EngineTests
from mcp_tasks.testing._engine_work import LONG, WAIT, at_work, serving

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
