"""What an operator wants to know of each task, one line each in the log at INFO; its deletion at DEBUG.

An observer like any other. It says which task and which tool, and nothing of what the tool was given or what it said.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from mcp_tasks.core.events import (
    InputRequested,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunReleased,
    RunStarted,
    RunStartedOver,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.observing import Choosy, Observed, TaskChange

logger: Final = get_logger(__name__)

_AT_INFO: frozenset[type[Observed]] = frozenset(
    {
        TaskCreated,
        RunStarted,
        RunStartedOver,
        InputRequested,
        RunParked,
        RunLost,
        RunReleased,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        TaskCancelled,
    }
)
_AT_DEBUG: frozenset[type[Observed]] = frozenset({TaskDeleted})


class Narration(Choosy):
    """Writes the life of each task into the log."""

    def wanted(self) -> Collection[type[Observed]]:
        """Nothing, as long as nobody reads such lines."""
        if logger.isEnabledFor(logging.DEBUG):
            return _AT_INFO | _AT_DEBUG
        return _AT_INFO if logger.isEnabledFor(logging.INFO) else ()

    def __call__(self, change: TaskChange) -> None:
        """Write the line of one change."""
        level = logging.DEBUG if type(change.event) in _AT_DEBUG else logging.INFO
        if isinstance(change.event, RunFailed) and change.event.reason is not None:
            # Not the tool failed, but what the server promised it.
            level = logging.WARNING
        task = change.task
        logger.log(level, "task %s… (%s) %s", task.id[:12], task.name, _what_happened(change, task))


def _what_happened(change: TaskChange, task: TaskRecord) -> str:
    match change.event:
        case TaskCreated():
            return "was created"
        case RunStarted():
            return f"was started: run {task.attempt}"
        case RunStartedOver():
            return f"starts over in run {task.attempt}: its tool is another version than it was"
        case InputRequested(requests=asked):
            questions = "1 question" if len(asked) == 1 else f"{len(asked)} questions"
            return f"waits: it asks the client {questions} ({len(task.inputs.outstanding)} open)"
        case RunParked():
            return f"was parked: run {task.attempt} waits and has left memory"
        case RunLost():
            return f"was recovered: run {task.attempt} died with its process, and it will run again"
        case RunReleased():
            return f"was released: run {task.attempt} was given up, and it will run again"
        case RunAskedOnCall():
            return f"ended without a result after {_age(task)}: its tool asks on the original call"
        case RunCompleted(is_error=True):
            return f"completed with an error of its tool (isError) after {_age(task)}, in run {task.attempt}"
        case RunFailed(reason=str(reason)):
            return f"failed after {_age(task)}, in run {task.attempt}: {reason}"
        case TaskDeleted():
            return "was deleted"
        case _:
            return f"{task.status.value} after {_age(task)}, in run {task.attempt}"


def _age(task: TaskRecord) -> str:
    seconds = 0.0 if task.finished_at is None else (task.finished_at - task.created_at).total_seconds()
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
