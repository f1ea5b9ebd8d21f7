"""What must be so when all is over."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.replay import GIVEN_UP, tasks_by_value
from mcp_tasks.stores.codec import to_micros
from tests.properties.tools.model import allows, may_fail
from tests.properties.tools.tree import Node


def check_outcome(tree: Node, record: TaskRecord, outcome: Outcome | None) -> None:
    """The task has ended, as some schedule of its tool allows."""
    ended_with = None if outcome is None else decode_json(outcome.body)
    match record.status:
        case TaskStatus.COMPLETED if ended_with is not None:
            value = ended_with["value"]
            assert allows(tree, "0", value), f"no schedule of the tool gives {value}"
        case TaskStatus.FAILED if ended_with is not None:
            assert "data" in ended_with, f"the task failed: {ended_with['message']}"
            assert may_fail(tree, "0", ended_with["data"]), f"no schedule of the tool fails so: {ended_with}"
        case _:
            raise AssertionError(f"the task waits for ever: {record}")


def check_questions(record: TaskRecord, ends: Sequence[JournalEntry]) -> None:
    """No question is open that the tool is known not to wait for any more."""
    closed = {entry.key for entry in ends} & record.inputs.outstanding.keys()
    assert not closed, f"the tool has done with {closed}, and they are still open"


def check_all_is_given_back(runtime: TaskRuntime) -> None:
    """Nothing of the runs is left: no asyncio task, no slot, no seat."""
    left = {run.record.id: tasks for run, tasks in tasks_by_value(current_run).items()}
    assert not left, f"the run has ended, and this is left of it: {left}"
    assert isinstance(runtime.engine, LocalEngine)
    assert runtime.engine.is_idle, "a slot was not given back"
    room, seats = runtime.parking.room, 0
    while room.enter(standing=False):
        seats += 1
    assert seats == runtime.settings.max_waiting_runs, f"{seats} seats are left of {runtime.settings.max_waiting_runs}"


def check_history(history: Sequence[tuple[datetime, str, JournalEntry]]) -> None:
    """Everything was recorded once, and no time was over before it was."""
    seen: set[tuple[str, str, str | None, str]] = set()
    ends: dict[tuple[str, str], int] = {}
    for when, task_id, entry in history:
        value: Any = entry.value
        if entry.kind == "done" and value["how"] == GIVEN_UP:
            # Anything may be given up, and as often as the tool tries.
            continue
        what = (task_id, entry.kind, value["kind"] if entry.kind == "done" else None, entry.key)
        assert what not in seen, f"{entry} was recorded twice"
        seen.add(what)
        if entry.kind in ("ask", "timer"):
            ends[task_id, entry.key] = value.get("deadline") or value.get("until")
        if entry.kind == "done" and value["how"] != "answer":
            assert to_micros(when) >= ends[task_id, entry.key], f"{entry} was told before the time was over"


@contextmanager
def errors_logged() -> Generator[list[str]]:
    """The errors that the runtime logs meanwhile. It logs one where something happened that should not."""
    errors: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(self.format(record))

    logger, listener = logging.getLogger("mcp_tasks"), Listener(logging.ERROR)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield errors
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
