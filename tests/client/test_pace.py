"""When a client looks at a task, and how long it waits, against scripted servers and on simulated time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from harness.rpc import MODERN, PARSE_ERROR
from mcp_tasks.cli.follow import Followed, Follower, Watcher
from mcp_tasks.cli.questions import Question
from mcp_tasks.client import Patience, TaskHandle, TaskStatus, WaitTimedOut, call_tool
from mcp_tasks.client.poller import BACKSTOP, DEFAULT_INTERVAL, MOST_UNREADABLE, SHORTEST_INTERVAL, SOON, Poller
from mcp_tasks.errors import InvalidOption, InvalidResponse
from mcp_tasks.protocol.shapes import parse_task
from tests.client.connecting import Person, accepted, begin, text
from tests.client.peer import (
    ACK,
    OUT_OF_ORDER,
    RELATED,
    TASK_ID,
    Answer,
    MemoryPeer,
    Refusal,
    asking,
    completed,
    connected,
    old_result,
    old_task,
    pushed,
    task,
    told,
    working,
)
from tests.unit.virtual_time import SIMULATED, VirtualTimeLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return SIMULATED


NOT_READABLE = Refusal(PARSE_ERROR, "no JSON")


class Paced:
    def __init__(self, *states: Answer, **fields: Any) -> None:
        self.peer = MemoryPeer(version=MODERN)
        self.times: list[float] = []
        self._states = list(states)
        self._fields = fields
        self.peer.on("tools/call", self._create)
        self.peer.on("tasks/get", self._get)
        self.peer.on("tasks/update", ACK)

    @property
    def gaps(self) -> list[float]:
        """Seconds between the looks, the first one after the creation of the task."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    async def _create(self, params: object) -> Answer:
        self.times.append(anyio.current_time())
        return {**working(0), **self._fields, "resultType": "task"}

    async def _get(self, params: object) -> Answer:
        self.times.append(anyio.current_time())
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    async def called(self, **options: Any) -> str:
        async with connected(self.peer, **options) as client:
            try:
                return text(await client.call_tool("x"))
            except Exception as exc:
                failure = exc
        # Out of the client it would have come wrapped in groups.
        raise failure


def near(*seconds: float) -> Any:
    return pytest.approx(list(seconds), rel=1e-6, abs=1e-4)


# The interval of the server


SUGGESTED: list[tuple[list[Any], list[float]]] = [
    ([2_500], [2.5]),
    ([1_000, 9_000, 500], [1, 9, 0.5]),
    ([60_001, 300_000, 10**9], [60.001, 300, 10**6]),
    ([0, -1, -(10**9), 1, 49, 0.001], [SHORTEST_INTERVAL] * 6),
    ([..., None, 10**400, 1e300, "0", [], True], [DEFAULT_INTERVAL] * 7),
]


@pytest.mark.requirement("client/poll-interval")
@pytest.mark.parametrize(
    ("suggested", "kept"), SUGGESTED, ids=["one", "changing", "however long", "no busy loop", "no usable one"]
)
async def test_the_interval_that_the_server_suggests_is_kept(suggested: list[Any], kept: list[float]) -> None:
    states = [working(step, pollIntervalMs=interval) for step, interval in enumerate(suggested, 1)]
    paced = Paced(*states, completed())
    await paced.called(push=False)
    assert paced.gaps[1:] == near(*kept)


INTERVAL = 0.3
LOOKS = 4

ANSWERING = ["call_tool", "call", "handle", "by hand", "command line"]
WAYS = [*((way, False) for way in (*ANSWERING, "watch")), *((way, True) for way in ANSWERING)]


class Clerk(Watcher):
    can_answer = True

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds

    async def answer(self, followed: Followed, question: Question) -> Mapping[str, Any]:
        await anyio.sleep(self._seconds)  # sleep: the time is simulated
        return accepted().model_dump(mode="json", exclude_none=True)


async def wait(client: Client, way: str) -> None:
    match way:
        case "call_tool":
            await client.call_tool("x")
        case "call":
            await call_tool(client, "x")
        case "handle":
            await (await begin(client, "x")).result()
        case "watch":
            async for _ in (await begin(client, "x")).watch():
                pass
        case "by hand":
            handle = await begin(client, "x")
            while asked := await next_questions(handle):
                await handle.answer(dict.fromkeys(asked, accepted()))
        case _:
            assert (await Follower(Clerk()).call(client, "x", server="peer")).status == "completed"


async def next_questions(handle: TaskHandle) -> Collection[str]:
    async with aclosing(handle.watch()) as states:
        async for snapshot in states:
            if snapshot.input_requests:
                return snapshot.input_requests.keys()
    return ()


@pytest.mark.requirement("client/poll-interval")
@pytest.mark.parametrize(("way", "asks"), WAYS)
async def test_polls_of_2026_07_28_keep_to_the_interval(way: str, asks: bool) -> None:
    pace = {"pollIntervalMs": INTERVAL * 1000}
    states = [
        {**(asking(f"q{step}") if asks else working(step)), **pace, "lastUpdatedAt": working(step)["lastUpdatedAt"]}
        for step in range(1, LOOKS)
    ]
    paced = Paced(*states, completed(), **pace)
    async with connected(paced.peer, person=Person()) as client:
        await wait(client, way)
    assert len(paced.peer.asked("tasks/update")) == (LOOKS - 1 if asks else 0)
    assert paced.gaps == near(*[INTERVAL] * LOOKS)


@pytest.mark.requirement("older-client/poll-interval")
@pytest.mark.parametrize(("way", "asks"), WAYS)
async def test_polls_of_2025_11_25_keep_to_the_interval_also_around_questions(way: str, asks: bool) -> None:
    times: list[float] = []
    async with slow_old_peer(times, asks=asks) as peer, connected(peer, person=Person()) as client:
        await wait(client, way)
    assert len(peer.replies) == (LOOKS if asks else 0)
    # But for the last one, when the task was known to be over.
    assert min(later - earlier for earlier, later in pairwise(times[:-1])) >= INTERVAL * 0.999


@asynccontextmanager
async def slow_old_peer(times: list[float], *, asks: bool) -> AsyncGenerator[MemoryPeer]:
    peer, ended = MemoryPeer(), anyio.Event()
    pace: dict[str, Any] = {"pollInterval": INTERVAL * 1000}

    async def create(params: object) -> Answer:
        times.append(anyio.current_time())
        return {"task": old_task(**pace)}

    async def get(params: object) -> Answer:
        times.append(anyio.current_time())
        if not asks and len(times) == LOOKS + 1:
            ended.set()
        open_now = asks and len(times) - 1 > len(peer.replies) and len(peer.replies) < LOOKS
        return old_task("completed" if ended.is_set() else "input_required" if open_now else "working", **pace)

    async def result(params: object) -> Answer:
        if asks:
            form: dict[str, Any] = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
            form["requestedSchema"]["properties"] = {}
            for number in range(LOOKS):
                await peer.tell("notifications/tasks/status", old_task("input_required", **pace))
                await (await peer.send("elicitation/create", {**form, "_meta": dict(RELATED)}, 100 + number))
                await peer.tell("notifications/tasks/status", old_task("working", **pace))
                await anyio.sleep(INTERVAL)  # sleep: the tool works on, and is polled meanwhile
            ended.set()
        await ended.wait()
        return old_result()

    peer.on("tools/call", create)
    peer.on("tasks/get", get)
    peer.on("tasks/result", result)
    yield peer


# Pushed states and hints


def pushing(paced: Paced, *states: Mapping[str, Any], ends_after: float | None = None) -> None:
    """Tell of these states on the first stream, which stays open unless it ends after a while."""

    async def listen(params: object) -> Answer:
        paced.peer.on("subscriptions/listen", OUT_OF_ORDER)
        for message in pushed(0, *states):
            await paced.peer.write(message)
        if ends_after is None:
            return None
        await anyio.sleep(ends_after)  # sleep: the time is simulated
        return ACK

    paced.peer.on("subscriptions/listen", listen)


@pytest.mark.parametrize("interval", [0.2, 45])
async def test_while_states_are_pushed_a_look_is_only_the_backstop(interval: float) -> None:
    state = working(1, pollIntervalMs=interval * 1000)
    paced = Paced(state, state, completed("never told"), pollIntervalMs=interval * 1000)
    pushing(paced, state)
    assert await paced.called() == "never told"
    assert paced.gaps[1:] == near(*[max(interval, BACKSTOP)] * 2)


async def test_when_push_is_lost_the_pace_of_a_poll_is_back() -> None:
    state = working(1, pollIntervalMs=2_000)
    paced = Paced(state, completed("polled"), pollIntervalMs=2_000)
    pushing(paced, state, ends_after=5)
    assert await paced.called() == "polled"
    # Pushed right after its creation, and lost after five seconds.
    assert paced.gaps == near(7, 2) or paced.gaps == pytest.approx([7, 2], abs=0.1)


async def test_a_stream_that_says_nothing_is_not_relied_on() -> None:
    paced = Paced(task(), task(), completed("polled"))
    pushing(paced)
    assert await paced.called() == "polled"
    assert paced.gaps == near(*[0.05] * 3)


async def test_streams_that_end_at_once_are_not_opened_in_a_loop() -> None:
    paced = Paced(*[task(pollIntervalMs=1_000)] * 100, completed())
    paced.peer.on("subscriptions/listen", ACK)
    await paced.called()
    assert 3 <= len(paced.peer.asked("subscriptions/listen")) <= 10


async def test_streams_that_fail_do_not_feed_patience() -> None:
    paced = Paced(working(1), OUT_OF_ORDER)
    pushing(paced, working(1), ends_after=0.01)
    with pytest.raises(MCPError, match="try again later"):
        await paced.called(patience=PATIENCE_OF_TEN)


def test_hints_bring_looks_forward_each_further_one_less_and_never_put_one_off() -> None:
    poller, pauses = Poller(), list[float]()
    for _ in range(6):
        poller.saw(parse_task(task(pollIntervalMs=2_000)), 1_000, pushed=False)
        # Many before the look that they ask for count once.
        for _ in range(50):
            poller.hinted(1_000)
        pauses.append(poller.next_look - 1_000)
    assert pauses == near(SOON, 2 * SOON, 4 * SOON, 8 * SOON, 2, 2)
    poller.hinted(1_001.95)
    assert poller.next_look == 1_002


async def test_a_task_that_is_said_to_have_ended_is_looked_at_at_once_and_only_the_first_time() -> None:
    peer, times = MemoryPeer(), list[float]()

    async def get(params: object) -> Answer:
        times.append(anyio.current_time())
        if len(times) < 3:
            await peer.tell("notifications/tasks/status", old_task("completed", pollInterval=30_000))
        return old_task("completed" if len(times) == 3 else "working", pollInterval=30_000)

    peer.on("tasks/get", get)
    peer.on("tasks/result", None, old_result())
    async with connected(peer) as client:
        async for _ in (await begin(client, "x")).watch():
            pass
    assert [later - earlier for earlier, later in pairwise(times)] == near(0, 2 * SOON)


# Which of the states that come is the newest


FINAL_BEFORE = completed(lastUpdatedAt="2026-08-01T10:00:01.000Z")


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        ([working(5), working(3), completed()], [None, "step 5", None]),
        ([working(5), working(1), working(2), completed()], [None, "step 5", "step 2", None]),
        ([working(59), FINAL_BEFORE], [None, "step 59", None]),
    ],
    ids=["a look that was crossed", "a clock that went back", "an end by another clock"],
)
async def test_a_watch_goes_back_only_after_two_looks(looks: list[dict[str, Any]], shown: list[str | None]) -> None:
    paced = Paced(*looks, statusMessage=None)
    async with connected(paced.peer, push=False) as client:
        states = [snapshot async for snapshot in (await begin(client, "x")).watch()]
    assert [state.message for state in states] == shown
    assert states[-1].status is TaskStatus.COMPLETED
    assert len(paced.times) == 1 + len(looks), "an end needs no second look"


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([working(2), working(1), completed()], ["step 0", "step 2", None]),
        ([completed(), working(59, createdAt="2026-08-02T10:00:00Z")], ["step 0", None]),
        ([working(30), FINAL_BEFORE], ["step 0", None]),
    ],
    ids=["the newest counts", "nothing comes after the end", "an end by another clock"],
)
async def test_of_states_pushed_together_the_newest_is_shown(
    states: list[dict[str, Any]], shown: list[str | None]
) -> None:
    paced = Paced(working(0), pollIntervalMs=60_000)
    pushing(paced, *states)
    async with connected(paced.peer) as client:
        seen = [snapshot async for snapshot in (await begin(client, "x")).watch()]
    assert [state.message for state in seen] == shown
    assert len(paced.times) == 1


async def test_a_pushed_state_that_is_older_is_not_shown() -> None:
    paced = Paced(working(5, pollIntervalMs=1_000), completed())
    async with connected(paced.peer) as client:
        steps: list[str | None] = []
        async for snapshot in (await begin(client, "x")).watch():
            steps.append(snapshot.message)
            if snapshot.message == "step 5":
                await paced.peer.write(told(working(4)))
    assert steps == ["step 0", "step 5", None]


# A server that is out of reach


PATIENCE_OF_TEN = Patience(
    max_outage=timedelta(seconds=10), first_pause=timedelta(seconds=1), max_pause=timedelta(seconds=4)
)


async def test_pauses_after_failures_double_up_to_a_limit_and_patience_ends_after_the_first_failure() -> None:
    paced = Paced(OUT_OF_ORDER)
    with pytest.raises(MCPError, match="try again later") as caught:
        await paced.called(push=False, patience=PATIENCE_OF_TEN)
    assert TASK_ID in "".join(caught.value.__notes__)
    # Half of each pause is chance.
    for gap, longest in zip(paced.gaps[1:], [1, 2, 4, 4, 4, 4, 4], strict=False):
        assert longest / 2 <= gap <= longest
    assert 6 <= sum(paced.gaps[1:]) <= 10
    impatient = Paced(OUT_OF_ORDER)
    with pytest.raises(MCPError, match="try again later"):
        await impatient.called(push=False, patience=Patience(max_outage=timedelta(0)))
    assert len(impatient.times) == 2


async def test_a_success_in_between_starts_patience_and_pauses_afresh() -> None:
    paced = Paced(*[OUT_OF_ORDER, OUT_OF_ORDER, working(1)] * 10, completed("at last"))
    assert await paced.called(push=False, patience=PATIENCE_OF_TEN) == "at last"
    assert max(paced.gaps) <= 2


async def test_answers_that_cannot_be_read_are_asked_for_a_few_times_in_a_row_only() -> None:
    few = [NOT_READABLE] * (MOST_UNREADABLE - 1)
    patience = Patience(max_outage=timedelta(days=1))
    paced = Paced(*few, OUT_OF_ORDER, *few, completed("after all"))
    assert await paced.called(push=False, patience=patience) == "after all"
    unreadable = Paced(NOT_READABLE)
    with pytest.raises(InvalidResponse, match="cannot be read"):
        await unreadable.called(push=False, patience=patience)
    assert len(unreadable.times) == 1 + MOST_UNREADABLE


@pytest.mark.parametrize("name", ["max_outage", "first_pause", "max_pause"])
@pytest.mark.parametrize("value", [60, timedelta(seconds=-1), None])
def test_patience_that_is_no_duration_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        Patience(**{name: value})


# Time limits


class Thinking:
    """Somebody who takes so many seconds for each answer."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        await anyio.sleep(self._seconds.pop(0))  # sleep: the time is simulated
        return accepted()


LIMIT = 1.0


def asker(*keys: str, last: Answer = None) -> MemoryPeer:
    """A server whose task asks these questions until they are answered, and then works on for ever or has ended."""
    peer = MemoryPeer(version=MODERN)

    async def get(params: object) -> Answer:
        answered = {key for update in peer.asked("tasks/update") for key in update["inputResponses"]}
        left = [key for key in keys if key not in answered]
        return asking(*left) if left else last or task(pollIntervalMs=10**6)

    peer.on("tasks/get", get)
    peer.on("tasks/update", ACK)
    return peer


async def time_out(wait: Callable[[Client], Awaitable[object]], peer: MemoryPeer, **options: Any) -> float:
    async with connected(peer, push=False, **options) as client:
        began = anyio.current_time()
        with pytest.raises(WaitTimedOut) as caught:
            await wait(client)
        assert caught.value.seconds == LIMIT
        return anyio.current_time() - began


async def by_handle(client: Client) -> None:
    await (await begin(client, "x")).result(LIMIT)


async def by_call(client: Client) -> None:
    await call_tool(client, "x", timeout=LIMIT)


async def by_follower(client: Client) -> None:
    followed = await Follower(Clerk(9), timeout=LIMIT).call(client, "x", server="peer")
    assert followed.problem is not None
    raise followed.problem


@pytest.mark.parametrize("wait", [by_handle, by_call, by_follower])
async def test_the_time_that_a_person_takes_to_answer_does_not_count_and_then_the_time_runs_on(wait: Any) -> None:
    assert await time_out(wait, asker()) == pytest.approx(LIMIT, abs=0.001)
    assert await time_out(wait, asker("a"), person=Thinking(9)) == pytest.approx(9 + LIMIT, abs=0.001)
    if wait is not by_follower:
        # Several are asked at once, and the last of them counts.
        assert await time_out(wait, asker("a", "b"), person=Thinking(9, 5)) == pytest.approx(9 + LIMIT, abs=0.001)


def test_the_time_runs_on_after_an_answer_in_a_plain_event_loop() -> None:
    # Under `asyncio.run`, unlike in a test runner of anyio's, callbacks of the loop do not know their library.
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        seconds = runner.run(time_out(by_handle, asker("a"), person=Thinking(9)))
    assert seconds == pytest.approx(9 + LIMIT, abs=0.001)


async def test_the_time_limit_of_a_call_is_not_that_of_a_call_inside_its_callback() -> None:
    peer, inner = MemoryPeer(version=MODERN), list[float]()

    async def create(params: Mapping[str, Any]) -> Answer:
        return task(resultType="task", taskId=params["name"], pollIntervalMs=9_000)

    async def get(params: Mapping[str, Any]) -> Answer:
        if params["taskId"] == "inner":
            inner.append(anyio.current_time())
            return completed("inner", taskId="inner")
        return {**(completed("outer") if inner else asking("a")), "taskId": "outer", "pollIntervalMs": 500}

    async def calls(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert text(await client.call_tool("inner")) == "inner"
        return accepted()

    peer.on("tools/call", create)
    peer.on("tasks/get", get)
    peer.on("tasks/update", ACK)
    async with connected(peer, person=calls, push=False) as client:
        began = anyio.current_time()
        assert text(await call_tool(client, "outer", timeout=10)) == "outer"
    assert inner[0] - began == pytest.approx(18, abs=0.1), "the outer call took longer than its limit"
