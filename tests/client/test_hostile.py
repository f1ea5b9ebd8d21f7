"""Servers that break the rules: a client may fail, and must not hang, spin, or take anything for a result."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, ElicitResult, ErrorData, jsonrpc_message_adapter
from pydantic import ValidationError

from harness.rpc import LEGACY, PATIENCE, response
from harness.waiting import eventually
from mcp_tasks.client import (
    InvalidResponse,
    Ledger,
    Patience,
    Progress,
    TaskFailed,
    TasksClient,
    TaskStatus,
    UnknownTask,
    WaitTimedOut,
    call_tool,
    list_tasks,
    resume_task,
    start_task,
)
from mcp_tasks.client.poller import MOST_UNREADABLE
from mcp_tasks.legacy.shapes import RESULT_INTERRUPTED
from tests.client.connecting import LONG, SHORT, Person, begin, connect, text
from tests.client.peer import (
    EVERYTHING,
    RELATED,
    TASK_ID,
    Answer,
    MemoryPeer,
    Peer,
    Raw,
    Refusal,
    completed,
    connected,
    old_result,
    old_task,
    task,
)
from tests.unit.virtual_time import simulated


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
async def test_a_task_for_a_client_without_the_extension_is_no_result(peer: Peer, client: str) -> None:
    capabilities: dict[str, Any] = {"tools": {}}
    info = {"name": "peer", "version": "1"}
    peer.on("initialize", {"protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info})
    options: dict[str, Any] = {} if client == "no extension" else {"mode": "legacy", "extensions": [TasksClient()]}
    async with Client(peer.url, **options) as undeclared:
        with pytest.raises(ValidationError):
            await undeclared.call_tool("x", {})
    assert peer.asked("tasks/get") == []


@pytest.mark.requirement("client/task-for-another-request")
async def test_a_task_as_the_answer_to_another_request_is_no_result(peer: Peer) -> None:
    for method in ("prompts/get", "resources/read", "tools/list"):
        peer.on(method, task(resultType="task"))
    async with connect(peer.url) as client:
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
async def test_results_of_unknown_kinds_and_tasks_without_ids_are_none(peer: Peer, answer: Answer) -> None:
    peer.on("tools/call", answer)
    with pytest.raises((ValidationError, InvalidResponse)):
        await wait(peer.url)
    assert peer.asked("tasks/get") == []


@pytest.mark.parametrize("task_id", ["☃", "a b", "=?base64?eA==?=", "\r\nX-Evil: 1", "x" * 2_000])
async def test_an_odd_id_is_an_id_and_stays_where_it_belongs(peer: Peer, task_id: str) -> None:
    peer.on("tools/call", task(resultType="task", taskId=task_id))
    peer.on("tasks/get", completed(taskId=task_id))
    assert await wait(peer.url) == "ok"
    assert [params["taskId"] for params in peer.asked("tasks/get")] == [task_id]


# Tasks and outcomes that are none


@pytest.mark.parametrize(
    "answer",
    [
        task("paused"),
        task(lastUpdatedAt="soon"),
        task("completed"),
        task("input_required"),
        {},
        pytest.param(completed(result={}), id="a result without content"),
        pytest.param(completed(result={"content": [{"type": "smell"}]}), id="content of no kind"),
        pytest.param(task("failed", error={"code": "high", "message": "no"}), id="a code that is no number"),
        pytest.param(task("failed", error={"code": 2**80, "message": ["no"]}), id="a message that is no text"),
        pytest.param(task(_meta=5), id="meta that is no object"),
    ],
)
async def test_a_look_that_shows_no_task_or_no_outcome_ends_the_wait(peer: Peer, answer: Answer) -> None:
    peer.on("tasks/get", answer)
    with pytest.raises((InvalidResponse, MCPError)):
        await wait(peer.url)
    assert len(peer.asked("tasks/get")) == 1


async def test_a_task_that_changes_its_id_is_an_invalid_response(peer: Peer, ledger: Ledger) -> None:
    ledger.add("another", server=peer.url, tool="x")
    peer.on("tasks/get", completed(taskId="another"))
    async with connect(peer.url, ledger=ledger) as client:
        with pytest.raises(InvalidResponse):
            await resume_task(client, TASK_ID).status()
    assert [entry.task_id for entry in ledger.entries()] == ["another"]


@pytest.mark.parametrize("ttl", [..., None, 0, -5, "long", 10**400])
async def test_odd_times_to_live_and_missing_questions_do_not_matter(peer: Peer, ttl: Any) -> None:
    peer.on("tools/call", task(resultType="task", ttlMs=ttl))
    peer.on("tasks/get", task(ttlMs=ttl), task("input_required", inputRequests={}), completed(ttlMs=ttl))
    assert await wait(peer.url) == "ok"


# Answers that are none


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_that_are_refused_meanwhile_end_the_wait(peer: Peer, status: int, ledger: Ledger) -> None:
    peer.on("tasks/get", task(), Raw(b'{"error": "expired"}', status=status))
    with pytest.raises(MCPError, match=f"refuses the credentials, with HTTP {status}"):
        await wait(peer.url, patience=LONG, ledger=ledger)
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
        pytest.param(Raw(b"", status=500), id="broken"),
        pytest.param(Refusal(-32601, "Method not found", status=404), id="no such method"),
    ],
)
async def test_answers_that_are_none_end_the_wait_sooner_or_later(peer: Peer, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer)
    with pytest.raises(MCPError):
        await wait(peer.url)
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
async def test_unreadable_answers_end_the_wait_long_before_an_outage(peer: Peer, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer)
    with pytest.raises(InvalidResponse, match="cannot be read"):
        await wait(peer.url, patience=LONG)
    assert len(peer.asked("tasks/get")) == 1 + MOST_UNREADABLE


@pytest.mark.parametrize("answer", [PAGE, ENDS, HALF])
async def test_an_answer_that_was_cut_off_once_does_not_end_the_wait(peer: Peer, answer: Answer) -> None:
    peer.on("tasks/get", task(), answer, answer, completed("after all"))
    assert await wait(peer.url, patience=LONG) == "after all"


async def test_an_answer_to_another_request_does_not_outlast_the_time_limit(peer: Peer) -> None:
    peer.on("tasks/get", Raw(json.dumps(response(424242, {})).encode()))
    async with connect(peer.url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(WaitTimedOut):
            await call_tool(client, "x", timeout=0.2, on_abandon="leave")


def unread(line: str) -> Exception:
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


# Servers of 2025-11-25 that do as they like: slow, forgetful, wrong, hostile, or just unlike ours


FORM: dict[str, Any] = {
    "mode": "form",
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {}},
}


def showing(*states: Any, results: Sequence[Any] = (None,)) -> MemoryPeer:
    """A server whose task is in these states, one for each look, and that answers `tasks/result` like this."""
    peer = MemoryPeer()
    peer.on("tasks/get", *states)
    peer.on("tasks/result", *results)
    return peer


# What is asked of a server


async def test_an_older_version_has_no_tasks_whatever_the_server_declares() -> None:
    peer = MemoryPeer(EVERYTHING, version="2025-06-18")
    peer.on("tools/call", old_result("plain"))
    async with connected(peer) as client:
        assert text(await client.call_tool("x")) == "plain"


async def test_tools_are_found_on_later_pages_and_a_list_that_never_ends_is_given_up() -> None:
    peer = showing(old_task("completed"), results=[old_result()])
    tool = {"name": "x", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    peer.on(
        "tools/list",
        {"tools": [], "nextCursor": "2"},
        {"tools": [tool], "nextCursor": "3"},
        {"tools": [], "nextCursor": "3"},
    )
    async with connected(peer) as client:
        with anyio.fail_after(PATIENCE):
            handle = await begin(client, "x")
            assert text(await handle.result()) == "done"
    assert {"cursor": "2"} in peer.asked("tools/list")


async def test_a_tool_that_takes_no_tasks_any_more_is_called_plainly() -> None:
    peer = MemoryPeer()
    async with connected(peer) as client:
        await client.list_tools()
        peer.offer(x="forbidden")
        peer.on("tools/call", Refusal(-32601, "not as a task"), old_result("plain"))
        assert text(await call_tool(client, "x")) == "plain"


async def test_a_call_that_is_given_up_before_it_has_a_task_cancels_the_task() -> None:
    peer = MemoryPeer()
    created = asyncio.Event()

    async def create(params: Mapping[str, Any]) -> Answer:
        await created.wait()
        return {"task": old_task()}

    peer.on("tools/call", create)
    peer.on("tasks/cancel", old_task("cancelled"))
    async with connected(peer) as client:
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: peer.asked("tools/call"))
        calling.cancel()
        created.set()
        await eventually(lambda: peer.asked("tasks/cancel"))
    # 2025-11-25: a call that asked for a task MUST NOT be cancelled with a notification.
    assert not peer.asked("notifications/cancelled")


# Waiting


NOT_FOUND = Refusal(-32602, "Task not found")
STUMBLED = Refusal(-32602, "Invalid request parameters", data="")
CUT = Refusal(CONNECTION_CLOSED, "SSE stream ended without a response")
STOPPING = Refusal(RESULT_INTERRUPTED, "The server is stopping", data={"reason": "server_stopping"})
NOT_FINISHED = Refusal(-32602, "Task is not finished")
BAD_ARGUMENTS = Refusal(-32602, "Invalid arguments", data={"field": "a"})
WORKING, COMPLETED, FAILED = old_task(), old_task("completed"), old_task("failed", statusMessage="no such table")


@pytest.mark.parametrize(
    ("states", "results", "expected"),
    [
        pytest.param([WORKING] * 3 + [COMPLETED], [CUT, CUT, old_result()], "done", id="cut off"),
        # Forgotten as soon as it has ended: only what `tasks/result` gave tells how.
        pytest.param([WORKING, NOT_FOUND], [STOPPING, old_result()], "done", id="cannot wait any longer"),
        pytest.param([WORKING] * 3 + [COMPLETED], [NOT_FINISHED] * 2 + [old_result()], "done", id="refuses to wait"),
        pytest.param([WORKING, STUMBLED, COMPLETED], [STUMBLED] * 2 + [old_result()], "done", id="stumbles"),
        pytest.param([FAILED], [BAD_ARGUMENTS], (-32602, "Invalid arguments", {"field": "a"}), id="the tool's error"),
        pytest.param([FAILED], [{"_meta": RELATED}], (-32603, "no such table", None), id="no result"),
        *(
            pytest.param([FAILED], [Refusal(code, words)], (code, words, None), id=f"{words} {code}")
            for code in (-32000, -32001)
            for words in ("the database went away", "Connection closed")
        ),
        *(
            pytest.param(
                [FAILED],
                [Refusal(-5, "no", data={"mcp-tasks/data": data, "_meta": RELATED})],
                (-5, "no", data),
                id=f"{data!r}",
            )
            for data in (["no"], "no", 7, True)
        ),
        pytest.param([COMPLETED], [Refusal(-32602, "Task has expired")], UnknownTask, id="expired"),
        pytest.param([WORKING, NOT_FOUND], [Refusal(-32601, "Method not found")], UnknownTask, id="shows no result"),
    ],
)
async def test_the_result_is_what_the_server_says_last(
    states: list[Answer], results: list[Answer], expected: Any
) -> None:
    async with connected(showing(*states, results=results), patience=LONG) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE):
            if isinstance(expected, str):
                assert text(await handle.result()) == expected
                return
            with pytest.raises((TaskFailed, UnknownTask)) as caught:
                await handle.result()
    if isinstance(expected, tuple):
        assert isinstance(caught.value, TaskFailed)
        assert (caught.value.code, caught.value.message, caught.value.data) == expected
    else:
        assert isinstance(caught.value, expected)


async def test_whoever_watched_and_then_waits_keeps_one_request_for_the_result() -> None:
    ended = asyncio.Event()

    async def wait(params: Mapping[str, Any]) -> Answer:
        await ended.wait()
        peer.on("tasks/get", old_task("completed"))
        return old_result()

    peer = showing(old_task(), results=[wait])
    async with connected(peer) as client:
        handle = await begin(client, "x")
        async with aclosing(handle.watch()) as states:
            await anext(states)
        await eventually(lambda: peer.asked("tasks/result"))
        waiting = asyncio.create_task(handle.result())
        ended.set()
        with anyio.fail_after(PATIENCE):
            assert text(await waiting) == "done"
    assert len(peer.asked("tasks/result")) == 1
    assert not peer.asked("notifications/cancelled")


async def test_a_server_that_only_ever_stumbles_does_not_know_the_task_and_the_error_names_sessions() -> None:
    async with connected(showing(STUMBLED)) as client:
        with pytest.raises(UnknownTask, match="only for the session that made it"):
            await (await begin(client, "x")).status()


async def test_a_watch_shows_a_state_once_however_often_its_expiry_moves() -> None:
    renewed = [old_task(ttl=1000 * n, pollInterval=20 + n, lastUpdatedAt=f"2025-11-25T10:40:0{n}Z") for n in range(9)]
    async with connected(showing(*renewed, COMPLETED, results=[None, old_result()])) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE):
            states = [snapshot.status async for snapshot in handle.watch()]
    assert states == [TaskStatus.WORKING, TaskStatus.COMPLETED]


async def test_a_question_that_never_comes_holds_its_state_back_for_a_moment_only() -> None:
    async with connected(showing(old_task("input_required"))) as client:
        handle = resume_task(client, TASK_ID)
        async with aclosing(handle.watch()) as states:
            with anyio.fail_after(PATIENCE):
                first = await anext(states)
    assert (first.status, first.input_requests) == (TaskStatus.INPUT_REQUIRED, {})


TOO_LARGE = Refusal(CONNECTION_CLOSED, "SSE stream failed: Server-sent event exceeded the 1048576 byte limit.")


async def test_a_result_that_the_transport_refuses_for_its_size_ends_the_wait_and_not_the_look(tmp_path: Path) -> None:
    peer = showing(COMPLETED, results=[TOO_LARGE])
    tasks = {"patience": LONG, "ledger": tmp_path / "ledger.db"}
    async with connected(peer, **tasks) as client:
        handle = await begin(client, "x")
        snapshot = await handle.status()
        assert (snapshot.status, snapshot.result) == (TaskStatus.COMPLETED, None)
        with anyio.fail_after(PATIENCE / 2), pytest.raises(MCPError, match="byte limit"):
            await handle.result()
        # Whoever comes back over a transport that takes more gets it.
        peer.on("tasks/result", old_result())
        with closing(Ledger(tmp_path / "ledger.db")) as ledger:
            assert [entry.task_id for entry in ledger.pending(server="peer")] == [TASK_ID]
        assert text(await handle.result(PATIENCE)) == "done"


@pytest.mark.parametrize("outcome", [old_result(), {**old_result(), "isError": True}, Refusal(-32050, "out of paper")])
async def test_a_result_that_came_counts_though_the_server_has_forgotten_the_task(outcome: Any) -> None:
    async def late(params: Mapping[str, Any]) -> Answer:
        await anyio.sleep(0.05)  # sleep: the client looks at the task meanwhile
        return outcome

    async with connected(showing(NOT_FOUND, results=[late, NOT_FOUND])) as client:
        handle = await begin(client, "x")
        if isinstance(outcome, Refusal):
            with pytest.raises(TaskFailed, match="out of paper"):
                await handle.result(PATIENCE)
        else:
            assert (await handle.result(PATIENCE)).is_error == outcome["isError"]


@simulated
async def test_a_server_that_never_answers_is_given_up_when_the_time_is_over_and_the_task_is_not() -> None:
    peer = showing(None)
    async with connected(peer, on_abandon="leave", patience=SHORT) as client:
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("x", read_timeout_seconds=2)
        with pytest.raises(TimeoutError):
            await (await begin(client, "x")).result(0.1)
        assert not peer.asked("tasks/cancel")


@pytest.mark.parametrize("said", [{}, old_task("sleeping"), old_task(taskId=7), old_task(taskId="another-task")])
async def test_something_that_is_not_the_task_is_an_invalid_response(said: Mapping[str, Any]) -> None:
    async with connected(showing(said)) as client:
        with pytest.raises(InvalidResponse):
            await resume_task(client, TASK_ID).status()


NO_TASKS: list[tuple[str, Any]] = [
    *(("tools/call", {"task": said}) for said in (None, {}, old_task("sleeping"), [old_task()])),
    *(("tasks/list", {"tasks": said}) for said in (None, "all", [7], [{"taskId": "t"}])),
]


@pytest.mark.parametrize(("method", "said"), NO_TASKS)
async def test_an_answer_without_the_task_in_it_is_an_invalid_response(method: str, said: Mapping[str, Any]) -> None:
    peer = MemoryPeer()
    peer.on(method, said)
    async with connected(peer) as client:
        with pytest.raises(InvalidResponse):
            await (anext(aiter(list_tasks(client))) if method == "tasks/list" else start_task(client, "x"))
        if method == "tools/call":
            with pytest.raises(MCPError, match="not a valid task"):
                await client.call_tool("x")


async def test_instants_without_an_offset_are_utc() -> None:
    naive = old_task(createdAt="2025-11-25T10:30:00", lastUpdatedAt="2025-11-25T10:40:00")
    async with connected(showing(naive)) as client:
        snapshot = await resume_task(client, TASK_ID).status()
    assert snapshot.created_at.isoformat() == "2025-11-25T10:30:00+00:00"


# What a server sends by itself


async def test_progress_that_comes_before_the_task_and_with_it_reaches_whoever_waits() -> None:
    peer = showing(old_task(pollInterval=60_000), COMPLETED, results=[None, old_result()])
    reported: list[Progress] = []

    async def report(progress: Progress) -> None:
        reported.append(progress)

    async def create(params: Mapping[str, Any]) -> Answer:
        token = params["_meta"]["progressToken"]
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 1, "total": 3})
        return {"task": old_task()}

    peer.on("tools/call", create)
    async with connected(peer, on_progress=report) as client:
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: reported)
        token = peer.asked("tools/call")[0]["_meta"]["progressToken"]
        odds: list[dict[str, Any]] = [
            {"progressToken": token},
            {"progressToken": token, "progress": "much"},
            {"progressToken": []},
        ]
        for odd in odds:
            await peer.tell("notifications/progress", odd)
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 2, "total": 3, "message": "m"})
        await eventually(lambda: len(reported) == 2)
        await peer.tell("notifications/tasks/status", old_task("completed"))
        await calling
    assert reported == [Progress(progress=1, total=3), Progress(progress=2, total=3, message="m")]


@pytest.mark.parametrize("token", [[], {}, None, 1.5])
async def test_a_progress_token_that_is_none_is_passed_over(token: Any, caplog: pytest.LogCaptureFixture) -> None:
    peer = showing(COMPLETED, results=[old_result()])

    async def tell(params: Mapping[str, Any]) -> Answer:
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 0.5, "_meta": dict(RELATED)})
        return {"task": old_task()}

    peer.on("tools/call", tell)
    async with connected(peer) as client:
        assert text(await (await begin(client, "x")).result(PATIENCE)) == "done"
    assert "could not be handled" not in caplog.text


async def test_a_question_that_comes_before_its_task_waits_for_whoever_started_it() -> None:
    peer, person = showing(old_task("input_required")), Person()

    async def create(params: Mapping[str, Any]) -> Answer:
        await peer.send("elicitation/create", {**FORM, "_meta": RELATED}, "early")
        return {"task": old_task()}

    peer.on("tools/call", create)
    async with connected(peer, person=person) as client:
        handle = await begin(client, "x")
        snapshot = await handle.status()
        assert (len(snapshot.input_requests), person.asked) == (1, [])
        [key] = snapshot.input_requests
        await handle.answer({key: {"action": "decline"}})
        await eventually(lambda: peer.replies)
    assert person.asked == []


async def test_a_question_of_nobodys_task_is_the_sessions_as_ever() -> None:
    peer, person = MemoryPeer(), Person()
    async with connected(peer, person=person):
        await peer.send("elicitation/create", {**FORM, "_meta": RELATED})
        await peer.send("elicitation/create", FORM, 2)
        await eventually(lambda: len(peer.replies) == 2)
    assert len(person.asked) == 2


async def test_no_more_than_some_questions_of_a_task_are_kept() -> None:
    peer = showing(old_task("input_required"))
    async with connected(peer, person=Person()) as client:
        handle = await begin(client, "x")
        for number in range(150):
            await peer.send("elicitation/create", {**FORM, "_meta": RELATED}, number)
        # What is beyond that is answered like any other request.
        await eventually(lambda: len(peer.replies) == 50)
        assert len((await handle.status()).input_requests) == 100


async def test_a_connection_that_ends_ends_the_wait_with_it() -> None:
    peer = showing(old_task())
    async with connected(peer, patience=LONG) as client:
        handle = await begin(client, "x")
        waiting = asyncio.create_task(handle.result())
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: len(peer.asked("tools/call")) == 2 and peer.asked("tasks/result"))
        await peer.hang_up()
        for work in (waiting, calling):
            with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="Connection closed"):
                await work


@pytest.mark.parametrize("callback", ["none", "refuses", "raises", "unsendable"])
async def test_a_question_that_no_callback_answers_gets_an_error_that_names_the_task(callback: str) -> None:
    answered = asyncio.Event()

    async def ask(params: Mapping[str, Any]) -> Answer:
        await peer.send("elicitation/create", {**FORM, "_meta": dict(RELATED)}, request_id=7)
        await answered.wait()
        peer.on("tasks/get", old_task("completed"))
        return old_result("went on")

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult | ErrorData:
        match callback:
            case "refuses":
                return ErrorData(code=-5, message="not today", data={"why": "holiday"})
            case "raises":
                raise ValueError("not today")
            case _:
                return ElicitResult(action="accept", content={"name": "\ud800"})

    peer = showing(old_task(), results=[ask])
    async with connected(peer, person=None if callback == "none" else person) as client:
        with anyio.fail_after(PATIENCE):
            calling = asyncio.create_task(call_tool(client, "x"))
            await eventually(lambda: peer.replies)
            answered.set()
            assert text(await calling) == "went on"
    [reply] = peer.replies
    assert (reply["id"], reply["error"]["data"]["_meta"]) == (7, RELATED)
    if callback == "refuses":
        error = reply["error"]
        assert (error["code"], error["message"], error["data"]["why"]) == (-5, "not today", "holiday")


@pytest.mark.requirement("older-client/immediate-response")
@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"io.modelcontextprotocol/model-immediate-response": "Rendering has begun."}, "Rendering has begun."),
        ({"io.modelcontextprotocol/model-immediate-response": 7}, None),
        ({}, None),
        ("odd", None),
        (None, None),
    ],
)
async def test_the_immediate_response_that_comes_with_a_task_is_on_its_handle(meta: Any, expected: str | None) -> None:
    peer = showing(COMPLETED, results=[old_result()])
    peer.on("tools/call", {"task": old_task(), **({} if meta is None else {"_meta": meta})})
    async with connected(peer) as client:
        handle = await begin(client, "x")
        assert handle.immediate_response == expected
        assert text(await handle.result(PATIENCE)) == "done"
        assert handle.immediate_response == expected


@pytest.mark.requirement("older-client/related-task-on-answers")
@pytest.mark.parametrize("asks_for", ["another's task", "a task of its own"])
@pytest.mark.parametrize("data", [..., None, {"why": "no"}, ["no"], "no"], ids=repr)
async def test_an_answer_of_the_session_names_the_task_that_its_question_names(data: Any, asks_for: str) -> None:
    peer = MemoryPeer()
    related = {"io.modelcontextprotocol/related-task": {"taskId": "somebody-elses"}}
    augmented: dict[str, Any] = {"task": {}} if asks_for == "a task of its own" else {}

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult | ErrorData:
        if data is ...:
            return ElicitResult(action="decline", _meta={"own": 1})
        return ErrorData(code=-5, message="not today", data=data)

    async with connected(peer, person=person) as client:
        await client.list_tools()
        await peer.send("elicitation/create", {**FORM, **augmented, "_meta": related}, request_id="q")
        await eventually(lambda: peer.replies)
        await peer.send("elicitation/create", FORM, request_id="q")
        await eventually(lambda: len(peer.replies) == 2)
    named, plain = peer.replies
    if data is ...:
        assert named["result"] == {"action": "decline", "_meta": {"own": 1, **related}}
        assert plain["result"] == {"action": "decline", "_meta": {"own": 1}}
    else:
        assert named["error"]["data"].pop("_meta") == related
        assert named["error"]["data"] == (data or {} if data in (None, {"why": "no"}) else {"mcp-tasks/data": data})
        assert plain["error"].get("data") == data
