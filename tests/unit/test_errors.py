"""The exception tree: whose fault, and which fields."""

from __future__ import annotations

import inspect
from datetime import timedelta

from mcp_tasks import errors
from mcp_tasks.errors import (
    Interrupted,
    MissingExtra,
    RanTooLong,
    StaleRun,
    StoreError,
    TaskExists,
    TasksError,
    TaskWasCancelled,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
    WaitTimedOut,
)


def _classes() -> list[type[BaseException]]:
    found = (
        member for _, member in inspect.getmembers(errors, inspect.isclass) if member.__module__ == errors.__name__
    )
    return [member for member in found if issubclass(member, BaseException)]


def _depth(member: type[BaseException]) -> int:
    """How deep in the tree: the root is 0."""
    return 0 if member is TasksError else 1 + min(_depth(base) for base in member.__bases__ if _is_ours(base))


def _is_ours(member: type[BaseException]) -> bool:
    return issubclass(member, TasksError)


def test_everything_raised_here_is_caught_by_the_root() -> None:
    assert [member.__name__ for member in _classes() if not issubclass(member, TasksError)] == []


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "──" in line]
    places = {line.partition("── ")[2].split()[0]: line.index("──") for line in drawn}
    columns = sorted(set(places.values()))
    assert {name: columns.index(column) + 1 for name, column in places.items()} == {
        member.__name__: _depth(member) for member in _classes() if member is not TasksError
    }


def test_every_class_says_what_it_means() -> None:
    assert [member.__name__ for member in _classes() if not member.__doc__] == []


def test_errors_keep_the_fields_of_their_message() -> None:
    assert UnknownTask("task-1").task_id == "task-1"
    assert (TaskExists("task-1").task_id, str(TaskExists("task-1"))) == ("task-1", "task task-1 already exists")
    conflict = VersionConflict("task-1", 7)
    assert (conflict.task_id, conflict.expected) == ("task-1", 7)
    refused = TransitionRefused("task-1", "working", "RunStarted", "worker-1 has it")
    assert (refused.task_id, refused.status, refused.event) == ("task-1", "working", "RunStarted")
    assert "worker-1 has it" in str(refused)


def test_a_stale_run_is_a_refused_transition_and_a_conflict_a_store_error() -> None:
    assert issubclass(StaleRun, TransitionRefused)
    assert issubclass(VersionConflict, StoreError)


def test_work_that_was_stopped_has_one_word_for_programs() -> None:
    assert (Interrupted("render").reason, Interrupted("render").tool) == ("interrupted", "render")
    late = RanTooLong("render", timedelta(seconds=90))
    assert (late.reason, late.tool, late.limit) == ("max_runtime", "render", timedelta(seconds=90))


def test_a_missing_extra_says_what_to_install() -> None:
    assert "pip install 'mcp-tasks[postgres]'" in str(MissingExtra("The Postgres store", "postgres"))


def test_waiting_in_vain_is_a_timeout_to_those_who_know_only_that() -> None:
    assert isinstance(WaitTimedOut("task-1", 2.5), TimeoutError)
    assert "within 2.5 s" in str(WaitTimedOut("task-1", 2.5))


def test_a_cancellation_is_told_with_its_reason_if_there_is_one() -> None:
    assert str(TaskWasCancelled("task-1")) == "task task-1 was cancelled"
    assert str(TaskWasCancelled("task-1", "enough")) == "task task-1 was cancelled: enough"


def test_a_call_that_took_too_long_is_no_task_to_come_back_to() -> None:
    assert str(WaitTimedOut("", 2)) == "the call did not end within 2 s. It may have been made."
    assert "resume_task(client, 't1')" in str(WaitTimedOut("t1", 2))
