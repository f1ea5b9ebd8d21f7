"""What may happen to a task, as one table.

Rules of this file:

1. Everything that decides a transition lives here. Stores compare and swap; they decide nothing.
2. Each pair of status and event either has a rule, or the task is final and the event comes too late, or the
   event is refused. There is no fourth case, and a test walks all pairs.
3. `apply` never changes a record. It returns the next one, one version up; the same object if the event was
   late or made no difference; or it raises `TransitionRefused`.
4. `now` is an argument. A clock that jumps back never takes `updated_at` back with it: SEP-2663 clients
   refuse a `lastUpdatedAt` before `createdAt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from mcp_tasks.core.events import (
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
    RunPaused,
    RunReleased,
    RunResumed,
    RunResumeRequested,
    RunStarted,
    RunStartedOver,
    StepRecorded,
    TaskAnnounced,
    TaskCancelled,
    TrialPassed,
    WorkerMissed,
)
from mcp_tasks.core.record import ALWAYS, TaskRecord
from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus
from mcp_tasks.errors import StaleRun, TransitionRefused

WORKING, INPUT_REQUIRED = TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED
COMPLETED, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED

Fields: TypeAlias = Mapping[str, Any] | None
"""The fields of a record that an event changes; None if it makes no difference, empty if only the version grows."""

Change: TypeAlias = Callable[[TaskRecord, Any, datetime], Fields]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cell of the table: how the record changes, and the statuses it may then have.

    `visible` says whether a client can see the difference; only then, and where the status message changes, does
    `updated_at` move.
    """

    change: Change
    to: tuple[TaskStatus, ...]
    visible: bool = True


MOST_PROCESSES_LEFT = 100
"""Child processes of lost runs that a record keeps, the newest: it is read by every poll."""

_BLAMELESS: Mapping[str, Any] = {"lost": 0, "trial": None}
"""What gets further is not what takes its process down."""


def _start(record: TaskRecord, event: RunStarted, now: datetime) -> Fields:
    if record.worker is not None:
        raise _refused(record, event, f"{record.worker} has it")
    if not record.is_queued(now):
        raise _refused(record, event, "it waits for an answer or a timer")
    said = {} if record.status_message is None else {"status_message": None}
    return {
        **said,
        "worker": event.worker,
        "attempt": record.attempt + 1,
        "started_at": now,
        "wake_at": None,
        "trial": event.trial,
        "tool_version": event.tool_version,
    }


def _start_over(record: TaskRecord, event: RunStartedOver, now: datetime) -> Fields:
    # `lost` stays: it got no further, and two versions that take turns must not take processes down for ever.
    return {"status": WORKING, "inputs": record.inputs.withdraw(), "progress": None}


def _release(record: TaskRecord, event: RunReleased | RunParked, now: datetime) -> Fields:
    started = {"started_at": None} if isinstance(event, RunReleased) and not event.begun else {}
    return {"worker": None, "pause": None, **started, **_queue(record), **_left_in_order(record)}


def _park(record: TaskRecord, event: RunParked, now: datetime) -> Fields:
    if not record.inputs.outstanding.keys() >= event.keys:
        # An answer came while the run was leaving; one of several may be all that the tool waits for.
        return _release(record, event, now)
    return {"worker": None, "pause": None, "wake_at": event.wake_at, **_BLAMELESS, **_left_in_order(record)}


def _left_in_order(record: TaskRecord) -> Mapping[str, Any]:
    """The child processes of the run have ended before it is given up. Those of a lost run may still be there."""
    return {"processes": tuple(each for each in record.processes if each.attempt != record.attempt)}


def _pause(record: TaskRecord, event: RunPaused, now: datetime) -> Fields:
    return None if record.pause is not None else {"pause": "waiting"}


def _request_resume(record: TaskRecord, event: RunResumeRequested, now: datetime) -> Fields:
    return None if record.pause == "resuming" else {"pause": "resuming"}


def _resume(record: TaskRecord, event: RunResumed, now: datetime) -> Fields:
    return None if record.pause is None else {"pause": None}


def _lose(record: TaskRecord, event: RunLost, now: datetime) -> Fields:
    when = _queue(record) if event.wake_at is None else {"wake_at": event.wake_at}
    processes = record.processes[-MOST_PROCESSES_LEFT:]
    return {"worker": None, "pause": None, "lost": record.lost + 1, "processes": processes, **when}


def _pass_trial(record: TaskRecord, event: TrialPassed, now: datetime) -> Fields:
    return None if record.trial is None else {"trial": None}


def _queue(record: TaskRecord) -> Mapping[str, Any]:
    """What makes a task that nobody has ready to be started. `working` is enough; one that asks is woken.

    Not by the time of now: a clock that is set back must not put the task to sleep.
    """
    return {"wake_at": ALWAYS if record.status is INPUT_REQUIRED else None}


def _report(record: TaskRecord, event: ProgressReported, now: datetime) -> Fields:
    return {"progress": event.progress}


def _journalled(record: TaskRecord, event: StepRecorded, now: datetime) -> Fields:
    # Nothing else of the record changes but its version, and that is the point: the entry is written only by the
    # run that still has the task. One that gets further is not what takes its process down.
    return _BLAMELESS if record.lost else {}


def _change_processes(record: TaskRecord, event: ProcessesChanged, now: datetime) -> Fields:
    left = tuple(each for each in record.processes if each not in event.ended)
    processes = left if event.started is None or event.started in left else (*left, event.started)
    return None if processes == record.processes else {"processes": processes}


def _ask(record: TaskRecord, event: InputRequested, now: datetime) -> Fields:
    try:
        inputs = record.inputs.ask(event.requests)
    except ValueError as exc:
        raise _refused(record, event, str(exc)) from exc
    return {"status": INPUT_REQUIRED, "inputs": inputs}


def _answer(record: TaskRecord, event: InputAnswered, now: datetime) -> Fields:
    # SEP-2663: answers to keys that are not open SHOULD be ignored; a partial set leaves the rest open.
    return _close(record, record.inputs.answerable(event.keys, now))


def _host(record: TaskRecord, event: InputHosted, now: datetime) -> Fields:
    # One that is closed already was answered otherwise, and nobody will look for it.
    inputs = record.inputs.host(event.key, event.task_id)
    return None if inputs is record.inputs else {"inputs": inputs}


def _withdraw(record: TaskRecord, event: InputWithdrawn, now: datetime) -> Fields:
    return _close(record, event.keys & record.inputs.outstanding.keys())


def _close(record: TaskRecord, keys: Set[str]) -> Fields:
    if not keys:
        return None
    inputs = record.inputs.close(keys)
    if not inputs.outstanding:
        return {"status": WORKING, "inputs": inputs, "wake_at": None}
    # A parked tool may wait for whichever answer comes first, so any of them wakes it.
    return {"inputs": inputs, "wake_at": ALWAYS if record.worker is None else None}


def _complete(record: TaskRecord, event: RunCompleted, now: datetime) -> Fields:
    return _end(record, now, status=COMPLETED, is_error=event.is_error, status_message=event.message)


def _fail(record: TaskRecord, event: RunFailed, now: datetime) -> Fields:
    # SEP-2663, "Task Execution Errors": a failed task SHOULD say in statusMessage what went wrong.
    return _end(record, now, status=FAILED, status_message=event.message)


def _cancel(record: TaskRecord, event: TaskCancelled, now: datetime) -> Fields:
    return _end(record, now, status=CANCELLED, status_message=event.reason)


def _ask_on_call(record: TaskRecord, event: RunAskedOnCall, now: datetime) -> Fields:
    if record.announced:
        raise _refused(record, event, "the original call has been answered with the task")
    return _end(record, now, status=CANCELLED, status_message="Asked on the original call")


def _announce(record: TaskRecord, event: TaskAnnounced, now: datetime) -> Fields:
    return None if record.announced else {"announced": True}


def _miss_worker(record: TaskRecord, event: WorkerMissed, now: datetime) -> Fields:
    # Of one that is parked, its questions say what it waits for.
    if not record.is_queued(now) or record.status is not WORKING or record.status_message == event.message:
        return None
    return {"status_message": event.message}


def _end(record: TaskRecord, now: datetime, **outcome: Any) -> Fields:
    # The end keeps the last progress (a person may like to see how far it came) and closes open questions.
    return {
        "worker": None,
        "pause": None,
        "wake_at": None,
        "finished_at": max(now, record.created_at),
        "inputs": record.inputs.withdraw(),
        "processes": (),
        **outcome,
    }


_ENDINGS: Mapping[type[Event], Rule] = {
    RunCompleted: Rule(_complete, (COMPLETED,)),
    RunFailed: Rule(_fail, (FAILED,)),
    RunAskedOnCall: Rule(_ask_on_call, (CANCELLED,)),
    TaskCancelled: Rule(_cancel, (CANCELLED,)),
}

TABLE: Mapping[TaskStatus, Mapping[type[Event], Rule]] = {
    WORKING: {
        RunStarted: Rule(_start, (WORKING,), visible=False),
        RunStartedOver: Rule(_start_over, (WORKING,)),
        RunReleased: Rule(_release, (WORKING,), visible=False),
        RunParked: Rule(_park, (WORKING,), visible=False),
        RunPaused: Rule(_pause, (WORKING,), visible=False),
        RunResumeRequested: Rule(_request_resume, (WORKING,), visible=False),
        RunResumed: Rule(_resume, (WORKING,), visible=False),
        RunLost: Rule(_lose, (WORKING,), visible=False),
        TrialPassed: Rule(_pass_trial, (WORKING,), visible=False),
        TaskAnnounced: Rule(_announce, (WORKING,), visible=False),
        WorkerMissed: Rule(_miss_worker, (WORKING,)),
        ProgressReported: Rule(_report, (WORKING,)),
        StepRecorded: Rule(_journalled, (WORKING,), visible=False),
        ProcessesChanged: Rule(_change_processes, (WORKING,), visible=False),
        InputRequested: Rule(_ask, (INPUT_REQUIRED,)),
        # Nothing is outstanding while working: the answer is late, and late answers are ignored.
        InputAnswered: Rule(_answer, (WORKING,)),
        InputHosted: Rule(_host, (WORKING,), visible=False),
        InputWithdrawn: Rule(_withdraw, (WORKING,)),
        **_ENDINGS,
    },
    INPUT_REQUIRED: {
        # The last answer makes a parked task `working` before it is started; any other, or a timer, starts it as it is.
        RunStarted: Rule(_start, (INPUT_REQUIRED,), visible=False),
        RunStartedOver: Rule(_start_over, (WORKING,)),
        RunReleased: Rule(_release, (INPUT_REQUIRED,), visible=False),
        RunParked: Rule(_park, (INPUT_REQUIRED,), visible=False),
        RunPaused: Rule(_pause, (INPUT_REQUIRED,), visible=False),
        RunResumeRequested: Rule(_request_resume, (INPUT_REQUIRED,), visible=False),
        RunResumed: Rule(_resume, (INPUT_REQUIRED,), visible=False),
        RunLost: Rule(_lose, (INPUT_REQUIRED,), visible=False),
        TrialPassed: Rule(_pass_trial, (INPUT_REQUIRED,), visible=False),
        TaskAnnounced: Rule(_announce, (INPUT_REQUIRED,), visible=False),
        WorkerMissed: Rule(_miss_worker, (INPUT_REQUIRED,)),
        ProgressReported: Rule(_report, (INPUT_REQUIRED,)),
        StepRecorded: Rule(_journalled, (INPUT_REQUIRED,), visible=False),
        ProcessesChanged: Rule(_change_processes, (INPUT_REQUIRED,), visible=False),
        InputRequested: Rule(_ask, (INPUT_REQUIRED,)),
        InputAnswered: Rule(_answer, (INPUT_REQUIRED, WORKING)),
        InputHosted: Rule(_host, (INPUT_REQUIRED,), visible=False),
        InputWithdrawn: Rule(_withdraw, (INPUT_REQUIRED, WORKING)),
        **_ENDINGS,
    },
    # Final statuses absorb: whatever arrives now is late, and nothing comes of it.
    COMPLETED: {},
    FAILED: {},
    CANCELLED: {},
}


def apply(record: TaskRecord, event: Event, now: datetime) -> TaskRecord:
    """The record after `event`; the same object if the event was late or made no difference.

    Raises:
        StaleRun: The event comes from a run that is not the current one.
        TransitionRefused: The event does not fit the task's state.
    """
    if record.status in FINAL_STATUSES:
        return record
    rule = TABLE[record.status].get(type(event))
    if rule is None:  # pragma: no cover - the table has every event of today; a new one is refused until it is there
        raise _refused(record, event, "that cannot happen in this status")
    _check_attempt(record, event)
    fields = rule.change(record, event, now)
    if fields is None:
        return record
    is_visible = rule.visible or "status_message" in fields
    updated_at = max(now, record.updated_at) if is_visible else record.updated_at
    return record.but(version=record.version + 1, updated_at=updated_at, **fields)


def _check_attempt(record: TaskRecord, event: Event) -> None:
    # Two orders are possible when a worker is slow: it writes before its task is given to another, which is
    # fine, or after, and then the number it carries is old. Either way exactly one run writes the outcome.
    attempt: int | None = getattr(event, "attempt", None)
    if attempt is not None and (record.worker is None or attempt != record.attempt):
        now = "nobody has claimed it" if record.worker is None else f"{record.worker} has run {record.attempt}"
        why = f"run {attempt} is not the current run: {now}"
        raise StaleRun(record.id, record.status, type(event).__name__, why)


def _refused(record: TaskRecord, event: Event, why: str) -> TransitionRefused:
    return TransitionRefused(record.id, record.status, type(event).__name__, why)
