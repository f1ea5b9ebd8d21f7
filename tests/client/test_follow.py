"""Calls and tasks that are followed to their ends, by somebody who is told and can be asked, and how they stand."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.http import serving
from harness.rpc import MODERN, PATIENCE
from harness.server import CUSTOM_ERROR, Desk
from mcp_tasks.cli.follow import (
    Event,
    Followed,
    Follower,
    Watcher,
    ask_through_the_task,
    open_questions,
    still_asked,
)
from mcp_tasks.cli.questions import Question
from mcp_tasks.cli.servers import ServerTasks, connect
from mcp_tasks.client import Ledger, LedgerEntry, Progress, TaskSnapshot, TaskStatus, WaitTimedOut, resume_task
from mcp_tasks.errors import Fate, InvalidInput, QuestionUnseen, ServerUnreachable, UnknownTask
from tests.client.peer import (
    OUT_OF_ORDER,
    RELATED,
    TASK_ID,
    Answer,
    MemoryPeer,
    asking,
    completed,
    connected,
    old_task,
    task,
)
from tests.unit.virtual_time import simulated

NOWHERE = "http://127.0.0.1:9/mcp"
ANN = {"action": "accept", "content": {"name": "Ann"}}


class Host(Watcher):
    def __init__(self, answer: Mapping[str, Any] | None = None, *, there: bool = True) -> None:
        self.can_answer: bool = there
        self.states: list[tuple[str, str]] = []
        self.away: list[datetime | None] = []
        self.ended: list[Followed] = []
        self._answer = answer

    def tell(self, followed: Followed, event: Event, detail: Any = None) -> None:
        match event:
            case "changed":
                self.states.append(("task" if followed.task_id else "call", followed.status))
                self.away.append(followed.away_since)
            case "ended":
                self.ended.append(followed)
            case "back":
                assert detail >= timedelta(0)
            case _:
                pass

    async def answer(self, followed: Followed, question: Question) -> Mapping[str, Any] | None:
        assert followed.status == "input_required"
        assert question in followed.questions
        return self._answer


@asynccontextmanager
async def calling(follower: Follower, url: str) -> AsyncGenerator[Client]:
    with anyio.fail_after(PATIENCE):
        async with connect(url, elicit=follower.elicit) as client:
            yield client


def linked(tasks: ServerTasks, ledger: Ledger | None = None) -> AbstractAsyncContextManager[Client]:
    return connect(tasks.server, ledger=ledger, identity=tasks.identity, elicit=ask_through_the_task)


async def follow(
    entries: Sequence[LedgerEntry], host: Host | None = None, ledger: Ledger | None = None, timeout: float | None = None
) -> list[Followed]:
    return await Follower(host, timeout=timeout).follow(entries, lambda tasks: linked(tasks, ledger))


async def called(follower: Follower, url: str, tool: str, **arguments: Any) -> Followed:
    async with calling(follower, url) as client:
        return await follower.call(client, tool, arguments, server=url)


def text_of(followed: Followed) -> str:
    return str((followed.result or {})["content"][0]["text"])


async def test_a_call_is_followed_whatever_it_becomes_and_told_as_it_ended(url: str) -> None:
    host = Host(ANN)
    follower = Follower(host)
    async with calling(follower, url) as client:
        echoed = await follower.call(client, "echo", {"value": "x"}, server=url)
        assert (host.states[0], host.states[-1]) == (("call", "working"), ("task", "completed"))
        greeted = await follower.call(client, "greet", {"name": "Ann"}, server=url)
        answered = [await follower.call(client, tool, server=url) for tool in ("ask_name", "ask_before")]
        failed = await follower.call(client, "breaks", server=url)
        refused = await follower.call(client, "no_such_tool", server=url)
    assert (echoed.status, text_of(echoed), echoed.task_id is None) == ("completed", "x", False)
    assert (greeted.entry.tool, text_of(greeted), greeted.task_id) == ("greet", "Hello, Ann!", None)
    assert [text_of(each) for each in answered] == ["Hello, Ann!"] * 2
    assert (failed.status, (failed.error or {})["code"]) == ("failed", CUSTOM_ERROR)
    assert refused.task_id is None
    assert refused.error is not None or refused.is_error
    assert [call.name for call in host.ended] == ["echo", "greet", "ask_name", "ask_before", "breaks", "no_such_tool"]
    assert [host.ended[1], host.ended[5]] == [greeted, refused]


async def test_a_call_may_be_left_once_it_is_a_task_and_is_followed_once(url: str, desk: Desk) -> None:
    follower = Follower()
    async with calling(follower, url) as client:
        left = await follower.call(client, "gated", server=url, detach=True)
    assert left.task_id is not None
    assert (left.status, left.fate) == ("working", None)
    desk.gate.set()
    first, second = await follow([left.entry, left.entry])
    assert first is second
    assert first.status == "completed"


def failing(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("hook", "tool"),
    [
        ("changed", "ask_name"),
        ("ended", "ask_name"),
        ("answer", "ask_name"),
        ("answer", "ask_before"),
    ],
)
async def test_what_a_hook_raises_comes_out_as_it_is(url: str, hook: str, tool: str) -> None:
    host = Host(ANN)
    if hook == "answer":
        host.answer = failing
    else:
        host.tell = lambda followed, event, detail=None: failing() if event == hook else None
    follower = Follower(host)
    async with calling(follower, url) as client:
        with pytest.raises(OSError, match="the disk is full"):
            await follower.call(client, tool, server=url)
        if tool == "ask_before":
            assert text_of(await follower.call(client, "greet", {"name": "Ann"}, server=url)) == "Hello, Ann!"
    if hook != "ended" and tool == "ask_name":
        left = await called(Follower(), url, "ask_name")
        with pytest.raises(OSError, match="the disk is full"):
            await follow([left.entry], host)


async def test_what_a_hook_raises_at_the_progress_of_a_call_ends_the_call() -> None:
    plain: MCPServer[Any] = MCPServer("plain", log_level="CRITICAL")

    @plain.tool()
    async def endless(ctx: Context) -> None:
        for step in itertools.count():
            await ctx.report_progress(step)
            # From when on there is a hook that fails, and for as long as it takes to be told to stop.
            await asyncio.sleep(0.01)  # sleep: a tool that takes its time

    host = Host()
    told = host.tell
    host.tell = lambda followed, event, detail=None: failing() if followed.progress else told(followed, event, detail)
    follower = Follower(host)
    async with serving(plain) as wire, calling(follower, wire.url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(OSError, match="the disk is full"):
            await follower.call(client, "endless", server=wire.url)


@pytest.mark.parametrize(("on_abandon", "fate"), [("leave", "left"), ("cancel", "cancelled")])
async def test_a_time_limit_is_told_of_the_wait_that_it_ended(
    url: str, desk: Desk, on_abandon: Any, fate: Fate
) -> None:
    follower = Follower(on_abandon=on_abandon, timeout=0.5)
    late = await called(follower, url, "gated")
    assert isinstance(late.problem, WaitTimedOut)
    assert (late.problem.fate, late.problem.seconds, late.problem.task_id) == (fate, 0.5, late.task_id)
    assert late.fate == fate
    desk.gate.set()
    if fate == "cancelled":
        return
    # Once it has ended, however long that takes.
    while isinstance((done := (await follower.follow([late.entry], linked))[0]).problem, WaitTimedOut):
        pass
    assert (done.status, done.problem, done.fate) == ("completed", None, None)


async def test_a_question_that_nobody_answers_ends_the_wait(url: str) -> None:
    alone = await called(Follower(Host(there=False)), url, "ask_name")
    assert (alone.status, alone.left_open, alone.fate) == ("input_required", False, "left")
    for tool, status in (("ask_name", "input_required"), ("ask_before", "input_required")):
        later = await called(Follower(Host(None)), url, tool)
        assert (later.entry.tool, later.status, later.left_open, later.problem) == (tool, status, True, None)
    assert [question.message for question in later.questions] == ["Who goes there?"]


async def test_tasks_of_a_ledger_are_followed_and_kept_results_are_not_asked_for_again(url: str, path: Path) -> None:
    ledger = Ledger(path, keep_results=True)
    follower = Follower()
    with anyio.fail_after(PATIENCE):
        async with connect(url, ledger=ledger, elicit=follower.elicit) as client:
            for value in ("a", "b"):
                await follower.call(client, "echo", {"value": value}, server=url, detach=value == "a")
        ended = await follow(ledger.entries(), ledger=ledger)
        assert sorted(text_of(each) for each in ended) == ["a", "b"]
        kept = [entry for entry in ledger.entries() if entry.result is not None]
        assert len(kept) == 2
        # Where nobody is any more.
        moved = [replace(entry, server=NOWHERE) for entry in kept]
        assert [each.problem for each in await follow(moved)] == [None, None]
        # Time that is up for another task is not up for these.
        async with connect(url, ledger=ledger, elicit=follower.elicit) as client:
            await follower.call(client, "gated", server=url, detach=True)
        late = await follow(ledger.entries(), ledger=ledger, timeout=0.3)
        assert [isinstance(each.problem, WaitTimedOut) for each in late] == [False, False, True]
        assert [each.status for each in late[:2]] == ["completed", "completed"]
    [gone] = await follow([replace(kept[0], server=NOWHERE, status="working", result=None)])
    assert isinstance(gone.problem, ServerUnreachable)
    assert gone.status == "unknown"
    ledger.close()


@simulated
async def test_since_when_a_server_is_out_of_reach_is_known_of_its_task_until_it_is_back() -> None:
    peer, host = MemoryPeer(version=MODERN), Host()
    peer.on("tasks/get", *[OUT_OF_ORDER] * 4, completed())
    async with connected(peer, push=False) as client:
        ended = await Follower(host).call(client, "x", server="peer")
    away = list(itertools.dropwhile(lambda since: since is None, host.away))
    assert away[0] is not None
    assert away == [away[0]] * 4 + [None] * (len(away) - 4)
    assert (ended.status, ended.away_since) == ("completed", None)


# What a task asks, for somebody who answers it and does not stay


@simulated
async def test_open_questions_are_given_with_where_they_are_from() -> None:
    peer = MemoryPeer(version=MODERN)
    async with connected(peer) as client:
        handle = resume_task(client, TASK_ID)
        peer.on("tasks/get", asking("q1"))
        [question] = await open_questions(handle, server="farm")
        assert (question.key, question.message, question.tool, question.server) == ("q1", "Name?", TASK_ID, "farm")
        assert await still_asked(handle, {"q1": "yes", "q0": "no"}) == {"q1": "yes"}
        for state, says in ((task(), "working"), (completed(), "completed")):
            peer.on("tasks/get", state)
            with pytest.raises(InvalidInput, match=f"no open question; it is {says}"):
                await open_questions(handle)
            with pytest.raises(InvalidInput, match="no longer asks this"):
                await still_asked(handle, {"q1": "yes"})


@simulated
async def test_a_question_that_is_shown_only_to_who_waits_is_fetched_or_unseen() -> None:
    silent, asks = MemoryPeer(), MemoryPeer()

    async def ask(params: object) -> Answer:
        form: dict[str, Any] = {
            "mode": "form",
            "message": "Sure?",
            "requestedSchema": {"type": "object", "properties": {}},
        }
        await asks.send("elicitation/create", {**form, "_meta": dict(RELATED)})
        return None

    for peer, result in ((silent, None), (asks, ask)):
        peer.on("tasks/get", old_task("input_required"))
        peer.on("tasks/result", result)
    async with connected(silent) as client:
        handle = resume_task(client, TASK_ID)
        with pytest.raises(QuestionUnseen, match="only to one who is going to answer"):
            await open_questions(handle, fetch=False)
        with pytest.raises(QuestionUnseen, match=r"did not send it within 0\.01 s"):
            await open_questions(handle, within=timedelta(milliseconds=10))
        assert await still_asked(handle, {"q1": "yes"}) == {"q1": "yes"}, "hidden from us, and ours to answer"
    async with connected(asks) as client:
        [question] = await open_questions(resume_task(client, TASK_ID))
        assert question.message == "Sure?"


# How a call or a task stood, as one value

NOW = datetime(2026, 7, 28, tzinfo=UTC)
ENTRY = LedgerEntry(task_id="task_1", server="http://x/mcp", tool="render", started_at=NOW, status="working")
WRONG: dict[str, Any] = {"content": [], "isError": True}
ASKED: dict[str, Any] = {"q": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
SAMPLING: dict[str, Any] = {"q": {"method": "sampling/createMessage", "params": {}}}


def seen(status: str, entry: LedgerEntry = ENTRY, **fields: Any) -> Followed:
    snapshot = TaskSnapshot(id="task_1", status=TaskStatus(status), created_at=NOW, updated_at=NOW, **fields)
    return Followed(entry=entry, snapshot=snapshot)


def text_result(*texts: Any) -> dict[str, Any]:
    return {"isError": True, "content": [{"text": text} if isinstance(text, str) else text for text in texts]}


CASES: list[tuple[Callable[[Followed], Any], Followed, Any]] = [
    # The last state counts, and otherwise what the ledger has; without either it is unknown.
    (lambda f: (f.status, f.message), Followed(entry=replace(ENTRY, message="so far")), ("working", "so far")),
    (lambda f: f.status, Followed(entry=ENTRY, problem=UnknownTask("task_1")), "unknown"),
    (lambda f: (f.status, f.error, f.result), seen("failed", error={"code": 1}), ("failed", {"code": 1}, None)),
    # What it asks is asked by its tool, or by a task that is not ours.
    (
        lambda f: [(q.key, q.tool, q.server) for q in f.questions],
        seen("input_required", input_requests=ASKED),
        [("q", "render", "http://x/mcp")],
    ),
    (lambda f: f.questions[0].tool, seen("input_required", replace(ENTRY, tool=""), input_requests=ASKED), "task_1"),
    (lambda f: f.questions, Followed(entry=ENTRY), []),
    # Arguments are refused by an error or in words.
    (lambda f: f.refuses_arguments, seen("failed", error={"code": -32602, "message": "no"}), True),
    (lambda f: f.refuses_arguments, seen("failed", error={"code": -32603, "message": "validation error"}), False),
    (lambda f: f.refuses_arguments, seen("completed", result=text_result("1 Validation Error for x")), True),
    (lambda f: f.refuses_arguments, seen("completed", result=text_result(7, "it broke")), False),
    (lambda f: f.refuses_arguments, seen("completed", result={"content": [{"text": "a validation error"}]}), False),
    (lambda f: f.refuses_arguments, Followed(entry=ENTRY), False),
    # How far it is, within bounds whatever a server says.
    *(
        (lambda f: f.percent, seen("working", progress=Progress(progress=progress, total=total)), percent)
        for progress, total, percent in [
            (1, 3, 33),
            (29, 100, 29),
            (5, 3, 100),
            (-1, 3, 0),
            (1e308, 1, 100),
            (5, None, None),
            (5, 0, None),
        ]
    ),
    (lambda f: f.percent, seen("completed", progress=Progress(progress=1, total=3)), None),
    (lambda f: f.percent, seen("working"), None),
    # What came of it is one word.
    (lambda f: f.outcome, Followed(entry=ENTRY), "working"),
    (lambda f: f.outcome, Followed(entry=ENTRY, problem=OSError("gone")), "unknown"),
    (lambda f: f.outcome, seen("completed", result={"content": []}), "completed"),
    (lambda f: f.outcome, seen("completed", result=WRONG), "tool_error"),
    (lambda f: f.outcome, seen("failed", result=WRONG), "tool_error"),
    (lambda f: f.outcome, seen("failed", error={"code": 1}), "failed"),
    (lambda f: f.outcome, seen("input_required", input_requests=ASKED), "input_required"),
    (lambda f: f.outcome, replace(seen("input_required", input_requests=ASKED), left_open=True), "left_open"),
    (lambda f: f.outcome, replace(seen("input_required", input_requests=SAMPLING), left_open=True), "input_required"),
    # What people are told of it.
    (
        lambda f: (f.name, f.state, f.says),
        seen("completed", result=WRONG, message="no"),
        ("render", "completed with an error", "no"),
    ),
    (lambda f: f.state, seen("failed", result=WRONG), "failed"),
    (lambda f: f.name, seen("working", replace(ENTRY, tool="", task_id="task_0123456789")), "task_01234567"),
    # Why it failed.
    (lambda f: f.failure, seen("failed", error={"code": -1, "message": "out of paper"}), "out of paper (code -1)"),
    (lambda f: f.failure, seen("failed", error={"code": -1}, message="it broke"), "it broke (code -1)"),
    (lambda f: f.failure, seen("failed"), "the server does not say why"),
    (lambda f: f.failure, seen("failed", result=WRONG), ""),
    (lambda f: f.failure, seen("completed", result=WRONG), ""),
    # How long it took.
    (
        lambda f: f.elapsed,
        Followed(entry=replace(ENTRY, status="completed", finished_at=NOW + timedelta(1))),
        timedelta(1),
    ),
    (lambda f: f.elapsed, Followed(entry=replace(ENTRY, status="completed")), None),
    (lambda f: f.elapsed, Followed(entry=replace(ENTRY, status="unknown")), None),
]


@pytest.mark.parametrize(("what", "followed", "expected"), CASES)
def test_how_it_stands(what: Callable[[Followed], Any], followed: Followed, expected: Any) -> None:
    assert what(followed) == expected


def test_how_long_a_task_took_is_a_difference_of_one_clock() -> None:
    took = timedelta(seconds=90)
    ended = seen("completed")
    assert ended.snapshot is not None
    # The server's clock is an hour behind.
    then = NOW - timedelta(hours=1)
    ended = replace(ended, snapshot=replace(ended.snapshot, created_at=then, updated_at=then + took))
    assert ended.elapsed == took
    running = Followed(entry=replace(ENTRY, started_at=datetime.now(UTC) - took))
    assert (running.elapsed or timedelta(0)) >= took
    away = replace(seen("working", message="half"), away_since=datetime.now(UTC) - timedelta(hours=1, seconds=5.5))
    assert away.says == "server out of reach for 1:00:05, trying again"


def test_its_json_has_what_has_a_value() -> None:
    assert seen("input_required", input_requests=ASKED).to_json() == {
        "server": "http://x/mcp",
        "tool": "render",
        "taskId": "task_1",
        "status": "input_required",
        "inputRequests": ASKED,
    }
    call = Followed(entry=replace(ENTRY, task_id=""), problem=OSError("gone"))
    assert call.to_json() == {"server": "http://x/mcp", "tool": "render", "status": "unknown", "problem": "gone"}
    assert seen("working", progress=Progress(progress=1, total=4), message="one").state_to_json() == {
        "taskId": "task_1",
        "tool": "render",
        "status": "working",
        "statusMessage": "one",
        "progress": 1,
        "total": 4,
    }
    away = Followed(entry=replace(ENTRY, tool=""), away_since=NOW).state_to_json()
    assert (away["tool"], away["outOfReachSince"]) == ("task_1", NOW.isoformat())
