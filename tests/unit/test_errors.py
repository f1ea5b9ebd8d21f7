"""The exception tree: whose fault, and which fields."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest

from mcp_tasks import errors
from mcp_tasks.errors import (
    MissingExtra,
    RanTooLong,
    TaskExists,
    TasksError,
    TaskWasCancelled,
    TransitionRefused,
    UnknownTask,
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


def test_errors_keep_the_fields_of_their_message() -> None:
    assert UnknownTask("task-1").task_id == "task-1"
    refused = TransitionRefused("task-1", "working", "RunStarted", "worker-1 has it")
    assert (refused.task_id, refused.status, refused.event) == ("task-1", "working", "RunStarted")
    late = RanTooLong("render", timedelta(seconds=90))
    assert (late.reason, late.tool, late.limit) == ("max_runtime", "render", timedelta(seconds=90))
    assert "pip install 'mcp-tasks[postgres]'" in str(MissingExtra("The Postgres store", "postgres"))
    assert isinstance(WaitTimedOut("task-1", 2.5), TimeoutError)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TransitionRefused("task-1", "working", "RunStarted", "worker-1 has it"), "worker-1 has it"),
        (TaskExists("task-1"), "task task-1 already exists"),
        (WaitTimedOut("task-1", 2.5), "within 2.5 s"),
        (WaitTimedOut("t1", 2), "resume_task(client, 't1')"),
        (WaitTimedOut("", 2), "the call did not end within 2 s. It may have been made."),
        (TaskWasCancelled("task-1"), "task task-1 was cancelled"),
        (TaskWasCancelled("task-1", "enough"), "task task-1 was cancelled: enough"),
    ],
)
def test_an_error_says_what_happened_to_which_task(error: Exception, says: str) -> None:
    assert says in str(error)
