"""Engines: in which order, how many at a time, and how they end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import Engine, Lane, LocalEngine, Route
from mcp_tasks.errors import InvalidOption
from mcp_tasks.testing._engine_work import LONG, NONE, SHORT, Work, at_work, settle
from mcp_tasks.testing.engine_suite import EngineSuite


class Local(Work):
    """What a local engine with one slot, or as many as it is told, is given to execute."""

    def __init__(self, concurrency: int = 1) -> None:
        super().__init__()
        self.engine = LocalEngine(concurrency)

    async def begin(self, *task_ids: str) -> None:
        for task_id in task_ids:
            await self.engine.submit(task_id)
            await self.until(f"start {task_id}")


@pytest.fixture
async def work(request: pytest.FixtureRequest) -> AsyncGenerator[Local]:
    work = Local(getattr(request, "param", 1))
    await work.engine.start(work.execute)
    yield work
    await settle()
    work.end(*work.running)
    await work.engine.stop(LONG)


two_slots = pytest.mark.parametrize("work", [2], indirect=True)


class TestLocalEngine(EngineSuite):
    def make_engine(self) -> Engine:
        return LocalEngine(concurrency=4)


Submission = tuple[str, Lane, str | None, int]
"""An id, and its lane, owner and priority."""


def new(task_id: str, owner: str | None = None, priority: int = 0) -> Submission:
    return task_id, "new", owner, priority


def again(task_id: str, owner: str | None = None, priority: int = 0) -> Submission:
    return task_id, "again", owner, priority


ORDERS: dict[str, tuple[Sequence[Submission], str]] = {
    "as they came": ([new("c"), new("a"), new("b")], "c a b"),
    "each once": ([new("a"), new("a"), again("b", "bob"), new("b", "al", 9)], "b a"),
    "owners by turns": (
        [new("a1", "al"), new("a2", "al"), new("a3", "al"), new("b1", "bob"), new("n1"), new("n2"), new("b2", "bob")],
        "a1 b1 n1 a2 b2 n2 a3",
    ),
    "lanes by turns": (
        [new("n1"), new("n2"), new("n3"), again("a1"), again("a2"), again("a3"), again("a4"), again("a5")],
        "a1 n1 a2 n2 a3 n3 a4 a5",
    ),
    "the urgent first, whatever the lane and the owner": (
        [again("low", "bob", -1), new("p1", "al"), new("p2", "al"), again("high", "al", 7), new("highest", "al", 8)],
        "highest high p1 p2 low",
    ),
    "lanes by turns within a priority": (
        [new("n1", "al"), again("a1", "al"), new("n2", "al"), again("a2", "al"), new("urgent", None, 1)],
        "urgent a1 n1 a2 n2",
    ),
}


@pytest.mark.parametrize(("submissions", "order"), ORDERS.values(), ids=ORDERS)
async def test_tasks_that_stand_in_line_are_run(submissions: Sequence[Submission], order: str, work: Local) -> None:
    await work.begin("first")
    for task_id, lane, owner, priority in submissions:
        await work.engine.submit(task_id, lane=lane, owner=owner, route=Route(priority=priority))
    assert work.engine.backlog == len({task_id for task_id, lane, *_ in submissions if lane == "again"})
    work.end("first", *order.split())
    await work.until(f"end {order.split()[-1]}")
    await settle()
    assert work.log == [f"{what} {task_id}" for task_id in ["first", *order.split()] for what in ("start", "end")]
    assert (work.engine.backlog, work.engine.is_idle) == (0, True)


async def test_an_owner_with_many_tasks_keeps_another_back_for_one_turn_and_stands_behind_later(work: Local) -> None:
    async def take() -> str:
        """End what runs; what is started next."""
        count = len(work.started)
        work.end(work.started[-1])
        await eventually(lambda: len(work.started) > count)
        return work.started[-1]

    for number in range(1_000):
        await work.engine.submit(f"al {number}", owner="al")
    await work.until("start al 0")
    assert [await take(), await take()] == ["al 1", "al 2"]
    await work.engine.submit("bob 0", owner="bob")
    assert [await take() for _ in range(3)] == ["al 3", "bob 0", "al 4"]
    await work.engine.submit("bob 1", owner="bob")
    assert [await take() for _ in range(2)] == ["al 5", "bob 1"]
    await work.engine.drain(NONE)


async def test_a_task_that_wants_one_more_turn_has_it_with_its_owner_and_its_priority(work: Local) -> None:
    await work.engine.submit("first", owner="alice")
    await work.until("start first")
    for number in range(2):
        await work.engine.submit(f"alice {number}", owner="alice", lane="again")
    await work.engine.submit("first", owner="bob", lane="again", route=Route(priority=1))
    work.end("first", "alice 0", "alice 1")
    await work.until("end alice 1")
    assert work.started == ["first", "first", "alice 0", "alice 1"]


@two_slots
async def test_no_more_than_the_limit_run_at_a_time(work: Local) -> None:
    for task_id in "abcd":
        await work.engine.submit(task_id)
    await settle()
    assert work.running == {"a", "b"}
    work.end("b")
    await work.until("start c")
    await settle()
    assert work.running == {"a", "c"}


async def test_a_run_that_waits_lets_one_other_start_however_often_it_gives_its_slot_back(work: Local) -> None:
    await work.begin("a")
    assert not work.engine.is_idle
    work.slots["a"].release()
    assert work.engine.is_idle
    work.slots["a"].release()
    for task_id in "bc":
        await work.engine.submit(task_id)
    await settle()
    assert work.running == {"a", "b"}
    # Nor does its end free a second slot.
    work.end("a")
    await work.until("end a")
    await settle()
    assert work.running == {"b"}


async def test_runs_that_come_back_and_those_that_have_not_begun_have_room_by_turns(work: Local) -> None:
    for task_id in "abc":
        await work.begin(task_id)
        work.slots[task_id].release()

    async def come_back(task_id: str) -> None:
        await work.slots[task_id].acquire()
        work.log.append(f"back {task_id}")
        work.slots[task_id].release()

    await work.begin("first")
    async with anyio.create_task_group() as group:
        for task_id in "abc":
            group.start_soon(come_back, task_id)
        await settle()
        for task_id in "xyz":
            await work.engine.submit(task_id)
        work.end("first", *"xyz")
    await work.until("end z")
    turns = [line for line in work.log if line.startswith(("back", "start"))][4:]
    assert turns == ["back a", "start x", "back b", "start y", "back c", "start z"]
    assert work.engine.is_idle


@two_slots
async def test_two_branches_of_a_run_that_come_back_together_take_one_slot(work: Local) -> None:
    await work.begin("a")
    slot = work.slots["a"]
    slot.release()
    await asyncio.gather(slot.acquire(), slot.acquire())
    await work.engine.submit("b")
    await work.engine.submit("c")
    await settle()
    assert work.running == {"a", "b"}


@pytest.mark.parametrize("its_turn_has_come", [False, True])
async def test_a_slot_is_not_lost_when_a_run_is_cancelled_on_its_way_back(its_turn_has_come: bool, work: Local) -> None:
    await work.begin("a")
    work.slots["a"].release()
    await work.begin("b")
    back = asyncio.create_task(work.slots["a"].acquire())
    await settle()
    if its_turn_has_come:
        work.slots["b"].release()
        back.cancel()
    else:
        back.cancel()
        await settle()
        work.slots["b"].release()
    with suppress(asyncio.CancelledError):
        await back
    await work.begin("c")


async def test_a_slot_can_be_kept_for_a_task_that_is_being_made(work: Local) -> None:
    slot = work.engine.reserve()
    assert slot is not None
    assert work.engine.reserve() is None
    await work.engine.submit("b")
    await settle()
    assert work.log == []
    slot.start("a")
    await work.until("start a")
    work.end("a")
    await work.until("start b")
    work.end("b")
    await settle()
    # One that was kept for nothing goes to the next in line.
    slot = work.engine.reserve()
    assert slot is not None
    await work.engine.submit("c")
    slot.release()
    await work.until("start c")


async def test_no_slot_is_kept_before_those_that_wait_in_line_or_in_an_engine_that_stands_still() -> None:
    engine = LocalEngine(concurrency=1)
    assert engine.reserve() is None
    async with at_work(engine):
        await engine.submit("a")
        await engine.submit("b")
        assert engine.reserve() is None
    assert engine.reserve() is None


async def test_a_slot_that_was_kept_while_the_engine_stopped_is_not_used(work: Local) -> None:
    slot = work.engine.reserve()
    assert slot is not None
    await work.engine.drain(NONE)
    slot.start("a")
    await settle()
    assert work.log == []
    assert work.engine.is_idle


async def test_a_run_comes_back_from_its_wait_while_the_engine_drains(work: Local) -> None:
    await work.begin("a")
    work.slots["a"].release()
    await work.engine.drain(SHORT)
    with anyio.fail_after(5):
        await work.slots["a"].acquire()


async def test_what_is_submitted_where_nothing_is_run_is_forgotten_and_left_to_the_store() -> None:
    engine = LocalEngine()
    threads = anyio.to_thread.current_default_thread_limiter().total_tokens
    await engine.submit("before the start")
    await engine.start(None)
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == threads
    await engine.submit("in a process that runs nothing")
    await engine.stop(NONE)
    async with at_work(engine) as work:
        work.end("a")
        await engine.submit("a")
        await work.until("end a")
    await engine.submit("after the stop")
    assert work.started == ["a"]
    assert engine.backlog == 0


@two_slots
async def test_there_is_room_while_a_slot_is_free_and_nobody_in_line(work: Local) -> None:
    await work.begin("a")
    assert work.engine.has_room
    await work.begin("b")
    assert not work.engine.has_room
    work.slots["a"].release()
    assert work.engine.has_room
    await work.engine.submit("c")
    await work.engine.submit("d")
    assert not work.engine.has_room


async def test_there_are_threads_for_all_runs_beside_those_of_everybody_else() -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    before = limiter.total_tokens
    async with at_work(LocalEngine(concurrency=7)):
        assert limiter.total_tokens == before + 7
    assert limiter.total_tokens == before


async def test_the_limit_still_holds_after_a_restart_that_left_a_run_behind(work: Local) -> None:
    await work.begin("left behind")
    await work.engine.stop(NONE)
    await work.engine.start(work.execute)
    work.end("left behind")
    await work.until("end left behind")
    for task_id in "ab":
        await work.engine.submit(task_id)
    await settle()
    assert len(work.running) == 1


async def test_draining_forgets_who_wanted_one_more_turn() -> None:
    engine = LocalEngine()
    async with at_work(engine) as work, anyio.create_task_group() as group:
        group.start_soon(engine.submit, "a")
        await work.until("start a")
        await engine.submit("a")
        await engine.drain(NONE)
        work.end("a")
        await settle()
    assert work.log == ["start a", "end a"]


@pytest.mark.parametrize("concurrency", [0, -1, "4", 1.5, True, None])
def test_an_engine_that_could_run_nothing_is_refused(concurrency: Any) -> None:
    with pytest.raises(InvalidOption, match="concurrency must be a whole number of at least 1"):
        LocalEngine(concurrency)
