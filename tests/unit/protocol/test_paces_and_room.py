"""How often callers may ask, how many tasks there may be, and how large what they send is, on clocks that stand still.

Over HTTP: `tests/trust/test_limits.py`.
"""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks import Limits
from mcp_tasks.engines import LocalEngine
from mcp_tasks.engines.base import Serves, Slot
from mcp_tasks.errors import InvalidOption, LimitExceeded
from mcp_tasks.model.json import check_json, is_deeper, short_message
from mcp_tasks.model.limits import KIB
from mcp_tasks.model.record import TaskRequest, TaskStatus
from mcp_tasks.protocol.limits import MOST_HELD_BACK, MOST_KNOWN, Limiting, Pace
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import FRESH, LaunchSpec
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, Owners, Usage
from mcp_tasks.testing import FakeClock
from tests.unit.running import SECOND, Seconds, never_ending, running
from tests.unit.watching import Threads

CALL = TaskRequest(method="tools/call", name="tool", arguments={}, protocol_version="2026-07-28")


# Paces


@pytest.mark.parametrize(("rate", "at_once", "wait"), [(4, 4, 0.25), (0.5, 1, 2.0), (1, 1, 1.0)], ids=["4", "0.5", "1"])
def test_a_pace_lets_a_second_of_requests_through_at_once_and_then_one_by_one(
    rate: float, at_once: int, wait: float
) -> None:
    clock = Seconds()
    pace = Pace(rate, clock)
    for _ in range(2):
        assert [pace.take("a")[1] for _ in range(at_once + 1)] == [True] * at_once + [False]
        assert pace.take("a") == (pytest.approx(wait), False)
        # Each has its own, and what did not count is as if it had not been.
        assert pace.take("b") == (0.0, True)
        pace.give_back("b")
        clock.advance(wait * SECOND)
        assert [pace.take("a")[1] for _ in range(2)] == [True, False]
        # Who has not asked for long has saved up nothing.
        clock.advance(3_600 * SECOND)
    pace.give_back("unknown")


def test_with_patience_one_too_many_waits_and_what_waits_is_bounded() -> None:
    pace = Pace(10, Seconds(), patience=1.0)
    waits = [wait for wait, may in (pace.take("a") for _ in range(40)) if may]
    assert waits == pytest.approx([0.0] * 10 + [n / 10 for n in range(1, 11)])
    quick = Pace(10_000, Seconds(), patience=1.0)
    assert len([None for _ in range(20_000) if quick.take("a")[1]]) <= 10_101


def test_owners_by_the_thousand_do_not_fill_the_memory() -> None:
    pace = Pace(1, Seconds())

    def ask(first: int, last: int) -> int:
        for number in range(first, last):
            pace.take(str(number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = ask(0, 2 * MOST_KNOWN)
        assert ask(2 * MOST_KNOWN, 4 * MOST_KNOWN) < full * 1.3
    finally:
        tracemalloc.stop()


async def test_of_what_comes_too_often_so_much_is_held_back_and_the_rest_is_refused_at_once() -> None:
    limiting = Limiting(Limits(owner_requests=1_000, owner_creates=1), Seconds(), free="me")
    asked = [asyncio.create_task(limiting.request("ada")) for _ in range(1_000 + MOST_HELD_BACK + 1)]
    await anyio.wait_all_tasks_blocked()
    assert [task.done() for task in asked] == [True] * 1_000 + [False] * (MOST_HELD_BACK + 1)
    *ends, refused = await asyncio.gather(*asked, return_exceptions=True)
    assert ends == [None] * len(ends)
    assert isinstance(refused, LimitExceeded)
    assert (refused.limit, "nothing was done" in str(refused)) == ("owner_requests", True)
    # Refusals are held back as well, and no more of them than so many.
    await limiting.create("ada", CALL)
    held = [asyncio.create_task(limiting.create("ada", CALL)) for _ in range(MOST_HELD_BACK)]
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(LimitExceeded):
        await limiting.create("ada", CALL)
    assert not any(task.done() for task in held)
    assert all(isinstance(end, LimitExceeded) for end in await asyncio.gather(*held, return_exceptions=True))
    # Neither another nor the one user of a pipe is held up.
    for owner in ("bob", "me", "me", None):
        await limiting.create(owner, CALL)


async def test_connections_have_their_pace_and_all_of_them_theirs() -> None:
    clock = Seconds()
    limits = Limits(connection_cancels=0.001, cancels=0.002, connection_unknown=None, unknown=0.001)
    limiting = Limiting(limits, clock)

    async def refused_by(connection: str) -> str:
        with pytest.raises(LimitExceeded, match="callers without a name") as caught:
            await limiting.nameless("cancels", None, connection)
        return caught.value.limit

    await limiting.nameless("cancels", None, "a")
    assert (await refused_by("a"), await refused_by("b")) == ("connection_cancels", "cancels")
    # What the total refused did not count for the connection.
    clock.advance(500 * SECOND)
    await limiting.nameless("cancels", None, "b")
    assert await refused_by("") == "cancels"
    with anyio.fail_after(10):
        for _ in range(5):
            # Who has a name, what a pipe asks, and what is handed to another door do not count.
            await limiting.nameless("unknown", "ada", "a")
            await limiting.nameless("unknown", None, None)
            await limiting.nameless("unknown", None, "a")
            limiting.give_back(None, "a", "unknown")
    # One that comes a little too soon waits for a moment.
    often = Limiting(Limits(connection_unknown=None, unknown=1_000), clock)
    await asyncio.gather(*(often.nameless("unknown", None, "a") for _ in range(1_020)))


def test_a_place_that_is_given_back_twice_is_one_place() -> None:
    limiting = Limiting(Limits(owner_streams=2, owner_waits=1), free="me")
    close, _ = limiting.open_stream("ada"), limiting.open_stream("ada")
    close()
    close()
    limiting.open_stream("ada")
    with pytest.raises(LimitExceeded):
        limiting.open_stream("ada")
    for owner in ("me", "me", "me", None, None, None, "bob"):
        limiting.open_stream(owner)
    with limiting.waiting("ada"), pytest.raises(LimitExceeded), limiting.waiting("ada"):
        pass
    # A call that goes on may wait where no new one may; also this has an end.
    with limiting.waiting("ada"), limiting.waiting("ada", again=True), pytest.raises(LimitExceeded):
        limiting.waiting("ada", again=True).__enter__()


# Tasks


class Counted(MemoryStore):
    """Says what it is told to of how many tasks there are, and how often it was asked."""

    def __init__(self, open_tasks: int = 0) -> None:
        super().__init__()
        self.told = Usage(open_tasks=open_tasks, stored_bytes=0)
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        if whose is EVERYBODY:
            await self.answers.wait()
        return self.told


def room(
    store: Counted | None = None, clock: Seconds | None = None, **limits: Any
) -> AbstractAsyncContextManager[TaskRuntime]:
    none: dict[str, Any] = {"open_tasks": None, "owner_open_tasks": None, "owner_stored_bytes": None}
    return running(
        never_ending,
        store=store or Counted(),
        monotonic=clock or Seconds(),
        limits=Limits(**(none | limits)),
        runs_tools=False,
    )


async def make(runtime: TaskRuntime, owner: str | None = "ada", **options: Any) -> None:
    await runtime.launch(LaunchSpec(request=CALL, owner=owner, **options))


async def refused(runtime: TaskRuntime, owner: str | None = "ada", **options: Any) -> str:
    with pytest.raises(LimitExceeded) as caught:
        await make(runtime, owner, **options)
    return caught.value.limit


async def test_the_store_is_asked_once_for_many_tasks_and_again_before_anyone_is_refused() -> None:
    clock, store = Seconds(), Counted()
    async with room(store, clock, owner_open_tasks=10) as runtime:
        for _ in range(10):
            await make(runtime)
        assert store.asked == 1
        clock.advance(SECOND)
        # Some have ended since: the look tells.
        store.told = Usage(open_tasks=9, stored_bytes=0)
        await make(runtime)
        assert store.asked == 2
        store.told = Usage(open_tasks=10, stored_bytes=0)
        assert {await refused(runtime) for _ in range(100)} == {"owner_open_tasks"}
        assert store.asked == 2, "a flood of refusals does not ask the store"
        clock.advance(0.2 * SECOND)
        await refused(runtime)
        assert store.asked == 3
        # What is known grows old.
        store.told = Usage(open_tasks=0, stored_bytes=0)
        clock.advance(FRESH * SECOND)
        await make(runtime)
        # A part of work that was admitted is held to the total alone.
        store.told = Usage(open_tasks=10, stored_bytes=0)
        clock.advance(FRESH * SECOND)
        await make(runtime, parent="task_parent")


async def test_those_who_wait_for_a_look_share_it_and_the_total_comes_first() -> None:
    store = Counted(open_tasks=5)
    async with room(store, owner_open_tasks=10) as runtime:
        ends = await asyncio.gather(*(make(runtime) for _ in range(20)), return_exceptions=True)
        assert sum(end is None for end in ends) == 5
        assert store.asked <= 3
    async with room(open_tasks=20) as runtime:
        ends = await asyncio.gather(*(make(runtime, f"owner {n}") for n in range(100)), return_exceptions=True)
        assert sum(end is None for end in ends) == 20
        assert await refused(runtime, parent="task_parent") == "open_tasks"
    unasked = Counted()
    async with room(unasked, stored_bytes=None) as runtime:
        await make(runtime)
        await make(runtime, None)
        assert unasked.asked == 0
    # What a tool ends with takes no place.
    async with room(unasked, owner_open_tasks=10) as runtime, runtime.quota.room_for("ada", "tool", 1_000_000):
        assert unasked.asked == 0


async def test_an_owner_keeps_no_place_for_a_call_that_is_refused_or_goes_away() -> None:
    class Another(Counted):
        async def usage(self, namespace: str, whose: Owners) -> Usage:
            told = await super().usage(namespace, whose)
            return told if whose is EVERYBODY else Usage(open_tasks=0, stored_bytes=0)

    clock, store = Seconds(), Another(open_tasks=1)
    async with room(store, clock, open_tasks=1, owner_open_tasks=1) as runtime:
        for _ in range(2):
            assert await refused(runtime) == "open_tasks"
        clock.advance(FRESH * SECOND)
        store.answers.clear()
        gone = asyncio.create_task(make(runtime))
        await anyio.wait_all_tasks_blocked()
        gone.cancel()
        await asyncio.wait([gone])
        store.told = Usage(open_tasks=0, stored_bytes=0)
        store.answers.set()
        await make(runtime)


async def test_a_task_that_is_too_old_fails_whether_it_runs_or_waits() -> None:
    clock = FakeClock()
    limits = Limits(task_age=timedelta(days=30))
    async with running(never_ending, clock=clock, limits=limits, engine=LocalEngine(1)) as runtime:
        old = [await runtime.launch(LaunchSpec(request=CALL)) for _ in range(2)]
        clock.advance(timedelta(days=29))
        young = await runtime.launch(LaunchSpec(request=CALL))
        await runtime.janitor.end_old()
        assert not (await runtime.get(old[0].id, owner=None)).is_final
        clock.advance(timedelta(days=1))
        await runtime.janitor.end_old()
        for task in old:
            record = await runtime.get(task.id, owner=None)
            assert (record.status, "30 days" in (record.status_message or "")) == (TaskStatus.FAILED, True)
        assert not (await runtime.get(young.id, owner=None)).is_final


async def test_an_owner_has_a_quarter_of_the_slots_while_others_wait_and_all_otherwise() -> None:
    engine = LocalEngine(8)
    running: list[str] = []
    gates: dict[str, asyncio.Event] = {}

    async def execute(task_id: str, slot: Slot) -> None:
        running.append(task_id)
        await gates[task_id].wait()

    await engine.start(execute, Serves(owner_share=0.25))

    async def submit(owner: str, count: int) -> None:
        for number in range(count):
            gates[f"{owner}{number}"] = asyncio.Event()
            await engine.submit(f"{owner}{number}", owner=owner)

    await submit("a", 20)
    await eventually(lambda: len(running) == 8)
    await submit("b", 6)
    for number in range(6):
        gates[f"a{number}"].set()
    await eventually(lambda: len(running) == 14)
    # Up to its own share at once, and then by turns: no slot is left free.
    assert running[8:10] == ["b0", "b1"]
    assert len([task_id for task_id in running[8:] if task_id.startswith("b")]) >= 4
    # No other owner waits any more: the rest gets all slots.
    for gate in gates.values():
        gate.set()
    await eventually(lambda: len(running) == 26)
    await engine.stop(timedelta(seconds=1))


# Sizes


DEPTHS: list[tuple[Any, int]] = [
    *((5, 0), ("x", 0), ([], 1), ({}, 1)),
    *(([[], {}], 2), ({"a": [{"b": 1}]}, 3), ([1] * 50 + [[]], 2)),
]


def test_depth_is_objects_and_arrays_in_one_another_however_deep() -> None:
    for value, deep in DEPTHS:
        assert not is_deeper(value, deep)
        assert deep == 0 or is_deeper(value, deep - 1)
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert is_deeper(value, 64)
    with pytest.raises(LimitExceeded, match="64 levels"):
        check_json("argument_bytes", "It", value, most=1_000, depth=64)


OF_SIZE: dict[str, Callable[[int], Any]] = {
    "text": lambda size: "x" * size,
    "escapes": lambda size: '"' * (size // 2),
    "numbers": lambda size: [1] * (size // 2),
    "long numbers": lambda size: [10**20] * (size // 22),
    "members": lambda size: {f"{number:04d}": True for number in range(size // 12)},
    "nothing": lambda size: [None] * (size // 5),
}


@pytest.mark.parametrize("most", [30, 64 * KIB])
@pytest.mark.parametrize("what", OF_SIZE)
def test_a_size_is_that_of_the_json(what: str, most: int) -> None:
    for size in (most // 2, most - 40, most - 2, most - 1, most, most + 40, 2 * most):
        value = OF_SIZE[what](max(size, 0))
        fits = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) <= most
        with nullcontext() if fits else pytest.raises(LimitExceeded):
            check_json("answer_bytes", "It", value, most=most, depth=64)


@pytest.mark.parametrize("text", ["x", "é", "☃", "🎈"])
def test_a_message_is_cut_between_characters(text: str) -> None:
    long = text * 1_000
    for most in range(1, 40):
        cut = short_message(long, most)
        assert len(cut.encode()) <= max(most, len("…".encode()))
        assert cut == text * cut.count(text) + "…"
    assert short_message(long, len(long.encode())) == short_message(long, None) == long


@pytest.mark.parametrize("field", ["arguments", "meta", "input_responses", "client_info", "client_capabilities"])
async def test_every_part_of_a_call_is_measured_and_a_large_one_beside_the_event_loop(field: str) -> None:
    threads = Threads(1)
    asyncio.get_running_loop().set_default_executor(threads)
    limiting = Limiting(Limits(argument_bytes=1_000, client_bytes=1_000))
    await limiting.create(None, replace(CALL, **{field: {"a": "x" * 500}}))
    assert threads.used == 0
    for size in (1_000, 200_000):
        with pytest.raises(LimitExceeded) as caught:
            await limiting.create(None, replace(CALL, **{field: {"a": "x" * size}}))
        assert caught.value.limit == ("client_bytes" if field.startswith("client") else "argument_bytes")
    assert threads.used == (0 if field.startswith("client") else 1)


WRONG: list[dict[str, Any]] = [
    *({"owner_open_tasks": 0}, {"open_tasks": 100_001}, {"owner_creates": 0}, {"owner_creates": True}),
    *({"owner_requests": -1}, {"owner_share": 1.5}, {"task_age": 5}, {"stream_tasks": None}, {"json_depth": None}),
    *({"argument_bytes": "1"}, {"anonymous": None}, {"anonymous": 1}, {"connection_creates": 0}, {"unknown": -1}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_limit_that_cannot_be_is_refused_where_it_is_said(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        Limits(**wrong)
