"""Replicas behind a balancer, and workers beside them: any of them will do, and each gets what it may have."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from harness.backends import Backend
from harness.http import HttpWire
from harness.rpc import EVERYTHING, Tasking, accept
from harness.waiting import eventually
from tests.fleet.fleet import Balancer, Fleet, door, fleet
from tests.fleet.server import LIMIT, Note, Notes
from tests.push.listening import listening

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHARE = 10
"""Tasks of one owner that are in the hands of the engine at a time."""

SLOTS = 4
"""Of each worker."""

_number = itertools.count()


def new_job(name: str) -> str:
    return f"{name}-{next(_number)}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A fleet that all tests of the file share."""

    site: Fleet
    balancer: Balancer
    notes: Notes
    doors: Sequence[Tasking]

    def ran(self, job: str) -> Note:
        [note] = self.notes.of(job, "start")
        return note


@pytest.fixture(scope="module")
async def standing(database: Backend, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Standing]:
    """Two replicas that only serve, two workers of which one lacks a tool, and one for the queue `gpu`.

    Looks at the store are so rare that only hints make anything quick.
    """
    folder = tmp_path_factory.mktemp("fleet")
    options = ("--look", "600", "--share", str(SHARE), "--concurrency", str(SLOTS), "--lease", "15")
    async with AsyncExitStack() as stack:
        standing = fleet(database.fresh(), folder, *options, "--pools", "all")
        site, balancer = await stack.enter_async_context(standing)
        site.worker("--pools", "without-rare", "--queues", "default")
        site.worker("--queues", "default")
        site.worker("--queues", "gpu")
        ports = [replica.port for replica in site.replicas]
        doors = [await stack.enter_async_context(door(port, capabilities=EVERYTHING)) for port in ports]
        yield Standing(site, balancer, Notes(folder), doors)


async def test_any_replica_creates_reads_answers_and_cancels_any_task_at_once(standing: Standing) -> None:
    one, other = standing.doors
    task = await one.create("asking", job=(job := new_job("asking")))
    assert (await other.get(task))["status"] in ("working", "input_required")
    [key] = (await other.until(task, "input_required"))["inputRequests"]
    await one.update(task, **{key: accept(word="yes")})
    assert f"{job}: yes" in str((await other.until(task, "completed"))["result"])
    endless = await other.create("endless", job=(job := new_job("endless")))
    started = await standing.notes.run_of(job)
    await one.cancel(endless)
    assert (await standing.notes.run_of(job, 1, "stopped")).process == started.process
    assert [(await client.get(endless))["status"] for client in (other, one)] == ["cancelled"] * 2


async def test_any_replica_pushes_the_changes_of_any_task(standing: Standing) -> None:
    one, other = standing.doors
    task = await one.create("asking", job=new_job("asking"))
    assert isinstance(other.wire, HttpWire)
    async with listening(other.wire, [task]) as stream:
        await stream.acknowledged()
        *_, asking = await stream.until("input_required")
        [key] = asking["inputRequests"]
        await one.update(task, **{key: accept(word="yes")})
        await stream.until("completed")


async def test_an_answer_wakes_a_parked_task_where_there_is_room(standing: Standing) -> None:
    client = standing.doors[0]
    task = await client.create("asking", job=(job := new_job("asking")))
    first = await standing.notes.run_of(job)
    await standing.notes.run_of(job, 1, "stopped")
    member = standing.site.member(first.process)
    async with asyncio.TaskGroup() as group:
        # The process that asked can do nothing now; to the others it is alive.
        pausing = group.create_task(standing.site.pause(member, LIMIT))
        [key] = (await client.until(task, "input_required"))["inputRequests"]
        await client.update(task, **{key: accept(word="yes")})
        await client.until(task, "completed")
        pausing.cancel()
    assert (await standing.notes.run_of(job, 2)).process != first.process


@pytest.mark.parametrize(("tool", "owner"), [("dull", "rare"), ("urgent", "busy")], ids=["owner", "priority"])
async def test_tasks_of_another_owner_and_those_of_a_higher_priority_do_not_wait_for_a_long_queue(
    standing: Standing, tool: str, owner: str
) -> None:
    async with door(standing.balancer.port, owner="busy") as busy, door(standing.balancer.port, owner=owner) as other:
        many = [new_job("dull") for _ in range(40)]
        await asyncio.gather(*(busy.create("dull", job=job, seconds=0.1) for job in many))
        task = await other.create(tool, job=(job := new_job(tool)), **({"seconds": 0.0} if tool == "dull" else {}))
        created = asyncio.get_running_loop().time()
        await other.until(task, "completed")
        # Those that were in the hands of the engine by then, and what stood at the slots.
        before = standing.ran(job).at
        started = [note for note in standing.notes.read() if note.job in many and note.what == "start"]
        assert sum(created < note.at < before for note in started) <= SHARE + 2 * SLOTS
    # So that what one test began is not in the way of the next.
    ended = set(many).issubset
    await eventually(lambda: ended(note.job for note in standing.notes.read() if note.what == "end"), LIMIT)


async def test_a_tool_has_no_more_runs_in_the_whole_fleet_than_it_may(standing: Standing) -> None:
    jobs = [new_job("limited") for _ in range(16)]
    clients = itertools.cycle(standing.doors)
    tasks = await asyncio.gather(*(next(clients).create("limited", job=job, seconds=0.1) for job in jobs))
    for task in tasks:
        await standing.doors[0].until(task, "completed")
    changes = sorted(
        (note.at, 1 if note.what == "start" else -1)
        for note in standing.notes.read()
        if note.job in jobs and note.what in ("start", "end")
    )
    at_work = list(itertools.accumulate(change for _, change in changes))
    assert max(at_work) == 2
    assert len(changes) == 2 * len(jobs)


async def test_a_queue_goes_to_its_own_workers_and_to_no_other(standing: Standing) -> None:
    pool = standing.site.workers[2].process
    for client in [*standing.doors] * 2:
        drawn, urgent = new_job("drawn"), new_job("urgent")
        tasks = [await client.create("drawn", job=drawn), await client.create("urgent", job=urgent)]
        for task in tasks:
            await client.until(task, "completed")
        assert standing.ran(drawn).process == pool
        assert standing.ran(urgent).process != pool


async def test_no_task_goes_to_a_worker_that_lacks_its_tool(standing: Standing) -> None:
    lacks, has, _ = standing.site.workers
    jobs = [new_job("special") for _ in range(10)]
    tasks = [await standing.doors[0].create("special", job=job) for job in jobs]
    for task in tasks:
        await standing.doors[1].until(task, "completed")
    assert {standing.ran(job).process for job in jobs} == {has.process}
    assert "special" not in standing.site.log(lacks)
