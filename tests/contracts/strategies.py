"""Hypothesis strategies: JSON, records, and what may happen to a record next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from hypothesis import strategies as st

from mcp_tasks.model import (
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.machine import (
    Event,
    InputAnswered,
    InputHosted,
    InputRequested,
    InputWithdrawn,
    ProgressReported,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunPaused,
    RunReleased,
    RunResumeRequested,
    RunStarted,
    StepRecorded,
    TaskAnnounced,
    TaskCancelled,
)
from mcp_tasks.model.record import ALWAYS, ENTRY_KINDS, ChildProcess

WORKERS = {"worker-1": "demo", "worker-2": "demo", "worker-☃": "dëmo ☃"}
"""Workers and the namespace that each beats for. Few, so that tasks and beats meet."""

NAMESPACES = ("", *dict.fromkeys(WORKERS.values()))
"""Few, so that servers meet in one store."""

MOMENTS = (0, 1, 2, 30, 60)
"""Seconds. Few, so that timers run out exactly when somebody looks."""

Happening: TypeAlias = tuple[Event, Sequence[JournalEntry]]
"""An event, and the entries that belong into the journal with it."""

# Values may hold lone surrogates: JSON escapes let them in (and join the two halves of a pair, so that does
# not come in). Names are what UTF-8 can hold.
_any_text = st.text(st.characters(exclude_categories=()), max_size=20).map(
    lambda text: str(json.loads(json.dumps(text)))
)
_names = st.text(max_size=12)
_instants = st.datetimes(datetime(1950, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
_durations = st.timedeltas(timedelta(0), timedelta(days=3650))
_finite = st.floats(allow_nan=False, allow_infinity=False)
_words = st.text("abc:[]_-.", min_size=1, max_size=8)
_processes = st.builds(
    ChildProcess,
    attempt=st.integers(1, 9),
    group=st.integers(2, 2**31),
    started=_words,
    boot=_words,
    host=_words,
)


def json_values() -> st.SearchStrategy[Any]:
    """JSON of some depth: large numbers, odd text, nulls in all places."""
    leaves = st.none() | st.booleans() | st.integers() | _finite | _any_text
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_any_text, inner, max_size=3),
        max_leaves=8,
    )


def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects, as arguments and results are."""
    return st.dictionaries(_any_text, json_values(), max_size=3)


def requests() -> st.SearchStrategy[TaskRequest]:
    """What a client may have asked for."""
    return st.builds(
        TaskRequest,
        name=_any_text,
        arguments=json_objects(),
        method=st.just("tools/call"),
        meta=json_objects(),
        protocol_version=st.sampled_from(["", "2025-11-25", "2026-07-28"]),
        client_info=st.none() | json_objects(),
        client_capabilities=json_objects(),
        input_responses=st.none() | json_objects(),
        request_state=st.none() | _any_text,
        max_wait=st.none() | _durations,
    )


def outcomes() -> st.SearchStrategy[Outcome]:
    """How a task may have ended."""
    data = json_objects().map(encode_json)
    return st.builds(Outcome, body=data, meta=st.none() | data)


def entries() -> st.SearchStrategy[JournalEntry]:
    """One line of a journal."""
    kinds = st.sampled_from(sorted(ENTRY_KINDS))
    return st.builds(JournalEntry, kind=kinds, key=_names, value=json_values())


def records(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[TaskRecord]:
    """Records of any shape, possible or not: a store keeps what it is given. `fields` replaces strategies."""
    asks = st.builds(InputRequest, method=_any_text, params=json_objects(), deadline=st.none() | _instants)
    inputs = st.dictionaries(_names, asks, max_size=2).flatmap(
        lambda open_: st.frozensets(_names, max_size=2).map(
            lambda closed: InputBook(outstanding=open_, used=closed | open_.keys())
        )
    )
    progress = st.builds(Progress, progress=_finite, total=st.none() | _finite, message=st.none() | _any_text)
    shapes: dict[str, st.SearchStrategy[Any]] = {
        "id": st.text(min_size=1, max_size=40),
        "owner": st.none() | _names,
        "method": st.sampled_from(["tools/call", "prompts/get"]),
        "name": _any_text,
        "created_at": _instants,
        "updated_at": _instants,
        "status": st.sampled_from(TaskStatus),
        "status_message": st.none() | _any_text,
        "progress": st.none() | progress,
        "inputs": inputs,
        "is_error": st.booleans(),
        "finished_at": st.none() | _instants,
        "retention": st.none() | _durations,
        "poll_interval": st.none() | _durations,
        "attempt": st.integers(0, 2**31),
        "worker": st.none() | st.sampled_from(list(WORKERS)),
        "started_at": st.none() | _instants,
        "wake_at": st.none() | st.just(ALWAYS) | _instants,
        "lost": st.integers(0, 2**31),
        "trial": st.sampled_from([None, "alone", "beside"]),
        "pause": st.sampled_from([None, "waiting", "resuming"]),
        "tool_version": st.none() | _names,
        "processes": st.lists(_processes, max_size=2).map(tuple),
        "unknown": st.dictionaries(st.just("of a newer release"), json_values(), max_size=1),
        "announced": st.booleans(),
        "session": st.none() | _names,
        "parent": st.none() | _names,
        "namespace": _names,
        "version": st.integers(1, 2**53),
    }
    return st.builds(TaskRecord, **(shapes | fields))


@dataclass(frozen=True, kw_only=True)
class Chance:
    """Something that happens next, before it is known to which task.

    What a task can undergo depends on its state, and the state on who won a race. Drawn data must not: so
    this is drawn first, and becomes an event when the record is known.
    """

    choice: int
    value: dict[str, Any]
    seconds: int
    worker: str

    def for_record(self, record: TaskRecord, now: datetime) -> Happening:
        """An event that fits the state of `record`, with realistic journal entries."""
        now_possible = _OF_A_RUN if record.worker is not None else (_started, _started)
        fitting = (*now_possible, _answered, _answered, _hosted, _cancelled)
        return fitting[self.choice % len(fitting)](self, record, now)


def chances() -> st.SearchStrategy[Chance]:
    """What may happen to a task."""
    return st.builds(
        Chance,
        choice=st.integers(0, 99),
        # A few odd ones: what JSON may be is for `records`, and each drawn byte here is one step less.
        value=st.sampled_from([{}, {"a": None}, {"text": "☃ \0 \ud800", "n": [2**70, 0.1]}]),
        seconds=st.sampled_from(MOMENTS),
        worker=st.sampled_from(list(WORKERS)),
    )


def _cancelled(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return TaskCancelled(reason=f"after {chance.seconds} s"), ()


def _answered(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    # One open question or two, and one that was never asked.
    keys = frozenset([*list(record.inputs.outstanding)[: 1 + chance.choice % 2], "never asked"])
    answers = sorted(record.inputs.answerable(keys, now))
    return InputAnswered(keys=keys), [JournalEntry(kind="answer", key=key, value=chance.value) for key in answers]


def _hosted(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    key = next(iter(record.inputs.outstanding), "never asked")
    return InputHosted(key=key, task_id=f"theirs-{chance.seconds}"), ()


def _started(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunStarted(worker=chance.worker), ()


def _asked(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    key = f"q{len(record.inputs.used)}"
    deadline = now + timedelta(seconds=chance.seconds) if chance.choice % 2 else None
    request = InputRequest(method="elicitation/create", params=chance.value, deadline=deadline)
    event = InputRequested(attempt=record.attempt, requests={key: request})
    return event, [JournalEntry(kind="ask", key=key, value=chance.value)]


def _withdrawn(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return InputWithdrawn(attempt=record.attempt, keys=frozenset(list(record.inputs.outstanding)[:1])), ()


def _stepped(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    value = {"value": chance.value}
    steps = [JournalEntry(kind="step", key=f"step {n}", value=value) for n in range(chance.choice % 3)]
    return StepRecorded(attempt=record.attempt), steps


def _slept(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    until = now + timedelta(seconds=chance.seconds)
    timer = JournalEntry(kind="timer", key="nap", value=until.isoformat())
    return RunParked(attempt=record.attempt, wake_at=until), [timer]


def _parked(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    # Waiting for the first of its questions, if it has one, or for one that has been answered meanwhile.
    keys = frozenset([*record.inputs.outstanding, *sorted(record.inputs.used)][:1])
    return RunParked(attempt=record.attempt, keys=keys), ()


def _paused(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunPaused(attempt=record.attempt), ()


def _wants_to_resume(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunResumeRequested(attempt=record.attempt), ()


def _lost(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunLost(attempt=record.attempt), ()


def _reported(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    progress = Progress(progress=chance.seconds / 7, total=120, message=f"{chance.seconds} s")
    return ProgressReported(attempt=record.attempt, progress=progress), ()


def _released(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunReleased(attempt=record.attempt), ()


def _completed(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    is_error = chance.choice % 2 == 1
    return RunCompleted(attempt=record.attempt, is_error=is_error, message="it failed" if is_error else None), ()


def _failed(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunFailed(attempt=record.attempt, message=f"after {chance.seconds} s"), ()


def _asked_on_call(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return RunAskedOnCall(attempt=record.attempt), ()


def _announced(chance: Chance, record: TaskRecord, now: datetime) -> Happening:
    return TaskAnnounced(), ()


_OF_A_RUN = (
    _asked,
    _asked,
    _withdrawn,
    _stepped,
    _slept,
    _parked,
    _paused,
    _wants_to_resume,
    _reported,
    _released,
    _lost,
    _completed,
    _failed,
    _asked_on_call,
    _announced,
)
