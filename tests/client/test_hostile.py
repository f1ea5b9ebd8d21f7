"""Servers that break the rules: a client may fail, and must not hang, spin, or take anything for a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from harness.rpc import LEGACY, PATIENCE, response
from harness.waiting import eventually
from mcp_tasks.client import Ledger, TasksClient, call_tool, resume_task
from mcp_tasks.client.poller import MOST_UNREADABLE, Patience
from mcp_tasks.errors import InvalidResponse, WaitTimedOut
from tests.client.connecting import LONG, SHORT, Person, begin, connect, text
from tests.client.peer import (
    TASK_ID,
    Answer,
    Frames,
    Peer,
    Raw,
    Refusal,
    asking,
    completed,
    pushed,
    stream_of,
    task,
    working,
)

pytestmark = pytest.mark.anyio


async def wait(url: str, *, limit: float = PATIENCE, patience: Patience = SHORT, **options: Any) -> str:
    """Call a tool of the peer, for a while; gives the text of its result."""
    async with connect(url, person=Person(), patience=patience, **options) as client:
        try:
            with anyio.fail_after(limit):
                return text(await client.call_tool("x", {}))
        except Exception as exc:
            failure = exc
    # Out of the client it would have come wrapped in groups.
    raise failure


# Tasks that nobody asked for


async def test_a_task_for_a_client_that_did_not_declare_the_extension_is_no_result(peer: Peer, peer_url: str) -> None:
    async with Client(peer_url) as client:
        with pytest.raises(ValidationError):
            await client.call_tool("x", {})
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


async def test_a_task_on_the_older_wire_is_no_result(peer: Peer, peer_url: str) -> None:
    capabilities: dict[str, Any] = {"tools": {}}
    info = {"name": "peer", "version": "1"}
    peer.on("initialize", {"protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info})
    async with Client(peer_url, mode="legacy", extensions=[TasksClient()]) as client:
        with pytest.raises(ValidationError):
            await client.call_tool("x", {})
    assert peer.asked("tasks/get") == []


async def test_a_result_of_an_unknown_kind_is_no_result(peer: Peer, peer_url: str) -> None:
    peer.on("tools/call", task(resultType="promise"))
    with pytest.raises(ValidationError):
        await wait(peer_url)


@pytest.mark.parametrize("task_id", [..., None, 5, ["x"], {}])
async def test_a_task_without_an_id_is_no_result(peer: Peer, peer_url: str, task_id: Any) -> None:
    peer.on("tools/call", task(resultType="task", taskId=task_id))
    with pytest.raises((ValidationError, InvalidResponse)):
        await wait(peer_url)
    assert peer.asked("tasks/get") == []


@pytest.mark.parametrize("task_id", ["☃", "a b", "=?base64?eA==?=", "\r\nX-Evil: 1", "x" * 2_000])
async def test_an_odd_id_is_an_id_and_stays_where_it_belongs(peer: Peer, peer_url: str, task_id: str) -> None:
    peer.on("tools/call", task(resultType="task", taskId=task_id))
    peer.on("tasks/get", completed(taskId=task_id))
    assert await wait(peer_url) == "ok"
    assert [params["taskId"] for params in peer.asked("tasks/get")] == [task_id]


# Tasks that are none


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
    ],
)
async def test_a_look_that_shows_no_task_ends_the_wait(peer: Peer, peer_url: str, answer: Mapping[str, Any]) -> None:
    peer.on("tasks/get", answer)
    with pytest.raises(InvalidResponse):
        await wait(peer_url)
    assert len(peer.asked("tasks/get")) == 1


async def test_a_task_that_changes_its_id_is_an_invalid_response(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task(), completed("of another", taskId="another"))
    with pytest.raises(InvalidResponse):
        await wait(peer_url)


async def test_a_task_that_changes_its_id_does_not_make_the_ledger_forget_another(
    peer: Peer, peer_url: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.add("another", server=peer_url, tool="x")
    peer.on("tasks/get", completed(taskId="another"))
    async with connect(peer_url, ledger=ledger) as client:
        with pytest.raises(InvalidResponse):
            await resume_task(client, TASK_ID).status()
    remembered = [entry.task_id for entry in ledger.entries()]
    ledger.close()
    assert remembered == ["another"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(completed(result={}), id="a result without content"),
        pytest.param(completed(result={"content": "text"}), id="content that is no list"),
        pytest.param(completed(result={"content": [{"type": "smell"}]}), id="content of no kind"),
        pytest.param(task("failed", error={"code": "high", "message": "no"}), id="a code that is no number"),
        pytest.param(task(_meta=5), id="meta that is no object"),
    ],
)
async def test_an_outcome_that_is_none_is_an_invalid_response(
    peer: Peer, peer_url: str, answer: Mapping[str, Any]
) -> None:
    peer.on("tasks/get", answer)
    with pytest.raises((InvalidResponse, MCPError)):
        await wait(peer_url)


@pytest.mark.parametrize("error", [{}, {"code": 2**80, "message": ["no"]}, {"message": None, "data": float("1e308")}])
async def test_an_error_that_says_little_is_an_error_nevertheless(
    peer: Peer, peer_url: str, error: Mapping[str, Any]
) -> None:
    peer.on("tasks/get", task("failed", error=error))
    with pytest.raises(MCPError):
        await wait(peer_url)


# Credentials that expire


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_that_are_refused_meanwhile_end_the_wait_at_once(
    peer: Peer, peer_url: str, status: int, tmp_path: Path
) -> None:
    peer.on("tasks/get", task(), Raw(b'{"error": "expired"}', status=status))
    with pytest.raises(MCPError, match=f"refuses the credentials, with HTTP {status}"):
        await wait(peer_url, patience=LONG, ledger=tmp_path / "ledger.db")
    assert len(peer.asked("tasks/get")) == 2


# Clocks that go back


async def test_a_question_is_asked_though_the_clock_of_its_server_has_gone_back(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", working(40), asking("name"), asking("name"), completed("after all"))
    peer.on("tasks/update", {"resultType": "complete"})
    assert await wait(peer_url, patience=LONG) == "after all"
    assert len(peer.asked("tasks/update")) == 1


# Answers that are none


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Raw(b"<html>hello</html>", "text/html"), id="a page"),
        pytest.param(Raw(b"<html>bad gateway</html>", "text/html", 502), id="a gateway's page"),
        pytest.param(Raw(b": ping\r\n\r\n", "text/event-stream"), id="a stream that ends"),
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
        pytest.param(Raw(b"{nope"), id="half an object"),
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


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Raw(b"<html>bad gateway</html>", "text/html", 502), id="a gateway's page"),
        pytest.param(Raw(b"{nope"), id="half an object"),
        pytest.param(Raw(b": ping\r\n\r\n", "text/event-stream"), id="a stream that ends"),
    ],
)
async def test_an_answer_that_was_cut_off_once_does_not_end_the_wait(peer: Peer, peer_url: str, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer, answer, completed("after all"))
    assert await wait(peer_url, patience=LONG) == "after all"


async def test_an_answer_to_another_request_does_not_outlast_the_time_limit(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", Raw(json.dumps(response(424242, {})).encode()))
    async with connect(peer_url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(WaitTimedOut):
            await call_tool(client, "x", timeout=0.2, on_abandon="leave")


# Servers that want to keep a client busy, or waiting


@pytest.mark.parametrize("interval", [0, -1, -(10**18), 1, 0.001, False, "0"])
async def test_a_server_that_wants_to_be_asked_all_the_time_is_asked_at_a_pace(
    peer: Peer, peer_url: str, interval: Any
) -> None:
    peer.on("tasks/get", task(pollIntervalMs=interval))
    async with connect(peer_url, push=False, on_abandon="leave") as client, anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "x")
        await eventually(lambda: peer.asked("tasks/get"))
        # From the first look on, so that a slow start of the call counts for nothing.
        await anyio.sleep(0.5)  # sleep: how often it is asked in this time is what is tested
        group.cancel_scope.cancel()
    assert len(peer.asked("tasks/get")) <= 13


@pytest.mark.parametrize("interval", [10**15, 10**400, 1e300])
async def test_a_server_that_wants_to_be_left_alone_does_not_hold_up_the_time_limit(
    peer: Peer, peer_url: str, interval: float
) -> None:
    peer.on("tasks/get", task(pollIntervalMs=interval))
    async with connect(peer_url, push=False) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE), pytest.raises(WaitTimedOut):
            await handle.result(0.1)


@pytest.mark.parametrize("ttl", [..., None, 0, -5, "long", 10**400])
async def test_a_time_to_live_that_is_odd_or_missing_does_not_matter(peer: Peer, peer_url: str, ttl: Any) -> None:
    peer.on("tools/call", task(resultType="task", ttlMs=ttl))
    peer.on("tasks/get", task(ttlMs=ttl), completed(ttlMs=ttl))
    assert await wait(peer_url) == "ok"


async def test_a_task_that_never_ends_is_waited_for_as_long_as_the_caller_wants(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", *(task(statusMessage=str(number)) for number in range(1_000)))
    peer.on("tasks/cancel", {"resultType": "complete"})
    async with connect(peer_url) as client:
        with pytest.raises(WaitTimedOut):
            await call_tool(client, "x", timeout=0.3, on_abandon="cancel")
    assert len(peer.asked("tasks/cancel")) == 1
    assert len(peer.asked("tasks/get")) <= 10


@pytest.mark.parametrize("push", [True, False], ids=["push", "polls"])
async def test_a_task_that_ends_before_it_was_last_changed_has_ended(peer: Peer, peer_url: str, push: bool) -> None:
    # Two machines of the server, and the clock of one of them is behind.
    ended = completed("ended", lastUpdatedAt="2026-08-01T10:00:00.000Z")
    peer.on("tasks/get", working(30), working(30), ended)
    if push:
        peer.on("subscriptions/listen", Frames(stream_of(pushed(1, working(30), ended))))
    assert await wait(peer_url, limit=2.0) == "ended"


async def test_a_task_that_wants_input_and_does_not_say_which_is_waited_for(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task("input_required", inputRequests={}), completed())
    assert await wait(peer_url) == "ok"


async def test_a_task_with_ever_new_questions_is_answered_at_its_pace(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", *(asking(f"q{number}") for number in range(5)), completed("no more"))
    peer.on("tasks/update", {"resultType": "complete"})
    assert await wait(peer_url) == "no more"
    assert [list(params["inputResponses"]) for params in peer.asked("tasks/update")] == [
        [f"q{number}"] for number in range(5)
    ]


async def test_a_huge_result_comes_through(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", completed("x" * 5_000_000))
    assert len(await wait(peer_url)) == 5_000_000
