"""A fleet under fire: `make chaos BACKEND=postgres SECONDS=60 SEED=1`.

    python -m tests.fleet.chaos --backend postgres --seconds 60 --seed 1

Two replicas behind a balancer, three workers and a database; clients ask for tasks of all kinds, while processes are
killed and stopped and the database is restarted. When that is over, everything must come to its end by itself, and what
every client saw is compared with what the tools wrote down and with what is stored.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import httpx2
from mcp import Client, MCPError

from harness.backends import Backend, BackendName, backend
from harness.rpc import INVALID_PARAMS, Tasking
from harness.stored import opened
from mcp_tasks.client import TaskFailed, TaskHandle, TaskWasCancelled, UnknownTask, start_task
from mcp_tasks.model import JournalEntry
from mcp_tasks.stores.url import store_from_url
from tests.fleet.fleet import FINAL, Fleet, balancing, connected, door, text_of
from tests.fleet.server import LEASE, Note, Notes

MEMBERS = ("replica-0", "replica-1", "worker-0", "worker-1", "worker-2")
SETTLED_IN = 150.0
"""Seconds after the disturbance, for what still runs to end; only what is stuck takes so long."""

# What is to happen, chosen by a seed before anything does

Kind: TypeAlias = Literal["quick", "long", "asking", "stepping", "sleeping", "failing", "endless", "poison", "once"]

WEIGHTS: Final[Mapping[Kind, int]] = {
    "quick": 4,
    "long": 4,
    "asking": 4,
    "stepping": 5,
    "sleeping": 3,
    "failing": 2,
    "endless": 4,
    "once": 5,
}
"""How often there is a task of each kind, beside the others. Of the one that takes its process down there are few."""

TASKS_PER_SECOND = 4.0
POISON_EVERY = 15.0
"""Seconds."""

RESTART_EVERY = 25.0
"""Seconds between two restarts of the database; a shorter run has one, in its middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One task that a client asks for, so many seconds from the beginning, and cancels or waits for."""

    job: str
    kind: Kind
    after: float
    arguments: Mapping[str, Any]
    cancel_after: float | None = None


Happening: TypeAlias = Literal["kill", "terminate", "pause", "long pause", "restart", "crash"]
"""`restart` and `crash` are the database's."""

HAPPENINGS: Final[Sequence[Happening]] = [
    *("kill", "kill", "kill", "kill", "terminate"),
    *("pause", "pause", "pause", "long pause", "long pause", "long pause"),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    what: Happening
    after: float
    whom: str = ""
    seconds: float = 0.0


def planned(seed: int, seconds: float, *, restarts: bool) -> tuple[Sequence[Call], Sequence[Disturbance]]:
    """What happens in so many seconds of disturbance. The same seed gives the same plan."""
    chance = random.Random(seed)
    calls = [_call(chance, number, number / TASKS_PER_SECOND) for number in range(int(seconds * TASKS_PER_SECOND))]
    poisons = max(int(seconds / POISON_EVERY), 1)
    calls += [
        # Early: it takes several deaths to find out which task it is that kills.
        Call(job=f"poison-{number}", kind="poison", after=chance.uniform(0, seconds * 0.4), arguments={})
        for number in range(poisons)
    ]
    disturbances = [*_disturbances(chance, seconds), *(_restarts(chance, seconds) if restarts else ())]
    return sorted(calls, key=lambda call: call.after), sorted(disturbances, key=lambda one: one.after)


def _call(chance: random.Random, number: int, after: float) -> Call:
    [kind] = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    arguments: dict[str, Any] = {}
    if kind in ("long", "sleeping", "once"):
        arguments["seconds"] = chance.uniform(0.2, 4.0)
    if kind == "stepping":
        arguments |= {"steps": chance.randint(2, 6), "seconds": chance.uniform(0.0, 0.6)}
    cancel_after = chance.uniform(0.0, 4.0) if kind == "endless" else None
    return Call(job=f"{kind}-{number}", kind=kind, after=after, arguments=arguments, cancel_after=cancel_after)


def _disturbances(chance: random.Random, seconds: float) -> Sequence[Disturbance]:
    happenings: list[Disturbance] = []
    lease = LEASE.total_seconds()
    after = chance.uniform(0.5, 1.5)
    while after < seconds:
        what = chance.choice(HAPPENINGS)
        pause = chance.uniform(1.1, 2.0) * lease if what == "long pause" else chance.uniform(0.05, 0.6) * lease
        whom = chance.choice(MEMBERS)
        happenings.append(Disturbance(what=what, after=after, whom=whom, seconds=pause))
        after += chance.uniform(0.5, 2.0)
    return happenings


def _restarts(chance: random.Random, seconds: float) -> Sequence[Disturbance]:
    times = max(int(seconds / RESTART_EVERY), 1)
    return [
        Disturbance(what="crash" if chance.random() < 0.5 else "restart", after=seconds * (number + 0.5) / times)
        for number in range(times)
    ]


# The clients: they ask for tasks, answer and cancel them, wait for them, and keep all that they see

_MOVES = ("_meta", "ttlMs", "pollIntervalMs", "resultType")
"""Parts of an answer that say nothing of the task."""

_PAUSE = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A task as it was at `asked` or later; the text is the answer without what moves by itself."""

    asked: float
    at: float
    status: str
    text: str

    @property
    def outcome(self) -> tuple[str, str]:
        task = json.loads(self.text)
        if self.status == "completed":
            return self.status, "".join(part.get("text", "") for part in task["result"]["content"])
        return self.status, task.get("error", {}).get("message", "")


@dataclass(slots=True)
class Acknowledged:
    """A task that a client was promised; the outcome is what it was told, a status and a text."""

    call: Call
    job: str
    id: str
    views: list[View] = field(default_factory=list[View])
    outcome: tuple[str, str] | None = None
    cancelled_at: float | None = None
    is_lost: bool = False


class Driver:
    """Makes the calls of a plan through the balancer, and looks at their tasks by the door of each replica."""

    def __init__(self, clients: Sequence[Client], doors: Sequence[Tasking], seed: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._clients = clients
        self._doors = doors
        self._chance = random.Random(seed)
        self._is_over = False

    async def drive(self, calls: Sequence[Call]) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(begun + call.after - time.monotonic())
                group.create_task(self._see_through(call))

    def over(self) -> None:
        """Calls that have not been taken by now are not made again."""
        self._is_over = True

    async def look_everywhere(self) -> None:
        for task in self.acknowledged:
            for number in range(len(self._doors)):
                await self._look(task, number, tries=20)

    async def _see_through(self, call: Call) -> None:
        client = self._chance.choice(self._clients)
        started = await self._started(client, call)
        if started is None:
            return
        task, handle = started
        looking = asyncio.create_task(self._keep_looking(task))
        try:
            cancelling = self._cancel(task, handle) if call.cancel_after is not None else None
            task.outcome, *_ = await asyncio.gather(self._outcome(task, handle), *([cancelling] if cancelling else []))
        finally:
            looking.cancel()

    async def _started(self, client: Client, call: Call) -> tuple[Acknowledged, TaskHandle] | None:
        """A task for the call. A call that fails may have made one all the same, so it is made again as another."""
        tries = 0
        while not (self._is_over and tries):
            job = call.job if not tries else f"{call.job}/{tries}"
            tries += 1
            try:
                handle = await start_task(client, call.kind, {"job": job, **call.arguments})
            except (MCPError, OSError, httpx2.HTTPError):
                await asyncio.sleep(_PAUSE)
                continue
            assert isinstance(handle, TaskHandle), f"{job} was answered at once: {handle}"
            task = Acknowledged(call, job, handle.id)
            self.acknowledged.append(task)
            return task, handle
        return None

    async def _cancel(self, task: Acknowledged, handle: TaskHandle) -> None:
        await asyncio.sleep(task.call.cancel_after or 0.0)
        while task.cancelled_at is None:
            try:
                await handle.cancel()
            except UnknownTask:
                task.is_lost = True
                return
            except (MCPError, OSError, httpx2.HTTPError):
                await asyncio.sleep(_PAUSE)
            else:
                task.cancelled_at = time.monotonic()

    async def _outcome(self, task: Acknowledged, handle: TaskHandle) -> tuple[str, str] | None:
        try:
            return "completed", text_of(await handle.result())
        except TaskFailed as exc:
            return "failed", exc.error.message
        except TaskWasCancelled:
            return "cancelled", ""
        except UnknownTask:
            task.is_lost = True
            return None

    async def _keep_looking(self, task: Acknowledged) -> None:
        """Look at it beside its client, by any door, less and less often."""
        pause = 0.1
        while True:
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))
            pause = min(pause * 1.5, 3.0)
            await self._look(task, self._chance.randrange(len(self._doors)), tries=1)

    async def _look(self, task: Acknowledged, number: int, *, tries: int) -> None:
        for _ in range(tries):
            asked = time.monotonic()
            try:
                reply = await self._doors[number].ask("tasks/get", {"taskId": task.id})
            except (httpx2.HTTPError, OSError):
                await asyncio.sleep(_PAUSE)
                continue
            if "result" in reply.message:
                said = {key: value for key, value in reply.result.items() if key not in _MOVES}
                text = json.dumps(said, sort_keys=True)
                task.views.append(View(asked=asked, at=time.monotonic(), status=said["status"], text=text))
                return
            if reply.code == INVALID_PARAMS:
                task.is_lost = True
                return
            await asyncio.sleep(_PAUSE)


# What must be so of every task that a client was promised, whatever has happened meanwhile


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a client saw of one task, what its runs wrote down, and what the store recorded of it."""

    task: Acknowledged
    notes: Sequence[Note]
    journal: Sequence[JournalEntry]


@dataclass(slots=True)
class Verdict:
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    stuck: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.stuck or self.wrong)

    @property
    def line(self) -> str:
        counts = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.stuck)} stuck"
        wrong = f", {len(self.wrong)} wrong" if self.wrong else ""
        return f"chaos: {self.acknowledged} acknowledged, {counts}{wrong}"

    def details(self) -> Iterator[str]:
        for name in ("lost", "doubled", "stuck", "wrong"):
            yield from (f"{name}: {what}" for what in getattr(self, name))


def judged(evidence: Sequence[Evidence]) -> Verdict:
    verdict = Verdict(acknowledged=len(evidence))
    for one in evidence:
        name = f"{one.task.job} ({one.task.id})"
        if one.task.is_lost:
            verdict.lost.append(f"{name}: a server said that there is no such task")
            continue
        verdict.stuck += [f"{name}: {what}" for what in _stuck(one)]
        verdict.doubled += [f"{name}: {what}" for what in _doubled(one)]
        verdict.wrong += [f"{name}: {what}" for what in _wrong(one)]
    return verdict


def _stuck(one: Evidence) -> Iterator[str]:
    if one.task.outcome is None:
        yield "its client never heard how it ended"
    if not one.task.views:
        yield "no replica could show it"
    elif one.task.views[-1].status not in FINAL:
        yield f"it has not ended: {one.task.views[-1].text}"


def _doubled(one: Evidence) -> Iterator[str]:
    # Two ends.
    finals = [view for view in one.task.views if view.status in FINAL]
    if texts := {view.text for view in finals}:
        if len(texts) > 1:
            yield f"it has ended in several ways: {' and '.join(sorted(texts))}"
        # Asked for before that, an answer may have been on its way for long.
        later = [view for view in one.task.views if view.asked > finals[0].at and view.status not in FINAL]
        if later:
            yield f"it had ended as {finals[0].status}, and then was {later[0].status}"
    if one.task.outcome is not None and finals and one.task.outcome != finals[-1].outcome:
        yield f"its client was told {one.task.outcome}, and now it is {finals[-1].outcome}"
    # Two starts.
    starts = [note for note in one.notes if note.what == "start"]
    for attempt, times in Counter(note.attempt for note in starts).items():
        if times > 1:
            where = ", ".join(note.process for note in starts if note.attempt == attempt)
            yield f"run {attempt} was started {times} times: {where}"
    if one.task.call.kind == "once" and len(starts) > 1:
        yield f"it is not safe to run again, and was started {len(starts)} times"
    # Two records.
    entries = [entry for entry in one.journal if entry.kind == "step"]
    times = Counter(entry.key for entry in entries)
    yield from (f"step {key} was recorded {number} times" for key, number in times.items() if number > 1)
    recorded = {entry.key: cast(Mapping[str, object], entry.value)["value"] for entry in entries}
    for note in one.notes:
        if note.what == "step" and recorded.get(note.key) != note.value:
            yield f"in run {note.attempt} {note.key} gave {note.value}, and {recorded.get(note.key)} is recorded"
    if one.task.call.kind == "stepping" and one.task.outcome is not None and one.task.outcome[0] == "completed":
        values = one.task.outcome[1].split()
        if list(recorded.values()) != values:
            yield f"its result is of other steps than were recorded: {values}, {recorded}"


def _wrong(one: Evidence) -> Iterator[str]:
    outcome, call = one.task.outcome, one.task.call
    if outcome is None:
        return
    if call.kind == "stepping":
        if outcome[0] != "completed" or len(outcome[1].split()) != call.arguments["steps"]:
            yield f"it ended as {outcome}"
        return
    expected = _expected(one.task.job)[call.kind]
    if not any(outcome[0] == status and text in outcome[1] for status, text in expected):
        yield f"it ended as {outcome}, and only {expected} will do"


def _expected(job: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    as_asked = [("completed", job)]
    return {
        "quick": as_asked,
        "long": as_asked,
        "sleeping": as_asked,
        "asking": [("completed", f"{job}: word-{job}")],
        "failing": [("completed", f"{job} failed")],
        "endless": [("cancelled", "")],
        "poison": [("failed", "process")],
        "once": [*as_asked, ("failed", "nterrupted")],
    }


# One run


@dataclass(frozen=True, kw_only=True, slots=True)
class Chaos:
    backend: BackendName
    seconds: float
    seed: int
    says: bool = False
    """Whether to tell what happens, as it does."""

    def run(self, folder: Path) -> Verdict:
        with backend(self.backend, folder) as database:
            return asyncio.run(self._run(database, folder))

    async def _run(self, database: Backend, folder: Path) -> Verdict:
        calls, disturbances = planned(self.seed, self.seconds, restarts=database.server is not None)
        async with self._standing(database, folder) as (fleet, clients):
            driving = asyncio.create_task(clients.drive(calls))
            await self._disturb(disturbances, fleet, database)
            clients.over()
            # And then everything must settle.
            done, _ = await asyncio.wait({driving}, timeout=SETTLED_IN)
            if not done:
                driving.cancel()
            with suppress(asyncio.CancelledError):
                await driving
            await fleet.ready()
            await clients.look_everywhere()
            return judged(await _gathered(database, clients.acknowledged, Notes(folder)))

    @asynccontextmanager
    async def _standing(self, database: Backend, folder: Path) -> AsyncGenerator[tuple[Fleet, Driver]]:
        fleet = Fleet(database.url, folder)
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
            async with balancing(*ports) as balancer, AsyncExitStack() as stack:
                # Half of the clients are told of changes, the others ask.
                connecting = [connected(balancer.port, push=number % 2 == 0) for number in range(4)]
                clients = [await stack.enter_async_context(client) for client in connecting]
                doors = [await stack.enter_async_context(door(port)) for port in ports]
                yield fleet, Driver(clients, doors, self.seed)
        finally:
            fleet.end()

    async def _disturb(self, disturbances: Sequence[Disturbance], fleet: Fleet, database: Backend) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for one in disturbances:
                await asyncio.sleep(begun + one.after - time.monotonic())
                if self.says:
                    print(f"{time.monotonic() - begun:5.1f} s  {one.what} {one.whom}", flush=True)
                group.create_task(_happen(one, fleet, database))
            await asyncio.sleep(begun + self.seconds - time.monotonic())


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
    async with opened(store_from_url(database.url)) as store:
        return [
            Evidence(task, [note for note in written if note.task == task.id], await store.journal(task.id))
            for task in tasks
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Shoot at a fleet, and see that nothing is lost.")
    parser.add_argument("--backend", choices=get_args(BackendName), default="sqlite")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep logs and notes in any case")
    options = parser.parse_args()
    seed: int = random.randrange(10**6) if options.seed is None else options.seed
    chaos = Chaos(backend=options.backend, seconds=options.seconds, seed=seed, says=not options.quiet)
    print(f"chaos: {chaos.backend}, {chaos.seconds:g} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="mcp-tasks-chaos-"))
    verdict = chaos.run(folder)
    for what in verdict.details():
        print(what)
    print(verdict.line)
    if verdict.is_good and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"chaos: SEED={seed} does the same again; logs and notes are in {folder}")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
