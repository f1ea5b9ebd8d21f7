"""What decides about limits, piece by piece: paces, numbers, sizes, shares and ages, without a wire."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.waiting import eventually
from mcp_tasks import Limits
from mcp_tasks.engines import LocalEngine
from mcp_tasks.engines.base import Serves, Slot
from mcp_tasks.engines.local import Lanes
from mcp_tasks.errors import InvalidOption, LimitExceeded, StoreUnavailable
from mcp_tasks.model.json import check_json, is_deeper, short_message
from mcp_tasks.model.limits import KIB
from mcp_tasks.model.record import TaskRequest, TaskStatus
from mcp_tasks.protocol.errors import describe
from mcp_tasks.protocol.limits import MOST_HELD_BACK, MOST_KNOWN, Limiting, Pace
from mcp_tasks.runtime import Ending, Run, Success, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.launch import ALWAYS_KEPT, FRESH, MOST_OWNERS, WAITS_FOR_A_LOOK, Quota
from mcp_tasks.stores.base import EVERYBODY, Usage
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import FakeClock

pytestmark = pytest.mark.anyio


class Ticking:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


# Paces


def test_a_pace_lets_as_many_through_at_once_as_in_a_second_and_then_one_by_one() -> None:
    clock = Ticking()
    pace = Pace(4, clock)
    assert [pace.take("a")[1] for _ in range(5)] == [True] * 4 + [False]
    assert pace.take("b") == (0.0, True), "each has its own"
    wait, _ = pace.take("a")
    assert wait == pytest.approx(0.25)
    clock.now += wait
    assert [pace.take("a")[1] for _ in range(2)] == [True, False]


def test_a_pace_below_one_a_second_lets_one_through_first() -> None:
    clock = Ticking()
    pace = Pace(0.5, clock)
    assert pace.take("a") == (0.0, True)
    assert pace.take("a") == (pytest.approx(2.0), False)


def test_who_has_not_asked_for_long_has_saved_up_nothing() -> None:
    clock = Ticking()
    pace = Pace(2, clock)
    assert pace.take("a") == (0.0, True)
    clock.now += 3_600
    assert [pace.take("a")[1] for _ in range(3)] == [True, True, False]


def test_with_patience_one_too_many_waits_and_what_waits_is_bounded() -> None:
    pace = Pace(10, Ticking(), patience=1.0)
    taken = [pace.take("a") for _ in range(40)]
    waits = [wait for wait, may in taken if may]
    assert len(waits) == 20
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == pytest.approx([n / 10 for n in range(1, 11)])
    quick = Pace(10_000, Ticking(), patience=1.0)
    assert len([None for _ in range(20_000) if quick.take("a")[1]]) <= 10_101


def test_what_is_given_back_did_not_count() -> None:
    pace = Pace(2, Ticking())
    for _ in range(100):
        assert pace.take("a")[1]
        pace.give_back("a")
    assert [pace.take("a")[1] for _ in range(3)] == [True, True, False]
    pace.give_back("unknown")


def test_owners_by_the_million_do_not_fill_the_memory_and_who_asks_often_is_not_forgotten_for_them() -> None:
    clock = Ticking()
    pace = Pace(1, clock)
    assert pace.take("often") == (0.0, True)
    for number in range(3 * MOST_KNOWN):
        pace.take(str(number))
        if number % 1_000 == 0:
            # Refused, and seen all the same.
            assert not pace.take("often")[1] or number >= MOST_KNOWN
    assert len(pace._turns) <= MOST_KNOWN  # pyright: ignore[reportPrivateUsage]


# Numbers


class Counted:
    """Says what it is told to, and how often it was asked."""

    def __init__(self, open_tasks: int = 0, stored: int = 0) -> None:
        self.usage = Usage(open_tasks=open_tasks, stored_bytes=stored)
        self.asked = 0

    async def __call__(self, _: object) -> Usage:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        return self.usage


async def make(quota: Quota, owner: str | None = "alice", *, inside: bool = False) -> None:
    """Make a task."""
    with await quota.admit(owner, inside=inside) as admission:
        admission.made = True


async def test_the_store_is_asked_once_for_many_tasks_and_again_before_anybody_is_refused() -> None:
    clock, usage = Ticking(), Counted()
    quota = Quota(Limits(owner_open_tasks=10, open_tasks=None), usage, clock)
    for _ in range(10):
        await make(quota)
    assert usage.asked == 1
    clock.now += 1
    # Some have ended since: the look tells.
    usage.usage = Usage(open_tasks=9, stored_bytes=0)
    await make(quota)
    assert usage.asked == 2
    usage.usage = Usage(open_tasks=10, stored_bytes=0)
    for _ in range(1_000):
        with pytest.raises(LimitExceeded):
            await make(quota)
    assert usage.asked == 2, "a flood of refusals does not ask the store"
    clock.now += 0.2
    with pytest.raises(LimitExceeded):
        await make(quota)
    assert usage.asked == 3


async def test_what_is_known_grows_old() -> None:
    clock, usage = Ticking(), Counted()
    quota = Quota(Limits(owner_open_tasks=10, open_tasks=None), usage, clock)
    await make(quota)
    usage.usage = Usage(open_tasks=10, stored_bytes=0)
    clock.now += FRESH
    with pytest.raises(LimitExceeded):
        await make(quota)


async def test_those_who_wait_for_a_look_share_it() -> None:
    usage = Counted(open_tasks=5)
    quota = Quota(Limits(owner_open_tasks=10, open_tasks=None), usage, Ticking())
    results = await asyncio.gather(*(make(quota) for _ in range(20)), return_exceptions=True)
    assert sum(result is None for result in results) == 5
    assert usage.asked <= 3


async def test_a_place_under_the_total_is_taken_before_the_store_is_asked_about_a_new_owner() -> None:
    quota = Quota(Limits(open_tasks=20), Counted(), Ticking())
    admitted = 0

    async def begin(owner: str) -> None:
        nonlocal admitted
        with await quota.admit(owner):
            admitted += 1
            await anyio.lowlevel.checkpoint()
            await over.wait()

    over = asyncio.Event()
    calls = [asyncio.create_task(begin(f"owner {number}")) for number in range(200)]
    await eventually(lambda: admitted + sum(call.done() for call in calls) == 200)
    assert admitted == 20
    over.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(end, LimitExceeded) for end in ends) == 180


async def test_an_owner_keeps_no_place_for_a_call_that_is_refused_or_goes_away() -> None:
    answering = asyncio.Event()
    answering.set()

    class OneOfAnother(Counted):
        async def __call__(self, whose: object) -> Usage:
            if whose is EVERYBODY:
                await answering.wait()
            return self.usage if whose is EVERYBODY else Usage(open_tasks=0, stored_bytes=0)

    clock, usage = Ticking(), OneOfAnother(open_tasks=1)
    quota = Quota(Limits(open_tasks=1, owner_open_tasks=1), usage, clock)
    for _ in range(2):
        with pytest.raises(LimitExceeded) as refused:
            await make(quota)
        assert refused.value.limit == "open_tasks"
    clock.now += FRESH
    answering.clear()
    gone = asyncio.create_task(make(quota))
    await anyio.wait_all_tasks_blocked()
    gone.cancel()
    await asyncio.wait([gone])
    usage.usage = Usage(open_tasks=0, stored_bytes=0)
    answering.set()
    await make(quota)


async def test_without_limits_the_store_is_not_asked() -> None:
    usage = Counted()
    await make(Quota(Limits(open_tasks=None, owner_open_tasks=None, owner_stored_bytes=None), usage, Ticking()))
    await make(Quota(Limits(open_tasks=None, stored_bytes=None), usage, Ticking()), owner=None)
    assert usage.asked == 0


async def test_a_part_of_work_that_was_admitted_is_held_to_the_total_alone() -> None:
    usage = Counted(open_tasks=10)
    await make(Quota(Limits(owner_open_tasks=10, open_tasks=11), usage, Ticking()), inside=True)
    with pytest.raises(LimitExceeded) as refused:
        await make(Quota(Limits(open_tasks=10), usage, Ticking()), inside=True)
    assert refused.value.limit == "open_tasks"


async def test_what_this_process_writes_counts_before_the_store_is_asked_again() -> None:
    usage = Counted()
    quota = Quota(Limits(open_tasks=None, owner_stored_bytes=1_000), usage, Ticking())
    await make(quota)
    quota.grew("alice", 999)
    quota.grew("bob", 5_000)
    quota.grew(None, 5_000)
    await make(quota)
    assert usage.asked == 1
    quota.grew("alice", 1)
    with pytest.raises(LimitExceeded, match="only an operator"):
        await make(quota)
    await make(quota, "bob")


@pytest.mark.parametrize("owner", ["alice", None])
async def test_results_that_are_written_at_the_same_time_share_the_room(owner: str | None) -> None:
    # A large one waits for a look; 30,000 bytes more fit three times.
    usage = Counted()
    quota = Quota(Limits(owner_stored_bytes=300_000, stored_bytes=300_000), usage, Ticking())
    written, over = 0, asyncio.Event()

    async def write() -> None:
        nonlocal written
        async with quota.room_for(owner, "tool", 90_000):
            written += 1
            await over.wait()
            quota.grew(owner, 90_000)

    calls = [asyncio.create_task(write()) for _ in range(20)]
    # The others wait: what is on its way may not arrive.
    await eventually(lambda: usage.asked >= 3)
    assert (written, sum(call.done() for call in calls)) == (3, 0)
    usage.usage = Usage(open_tasks=0, stored_bytes=270_000)
    over.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(end, LimitExceeded) and "is not kept" in str(end) for end in ends) == 17
    with pytest.raises(LimitExceeded):
        async with quota.room_for(owner, "tool", 30_001):
            raise AssertionError("there is no room")
    async with quota.room_for(owner, "tool", 30_000):
        pass


async def test_a_result_does_not_ask_the_store_each_time_and_only_a_large_one_waits_for_it() -> None:
    clock, usage = Ticking(), Counted(stored=99_000)
    quota = Quota(Limits(owner_stored_bytes=100_000), usage, clock)
    async with quota.room_for("alice", "tool", ALWAYS_KEPT):
        assert usage.asked == 0
    # Nothing is known yet: a look is under way, and this one does not wait for it.
    async with quota.room_for("alice", "tool", ALWAYS_KEPT + 1):
        assert usage.asked == 0
    await eventually(lambda: usage.asked == 1)
    await anyio.wait_all_tasks_blocked()
    for _ in range(100):
        with pytest.raises(LimitExceeded):
            async with quota.room_for("alice", "tool", ALWAYS_KEPT + 1):
                raise AssertionError("there is no room")
    assert usage.asked == 1
    clock.now += FRESH
    usage.usage = Usage(open_tasks=0, stored_bytes=0)
    async with quota.room_for("alice", "tool", WAITS_FOR_A_LOOK + 1):
        assert usage.asked == 2
    with pytest.raises(LimitExceeded):
        async with quota.room_for("bob", "tool", 100_001):
            raise AssertionError("there is no room")


async def test_a_result_is_kept_if_the_store_cannot_say_how_much_there_is() -> None:
    class Away(Counted):
        async def __call__(self, _: object) -> Usage:
            raise StoreUnavailable("away")

    async with Quota(Limits(owner_stored_bytes=1), Away(), Ticking()).room_for("alice", "tool", 10**6):
        pass


async def test_a_look_that_takes_long_is_made_less_often() -> None:
    clock = Ticking()

    class Slow(Counted):
        async def __call__(self, whose: object) -> Usage:
            clock.now += 0.2
            return await super().__call__(whose)

    usage = Slow()
    quota = Quota(Limits(open_tasks=None), usage, clock)
    await make(quota, owner=None)
    clock.now += 9
    await make(quota, owner=None)
    assert usage.asked == 1
    clock.now += 20
    await make(quota, owner=None)
    assert usage.asked == 2


async def test_a_call_that_goes_on_may_wait_where_no_new_one_may() -> None:
    limiting = Limiting(Limits(owner_waits=1), free="me")
    with limiting.waiting("alice"), limiting.waiting("bob"), limiting.waiting("me"), limiting.waiting("me"):
        with pytest.raises(LimitExceeded, match="You have 1 requests waiting"), limiting.waiting("alice"):
            pass
        # Also this has an end.
        with (
            limiting.waiting("alice", again=True),
            pytest.raises(LimitExceeded),
            limiting.waiting("alice", again=True),
        ):
            pass
    with limiting.waiting("alice"):
        pass


async def test_the_user_of_a_pipe_is_held_to_the_total_alone() -> None:
    limits = Limits(owner_open_tasks=1, owner_stored_bytes=1, owner_creates=1, owner_requests=1, owner_streams=1)
    quota, limiting = Quota(limits, Counted(), Ticking()), Limiting(limits, Ticking(), free="me")
    quota.free = "me"
    for _ in range(10):
        await make(quota, "me")
        async with quota.room_for("me", "tool", 10**6):
            pass
        await limiting.request("me")
        await limiting.create("me", TaskRequest(method="tools/call", name="t", arguments={}, protocol_version="1"))
        limiting.open_stream("me")
    limiting.open_stream("another")
    with pytest.raises(LimitExceeded):
        limiting.open_stream("another")


def test_a_stream_that_is_closed_twice_makes_room_once() -> None:
    limiting = Limiting(Limits(owner_streams=2), Ticking())
    close, _ = limiting.open_stream("me"), limiting.open_stream("me")
    close()
    close()
    limiting.open_stream("me")
    with pytest.raises(LimitExceeded):
        limiting.open_stream("me")


@pytest.mark.parametrize(("verb", "limit"), [("request", "owner_requests"), ("poll", "task_polls")])
async def test_who_asks_too_often_is_slowed_first_and_then_refused(verb: str, limit: str) -> None:
    limiting = Limiting(Limits(owner_requests=1_000, task_polls=1_000), Ticking())
    ask = getattr(limiting, verb)
    asked = [asyncio.create_task(ask("me")) for _ in range(1_000 + MOST_HELD_BACK + 1)]
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    assert all(task.done() for task in asked[:1_000])
    assert not any(task.done() for task in asked[1_000:])
    *ends, refused = await asyncio.gather(*asked, return_exceptions=True)
    assert ends == [None] * len(ends)
    assert isinstance(refused, LimitExceeded)
    assert (refused.limit, "nothing was done" in str(refused)) == (limit, True)
    await asyncio.wait_for(ask("another"), 10)


async def test_a_request_that_is_handed_to_another_door_does_not_count() -> None:
    limiting = Limiting(Limits(owner_requests=0.001), Ticking(), free="me")
    with anyio.fail_after(10):
        for owner in ("ada", "ada", "me", None):
            await limiting.request(owner)
            limiting.not_asked(owner)


@pytest.mark.parametrize("verb", ["cancel", "unknown"])
async def test_what_connections_and_all_of_them_may_is_counted_apart(verb: str) -> None:
    kind = {"cancel": "cancels", "unknown": "unknown"}[verb]
    limits = replace(Limits(), **{f"connection_{kind}": 0.001, kind: 0.001})
    ask = getattr(Limiting(limits, Ticking()), verb)
    with anyio.fail_after(20):
        # A pipe, and who has a name.
        for _ in range(3):
            await ask(None, None)
            await ask("ada", "192.0.2.1 1")
        await ask(None, "192.0.2.1 1")
        for connection, limit in (("192.0.2.1 1", f"connection_{kind}"), ("192.0.2.1 2", kind), ("", kind)):
            with pytest.raises(LimitExceeded, match="callers without a name") as refused:
                await ask(None, connection)
            assert refused.value.limit == limit


async def test_what_the_total_refuses_does_not_count_for_the_connection() -> None:
    clock = Ticking()
    limiting = Limiting(Limits(connection_cancels=0.5, cancels=1), clock)
    with anyio.fail_after(20):
        await limiting.cancel(None, "a")
        await limiting.cancel(None, "b")
        with pytest.raises(LimitExceeded):
            await limiting.cancel(None, "c")
        clock.now += 1
        await limiting.cancel(None, "c")


@pytest.mark.parametrize("off", ["connection_unknown", "unknown"])
async def test_either_of_the_two_can_be_switched_off(off: str) -> None:
    on = ({"connection_unknown", "unknown"} - {off}).pop()
    limiting = Limiting(replace(Limits(), **{off: None, on: 0.001}), Ticking())
    with anyio.fail_after(20):
        for _ in range(3):
            await limiting.unknown(None, "a")
            limiting.not_counted("unknown", None, "a")
        await limiting.unknown(None, "a")
        with pytest.raises(LimitExceeded) as refused:
            await limiting.unknown(None, "a")
    assert refused.value.limit == on


async def test_without_these_limits_nothing_of_callers_without_a_name_is_counted() -> None:
    limiting = Limiting(Limits(anonymous=False, connection_unknown=0.001, unknown=0.001), Ticking())
    with anyio.fail_after(20):
        for _ in range(100):
            await limiting.unknown(None, "a")
            limiting.not_counted("unknown", None, "a")


async def test_without_a_limit_any_number_of_polls_is_let_through() -> None:
    limiting = Limiting(Limits(task_polls=None), Ticking())
    assert not limiting.counts_polls
    with anyio.fail_after(10):
        for _ in range(1_000):
            await limiting.poll("task")


def test_a_stream_names_as_many_tasks_as_it_may_and_no_more() -> None:
    limiting = Limiting(Limits(stream_tasks=3))
    limiting.check_stream(3)
    with pytest.raises(LimitExceeded, match="may name 3 tasks, and this one names 4") as refused:
        limiting.check_stream(4)
    assert refused.value.limit == "stream_tasks"


def test_streams_of_nobody_in_particular_are_not_counted() -> None:
    limiting = Limiting(Limits(owner_streams=1))
    closes = [limiting.open_stream(None) for _ in range(5)]
    for close in closes:
        close()
    limiting.open_stream("me")


async def test_beyond_so_many_refusals_that_are_held_back_the_next_comes_at_once() -> None:
    limiting = Limiting(Limits(owner_creates=1), Ticking())
    request = TaskRequest(method="tools/call", name="t", arguments={}, protocol_version="1")
    await limiting.create("me", request)
    held = [asyncio.create_task(limiting.create("me", request)) for _ in range(MOST_HELD_BACK)]
    await anyio.lowlevel.checkpoint()
    with pytest.raises(LimitExceeded):
        await limiting.create("me", request)
    assert not any(task.done() for task in held)
    assert all(isinstance(end, LimitExceeded) for end in await asyncio.gather(*held, return_exceptions=True))


async def test_a_store_that_is_away_says_so_and_a_task_that_was_not_made_does_not_count() -> None:
    class Away(Counted):
        async def __call__(self, _: object) -> Usage:
            raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await make(Quota(Limits(), Away(), Ticking()))
    quota = Quota(Limits(owner_open_tasks=1, open_tasks=None), Counted(), Ticking())
    for _ in range(3):
        with pytest.raises(RuntimeError), await quota.admit("alice"):
            raise RuntimeError("not made")
    await make(quota)


@pytest.mark.slow
async def test_owners_that_make_nothing_are_forgotten() -> None:
    quota = Quota(Limits(open_tasks=None), Counted(), Ticking())
    for number in range(MOST_OWNERS + 100):
        await make(quota, str(number))
    assert len(quota._owners) == MOST_OWNERS  # pyright: ignore[reportPrivateUsage]


# Sizes


DEPTHS: list[tuple[Any, int]] = [
    *((5, 0), ("x", 0), ([], 1), ({}, 1)),
    *(([[], {}], 2), ({"a": [{"b": 1}]}, 3), ([1] * 50 + [[]], 2)),
]


@pytest.mark.parametrize(("value", "deep"), DEPTHS)
def test_depth_is_objects_and_arrays_in_one_another(value: Any, deep: int) -> None:
    assert not is_deeper(value, deep)
    assert deep == 0 or is_deeper(value, deep - 1)


def test_no_nesting_is_too_deep_to_be_found_out() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert is_deeper(value, 64)
    with pytest.raises(LimitExceeded, match="64 levels"):
        check_json("argument_bytes", "It", value, most=1_000, depth=64)


def _fits(value: Any, most: int) -> bool:
    try:
        check_json("answer_bytes", "It", value, most=most, depth=64)
    except LimitExceeded:
        return False
    return True


@pytest.mark.parametrize("most", [30, 64 * KIB, pytest.param(1024 * KIB, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["text", "escapes", "numbers", "long numbers", "members", "nothing"])
def test_a_size_is_that_of_the_json(what: str, most: int) -> None:
    def of(size: int) -> Any:
        match what:
            case "text":
                return "x" * size
            case "escapes":
                return '"' * (size // 2)
            case "numbers":
                return [1] * (size // 2)
            case "long numbers":
                return [10**20] * (size // 22)
            case "members":
                return {f"{number:04d}": True for number in range(size // 12)}
            case _:
                return [None] * (size // 5)

    for size in (most // 2, most - 40, most - 2, most - 1, most, most + 40, 2 * most):
        if size > 0:
            value = of(size)
            written = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
            assert _fits(value, most) is (written <= most)


async def test_a_large_call_is_measured_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    limiting = Limiting(Limits())
    threads: list[bool] = []
    check = limiting.check_request

    def noting(request: TaskRequest) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        check(request)

    monkeypatch.setattr(limiting, "check_request", noting)
    request = TaskRequest(method="tools/call", name="tool", arguments={"a": [1] * 200_000}, protocol_version="1")
    await limiting.create(None, request)
    await limiting.create(None, replace(request, arguments={"a": 1}))
    assert threads == [False, True]


@pytest.mark.parametrize("text", ["x", "é", "☃", "🎈"])
def test_a_message_is_cut_between_characters(text: str) -> None:
    long = text * 1_000
    for most in range(1, 40):
        cut = short_message(long, most)
        assert len(cut.encode()) <= max(most, len("…".encode()))
        assert cut.rstrip("…") == text * cut.count(text)
        assert cut.endswith("…")
    assert short_message(long, len(long.encode())) == long
    assert short_message(long, None) == long


async def test_a_request_is_measured_as_a_whole() -> None:
    limiting = Limiting(Limits(argument_bytes=1_000, client_bytes=1_000))
    request = TaskRequest(method="tools/call", name="tool", arguments={"a": "x" * 500}, protocol_version="1")
    await limiting.create(None, request)
    for field in ("meta", "input_responses"):
        with pytest.raises(LimitExceeded) as refused:
            await limiting.create(None, replace(request, **{field: {"a": "x" * 500}}))
        assert refused.value.limit == "argument_bytes"
    for field in ("client_info", "client_capabilities"):
        with pytest.raises(LimitExceeded) as refused:
            await limiting.create(None, replace(request, **{field: {"a": "x" * 1_000}}))
        assert refused.value.limit == "client_bytes"


# Shares


def test_who_has_its_share_is_passed_over_while_others_are_in_line() -> None:
    lanes = Lanes()
    for number in range(3):
        lanes.put(f"a{number}", "new", owner="a", priority=5)
    lanes.put("b0", "again", owner="b")
    lanes.put("n0", "new", owner=None)
    taken = [lanes.take({"a"}) for _ in range(5)]
    assert {owner for _, owner in taken[:2]} == {"b", None}
    assert [task_id for task_id, _ in taken[2:]] == ["a0", "a1", "a2"]
    assert (len(lanes), lanes.priorities) == (0, [])


async def test_an_owner_has_a_quarter_of_the_slots_while_others_wait_and_all_while_nobody_does() -> None:
    engine = LocalEngine(8)
    running: list[str] = []

    async def execute(task_id: str, slot: Slot) -> None:
        running.append(task_id)
        await gates[task_id].wait()

    gates: dict[str, asyncio.Event] = {}
    await engine.start(execute, Serves(owner_share=0.25))

    async def submit(task_id: str) -> None:
        gates[task_id] = asyncio.Event()
        await engine.submit(task_id, owner=task_id[0])

    for number in range(20):
        await submit(f"a{number}")
    await eventually(lambda: len(running) == 8)
    for number in range(6):
        await submit(f"b{number}")
    for number in range(6):
        gates[f"a{number}"].set()
    await eventually(lambda: len(running) == 14)
    # Up to its own share at once, and then by turns: no slot is left free.
    assert running[8:10] == ["b0", "b1"]
    assert len([task_id for task_id in running[8:] if task_id.startswith("b")]) >= 4
    # Nobody else waits any more: all slots are there for whoever is in line.
    for gate in gates.values():
        gate.set()
    await eventually(lambda: len(running) == 26)
    await engine.stop(timedelta(seconds=1))


# Ages


@asynccontextmanager
async def runtime_with(limits: Limits, clock: FakeClock, seconds: Ticking) -> AsyncGenerator[TaskRuntime]:
    """A runtime whose only tool never ends by itself."""

    async def body(run: Run) -> Ending:
        await asyncio.Event().wait()
        return Success({})

    async def policy(method: str, name: str) -> ToolPolicy | None:
        return ToolPolicy()

    runtime = TaskRuntime(
        store=MemoryStore(),
        engine=LocalEngine(1),
        body=body,
        policy=policy,
        describe=describe,
        clock=clock,
        monotonic=seconds,
        limits=limits,
    )
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.abandon()


async def test_a_task_that_is_too_old_fails_whether_it_runs_or_waits() -> None:
    clock, seconds = FakeClock(), Ticking()
    request = TaskRequest(method="tools/call", name="tool", arguments={}, protocol_version="2026-07-28")
    async with runtime_with(Limits(task_age=timedelta(days=30)), clock, seconds) as runtime:
        running, waiting = [await runtime.launch(request, owner=None, retention=None) for _ in range(2)]
        clock.advance(timedelta(days=29))
        young = await runtime.launch(request, owner=None, retention=None)
        await runtime.janitor.ageing.look()
        assert (await runtime.get(running.id, owner=None)).status is TaskStatus.WORKING
        clock.advance(timedelta(days=1))
        await runtime.janitor.ageing.look()
        for task in (running, waiting):
            record = await runtime.get(task.id, owner=None)
            assert record.status is TaskStatus.FAILED
            assert "30 days" in (record.status_message or "")
        assert (await runtime.get(young.id, owner=None)).status is TaskStatus.WORKING
        assert runtime.run_of(running.id) is None or runtime.runs()[0].record.is_final


# The value itself


@pytest.mark.parametrize(
    "wrong",
    [
        {"owner_open_tasks": 0},
        {"open_tasks": 100_001},
        {"owner_creates": 0},
        {"owner_creates": True},
        {"owner_requests": -1},
        {"owner_share": 1.5},
        {"task_age": 5},
        {"stream_tasks": None},
        {"json_depth": None},
        {"argument_bytes": "1"},
    ],
)
def test_a_limit_that_cannot_be_is_refused_where_it_is_said(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(InvalidOption, match=name):
        Limits(**wrong)
