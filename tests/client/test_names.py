"""The names that a host author imports."""

from __future__ import annotations

import builtins
import inspect
import re

import mcp
import mcp_types

import mcp_tasks.client
from harness.processes import ROOT
from mcp_tasks import errors
from mcp_tasks.client import TaskHandle, TasksClient, extension


def test_the_names_of_the_client_are_there_and_each_is_listed_once() -> None:
    names = mcp_tasks.client.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(mcp_tasks.client, name)] == []


def test_every_class_that_the_page_names_can_be_imported() -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    named = set(re.findall(r"`([A-Z][a-z]\w+)\b", page))
    assert {"TasksClient", "TaskFailed", "UsageError"} <= named
    homes = (mcp_tasks.client, errors, mcp, mcp_types, builtins)
    assert [name for name in sorted(named) if not any(hasattr(home, name) for home in homes)] == []


def test_what_a_wait_raises_is_imported_beside_what_waits() -> None:
    raised = re.findall(r"^ +(\w+): ", (inspect.getdoc(TaskHandle.result) or "").partition("Raises:")[2], re.MULTILINE)
    assert "WaitTimedOut" in raised
    assert [name for name in raised if name not in (*mcp_tasks.client.__all__, "MCPError")] == []


def test_the_functions_take_what_the_methods_take() -> None:
    pairs = {"call": "call_tool", "start": "start_task", "resume": "resume_task", "pending": "pending_tasks"}
    for method, function in pairs.items():
        _, *parameters = inspect.signature(getattr(TasksClient, method)).parameters.values()
        assert list(inspect.signature(getattr(extension, function)).parameters.values()) == parameters


def test_no_verb_takes_options_that_nobody_declared() -> None:
    for owner in (TasksClient, TaskHandle):
        for name, verb in inspect.getmembers(owner, inspect.isfunction):
            kinds = {parameter.kind for parameter in inspect.signature(verb).parameters.values()}
            assert name.startswith("__") or inspect.Parameter.VAR_KEYWORD not in kinds
