"""`doctor` finds no fault with our servers, and finds the faults of others."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor import Checkup, Report
from mcp_tasks.doctor.shapes import flaw_of_id, flaws_of_ack, flaws_of_created, flaws_of_detailed, flaws_of_time
from mcp_tasks.doctor.wire import LISTENING, Reply, Silence
from mcp_tasks.wire.models import EXTENSION_ID
from tests.cli.running import Cli, stdio_command

NOW = "2026-07-28T12:00:00Z"
TASK: JsonObject = {
    "taskId": "0123456789abcdef0123",
    "status": "working",
    "createdAt": NOW,
    "lastUpdatedAt": NOW,
    "ttlMs": None,
}


def test_our_server_has_no_fault(cli: Cli, fixture_url: str) -> None:
    by_hand, by_itself = cli.together(
        ("doctor", fixture_url, "--tool", "slow_compute", "seconds=1", "label=x", "-o", "json"), ("doctor", fixture_url)
    )
    assert by_hand.returncode == 0, by_hand.stdout
    found = json.loads(by_hand.stdout)
    assert {finding["verdict"] for finding in found["findings"]} == {"pass"}
    areas = {finding["area"] for finding in found["findings"]}
    assert areas >= {"negotiation", "errors", "creation", "undeclared client", "headers", "push", "cancel", "outcome"}
    assert by_itself.returncode == 0
    assert "no tool is marked readOnlyHint" in by_itself.stdout


def test_a_harmless_tool_is_found_and_stdio_is_examined_too(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", stdio_command(tmp_path), "-o", "json")
    assert done.returncode == 0, done.stdout
    findings = json.loads(done.stdout)["findings"]
    assert "call look_around" in {finding["probe"] for finding in findings}
    assert [finding["area"] for finding in findings if finding["verdict"] != "pass"] == ["headers"]


def test_a_server_that_cannot_be_examined_says_why(cli: Cli, fixture_url: str) -> None:
    refused, command, tool, words, era = cli.together(
        ("doctor", "http://127.0.0.1:9/mcp"),
        ("doctor", "no-such-command"),
        ("doctor", fixture_url, "--tool", "nothing"),
        ("doctor", fixture_url, "seconds=1"),
        ("doctor", fixture_url, "--era", "legacy"),
    )
    assert [done.returncode for done in (refused, command, tool, words, era)] == [6, 6, 2, 2, 2]
    assert "nothing of 2025-11-25" in era.stderr


def test_a_server_that_speaks_only_2025_11_25_is_not_called_well(cli: Cli) -> None:
    server = f"{sys.executable} -m tests.cli.old_server"
    said, listed = cli.together(("doctor", server), ("doctor", server, "-o", "json"))
    assert (said.returncode, listed.returncode) == (6, 6), said.stderr
    assert "Nothing was checked of its tasks: the server speaks only 2025-11-25" in said.stdout
    assert json.loads(listed.stdout)["unexamined"]


class FakeWire:
    """A server that answers as it is told."""

    over_http = True

    def __init__(self, answer: Callable[[str, JsonObject, bool], Reply], stream: Sequence[JsonObject] = ()) -> None:
        self._answer = answer
        self._stream = stream

    async def send(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        declare: bool = True,
        headers: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> Reply:
        return self._answer(method, params or {}, declare)

    async def shake_hands(self) -> Reply:
        return self._answer("initialize", {}, False)

    @asynccontextmanager
    async def listen(self, task_ids: Sequence[str]) -> AsyncGenerator[AsyncIterator[JsonObject]]:
        async def messages() -> AsyncGenerator[JsonObject]:
            for message in self._stream:
                yield message

        yield messages()


def result(value: JsonObject, status: int = 200) -> Reply:
    return Reply(status=status, message={"result": value})


def error(code: int, status: int = 200) -> Reply:
    return Reply(status=status, message={"error": {"code": code, "message": "no"}})


def discovered(**capabilities: Any) -> Reply:
    declared: dict[str, Any] = {"extensions": {EXTENSION_ID: {}}, **capabilities}
    return result({"supportedVersions": ["2026-07-28"], "capabilities": declared})


def verdicts(report: Report) -> dict[tuple[str, str], str]:
    return {(finding.area, finding.probe): finding.verdict for finding in report.findings}


@pytest.mark.anyio
async def test_a_server_of_an_older_draft_is_told_what_to_change() -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "server/discover":
                return discovered(tasks={"list": {}})
            case "tools/list":
                return result({"tools": [{"name": "t", "annotations": {"readOnlyHint": True}, "inputSchema": {}}]})
            case "tools/call":
                return result({"resultType": "task", **TASK, "createdAt": "yesterday", "ttl": 5})
            case "tasks/get" | "tasks/update" | "tasks/cancel" if not declare:
                return error(-32003, 400)
            case "tasks/get" if params.get("taskId") == TASK["taskId"]:
                return result({"resultType": "task", **TASK, "status": "completed", "result": {}})
            case "tasks/cancel" if params.get("taskId") == TASK["taskId"]:
                return result({"resultType": "complete", **TASK})
            case "tasks/update" if params.get("taskId") == TASK["taskId"]:
                return error(-32602, 400)
            case "tasks/result":
                return result({})
            case _:
                return error(-32602)

    pushed = [
        {"method": "notifications/tasks", "params": TASK},
    ]
    found = verdicts(await Checkup(FakeWire(answer, pushed), tool=None, words=()).run())
    assert found["negotiation", "legacy capability"] == "fail"
    assert found["errors", "tasks/get of an unknown task"] == "warn"
    assert found["errors", "tasks/result, which is gone"] == "fail"
    assert found["creation", "shape of the new task"] == "fail"
    assert found["creation", "tasks/get at once"] == "fail"
    assert found["undeclared client", "tasks/get"] == "fail"
    assert found["undeclared client", "call t"] == "fail"
    assert found["headers", "tasks/get with another task in Mcp-Name"] == "fail"
    assert found["lifecycle", "answer that nobody asked for"] == "warn"
    assert found["push", "order"] == "fail"
    assert found["push", "subscription id"] == "warn"
    assert found["cancel", "tasks/cancel"] == "fail"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replies", "says"),
    [
        ({"server/discover": discovered(extensions={})}, "does not declare"),
        (
            {"server/discover": error(-32601, 404), "initialize": result({"protocolVersion": "2025-11-25"})},
            "speaks only",
        ),
        ({"server/discover": Reply(status=401)}, "HTTP 401"),
        ({"server/discover": Reply(status=307, headers={"location": "/mcp/"})}, "redirects clients to /mcp/"),
        ({"server/discover": error(-32601), "initialize": error(-32601)}, "initialize with error"),
        ({}, "cannot be asked"),
    ],
)
async def test_a_server_without_the_extension_is_told_so(replies: Mapping[str, Reply], says: str) -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        if method not in replies:
            raise Silence("no answer")
        return replies[method]

    report = await Checkup(FakeWire(answer), tool=None, words=()).run()
    [fault] = [finding for finding in report.findings if finding.verdict == "fail"]
    assert fault is report.findings[-1]
    assert says in fault.says
    assert fault.advice


@pytest.mark.anyio
async def test_a_server_of_2025_11_25_is_said_to_be_one_and_nothing_of_it_passes() -> None:
    tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    replies = {
        "server/discover": error(-32601, 404),
        "initialize": result({"protocolVersion": "2025-11-25", "capabilities": {"tasks": tasks}}),
    }
    wire = FakeWire(lambda method, params, declare: replies[method])
    report = await Checkup(wire, tool=None, words=()).run()
    finding, *rest = report.findings
    assert finding.verdict == "warn"
    assert {other.verdict for other in rest} == {"skip"}
    assert {other.area for other in rest} >= {"errors", "creation", "cancel", "outcome"}
    assert report.unexamined == "the server speaks only 2025-11-25"
    assert "only 2025-11-25, with the tasks of that version (tools/call, list, cancel)" in finding.says


@pytest.mark.anyio
async def test_a_server_that_answers_directly_has_no_fault_and_the_rest_is_skipped() -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "server/discover":
                return discovered()
            case "tools/list":
                return result({"tools": [{"name": "t", "annotations": {"readOnlyHint": True}}]})
            case "tools/call":
                return result({"content": []})
            case "tasks/result" | "tasks/list" | "subscriptions/listen":
                return error(-32601, 404)
            case _:
                return error(-32602 if declare else -32021, 400)

    report = await Checkup(FakeWire(answer), tool=None, words=()).run()
    assert report.count("fail") == 0
    found = verdicts(report)
    assert found["creation", "call t"] == "skip"
    assert found["push", "all of it"] == "skip"
    assert found["undeclared client", "what is missing"] == "warn"


@pytest.mark.anyio
async def test_a_stream_that_is_acknowledged_for_nothing_is_no_push() -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "server/discover":
                return discovered()
            case "tools/list":
                return result({"tools": [{"name": "t"}]})
            case "tools/call" if declare:
                return result({"resultType": "task", **TASK, "createdAt": datetime.now(UTC).isoformat()})
            case _:
                return result({"resultType": "complete", **TASK, "status": "cancelled"})

    acknowledged: JsonObject = {"method": LISTENING, "params": {"notifications": {}}}
    report = await Checkup(FakeWire(answer, [acknowledged]), tool="t", words=()).run()
    assert verdicts(report)["push", "acknowledgement"] == "skip"


@pytest.mark.parametrize(
    "change",
    [
        {"taskId": 7},
        {"status": "done"},
        {"statusMessage": None},
        {"createdAt": "2026-07-28T12:00:00"},
        {"lastUpdatedAt": "2026-07-28T11:00:00Z"},
        {"ttlMs": 1.5},
        {"pollIntervalMs": "5"},
        {"pollInterval": 5},
        {"status": "completed"},
        {"status": "failed", "error": {"message": "no code"}},
        {"status": "input_required", "inputRequests": {}},
        {"status": "input_required", "inputRequests": {"a": {"params": {}}}},
        {"result": {}},
    ],
)
def test_every_flaw_of_a_task_is_found(change: dict[str, Any]) -> None:
    assert flaws_of_detailed(TASK) == []
    assert any(flaw.is_fault for flaw in flaws_of_detailed({**TASK, **change}))


def test_flaws_of_new_tasks_acknowledgements_ids_and_times_are_found() -> None:
    now = datetime.fromisoformat(NOW)
    assert flaws_of_created({"resultType": "task", **TASK}) == []
    assert flaws_of_created({"task": TASK})[0].is_fault
    assert not flaws_of_created({**TASK, "result": {}})[0].is_fault
    assert flaws_of_created({key: value for key, value in TASK.items() if key != "ttlMs"})
    assert flaws_of_ack({"resultType": "complete", "_meta": {}}) == []
    assert len(flaws_of_ack({"resultType": "task", "taskId": "x"})) == 2
    assert flaw_of_id("0123456789abcdef0123") is None
    assert [flaw_of_id(weak) is None for weak in ("1", "12345678901234567890", "aaaaaaaaaaaaaaaaaaaa")] == [False] * 3
    assert flaws_of_time(TASK, now) == []
    assert len(flaws_of_time({**TASK, "ttlMs": 0, "createdAt": "2020-01-01T00:00:00Z"}, now)) == 2
    completed: JsonObject = {**TASK, "status": "completed", "result": {"content": []}}
    assert [flaw.is_fault for flaw in flaws_of_detailed(completed)] == [False]
