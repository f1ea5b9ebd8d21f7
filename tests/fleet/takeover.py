"""How long the tasks of a worker that dies wait for another: `python -m tests.fleet.takeover --backend postgres`.

A worker with twenty running tasks is killed, once beside the others, where its death is seen at once, and once as if on
another machine, where only its lease tells.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from harness.backends import BackendName, backend
from harness.rpc import Tasking
from mcp_tasks import Settings
from tests.fleet.driving import door
from tests.fleet.fleet import LIMIT, LOOK, Fleet, fleet
from tests.fleet.notes import Note, Notes
from tests.fleet.served import LEASE, SWEEP

TASKS = 20


@dataclass(frozen=True, slots=True)
class Takeover:
    """How it went.

    Attributes:
        seconds: For each of the tasks, the time from the death to its next run.
    """

    seconds: Sequence[float]

    @property
    def line(self) -> str:
        """All of it, in a line."""
        ordered = sorted(self.seconds)
        return f"{len(ordered)} tasks, first {ordered[0]:.2f} s, last {ordered[-1]:.2f} s"


async def taken_over(
    url: str,
    folder: Path,
    *,
    apart: bool,
    lease: float = LEASE.total_seconds(),
    sweep: float = SWEEP.total_seconds(),
) -> Takeover:
    """Kill a worker with twenty running tasks, and wait until others run them."""
    notes = Notes(folder)
    standing = fleet(url, folder, "--lease", str(lease), "--sweep", str(sweep), replicas=1)
    async with standing as (site, balancer), door(balancer.port) as client:
        first = site.worker(apart=lambda: apart)
        jobs = await started(client, notes, TASKS)
        site.worker()
        site.worker()
        await _settled(site, client, notes)
        died = time.monotonic()
        site.kill(first)
        again = [await run_of(notes, job, 2) for job in jobs]
        assert all(note.process != first.process for note in again)
        return Takeover([note.at - died for note in again])


async def started(client: Tasking, notes: Notes, number: int, tool: str = "endless") -> dict[str, str]:
    """So many running tasks: jobs and ids."""
    tasks = {f"{tool}-{index}": await client.create(tool, job=f"{tool}-{index}") for index in range(number)}
    for job in tasks:
        await run_of(notes, job, 1)
    return tasks


async def run_of(notes: Notes, job: str, attempt: int, what: str = "start") -> Note:
    """Wait until a run of the job has started, or come to what is asked for."""
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        for note in notes.of(job, what):
            if note.attempt == attempt:
                return note
        await asyncio.sleep(LOOK)
    raise AssertionError(f"not within {LIMIT:g} s: {what} of run {attempt} of {job}; there is {notes.of(job, 'start')}")


async def _settled(site: Fleet, client: Tasking, notes: Notes) -> None:
    """Wait until the other workers are at work, too: each has run something."""
    idle: set[str] = {worker.process for worker in site.workers[1:]}
    number = 0
    while idle:
        await client.create("quick", job=f"probe-{number}")
        idle.discard((await run_of(notes, f"probe-{number}", 1)).process)
        number += 1


def bounds(lease: float, sweep: float = SWEEP.total_seconds(), *, apart: bool) -> tuple[float, float]:
    """When a task may be taken over, in seconds after the death: not before its worker, were it alive, would have
    stopped; and within the lease and a sweep."""
    return (lease * 2 / 3, lease + sweep) if apart else (0.0, 2 * sweep)


def main() -> int:
    """Do it in both ways; 1 if it takes longer than it may."""
    parser = argparse.ArgumentParser(description="Kill a worker, and see how long its tasks wait.")
    parser.add_argument("--backend", choices=get_args(BackendName), default="sqlite")
    usual = Settings()
    parser.add_argument("--lease", type=float, default=usual.lease_duration.total_seconds())
    parser.add_argument("--sweep", type=float, default=usual.sweeps_every(remote=True).total_seconds())
    options = parser.parse_args()
    late = False
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-takeover-") as folder:
        for apart in (False, True):
            place = Path(folder, "apart" if apart else "beside")
            place.mkdir()
            with backend(options.backend, place) as database:
                taking_over = taken_over(database.url, place, apart=apart, lease=options.lease, sweep=options.sweep)
                found = asyncio.run(taking_over)
            _, longest = bounds(options.lease, options.sweep, apart=apart)
            where = "as if on another machine" if apart else "on the same machine"
            what = f"{options.backend}, lease {options.lease:g} s, sweep {options.sweep:g} s, {where}"
            print(f"takeover ({what}): {found.line}; limit {longest:g} s")
            late |= max(found.seconds) > longest
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
