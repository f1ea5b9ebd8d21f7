"""Waits that end before their tasks: one rule for what becomes of the task, and nobody is left in the dark."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from harness.rpc import INVALID_PARAMS, PATIENCE
from harness.server import Desk
from mcp_tasks.client import Ledger, TaskHandle, TasksClient, call_tool, pending_tasks, resume_task, start_task
from mcp_tasks.errors import QuestionUnanswered, StoreError, TasksError, UsageError, WaitAbandoned, short_id
from mcp_tasks.model import TaskStatus
from tests.client.connecting import SHORT, Person, accepted, begin, connect, text
from tests.client.peer import OUT_OF_ORDER, TASK_ID, Peer, Refusal, asking, completed, task

pytestmark = pytest.mark.anyio


async def misfit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answers with something that the furnished server's forms do not take."""
    return ElicitResult(action="accept", content={"colour": "green"})


async def refuses(context: ClientRequestContext, params: ElicitRequestParams) -> ErrorData:
    """Does not want to answer."""
    return ErrorData(code=-32042, message="not with me")


async def breaks(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """A defect of the host."""
    raise ZeroDivisionError("a defect of the host")


async def gives_up(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Cancels the task it runs in."""
    raise asyncio.CancelledError


async def no_unicode(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answers with something that cannot be sent."""
    return ElicitResult(action="accept", content={"name": "\ud800"})


WAYS_TO_FAIL = [misfit, refuses, breaks, gives_up, no_unicode]


@pytest.mark.parametrize("callback", WAYS_TO_FAIL)
@pytest.mark.parametrize("way", ["call", "handle"])
async def test_a_question_without_an_answer_ends_the_wait_and_leaves_a_task_to_come_back_to(
    url: str, callback: Any, way: str
) -> None:
    tasks = TasksClient()
    async with Client(url, elicitation_callback=callback, extensions=[tasks]) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(TasksError) as caught:
            await (client.call_tool("ask_name", {}) if way == "call" else (await begin(client, "ask_name")).result())
        assert isinstance(caught.value, QuestionUnanswered)
        assert caught.value.fate == "left"
        task_id = caught.value.task_id
        assert task_id in str(caught.value)
        assert "resume_task" in str(caught.value)
        handle = resume_task(client, task_id)
        waiting = await handle.status()
        assert list(waiting.input_requests) == [caught.value.key]
    async with connect(url, person=Person()) as client:
        assert text(await resume_task(client, task_id).result()) == "Hello, Ada!"


@pytest.mark.parametrize("callback", WAYS_TO_FAIL)
@pytest.mark.parametrize("way", ["client", "call", "handle"])
async def test_a_question_without_an_answer_cancels_the_task_if_that_is_the_rule(
    url: str, callback: Any, way: str
) -> None:
    tasks = TasksClient(on_abandon="cancel" if way == "client" else "leave")
    async with Client(url, elicitation_callback=callback, extensions=[tasks]) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="was cancelled") as caught:
            await _ask(client, way)
        assert caught.value.fate == "cancelled"
        snapshot = await resume_task(client, caught.value.task_id).status()
    assert snapshot.status is TaskStatus.CANCELLED


async def _ask(client: Client, way: str) -> CallToolResult:
    if way == "client":
        return await client.call_tool("ask_name", {})
    if way == "call":
        return await call_tool(client, "ask_name", on_abandon="cancel")
    return await (await begin(client, "ask_name")).result(on_abandon="cancel")


async def test_what_went_wrong_is_the_cause(url: str) -> None:
    for callback, cause in ((misfit, MCPError), (breaks, ZeroDivisionError), (no_unicode, UsageError)):
        async with connect(url, person=callback) as client:
            with pytest.raises(QuestionUnanswered) as caught:
                await client.call_tool("ask_name", {})
        assert isinstance(caught.value.__cause__, cause)


async def test_progress_that_cannot_be_reported_ends_the_wait_by_the_rule(url: str, desk: Desk) -> None:
    async def broken(progress: object) -> None:
        raise ZeroDivisionError

    async with connect(url) as client:
        with pytest.raises(WaitAbandoned, match="on_progress") as caught:
            await call_tool(
                client,
                "progressing",
                {"steps": 1, "total": 1, "message": None},
                on_progress=broken,
                on_abandon="cancel",
            )
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert (await resume_task(client, caught.value.task_id).status()).status is TaskStatus.CANCELLED


async def test_a_task_that_could_not_be_cancelled_is_said_to_go_on(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/cancel", OUT_OF_ORDER)
    async with connect(peer_url, person=breaks, on_abandon="cancel") as client:
        with pytest.raises(QuestionUnanswered, match="could not be cancelled") as caught:
            await client.call_tool("x", {})
    assert caught.value.fate == "not cancelled"


async def test_a_caller_that_is_cancelled_leaves_word_of_the_task(
    url: str, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(url) as client:
        handle = await begin(client, "gated")
        with caplog.at_level(logging.WARNING), anyio.move_on_after(0.1):
            await handle.result()
        assert short_id(handle.id) in caplog.text
        assert handle.id not in caplog.text
        assert (await handle.status()).status is TaskStatus.WORKING
        desk.gate.set()


async def test_a_server_out_of_reach_ends_the_wait_with_a_note_of_the_task(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task(), OUT_OF_ORDER)
    async with connect(peer_url, patience=SHORT) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("x", {})
    assert TASK_ID in "".join(caught.value.__notes__)


async def test_a_misfit_answer_is_not_recorded_and_an_unsendable_one_neither(url: str, tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for callback in (misfit, no_unicode):
        async with connect(url, person=callback, ledger=ledger) as client:
            with pytest.raises(QuestionUnanswered):
                await client.call_tool("ask_name", {})
            [*_, entry] = ledger.pending()
            assert ledger.answers(entry.server, entry.task_id) == {}
    async with connect(url, person=Person(), ledger=ledger) as client:
        assert [text(await handle.result()) for handle in pending_tasks(client)] == ["Hello, Ada!"] * 2
    ledger.close()


async def test_an_answer_by_hand_that_cannot_be_sent_is_refused_before_it_is(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", asking("a"))
    async with connect(peer_url) as client:
        handle = await begin(client, "x")
        with pytest.raises(UsageError, match="Unicode"):
            await handle.answer({"a": {"action": "accept", "content": {"name": "\ud800"}}})
        with pytest.raises(UsageError, match="JSON"):
            await handle.answer({"a": {"action": "accept", "content": {"name": object()}}})
    assert peer.asked("tasks/update") == []


async def test_an_answer_that_cannot_be_written_down_is_not_sent_and_ends_the_wait(
    peer: Peer, peer_url: str, tmp_path: Any
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")

    async def lose_the_ledger(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        ledger.close()
        return accepted()

    peer.on("tasks/get", asking("a") | {"pollIntervalMs": 60_000})
    async with connect(peer_url, person=lose_the_ledger, ledger=ledger, push=False) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered) as caught:
            await client.call_tool("x", {})
    assert isinstance(caught.value.__cause__, StoreError)
    assert peer.asked("tasks/update") == []


# Calls inside callbacks


class Caller:
    """Somebody who calls a tool to find out what to answer."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.got: list[CallToolResult] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Call, then answer."""
        assert self.client is not None
        self.got.append(await self.client.call_tool("echo", {"value": "from inside"}))
        return accepted()


@pytest.mark.parametrize("tool", ["ask_before", "ask_by_returning", "ask_name"])
@pytest.mark.parametrize("way", ["start", "call"])
async def test_a_call_made_inside_a_callback_is_like_any_other(url: str, tool: str, way: str) -> None:
    caller = Caller()
    async with connect(url, person=caller) as client:
        caller.client = client
        if way == "start":
            handle = await start_task(client, tool)
            result = await handle.result() if isinstance(handle, TaskHandle) else handle
        else:
            result = await call_tool(client, tool, timeout=PATIENCE)
    assert text(result) == "Hello, Ada!"
    assert [text(got) for got in caller.got] == ["from inside"]


async def test_the_time_limit_of_a_call_is_not_that_of_a_call_inside_its_callback(url: str, desk: Desk) -> None:
    inner: list[str] = []

    async def waits(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asyncio.get_running_loop().call_later(0.6, desk.gate.set)
        inner.append(text(await client.call_tool("gated", {})))
        return accepted()

    async with connect(url, person=waits) as client:
        assert text(await call_tool(client, "ask_name", timeout=0.4)) == "Hello, Ada!"
    assert inner == ["through"]


async def test_a_resumed_wait_asks_again_after_a_refusal(peer: Peer, peer_url: str) -> None:
    person = Person()
    peer.on("tasks/get", asking("a"))
    peer.on("tasks/update", Refusal(INVALID_PARAMS, "The answer to 'a' does not fit", status=400))
    async with connect(peer_url, person=person) as client:
        handle = await begin(client, "x")
        with pytest.raises(QuestionUnanswered):
            await handle.result()
        peer.on("tasks/get", asking("a"), completed("the second time"))
        peer.on("tasks/update", {"resultType": "complete"})
        assert text(await handle.result()) == "the second time"
    assert len(person.asked) == 2
