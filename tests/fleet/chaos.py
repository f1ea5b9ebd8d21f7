"""A fleet under fire: `make chaos BACKEND=postgres SECONDS=60 SEED=1`.

    python -m tests.fleet.chaos --backend postgres --seconds 60 --seed 1

Two replicas behind a balancer, three workers and a database; clients ask for tasks of all kinds, while processes are
killed and stopped and the database is restarted. When that is over, everything must come to its end by itself, and what
every client saw is compared with what the tools wrote down and with what is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from harness.backends import Backend, BackendName, backend
from mcp_tasks.errors import StoreError
from mcp_tasks.stores.url import store_from_url
from tests.fleet.balancing import balancing
from tests.fleet.checking import Evidence, Verdict, judged
from tests.fleet.driving import Acknowledged, Driver, driver
from tests.fleet.fleet import Fleet
from tests.fleet.notes import Notes
from tests.fleet.plans import Disturbance, Plan, planned
from tests.fleet.served import LEASE
from tests.fleet.unfenced import Fence

MEMBERS = ("replica-0", "replica-1", "worker-0", "worker-1", "worker-2")
SETTLED_IN = 150.0
"""Seconds after the disturbance, for what still runs to end; only what is stuck takes so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chaos:
    """One run of it."""

    backend: BackendName
    seconds: float
    seed: int
    fence: Fence = "kept"
    settled_in: float = SETTLED_IN
    says: bool = False
    """Whether to tell what happens, as it does."""

    def run(self, folder: Path) -> Verdict:
        """Do it, and judge."""
        with backend(self.backend, folder) as database:
            return asyncio.run(self._run(database, folder))

    async def _run(self, database: Backend, folder: Path) -> Verdict:
        plan = planned(
            self.seed,
            self.seconds,
            members=MEMBERS,
            lease=LEASE.total_seconds(),
            restarts=database.server is not None,
        )
        async with self._standing(database, folder) as (fleet, clients):
            await self._live_through(plan, fleet, database, clients)
            evidence = await _gathered(database, clients.acknowledged, Notes(folder))
        for why, times in clients.refused.most_common():
            self._say(f"{times} calls were not acknowledged: {why}")
        for task in sorted(clients.acknowledged, key=lambda task: task.at - task.ended)[:3]:
            self._say(f"{task.job} took {task.ended - task.at:.1f} s")
        return judged(evidence, fleet.pauses, LEASE.total_seconds())

    @asynccontextmanager
    async def _standing(self, database: Backend, folder: Path) -> AsyncGenerator[tuple[Fleet, Driver]]:
        fleet = Fleet(database.url, folder, "--fence", self.fence)
        chance = random.Random(self.seed)
        try:
            for _ in range(2):
                fleet.replica(turns=["--serves-only"])
            for _ in range(3):
                # Half of them as if on other machines, where only the lease tells who is alive.
                fleet.worker(apart=lambda: chance.random() < 0.5)
            await fleet.ready()
            fleet.keep()
            ports = [member.port for member in fleet.replicas]
            async with balancing(*ports) as balancer, driver(balancer.port, ports, self.seed) as clients:
                yield fleet, clients
        finally:
            fleet.end()

    async def _live_through(self, plan: Plan, fleet: Fleet, database: Backend, clients: Driver) -> None:
        """Disturb while clients are at it, and then let everything settle."""
        driving = asyncio.create_task(clients.drive(plan.calls))
        await self._disturb(plan.disturbances, fleet, database)
        clients.over()
        done, _ = await asyncio.wait({driving}, timeout=self.settled_in)
        if not done:
            driving.cancel()
        with suppress(asyncio.CancelledError):
            await driving
        await fleet.ready()
        await clients.look_everywhere()

    async def _disturb(self, disturbances: Sequence[Disturbance], fleet: Fleet, database: Backend) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for one in disturbances:
                await asyncio.sleep(begun + one.after - time.monotonic())
                self._say(f"{time.monotonic() - begun:5.1f} s  {one.what} {one.whom}")
                group.create_task(_happen(one, fleet, database))
            await asyncio.sleep(begun + self.seconds - time.monotonic())

    def _say(self, what: str) -> None:
        if self.says:
            print(what, flush=True)


async def _happen(one: Disturbance, fleet: Fleet, database: Backend) -> None:
    if one.what in ("restart", "crash"):
        how = signal.SIGINT if one.what == "restart" else signal.SIGKILL
        await asyncio.to_thread(database.restart, how)
        return
    member = next(member for member in fleet.members if member.name == one.whom)
    if one.what == "kill":
        fleet.kill(member)
    elif one.what == "terminate":
        fleet.terminate(member)
    else:
        await fleet.pause(member, one.seconds)


async def _gathered(database: Backend, tasks: Sequence[Acknowledged], notes: Notes) -> list[Evidence]:
    written = notes.read()
    store = store_from_url(database.url)
    await store.open()
    try:
        return [
            Evidence(task, [note for note in written if note.task == task.id], await store.journal(task.id))
            for task in tasks
        ]
    finally:
        with suppress(StoreError):
            await store.close()


def main() -> int:
    """Run it once; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Shoot at a fleet, and see that nothing is lost.")
    parser.add_argument("--backend", choices=get_args(BackendName), default="sqlite")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--fence", choices=get_args(Fence), default="kept")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep logs and notes in any case")
    options = parser.parse_args()
    seed: int = random.randrange(10**6) if options.seed is None else options.seed
    chaos = Chaos(
        backend=options.backend, seconds=options.seconds, seed=seed, fence=options.fence, says=not options.quiet
    )
    print(f"chaos: {chaos.backend}, {chaos.seconds:g} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="mcp-tasks-chaos-"))
    verdict = chaos.run(folder)
    for what in verdict.late:
        print(f"late: {what}")
    for what in verdict.details():
        print(what)
    print(f"chaos: {len(verdict.late)} runs came to their end and did not count")
    print(verdict.line)
    if verdict.is_good and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"chaos: SEED={seed} does the same again; logs and notes are in {folder}")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
