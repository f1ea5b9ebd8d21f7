"""Servers that break the rules: a client may fail, and must not hang, spin, or take anything for a result."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from harness.rpc import LEGACY, PATIENCE, response
from mcp_tasks.client import InvalidResponse, Ledger, Patience, TasksClient, WaitTimedOut, call_tool, resume_task
from mcp_tasks.client.poller import MOST_UNREADABLE
from tests.client.connecting import LONG, SHORT, connect, text
from tests.client.peer import (
    TASK_ID,
    Answer,
    MemoryPeer,
    Peer,
    Raw,
    Refusal,
    completed,
    connected,
    old_result,
    task,
)

pytestmark = pytest.mark.anyio


async def wait(url: str, *, patience: Patience = SHORT, **options: Any) -> str:
    async with connect(url, patience=patience, **options) as client:
        try:
            with anyio.fail_after(PATIENCE):
                return text(await client.call_tool("x", {}))
        except Exception as exc:
            failure = exc
    # Out of the client it would have come wrapped in groups.
    raise failure


# Tasks that nobody asked for


@pytest.mark.parametrize("client", ["no extension", "the older wire"])
async def test_a_task_for_a_client_that_did_not_declare_the_extension_is_no_result(
    peer: Peer, peer_url: str, client: str
) -> None:
    capabilities: dict[str, Any] = {"tools": {}}
    info = {"name": "peer", "version": "1"}
    peer.on("initialize", {"protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info})
    options: dict[str, Any] = {} if client == "no extension" else {"mode": "legacy", "extensions": [TasksClient()]}
    async with Client(peer_url, **options) as undeclared:
        with pytest.raises(ValidationError):
            await undeclared.call_tool("x", {})
    assert peer.asked("tasks/get") == []


@pytest.mark.requirement("client/task-for-another-request")
async def test_a_task_as_the_answer_to_another_request_is_no_result(peer: Peer, peer_url: str) -> None:
    for method in ("prompts/get", "resources/read", "tools/list"):
        peer.on(method, task(resultType="task"))
    async with connect(peer_url) as client:
        with pytest.raises(ValidationError):
            await client.get_prompt("x")
        with pytest.raises(ValidationError):
            await client.read_resource("memo://x")
        with pytest.raises(ValidationError):
            await client.list_tools()
    assert peer.asked("tasks/get") == []


@pytest.mark.parametrize(
    "answer",
    [task(resultType="promise"), *(task(resultType="task", taskId=task_id) for task_id in (..., None, 5, ["x"]))],
)
async def test_a_result_of_an_unknown_kind_and_a_task_without_an_id_are_none(
    peer: Peer, peer_url: str, answer: Answer
) -> None:
    peer.on("tools/call", answer)
    with pytest.raises((ValidationError, InvalidResponse)):
        await wait(peer_url)
    assert peer.asked("tasks/get") == []


@pytest.mark.parametrize("task_id", ["☃", "a b", "=?base64?eA==?=", "\r\nX-Evil: 1", "x" * 2_000])
async def test_an_odd_id_is_an_id_and_stays_where_it_belongs(peer: Peer, peer_url: str, task_id: str) -> None:
    peer.on("tools/call", task(resultType="task", taskId=task_id))
    peer.on("tasks/get", completed(taskId=task_id))
    assert await wait(peer_url) == "ok"
    assert [params["taskId"] for params in peer.asked("tasks/get")] == [task_id]


# Tasks and outcomes that are none


@pytest.mark.parametrize(
    "answer",
    [
        task("paused"),
        task(...),
        task(createdAt=...),
        task(lastUpdatedAt="soon"),
        task("completed"),
        task("completed", result=[]),
        task("failed", error="no"),
        task("input_required"),
        {},
        {"resultType": "complete"},
        pytest.param(completed(result={}), id="a result without content"),
        pytest.param(completed(result={"content": "text"}), id="content that is no list"),
        pytest.param(completed(result={"content": [{"type": "smell"}]}), id="content of no kind"),
        pytest.param(task("failed", error={"code": "high", "message": "no"}), id="a code that is no number"),
        pytest.param(task("failed", error={"code": 2**80, "message": ["no"]}), id="a message that is no text"),
        pytest.param(task("failed", error={"message": None, "data": 1e308}), id="no code"),
        pytest.param(task("failed", error={}), id="an error of no kind"),
        pytest.param(task(_meta=5), id="meta that is no object"),
    ],
)
async def test_a_look_that_shows_no_task_or_no_outcome_ends_the_wait(peer: Peer, peer_url: str, answer: Answer) -> None:
    peer.on("tasks/get", answer)
    with pytest.raises((InvalidResponse, MCPError)):
        await wait(peer_url)
    assert len(peer.asked("tasks/get")) == 1


async def test_a_task_that_changes_its_id_is_an_invalid_response_and_the_ledger_forgets_no_other(
    peer: Peer, peer_url: str, ledger: Ledger
) -> None:
    ledger.add("another", server=peer_url, tool="x")
    peer.on("tasks/get", completed(taskId="another"))
    async with connect(peer_url, ledger=ledger) as client:
        with pytest.raises(InvalidResponse):
            await resume_task(client, TASK_ID).status()
    assert [entry.task_id for entry in ledger.entries()] == ["another"]


@pytest.mark.parametrize("ttl", [..., None, 0, -5, "long", 10**400])
async def test_a_time_to_live_that_is_odd_and_questions_that_are_missing_do_not_matter(
    peer: Peer, peer_url: str, ttl: Any
) -> None:
    peer.on("tools/call", task(resultType="task", ttlMs=ttl))
    peer.on("tasks/get", task(ttlMs=ttl), task("input_required", inputRequests={}), completed(ttlMs=ttl))
    assert await wait(peer_url) == "ok"


# Answers that are none


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_that_are_refused_meanwhile_end_the_wait_at_once(
    peer: Peer, peer_url: str, status: int, ledger: Ledger
) -> None:
    peer.on("tasks/get", task(), Raw(b'{"error": "expired"}', status=status))
    with pytest.raises(MCPError, match=f"refuses the credentials, with HTTP {status}"):
        await wait(peer_url, patience=LONG, ledger=ledger)
    assert len(peer.asked("tasks/get")) == 2


PAGE = pytest.param(Raw(b"<html>bad gateway</html>", "text/html", 502), id="a gateway's page")
ENDS = pytest.param(Raw(b": ping\r\n\r\n", "text/event-stream"), id="a stream that ends")
HALF = pytest.param(Raw(b"{nope"), id="half an object")


@pytest.mark.parametrize(
    "answer",
    [
        PAGE,
        ENDS,
        pytest.param(Raw(b"<html>hello</html>", "text/html"), id="a page"),
        pytest.param(Raw(b"", status=202), id="accepted"),
        pytest.param(Raw(b"", status=401), id="unauthorized"),
        pytest.param(Raw(b"", status=500), id="broken"),
        pytest.param(Refusal(-32601, "Method not found", status=404), id="no such method"),
        pytest.param(Refusal(-32021, "Missing capability", status=400), id="missing capability"),
        pytest.param(Refusal(0, ""), id="an error of no kind"),
    ],
)
async def test_answers_that_are_none_end_the_wait_sooner_or_later(peer: Peer, peer_url: str, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer)
    with pytest.raises(MCPError):
        await wait(peer_url)
    assert len(peer.asked("tasks/get")) <= 30


@pytest.mark.parametrize(
    "answer",
    [
        HALF,
        pytest.param(Raw(b""), id="nothing"),
        pytest.param(Raw(b"[]"), id="a list"),
        pytest.param(Raw(b"\xff\xfe\x00"), id="no text"),
        pytest.param(Raw(b"data: {nope\r\n\r\n", "text/event-stream"), id="half an event"),
        pytest.param(Raw(json.dumps(response(1, {"x": "\ud800"})).encode()), id="half a character"),
    ],
)
async def test_answers_that_cannot_be_read_end_the_wait_long_before_an_outage(
    peer: Peer, peer_url: str, answer: Answer
) -> None:
    peer.on("tasks/get", task(), answer)
    with pytest.raises(InvalidResponse, match="cannot be read"):
        await wait(peer_url, patience=LONG)
    assert len(peer.asked("tasks/get")) == 1 + MOST_UNREADABLE


@pytest.mark.parametrize("answer", [PAGE, ENDS, HALF])
async def test_an_answer_that_was_cut_off_once_does_not_end_the_wait(peer: Peer, peer_url: str, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer, answer, completed("after all"))
    assert await wait(peer_url, patience=LONG) == "after all"


async def test_an_answer_to_another_request_does_not_outlast_the_time_limit(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", Raw(json.dumps(response(424242, {})).encode()))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(WaitTimedOut):
            await call_tool(client, "x", timeout=0.2, on_abandon="leave")


def unread(line: str) -> Exception:
    """What the SDK's transports make of a line that is no message."""
    with pytest.raises(ValidationError) as failed:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    return failed.value


@pytest.mark.parametrize("result", ['{"text": "\\ud800"}', "[]"])
@pytest.mark.parametrize("asked", ["by the session", "by us"])
async def test_a_line_that_answers_and_cannot_be_read_is_an_error_for_who_asked(result: str, asked: str) -> None:
    peer = MemoryPeer()

    async def spoilt(params: object) -> Answer:
        request_id = json.dumps(peer.requests[-1]["id"])
        return await peer.write(unread(f'{{"jsonrpc": "2.0", "id": {request_id}, "result": {result}}}'))

    peer.on("prompts/list", spoilt)
    peer.on("tasks/get", spoilt)
    async with connected(peer) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="no JSON-RPC message"):
            await (client.list_prompts() if asked == "by the session" else resume_task(client, TASK_ID).status())


@pytest.mark.parametrize(
    "line", ["hello", '{"id": 7, "resu', '{"id": 7, "method": 8}', '{"id": {}, "result": {}}', "[" * 100_000, '"x"']
)
async def test_a_line_that_answers_nobody_changes_nothing(line: str) -> None:
    peer = MemoryPeer()

    async def late(params: object) -> Answer:
        await peer.write(unread(line))
        return old_result("after all")

    peer.on("tools/call", late)
    async with connected(peer) as client:
        assert text(await client.call_tool("x")) == "after all"
