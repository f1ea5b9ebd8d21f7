"""Hosts that give up on a call after a while: no answer of ours comes later than that.

Each host is scaled by itself, so that it gives up after the same few seconds; the waits of the tool that it calls are
scaled with it. All of them call at once, in the background of the first test. How late the machine itself is meanwhile
is measured by plain calls that need no time: an answer that is late by more is late because of us.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult, Implementation

from harness.rpc import MODERN, PATIENCE
from mcp_tasks.fallback.options import HOSTS, UNKNOWN_HOST, Fallback, Host
from tests.client.connecting import Person
from tests.fallback.matrix.clients import text_of
from tests.fallback.matrix.serving import HttpServers, Place, place

GIVES_UP: float = 4
"""Seconds after which a scaled host gives up. A sixth of it is left for the way there and back, on a busy machine."""

LIMITS = (30, 60, 240, 300)
ERAS = {"modern": MODERN, "older": "legacy"}


def test_the_limits_are_real_by_default() -> None:
    ways = Fallback()
    assert (ways.wait, ways.heartbeat) == (timedelta(seconds=25), timedelta(seconds=10))
    assert (ways.legs, ways.answer_within) == (8, timedelta(hours=1))
    assert (ways.handle, ways.when_caller_leaves, ways.model_may_answer) == (True, "continue", False)
    assert UNKNOWN_HOST.answer_within(has_progress=True) == timedelta(seconds=50)
    assert HOSTS["mcp"].answer_within(has_progress=False) is None
    for seconds in LIMITS:
        within = Host(limit=timedelta(seconds=seconds)).answer_within(has_progress=False)
        assert within is not None
        assert within.total_seconds() == pytest.approx(seconds * 5 / 6)


# --- the hosts ------------------------------------------------------------------------------------------------------


def scaled(limit: float) -> dict[str, Any]:
    """The usual waits for a host that gives up after so many seconds, as it is scaled."""
    scale = GIVES_UP / limit
    return {"wait": 25 * scale, "heartbeat": 10 * scale}


CONFIG: dict[str, Any] = {
    "tasks": {
        "hosts": {
            **{f"host-{limit}": {"limit": GIVES_UP} for limit in LIMITS},
            "host-extending": {"limit": GIVES_UP, "progress_extends": True},
            "host-patient": {},
            "*": {"limit": GIVES_UP},
        }
    },
    "gated": {
        **{f"gated_{limit}": scaled(limit) for limit in LIMITS},
        "gated_extending": scaled(60),
        "gated_patient": scaled(60),
        "gated_unknown": scaled(60),
    },
}


PAUSE = 0.1


class Lag:
    """How late answers are on this machine, whatever they are."""

    def __init__(self) -> None:
        self._over: list[tuple[float, float]] = []
        # Of the call that is not answered yet, or when it should begin.
        self._began = time.monotonic()

    async def watch(self, client: Client) -> None:
        """Call a plain tool again and again, until cancelled."""
        while True:
            self._began = time.monotonic()
            await client.call_tool("operator_count", {})
            ended = time.monotonic()
            self._over.append((ended, ended - self._began))
            self._began = ended + PAUSE
            await anyio.sleep(PAUSE)

    def since(self, moment: float) -> float:
        """The most that a call since then has been late, also one that is not answered yet."""
        late = [took for ended, took in self._over if ended >= moment]
        return max([*late, time.monotonic() - self._began])

    def assert_in_time(self, seconds: float, since: float) -> None:
        """The host, which has waited for so long, has not given up.

        The call, its answer, and what ends the wait in the server may each be late.
        """
        lag = self.since(since)
        assert seconds <= GIVES_UP + 2 * lag, f"{seconds:.2f} s, on a machine that is late by {lag:.2f} s"


class Caller:
    """One host with one call."""

    def __init__(self, client: Client, place: Place, name: str, person: Person, lag: Lag) -> None:
        self.client = client
        self.lag = lag
        self.place = place
        self.tool = f"gated_{name}"
        self.person = person
        self.heard: list[float] = []

    async def call(self, job: str, *, progress: bool = False, ask: bool = False) -> CallToolResult:
        """Call, and give up in time."""
        report = self._on_progress if progress else None
        with self.in_time():
            return await self.client.call_tool(self.tool, {"job": job, "ask": ask}, progress_callback=report)

    async def call_to_the_end(self, job: str, *, progress: bool = False) -> CallToolResult:
        """Call, and do not give up."""
        report = self._on_progress if progress else None
        with anyio.fail_after(PATIENCE):
            return await self.client.call_tool(self.tool, {"job": job}, progress_callback=report)

    @contextmanager
    def in_time(self) -> Generator[None]:
        """The block ends before the host gives up."""
        began = time.monotonic()
        with anyio.fail_after(PATIENCE):
            yield
        self.lag.assert_in_time(time.monotonic() - began, began)

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append(time.monotonic())


@asynccontextmanager
async def caller(place: Place, servers: HttpServers, era: str, name: str, lag: Lag) -> AsyncGenerator[Caller]:
    person = Person(ready=asyncio.Event())
    info = Implementation(name=f"host-{name}", version="1")
    async with Client(servers.url, mode=ERAS[era], client_info=info, elicitation_callback=person) as client:
        with anyio.fail_after(PATIENCE):
            await client.list_tools()
        yield Caller(client, place, name, person, lag)


def assert_handle(result: CallToolResult) -> str:
    assert "It has not finished, and this is not its result." in text_of(result)
    assert result.structured_content is not None
    return result.structured_content["taskId"]


# --- what they get --------------------------------------------------------------------------------------------------


async def gets_word_in_time(host: Caller, job: str) -> None:
    task_id = assert_handle(await host.call(job))
    # And when it asks for more than it can wait for.
    with host.in_time():
        more = await host.client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 60})
    assert assert_handle(more) == task_id


async def gets_word_in_time_with_progress(host: Caller, job: str) -> None:
    assert_handle(await host.call(job, progress=True))


async def gets_word_in_time_while_a_person_thinks(host: Caller, job: str) -> None:
    result = await host.call(job, ask=True)
    assert_handle(result)
    assert "waits for an answer" in text_of(result)
    assert set(host.person.asked) == {"What is your name?"}


async def is_kept_by_progress(host: Caller, job: str) -> None:
    opening = asyncio.create_task(_open(host.place, job, 1.5 * GIVES_UP))
    began = time.monotonic()
    result = await host.call_to_the_end(job, progress=True)
    await opening
    assert text_of(result) == f"{job} is done"
    # It gives up when it hears nothing for so long.
    moments = [began, *host.heard, time.monotonic()]
    host.lag.assert_in_time(max(after - before for before, after in pairwise(moments)), began)


async def is_not_kept_without_progress(host: Caller, job: str) -> None:
    assert_handle(await host.call(job))


async def waits_to_the_end(host: Caller, job: str) -> None:
    opening = asyncio.create_task(_open(host.place, job, 1.5 * GIVES_UP))
    result = await host.call_to_the_end(job)
    await opening
    assert text_of(result) == f"{job} is done"


async def gets_word_after_one_wait(host: Caller, job: str) -> None:
    began = time.monotonic()
    assert_handle(await host.call(job))
    assert time.monotonic() - began >= 25 * GIVES_UP / 60


async def _open(place: Place, job: str, seconds: float) -> None:
    await place.until("start", job)
    await anyio.sleep(seconds)  # sleep: work that takes so long
    place.open(job)


SCENES: dict[str, tuple[str, str, Callable[[Caller, str], Awaitable[None]]]] = {
    **{f"{era}-{limit}": (era, str(limit), gets_word_in_time) for era, limit in product(ERAS, LIMITS)},
    "older-30-progress": ("older", "30", gets_word_in_time_with_progress),
    "modern-300-progress": ("modern", "300", gets_word_in_time_with_progress),
    "older-30-asked": ("older", "30", gets_word_in_time_while_a_person_thinks),
    "older-300-asked": ("older", "300", gets_word_in_time_while_a_person_thinks),
    "older-extending-progress": ("older", "extending", is_kept_by_progress),
    "modern-extending-progress": ("modern", "extending", is_kept_by_progress),
    "older-extending-silence": ("older", "extending", is_not_kept_without_progress),
    "modern-extending-silence": ("modern", "extending", is_not_kept_without_progress),
    "older-patient": ("older", "patient", waits_to_the_end),
    "modern-patient": ("modern", "patient", waits_to_the_end),
    "older-unknown": ("older", "unknown", gets_word_after_one_wait),
    "modern-unknown": ("modern", "unknown", gets_word_after_one_wait),
}


Outcomes = dict[str, Exception | None]


@pytest.fixture(scope="module")
def outcomes() -> Generator[Outcomes]:
    """How it went for every host."""
    with place() as here:
        servers = here.serve(**CONFIG)
        yield asyncio.run(_all(here, servers))


async def _all(here: Place, servers: HttpServers) -> Outcomes:
    outcomes: Outcomes = {}
    lag = Lag()
    arriving, all_there = set(SCENES), asyncio.Event()

    def arrived(name: str) -> None:
        arriving.discard(name)
        if not arriving:
            all_there.set()

    async def run(name: str) -> None:
        era, host, scene = SCENES[name]
        try:
            async with caller(here, servers, era, host, lag) as visitor:
                # Connecting is not what is measured, nor that a client lists the tools before it believes a result.
                await visitor.client.list_tools()
                arrived(name)
                await all_there.wait()
                await scene(visitor, name)
            outcomes[name] = None
        except Exception as exc:
            outcomes[name] = exc
        finally:
            arrived(name)

    async with Client(servers.url, mode=MODERN) as plain:
        watching = asyncio.create_task(lag.watch(plain))
        async with anyio.create_task_group() as group:
            for name in SCENES:
                group.start_soon(run, name)
        assert not watching.done(), "the lag was not measured"
        watching.cancel()
        await asyncio.wait([watching])
    return outcomes


@pytest.mark.parametrize("scene", SCENES)
def test_no_host_gives_up_before_it_is_answered(outcomes: Outcomes, scene: str) -> None:
    problem = outcomes[scene]
    if problem is not None:
        raise problem
