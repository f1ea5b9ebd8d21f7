"""Questions of a task, put to the client's own callbacks: each once, a few at a time, whatever happens in between."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from harness.rpc import INVALID_PARAMS, PATIENCE
from harness.server import Desk
from harness.waiting import eventually
from mcp_tasks.client import (
    Ledger,
    QuestionUnanswered,
    TaskHandle,
    TasksClient,
    UnknownTask,
    WaitAbandoned,
    call_tool,
    pending_tasks,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.errors import InvalidOption, InvalidResponse, StoreError, UsageError
from mcp_tasks.model import TaskStatus
from tests.client.connecting import ANSWER, SHORT, Person, accepted, begin, connect, text
from tests.client.peer import (
    ACK,
    OUT_OF_ORDER,
    TASK_ID,
    UNKNOWN_TASK,
    Answer,
    MemoryPeer,
    Peer,
    Refusal,
    asking,
    completed,
    connected,
    task,
)

UNFIT = Refusal(INVALID_PARAMS, "The answer to 'a' does not fit: $: 'name' is a required property", status=400)


def answers(peer: Peer) -> list[Mapping[str, Any]]:
    return [params["inputResponses"] for params in peer.asked("tasks/update")]


@pytest.mark.requirement("client/deduplicates-keys")
async def test_a_question_that_comes_with_every_look_is_put_once(peer: Peer) -> None:
    ready = asyncio.Event()
    person = Person(ready=ready)
    # Each look shows something new of the task, and the same question.
    peer.on("tasks/get", *({**asking("a"), "statusMessage": str(look)} for look in range(1_000)))
    peer.on("tasks/update", ACK)
    async with connect(peer.url, person=person) as client:
        handle = await begin(client, "x")
        async with anyio.create_task_group() as group:
            group.start_soon(handle.result)
            await eventually(lambda: len(peer.asked("tasks/get")) >= 4)
            assert (len(person.asked), answers(peer)) == (1, [])
            ready.set()
            await eventually(lambda: answers(peer))
            peer.on("tasks/get", completed())
    assert answers(peer) == [{"a": ANSWER}]
    assert len(person.asked) == 1


@pytest.mark.requirement("client/same-trust")
async def test_a_model_and_roots_are_asked_for_like_a_person(url: str) -> None:
    async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="m")

    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])

    callbacks: dict[str, Any] = {"sampling_callback": sample, "list_roots_callback": roots}
    for mode in ("auto", "legacy"):
        async with Client(reconnecting_http(url), mode=mode, extensions=[TasksClient()], **callbacks) as client:
            assert text(await client.call_tool("ask_model", {})) == "42"
            assert text(await client.call_tool("ask_roots", {})) == "file:///work"


@pytest.mark.parametrize(
    "question",
    [
        {"method": "shell/run", "params": {}},
        {"method": "elicitation/create"},
        {"method": "elicitation/create", "params": {"message": 5}},
        {},
        "what?",
        None,
    ],
)
async def test_a_question_that_cannot_be_understood_is_an_invalid_response(peer: Peer, question: Any) -> None:
    person = Person()
    peer.on("tasks/get", task("input_required", inputRequests={"a": question}))
    async with connect(peer.url, person=person) as client:
        with anyio.fail_after(PATIENCE), pytest.raises((QuestionUnanswered, InvalidResponse)) as caught:
            await client.call_tool("x", {})
    assert isinstance(caught.value if question in ("what?", None) else caught.value.__cause__, InvalidResponse)
    assert person.asked == []


async def test_when_the_wait_ends_the_person_is_left_alone(peer: Peer) -> None:
    person = Person(ready=asyncio.Event())
    peer.on("tasks/get", asking("a"))
    async with connect(peer.url, person=person, on_abandon="leave") as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "x")
            await person.until_asked()
            group.cancel_scope.cancel()
        await eventually(lambda: person.left_alone == 1)
    assert answers(peer) == []


# Callbacks that fail


async def fails(how: str, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
    match how:
        case "refuses":
            return ErrorData(code=-32042, message="not with me")
        case "breaks":
            raise ZeroDivisionError("a defect of the host")
        case "gives up":
            # As if the task that it runs in were cancelled.
            raise asyncio.CancelledError
        case _:
            return ElicitResult(action="accept", content={"colour": "green"} if how == "misfit" else {"name": "\ud800"})


CAUSES = {
    "misfit": (MCPError, "does not fit"),
    "refuses": (MCPError, "not with me"),
    "breaks": (ZeroDivisionError, "a defect of the host"),
    "gives up": (type(None), "was cancelled"),
    "no unicode": (UsageError, "Unicode"),
}


@pytest.mark.parametrize("how", CAUSES)
@pytest.mark.parametrize("way", ["call", "handle"])
async def test_an_unanswered_question_ends_the_wait_only(url: str, ledger: Ledger, how: str, way: str) -> None:
    cause, says = CAUSES[how]
    async with connect(url, person=partial(fails, how), ledger=ledger) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match=says) as caught:
            await (client.call_tool("ask_name", {}) if way == "call" else (await begin(client, "ask_name")).result())
        assert (caught.value.fate, type(caught.value.__cause__)) == ("left", cause)
        assert f"resume_task(client, '{caught.value.task_id}')" in str(caught.value)
        [handle] = pending_tasks(client)
        assert list((await handle.status()).input_requests) == [caught.value.key]
    [entry] = ledger.entries()
    assert ledger.answers(entry.server, entry.task_id) == {}
    async with connect(url, person=Person(), ledger=ledger) as client:
        [handle] = pending_tasks(client)
        assert text(await handle.result()) == "Hello, Ada!"


@pytest.mark.parametrize("how", CAUSES)
@pytest.mark.parametrize("way", ["client", "call"])
async def test_an_unanswered_question_cancels_the_task_if_that_is_the_rule(url: str, how: str, way: str) -> None:
    rule = "cancel" if way == "client" else "leave"
    async with connect(url, person=partial(fails, how), on_abandon=rule) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="was cancelled") as caught:
            await call_tool(client, "ask_name", on_abandon="cancel" if way == "call" else None)
        assert caught.value.fate == "cancelled"
        snapshot = await resume_task(client, caught.value.task_id).status()
    assert snapshot.status is TaskStatus.CANCELLED


async def test_progress_that_cannot_be_reported_ends_the_wait_by_the_rule(url: str, desk: Desk) -> None:
    async def broken(progress: object) -> None:
        raise ZeroDivisionError

    arguments = {"steps": 1, "total": 1, "message": None}
    async with connect(url) as client:
        with pytest.raises(WaitAbandoned, match="on_progress") as caught:
            await call_tool(client, "progressing", arguments, on_progress=broken, on_abandon="cancel")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert (await resume_task(client, caught.value.task_id).status()).status is TaskStatus.CANCELLED


# Answers that do not get there


async def test_an_answer_by_hand_that_cannot_be_sent_is_refused_before_it_is(peer: Peer) -> None:
    peer.on("tasks/get", asking("a"))
    async with connect(peer.url) as client:
        handle = await begin(client, "x")
        for name, says in (("\ud800", "Unicode"), (object(), "JSON")):
            with pytest.raises(UsageError, match=says):
                await handle.answer({"a": {"action": "accept", "content": {"name": name}}})
    assert peer.asked("tasks/update") == []


@pytest.mark.parametrize(
    ("failure", "asked"), [(UNFIT, 2), (OUT_OF_ORDER, 1)], ids=["the server refused it", "it did not get there"]
)
@pytest.mark.parametrize("way", ["pending", "handle"])
async def test_only_an_answer_that_the_server_refused_is_asked_for_again_the_next_time(
    peer: Peer, ledger: Ledger, failure: Refusal, asked: int, way: str
) -> None:
    person = Person()
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", failure)
    async with connect(peer.url, person=person, ledger=ledger, patience=SHORT) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match=failure.message[:20]):
            await handle.result()
        peer.on("tasks/get", asking("a"), completed("the second time"))
        peer.on("tasks/update", ACK)
        if way == "pending":
            [handle] = pending_tasks(client)
        assert text(await handle.result()) == "the second time"
    assert len(person.asked) == asked


# With a ledger


async def test_an_answer_is_recorded_before_it_is_sent_and_marked_after(peer: Peer, ledger: Ledger) -> None:
    recorded: list[object] = []

    async def update(params: Mapping[str, Any]) -> Answer:
        recorded.append(ledger.answers(peer.url, TASK_ID))
        return ACK

    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", update)
    async with (
        connect(peer.url, person=Person(), ledger=ledger, on_abandon="leave") as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(client.call_tool, "x")
        await eventually(lambda: ledger.answers(peer.url, TASK_ID) == {"a": (ANSWER, True)})
        group.cancel_scope.cancel()
    assert recorded == [{"a": (ANSWER, False)}]
    assert [entry.task_id for entry in ledger.pending(server=peer.url)] == [TASK_ID]


async def test_answers_by_hand_are_remembered_but_for_those_that_were_refused(peer: Peer, ledger: Ledger) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", UNFIT, ACK)
    async with connect(peer.url, ledger=ledger) as client:
        handle = resume_task(client, TASK_ID)
        with pytest.raises(MCPError, match="does not fit"):
            await handle.answer({"a": {"action": "accept", "content": {}}})
        assert ledger.answers(peer.url, TASK_ID) == {}
        await handle.answer({"a": ANSWER, "b": ANSWER})
    assert ledger.answers(peer.url, TASK_ID) == {"a": (ANSWER, True), "b": (ANSWER, True)}


async def test_an_answer_that_cannot_be_written_down_is_not_sent_and_ends_the_wait(peer: Peer, ledger: Ledger) -> None:
    async def lose_the_ledger(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        ledger.close()
        return accepted()

    peer.on("tasks/get", asking("a") | {"pollIntervalMs": 60_000})
    async with connect(peer.url, person=lose_the_ledger, ledger=ledger, push=False) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered) as caught:
            await client.call_tool("x", {})
    assert isinstance(caught.value.__cause__, StoreError)
    assert peer.asked("tasks/update") == []


async def test_a_task_that_its_server_does_not_know_is_marked(peer: Peer, ledger: Ledger) -> None:
    peer.on("tasks/get", UNKNOWN_TASK)
    ledger.add(TASK_ID, server=peer.url, tool="x")
    async with connect(peer.url, ledger=ledger) as client:
        [handle] = pending_tasks(client)
        assert handle.tool == "x"
        with pytest.raises(UnknownTask, match=f"^Task {TASK_ID} not found: it does not exist, has expired, or is not"):
            await handle.result()
        assert [entry.status for entry in ledger.pending()] == ["unknown"]
        # As long as somebody wants it: the server may get it back from a backup.
        peer.on("tasks/get", task())
        assert (await handle.status()).status is TaskStatus.WORKING
        assert [entry.status for entry in ledger.pending()] == ["working"]
        handle.forget()
    assert ledger.entries() == []


# Calls inside callbacks


@pytest.mark.parametrize("tool", ["ask_before", "ask_by_returning", "ask_name"])
@pytest.mark.parametrize("way", ["start", "call"])
async def test_a_call_made_inside_a_callback_is_like_any_other(url: str, tool: str, way: str) -> None:
    got: list[str] = []

    async def caller(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        got.append(text(await client.call_tool("echo", {"value": "from inside"})))
        return accepted()

    async with connect(url, person=caller) as client:
        if way == "start":
            handle = await start_task(client, tool)
            result = await handle.result() if isinstance(handle, TaskHandle) else handle
        else:
            result = await call_tool(client, tool, timeout=PATIENCE)
    assert (text(result), got) == ("Hello, Ada!", ["from inside"])


# How much a server may have the callbacks of a client do


class Busy:
    """Somebody who counts how many questions are worked on at a time, and answers when `ready`."""

    def __init__(self, *, ready: bool = True) -> None:
        self.now = 0
        self.most = 0
        self.asked = 0
        self.ready = asyncio.Event()
        if ready:
            self.ready.set()

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.ready.wait()
        finally:
            self.now -= 1
        return ElicitResult(action="decline")


async def test_four_callbacks_work_at_a_time_for_all_tasks_of_a_client(peer: Peer) -> None:
    busy = Busy(ready=False)
    peer.on("tasks/get", asking(*(f"q{number}" for number in range(20))))
    peer.on("tasks/update", ACK)
    async with connect(peer.url, person=busy) as client, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(client.call_tool, "x")
        await eventually(lambda: busy.now == 4)
        # The others have seen all of their questions by now, and wait for their turns.
        await anyio.wait_all_tasks_blocked()
        assert busy.most == busy.asked == 4
        busy.ready.set()
        await eventually(lambda: busy.asked == 40)
        peer.on("tasks/get", completed())
    assert busy.most == 4


async def test_a_task_that_asks_without_end_is_left(peer: Peer) -> None:
    busy = Busy()
    peer.on("tasks/get", asking(*(f"q{number}" for number in range(2_000))))
    peer.on("tasks/update", ACK)
    async with connect(peer.url, person=busy) as client:
        # Nor is it asked on for who comes back to it.
        waits: list[Any] = [lambda: client.call_tool("x"), lambda: resume_task(client, TASK_ID).result()]
        for wait in waits:
            with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="at most 100 questions"):
                await wait()
            assert busy.asked <= 100
    assert busy.most <= 4


async def test_both_limits_are_the_authors_to_set(peer: Peer) -> None:
    busy = Busy()
    peer.on("tasks/get", asking("a", "b", "c"), asking("a", "b", "c"), completed())
    peer.on("tasks/update", ACK)
    async with connect(peer.url, person=busy, max_callbacks=1, max_callbacks_per_task=3) as client:
        with anyio.fail_after(PATIENCE):
            await client.call_tool("x", {})
    assert (busy.asked, busy.most) == (3, 1)
    with pytest.raises(InvalidOption, match="max_callbacks"):
        TasksClient(max_callbacks=0)


async def test_an_answer_that_asks_thousands_of_questions_is_an_error(peer: Peer) -> None:
    busy = Busy()
    questions = asking(*(f"q{number}" for number in range(2_000)))["inputRequests"]
    peer.on("tools/call", {"resultType": "input_required", "inputRequests": questions})
    async with connect(reconnecting_http(peer.url), person=busy) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="2000 questions in one answer"):
            await client.call_tool("x", {})
    assert busy.asked == 0


async def test_requests_of_a_server_wait_for_their_turns_and_of_too_many_some_are_refused() -> None:
    peer, busy = MemoryPeer(), Busy(ready=False)
    async with connected(peer, person=busy):
        for number in range(2_000):
            await peer.send("elicitation/create", asking("q")["inputRequests"]["q"]["params"], number)
        for number in (40, 41):
            await peer.tell("notifications/cancelled", {"requestId": number})
        # What neither has its turn nor fits into the queue is refused at once.
        await eventually(lambda: len(peer.replies) == 2_000 - 32 - 1_000)
        assert {reply["id"] for reply in peer.replies} == set(range(1_032, 2_000))
        assert all("error" in reply for reply in peer.replies)
        assert busy.most == busy.asked == 32
        busy.ready.set()
        await eventually(lambda: busy.asked == 1_030)
    assert busy.most == 32
