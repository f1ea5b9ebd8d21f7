"""Laws of the machine: whatever happens to a task, in whatever order, by whatever clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.thoroughness import examples
from mcp_tasks.errors import StaleRun, TransitionRefused
from mcp_tasks.model import FINAL_STATUSES, ChildProcess, InputRequest, Progress, TaskRecord, TaskStatus
from mcp_tasks.model.limits import expires_at, is_expired, lifetime
from mcp_tasks.model.machine import (
    TABLE,
    Event,
    InputAnswered,
    InputHosted,
    InputRequested,
    InputWithdrawn,
    ProcessesChanged,
    ProgressReported,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunReleased,
    RunStarted,
    StepRecorded,
    TaskCancelled,
    WorkerMissed,
    apply,
)
from mcp_tasks.model.record import ALWAYS
from mcp_tasks.protocol.shapes import render_task
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

LAW = settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

FORWARD = st.timedeltas(timedelta(0), timedelta(hours=2))
ANYWHERE = st.timedeltas(timedelta(hours=-30), timedelta(hours=30))

# From 4 ms on: rounding to the wire's milliseconds takes away up to 2.
LIFETIMES = st.none() | st.timedeltas(timedelta(milliseconds=4), timedelta(days=400))


@dataclass(frozen=True)
class Move:
    """What somebody tries, before it is known how the task stands then."""

    kind: type[Event]
    # Which run says so: 0 for the current one, otherwise one that is not.
    behind: int
    keys: frozenset[str]
    payload: Mapping[str, Any]
    tick: timedelta
    # Rather start a run than speak for one that is not there, and rather not end the story yet.
    helpful: bool


@dataclass(frozen=True)
class Moment:
    """One event, and what became of the record."""

    before: TaskRecord
    event: Event
    now: datetime
    after: TaskRecord
    refusal: TransitionRefused | None


ODD_OBJECTS: Sequence[Mapping[str, Any]] = (
    {},
    {"message": "the tool failed", "code": -32603},
    {"message": None, "": [None, {}, [], ""], "big": 2**70, "small": 5e-324, "minus": -0.0},
    {"message": {"not": "text"}, "lone": "\ud800", "nul": "\x00", "snow": "☃", "deep": [[[[[{"a": [True]}]]]]]},
)
"""Payloads that have been trouble somewhere. One of the laws below draws any JSON instead."""

ODD_PAYLOADS = st.sampled_from(ODD_OBJECTS)
ENDINGS = (RunCompleted, RunFailed, RunAskedOnCall, TaskCancelled)


def _new_record(instant: datetime, **fields: Any) -> TaskRecord:
    return TaskRecord(id="task", owner="alice", name="render", created_at=instant, updated_at=instant, **fields)


_new_records = st.builds(
    _new_record,
    st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    retention=LIFETIMES,
    announced=st.booleans(),
    poll_interval=st.none() | st.timedeltas(timedelta(milliseconds=1), timedelta(days=1)),
)


def stories(
    ticks: st.SearchStrategy[timedelta] = ANYWHERE, payloads: st.SearchStrategy[Mapping[str, Any]] = ODD_PAYLOADS
) -> st.SearchStrategy[Sequence[Moment]]:
    """The life of one task, event by event, with a clock that goes on by `ticks`."""
    moves = st.builds(
        Move,
        kind=st.sampled_from(get_args(Event)),
        behind=st.sampled_from((0, 0, 0, 0, 0, 1, -1)),
        keys=st.frozensets(st.sampled_from("abcdef"), max_size=3),
        payload=payloads,
        tick=ticks,
        helpful=st.sampled_from((True, True, True, False)),
    )
    return st.builds(_live, _new_records, st.lists(moves, min_size=5, max_size=16))


def _live(record: TaskRecord, moves: Sequence[Move]) -> Sequence[Moment]:
    now = record.created_at
    moments: list[Moment] = []
    for number, move in enumerate(moves):
        now += move.tick
        kind = move.kind
        if move.helpful and record.is_queued(now) and kind not in (InputAnswered, TaskCancelled):
            kind = RunStarted
        if move.helpful and kind in ENDINGS and number < len(moves) // 2:
            kind = InputAnswered if record.inputs.outstanding else InputRequested
        moments.append(_happen(record, _event(kind, move, record, now), now))
        record = moments[-1].after
    return moments


def _event(kind: type[Event], move: Move, record: TaskRecord, now: datetime) -> Event:
    attempt = record.attempt - move.behind
    # Some questions may be answered for a while only, and some of these are asked too late.
    deadline = None if move.helpful else now + move.tick
    ask = InputRequest(method="elicitation/create", params=move.payload, deadline=deadline)
    asks = dict.fromkeys(sorted(move.keys), ask)
    answered = move.keys | set(list(record.inputs.outstanding)[len(move.keys) // 2 :]) if move.helpful else move.keys
    progress = Progress(progress=len(move.keys), total=None if move.helpful else 1e300, message=None)
    wakes = None if move.helpful else now + abs(move.tick)
    said: Mapping[type[Event], Mapping[str, Any]] = {
        RunStarted: {"worker": "worker-1", "trial": "alone" if move.helpful else None},
        RunParked: {"keys": answered, "wake_at": wakes},
        RunLost: {"wake_at": wakes},
        ProgressReported: {"progress": progress},
        InputRequested: {"requests": asks},
        InputWithdrawn: {"keys": answered},
        ProcessesChanged: {
            "started": make_process(attempt) if move.helpful else None,
            "ended": frozenset(record.processes[:1]),
        },
        InputAnswered: {"keys": answered},
        InputHosted: {"key": next(iter(sorted(answered)), "none"), "task_id": "theirs"},
        RunFailed: {"message": None if move.helpful else "failed \ud800"},
        WorkerMissed: {"message": "nobody is there"},
        TaskCancelled: {"reason": "no more \ud800"},
    }
    of_run = {"attempt": attempt} if any(field.name == "attempt" for field in fields(kind)) else {}
    return kind(**of_run, **said.get(kind, {}))


def make_process(attempt: int) -> ChildProcess:
    return ChildProcess(attempt=attempt, group=4711, started="12", boot="boot", host="host")


def _happen(record: TaskRecord, event: Event, now: datetime) -> Moment:
    try:
        return Moment(record, event, now, apply(record, event, now), None)
    except TransitionRefused as refusal:
        return Moment(record, event, now, record, refusal)


def _visible(record: TaskRecord, now: datetime) -> dict[str, Any]:
    return {name: value for name, value in render_task(record, now).items() if name != "lastUpdatedAt"}


@LAW
@given(stories(), ANYWHERE)
def test_what_is_so_of_every_record_whatever_happens(story: Sequence[Moment], later: timedelta) -> None:
    asked: list[str] = []
    for moment in story:
        before, record = moment.before, moment.after
        is_changed = record is not before
        if before.is_final:
            assert not is_changed, "a final status absorbs everything"
            assert moment.refusal is None, "what comes late is no mistake"
        assert record.version == before.version + is_changed, "a version for each change"
        # Questions
        if isinstance(moment.event, InputRequested) and is_changed:
            asked += moment.event.requests
        assert len(set(asked)) == len(asked), "an input key is used once in the life of a task"
        assert record.inputs.used == set(asked)
        assert record.inputs.outstanding.keys() <= record.inputs.used
        assert (record.status is TaskStatus.INPUT_REQUIRED) == bool(record.inputs.outstanding)
        if isinstance(moment.event, InputAnswered):
            closed = before.inputs.outstanding.keys() - record.inputs.outstanding.keys()
            assert not any(before.inputs.outstanding[key].is_overdue(moment.now) for key in closed), "taken too late"
            assert not is_changed or record.worker is not None or record.ready_at == ALWAYS, "an answer makes ready"
        if isinstance(moment.event, RunAskedOnCall) and is_changed:
            assert not before.announced, "a tool asks on the call before the task is announced"
            assert record.status is TaskStatus.CANCELLED
        # Times, also by a clock that goes back
        assert record.created_at == before.created_at
        assert record.updated_at >= before.updated_at >= before.created_at
        assert (record.finished_at is not None) == record.is_final
        assert record.finished_at is None or record.finished_at >= record.created_at
        assert record.announced >= before.announced
        if not record.is_final:
            assert expires_at(record) is None
            assert not is_expired(record, moment.now + later)
        again = _happen(before, moment.event, moment.now)
        assert (again.after, type(again.refusal)) == (record, type(moment.refusal)), "the same gives the same"
    assert len([moment for moment in story if moment.after.is_final > moment.before.is_final]) <= 1, "one ending"


@LAW
@given(stories())
def test_runs_are_numbered_and_one_at_a_time_has_the_task(story: Sequence[Moment]) -> None:
    for moment in story:
        before, record = moment.before, moment.after
        happened = type(moment.event) if record is not before else None
        attempt = getattr(moment.event, "attempt", None)
        if attempt is not None and not before.is_final and (before.worker is None or attempt != before.attempt):
            assert happened is None, "a run that is not the current one changes nothing"
            assert isinstance(moment.refusal, StaleRun)
        assert record.attempt == before.attempt + (happened is RunStarted)
        assert happened is not RunStarted or before.worker is None
        assert record.pause is None or record.worker is not None, "only a task that a worker has is paused"
        assert record.worker is None or not record.is_final
        if record.worker is None and record.status is TaskStatus.WORKING and record.wake_at is None:
            assert record.ready_at == ALWAYS, "it waits for nothing, and is queued"
        if before.worker is not None and record.worker is None and not record.is_final:
            waits = isinstance(moment.event, RunLost) and moment.event.wake_at is not None
            assert waits or happened is RunParked or record.ready_at == ALWAYS, "its run is over, and it is queued"
        assert record.lost in ((before.lost + 1,) if happened is RunLost else (before.lost, 0))
        assert happened is not StepRecorded or record.lost == 0, "progress resets the counter of lost runs"


@LAW
@given(stories(FORWARD), st.lists(FORWARD, min_size=1, max_size=3))
def test_what_a_client_is_told_holds_where_the_clock_goes_on(story: Sequence[Moment], later: list[timedelta]) -> None:
    told = [lifetime(record, moment.now) for moment in story for record in (moment.before, moment.after)]
    told += [lifetime(story[-1].after, story[-1].now + wait) for wait in sorted(later)]
    promises = [promise for promise in told if promise is not None]
    assert promises == sorted(promises), "a promised lifetime never shrinks"
    assert len(promises) in (0, len(told))
    for moment in story:
        record, now = moment.after, moment.now
        if _visible(moment.before, now) != _visible(record, now):
            assert record.updated_at == now, "what is seen to change has changed now"
        shown = render_task(record, now + later[0])
        if not record.is_final and shown["ttlMs"] is not None:
            until = datetime.fromisoformat(shown["createdAt"]) + timedelta(milliseconds=shown["ttlMs"])
            assert until > now + later[0], "a running task is shown to live into the future"
        gone, promised = expires_at(record), lifetime(record, now)
        if gone is not None and promised is not None:
            assert record.created_at + promised <= gone, "it is kept for as long as it is shown to live"


# All pairs, one by one


QUESTION = {"open": InputRequest(method="roots/list", params={})}
HELPFUL = Move(kind=RunStarted, behind=0, keys=frozenset({"another"}), payload={}, tick=timedelta(0), helpful=True)

WAYS: Mapping[TaskStatus, Sequence[Event]] = {
    TaskStatus.WORKING: (),
    TaskStatus.INPUT_REQUIRED: (InputRequested(attempt=1, requests=QUESTION),),
    TaskStatus.COMPLETED: (RunCompleted(attempt=1),),
    TaskStatus.FAILED: (RunFailed(attempt=1),),
    TaskStatus.CANCELLED: (TaskCancelled(reason="no more"),),
}
"""How a running task comes into each status."""


def _in_status(status: TaskStatus, event: type[Event]) -> TaskRecord:
    """A task in that status which a run has; one that can be started if that is what happens next."""
    ready = (RunReleased(attempt=1),) if event is RunStarted else ()
    record = make_record(announced=False)
    for past in (RunStarted(worker="worker-1"), *WAYS[status], *ready):
        record = apply(record, past, NOON)
    return record


def test_the_table_has_every_status_and_no_other_events() -> None:
    assert TABLE.keys() == WAYS.keys() == set(TaskStatus)
    assert {event for rules in TABLE.values() for event in rules} <= set(get_args(Event))


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_each_pair_of_status_and_event_has_a_rule_is_late_or_is_refused(status: TaskStatus, kind: type[Event]) -> None:
    record = _in_status(status, kind)
    assert record.status is status
    event, rule = _event(kind, HELPFUL, record, NOON), TABLE[status].get(kind)
    if status in FINAL_STATUSES:
        assert rule is None
        assert apply(record, event, NOON) is record
    elif rule is None:
        with pytest.raises(TransitionRefused):
            apply(record, event, NOON)
    else:
        assert set(rule.to) <= set(TaskStatus)
        assert apply(record, event, NOON).status in rule.to
