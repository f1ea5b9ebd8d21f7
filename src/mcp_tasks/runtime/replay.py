"""What earlier runs of a task already did, handed to the current run in the same order.

A run that is started again asks the same questions in the same order, or it is refused: a recorded answer must
never become the answer to another question. Steps go by name, so work between the waits may change its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonValue
from mcp_tasks.errors import ReplayMismatch, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A question and the key it has for the life of the task; `known` if an earlier run put it already."""

    key: str
    request: InputRequest
    known: bool


class Replay:
    """The journal of a task, read by one run from the beginning."""

    def __init__(self, entries: Sequence[JournalEntry] = ()) -> None:
        self.answers: dict[str, JsonValue] = {}
        self._asks: list[tuple[str, InputRequest]] = []
        self._steps: dict[str, JsonValue] = {}
        self._timers: list[int] = []
        self._asked = 0
        self._slept = 0
        self._named: set[str] = set()
        for entry in entries:
            self._add(entry)

    def next_ask(self, request: InputRequest) -> Ask:
        """The next question of this run.

        Raises:
            ReplayMismatch: An earlier run asked something else at this place.
        """
        place, self._asked = self._asked, self._asked + 1
        if place < len(self._asks):
            key, recorded = self._asks[place]
            if recorded != request:
                raise ReplayMismatch(_difference(place + 1, recorded, request))
            return Ask(key=key, request=request, known=True)
        kind = request.method.partition("/")[0]
        return Ask(key=f"{kind}-{place + 1}", request=request, known=False)

    def next_timer(self) -> int | None:
        """When the next sleep of this run ends, if an earlier run began it."""
        place, self._slept = self._slept, self._slept + 1
        return self._timers[place] if place < len(self._timers) else None

    @property
    def timer_key(self) -> str:
        """The name of the sleep that `next_timer` was just asked for."""
        return f"sleep-{self._slept}"

    def enter_step(self, name: str) -> bool:
        """Begin a step; whether an earlier run has done it.

        Raises:
            UsageError: This run has a step of that name already, so one of them would get the other's value.
        """
        if name in self._named:
            raise UsageError(f"step {name!r} is there twice in one run; give every step its own name")
        self._named.add(name)
        return name in self._steps

    def leave_step(self, name: str) -> None:
        """The step was not done; its name is free again."""
        self._named.discard(name)

    def step_value(self, name: str) -> JsonValue:
        """What the step gave when it was done."""
        return self._steps[name]

    def _add(self, entry: JournalEntry) -> None:
        match entry.kind:
            case "ask":
                self._asks.append((entry.key, InputRequest(**entry.value)))
            case "answer":
                self.answers[entry.key] = entry.value
            case "step":
                self._steps[entry.key] = entry.value
            case "timer":
                self._timers.append(entry.value)


def ask_entry(ask: Ask) -> JournalEntry:
    """What the journal keeps of a question."""
    return JournalEntry(
        kind="ask", key=ask.key, value={"method": ask.request.method, "params": dict(ask.request.params)}
    )


def _difference(number: int, recorded: InputRequest, asked: InputRequest) -> str:
    where = f"question {number} differs from the one asked in an earlier run of this task"
    if recorded.method != asked.method:
        return f"{where}: it was {recorded.method}, now it is {asked.method}"
    names = sorted(recorded.params.keys() | asked.params.keys())
    for name in names:
        was, now = recorded.params.get(name), asked.params.get(name)
        if was != now:
            return (
                f"{where}: {name} was {_short(was)}, now it is {_short(now)}. "
                "A tool that may run again must ask the same things in the same order; put what varies into a step."
            )
    return where


def _short(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def remaining_seconds(until: datetime, now: datetime) -> float:
    """How long a sleep still lasts; not below zero."""
    return max((until - now).total_seconds(), 0.0)
