"""What goes wrong with one task is said once."""

from __future__ import annotations

import pytest

from mcp_tasks.runtime import observers
from mcp_tasks.runtime.observers import Troubles


def test_trouble_with_a_task_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    noted = Troubles()
    assert [noted.note("one", ValueError("odd")) for _ in range(3)] == [1, 2, 3]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_only_so_many_tasks_are_remembered_and_those_that_gave_trouble_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "MAX_TROUBLES", 2)
    noted = Troubles()
    tasks = ("one", "two", "one", "three", "one", "two")
    assert [noted.note(task, ValueError("odd")) for task in tasks] == [1, 1, 2, 1, 3, 1]
