"""Questions of a task, put to the client's own callbacks: each once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CreateMessageRequestParams, CreateMessageResult, ErrorData, ListRootsResult, Root, TextContent
from pydantic import FileUrl

from harness.rpc import INVALID_PARAMS, PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Ledger, TasksClient, pending_tasks, resume_task
from mcp_tasks.client.answers import Answerer, Callbacks
from mcp_tasks.client.backend import ModernTask
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.client.poller import TaskLife
from mcp_tasks.errors import InvalidResponse, QuestionUnanswered, UnknownTask
from mcp_tasks.model import TaskStatus
from mcp_tasks.protocol.shapes import parse_task
from tests.client.connecting import LONG, SHORT, Person, accepted, begin, connect, seen, text
from tests.client.peer import OUT_OF_ORDER, TASK_ID, Answer, Peer, Refusal, asking, completed, task

pytestmark = pytest.mark.anyio

ACK = {"resultType": "complete"}
ANSWER = accepted().model_dump(by_alias=True, mode="json", exclude_none=True)
UNFIT = Refusal(INVALID_PARAMS, "The answer to 'a' does not fit: $: 'name' is a required property", status=400)


@pytest.fixture
def ledger(tmp_path: Path) -> Generator[Ledger]:
    """A ledger for one client."""
    book = Ledger(tmp_path / "ledger.db")
    yield book
    book.close()


def answers(peer: Peer) -> list[Mapping[str, Any]]:
    """What the peer was answered, in order."""
    return [params["inputResponses"] for params in peer.asked("tasks/update")]


@pytest.mark.requirement("client/deduplicates-keys")
async def test_a_question_that_comes_with_every_look_is_put_once(peer: Peer, peer_url: str) -> None:
    ready = asyncio.Event()
    person = Person(ready=ready)
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=person) as client:
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


async def test_questions_that_are_open_together_are_asked_together_and_answered_as_they_come(
    peer: Peer, peer_url: str
) -> None:
    person = Person()
    peer.on("tasks/get", asking("a", "b", "c"), completed())
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=person) as client:
        await client.call_tool("x", {})
    assert sorted(key for answer in answers(peer) for key in answer) == ["a", "b", "c"]
    assert len(person.asked) == 3


@pytest.mark.requirement("client/same-trust")
async def test_a_model_and_roots_are_asked_for_like_a_person(url: str) -> None:
    async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="m")

    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])

    async with Client(url, sampling_callback=sample, list_roots_callback=roots, extensions=[TasksClient()]) as client:
        assert text(await client.call_tool("ask_model", {})) == "42"
        assert text(await client.call_tool("ask_roots", {})) == "file:///work"


async def test_a_callback_that_refuses_ends_the_wait_with_its_error(peer: Peer, peer_url: str) -> None:
    async def refuse(context: ClientRequestContext, params: object) -> ErrorData:
        return ErrorData(code=-32042, message="not with me")

    peer.on("tasks/get", asking("a"))
    async with connect(peer_url, person=refuse) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="not with me") as caught:
            await client.call_tool("x", {})
    cause = caught.value.__cause__
    assert isinstance(cause, MCPError)
    assert cause.code == -32042
    assert answers(peer) == []


async def test_a_callback_that_breaks_ends_the_wait_with_what_it_raised(peer: Peer, peer_url: str) -> None:
    async def broken(context: ClientRequestContext, params: object) -> Any:
        raise ZeroDivisionError("a defect of the host")

    peer.on("tasks/get", asking("a"))
    async with connect(peer_url, person=broken) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered) as caught:
            await client.call_tool("x", {})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    "question",
    [
        {"method": "shell/run", "params": {}},
        {"method": "elicitation/create"},
        {"method": "elicitation/create", "params": {"message": 5}},
        {},
    ],
)
async def test_a_question_that_cannot_be_understood_is_an_invalid_response(
    peer: Peer, peer_url: str, question: Any
) -> None:
    person = Person()
    peer.on("tasks/get", task("input_required", inputRequests={"a": question}))
    async with connect(peer_url, person=person) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered) as caught:
            await client.call_tool("x", {})
    assert isinstance(caught.value.__cause__, InvalidResponse)
    assert person.asked == []


@pytest.mark.parametrize("question", ["what?", None])
async def test_a_task_whose_question_is_no_object_is_no_task(peer: Peer, peer_url: str, question: Any) -> None:
    person = Person()
    peer.on("tasks/get", task("input_required", inputRequests={"a": question}))
    async with connect(peer_url, person=person) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(InvalidResponse, match="a is not an object"):
            await client.call_tool("x", {})
    assert person.asked == []


async def test_when_the_wait_ends_the_person_is_left_alone(peer: Peer, peer_url: str) -> None:
    person = Person(ready=asyncio.Event())
    peer.on("tasks/get", asking("a"))
    async with connect(peer_url, person=person, on_abandon="leave") as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "x")
            await person.until_asked()
            group.cancel_scope.cancel()
        await eventually(lambda: person.left_alone == 1)
    assert answers(peer) == []


async def test_busy_is_told_at_the_first_question_and_at_the_end_of_the_last(peer: Peer, peer_url: str) -> None:
    changes: list[bool] = []
    outcomes: list[tuple[str, Exception | None]] = []
    ready = asyncio.Event()
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=Person(ready=ready)) as client:
        answerer = Answerer(
            ModernTask(client.session, TASK_ID),
            TASK_ID,
            ledger=TaskLedger(None, TASK_ID),
            life=TaskLife(TASK_ID, "x"),
            callbacks=Callbacks(),
            busy_changed=changes.append,
            answered=lambda key, failure: outcomes.append((key, failure)),
        )
        answerer.look(parse_task(asking("a")))
        answerer.look(parse_task(asking("a", "b")))
        assert changes == [True]
        ready.set()
        await eventually(lambda: len(outcomes) == 2)
        answerer.close()
    assert changes == [True, False]
    assert sorted(outcomes) == [("a", None), ("b", None)]


# Answers that do not get there


async def test_an_answer_that_cannot_be_delivered_for_now_is_delivered_later(peer: Peer, peer_url: str) -> None:
    person = Person()
    peer.on("tasks/get", asking("a"), asking("a"), asking("a"), completed())
    peer.on("tasks/update", OUT_OF_ORDER, OUT_OF_ORDER, ACK)
    async with connect(peer_url, person=person, patience=LONG) as client:
        with anyio.fail_after(PATIENCE):
            await client.call_tool("x", {})
    assert answers(peer)[-1] == {"a": ANSWER}
    assert len(person.asked) == 1


async def test_an_answer_that_the_server_refuses_does_not_leave_the_wait_hanging(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", UNFIT)
    async with connect(peer_url, person=Person()) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="does not fit"):
            await client.call_tool("x", {})


async def test_an_answer_by_hand_that_does_not_fit_says_what_is_wrong_with_it(url: str) -> None:
    async with connect(url, person=Person()) as client:
        handle = await begin(client, "ask_name")
        asking = await seen(handle, lambda snapshot: snapshot.input_requests)
        with pytest.raises(MCPError, match="does not fit"):
            await handle.answer({key: {"action": "accept", "content": {}} for key in asking.input_requests})
        # The question stays open.
        await handle.answer(dict.fromkeys(asking.input_requests, ANSWER))
        assert text(await handle.result()) == "Hello, Ada!"


async def test_a_refused_answer_is_not_the_one_that_is_remembered(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", UNFIT, ACK)
    async with connect(peer_url, person=Person(), ledger=ledger) as client:
        handle = await begin(client, "x")
        with pytest.raises(MCPError, match="does not fit"):
            await handle.answer({"a": {"action": "accept", "content": {}}})
        await handle.answer({"a": ANSWER})
    assert ledger.answers(peer_url, TASK_ID) == {"a": (ANSWER, True)}


async def test_an_answer_that_the_server_refused_is_asked_for_again_the_next_time(
    peer: Peer, peer_url: str, ledger: Ledger
) -> None:
    person = Person()
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", UNFIT)
    async with connect(peer_url, person=person, ledger=ledger) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered):
            await client.call_tool("x", {})
        peer.on("tasks/get", asking("a"), completed("the second time"))
        peer.on("tasks/update", ACK)
        [handle] = pending_tasks(client)
        assert text(await handle.result()) == "the second time"
    assert len(person.asked) == 2


async def test_an_answer_that_could_not_be_delivered_is_not_asked_for_again_the_next_time(
    peer: Peer, peer_url: str, ledger: Ledger
) -> None:
    person = Person()
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", OUT_OF_ORDER)
    async with connect(peer_url, person=person, ledger=ledger, patience=SHORT) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="try again later"):
            await client.call_tool("x", {})
        peer.on("tasks/get", asking("a"), completed("the second time"))
        peer.on("tasks/update", ACK)
        [handle] = pending_tasks(client)
        assert text(await handle.result()) == "the second time"
    assert len(person.asked) == 1


# With a ledger


async def test_a_recorded_answer_is_sent_again_and_nobody_is_asked(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=peer_url, tool="x")
    ledger.record_answer(peer_url, TASK_ID, "a", ANSWER, question=asking("a")["inputRequests"]["a"])
    person = Person()
    peer.on("tasks/get", asking("a"), completed("in the end"))
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=person, ledger=ledger) as client:
        [handle] = pending_tasks(client)
        assert text(await handle.result()) == "in the end"
    assert (answers(peer), person.asked) == ([{"a": ANSWER}], [])
    assert ledger.entries() == []


async def test_an_answer_is_recorded_before_the_server_has_it(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    recorded: list[object] = []

    async def update(params: Mapping[str, Any]) -> Answer:
        recorded.append(ledger.answers(peer_url, TASK_ID))
        peer.on("tasks/get", completed())
        return ACK

    peer.on("tasks/get", asking("a"))
    peer.handlers["tasks/update"] = update
    async with connect(peer_url, person=Person(), ledger=ledger) as client:
        await client.call_tool("x", {})
    assert recorded == [{"a": (ANSWER, False)}]


async def test_an_acknowledged_answer_is_marked_as_sent(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", ACK)
    async with (
        connect(peer_url, person=Person(), ledger=ledger, on_abandon="leave") as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(client.call_tool, "x")
        await eventually(lambda: ledger.answers(peer_url, TASK_ID) == {"a": (ANSWER, True)})
        group.cancel_scope.cancel()
    assert [entry.task_id for entry in ledger.pending(server=peer_url)] == [TASK_ID]


async def test_answers_by_hand_are_remembered_too(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", ACK)
    async with connect(peer_url, ledger=ledger) as client:
        await resume_task(client, TASK_ID).answer({"a": ANSWER, "b": ANSWER})
    assert ledger.answers(peer_url, TASK_ID) == {"a": (ANSWER, True), "b": (ANSWER, True)}


async def test_a_task_that_its_server_does_not_know_is_marked_as_such(
    peer: Peer, peer_url: str, ledger: Ledger
) -> None:
    peer.on("tasks/get", Refusal(INVALID_PARAMS, "Task not found", status=400))
    ledger.add(TASK_ID, server=peer_url, tool="x")
    async with connect(peer_url, ledger=ledger) as client:
        [handle] = pending_tasks(client)
        assert handle.tool == "x"
        with pytest.raises(UnknownTask):
            await handle.result()
        assert [entry.status for entry in ledger.pending()] == ["unknown"]
        # As long as somebody wants it: the server may get it back from a backup.
        peer.on("tasks/get", task())
        assert (await handle.status()).status is TaskStatus.WORKING
        assert [entry.status for entry in ledger.pending()] == ["working"]
        handle.forget()
    assert ledger.entries() == []


async def test_tasks_of_other_servers_are_not_pending_here(peer: Peer, peer_url: str, ledger: Ledger) -> None:
    ledger.add("elsewhere", server="another", tool="x")
    ledger.add(TASK_ID, server="mine", tool="x")
    async with connect(peer_url, ledger=ledger) as client:
        assert pending_tasks(client) == []
    async with connect(peer_url, ledger=ledger, server="mine") as client:
        assert [handle.id for handle in pending_tasks(client)] == [TASK_ID]


async def test_without_a_ledger_nothing_is_pending(peer_url: str) -> None:
    async with connect(peer_url) as client:
        assert pending_tasks(client) == []
