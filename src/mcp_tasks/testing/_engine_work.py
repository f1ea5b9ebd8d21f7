"""Runs that begin when an engine says so and end when the test says so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta

import anyio.lowlevel
import pytest

from mcp_tasks.engines.base import EVERYTHING, Engine, Serves, Slot

WAIT = 20
"""Seconds after which what must happen is taken not to happen."""

LONG, SHORT, NONE = timedelta(seconds=10), timedelta(milliseconds=20), timedelta(0)

caller: ContextVar[str] = ContextVar("caller", default="nobody")
"""Whose context code runs in."""


class Work:
    """What an engine is given to execute: it notes what begins and ends, and lets the test decide when."""

    def __init__(self) -> None:
        self.in_vain: set[str] = set()
        """Ids whose next run ends without having found out who has the task, as if the store were away."""
        self.log: list[str] = []
        self.slots: dict[str, Slot] = {}
        self.callers: dict[str, str] = {}
        self._may_end: dict[str, anyio.Event] = {}
        self._changed = anyio.Event()

    async def execute(self, task_id: str, slot: Slot) -> None:
        """Run until the test ends it."""
        if task_id in self.in_vain:
            self.in_vain.discard(task_id)
            self.note(f"in vain {task_id}")
            return
        self.slots[task_id] = slot
        self.callers[task_id] = caller.get()
        self.note(f"start {task_id}")
        slot.claimed()
        try:
            await self._gate(task_id).wait()
        finally:
            self.note(f"end {task_id}")

    def end(self, *task_ids: str) -> None:
        """Let these runs end, now or as soon as they have begun."""
        for task_id in task_ids:
            self._gate(task_id).set()

    async def until(self, *lines: str) -> None:
        """Return when all of these have happened."""
        with anyio.fail_after(WAIT):
            while not set(lines) <= set(self.log):
                self._changed = anyio.Event()
                await self._changed.wait()

    @property
    def started(self) -> list[str]:
        """The ids whose runs have begun, in order."""
        return [line.removeprefix("start ") for line in self.log if line.startswith("start ")]

    @property
    def running(self) -> set[str]:
        """The ids whose runs have begun and not ended."""
        return {task_id for task_id in self.started if self.log.count(f"start {task_id}") > self._ended(task_id)}

    def note(self, line: str) -> None:
        """Write a line of the log."""
        self.log.append(line)
        self._changed.set()

    def _ended(self, task_id: str) -> int:
        return self.log.count(f"end {task_id}")

    def _gate(self, task_id: str) -> anyio.Event:
        return self._may_end.setdefault(task_id, anyio.Event())


@asynccontextmanager
async def at_work(engine: Engine, serves: Serves = EVERYTHING) -> AsyncGenerator[Work]:
    """The engine, started and at work, and stopped at the end."""
    work = Work()
    await engine.start(work.execute, serves)
    try:
        yield work
    finally:
        await settle()
        work.end(*work.running)
        await engine.stop(LONG)


async def settle() -> None:
    """Let everything happen that can happen now."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(engine: Engine, namespace: str = "") -> AsyncGenerator[Engine]:
    """The engine of a process that submits and runs nothing itself."""
    await engine.start(None, Serves(namespace=namespace))
    try:
        yield engine
    finally:
        await engine.stop(LONG)


@asynccontextmanager
async def submitting(engine: Engine, *task_ids: str) -> AsyncGenerator[None]:
    """Submit without waiting for it, because an engine may run a task before it returns; at the end it has."""
    submits = [asyncio.create_task(engine.submit(task_id)) for task_id in task_ids]
    try:
        yield
        with anyio.fail_after(WAIT):
            await asyncio.gather(*submits)
    finally:
        for submit in submits:
            submit.cancel()


# ---- engine tests
# What the parts of the engine suite have in common: the hook.


@pytest.mark.anyio
class EngineTests:
    """A test class with engines of its own for each test."""

    grace: float = 0.05
    """Seconds after which what has not happened is taken not to happen."""

    outlasts: float = 0.05
    """Seconds for which a run goes on in the test that long runs are not carried again: more than any time-out of what
    carries the ids."""

    rescues: float | None = None
    """Seconds after which an id is carried to another process that one had taken and not claimed when it was killed;
    None if that is left to the sweeps."""

    def make_engine(self) -> Engine:
        """An engine that has not been started, with at least two slots.

        If it is remote, another one made in the same test belongs to another process and carries ids to the same
        workers. Nothing is carried over from one test to the next.
        """
        raise NotImplementedError("an engine suite needs `make_engine`")

    def elsewhere(self) -> Sequence[str] | None:
        """With which another process makes an engine, as `make_engine` does: `module:function`, and its arguments.

        None leaves out the tests that kill processes.
        """
        return None

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Engines are built for asyncio."""
        return "asyncio"

    @pytest.fixture
    def engine(self) -> Engine:
        """An engine that has not been started."""
        return self.make_engine()

    @pytest.fixture
    def peer(self, engine: Engine) -> Engine:
        """A second engine, as another process would have it."""
        if not engine.abilities.remote:
            pytest.skip("this engine carries nothing to other processes")
        return self.make_engine()

    @pytest.fixture
    def command(self, engine: Engine) -> Sequence[str]:
        """Starts a process with an engine of its own."""
        made_by = self.elsewhere() if engine.abilities.remote else None
        if made_by is None:
            pytest.skip("no engine is made in another process: see `elsewhere`")
        return [sys.executable, "-m", "mcp_tasks.testing.engine_process", *made_by]
