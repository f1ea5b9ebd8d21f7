"""While the store is away: tools wait for it, and everything else is told. Simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable, UnknownTask
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.patience import SETTLED
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY
from tests.unit.losing import as_of_now
from tests.unit.running import (
    SECOND,
    MeddledStore,
    Tool,
    cancel,
    error_type,
    launch,
    loop_time,
    make_runtime,
    never_ending,
    ok,
    running,
    until_final,
)
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

AWAY = 30.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Minutes pass in an instant."""
    return SIMULATED


class World:
    """A runtime with a tool that does what it is told to, and one that it may start."""

    def __init__(self, *, wrap: Callable[[Store], Any] = lambda store: store, **options: Any) -> None:
        self.store = MeddledStore()
        self.act: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)
        self.entered = asyncio.Event()
        self.gave: list[Any] = []
        self.children = 0
        self.parent: str | None = None
        tools = {"parent": Tool(self._parent), "child": Tool(self._child)}
        options = {"lease_duration": timedelta(minutes=5), "monotonic": loop_time, "uptime": loop_time} | options
        self.runtime: TaskRuntime = make_runtime(tools, store=wrap(self.store), **options)

    def go_away(self) -> None:
        self.store.refuse(StoreUnavailable("the store is away"))

    def come_back(self) -> None:
        self.store.before.clear()

    def lose(self, answers: int) -> None:
        """Carry out that many creations without an answer."""

        async def lose(*args: Any, **options: Any) -> None:
            nonlocal answers
            if answers:
                answers -= 1
                raise StoreUnavailable("the answer is lost", may_have_happened=True)

        self.store.after["create"] = lose

    async def _parent(self, run: Run) -> Ending:
        self.parent = run.record.id
        self.entered.set()
        self.gave.append(await self.act())
        return ok()

    async def _child(self, run: Run) -> Ending:
        self.children += 1
        return ok()

    async def start_child(self) -> TaskRecord:
        request = TaskRequest(name="child", arguments={})
        return await self.runtime.launch(LaunchSpec(request=request, owner="Ann", key="its key", parent=self.parent))

    async def run(self, act: Callable[[], Awaitable[Any]]) -> TaskRecord:
        """A task whose tool does this, and comes to it only while the store is away."""
        ready = asyncio.Event()

        async def when_ready() -> Any:
            await ready.wait()
            return await act()

        self.act = when_ready
        task = await launch(self.runtime, "parent")
        await self.entered.wait()
        self.go_away()
        ready.set()
        await time_passes(AWAY)
        return task


@asynccontextmanager
async def world(**options: Any) -> AsyncGenerator[World]:
    world = World(**options)
    await world.runtime.start()
    try:
        yield world
    finally:
        world.come_back()
        await world.runtime.stop()


class Wrapper:
    """Hands everything on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


ACTS: dict[str, Callable[[World, TaskRecord], Awaitable[Any]]] = {
    "start": lambda here, other: here.start_child(),
    "get": lambda here, other: here.runtime.get(other.id, owner=None),
    "find": lambda here, other: here.runtime.find(other.id),
    "list": lambda here, other: here.runtime.list(EVERYBODY),
    "outcome": lambda here, other: here.runtime.outcome(other.id),
    "cancel": lambda here, other: cancel(here.runtime, other),
    "wait": lambda here, other: here.runtime.wait_until(other.id, lambda task: task.is_final, timedelta(minutes=1)),
}


@pytest.mark.parametrize(("what", "wraps"), [*((what, False) for what in ACTS), ("list", True)])
async def test_a_tool_waits_for_the_store(what: str, wraps: bool) -> None:
    options: dict[str, Any] = {"wrap": Wrapper} if wraps else {}
    async with world(limits=Limits(open_tasks=100), **options) as here:
        other = await launch(here.runtime, "child")
        await until_final(here.runtime, other)
        task = await here.run(lambda: ACTS[what](here, other))
        assert here.gave == []
        here.come_back()
        assert (await until_final(here.runtime, task, limit=60)).result == {"value": "ok"}
        assert here.gave != [None]


async def test_code_outside_of_tools_is_told_at_once_also_if_a_tool_waits_for_the_same_look() -> None:
    async with world(limits=Limits(open_tasks=100)) as here:
        here.go_away()
        for act in (here.start_child, lambda: here.runtime.find("task"), lambda: here.runtime.list(EVERYBODY)):
            with anyio.fail_after(1), pytest.raises(StoreUnavailable):
                await act()
        here.come_back()
        await here.run(here.start_child)
        with anyio.fail_after(1), pytest.raises(StoreUnavailable):
            await here.start_child()


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_child_whose_creation_was_not_acknowledged_is_one_task_and_runs_once(lost: int) -> None:
    async with world() as here:

        async def act() -> TaskRecord:
            here.lose(lost)
            return await here.start_child()

        here.act = act
        task = await launch(here.runtime, "parent")
        await until_so(lambda: here.store.calls["create"] > 1)
        for _ in range(2):
            # It is not taken for one that nothing runs.
            await here.runtime.janitor.recovery.release_orphans()
        await until_final(here.runtime, task, limit=60)
        children = [record for record in (await here.runtime.list(EVERYBODY)).records if record.name == "child"]
        assert [child.id for child in children] == [here.gave[0].id]
        assert (await until_final(here.runtime, children[0])).result == {"value": "ok"}
        assert here.children == 1


async def until_so(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await time_passes(0.01)


@pytest.mark.parametrize("what", ["start", "find"])
async def test_a_tool_may_give_up_the_wait(what: str) -> None:
    async with world() as here:

        async def briefly() -> float:
            began = loop_time()
            with anyio.move_on_after(2):
                await (here.start_child() if what == "start" else here.runtime.find("task"))
            return loop_time() - began

        await here.run(briefly)
        assert here.gave == [2]


async def test_the_wait_ends_with_the_lease() -> None:
    lease = timedelta(seconds=15)
    async with world(lease_duration=lease) as here:
        ended: list[float] = []

        async def act() -> None:
            began = loop_time()
            try:
                await here.runtime.find("task")
            finally:
                ended.append(loop_time() - began)

        await here.run(act)
        assert ended == [pytest.approx(lease.total_seconds() * 2 / 3, abs=1)]
        assert here.gave == []


async def test_a_branch_that_its_tool_started_on_its_own_asks_for_nothing_once_the_run_is_over() -> None:
    lease = timedelta(seconds=15)
    async with world(lease_duration=lease) as here:
        branches: list[asyncio.Task[Any]] = []

        async def act() -> None:
            # Cancelling the tool does not reach it.
            branches.append(asyncio.create_task(here.runtime.find("task")))
            await anyio.sleep_forever()

        await here.run(act)
        asked = here.store.calls["get"]
        await time_passes(AWAY)
        assert (here.store.calls["get"], branches[0].cancelled()) == (asked, True)


@pytest.mark.parametrize("writes", ["step", "result"])
async def test_a_process_that_stops_does_not_wait_until_a_run_would_write_again(writes: str) -> None:
    # Less than what is left of the pause between two attempts when the store is back.
    async with world(stop_timeout=SECOND) as here:

        async def act() -> None:
            if writes == "step":
                await current_task().step("step", partial(asyncio.sleep, 0))

        task = await here.run(act)
        here.come_back()
        began = loop_time()
        await here.runtime.stop()
        assert loop_time() - began < 0.5
        assert not here.runtime.runs()
        record = await as_of_now(here.runtime, task)
        assert record.status is (TaskStatus.FAILED if writes == "step" else TaskStatus.COMPLETED)


async def test_the_verdict_over_a_run_is_written_after_an_outage_though_the_run_is_over() -> None:
    policy = ToolPolicy(max_runtime=timedelta(seconds=5))
    store, entered = MeddledStore(), asyncio.Event()

    async def too_long(run: Run) -> Ending:
        entered.set()
        return await never_ending(run)

    async with running(too_long, store=store, policy=policy, uptime=loop_time) as runtime:
        task = await launch(runtime)
        await entered.wait()
        store.refuse(StoreUnavailable("the store is away"), "save")
        await time_passes(AWAY)
        store.before.clear()
        assert error_type(await until_final(runtime, task, limit=10)) == "RanTooLong"


async def test_a_run_that_was_stopped_is_not_told_of_an_outage_when_it_reads_its_journal() -> None:
    async with world(lease_duration=timedelta(seconds=15)) as here:
        raised: list[type[BaseException]] = []

        async def act() -> None:
            run = current_run.get()
            assert run is not None
            try:
                await asyncio.sleep(3600)  # sleep: virtual time, until the lease is lost
            finally:
                # As after a write that was under way when the run was stopped.
                try:
                    await run.recording.journal(after=0)
                except BaseException as exc:
                    raised.append(type(exc))

        await here.run(act)
        assert raised == [asyncio.CancelledError]


async def test_an_outage_is_logged_once_and_again_when_it_had_been_over(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> int:
        return caplog.text.count("the task store does not take requests")

    async def look(error: type[Exception], times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(error):
                await here.runtime.find("task")

    async with world() as here:
        for seconds, said in ((0.0, 1), (1.0, 1), (SETTLED, 2)):
            # It works for a moment, as one does that is full, or overloaded.
            await look(UnknownTask)
            await time_passes(seconds)
            here.go_away()
            await look(StoreUnavailable, 100)
            assert logged() == said
            here.come_back()
