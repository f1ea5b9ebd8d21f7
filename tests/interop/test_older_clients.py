"""Clients of others on the 2025-11-25 wire, against our server, over stdio and over Streamable HTTP.

What a client reports under which name is in its driver; here is what must come out. Each visits twice: at the end of
the first visit it kills the server (`kill -9`), and comes back from another process to one that has the same file.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Begun
from .driving import Expected, assert_fits
from .test_clients import PROTOCOL_ERROR, has, said

TYPESCRIPT, PYTHON, EXT_TASKS, STRANDS = "typescript", "python", "ext_tasks_v1", "strands_older"
ALL = (TYPESCRIPT, PYTHON, EXT_TASKS, STRANDS)
SDKS = (TYPESCRIPT, PYTHON)
WITH_HANDLES = (*SDKS, EXT_TASKS)
WAYS = ("stdio", "http", "json")

VERSIONS = {TYPESCRIPT: "1.32.2", PYTHON: "1.30.0", EXT_TASKS: "2.4.0/0.2.2", STRANDS: "1.62.0/1.30.0"}
CAPABILITY: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
SUPPORT = {"slow_compute": "optional", "confirm_delete": "optional", "failing_job": "required"}
TOOL_ERROR = "the job failed, as it always does"
UNDECLARED = "the client did not declare the elicitation capability"


def is_new_task(task: dict[str, Any]) -> bool:
    return task["status"] == "working" and task["ttl"] >= 60_000 and task["pollInterval"] > 0


def says_support(support: dict[str, Any]) -> bool:
    return support.items() >= SUPPORT.items() and support["greet"] in (None, "forbidden")


def refused_by_newer_methods(refused: dict[str, str]) -> bool:
    names = {"submit_tool_async", "get_task_async", "cancel_task_async"}
    return set(refused) == names and all("mcp 2.x" in message for message in refused.values())


EXPECTED: list[tuple[tuple[str, ...], str, Expected]] = [
    (WITH_HANDLES, "handshake", {"tasks": CAPABILITY}),
    (SDKS, "handshake", {"support": says_support}),
    ((EXT_TASKS,), "handshake", {"era": "legacy"}),
    (ALL, "plain", {"text": "Hello, Ada!"}),
    (WITH_HANDLES, "create", {"task": is_new_task}),
    ((EXT_TASKS,), "create", {"kind": "task"}),
    ((EXT_TASKS,), "plain", {"kind": "immediate"}),
    # Strands makes a task of every call of a tool that may be one, and gives nobody its id.
    ((STRANDS,), "create", {"text": "create: done after 0.2 s"}),
    (SDKS, "required_plainly", {"code": -32601}),
    (SDKS, "forbidden_as_task", {"code": -32601}),
    (ALL, "result", said("result: done after 3 s")),
    (
        WITH_HANDLES,
        "result",
        {
            "statuses": lambda seen: (seen[0], seen[-1]) == ("working", "completed"),
            "messages": lambda seen: bool(seen) and all(each.startswith("result: ") for each in seen),
        },
    ),
    (SDKS, "result", {"heard": lambda seen: seen[-1] == "completed"}),
    (SDKS, "blocked", {"text": "blocked: done after 1 s", "related": bool}),
    (SDKS, "failed", {"status": "failed", "statusMessage": has(TOOL_ERROR), "text": has(TOOL_ERROR), "isError": True}),
    (
        SDKS,
        "protocol_error",
        {"status": "failed", "code": -32603, "message": has(PROTOCOL_ERROR), "statusMessage": has(PROTOCOL_ERROR)},
    ),
    # It never asks for the result of a failed task: all that its user sees is the `statusMessage`.
    ((EXT_TASKS,), "failed", {"outcome": "failed", "failure": has(TOOL_ERROR)}),
    ((EXT_TASKS,), "protocol_error", {"outcome": "failed", "failure": has(PROTOCOL_ERROR)}),
    ((STRANDS,), "failed", {"text": has(TOOL_ERROR), "isError": True}),
    ((STRANDS,), "protocol_error", {"text": has(PROTOCOL_ERROR), "isError": True}),
    (WITH_HANDLES, "unknown", {"code": -32602}),
    (ALL, "question", {"text": "deleted a.txt", "asked": ["Delete a.txt?"]}),
    (ALL, "two_questions", {"text": "name: accept, confirmation: accept"}),
    # A tool that asks by returning what it asks, which on this wire is asked like any other question of a task.
    (ALL, "question_first", {"text": "Hello, Ada!"}),
    (ALL, "question_declined", {"text": "kept keep.txt"}),
    (SDKS, "question_pushed", {"text": "deleted pushed.txt", "asked": ["Delete pushed.txt?"]}),
    (WITH_HANDLES, "undeclared", {"status": "failed", "statusMessage": has(UNDECLARED)}),
    (
        WITH_HANDLES,
        "cancel",
        {"before": "working", "after": "cancelled", "again": lambda answer: answer["code"] == -32602},
    ),
    (SDKS, "cancelled_result", {"code": lambda code: code is not None, "message": has("cancelled")}),
    ((STRANDS,), "cancel", {"cancelled": bool, "went_on": False}),
    (WITH_HANDLES, "list", {"missing": 0, "twice": 0}),
    # Its task methods want the newer wire; on this one there is nothing that takes or gives an id.
    ((STRANDS,), "no_handle", {"lists": [], "refused": refused_by_newer_methods}),
    (
        WITH_HANDLES,
        "resume",
        {
            "before": lambda status: status in ("working", "completed"),
            "running": lambda result: result["text"] == "left: done after 3 s",
            "ended": lambda result: result["text"] == "ended: done after 0 s",
            "question": lambda result: result["text"] == "deleted left.txt",
            "asked": ["Delete left.txt?"],
            "listed": bool,
        },
    ),
    ((EXT_TASKS,), "wire", {"problems": [], "checked": lambda number: number > 30}),
    ((EXT_TASKS,), "wire_again", {"problems": []}),
    ((STRANDS,), "without_tasks", {"text": "ok"}),
    ((STRANDS,), "without_tasks_required", {"status": "error"}),
]
CASES = [
    ((client, way), scenario, expected)
    for clients, scenario, expected in EXPECTED
    for client in clients
    for way in WAYS
]


@pytest.mark.parametrize(
    ("older", "scenario", "expected"), CASES, ids=[f"{older[0]}-{older[1]}-{scenario}" for older, scenario, _ in CASES]
)
def test_outcome(older: tuple[str, str], scenario: str, expected: Expected, older_reports: Begun) -> None:
    outcome = older_reports[older][scenario]
    assert "error" not in outcome, outcome
    assert_fits(outcome, expected)


@pytest.mark.parametrize("older", [(client, way) for client in ALL for way in WAYS], ids="-".join)
def test_the_version_is_the_pinned_one(older: tuple[str, str], older_reports: Begun) -> None:
    assert older_reports[older]["version"] == VERSIONS[older[0]]


@pytest.mark.parametrize("older", [(STRANDS, way) for way in WAYS], ids="-".join)
def test_strands_tells_of_a_restart_and_cannot_resume(older: tuple[str, str], older_reports: Begun) -> None:
    outcome = older_reports[older]["left"]
    assert "error" in outcome or outcome["status"] == "error", outcome
