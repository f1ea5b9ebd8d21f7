"""When calls are answered, in simulated time: by what is known of the caller's host, and by what an author says.

What is private here is the table of hosts, which a page shows.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from mcp.server.mcpserver import Context

from harness.http import initialize
from harness.rpc import NOTHING, Tasking
from harness.server import QUICK
from mcp_tasks import Fallback, Host, Tasks
from mcp_tasks.errors import InvalidOption
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing.clock import NOON
from tests.fallback.scenes import Call, chat, handle, text, without_sockets
from tests.fallback.server import Served, build
from tests.unit import virtual_time
from tests.unit.virtual_time import time_passes

NO_WORKER = "Waiting for a worker: none is running"

FOREVER = None
"""A call that is answered when its tool has ended, and not before."""


def simulated(test: Any) -> Any:
    """Run the test in simulated time, by all clocks."""
    return pytest.mark.usefixtures("one_clock")(virtual_time.simulated(test))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def simulated_now() -> Any:
    return NOON + seconds(asyncio.get_running_loop().time())


def served_with(**options: Any) -> Served:
    # A look now and then: thousands of seconds go by.
    return build(clock=simulated_now, settings=QUICK, **options)


async def is_answered_after(
    expected: float | None,
    served: Served,
    mode: str,
    name: str,
    tool: str = "gated",
    *,
    progress: Any = None,
    **arguments: Any,
) -> bool:
    """Whether a call is answered after so many seconds with word that its tool still runs, or else with its result.

    A client of the newest wire pauses shortly before it comes back, which counts where there is a limit.
    """
    began = asyncio.get_running_loop().time()
    asyncio.get_running_loop().call_later(400, served.jobs.open, "job")
    async with chat(served.server, mode, name=name) as client:
        result = await client.call_tool(tool, arguments, progress_callback=progress)
    if text(result) == "job is done":
        return expected is FOREVER
    handle(result)
    took = asyncio.get_running_loop().time() - began
    return took == pytest.approx(expected, abs=0.1 if mode == "legacy" else 2.5)


async def heard(progress: float, total: float | None, message: str | None) -> None:
    """Progress, which is asked for to extend the time."""


LIMITS = {f"gives-up-after-{limit}": Host(limit=seconds(limit)) for limit in (30, 60, 100, 240, 300)}
EXTENDS = Host(limit=seconds(60), progress_extends=True)
HOSTS_HERE = {
    **LIMITS,
    "extends": EXTENDS,
    "chat*": Host(limit=seconds(30)),
    "chat-desktop*": Host(limit=seconds(12)),
    "chat-desktop": Host(),
    "agent": Host(limit=seconds(12), stdio=Host(limit=seconds(24))),
}


@simulated
@pytest.mark.parametrize(
    ("name", "modern", "older"),
    [
        # Of the newest wire: when, and after how many requests. Of the older ones: when, in one request.
        ("nobody-knows", (50, 2), 25),
        ("mcp", (225, 9), FOREVER),
        ("gives-up-after-30", (25, 1), 25),
        ("gives-up-after-60", (50, 2), 50),
        ("gives-up-after-100", (83.3, 4), 83.3),
        ("gives-up-after-240", (200, 8), 200),
        ("gives-up-after-300", (225, 9), 250),
        # In this process a client of the newest wire has no token, and so is not kept by progress.
        ("extends", (50, 2), FOREVER),
        # The closest entry counts, and a bridge works for the host before it. A client in this process is a pipe.
        ("chat-web", (25, 1), 25),
        ("chat-desktop-beta", (10, 1), 10),
        ("chat-desktop", (225, 9), FOREVER),
        ("chat-desktop (via mcp-remote 0.1.38)", (225, 9), FOREVER),
        ("agent", (20, 1), 20),
        # Not the names of any of them.
        ("Extends", (50, 2), 25),
        ("agents", (50, 2), 25),
        (" (via mcp-remote 0.1.38)", (50, 2), 25),
    ],
)
async def test_a_call_is_answered_well_before_its_host_gives_up(
    name: str, modern: tuple[float, int], older: float | None
) -> None:
    for mode, expected in (("2026-07-28", modern[0]), ("legacy", older)):
        served = served_with(hosts=HOSTS_HERE)
        assert await is_answered_after(expected, served, mode, name, job="job", progress=heard)
        if mode != "legacy":
            assert served.jobs.count("request", "job") == modern[1]


@simulated
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
@pytest.mark.parametrize(
    ("ways", "name", "modern", "older"),
    [
        (Fallback(wait=seconds(7)), "nobody-knows", 50, 7),
        (Fallback(wait=seconds(7)), "mcp", 63, FOREVER),
        (Fallback(wait=seconds(7), legs=1), "mcp", 14, FOREVER),
        (Fallback(legs=0), "mcp", 25, FOREVER),
        (Fallback(wait=seconds(0), legs=0), "nobody-knows", 0, 0),
        (Fallback(handle=False), "nobody-knows", FOREVER, FOREVER),
        # Progress that comes too seldom keeps nobody.
        (Fallback(heartbeat=seconds(60)), "extends", 50, 50),
        # What is assumed of hosts that are not known.
        ({"*": Host(limit=seconds(12))}, "nobody-knows", 10, 10),
        ({"*": Host()}, "nobody-knows", 225, 25),
        ("inline", "nobody-knows", FOREVER, FOREVER),
        (Fallback(modern=False), "gives-up-after-60", FOREVER, 50),
        (Fallback(older=False), "gives-up-after-60", 50, FOREVER),
    ],
)
async def test_an_author_says_how_long_calls_wait(
    mode: str, ways: Any, name: str, modern: float | None, older: float | None
) -> None:
    options: dict[str, Any] = (
        {"hosts": {**HOSTS_HERE, **ways}} if isinstance(ways, dict) else {"hosts": HOSTS_HERE, "fallback": ways}
    )
    expected = older if mode == "legacy" else modern
    assert await is_answered_after(expected, served_with(**options), mode, name, job="job", progress=heard)


@simulated
@pytest.mark.parametrize(
    ("name", "wanted", "modern", "older"),
    [
        ("nobody-knows", 3, 3, 3),
        ("nobody-knows", None, 25, 25),
        ("nobody-knows", 600, 50, 25),
        ("mcp", 600, 300, 300),
        ("gives-up-after-30", 60, 25, 25),
        ("extends", 60, 50, 50),
    ],
)
async def test_task_status_waits_as_long_as_it_is_told_to_and_no_longer_than_its_host(
    name: str, wanted: float | None, modern: float, older: float
) -> None:
    for mode, expected in (("2026-07-28", modern), ("legacy", older)):
        served = served_with(hosts=HOSTS_HERE)
        async with served.tasks.running(served.server):
            task_id = (await served.tasks.start("gated", {"job": "job"})).id
            wait = {} if wanted is None else {"wait_seconds": wanted}
            assert await is_answered_after(expected, served, mode, name, "task_status", task_id=task_id, **wait)


@simulated
async def test_what_a_person_takes_counts_until_the_host_would_have_given_up() -> None:
    served = served_with(fallback=Fallback(wait=seconds(5)))
    async with without_sockets(served) as wire:
        client = Tasking(wire, {"elicitation": {"form": {}}})
        for thinks, more in ((40, 10), (70, 50)):
            call = Call("asks", {"job": f"thinks-{thinks}"})
            await call.asked(client)
            await time_passes(thinks)
            began = asyncio.get_running_loop().time()
            # It comes back without an answer, and is asked again at once until its time is over.
            result = (await call.leg(client)).result
            while result["resultType"] == "input_required":
                assert result["inputRequests"]
                await time_passes(1)
                result = (await call.leg(client)).result
            assert asyncio.get_running_loop().time() - began <= more


@simulated
@pytest.mark.parametrize("json_response", [False, True])
async def test_over_http_progress_extends_the_time_only_where_it_is_sent(json_response: bool) -> None:
    served = served_with(hosts={"raw": EXTENDS})
    async with without_sockets(served, json_response=json_response) as wire:
        call, client = Call("gated", {"job": "job"}), Tasking(wire, NOTHING)
        told = [await call.leg(client, progress_token="token") for _ in range(3)]
        # One that is not kept is answered with its second request.
        assert [reply.result["resultType"] == "input_required" for reply in told[:2]] == [True, not json_response]
        assert bool(told[0].notifications) is not json_response


@simulated
async def test_a_host_over_http_is_not_taken_for_one_that_starts_the_server_and_a_stateless_one_has_no_name() -> None:
    served = served_with(hosts={"raw": Host(limit=seconds(12), stdio=Host())})
    for stateless, expected in ((False, 10), (True, 25)):
        async with without_sockets(served, stateless=stateless) as wire:
            session, _ = await initialize(wire, NOTHING)
            began = asyncio.get_running_loop().time()
            handle((await session.ask("tools/call", {"name": "gated", "arguments": {"job": "job"}})).result)
            assert asyncio.get_running_loop().time() - began == pytest.approx(expected, abs=0.1)


# --- callers that leave --------------------------------------------------------------------------------------------


@simulated
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_the_work_stops_when_all_have_left_who_want_it_and_not_when_one_does_who_only_looks(mode: str) -> None:
    served = build()
    async with chat(served.server, mode) as one, chat(served.server, mode) as two:
        first, second = [
            asyncio.create_task(each.call_tool("joined_and_dropped", {"job": "job"})) for each in (one, two)
        ]
        await time_passes(1)
        [task] = await served.all_tasks()
        looking = asyncio.create_task(one.call_tool("task_status", {"task_id": task.id}))
        await time_passes(1)
        for leaving in (looking, first):
            leaving.cancel()
            await time_passes(10)
            assert served.jobs.counts("job", "start", "stopped") == (1, 0)
        second.cancel()
        await time_passes(10)
        assert served.jobs.counts("job", "start", "stopped") == (1, 1)
        # Nor does one stop that only a caller looked at who leaves.
        task = await served.tasks.start("dropped", {"job": "looked at"})
        looking = asyncio.create_task(one.call_tool("task_status", {"task_id": task.id}))
        await time_passes(1)
        looking.cancel()
        await time_passes(10)
        assert served.jobs.counts("looked at", "start", "stopped") == (1, 0)


# --- signs of life --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(served: Served, mode: str, tool: str, job: str) -> AsyncGenerator[list[Any]]:
    """What the caller of a tool hears, with the time of its coming, while the block lasts and until it is answered."""
    got: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        got.append((asyncio.get_running_loop().time(), progress, total, message))

    async with chat(served.server, mode, name="mcp") as client:
        calling = asyncio.create_task(client.call_tool(tool, {"job": job}, progress_callback=on_progress))
        yield got
        await calling


@simulated
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_call_of_a_quiet_tool_is_kept_alive(mode: str) -> None:
    served = served_with()
    began = asyncio.get_running_loop().time()
    async with listening(served, mode, "talks", "talks") as talks, listening(served, mode, "gated", "quiet") as quiet:
        await time_passes(60)
        served.jobs.open("talks")
        served.jobs.open("quiet")
    for got in (talks, quiet):
        times = [began, *(at for at, *_ in got), began + 60]
        assert all(later - earlier <= 10 for earlier, later in pairwise(times))
        assert all(earlier < later for earlier, later in pairwise(value for _, value, *_ in got))
    assert [report[1:] for report in talks[:2]] == [(1, 3, "first"), (2, 3, None)]
    # What was said last, and the tool's next value is still to come.
    assert {report[2:] for report in talks[2:-1]} <= {(3, "first"), (3, "Still running")}
    assert talks[-1][1:] == (3, 3, "last")
    assert {report[2:] for report in quiet} == {(None, "Still running")}
    assert quiet[-1][1] < 0.001


@simulated
async def test_what_reaches_the_total_is_told_at_the_end_and_the_call_is_kept_alive_until_then() -> None:
    served = served_with()

    @served.tool()
    async def all_but_done(job: str, ctx: Context) -> str:
        await ctx.report_progress(5, 5, "all")
        return await served.jobs.work(job)

    async with listening(served, "legacy", "all_but_done", "job") as got:
        await time_passes(15)
        served.jobs.open("job")
    assert [report[2:] for report in got] == [(5, "all")] * 2
    assert got[0][1] < got[1][1] == 5


@simulated
async def test_a_caller_hears_that_no_worker_is_there_until_one_is() -> None:
    store = MemoryStore()
    served = served_with(store=store)

    async def say(message: str | None) -> None:
        # As a process does that only serves, and finds no worker for its tasks.
        [task] = await served.all_tasks()
        record = await store.get(task.id)
        assert record is not None
        told = replace(record, status_message=message, version=record.version + 1)
        await store.save(told, expected=record.version)

    async with listening(served, "legacy", "gated", "job") as got:
        for message in (None, NO_WORKER, None):
            await time_passes(1)
            await say(message)
            await time_passes(8)
        served.jobs.open("job")
    assert [message for *_, message in got] == ["Still running", NO_WORKER, "Still running"]


@simulated
async def test_a_client_that_takes_no_progress_holds_up_neither_the_tool_nor_the_answer() -> None:
    served = served_with()

    async def takes_nothing(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.Event().wait()

    # In this process progress is a call of the client's callback, which the server waits for.
    async with chat(served.server, "2026-07-28") as client:
        served.jobs.open("job")
        began = asyncio.get_running_loop().time()
        result = await client.call_tool("talks", {"job": "job"}, progress_callback=takes_nothing)
        assert not result.is_error
        assert asyncio.get_running_loop().time() - began <= 50


# --- the table of hosts ---------------------------------------------------------------------------------------------


def test_a_name_that_no_host_can_have_and_what_is_no_host_are_refused() -> None:
    host: Any
    for name, host, said in (
        ("", EXTENDS, "a host's name cannot be empty"),
        ("our*chat", EXTENDS, "can only stand at the end"),
        ("*chat", EXTENDS, "can only stand at the end"),
        ("**", EXTENDS, "can only stand at the end"),
        ("our-chat (via mcp-remote 0.1.38)", EXTENDS, "write 'our-chat'"),
        ("chat", timedelta(minutes=1), "hosts['chat'] must be a Host, got datetime.timedelta"),
    ):
        with pytest.raises(InvalidOption, match=re.escape(said)):
            Tasks("memory://", hosts={name: host})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"limit": 60}, "limit must be a timedelta, got 60"),
        ({"stdio": timedelta(minutes=1)}, "stdio must be a Host"),
        ({"progress_extends": 1}, "progress_extends"),
    ]
    for options, said in wrong:
        with pytest.raises(InvalidOption, match=said):
            Host(**options)
    with pytest.raises(InvalidOption, match="hosts must be a mapping"):
        Tasks("memory://", hosts=["chat"])  # pyright: ignore[reportArgumentType]
