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

from mcp_tasks.errors import StaleRun, TransitionRefused
from mcp_tasks.model.record import (
    ALWAYS,
    FINAL_STATUSES,
    ChildProcess,
    InputRequest,
    Pause,
    Progress,
    TaskRecord,
    TaskStatus,
    Trial,
)

# ---- events


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """A worker claimed the queued task: the next attempt begins, on trial if too many were lost."""

    worker: str
    trial: Trial | None = None
    tool_version: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStartedOver:
    """The run that was started begins from the top, because its tool is another version than it was: what the task has
    said and asked so far does not count any more."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReleased:
    """The run was given up in order, without an outcome, and may be started again at once.

    One that was given up before its tool was called has not `begun`.
    """

    attempt: int
    begun: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParked:
    """The run left memory because it only waits: for an answer to one of `keys`, or for `wake_at`."""

    attempt: int
    keys: Set[str] = frozenset()
    wake_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPaused:
    """The run waits in memory, and gave up its place under the limits of its tool and its owner meanwhile."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResumeRequested:
    """The run wants to go on, and there was no place for it. New runs have to wait until it has one."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResumed:
    """The run has its place under the limits again, and goes on."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLost:
    """The process that had the run died, or was silent for so long that it counts as dead.

    `wake_at` is for one that is not started again at once, because another is tried before it.
    """

    attempt: int
    wake_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPassed:
    """The run was not lost for as long as it was watched for it, or came to where it only waits."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressReported:
    """The tool said how far it is."""

    attempt: int
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRequested:
    """The tool asked the client for something."""

    attempt: int
    requests: Mapping[str, InputRequest]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWithdrawn:
    """The tool does not wait for these answers any more."""

    attempt: int
    keys: Set[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecorded:
    """The tool got further: a step ended, a timer was set, an answer was handed over. Which, says the journal."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessesChanged:
    """The run is about to start a command in a process group, or process groups of the task are gone."""

    attempt: int
    started: ChildProcess | None = None
    ended: Set[ChildProcess] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class InputAnswered:
    """The client answered some of the open questions. The answers themselves go into the journal."""

    keys: Set[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputHosted:
    """The client took an open question as a task of its own, by whose id its answer is fetched after a restart too."""

    key: str
    task_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCompleted:
    """The tool returned a result, which goes into the task's outcome; an `isError` one is a result too.

    `message` is what the tool itself says of such an error.
    """

    attempt: int
    is_error: bool = False
    message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFailed:
    """The request ended in a JSON-RPC error: raised by the tool, or the run was stopped or interrupted.

    `message` is that of the error; the error itself goes into the task's outcome. `reason` says why the run was ended
    if it was not the tool that failed: `max_runtime`, `interrupted` and so on.
    """

    attempt: int
    message: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAskedOnCall:
    """The tool asks on the original call, which has not been answered yet: there will be no task to speak of."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnnounced:
    """The original call is about to be answered with the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMissed:
    """The task waits, and there is no worker. Its status says so until a run begins."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCancelled:
    """The task was cancelled."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCreated:
    """There is a new task. For observers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDeleted:
    """The task is gone: its retention is over, or no caller knew of it. For observers."""


Event: TypeAlias = (
    RunStarted
    | RunStartedOver
    | RunReleased
    | RunParked
    | RunPaused
    | RunResumeRequested
    | RunResumed
    | RunLost
    | TrialPassed
    | ProgressReported
    | InputRequested
    | InputWithdrawn
    | StepRecorded
    | ProcessesChanged
    | InputAnswered
    | InputHosted
    | RunCompleted
    | RunFailed
    | RunAskedOnCall
    | TaskAnnounced
    | WorkerMissed
    | TaskCancelled
)
"""What can happen to an existing task."""


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
"""Progress resets the crash counter."""


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


def _change_pause(record: TaskRecord, event: RunPaused | RunResumeRequested | RunResumed, now: datetime) -> Fields:
    if isinstance(event, RunPaused):
        pause: Pause | None = record.pause or "waiting"
    else:
        pause = "resuming" if isinstance(event, RunResumeRequested) else None
    return None if record.pause == pause else {"pause": pause}


def _lose(record: TaskRecord, event: RunLost, now: datetime) -> Fields:
    when = _queue(record) if event.wake_at is None else {"wake_at": event.wake_at}
    processes = record.processes[-MOST_PROCESSES_LEFT:]
    return {"worker": None, "pause": None, "lost": record.lost + 1, "processes": processes, **when}


def _pass_trial(record: TaskRecord, event: TrialPassed, now: datetime) -> Fields:
    return None if record.trial is None else {"trial": None}


def _queue(record: TaskRecord) -> Mapping[str, Any]:
    """Makes an unclaimed task ready to be started. `working` is enough; one that asks is woken.

    Not by the time of now: a clock that is set back must not put the task to sleep.
    """
    return {"wake_at": ALWAYS if record.status is INPUT_REQUIRED else None}


def _report(record: TaskRecord, event: ProgressReported, now: datetime) -> Fields:
    return {"progress": event.progress}


def _journalled(record: TaskRecord, event: StepRecorded, now: datetime) -> Fields:
    # Nothing else of the record changes but its version, and that is the point: the entry is written only by the
    # run that still has the task.
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
    # A question that is closed already was answered in another way.
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
    # The end keeps the last progress, for people, and closes open questions.
    return {
        "worker": None,
        "pause": None,
        "wake_at": None,
        "finished_at": max(now, record.created_at),
        "inputs": record.inputs.withdraw(),
        "processes": (),
        **outcome,
    }


_UNSEEN: Mapping[type[Event], Change] = {
    # The last answer makes a parked task `working` before it is started; any other, or a timer, starts it as it is.
    RunStarted: _start,
    RunReleased: _release,
    RunParked: _park,
    RunPaused: _change_pause,
    RunResumeRequested: _change_pause,
    RunResumed: _change_pause,
    RunLost: _lose,
    TrialPassed: _pass_trial,
    TaskAnnounced: _announce,
    StepRecorded: _journalled,
    ProcessesChanged: _change_processes,
    InputHosted: _host,
}
"""Events that leave the status as it is, and that no client can see."""


def _open(status: TaskStatus) -> Mapping[type[Event], Rule]:
    """The rules for a status that is not final."""
    # Nothing is outstanding while working: the answer is late, and late answers are ignored.
    answered = (WORKING,) if status is WORKING else (INPUT_REQUIRED, WORKING)
    return {
        **{event: Rule(change, (status,), visible=False) for event, change in _UNSEEN.items()},
        WorkerMissed: Rule(_miss_worker, (status,)),
        ProgressReported: Rule(_report, (status,)),
        RunStartedOver: Rule(_start_over, (WORKING,)),
        InputRequested: Rule(_ask, (INPUT_REQUIRED,)),
        InputAnswered: Rule(_answer, answered),
        InputWithdrawn: Rule(_withdraw, answered),
        RunCompleted: Rule(_complete, (COMPLETED,)),
        RunFailed: Rule(_fail, (FAILED,)),
        RunAskedOnCall: Rule(_ask_on_call, (CANCELLED,)),
        TaskCancelled: Rule(_cancel, (CANCELLED,)),
    }


TABLE: Mapping[TaskStatus, Mapping[type[Event], Rule]] = {
    WORKING: _open(WORKING),
    INPUT_REQUIRED: _open(INPUT_REQUIRED),
    # Final statuses absorb: an event that arrives now is late, and is ignored.
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
