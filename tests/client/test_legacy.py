"""Tasks of a 2025-11-25 server through the same client, handles and ledger as those of newer ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitResult,
    ErrorData,
)

from harness.http import serving
from harness.rpc import INVALID_PARAMS, LEGACY, PATIENCE
from harness.server import CUSTOM_ERROR, QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import (
    Ledger,
    Progress,
    TaskFailed,
    TaskHandle,
    TasksClient,
    TaskSnapshot,
    TaskStatus,
    TaskWasCancelled,
    UnknownTask,
    call_tool,
    list_tasks,
    pending_tasks,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.errors import InvalidDuration, UsageError
from tests.client.connecting import ANSWER, Person, begin, seen, text

pytestmark = pytest.mark.anyio


def connect(url: str, *, person: Any = None, tasks: TasksClient | None = None, **options: Any) -> Client:
    extension = tasks if tasks is not None else TasksClient(**options)
    transport = reconnecting_http(url)
    return Client(transport, mode="legacy", elicitation_callback=person, extensions=[extension])


async def shown(handle: TaskHandle, condition: Callable[[TaskSnapshot], object]) -> TaskSnapshot:
    with anyio.fail_after(PATIENCE):
        async for snapshot in handle.watch():
            if condition(snapshot):
                return snapshot
    raise AssertionError("the task ended before that")


async def all_tasks(client: Client) -> list[TaskSnapshot]:
    return [snapshot async for snapshot in list_tasks(client)]


# Calls


async def test_calls_become_tasks_where_the_tool_offers_it_and_give_their_results(url: str) -> None:
    async with connect(url) as client:
        assert client.protocol_version == LEGACY
        assert text(await client.call_tool("must")) == "as a task"
        plain, by_hand = await client.call_tool("point", {"x": 1.5}), await call_tool(client, "point", {"x": 1.5})
        assert plain.structured_content == by_hand.structured_content == {"x": 1.5, "y": None}
        for verb in (client.call_tool, partial(call_tool, client), partial(start_task, client)):
            inline = await verb("greet", {"name": "Ada"})
            assert isinstance(inline, CallToolResult)
            assert text(inline) == "Hello, Ada!"
        assert [task.status for task in await all_tasks(client)] == [TaskStatus.COMPLETED] * 3


@pytest.mark.parametrize("verb", ["plain", "call"])
async def test_a_tool_that_reports_an_error_gives_its_result_and_the_task_is_called_failed(url: str, verb: str) -> None:
    async with connect(url) as client:
        called = await (client.call_tool("fails") if verb == "plain" else call_tool(client, "fails"))
        assert called.is_error
        assert "it did not work out" in text(called)
        [task] = await all_tasks(client)
    assert task.status is TaskStatus.FAILED
    assert "it did not work out" in (task.message or "")


async def test_a_task_that_ends_in_a_protocol_error_raises_it(url: str) -> None:
    async with connect(url) as client:
        handle = await begin(client, "breaks")
        with pytest.raises(TaskFailed) as failed:
            await handle.result(PATIENCE)
        with pytest.raises(MCPError) as plain:
            await client.call_tool("breaks")
    assert (failed.value.code, failed.value.message, failed.value.task_id) == (
        CUSTOM_ERROR,
        "the protocol says no",
        handle.id,
    )
    assert failed.value.data["hint"] == plain.value.data["hint"] == "ask again"
    assert plain.value.code == CUSTOM_ERROR


async def test_a_time_to_live_that_cannot_be_is_refused_before_anything_is_sent(url: str) -> None:
    async with connect(url) as client:
        with pytest.raises(InvalidDuration):
            await start_task(client, "echo", {"value": 1}, ttl=timedelta(seconds=-1))
        with pytest.raises(InvalidDuration):
            await call_tool(client, "echo", {"value": 1}, ttl=3600)  # pyright: ignore[reportArgumentType]
        assert await all_tasks(client) == []


async def test_the_immediate_response_of_our_server_reaches_the_handle() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = build(tasks)

    @server.tool()
    @tasks.task(immediate_response="Go on with something else.")
    def slow() -> str:
        return "done"

    async with serving(server) as wire:
        async with connect(wire.url) as older:
            assert (await begin(older, "slow")).immediate_response == "Go on with something else."
            assert (await begin(older, "echo", value=1)).immediate_response is None
        async with Client(wire.url, extensions=[TasksClient()]) as newer:
            assert (await begin(newer, "slow")).immediate_response is None


# Waiting


async def test_progress_is_reported_to_whoever_waits(url: str, desk: Desk) -> None:
    reported: list[Progress] = []
    heard: list[float] = []

    async def report(progress: Progress) -> None:
        reported.append(progress)
        go_on()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        go_on()

    def go_on() -> None:
        if heard and reported and reported[-1].progress == 3:
            desk.gate.set()

    async with connect(url, on_progress=report) as client:
        arguments = {"steps": 3, "total": 3, "message": "working on it"}
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("progressing", arguments, progress_callback=hear)) == "done"
    assert reported[-1] == Progress(progress=3, total=3, message="working on it")


async def test_cancelling_a_task_that_has_ended_changes_nothing(url: str) -> None:
    async with connect(url) as client:
        handle = await begin(client, "echo", value=1)
        await handle.result(PATIENCE)
        await handle.cancel()
        assert (await handle.status()).status is TaskStatus.COMPLETED


async def test_an_unknown_task_is_unknown_to_every_verb(url: str) -> None:
    async with connect(url) as client:
        handle = resume_task(client, "nobody-knows-this")
        for verb in (handle.status, handle.result, handle.cancel):
            with pytest.raises(UnknownTask):
                await verb()


# Questions


async def test_a_question_is_put_to_the_callback_of_the_client(url: str) -> None:
    person = Person()
    async with connect(url, person=person) as client:
        assert text(await client.call_tool("ask_name")) == "Hello, Ada!"
        assert text(await call_tool(client, "ask_both")) == "Ada is 36"
        assert text(await (await begin(client, "ask_again")).result(PATIENCE)) == "Ada, Ada, Ada"
    assert len(person.asked) == 6


async def test_a_watch_shows_questions_and_they_are_answered_by_hand(url: str) -> None:
    async with connect(url, person=Person(ready=asyncio.Event())) as client:
        handle = await begin(client, "ask_both")
        asking = await shown(handle, lambda snapshot: len(snapshot.input_requests) == 2)
        assert asking.status is TaskStatus.INPUT_REQUIRED
        messages = {request["params"]["message"] for request in asking.input_requests.values()}
        assert messages == {"Your name?", "Your age?"}
        for _ in range(2):
            # What was given may be given again.
            await handle.answer(dict.fromkeys(asking.input_requests, ANSWER))
        assert text(await handle.result(PATIENCE)) == "Ada is 36"


async def test_whoever_only_watches_takes_no_question_from_the_server(url: str) -> None:
    person = Person()
    async with connect(url, person=person) as client:
        handle = await begin(client, "ask_name")
        with anyio.fail_after(PATIENCE):
            async for snapshot in handle.watch(questions=False):
                if snapshot.status is TaskStatus.INPUT_REQUIRED:
                    break
        assert person.asked == []
        assert text(await handle.result(PATIENCE)) == "Hello, Ada!"


async def test_an_answer_to_something_that_was_not_asked_here_says_why_it_cannot_be_given(url: str) -> None:
    async with connect(url, person=Person()) as client:
        handle = await begin(client, "gated")
        with pytest.raises(UsageError, match="has not asked 'q1' over this connection"):
            await handle.answer({"q1": ANSWER})


@pytest.mark.parametrize("verb", ["plain", "call"])
@pytest.mark.parametrize("failure", ["refuses", "raises"])
async def test_a_callback_that_fails_answers_the_question_with_its_error_as_in_a_plain_call(
    url: str, failure: str, verb: str
) -> None:
    async def person(context: ClientRequestContext, params: Any) -> ErrorData:
        if failure == "raises":
            raise ValueError("not today")
        return ErrorData(code=-1, message="not today")

    async with Client(reconnecting_http(url), mode="legacy", elicitation_callback=person) as plain:
        with pytest.raises(MCPError) as expected:
            await plain.call_tool("ask_name")
    async with connect(url, person=person) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError) as raised:
            await (client.call_tool("ask_name") if verb == "plain" else call_tool(client, "ask_name"))
        [task] = await all_tasks(client)
    assert (raised.value.code, raised.value.message) == (expected.value.code, expected.value.message)
    assert task.status is TaskStatus.FAILED


async def test_a_question_that_is_withdrawn_is_no_longer_shown(url: str, desk: Desk) -> None:
    async with connect(url, person=Person(ready=asyncio.Event())) as client:
        handle = await begin(client, "ask_briefly")
        waiting = asyncio.create_task(handle.result(PATIENCE))
        await desk.started.wait()
        await seen(handle, lambda snapshot: not snapshot.input_requests)
        desk.gate.set()
        assert text(await waiting) == "went on"


# Other clients, other days


@pytest.mark.requirement("older-client/tracks-ids")
async def test_a_ledger_brings_back_what_another_client_started(url: str, tmp_path: Path, desk: Desk) -> None:
    async with connect(url, ledger=tmp_path / "ledger.db") as client:
        handle = await begin(client, "gated")
    desk.gate.set()
    async with connect(url, ledger=tmp_path / "ledger.db") as client:
        [found] = pending_tasks(client)
        assert (found.id, found.tool) == (handle.id, "gated")
        assert text(await found.result(PATIENCE)) == "through"
        assert pending_tasks(client) == []


async def test_a_plain_call_is_in_the_ledger_while_it_runs(url: str, tmp_path: Path, desk: Desk) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    async with connect(url, ledger=ledger) as client:
        calling = asyncio.create_task(client.call_tool("gated"))
        await eventually(lambda: [entry.tool for entry in ledger.pending()] == ["gated"])
        desk.gate.set()
        assert text(await calling) == "through"
    assert ledger.pending() == []
    ledger.close()


# Transports


@pytest.mark.parametrize("target", ["url", "sdk"])
async def test_a_transport_that_cannot_carry_tasks_is_a_clear_error_and_plain_calls_stay_plain(
    url: str, target: str
) -> None:
    tasks = TasksClient()
    transport: Any = url if target == "url" else streamable_http_client(url)
    async with Client(transport, mode="legacy", extensions=[tasks]) as client:
        for verb in (tasks.start, tasks.call):
            with pytest.raises(UsageError, match=r"2025-11-25.*reconnecting_http.*with_tasks"):
                await verb(client, "echo", {"value": 1})
        with pytest.raises(UsageError, match="with_tasks"):
            tasks.resume(client, "some-task")
        with pytest.raises(UsageError, match="with_tasks"):
            tasks.pending(client)
        with pytest.raises(UsageError, match="with_tasks"):
            await anext(aiter(tasks.list(client)))
        assert text(await client.call_tool("echo", {"value": 1})) == "1"


async def test_a_newer_server_does_not_list_tasks(url: str) -> None:
    async with Client(reconnecting_http(url), extensions=[TasksClient()]) as client:
        with pytest.raises(UsageError, match="does not list tasks"):
            await all_tasks(client)


async def test_what_one_era_started_the_other_reads_and_cancels(url: str, desk: Desk) -> None:
    async with connect(url) as older, Client(reconnecting_http(url), extensions=[TasksClient()]) as newer:
        handle = await begin(older, "gated")
        await desk.started.wait()
        await resume_task(newer, handle.id).cancel()
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)


# Answers that do not fit: the question comes again

MISFIT = {"action": "accept", "content": {"name": 7}}


async def test_a_question_that_was_answered_wrongly_by_hand_is_shown_again(url: str) -> None:
    async with connect(url, person=Person()) as client:
        handle = await begin(client, "ask_name")
        [first] = (await shown(handle, lambda snapshot: snapshot.input_requests)).input_requests
        await handle.answer({first: MISFIT})
        again = await shown(handle, lambda snapshot: snapshot.input_requests.keys() - {first})
        await handle.answer(dict.fromkeys(again.input_requests, ANSWER))
        assert text(await handle.result(PATIENCE)) == "Hello, Ada!"


async def test_a_callback_that_always_errs_is_told_what_does_not_fit(url: str) -> None:
    asked: list[str] = []

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult.model_validate(MISFIT)

    async with connect(url, person=person) as client:
        handle = await begin(client, "ask_name")
        with pytest.raises(MCPError, match=r"does not fit: \$\.name: 7 is not of type 'string'") as refused:
            await handle.result(PATIENCE)
    assert refused.value.code == INVALID_PARAMS
    assert len(asked) == 3
