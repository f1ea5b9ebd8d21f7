"""An examination finds the faults of servers, and says them."""

import json
import shlex
import sqlite3
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, JSONRPCRequest

from harness.forking import piped
from harness.rpc import response
from mcp_tasks.cli.doctor import LISTENING, HttpConnection, RawConnection, Reply, Report, Silence, examine, examine_over
from mcp_tasks.errors import InvalidInput, ServerHasFaults
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.protocol.shapes import EXTENSION_ID
from tests.unit.virtual_time import SIMULATED

NOW = "2026-07-28T12:00:00Z"
TASK: JsonObject = {
    "taskId": "0123456789abcdef0123",
    "status": "working",
    "createdAt": NOW,
    "lastUpdatedAt": NOW,
    "ttlMs": None,
}


Answers = Callable[[str, JsonObject, bool], Reply]
"""The answer to a method with its params; and whether the client declared the extension."""


class FakeServer(RawConnection):
    over_http = True

    def __init__(self, answer: Answers, stream: Sequence[JsonObject] = ()) -> None:
        self._answer = answer
        self._stream = stream

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        params = request.params or {}
        declared = object_in(params, "_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", EXTENSION_ID) is not None
        if request.method == "subscriptions/listen" and declared:
            for message in self._stream:
                yield Reply(message=message)
        else:
            yield self._answer(request.method, params, declared)


def result(value: JsonObject, status: int = 200) -> Reply:
    return Reply(status=status, message={"result": value})


def error(code: int, status: int = 200) -> Reply:
    return Reply(status=status, message={"error": {"code": code, "message": "no"}})


def discovered(**capabilities: Any) -> Reply:
    declared: dict[str, Any] = {"extensions": {EXTENSION_ID: {}}, **capabilities}
    return result({"supportedVersions": ["2026-07-28"], "capabilities": declared})


def task(**fields: Any) -> Reply:
    return result({"resultType": "complete", **TASK, **fields})


USUAL: Mapping[str, Reply] = {
    "server/discover": discovered(),
    "tools/list": result({"tools": [{"name": "t", "annotations": {"readOnlyHint": True}, "inputSchema": {}}]}),
    "tools/call": task(resultType="task"),
}


def verdicts(report: Report) -> dict[tuple[str, str], str]:
    return {(finding.area, finding.probe): finding.verdict for finding in report.findings}


def said(report: Report) -> str:
    return "\n".join(f"{finding.verdict}: {finding.says}" for finding in report.findings)


async def test_a_server_of_an_older_draft_is_told_what_to_change() -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "server/discover":
                return discovered(tasks={"list": {}})
            case "tools/call":
                return task(resultType="task", createdAt="yesterday", ttl=5)
            case "tasks/get" | "tasks/update" | "tasks/cancel" if not declare:
                return error(-32003, 400)
            case "tasks/get" if params.get("taskId") == TASK["taskId"]:
                return task(resultType="task", status="completed", result={})
            case "tasks/cancel" if params.get("taskId") == TASK["taskId"]:
                return task()
            case "tasks/update" if params.get("taskId") == TASK["taskId"]:
                return error(-32602, 400)
            case "tasks/result":
                return result({})
            case _:
                return USUAL.get(method, error(-32602))

    found = verdicts(await examine_over(FakeServer(answer, [{"method": "notifications/tasks", "params": TASK}])))
    expected = {
        ("negotiation", "legacy capability"): "fail",
        ("errors", "tasks/get of an unknown task"): "warn",
        ("errors", "tasks/result, which is gone"): "fail",
        ("creation", "shape of the new task"): "fail",
        ("creation", "tasks/get at once"): "fail",
        ("undeclared client", "tasks/get"): "fail",
        ("undeclared client", "call t"): "fail",
        ("headers", "tasks/get with another task in Mcp-Name"): "fail",
        ("lifecycle", "answer that nobody asked for"): "warn",
        ("push", "order"): "fail",
        ("push", "subscription id"): "warn",
        ("cancel", "tasks/cancel"): "fail",
    }
    assert expected.items() <= found.items()


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

    report = await examine_over(FakeServer(answer))
    [fault] = [finding for finding in report.findings if finding.verdict == "fail"]
    assert fault is report.findings[-1]
    assert says in fault.says
    assert fault.advice


async def test_a_server_of_2025_11_25_is_said_to_be_one_and_nothing_of_it_passes() -> None:
    tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    replies = {
        "server/discover": error(-32601, 404),
        "initialize": result({"protocolVersion": "2025-11-25", "capabilities": {"tasks": tasks}}),
    }
    wire = FakeServer(lambda method, params, declare: replies[method])
    report = await examine_over(wire)
    finding, *rest = report.findings
    assert finding.verdict == "warn"
    assert {other.verdict for other in rest} == {"skip"}
    assert {other.area for other in rest} >= {"errors", "creation", "cancel", "outcome"}
    assert report.unexamined == "the server speaks only 2025-11-25"
    assert "only 2025-11-25, with the tasks of that version (tools/call, list, cancel)" in finding.says


async def test_a_server_that_answers_directly_has_no_fault_and_the_rest_is_skipped() -> None:
    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "tools/call":
                return result({"content": []})
            case "tasks/result" | "tasks/list" | "subscriptions/listen":
                return error(-32601, 404)
            case _:
                return USUAL.get(method, error(-32602 if declare else -32021, 400))

    report = await examine_over(FakeServer(answer))
    assert report.count("fail") == 0
    found = verdicts(report)
    assert found["creation", "call t"] == "skip"
    assert found["push", "all of it"] == "skip"
    assert found["undeclared client", "what is missing"] == "warn"


async def test_a_stream_that_is_acknowledged_for_nothing_is_no_push() -> None:
    acknowledged: JsonObject = {"method": LISTENING, "params": {"notifications": {}}}
    answer: Answers = lambda method, params, declare: USUAL.get(method, task(status="cancelled"))  # noqa: E731
    report = await examine_over(FakeServer(answer, [acknowledged]))
    assert verdicts(report)["push", "acknowledgement"] == "skip"


async def test_a_status_that_is_no_text_is_a_fault_and_not_the_end_of_the_examination() -> None:
    statuses: list[Any] = []

    def answer(method: str, params: JsonObject, declare: bool) -> Reply:
        if method == "tools/call":
            # Each new task is polled until it has ended.
            statuses[:] = [{}]
        if method == "tasks/get":
            return task(status=statuses.pop() if statuses else "cancelled", pollIntervalMs=1)
        return USUAL.get(method, result({"resultType": "complete"}))

    report = await examine_over(FakeServer(answer))
    assert "status is {}" in said(report)
    assert verdicts(report)["outcome", "how it ends"] == "pass"


ODD: Sequence[tuple[Any, JsonObject, str]] = [
    ("server/discover", {"supportedVersions": 7}, "answered with a result with HTTP 200, and initialize with"),
    ("tools/list", {"tools": 7}, "tools is 7"),
    ("tools/list", {"tools": [7, {"name": "t"}]}, "7 is no tool"),
    ("tools/list", {"tools": [{"name": {}}, {"name": "t"}]}, "{'name': {}} is no tool"),
    ("tools/call", {"resultType": "task", **TASK, "ttlMs": 10**400}, f"ttlMs is {10**400}"),
    ("tools/call", {"resultType": []}, "resultType is []"),
    (LISTENING, {"notifications": {"taskIds": 7}}, "taskIds is 7"),
    ({"no": "method"}, {}, "{'no': 'method'} came on it"),
]
"""A method, or what stands in its place on a stream; an odd result or params of it; what is said of that."""


@pytest.mark.parametrize(("method", "odd", "says"), ODD)
async def test_whatever_a_server_sends_is_a_fault_and_not_the_end_of_the_examination(
    method: Any, odd: JsonObject, says: str
) -> None:
    def answer(asked: str, params: JsonObject, declare: bool) -> Reply:
        answers = {**USUAL, "initialize": error(-32601), method if isinstance(method, str) else "": result(odd)}
        return answers.get(asked, task(status="cancelled"))

    stream = [{"method": method, "params": odd}, {"method": "notifications/tasks", "params": TASK}]
    assert says in said(await examine_over(FakeServer(answer, stream)))


async def test_an_answer_with_another_id_is_a_fault_over_http() -> None:
    def handle(request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)["id"]
        return httpx2.Response(200, json=response([asked], discovered(extensions={}).message["result"]))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
        report = await examine_over(HttpConnection("http://server/mcp", client))
    assert [(fault.area, fault.probe) for fault in report.failed] == [("negotiation", "extension"), ("answers", "ids")]
    assert "has the id [" in report.failed[-1].says


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, content=b"[" * 100_000, headers={"content-type": "application/json"}),
        httpx2.Response(200, content=b'{"result": "\\ud800"}', headers={"content-type": "application/json"}),
        httpx2.Response(200, content=b"data: NaN\n\n", headers={"content-type": "text/event-stream"}),
        httpx2.Response(200, content=b"7", headers={"content-type": "application/json"}),
    ],
)
async def test_a_body_that_is_no_message_is_said_to_be_none(answer: httpx2.Response) -> None:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: answer)) as client:
        report = await examine_over(HttpConnection("http://server/mcp", client))
    assert "answered with no JSON-RPC message with HTTP 200" in report.failed[0].says


@pytest.mark.parametrize("line", [rb"\xff\xfe", json.dumps(response([1], {})).encode()])
async def test_a_line_of_any_bytes_is_told_of_too(line: bytes) -> None:
    says = f"import sys; sys.stdout.buffer.write(b'{line.decode()}\\n'); sys.stdout.flush(); input()"
    report = await examine(shlex.join([sys.executable, "-c", says]))
    assert "one of them is no JSON-RPC message" in report.failed[-1].says


async def test_a_report_fails_a_test_with_all_that_is_wrong_and_how_to_mend_it() -> None:
    report = await examine_over(FakeServer(lambda method, params, declare: discovered(extensions={})))
    with pytest.raises(ServerHasFaults, match="does not declare") as caught:
        report.raise_for_faults()
    [fault] = caught.value.faults
    assert "negotiation: extension" in fault
    assert report.failed[0].advice in fault
    assert "fail negotiation: extension" in str(report)
    # One that could not be examined passes no test either.
    report = Report()
    report.raise_for_faults()
    report.unexamined = "the server speaks only 2025-11-25"
    with pytest.raises(ServerHasFaults, match="only 2025-11-25"):
        report.raise_for_faults()


async def test_a_server_that_ends_has_the_last_word() -> None:
    report = await examine(shlex.join([sys.executable, "-c", "raise SystemExit('no database')"]))
    assert "the last line on its stderr: no database" in report.failed[0].says


async def test_arguments_may_be_made_from_the_schema_and_an_unknown_tool_is_refused(tmp_path: Path) -> None:
    server, seen = shlex.join(piped("tests.cli.asking_server", "--db", str(tmp_path / "db"))), list[JsonObject]()

    def arguments(schema: JsonObject) -> JsonObject:
        seen.append(schema)
        return {"seconds": 0.0}

    report = await examine(server, tool="slow", arguments=arguments)
    assert report.failed == []
    assert [*seen[0]["properties"]] == ["seconds"]
    assert {finding.area for finding in report if finding.verdict == "skip"} == {"headers"}
    with pytest.raises(InvalidInput, match="nothing"):
        await examine(server, tool="nothing")


async def test_a_question_of_the_call_of_an_undeclared_client_is_not_left_waiting(tmp_path: Path) -> None:
    server = shlex.join(piped("tests.cli.asking_server", "--db", str(tmp_path / "db")))
    report = await examine(server, tool="survey")
    assert verdicts(report)["undeclared client", "call survey"] == "pass"
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        ended = sorted(status for (status,) in db.execute("SELECT status FROM tasks"))
    assert ended == ["cancelled", "cancelled", "completed"]


class Maker:
    """A server that makes a task of every call, and says of it what it is told to; of calls from clients that declare
    nothing, `asks` first."""

    def __init__(self, looked_at: Reply, asks: int = 0, **made: Any) -> None:
        self.made: list[str] = []
        self.cancelled: list[str] = []
        self.dismissed: list[JsonObject] = []
        self._looked_at = looked_at
        self._asks = asks
        self._made = made

    def __call__(self, method: str, params: JsonObject, declare: bool) -> Reply:
        match method:
            case "tools/call" if not declare and self._asks:
                return self._ask(params)
            case "tools/call":
                self.made.append(f"{TASK['taskId']}-{len(self.made)}")
                return task(**{"resultType": "task", "taskId": self.made[-1], **self._made})
            case "tasks/cancel" if declare:
                self.cancelled.append(params["taskId"])
                return result({"resultType": "complete"})
            case _:
                return USUAL.get(method, self._looked_at)

    def _ask(self, params: JsonObject) -> Reply:
        if "inputResponses" in params:
            self.dismissed.append({name: params[name] for name in ("inputResponses", "requestState")})
        if len(self.dismissed) == self._asks:
            return result({"resultType": "complete", "content": []})
        number = len(self.dismissed)
        asked = {f"q{number}": {"method": "elicitation/create", "params": {"message": "?"}}}
        return result({"resultType": "input_required", "inputRequests": asked, "requestState": f"s{number}"})


async def test_a_task_that_an_undeclared_client_was_given_is_cancelled() -> None:
    server = Maker(task(status="cancelled"))
    report = await examine_over(FakeServer(server), tool="t")
    assert verdicts(report)["undeclared client", "call t"] == "fail"
    assert len(server.made) == 3
    assert set(server.made) <= set(server.cancelled)


async def test_all_that_is_asked_of_an_undeclared_client_is_dismissed() -> None:
    server = Maker(task(status="cancelled"), asks=2)
    await examine_over(FakeServer(server), tool="t")
    assert server.dismissed == [
        {"inputResponses": {f"q{number}": {"action": "cancel"}}, "requestState": f"s{number}"} for number in (0, 1)
    ]


@pytest.mark.parametrize("anyio_backend", [SIMULATED])
async def test_a_slow_tool_is_not_called_where_it_could_not_be_cancelled() -> None:
    server = Maker(task())
    report = await examine_over(FakeServer(server), tool="t")
    assert verdicts(report)["outcome", "how it ends"] == "skip"
    assert verdicts(report)["undeclared client", "call t"] == "skip"
    assert len(server.made) == 2
    assert set(server.made) <= set(server.cancelled)


@pytest.mark.parametrize("anyio_backend", [SIMULATED])
@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ({"taskId": 7}, "fail: taskId is missing, or not a string"),
        ({"status": "done"}, "fail: status is 'done'"),
        ({"statusMessage": None}, "fail: statusMessage is not a string"),
        ({"createdAt": "2026-07-28T12:00:00"}, "fail: createdAt has no offset"),
        ({"lastUpdatedAt": "2026-07-28T11:00:00Z"}, "fail: lastUpdatedAt is before createdAt"),
        ({"ttlMs": 1.5}, "fail: ttlMs is 1.5"),
        ({"pollIntervalMs": "5"}, "fail: pollIntervalMs is '5'"),
        ({"pollInterval": 5}, "fail: pollInterval is the 2025-11-25 name"),
        ({"status": "completed"}, "fail: a completed task has no result"),
        ({"status": "completed", "result": {"content": []}}, "warn: the inlined result has no resultType"),
        ({"status": "failed", "error": {"message": "no code"}}, "fail: error is not a JSON-RPC error"),
        ({"status": "input_required", "inputRequests": {}}, "fail: inputRequests is empty"),
        ({"status": "input_required", "inputRequests": {"a": {"params": {}}}}, "fail: inputRequests['a'] is not a"),
        ({"result": {}}, "fail: a working task carries result"),
    ],
)
async def test_every_flaw_of_a_task_is_found(shown: dict[str, Any], says: str) -> None:
    assert says in said(await examine_over(FakeServer(Maker(task(**shown))), tool="t"))
    assert says not in said(await examine_over(FakeServer(Maker(task())), tool="t"))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"task": TASK}, "fail: the task is nested under `task`"),
        ({"result": {}}, "warn: the new task already carries result"),
        ({"ttlMs": 0}, "fail: ttlMs is 0: the task may be gone"),
        ({"createdAt": "2020-01-01T00:00:00Z"}, "s away from this machine's"),
        *(({"taskId": weak}, "looks as if it could be guessed") for weak in ("1", "12345678901234567890", "a" * 20)),
    ],
)
async def test_every_flaw_of_a_new_task_is_found(made: dict[str, Any], says: str) -> None:
    now = datetime.now(UTC).isoformat()
    assert says in said(await examine_over(FakeServer(Maker(task(status="cancelled"), **made)), tool="t"))
    right = FakeServer(Maker(task(status="cancelled"), createdAt=now, lastUpdatedAt=now))
    assert says not in said(await examine_over(right, tool="t"))
