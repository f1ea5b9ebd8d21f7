"""What happens in a world, drawn from a seed: its machines, its settings, the tasks, and everything that goes wrong.

Each world has a few kinds of faults only, so that one kind does not hide another.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tests.properties.tools.tree import (
    Ask,
    Beside,
    Caught,
    Child,
    Gather,
    Group,
    Io,
    Losers,
    MoveOn,
    Node,
    Race,
    Report,
    Seq,
    Sleep,
    Step,
    Trimmer,
    Twice,
)
from tests.simulation.store import CallFault

DAY = 86_400.0


class Mishap(Enum):
    """What happens to a machine, or to all, at some time."""

    KILL = "killed"
    DRAIN = "stopped in order"
    REFUSED = "store refuses one process"
    CUT = "process cut off"
    MUTE = "answers to one process lost"
    OUTAGE = "store refuses all"
    BLACKOUT = "store answers none"
    PAUSE = "process paused"
    SLEEP = "machine asleep"
    CLOCK = "clock set"
    SLOW = "slow network"
    DEAF = "hints lost"


@dataclass(frozen=True)
class Happening:
    """A mishap: when, to which machine, for how long (for a clock: by how much it is off)."""

    at: float
    mishap: Mishap
    machine: int
    seconds: float


@dataclass(frozen=True)
class MachinePlan:
    """One machine: whether its processes serve clients and run tools, and by how much its clock is off."""

    serves: bool
    runs_tools: bool
    clock: float = 0.0


@dataclass(frozen=True)
class TaskPlan:
    """What one client does.

    Attributes:
        key: Whether the call has an idempotency key, so that the client repeats it when it does not know its outcome.
        answers_after: Seconds after which each question is answered.
        cancels_at: Seconds after the start at which the client cancels the task, or None.
    """

    at: float
    tool: str
    tree: Node
    ttl: float
    owner: str | None
    key: bool
    answers_after: float
    answers_wrongly: bool = False
    cancels_at: float | None = None
    looks: bool = False


@dataclass(frozen=True)
class Plan:
    seed: int
    machines: Sequence[MachinePlan]
    tasks: Sequence[TaskPlan]
    happenings: Sequence[Happening]
    call_faults: Mapping[CallFault, float]
    fault_rate: float
    remote: bool
    carrier_delays: bool
    carrier_faults: bool
    hint_losses: float
    together: bool
    lease: float
    park_after: float
    slots: int
    seats: int
    call_timeout: float
    latency: float
    per_owner: int | None
    per_tool: int | None
    healthy_from: float
    wire: bool

    @property
    def fails_over(self) -> bool:
        """Whether the store may go back in time."""
        return CallFault.FAILS_OVER in self.call_faults


_FAULT_WEIGHTS = {
    CallFault.REFUSED: 3.0,
    CallFault.SLOW: 3.0,
    CallFault.LOST: 4.0,
    CallFault.LOST_THEN_AWAY: 2.0,
    CallFault.HANGS: 2.0,
    CallFault.LATE: 2.0,
    CallFault.DIES_BEFORE: 0.7,
    CallFault.DIES_AFTER: 0.7,
    CallFault.FAILS_OVER: 0.5,
}

_KINDS = ("calls", "calls", "deaths", "network", "pauses", "clocks", "failover", "carrier")


def plan_for(seed: int) -> Plan:
    plan = _any_plan(seed)
    # Apart, so that the other seeds stay the same worlds.
    rng = random.Random(f"rare {seed}")
    chance = rng.random()
    for share, make in _RARE:
        if chance < share:
            return make(plan, rng)
        chance -= share
    return plan


_CALM: dict[str, Any] = {
    "call_faults": {},
    "happenings": (),
    "fault_rate": 0.0,
    "carrier_faults": False,
    "hint_losses": 0.0,
    "slots": 10,
    "per_owner": None,
    "per_tool": None,
    "wire": False,
}


def calm(plan: Plan, **changes: Any) -> Plan:
    """The same world without faults and limits, but for these changes."""
    return replace(plan, **_CALM | changes)


def _fleet_of(workers: int) -> list[MachinePlan]:
    """A server that runs no tools, and workers."""
    return [MachinePlan(serves=True, runs_tools=False)] + [MachinePlan(serves=False, runs_tools=True)] * workers


def _long_task(rng: random.Random, tool: str, tree: Node, within: float) -> TaskPlan:
    at = round(rng.uniform(0, within), 3)
    return TaskPlan(at=at, tool=tool, tree=tree, ttl=3600.0, owner=None, key=True, answers_after=4.0)


def _with_lost_questions(plan: Plan, rng: random.Random) -> Plan:
    """The same world with tools that wait in memory for answers, and a store that loses the questions.

    Such a run writes nothing before the answer, so it has to see by itself that its question is gone.
    """
    return calm(
        plan,
        machines=_fleet_of(2),
        tasks=[_long_task(rng, "once", Seq((Sleep(0.5), Ask())), 60.0) for _ in range(rng.randint(4, 8))],
        call_faults={CallFault.FAILS_OVER: 1.0},
        fault_rate=0.1,
        healthy_from=80.0,
    )


def _with_questions_written_twice(plan: Plan, rng: random.Random) -> Plan:
    """The same world with questions whose writes are carried out and not acknowledged."""
    tree = Seq((Ask(), Step(), Ask(keyed=True)))
    return calm(
        plan,
        machines=_fleet_of(2),
        tasks=[_long_task(rng, rng.choice(("once", "again")), tree, 30.0) for _ in range(rng.randint(4, 8))],
        call_faults={CallFault.LOST: 1.0, CallFault.LOST_THEN_AWAY: 1.0},
        fault_rate=0.15,
        healthy_from=60.0,
    )


def _with_children_that_expire(plan: Plan, rng: random.Random) -> Plan:
    """The same world with parents that are lost as soon as they have started a child, and children that end elsewhere
    and expire before their parents run again."""
    tree = Seq((Step(), Child(Step(0.5), "again", 5.0), Step()))
    return calm(
        plan,
        machines=_fleet_of(3),
        tasks=[_long_task(rng, "again", tree, 60.0) for _ in range(rng.randint(6, 12))],
        call_faults={CallFault.DIES_BEFORE: 1.0, CallFault.LOST_THEN_AWAY: 1.0},
        fault_rate=0.1,
        remote=True,
        lease=15.0,
        healthy_from=80.0,
    )


def _with_cut_off(plan: Plan, rng: random.Random) -> Plan:
    """The same world with processes that are cut off for longer than their lease while they run tools.

    The instants at which runs are stopped and taken over are seconds apart. They are seen only where tools are at work
    for longer than the lease, and where their next runs begin at once.
    """
    lease = rng.choice((15.0, 30.0))
    tasks = [_long_task(rng, "again", Seq((Step(lease),) * rng.randint(3, 6)), lease) for _ in range(rng.randint(4, 8))]
    # One after the other: those that are not cut off take the tasks over.
    cuts = [
        Happening(
            round(lease * (0.3 + 2.5 * number + rng.uniform(0, 0.5)), 3),
            Mishap.CUT,
            rng.randint(1, 3),
            lease * rng.choice((1.2, 1.9)),
        )
        for number in range(3)
    ]
    return calm(
        plan,
        machines=_fleet_of(3),
        tasks=tasks,
        happenings=cuts,
        remote=rng.random() < 0.7,
        lease=lease,
        healthy_from=lease * 9,
    )


_RARE: Sequence[tuple[float, Callable[[Plan, random.Random], Plan]]] = (
    (0.12, _with_cut_off),
    (0.05, _with_lost_questions),
    (0.10, _with_children_that_expire),
    (0.05, _with_questions_written_twice),
)
"""Worlds that are made for what rarely happens in the others, and how many of all worlds each kind is."""


def _any_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    kinds: set[str] = set(rng.sample(_KINDS, rng.choice((0, 1, 1, 2, 2, 3))))
    remote = rng.random() < 0.5
    machines = _machines(rng, remote=remote, clocks="clocks" in kinds)
    lasts = rng.choice((20.0, 40.0, 80.0))
    call_faults = _call_faults(rng, kinds)
    limits = rng.random() < 0.3
    lease = rng.choice((3.0, 15.0, 15.0, 60.0))
    return Plan(
        seed=seed,
        machines=machines,
        tasks=[_task(rng, lasts) for _ in range(rng.randint(4, 30))],
        happenings=_happenings(rng, kinds, len(machines), lasts, lease),
        call_faults=call_faults,
        fault_rate=rng.choice((0.005, 0.02, 0.05)) if call_faults else 0.0,
        remote=remote,
        carrier_delays=rng.random() < 0.5,
        carrier_faults="carrier" in kinds,
        hint_losses=rng.choice((0.0, 0.0, 0.2, 1.0)),
        together=rng.random() < 0.5,
        lease=lease,
        park_after=rng.choice((0.0, 0.0, 2.0, 3600.0)),
        slots=rng.choice((2, 4, 10)),
        seats=rng.choice((0, 1, 1_000)),
        call_timeout=rng.choice((2.0, 5.0, 12.0)),
        latency=rng.choice((0.0005, 0.002, 0.02)),
        per_owner=rng.choice((1, 2, 3)) if limits and rng.random() < 0.6 else None,
        per_tool=rng.choice((1, 2, 3)) if limits else None,
        healthy_from=lasts + 1.0,
        wire=rng.random() < 0.15,
    )


def _machines(rng: random.Random, *, remote: bool, clocks: bool) -> list[MachinePlan]:
    def clock() -> float:
        if not clocks or rng.random() < 0.5:
            return 0.0
        return rng.choice((-DAY, -3600.0, -30.0, 30.0, 3600.0, DAY))

    front = rng.random() < 0.5
    servers = [MachinePlan(serves=True, runs_tools=not front, clock=clock()) for _ in range(rng.choice((1, 1, 2)))]
    workers = [MachinePlan(serves=False, runs_tools=True, clock=clock()) for _ in range(rng.choice((1, 2, 3)))]
    return servers + workers


def _call_faults(rng: random.Random, kinds: set[str]) -> dict[CallFault, float]:
    faults: set[CallFault] = set()
    if "calls" in kinds:
        candidates = [
            CallFault.REFUSED,
            CallFault.SLOW,
            CallFault.LOST,
            CallFault.LOST_THEN_AWAY,
            CallFault.HANGS,
            CallFault.LATE,
        ]
        faults.update(rng.sample(candidates, rng.randint(1, 4)))
    if "deaths" in kinds:
        faults.update((CallFault.DIES_BEFORE, CallFault.DIES_AFTER))
    if "failover" in kinds:
        faults.add(CallFault.FAILS_OVER)
    return {fault: _FAULT_WEIGHTS[fault] for fault in CallFault if fault in faults}


_MISHAPS = {
    "deaths": (Mishap.KILL, Mishap.KILL, Mishap.DRAIN),
    "network": (Mishap.REFUSED, Mishap.CUT, Mishap.CUT, Mishap.MUTE, Mishap.OUTAGE, Mishap.BLACKOUT, Mishap.SLOW),
    "pauses": (Mishap.PAUSE, Mishap.PAUSE, Mishap.SLEEP),
    "clocks": (Mishap.CLOCK,),
    "carrier": (Mishap.DEAF,),
}


def _happenings(rng: random.Random, kinds: set[str], machines: int, lasts: float, lease: float) -> list[Happening]:
    possible = [mishap for kind in sorted(kinds) for mishap in _MISHAPS.get(kind, ())]
    happenings: list[Happening] = []
    for _ in range(rng.randint(1, 10) if possible else 0):
        mishap = rng.choice(possible)
        seconds = rng.choice((0.5, 2.0, lease * 0.5, lease * 0.75, lease * 1.2, lease * 2))
        if mishap is Mishap.CLOCK:
            seconds = rng.choice((-DAY, -3600.0, 0.0, 3600.0, DAY))
        happenings.append(Happening(round(rng.uniform(0, lasts), 3), mishap, rng.randrange(machines), seconds))
    return sorted(happenings, key=lambda happening: happening.at)


TOOLS = ("again", "again", "again", "once", "once", "again_limited", "once_limited")


def _task(rng: random.Random, lasts: float) -> TaskPlan:
    return TaskPlan(
        at=round(rng.uniform(0, lasts * 0.8), 3),
        tool=rng.choice(TOOLS),
        tree=any_tool(rng),
        ttl=rng.choice((5.0, 3600.0, 3600.0)),
        owner=rng.choice((None, "ann", "ann", "bob")),
        key=rng.random() < 0.6,
        answers_after=rng.choice((0.0, 0.3, 1.0, 4.0, 10.0, 30.0)),
        answers_wrongly=rng.random() < 0.1,
        cancels_at=rng.choice((0.0, 0.5, 2.0, 10.0)) if rng.random() < 0.05 else None,
        looks=rng.random() < 0.3,
    )


def any_tool(rng: random.Random) -> Node:
    """A tool that does anything that tools may do."""
    return Trimmer().trim(_tree(rng))


def _leaf(rng: random.Random, *, children: bool = True) -> Node:
    kind = rng.choice(
        ("step", "step", "step", "ask", "ask", "sleep", "io", "report", "twice", "give up", "child", "child")
    )
    match kind:
        case "step":
            return Step(rng.choice((0.0, 0.0, 0.5, 3.0, 12.0)), fails=rng.random() < 0.1)
        case "ask":
            return Ask(rng.choice((None, None, None, 2.0, 20.0, 7200.0)), keyed=rng.random() < 0.5)
        case "sleep":
            return Sleep(rng.choice((0.5, 3.0, 15.0, 15.0, 120.0)))
        case "io":
            return Io(rng.choice((0.0, 0.3, 0.7)))
        case "report":
            return Report()
        case "twice":
            return Twice(asks=rng.random() < 0.5, together=rng.random() < 0.5)
        case "give up":
            return MoveOn(rng.choice((Step(6.0), Sleep(6.0), Ask())))
        case _:
            return _child(rng) if children else Step()


def _child(rng: random.Random) -> Child:
    tree = (
        Step(rng.choice((0.0, 1.0)))
        if rng.random() < 0.4
        else Seq((_leaf(rng, children=False), _leaf(rng, children=False)))
    )
    return Child(tree, rng.choice(TOOLS), rng.choice((5.0, 3600.0)), waits=rng.random() < 0.8)


def _tree(rng: random.Random, depth: int = 2) -> Node:
    if depth == 0 or rng.random() < 0.15:
        return _leaf(rng)
    several = tuple(_tree(rng, depth - 1) for _ in range(rng.choice((2, 2, 3))))
    match rng.choice(("seq", "seq", "seq", "gather", "gather", "group", "race", "beside", "caught")):
        case "seq":
            return Seq(several)
        case "gather":
            return Gather(several)
        case "group":
            return Group(several)
        case "race":
            return Race(several, rng.choice(list(Losers)))
        case "beside":
            return Beside(several[0], several[1])
        case _:
            return Caught(Seq(several))
