"""What earlier runs of a task recorded, found again by what it is and not by when it came.

A step is known by its name; a question by its `key`, or else by what it asks and how many equal ones came before it; a
timer by its name, or else by its duration and how many equal ones came before. So branches of a tool may come in any
order. What the tool was handed (the ends of steps, questions and timers) has an order, that of the journal;
`Deliveries` keeps to it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonValue, object_in
from mcp_tasks.errors import LimitExceeded, UsageError
from mcp_tasks.stores.columns import from_micros, to_micros

Kind: TypeAlias = Literal["step", "question", "timer"]

GIVEN_UP = "given up"
"""How a step, a question or a timer ended that the tool did not wait for: because of a time-out, or a lost race."""

step_at_work: ContextVar[str | None] = ContextVar("mcp_tasks_step_at_work", default=None)
"""The step that the calling code is part of."""

WITHIN = "within"
"""Marks what happened inside a step. Once that step is recorded, nobody comes for it any more."""

BRANCH = "branch"
"""Marks what was handed to a branch of the tool, not to its own asyncio task: the tool may have cancelled that
branch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the tool something happened: in a branch or in its own asyncio task, and inside which step."""

    branch: bool
    step: str | None

    @property
    def tags(self) -> dict[str, Any]:
        """The place as the journal keeps it."""
        return ({BRANCH: True} if self.branch else {}) | ({} if self.step is None else {WITHIN: self.step})


@dataclass(frozen=True, slots=True)
class ResultId:
    """What a tool is handed: the end of a step, of a question or of a timer."""

    kind: Kind
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key!r}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A question was answered with this error: no value that a client could send as an answer."""

    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A question with the key that it has for the life of the task."""

    key: str
    request: InputRequest
    asked_at: datetime | None
    identity: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Timer:
    """A sleep and when it ends."""

    key: str
    until: datetime


_ANSWERS = frozenset({"answer", "refusal"})


class Replay:
    """The journal of a task, as one run finds its way through it."""

    def __init__(self, entries: Sequence[JournalEntry] = (), *, outstanding: Collection[str] = ()) -> None:
        self.answers: dict[str, JsonValue | Refusal] = {}
        self.results: dict[ResultId, Mapping[str, Any]] = {}
        """What the tool was handed, in the order in which it was."""
        self.begun: dict[ResultId, Mapping[str, Any]] = {}
        """Questions and timers that the tool came to and had not been handed the end of."""
        self._given_up: dict[ResultId, int] = defaultdict(int)
        self._asks: dict[str, list[Ask]] = {}
        self._asked = 0
        self._keys: set[str] = set()
        self._timers: dict[str, datetime] = {}
        self._met: dict[str, int] = defaultdict(int)
        self._came: dict[str, int] = defaultdict(int)
        self._steps: set[str] = set()
        self.recorded_with: dict[ResultId, str | None] = {}
        """Of what another version of the tool recorded, which version it was."""
        self.starts_over: int = 0
        """How often the tool started over. Nothing that was recorded before the last time is found again."""
        self.reopened: set[str] = set()
        """Steps that an earlier run began and did not end, as far as something happened in them."""
        self.read_up_to: int = max((entry.number for entry in entries), default=0)
        """The number of the last entry of the journal that has been read."""
        self.length: int = len(entries)
        """How many entries the journal has."""
        if not entries:
            return
        for entry in self._of_open_steps(self._since_start(entries)):
            self._add(entry)
        for result in list(self.begun):
            # Neither open nor answered: the tool gave up on it.
            if result.kind == "question" and result.key not in outstanding and result.key not in self.answers:
                del self.begun[result]
                self._given_up[result] += 1

    def add_news(self, entries: Sequence[JournalEntry]) -> None:
        """Take note of answers that came since; the rest of what is new, this run wrote itself."""
        for entry in entries:
            self.read_up_to = max(self.read_up_to, entry.number)
            if entry.kind in _ANSWERS:
                self.length += 1
                self._add(entry)

    def answer_entries(self) -> list[JournalEntry]:
        """The answers that are known, as the journal has them."""
        return [
            JournalEntry(kind="refusal", key=key, value=answer.error)
            if isinstance(answer, Refusal)
            else JournalEntry(kind="answer", key=key, value=answer)
            for key, answer in self.answers.items()
        ]

    def require_room(self, most: int | None) -> None:
        """See that something new may begin. What has begun is recorded to its end, also beyond the limit.

        Raises:
            LimitExceeded: The journal has as many entries as it may have.
        """
        if most is not None and self.length >= most:
            raise LimitExceeded(
                "journal_entries",
                f"The journal of this task has {self.length:,} entries, and may have {most:,} (Limits.journal_entries)"
                ": it takes no more steps, questions or timers. Put more into one step, or into tasks of its own",
            )

    def gives_up(self, result: ResultId) -> bool:
        """Whether an earlier run gave up on this; said once for each time that it did."""
        again = self._given_up[result] > 0
        self._given_up[result] -= again
        return again

    def come_to_ask(self, identity: str) -> ResultId:
        """The next question of that identity, known by that until it is put under a key of its own."""
        self._came[identity] += 1
        return ResultId("question", f"{identity}#{self._came[identity]}")

    def find_ask(self, identity: str) -> Ask | None:
        """The question of that identity that an earlier run put, if it did; each one is found once."""
        place = self._met[identity]
        self._met[identity] += 1
        known = self._asks.get(identity, ())
        return known[place] if place < len(known) else None

    def number_ask(self) -> int:
        """The number of the next new question in the life of the task."""
        self._asked += 1
        return self._asked

    def new_key(self, wanted: str) -> str:
        """A key that was never used in this task, `wanted` if that is free."""
        key, number = wanted, 1
        while key in self._keys:
            number += 1
            key = f"{wanted}-{number}"
        self._keys.add(key)
        return key

    def find_timer(self, identity: str) -> tuple[str, datetime | None]:
        """The key of the next timer of that identity, and when it ends if an earlier run set it."""
        self._met[identity] += 1
        key = f"{identity}#{self._met[identity]}"
        return key, self._timers.get(key)

    def enter_step(self, name: str) -> None:
        """Begin a step.

        Raises:
            UsageError: This run has a step of that name already, so one of them would get the other's value.
        """
        if name in self._steps:
            raise UsageError(f"step {name!r} is there twice in one run; give every step its own name")
        self._steps.add(name)

    def leave_step(self, name: str) -> None:
        """The step was not done; its name is free again."""
        self._steps.discard(name)

    def _since_start(self, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        """The entries that count: those since the tool started over, if it did."""
        starts = [number for number, entry in enumerate(entries) if entry.kind == "version" and entry.value["over"]]
        self.starts_over = len(starts)
        first = starts[-1] if starts else 0
        for entry in entries[:first]:
            self._forget(entry)
        return entries[first:]

    def _of_open_steps(self, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """The entries but for those inside steps that have ended: the tool comes for the end of the step, or gives up
        on it again, and for nothing that happened in it."""
        kept: dict[int, JournalEntry] = dict(enumerate(entries))
        inside: dict[str, list[int]] = {}
        for number, entry in enumerate(entries):
            if (ended := _ended_step(entry)) is not None:
                for within in inside.pop(ended, ()):
                    self._forget(kept.pop(within))
            if (step := _step_around(entry)) is not None:
                inside.setdefault(step, []).append(number)
        self.reopened = set(inside)
        return list(kept.values())

    def _forget(self, entry: JournalEntry) -> None:
        if entry.kind == "ask":
            # A key is used once in the life of a task, whatever becomes of its question.
            self._keys.add(entry.key)
            self._asked += 1

    def _add(self, entry: JournalEntry) -> None:
        match entry.kind:
            case "ask":
                ask = _read_ask(entry)
                self._asks.setdefault(ask.identity, []).append(ask)
                self._keys.add(ask.key)
                self._asked += 1
                self.begun[ResultId("question", ask.key)] = entry.value
            case "answer":
                self.answers[entry.key] = entry.value
            case "refusal":
                self.answers[entry.key] = Refusal(entry.value)
            case "timer":
                if not isinstance(entry.value, int):
                    # The first release kept the instant alone, by its place; such a sleep is begun anew.
                    self._timers[entry.key] = from_micros(entry.value["until"])
                    self.begun[ResultId("timer", entry.key)] = entry.value
            case "step":
                self.results[ResultId("step", entry.key)] = _read_step(entry)
            case "done":
                self._end(ResultId(entry.value["kind"], entry.key), entry.value)
            case _:
                # "version": what stands before this was recorded by another one.
                for result in (*self.results, *self.begun):
                    self.recorded_with.setdefault(result, entry.value["from"])

    def _end(self, result: ResultId, value: Mapping[str, Any]) -> None:
        self.begun.pop(result, None)
        if value["how"] == GIVEN_UP:
            # Also after its end was recorded: the tool was cancelled in that moment, and never saw it.
            self.results.pop(result, None)
            self._given_up[result] += 1
        else:
            self.results[result] = value


def ask_identity(request: InputRequest, key: str | None) -> str:
    """What makes a question the same one in the next run."""
    return f"key:{key}" if key is not None else json.dumps([request.method, request.params], sort_keys=True)


def ask_entry(ask: Ask, key: str | None, place: Place) -> JournalEntry:
    """What the journal keeps of a question."""
    request = ask.request
    value: dict[str, Any] = {"method": request.method, "params": request.params, **place.tags}
    if ask.asked_at is not None:
        value["asked"] = to_micros(ask.asked_at)
    if request.deadline is not None:
        value["deadline"] = to_micros(request.deadline)
    if key is not None:
        value["key"] = key
    return JournalEntry(kind="ask", key=ask.key, value=value)


def timer_entry(timer: Timer, place: Place) -> JournalEntry:
    """What the journal keeps of a sleep."""
    return JournalEntry(kind="timer", key=timer.key, value={"until": to_micros(timer.until), **place.tags})


def done_entry(result: ResultId, how: str, place: Place) -> JournalEntry:
    """That the tool was handed the end of a question or a timer, or gave up on something, and how that ended."""
    return JournalEntry(kind="done", key=result.key, value={"kind": result.kind, "how": how, **place.tags})


def version_entry(began: str | None, now: str | None, *, over: bool) -> JournalEntry:
    """That the tool is another version from here on, and whether it starts over or goes on."""
    return JournalEntry(kind="version", key=now or "", value={"from": began, "to": now, "over": over})


def step_entry(result: ResultId, stored: Mapping[str, Any], place: Place) -> JournalEntry:
    """What the journal keeps of a step."""
    return JournalEntry(kind="step", key=result.key, value={**stored, **place.tags})


def name_of(result: ResultId, value: Mapping[str, Any]) -> str:
    """What an author would call a recorded thing."""
    message = (object_in(value, "params") or {}).get("message")
    return str(result) if message is None else f"the question {short(message)}"


def short(value: JsonValue) -> str:
    """A value for a person to read."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _ended_step(entry: JournalEntry) -> str | None:
    if entry.kind == "step":
        return entry.key
    gave_up = entry.kind == "done" and entry.value["kind"] == "step" and entry.value["how"] == GIVEN_UP
    return entry.key if gave_up else None


def _step_around(entry: JournalEntry) -> str | None:
    # An answer is the client's, and whatever it looks like.
    return None if entry.kind in _ANSWERS or isinstance(entry.value, int) else entry.value.get(WITHIN)


def _read_step(entry: JournalEntry) -> Mapping[str, Any]:
    """How a step ended. Whether that can be read is found out here, and not by the tool when it comes to the step."""
    stored: Mapping[str, Any] = entry.value
    if "error" in stored:
        error = stored["error"]
        readable = isinstance(error["type"], str) and isinstance(error["message"], str) and "arguments" in error
    else:
        readable = "value" in stored
    if not readable:
        raise ValueError(f"how step {entry.key!r} ended is not recorded as such")
    return stored


def _read_ask(entry: JournalEntry) -> Ask:
    value = entry.value
    deadline, asked = value.get("deadline"), value.get("asked")
    request = InputRequest(
        method=value["method"],
        params=value["params"],
        deadline=None if deadline is None else from_micros(deadline),
    )
    return Ask(
        key=entry.key,
        request=request,
        asked_at=None if asked is None else from_micros(asked),
        identity=ask_identity(request, value.get("key")),
    )
