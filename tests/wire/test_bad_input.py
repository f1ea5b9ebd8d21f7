"""Whatever comes in or goes wrong, the caller is told why, and the server goes on serving."""

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.http import HttpWire, http_client, modern_headers, serving
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Reply,
    Tasking,
    accept,
    legacy_request,
    request,
    text_of,
)
from harness.server import QUICK, UNPACED, build
from harness.stdio import StdioWire, stdio_process
from mcp_tasks import Tasks
from mcp_tasks.errors import (
    AnswerRefused,
    KeyRefused,
    LimitExceeded,
    OwnerRequired,
    QuestionTimedOut,
    ReplayMismatch,
    RunStopped,
    StoreCorrupt,
    StoreUnavailable,
    TaskExists,
    TasksError,
    TaskUnreadable,
    UnknownTask,
    UsageError,
    VersionConflict,
)
from tests.unit.running import MeddledStore
from tests.wire.conftest import HttpProcesses

MODERN_HEADERS = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tasks/get")]
LIMIT_EXCEEDED = -32010
FITS = 2**20 - 1024
"""Bytes that the arguments of a call may have, and a few less."""

BODY_LIMIT = 4 * 2**20

UNREADABLE = [
    b"",
    b"tasks, please",
    b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{',
    b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"\xff\xfe"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]
"""Lines that no JSON parser takes."""

NO_REQUEST = [
    b"[]",
    b'"tasks/get"',
    b"null",
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"2.0","id":1,"method":7}',
    b'{"jsonrpc":"2.0","id":{},"method":"tasks/get"}',
    b'{"jsonrpc":"1.0","id":1,"method":"tasks/get"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":[]}',
]
"""JSON that is no JSON-RPC request."""

IDS: list[Any] = [None, 7, True, 10**400, ["a"], "nope", "x" * 2**20, "a\0b", "tâche"]
WRONG: list[tuple[str, Any]] = [
    *((method, {}) for method in ("tasks/get", "tasks/update", "tasks/cancel", "tools/call")),
    *(
        (method, {"taskId": task_id, "inputResponses": {}})
        for method in ("tasks/get", "tasks/update")
        for task_id in IDS
    ),
    *(("tasks/cancel", {"taskId": task_id}) for task_id in IDS),
    ("tasks/get", {"task_id": "a"}),
    *(("tasks/update", {"taskId": "nope", "inputResponses": answers}) for answers in (None, list[Any](), "yes")),
    ("tasks/update", {"taskId": "nope"}),
    *(("tools/call", {"name": "echo", "arguments": arguments}) for arguments in ([1], "1")),
    ("tools/call", {"name": "echo", "arguments": {"value": 1}, "inputResponses": []}),
]
"""Requests that are refused as invalid params on every transport."""

WRONG_META: list[Any] = [
    {},
    {"_meta": None},
    {"_meta": []},
    {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}},
]
"""Envelopes that are none."""


async def _still_serves(client: Tasking) -> None:
    assert text_of((await client.finish("echo", value="alive"))["result"]) == "alive"


@pytest.fixture(scope="module")
async def wire(http_processes: HttpProcesses, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWire]:
    """A way to a server process that keeps its tasks in a file."""
    file = tmp_path_factory.mktemp("bad-input") / "tasks.db"
    async with http_client() as http:
        yield HttpWire(http_processes("--store", f"sqlite:///{file}"), http)


@pytest.fixture(scope="module")
async def pipes() -> AsyncGenerator[StdioWire]:
    """A way to a server process over its pipes, opened in the newer era."""
    async with stdio_process() as opened:
        await _still_serves(Tasking(opened, EVERYTHING))
        yield opened


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    return Tasking(wire, EVERYTHING)


# On both


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_params_and_envelopes_that_do_not_fit_are_invalid_params(
    wire: HttpWire, pipes: StdioWire, way: str
) -> None:
    async def send(message: dict[str, Any], *, named: bool) -> Reply:
        if way == "stdio":
            return await pipes.send(message)
        headers = modern_headers(message) if "name" in message["params"] else MODERN_HEADERS[:1]
        headers = [*headers, *([] if named else [("mcp-method", message["method"])])]
        return await wire.post(json.dumps(message), headers)

    served = Tasking(wire if way == "http" else pipes, EVERYTHING)
    messages = [request(method, params, capabilities=EVERYTHING) for method, params in WRONG]
    messages += [legacy_request("tasks/get", {"taskId": "nope", **params}, "mine") for params in WRONG_META]
    for message in messages:
        reply = await send(message, named="name" in message["params"])
        assert (reply.code, reply.status) == (INVALID_PARAMS, 400 if way == "http" else None), str(message)[:300]
        assert reply.error["message"]
        assert len(json.dumps(reply.message)) < 1000
    await _still_serves(served)


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_ten_thousand_answers_that_nobody_asked_for_are_ignored(
    wire: HttpWire, pipes: StdioWire, way: str
) -> None:
    client = Tasking(wire if way == "http" else pipes, EVERYTHING)
    task_id = await client.create("ask_name")
    asked = await client.until(task_id, "input_required")
    unasked: dict[str, Any] = {f"key-{number}": accept(name="Eve") if number else None for number in range(10_000)}
    assert (await client.update(task_id, **unasked))["resultType"] == "complete"
    assert (await client.get(task_id))["inputRequests"] == asked["inputRequests"]
    await client.update(task_id, **unasked, **{"elicitation-1": accept(name="Ada")})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


# Over HTTP


async def test_http_a_body_that_cannot_be_read_is_a_parse_error_and_one_that_is_no_request_an_invalid_request(
    wire: HttpWire, client: Tasking
) -> None:
    for code, bodies in ((PARSE_ERROR, UNREADABLE), (INVALID_REQUEST, NO_REQUEST)):
        for body in bodies:
            reply = await wire.post(body, MODERN_HEADERS)
            assert (reply.status, reply.code) == (400, code), body[:100]
            assert code == INVALID_REQUEST or reply.message["id"] is None
    await _still_serves(client)


async def test_http_an_id_with_half_a_character_is_an_unknown_task(wire: HttpWire, client: Tasking) -> None:
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        message = request(method, {"taskId": "\ud800", "inputResponses": {"\udfff": None}}, capabilities=EVERYTHING)
        reply = await wire.post(json.dumps(message), [*MODERN_HEADERS[:1], ("mcp-method", method)])
        assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    await _still_serves(client)


async def test_http_a_number_that_is_none_is_taken_or_refused_and_never_sent_on_as_json(
    wire: HttpWire, client: Tasking
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": "@"}}, capabilities=EVERYTHING)
    wrong_id = request("tasks/get", {"taskId": "@"}, capabilities=EVERYTHING)
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "1" * 5000):
        reply = await wire.post(json.dumps(call).replace('"@"', literal), modern_headers(call))
        if "error" in reply.message:
            assert (reply.status, reply.code) == (400, PARSE_ERROR)
        else:
            # `get` reads strictly: a NaN in the answer would fail it.
            await client.until(reply.result["taskId"], "completed")
        assert (await wire.post(json.dumps(wrong_id).replace('"@"', literal), MODERN_HEADERS)).status == 400
    await _still_serves(client)


async def test_http_deep_arguments_that_can_be_read_are_kept_and_given_to_the_tool(
    wire: HttpWire, client: Tasking
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": "@"}}, capabilities=EVERYTHING)
    for depth in (1, 63):
        nested = "[" * depth + "]" * depth
        reply = await wire.post(json.dumps(call).replace('"@"', nested), modern_headers(call))
        assert text_of((await client.until(reply.result["taskId"], "completed"))["result"]) == nested


async def test_http_a_body_over_the_limit_is_too_large_and_one_below_it_is_served(
    wire: HttpWire, client: Tasking
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": ""}}, capabilities=EVERYTHING)
    room = BODY_LIMIT - len(json.dumps(call))
    call["params"]["arguments"]["value"] = "x" * (room + 1)
    assert (await wire.raw_post(json.dumps(call), modern_headers(call))).status_code == 413
    # Below the SDK's limit ours is met, which answers in words.
    call["params"]["arguments"]["value"] = "x" * room
    assert (await wire.post(json.dumps(call), modern_headers(call))).code == LIMIT_EXCEEDED
    assert len(text_of((await client.finish("echo", value="x" * FITS))["result"])) == FITS


# Over stdio


async def test_stdio_a_line_that_is_no_request_does_not_disturb_the_others(pipes: StdioWire) -> None:
    """The SDK answers nothing to a line that it cannot take for a message; what it does answer is an error."""
    before, client = len(pipes.others), Tasking(pipes, EVERYTHING)
    get = json.dumps(request("tasks/get", {"taskId": "@"}, capabilities=EVERYTHING))
    odd = [get.replace('"@"', literal).encode() for literal in ('"\\ud800"', "NaN", "1" * 5000)]
    for line in (*UNREADABLE, *NO_REQUEST, *odd):
        await pipes.write(line)
        await client.ask("tools/list")
    await _still_serves(client)
    assert all("error" in message for message in pipes.others[before:])


async def test_stdio_a_line_of_many_megabytes_is_refused_and_one_of_a_megabyte_served(pipes: StdioWire) -> None:
    client = Tasking(pipes, EVERYTHING)
    # More than HTTP takes.
    large = {"name": "echo", "arguments": {"value": "x" * (BODY_LIMIT * 3 // 2)}}
    assert (await client.ask("tools/call", large)).code == LIMIT_EXCEEDED
    assert len(text_of((await client.finish("echo", value="x" * FITS))["result"])) == FITS


REQUEST_TIMEOUT = -32001
A_MINUTE = QuestionTimedOut.after(timedelta(minutes=1))
# In whole milliseconds, and never too early.
OFTEN = LimitExceeded("creates", "often", retry_after=timedelta(microseconds=1_200))
OFTEN_DATA = {"reason": "limit", "limit": "creates", "retryAfterMs": 2}
DEEP = LimitExceeded("json_depth", "deep")
SLOW = RunStopped("max_runtime", "x", limit=timedelta(seconds=90))
BRIEF = RunStopped("max_runtime", "x", limit=timedelta(milliseconds=20))
UNSAID = StoreUnavailable("/alice/secret.db", may_have_happened=True)

ERRORS: list[tuple[Exception, int, Any, str, str]] = [
    (OwnerRequired("who?"), INVALID_REQUEST, {"reason": "owner_required"}, "who?", "owner_required"),
    (KeyRefused("key_taken"), INVALID_PARAMS, {"reason": "key_taken"}, "key", "key: key_taken"),
    (UnknownTask("task_secret"), INVALID_PARAMS, None, "Task not found", "unknown"),
    (AnswerRefused(-32042, "not today", {"until": "noon"}), -32042, {"until": "noon"}, "not today", "answer"),
    (A_MINUTE, REQUEST_TIMEOUT, None, "60 s", "failed"),
    (DEEP, LIMIT_EXCEEDED, {"reason": "limit", "limit": "json_depth"}, "deep", "limit: json_depth"),
    (OFTEN, LIMIT_EXCEEDED, OFTEN_DATA, "often", "limit: creates"),
    (RunStopped("interrupted", "render"), INTERNAL_ERROR, {"reason": "interrupted"}, "'render'", "failed"),
    (SLOW, INTERNAL_ERROR, {"reason": "max_runtime"}, " 90 s", "failed"),
    (BRIEF, INTERNAL_ERROR, {"reason": "max_runtime"}, " 0.02 s", "failed"),
    (ReplayMismatch("question 2 differs"), INTERNAL_ERROR, {"reason": "replay"}, "question 2 differs", "failed"),
    (StoreUnavailable("/alice/secret.db"), INTERNAL_ERROR, {"reason": "unavailable"}, "try again later", "failed"),
    (UNSAID, INTERNAL_ERROR, {"reason": "may_have_happened"}, "may have been carried out", "failed"),
    (StoreCorrupt("/alice/secret.db is damaged"), INTERNAL_ERROR, None, "", "failed"),
    (TaskExists("task_secret"), INTERNAL_ERROR, None, "", "failed"),
    (VersionConflict("task_secret", 7), INTERNAL_ERROR, None, "", "failed"),
    (TaskUnreadable("task_secret", "/alice/secret.db"), INTERNAL_ERROR, None, "the server's log says", "failed"),
    (UsageError("give every step a name"), INTERNAL_ERROR, None, "give every step a name", "failed"),
    (UsageError("no step \udcff"), INTERNAL_ERROR, None, "no step \ufffd", "failed"),
    (TasksError("something of ours"), INTERNAL_ERROR, None, "something of ours", "failed"),
    (RuntimeError("password=secret"), INTERNAL_ERROR, None, "Internal server error", "failed"),
]


@pytest.mark.parametrize("short_way", [True, False], ids=["the short way", "the SDK's"])
async def test_an_error_says_why_in_words_and_for_programs_and_not_where_tasks_are_kept(
    tmp_path: Path, short_way: bool
) -> None:
    store, audit = MeddledStore(), tmp_path / "audit.jsonl"
    tasks = Tasks(store, settings=QUICK, limits=UNPACED, audit=audit, short_way=short_way)
    async with serving(build(tasks)) as wire:
        client = Tasking(wire)
        task_id = await client.create("echo", value=1)
        await client.until(task_id, "completed")
        for why, code, data, says, _ in ERRORS:
            store.refuse(why, "get", "versions")
            error = (await client.ask("tasks/get", {"taskId": task_id})).error
            assert (error["code"], error.get("data"), says in error["message"]) == (code, data, True), why
            assert not [secret for secret in ("secret", "alice") if secret in error["message"]], why
        store.before.clear()
        undeclared = await client.declaring({}).ask("tasks/get", {"taskId": task_id})
        assert (undeclared.code, (await client.ask("tasks/get", {"taskId": 7})).code) == (-32021, INVALID_PARAMS)
    written = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    reasons = {entry["reason"] for entry in written if entry["event"] == "refused"}
    assert reasons == {*(reason for *_, reason in ERRORS), "undeclared", "malformed"}
