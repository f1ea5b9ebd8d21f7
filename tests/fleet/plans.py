"""What is to happen in one run of chaos, chosen by a seed before anything does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

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
    """One task that a client asks for.

    Attributes:
        after: Seconds from the beginning.
        cancel_after: Seconds after which its caller cancels it; None for one that is waited for.
    """

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
    """Something that happens to the fleet."""

    what: Happening
    after: float
    whom: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to happen."""

    calls: Sequence[Call]
    disturbances: Sequence[Disturbance]


def planned(seed: int, seconds: float, *, members: Sequence[str], lease: float, restarts: bool) -> Plan:
    """A plan for so many seconds of disturbance. The same seed gives the same plan."""
    chance = random.Random(seed)
    calls = [_call(chance, number, number / TASKS_PER_SECOND) for number in range(int(seconds * TASKS_PER_SECOND))]
    poisons = max(int(seconds / POISON_EVERY), 1)
    calls += [
        # Early: it takes several deaths to find out which task it is that kills.
        Call(job=f"poison-{number}", kind="poison", after=chance.uniform(0, seconds * 0.4), arguments={})
        for number in range(poisons)
    ]
    disturbances = [*_disturbances(chance, seconds, members, lease), *(_restarts(chance, seconds) if restarts else ())]
    return Plan(sorted(calls, key=lambda call: call.after), sorted(disturbances, key=lambda one: one.after))


def _call(chance: random.Random, number: int, after: float) -> Call:
    [kind] = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    arguments: dict[str, Any] = {}
    if kind in ("long", "sleeping", "once"):
        arguments["seconds"] = chance.uniform(0.2, 4.0)
    if kind == "stepping":
        arguments |= {"steps": chance.randint(2, 6), "seconds": chance.uniform(0.0, 0.6)}
    cancel_after = chance.uniform(0.0, 4.0) if kind == "endless" else None
    return Call(job=f"{kind}-{number}", kind=kind, after=after, arguments=arguments, cancel_after=cancel_after)


def _disturbances(chance: random.Random, seconds: float, members: Sequence[str], lease: float) -> Sequence[Disturbance]:
    happenings: list[Disturbance] = []
    after = chance.uniform(0.5, 1.5)
    while after < seconds:
        what = chance.choice(HAPPENINGS)
        pause = chance.uniform(1.1, 2.0) * lease if what == "long pause" else chance.uniform(0.05, 0.6) * lease
        whom = chance.choice(members)
        happenings.append(Disturbance(what=what, after=after, whom=whom, seconds=pause))
        after += chance.uniform(0.5, 2.0)
    return happenings


def _restarts(chance: random.Random, seconds: float) -> Sequence[Disturbance]:
    times = max(int(seconds / RESTART_EVERY), 1)
    return [
        Disturbance(what="crash" if chance.random() < 0.5 else "restart", after=seconds * (number + 0.5) / times)
        for number in range(times)
    ]
