"""A fleet of several processes: any replica serves any task, tasks outlive workers that die or are cut off, and nothing
is run twice."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast, get_args

import pytest

from harness.backends import Backend, BackendName
from harness.forking import can_be_apart
from harness.proxy import proxy_to
from harness.rpc import EVERYTHING, Tasking, accept
from mcp_tasks.stores.url import store_from_url
from tests.fleet.chaos import Chaos
from tests.fleet.fleet import door, fleet
from tests.fleet.server import LEASE, SWEEP, Notes
from tests.fleet.takeover import TASKS, bounds, started, taken_over

pytestmark = pytest.mark.slow


BACKENDS = ("postgres", "redis")


@pytest.fixture(scope="module", params=BACKENDS)
def database(request: pytest.FixtureRequest, shared_backend: Callable[[BackendName], Backend]) -> Backend:
    return shared_backend(cast(BackendName, request.param))


@pytest.fixture
def url(database: Backend) -> str:
    return database.fresh()


async def test_any_replica_creates_reads_answers_and_cancels_any_task_at_once(url: str, tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    # Looks at the store are so rare that only hints make anything quick.
    async with fleet(url, tmp_path, "--look", "600", "--lease", "15") as (site, _), AsyncExitStack() as stack:
        site.worker()
        ports = [replica.port for replica in site.replicas]
        one, other = [await stack.enter_async_context(door(port, capabilities=EVERYTHING)) for port in ports]
        task = await one.create("asking", job="asking")
        assert (await other.get(task))["status"] in ("working", "input_required")
        [key] = (await other.until(task, "input_required"))["inputRequests"]
        await one.update(task, **{key: accept(word="yes")})
        assert "asking: yes" in str((await other.until(task, "completed"))["result"])
        endless = await other.create("endless", job="endless")
        started = await notes.run_of("endless")
        await one.cancel(endless)
        assert (await notes.run_of("endless", 1, "stopped")).process == started.process
        assert [(await client.get(endless))["status"] for client in (other, one)] == ["cancelled"] * 2


CUT_OFF = 4
"""Workers that are cut off at once."""

LENGTH = LEASE.total_seconds()
SLACK = 10.0
"""Seconds that a machine may be late which has other things to do. What is late by rule is later than that: nothing
but the lease and sweeps finds these tasks before half a minute has passed."""


async def test_twenty_tasks_of_a_killed_worker_are_taken_over_within_the_lease_and_a_sweep(
    url: str, tmp_path: Path
) -> None:
    apart = can_be_apart()
    found = await taken_over(url, tmp_path, apart=apart)
    earliest, latest = bounds(LENGTH, apart=apart)
    assert len(found) == TASKS
    assert earliest <= found[0]
    assert found[-1] <= latest + SLACK


async def test_a_worker_that_was_stopped_for_longer_than_its_lease_writes_over_nothing(
    url: str, tmp_path: Path
) -> None:
    notes = Notes(tmp_path)
    async with (
        fleet(url, tmp_path, replicas=1) as (site, balancer),
        door(balancer.port, capabilities=EVERYTHING) as client,
    ):
        first = site.worker()
        steps = await client.create("stepping", job="steps", steps=3, seconds=0.8)
        once = await client.create("once", job="once", seconds=1.5)
        await notes.run_of("steps", 1)
        await notes.run_of("once", 1)
        pausing = asyncio.create_task(site.pause(first, 600.0))
        await asyncio.sleep(0)
        site.worker()
        ended = {task: await client.until(task, "completed", "failed") for task in (steps, once)}
        assert (ended[steps]["status"], ended[once]["status"]) == ("completed", "failed")
        assert (await notes.run_of("steps", 2)).process != first.process
        pausing.cancel()
        # It goes on, and is a worker like any other.
        await _is_back(client, notes, first.process)
        await asyncio.sleep(2.0)  # sleep: longer than anything takes that it had begun
        for task, end in ended.items():
            assert _same(await client.get(task), end)
        store = store_from_url(site.url)
        await store.open()
        recorded = [entry.key for entry in await store.journal(steps) if entry.kind == "step"]
        await store.close()
        assert recorded == ["step-0", "step-1", "step-2"]
        assert len(notes.of("once", "start")) == 1


async def test_what_workers_that_are_cut_off_run_ends_before_others_begin_and_they_come_back(
    url: str, tmp_path: Path
) -> None:
    """Their tools, and the child processes of those."""
    notes = Notes(tmp_path)
    # Four sweeps are hardly longer than a worker must be silent: its tasks are taken over as early as they may be.
    options = ("--lease", "6", "--sweep", "1.22")
    async with (
        fleet(url, tmp_path, *options, replicas=1) as (site, balancer),
        door(balancer.port, capabilities=EVERYTHING) as client,
        proxy_to(url) as line,
    ):
        # Started one after the other, so that each is cut off at another moment between two of its heartbeats.
        for _ in range(CUT_OFF):
            worker = site.worker("--concurrency", "2", url=line.url, apart=lambda: True)
            job = f"probe-{worker.name}"
            await client.create("quick", job=job)
            await notes.run_of(job, 1)
        tasks = {**await started(client, notes, CUT_OFF), **await started(client, notes, CUT_OFF, "deaf")}
        last = site.worker()
        line.is_silent = True
        for job in tasks:
            again = await notes.run_of(job, 2)
            assert again.process == last.process
            assert (await notes.run_of(job, 1, "stopped")).at < again.at
            if job.startswith("deaf"):
                assert float((tmp_path / f"{job}.1.alive").read_text()) < again.at, "a child process went on"
        # The worst that a network can do: what was on its way arrives after all.
        line.is_silent = False
        await _is_back(client, notes, site.workers[0].process)
        for job, task in tasks.items():
            assert (await client.get(task))["status"] == "working"
            assert len(notes.of(job, "start")) == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", get_args(BackendName))
def test_nothing_is_lost_doubled_or_stuck_under_fire(name: str, tmp_path: Path) -> None:
    # For longer: `make chaos`.
    seconds = 6.0
    verdict = Chaos(backend=cast(BackendName, name), seconds=seconds, seed=1).run(tmp_path)
    assert verdict.is_good, "\n".join([*verdict.details(), verdict.line])
    assert verdict.acknowledged > seconds


async def _is_back(client: Tasking, notes: Notes, process: str) -> None:
    number = 0
    while True:
        job = f"back-{process}-{number}"
        await client.create("once", job=job, seconds=SWEEP.total_seconds())
        if (await notes.run_of(job, 1)).process == process:
            return
        number += 1


def _same(task: dict[str, object], other: dict[str, object]) -> bool:
    """Whether the two are one answer, but for what moves by itself."""
    moving = ("_meta", "ttlMs", "pollIntervalMs")
    return {**task, **dict.fromkeys(moving)} == {**other, **dict.fromkeys(moving)}
