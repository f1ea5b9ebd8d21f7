"""Hosts that speak no tasks against our server: what a model reads there, and how often the work was started.

Each of these clients holds a result against the tool's output schema, which it has from `tools/list`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mcp_tasks.fallback.messages import widened
from tests.fallback.schemas import HANDLE, SHAPES

from .conftest import Begun
from .driving import Outcomes, command, drive, reached
from .inspector import Inspector

ROWS = (
    ("typescript_v1", "http"),
    ("typescript_v1", "stdio"),
    ("typescript_v1", "stateless"),
    ("typescript_v2", "http"),
    ("python_v1", "http"),
    ("python_v1", "stdio"),
    ("python_v1", "stateless"),
    ("fastmcp_plain", "http"),
    ("fastmcp_plain", "stdio"),
    ("langchain_adapter", "http"),
)
"""Which hosts are tried, and how they reach our server."""

MODERN = {"typescript_v2", "fastmcp_plain"}
STATELESS = [row for row in ROWS if row[1] == "stateless"]
WITH_A_BACK_CHANNEL = [row for row in ROWS if row[1] != "stateless"]
LABELS = {"quick", "middling", "long", "structured", "asks", "unasked", "fails", "fails_late", "cancel"}

Visit: TypeAlias = tuple[Outcomes, Mapping[str, int]]
"""What one host reports, and how often each tool was started, by its label."""


@pytest.fixture(params=ROWS, ids="-".join)
def row(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def seen(host_reports: Begun, row: tuple[str, str]) -> Visit:
    return host_reports[row]


def _of(seen: Visit, scenario: str) -> dict[str, Any]:
    outcome = seen[0][scenario]
    assert "error" not in outcome, outcome["error"]
    return outcome


def _assert_handle(answer: dict[str, Any], tool: str) -> None:
    """The answer says to a model and to a program that the tool is still running."""
    task_id = answer["structured"]["taskId"]
    lines = answer["text"].splitlines()
    assert lines[0] == f'The tool "{tool}" is still running. It has not finished, and this is not its result.'
    assert lines[1] == f'Do not call "{tool}" again: that would start the same work a second time.'
    assert f'call the tool "task_status" with {{"task_id": "{task_id}"}}' in lines[2]
    assert answer["structured"]["status"] == "working"
    assert "at " in answer["structured"]["statusMessage"]
    assert not answer["isError"]


def test_a_quick_tool_answers_itself(seen: Visit) -> None:
    outcome = _of(seen, "quick")
    assert outcome["text"] == "quick: rendered in 0 s"
    assert not outcome["isError"]


def test_a_tool_longer_than_one_wait(seen: Visit, row: tuple[str, str]) -> None:
    outcome = _of(seen, "middling")
    # A client of 2026-07-28 comes back by itself; an older one is told how to.
    if row[0] not in MODERN:
        _assert_handle(outcome["first"], "render")
    assert outcome["first" if row[0] in MODERN else "last"]["text"] == "middling: rendered in 2.5 s"


def test_a_tool_longer_than_all_waits(seen: Visit) -> None:
    outcome = _of(seen, "long")
    _assert_handle(outcome["first"], "render")
    assert outcome["last"]["text"] == "long: rendered in 7 s"
    assert outcome["last"]["structured"] == {"result": "long: rendered in 7 s"}
    assert outcome["again"] == outcome["last"]


def test_structured_output(seen: Visit) -> None:
    outcome = _of(seen, "structured")
    _assert_handle(outcome["first"], "describe")
    assert outcome["last"]["structured"] == {"title": "structured", "frames": 168}


@pytest.mark.parametrize("row", WITH_A_BACK_CHANNEL, ids="-".join)
def test_a_tool_that_asks(seen: Visit) -> None:
    outcome = _of(seen, "asks")
    assert outcome["first"]["text"] == "asks: published"
    assert outcome["asked"] == 1


@pytest.mark.parametrize("row", STATELESS, ids="-".join)
def test_a_tool_that_asks_where_nobody_can_be_asked(seen: Visit) -> None:
    outcome = _of(seen, "asks")
    waits = (
        'The tool "publish" is still running: it waits for an answer. It has not finished, and this is not its result.'
    )
    assert outcome["first"]["text"].startswith(waits)
    assert "Publish asks?" in outcome["first"]["text"]
    assert outcome["first"]["structured"]["status"] == "input_required"
    assert outcome["asked"] == 0


@pytest.mark.parametrize("row", WITH_A_BACK_CHANNEL, ids="-".join)
def test_a_client_that_cannot_be_asked_is_told_what_is_missing(seen: Visit) -> None:
    outcome = seen[0]["unasked"]
    told = outcome["error"]["message"] if "error" in outcome else outcome["text"]
    assert "the client did not declare the elicitation capability" in told
    assert "error" in outcome or outcome["isError"]


def test_a_tool_that_fails(seen: Visit) -> None:
    """At once, and when nobody waits any longer."""
    outcome, late = _of(seen, "fails"), _of(seen, "fails_late")
    _assert_handle(late["first"], "fail")
    for told, label in ((outcome, "fails"), (late["last"], "fails_late")):
        assert f"{label}: the film tore" in told["text"]
        assert told["isError"]


def test_a_model_cancels(seen: Visit) -> None:
    outcome = _of(seen, "cancel")
    _assert_handle(outcome["first"], "render")
    assert outcome["cancelled"]["text"].startswith('The tool "render" is cancelled, and has no result.')
    assert outcome["last"]["text"].startswith('The tool "render" was cancelled, and has no result')
    assert outcome["last"]["isError"]


def test_an_unknown_id_is_a_tool_error_in_words(seen: Visit) -> None:
    outcome = _of(seen, "unknown")
    assert outcome["text"].startswith('There is no task "no-such-task" of yours here')
    assert outcome["isError"]


def test_no_tool_was_started_twice(seen: Visit) -> None:
    assert seen[1] == dict.fromkeys(LABELS, 1)


def test_the_inspector_is_answered_within_the_limit_that_it_is_known_for(inspector: Inspector, tmp_path: Path) -> None:
    def call(tool: str, **arguments: object) -> dict[str, Any]:
        fields = [part for name, value in arguments.items() for part in ("--tool-arg", f"{name}={value}")]
        options = ["--method", "tools/call", "--tool-name", tool, *fields]
        reply = inspector.cli_method([url], "--transport", "http", "--protocol-era", "legacy", *options)
        assert not reply.error, reply.error
        value = reply.value
        shown = {"text": reply.text, "isError": value.get("isError", False)}
        return {**shown, "structured": value.get("structuredContent")}

    with reached(tmp_path, "http", "hosted") as plan:
        url = str(plan["url"])
        assert call("render", seconds=0, label="quick")["text"] == "quick: rendered in 0 s"
        first = call("render", seconds=6, label="long")
        _assert_handle(first, "render")
        last = first
        while "still running" in last["text"]:
            last = call("task_status", task_id=first["structured"]["taskId"])
    assert last["text"] == "long: rendered in 6 s"
    assert (tmp_path / "started.log").read_text().split() == ["quick", "long"]


# The schemas of tools that may answer with a handle


@pytest.fixture(scope="module")
def schema_report(installs: Begun, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Which results each TypeScript SDK takes, by the name of the schema."""
    cases = {
        name: {"schema": widened(shape.schema), "values": [*shape.good, HANDLE, *shape.bad]}
        for name, shape in SHAPES.items()
    }
    file: Path = tmp_path_factory.mktemp("schemas") / "cases.json"
    file.write_text(json.dumps(cases))
    return drive(command(installs["npm"], "output_schemas.mjs"), [str(file)])


@pytest.mark.parametrize("listing", ["first", "second"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sdk", ["older", "newest"])
def test_its_clients_take_the_tools_own_results_and_the_handle(
    schema_report: Any, sdk: str, name: str, listing: str
) -> None:
    shape = SHAPES[name]
    expected = [True] * (len(shape.good) + 1) + [False] * len(shape.bad)
    assert schema_report[sdk][listing][name] == expected
