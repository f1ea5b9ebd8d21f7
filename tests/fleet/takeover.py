"""How long the tasks of a worker that dies wait for another: `python -m tests.fleet.takeover --backend postgres`.

A worker with twenty running tasks is killed, once beside the others, where its death is seen at once, and once as if on
another machine, where only its lease tells.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from harness.backends import BackendName, backend
from harness.rpc import Tasking
from mcp_tasks import Settings
from tests.fleet.fleet import door, fleet
from tests.fleet.server import LEASE, SWEEP, Notes

TASKS = 20


async def taken_over(
    url: str, folder: Path, *, apart: bool, lease: float = LEASE.total_seconds(), sweep: float = SWEEP.total_seconds()
) -> Sequence[float]:
    """Kill a worker with twenty running tasks: for each of them, the seconds from the death to its next run."""
    notes = Notes(folder)
    standing = fleet(url, folder, "--lease", str(lease), "--sweep", str(sweep), replicas=1)
    async with standing as (site, balancer), door(balancer.port) as client:
        first = site.worker(apart=lambda: apart)
        jobs = await started(client, notes, TASKS)
        idle = {site.worker().process, site.worker().process}
        while idle:
            # The others are at work, too: each has run something.
            await client.create("quick", job=(job := f"probe-{len(notes.read())}"))
            idle.discard((await notes.run_of(job)).process)
        died = time.monotonic()
        site.kill(first)
        again = [await notes.run_of(job, 2) for job in jobs]
        assert all(note.process != first.process for note in again)
        return sorted(note.at - died for note in again)


async def started(client: Tasking, notes: Notes, number: int, tool: str = "endless") -> dict[str, str]:
    tasks = {f"{tool}-{index}": await client.create(tool, job=f"{tool}-{index}") for index in range(number)}
    for job in tasks:
        await notes.run_of(job)
    return tasks


def bounds(lease: float, sweep: float = SWEEP.total_seconds(), *, apart: bool) -> tuple[float, float]:
    """When a task may be taken over, in seconds after the death: not before its worker, were it alive, would have
    stopped; and within the lease and a sweep."""
    return (lease * 2 / 3, lease + sweep) if apart else (0.0, 2 * sweep)


def main() -> int:
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
            times = f"{len(found)} tasks, first {found[0]:.2f} s, last {found[-1]:.2f} s"
            print(f"takeover ({what}): {times}; limit {longest:g} s")
            late |= found[-1] > longest
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
