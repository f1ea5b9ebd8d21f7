"""A run that waits does not count against the limits of its tool and its owner, and takes its place again to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from mcp_tasks.testing.clock import NOON
from tests.unit.running import CLIENT, Tool, create, make_runtime, ok, question, running, until, until_final
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

LONG = 120.0
ONE = ToolPolicy(max_at_work=1)


def simulated_clock() -> datetime:
    return NOON + timedelta(seconds=asyncio.get_running_loop().time())


SWEEPS: dict[str, Any] = {"sweep_interval": timedelta(seconds=1), "clock": simulated_clock}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Counting(MemoryStore):
    """Counts how many are at work, and the writes of each task."""

    def __init__(self) -> None:
        super().__init__()
        self.most_at_work = 0
        self.refused = 0

    def _check_limits(self, record: TaskRecord, limits: WorkLimits) -> None:
        self.refused += 1
        super()._check_limits(record, limits)
        self.refused -= 1

    def _put(self, record: TaskRecord) -> None:
        super()._put(record)
        at_work = [each for each in self._records.values() if each.worker and not each.is_final and each.pause is None]
        self.most_at_work = max(self.most_at_work, len(at_work))


async def launch(runtime: TaskRuntime, name: str = "tool", **arguments: Any) -> TaskRecord:
    return await runtime.launch(TaskRequest(name=name, arguments=arguments), owner="ann", retention=None)


async def child(run: Run, runtime: TaskRuntime, name: str, **arguments: Any) -> Callable[[], Awaitable[Any]]:
    """Start a child, and give what waits for it."""

    async def start(key: str) -> str:
        request = TaskRequest(name=name, arguments=arguments)
        record = await runtime.launch(request, owner=run.record.owner, retention=None, key=key, parent=run.record.id)
        return record.id

    task_id = await run.children.start(f"{name} {arguments}", start)

    async def end() -> dict[str, Any]:
        record = None
        while record is None:
            record = await runtime.wait_until(task_id, lambda task: task.is_final, timedelta(days=1))
        return {"status": record.status.value}

    return lambda: run.children.wait(task_id, end)


class Family:
    """A tool whose runs start others and wait for them."""

    runtime: TaskRuntime

    async def child(self, run: Run) -> Ending:
        await run.sleep(timedelta(seconds=1))
        return ok()

    async def parent(self, run: Run) -> Ending:
        wait = await child(run, self.runtime, "child")
        await wait()
        return ok()

    async def gathers(self, run: Run) -> Ending:
        waits = [await child(run, self.runtime, "child", number=number) for number in range(3)]
        await asyncio.gather(*(wait() for wait in waits), run.sleep(timedelta(seconds=30)))
        return ok()

    async def sleeps_beside(self, run: Run) -> Ending:
        wait = await child(run, self.runtime, "child")
        await asyncio.gather(wait(), run.sleep(timedelta(milliseconds=100)), run.ask(question("Sure?")))
        return ok()

    async def nested(self, run: Run) -> Ending:
        depth: int = run.request.arguments["depth"]  # type: ignore[assignment]
        if depth:
            wait = await child(run, self.runtime, "nested", depth=depth - 1)
            await wait()
        return ok()

    def tools(self, policy: ToolPolicy) -> dict[str, Tool]:
        bodies = {name: getattr(self, name) for name in ("child", "parent", "gathers", "sleeps_beside", "nested")}
        return {name: Tool(body, policy) for name, body in bodies.items()}


@pytest.mark.parametrize("slots", [100, 1])
@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("tool", ["parent", "gathers"])
async def test_parents_of_one_owner_make_room_for_their_children(tool: str, rerun: bool, slots: int) -> None:
    family, store = Family(), Counting()
    async with running(
        family.tools(ToolPolicy(rerun=rerun)), store=store, concurrency=slots, max_at_work_per_owner=2, **SWEEPS
    ) as runtime:
        family.runtime = runtime
        parents = [await launch(runtime, tool) for _ in range(5)]
        for parent in parents:
            assert (await until_final(runtime, parent, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 2


async def test_a_limited_tool_may_start_itself() -> None:
    family, store = Family(), Counting()
    async with running(family.tools(ToolPolicy(max_at_work=2)), store=store, **SWEEPS) as runtime:
        family.runtime = runtime
        tasks = [await launch(runtime, "nested", depth=4) for _ in range(3)]
        for task in tasks:
            assert (await until_final(runtime, task, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 2


async def test_a_run_whose_one_branch_has_ended_makes_room_while_the_others_wait() -> None:
    family, store = Family(), Counting()
    async with running(
        family.tools(ToolPolicy()), store=store, concurrency=1, max_at_work_per_owner=1, **SWEEPS
    ) as runtime:
        family.runtime = runtime
        parent = await launch(runtime, "sleeps_beside")
        await until(runtime, parent, lambda record: record.pause == "waiting", LONG)
        await time_passes(60)
        await answer_of(runtime, parent, elicitation_1="yes")
        assert (await until_final(runtime, parent, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 1


class Line:
    """Tools that say when they work: one that waits first, and one that does not."""

    def __init__(self) -> None:
        self.worked: list[str] = []
        self.gate = anyio.Event()

    async def sleeps(self, run: Run) -> Ending:
        await run.sleep(timedelta(seconds=10))
        self.worked.append("sleeper")
        return ok()

    async def works(self, run: Run) -> Ending:
        self.worked.append("new")
        await asyncio.sleep(1)  # sleep: the time is simulated
        await self.gate.wait()
        return ok()

    def tools(self, policy: ToolPolicy) -> dict[str, Tool]:
        return {"sleeps": Tool(self.sleeps, policy), "works": Tool(self.works, policy)}


@pytest.mark.parametrize(
    "policy",
    [ToolPolicy(), ToolPolicy(rerun=True), ToolPolicy(rerun=True, park_after=timedelta(0))],
    ids=["may not run again", "may run again", "suspended"],
)
async def test_a_run_that_goes_on_comes_before_runs_that_have_not_begun(policy: ToolPolicy) -> None:
    line, store = Line(), Counting()
    async with running(line.tools(policy), store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await launch(runtime, "sleeps")
        await time_passes(1)
        new = [await launch(runtime, "works") for _ in range(5)]
        await time_passes(20)
        assert line.worked == ["new"], "the limit is reached"
        assert (await runtime.find(sleeper.id)).pause == "resuming"
        line.gate.set()
        for task in (sleeper, *new):
            await until_final(runtime, task, LONG)
    assert line.worked == ["new", "sleeper", *["new"] * 4]
    assert store.most_at_work == 1


async def test_a_run_learns_of_a_place_that_another_process_gave_up() -> None:
    line, store = Line(), Counting()
    options = {"store": store, "max_at_work_per_owner": 1, **SWEEPS}
    async with running(line.tools(ToolPolicy()), **options) as one, running(line.tools(ToolPolicy()), **options) as two:
        sleeper = await launch(one, "sleeps")
        await time_passes(1)
        new = await create(two, "works", owner="ann")
        await two.engine.submit(new.id)
        await time_passes(20)
        assert (await one.find(sleeper.id)).pause == "resuming"
        line.gate.set()
        await until_final(two, new, LONG)
        await time_passes(2)
        assert (await one.find(sleeper.id)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 1


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_short_wait_and_one_without_limits_cost_no_writes(limit: int | None) -> None:
    seconds = 10.0 if limit is None else 0.01

    async def sleeps(run: Run) -> Ending:
        await run.sleep(timedelta(seconds=seconds))
        return ok()

    async with running(sleeps, max_at_work_per_owner=limit, **SWEEPS) as runtime:
        task = await until_final(runtime, await launch(runtime), LONG)
    # Made, claimed, a timer set, the timer over, ended.
    assert task.version == 5


async def test_a_task_is_cancelled_while_its_run_waits_for_a_place() -> None:
    line = Line()
    async with running(line.tools(ToolPolicy()), max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await launch(runtime, "sleeps")
        await time_passes(1)
        new = await launch(runtime, "works")
        await time_passes(20)
        await runtime.cancel(await runtime.find(sleeper.id), "enough", actor=CLIENT)
        await time_passes(1)
        assert not runtime.has(sleeper.id)
        line.gate.set()
        await until_final(runtime, new, LONG)
    assert line.worked == ["new"]


async def test_the_time_limit_of_a_run_does_not_count_while_it_waits_for_a_place() -> None:
    line, policy = Line(), ToolPolicy(max_runtime=timedelta(seconds=5))
    tools = {"sleeps": Tool(line.sleeps, policy), "works": Tool(line.works)}
    async with running(tools, max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await launch(runtime, "sleeps")
        await time_passes(1)
        new = await launch(runtime, "works")
        await time_passes(60)
        line.gate.set()
        assert (await until_final(runtime, sleeper, LONG)).status is TaskStatus.COMPLETED
        await until_final(runtime, new, LONG)


@pytest.mark.parametrize("rerun", [False, True])
async def test_a_process_that_stops_gives_up_a_run_that_waits_for_a_place(rerun: bool) -> None:
    line, store = Line(), Counting()
    tools = line.tools(ToolPolicy(rerun=rerun))
    async with running(tools, store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await launch(runtime, "sleeps")
        await time_passes(1)
        await launch(runtime, "works")
        await time_passes(20)
    record = await store.get(sleeper.id)
    assert record is not None
    assert (record.worker, record.pause) == (None, None)
    assert record.status is (TaskStatus.WORKING if rerun else TaskStatus.FAILED)


@pytest.mark.parametrize("pause", ["waiting", "resuming"])
@pytest.mark.parametrize("rerun", [False, True])
async def test_a_process_that_dies_leaves_no_place_taken(rerun: bool, pause: str) -> None:
    line, store = Line(), Counting()
    tools = line.tools(ToolPolicy(rerun=rerun))
    dying = make_runtime(tools, store=store, max_at_work_per_owner=1, **SWEEPS)
    await dying.start()
    sleeper = await launch(dying, "sleeps")
    await time_passes(1)
    works = await launch(dying, "works")
    await time_passes(5 if pause == "waiting" else 20)
    record = await store.get(sleeper.id)
    assert record is not None
    assert record.pause == pause
    await dying.abandon()
    line.gate.set()
    async with running(tools, store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        after = await launch(runtime, "works")
        for task in (sleeper, works, after):
            ended = await until_final(runtime, task, LONG)
            assert ended.status is (TaskStatus.COMPLETED if rerun or task is after else TaskStatus.FAILED)
    assert store.most_at_work == 1


async def test_a_branch_whose_time_is_over_has_its_place_before_it_goes_on() -> None:
    line, store = Line(), Counting()

    async def gives_up(run: Run) -> Ending:
        with anyio.move_on_after(5):
            await run.ask(question("Sure?"))
        line.worked.append("gave up")
        return ok()

    tools = {"gives_up": Tool(gives_up), **line.tools(ToolPolicy())}
    async with running(tools, store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        asker = await launch(runtime, "gives_up")
        await time_passes(1)
        new = await launch(runtime, "works")
        await time_passes(20)
        assert line.worked == ["new"]
        line.gate.set()
        for task in (asker, new):
            assert (await until_final(runtime, task, LONG)).status is TaskStatus.COMPLETED
    assert (line.worked, store.most_at_work) == (["new", "gave up"], 1)


@pytest.mark.parametrize("seats", [0, 100])
async def test_a_run_that_keeps_its_slot_while_it_waits_gives_up_its_place_all_the_same(seats: int) -> None:
    line, store = Line(), Counting()
    tools = {**line.tools(ONE), "other": Tool(line.works)}
    async with running(
        tools, store=store, concurrency=2, max_waiting_runs=seats, max_at_work_per_owner=None, **SWEEPS
    ) as runtime:
        sleepers = [await launch(runtime, "sleeps") for _ in range(2)]
        for sleeper in sleepers:
            await until(runtime, sleeper, lambda record: record.pause == "waiting", LONG)
        store.most_at_work = 0
        for sleeper in sleepers:
            assert (await until_final(runtime, sleeper, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 1


async def test_a_refused_claim_is_not_tried_again_at_once() -> None:
    line, store = Line(), Counting()
    async with running(line.tools(ToolPolicy()), store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        tasks = [await launch(runtime, "works") for _ in range(3)]
        store.refused = 0
        await time_passes(30)
        assert store.refused < 100, "it is tried when a run has ended, and by sweeps"
        line.gate.set()
        for task in tasks:
            await until_final(runtime, task, LONG)


async def answer_of(runtime: TaskRuntime, task: TaskRecord, **answers: Any) -> None:
    record = await runtime.find(task.id)
    responses = {key.replace("_", "-"): value for key, value in answers.items()}
    await runtime.answer(record, responses, actor=CLIENT)
