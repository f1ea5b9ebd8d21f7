"""What can happen to a task, one frozen value each, in the past tense.

Events of a run carry its `attempt`: a run whose number is not the record's any more has lost its lease, and
the machine refuses what it says (`StaleRun`). Events without one come from outside: the client, the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.record import ChildProcess, Progress, Trial


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
    """Somebody who may do so cancelled the task."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCreated:
    """There is a new task. For observers: no task is there yet that it could happen to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDeleted:
    """The task is gone: its retention is over, or nobody was ever told of it. For observers."""


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
"""What can happen to a task that is there: what the machine decides."""
