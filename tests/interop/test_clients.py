"""Clients of others, against our server, with SSE streams and with JSON bodies.

What a client reports under which name is in its driver; here is what must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Begun
from .driving import Expected, Outcomes, assert_fits, command, drive, reached

FASTMCP, STRANDS, PYDANTIC_AI, EXT_TASKS = "fastmcp_client", "strands", "pydantic_ai", "ext_tasks"
ALL = (EXT_TASKS, FASTMCP, STRANDS, PYDANTIC_AI)
WITH_HANDLES = (EXT_TASKS, FASTMCP, STRANDS)

PROTOCOL_ERROR = "the job ended in a protocol error, as it always does"


def said(text: str, *, error: bool = False) -> Expected:
    return {"text": text, "isError": error}


def has(part: str) -> Callable[[Any], object]:
    return lambda found: part in found


def tells_of_progress(messages: list[str | None]) -> bool:
    seen = [message for message in messages if message is not None]
    fine = all(message.startswith("status: ") and message.endswith(" s of 2 s") for message in seen)
    return bool(seen) and fine and seen == sorted(seen)


EXPECTED: list[tuple[tuple[str, ...], str, Expected]] = [
    (ALL, "plain", said("Hello, Ada!")),
    (ALL, "task", said("task: done after 1.2 s")),
    (ALL, "is_error", said("Error executing tool failing_job: the job failed, as it always does", error=True)),
    (ALL, "elicitation", said("deleted a.txt")),
    (ALL, "two_questions", said("name: accept, confirmation: accept")),
    (ALL, "mrtr", said("Hello, Ada!")),
    (WITH_HANDLES, "status", {"text": "status: done after 2 s", "messages": tells_of_progress}),
    (
        WITH_HANDLES,
        "failed",
        {"status": "failed", "jsonrpc": lambda error: (error["code"], error["message"]) == (-32603, PROTOCOL_ERROR)},
    ),
    ((FASTMCP, STRANDS, PYDANTIC_AI), "failed_call", {"text": has(PROTOCOL_ERROR), "isError": True}),
    (WITH_HANDLES, "cancel", {"before": "working", "after": "cancelled"}),
    # Strands cancels the task of a call that is given up; FastMCP, and Pydantic AI on top of it, leave it to go on.
    ((STRANDS,), "given_up", {"cancelled": True, "went_on": False}),
    ((FASTMCP, PYDANTIC_AI), "given_up", {"cancelled": True, "went_on": True}),
    (
        WITH_HANDLES,
        "undeclared_input",
        {"text": has("the client did not declare the elicitation capability"), "isError": True},
    ),
    ((EXT_TASKS,), "undeclared_input", {"code": -32021}),
    ((EXT_TASKS, STRANDS), "unknown_task", {"error": lambda error: error["code"] == -32602}),
    ((EXT_TASKS,), "task", {"kind": "task"}),
    ((EXT_TASKS,), "plain", {"kind": "immediate"}),
    ((EXT_TASKS,), "wire", {"problems": [], "checked": lambda number: number > 30}),
    # It has no `taskIds` in its own types, but carries them, and takes the notifications.
    (
        (EXT_TASKS,),
        "push",
        {
            "text": "push: done after 1.2 s",
            "result": "push: done after 1.2 s",
            "statuses": lambda seen: (seen[0], seen[-1], seen.count("completed")) == ("working", "completed", 1),
            "ids": bool,
        },
    ),
    ((EXT_TASKS,), "resumed", {"text": "resumed: done after 0.6 s"}),
    # `call_tool` answers a question before the task; `call_tool_task` refuses it. When that changes, docs/interop.md
    # must too.
    ((FASTMCP,), "mrtr_handle", {"error": lambda error: "InputRequiredResult" in error["message"]}),
    ((STRANDS,), "answered_by_hand", {"text": "kept b.txt"}),
    ((STRANDS,), "without_tasks", {"text": "ok"}),
    (
        (STRANDS,),
        "without_tasks_required",
        {"text": has("Client did not declare required extension 'io.modelcontextprotocol/tasks'")},
    ),
    ((PYDANTIC_AI,), "use_task", {"text": "use_task: done after 0.6 s"}),
    ((PYDANTIC_AI,), "use_task_plain", {"text": has("did not run as a task"), "isError": True}),
    ((PYDANTIC_AI,), "agent", {"text": "The tool says: agent: done after 0.6 s"}),
]
CASES = [(client, scenario, expected) for clients, scenario, expected in EXPECTED for client in clients]


@pytest.mark.parametrize("way", ["sse", "json"])
@pytest.mark.parametrize(("client", "scenario", "expected"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_outcome(client: str, scenario: str, expected: Expected, way: str, reports: Begun) -> None:
    assert_fits(reports[client][["sse", "json"].index(way)][scenario], expected)


@pytest.mark.parametrize(
    ("client", "version"),
    [(EXT_TASKS, "2.4.0/0.2.2"), (FASTMCP, "4.1.2"), (STRANDS, "1.62.0"), (PYDANTIC_AI, "2.66.0")],
)
def test_the_version_is_the_pinned_one(client: str, version: str, reports: Begun) -> None:
    assert reports[client][0]["version"] == version
    assert reports[client][0].get("era", "modern") == "modern"


# FastMCP's own client, given our `TasksClient`


@pytest.fixture(scope="module")
def fastmcp_with_ours(installs: Begun, streaming_url: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    driver = command(installs["fastmcp"], "fastmcp_with_ours.py")
    with reached(tmp_path_factory.mktemp("seldom"), "http", "hosted") as seldom:
        return drive(driver, [streaming_url, seldom["url"]], with_ours=True)[0]


LONG, HAND, LEFT = "long: done after 2.5 s", "hand: done after 1 s", "left: done after 1.5 s"


WITH_OURS: list[tuple[str, Expected]] = [
    # For longer than the client waits for an answer.
    ("transparent", {"text": LONG, "data": LONG, "heard": lambda times: times >= 2}),
    ("asking", {"texts": ["deleted fast.txt", "Hello, Ada!"], "asked": 1}),
    ("in_hand", {"tool": "slow_compute", "text": HAND, "inline": "Hello, Ada!"}),
    ("given_up", {"type": "WaitTimedOut", "fate": "cancelled"}),
    # It finds what another client left.
    ("ledger", {"ids": True, "texts": [LEFT], "left": []}),
    # And is still told of its tasks.
    ("entered_again", {"texts": ["counted to 5", "counted to 20", "counted to 5"]}),
    (
        "strangers",
        {
            "not_given": lambda told: "was not given this TasksClient" in told["message"],
            "by_function": lambda told: "methods of its TasksClient" in told["message"],
        },
    ),
]


@pytest.mark.parametrize(("scenario", "expected"), WITH_OURS, ids=[scenario for scenario, _ in WITH_OURS])
def test_fastmcp_with_our_tasks_client(fastmcp_with_ours: Outcomes, scenario: str, expected: Expected) -> None:
    assert_fits(fastmcp_with_ours[scenario], expected)
