"""Replicas behind a balancer, and workers beside them: any of them will do, and each gets what it may have."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from harness.backends import Backend
from harness.rpc import EVERYTHING, Tasking, accept
from tests.fleet.fleet import Fleet, door, fleet
from tests.fleet.server import LIMIT, Note, Notes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_number = itertools.count()


def new_job(name: str) -> str:
    return f"{name}-{next(_number)}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A fleet that all tests of the file share."""

    site: Fleet
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
    options = ("--look", "600", "--lease", "15")
    async with AsyncExitStack() as stack:
        standing = fleet(database.fresh(), folder, *options, "--pools", "all")
        site, _ = await stack.enter_async_context(standing)
        site.worker("--pools", "without-rare", "--queues", "default")
        site.worker("--queues", "default")
        site.worker("--queues", "gpu")
        ports = [replica.port for replica in site.replicas]
        doors = [await stack.enter_async_context(door(port, capabilities=EVERYTHING)) for port in ports]
        yield Standing(site, Notes(folder), doors)


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


async def test_a_task_goes_to_a_worker_that_serves_its_queue_and_has_its_tool(standing: Standing) -> None:
    lacks, has, pool = standing.site.workers
    for number in range(10):
        client = standing.doors[number % 2]
        drawn, special = new_job("drawn"), new_job("special")
        for task in (await client.create("drawn", job=drawn), await client.create("special", job=special)):
            await client.until(task, "completed")
        assert standing.ran(drawn).process == pool.process
        assert standing.ran(special).process == has.process
    assert "special" not in standing.site.log(lacks)
