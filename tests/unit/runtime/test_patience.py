"""While the store is away: tools wait for it, and everything else is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import RanTooLong, StoreUnavailable, UnknownTask
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.patience import SETTLED, until_available
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, Store
from tests.unit.running import CLIENT, Tool, launch, make_runtime, ok, until_final
from tests.unit.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.anyio

AWAY = 30.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Minutes pass in an instant."""
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class AwayStore(MemoryStore):
    """Takes nothing, heartbeats included, while it is away; and may lose answers of writes."""

    is_away = False
    loses = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in VERBS:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_away:
                raise StoreUnavailable("the store is away")
            answer = await found(*args, **kwargs)
            if name == "create" and self.loses:
                self.loses -= 1
                raise StoreUnavailable("the answer is lost", may_have_happened=True)
            return answer

        return call


VERBS = frozenset(
    {"create", "get", "get_owned", "save", "list", "outcome", "usage", "heartbeat", "request", "versions"} | {"journal"}
)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class World:
    """A runtime with a tool that does what it is told to, and one that it may start."""

    def __init__(self, *, wrap: Callable[[Store], Any] | None = None, **options: Any) -> None:
        self.store = AwayStore()
        self.act: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)
        self.entered = asyncio.Event()
        self.gave: list[Any] = []
        self.children = 0
        self.parent: str | None = None
        tools = {"parent": Tool(self._parent), "child": Tool(self._child)}
        options = {"lease_duration": timedelta(minutes=5), "monotonic": loop_time, "uptime": loop_time} | options
        self.runtime: TaskRuntime = make_runtime(tools, store=wrap(self.store) if wrap else self.store, **options)

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
        return await self.runtime.launch(request, owner="Ann", retention=None, key="its key", parent=self.parent)

    async def run(self, act: Callable[[], Awaitable[Any]]) -> TaskRecord:
        """A task whose tool does this, and comes to it only while the store is away."""
        ready = asyncio.Event()

        async def when_ready() -> Any:
            await ready.wait()
            return await act()

        self.act = when_ready
        task = await launch(self.runtime, "parent")
        await self.entered.wait()
        self.store.is_away = True
        ready.set()
        await anyio.sleep(AWAY)  # sleep: the time is simulated
        return task


@asynccontextmanager
async def world(**options: Any) -> AsyncGenerator[World]:
    world = World(**options)
    await world.runtime.start()
    try:
        yield world
    finally:
        world.store.is_away = False
        await world.runtime.stop()


@pytest.mark.parametrize("what", ["start", "get", "find", "list", "outcome", "cancel", "wait"])
async def test_a_tool_waits_for_the_store(what: str) -> None:
    async with world(limits=Limits(open_tasks=100)) as here:
        runtime = here.runtime
        other = await launch(runtime, "child")
        await until_final(runtime, other)
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": here.start_child,
            "get": lambda: runtime.get(other.id, owner=None),
            "find": lambda: runtime.find(other.id),
            "list": lambda: runtime.list(EVERYBODY),
            "outcome": lambda: runtime.outcome(other.id),
            "cancel": lambda: runtime.cancel(other, "enough", actor=CLIENT),
            "wait": lambda: runtime.wait_until(other.id, lambda task: task.is_final, timedelta(minutes=1)),
        }
        task = await here.run(acts[what])
        assert here.gave == []
        here.store.is_away = False
        assert (await until_final(runtime, task, limit=60)).result == {"value": "ok"}
        assert here.gave != [None]


async def test_a_tool_also_waits_for_a_store_that_another_one_wraps() -> None:
    async with world(wrap=Wrapper) as here:
        task = await here.run(lambda: here.runtime.list(EVERYBODY))
        assert here.gave == []
        here.store.is_away = False
        assert (await until_final(here.runtime, task, limit=60)).result == {"value": "ok"}


class Wrapper:
    """Hands everything on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_code_outside_of_tools_is_told_at_once() -> None:
    async with world(limits=Limits(open_tasks=100)) as here:
        here.store.is_away = True
        for act in (here.start_child, lambda: here.runtime.find("task"), lambda: here.runtime.list(EVERYBODY)):
            with anyio.fail_after(1), pytest.raises(StoreUnavailable):
                await act()


async def test_code_outside_of_tools_is_told_though_a_tool_waits_for_the_same_look() -> None:
    async with world(limits=Limits(open_tasks=100)) as here:
        await here.run(here.start_child)
        with anyio.fail_after(1), pytest.raises(StoreUnavailable):
            await here.start_child()


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_child_whose_creation_was_not_acknowledged_is_one_task_and_runs(lost: int) -> None:
    async with world() as here:

        async def act() -> TaskRecord:
            here.store.loses = lost
            return await here.start_child()

        here.act = act
        task = await launch(here.runtime, "parent")
        await until_final(here.runtime, task, limit=60)
        children = [record for record in (await here.runtime.list(EVERYBODY)).records if record.name == "child"]
        assert [child.id for child in children] == [here.gave[0].id]
        await until_final(here.runtime, children[0])
        assert here.children == 1


async def test_a_child_whose_creation_was_not_acknowledged_is_not_taken_for_one_that_nothing_runs() -> None:
    async with world() as here:

        async def act() -> TaskRecord:
            here.store.loses = 3
            return await here.start_child()

        here.act = act
        task = await launch(here.runtime, "parent")
        while here.store.loses != 2:  # noqa: ASYNC110 - the store tells nobody
            await anyio.sleep(0.01)
        for _ in range(2):
            await here.runtime.janitor.recovery.release_orphans()
        await until_final(here.runtime, task, limit=60)
        assert (await until_final(here.runtime, here.gave[0])).result == {"value": "ok"}
        assert here.children == 1


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
        asked: list[float] = []

        async def ask() -> None:
            asked.append(loop_time())
            raise StoreUnavailable("the store is away")

        async def act() -> None:
            # Cancelling the tool does not reach it.
            branches.append(asyncio.create_task(until_available(ask)))
            await anyio.sleep_forever()

        branches: list[asyncio.Task[None]] = []
        began = loop_time()
        await here.run(act)
        assert len(asked) > 3
        assert max(asked) - began <= lease.total_seconds() * 2 / 3
        assert branches[0].cancelled()


@pytest.mark.parametrize("writes", ["step", "result"])
async def test_a_process_that_stops_does_not_wait_until_a_run_would_write_again(writes: str) -> None:
    # Less than what is left of the pause between two attempts when the store is back.
    async with world(stop_timeout=timedelta(seconds=1)) as here:

        async def act() -> None:
            run = current_run.get()
            assert run is not None
            if writes == "step":
                await run.step("step", lambda: asyncio.sleep(0))

        task = await here.run(act)
        here.store.is_away = False
        began = loop_time()
        await here.runtime.stop()
        assert loop_time() - began < 0.5
        assert not here.runtime.runs()
        record = await here.store.get(task.id)
        assert record is not None
        assert record.status is (TaskStatus.FAILED if writes == "step" else TaskStatus.COMPLETED)


async def test_the_verdict_over_a_run_is_written_after_an_outage_though_the_run_is_over() -> None:
    async with world() as here:

        async def act() -> None:
            run = current_run.get()
            assert run is not None
            run.help(run.judge(RanTooLong("parent", timedelta(0))))
            await asyncio.sleep(3600)  # sleep: virtual time, until the verdict

        task = await here.run(act)
        here.store.is_away = False
        assert (await until_final(here.runtime, task, limit=10)).status is TaskStatus.FAILED


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

    async def fail(count: int) -> None:
        here.store.is_away = True
        for _ in range(count):
            with pytest.raises(StoreUnavailable):
                await here.runtime.find("task")
        here.store.is_away = False

    async with world() as here:
        await fail(100)
        assert logged() == 1
        # It works for a moment, as one does that is full, or overloaded.
        with pytest.raises(UnknownTask):
            await here.runtime.find("task")
        await fail(1)
        assert logged() == 1
        with pytest.raises(UnknownTask):
            await here.runtime.find("task")
        await anyio.sleep(SETTLED)  # sleep: the time is simulated
        await fail(100)
        assert logged() == 2
