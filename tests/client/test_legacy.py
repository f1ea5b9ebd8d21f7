"""Tasks of a 2025-11-25 server through the same client, handles and ledger as those of newer ones, and over every way
to a server: what each can carry, and what it says of what it cannot."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, ErrorData

from harness.forking import piped
from harness.http import serving, serving_app
from harness.processes import ENVIRONMENT, ROOT
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
    stdio_transport,
    with_tasks,
)
from mcp_tasks.errors import InvalidOption, UsageError
from tests.client import connecting
from tests.client.connecting import ANSWER, Person, begin, seen, text

connect = partial(connecting.connect, mode="legacy")


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


async def test_a_tool_that_reports_an_error_gives_its_result_and_the_task_is_called_failed(url: str) -> None:
    async with connect(url) as client:
        for called in (await client.call_tool("fails"), await call_tool(client, "fails")):
            assert called.is_error
            assert "it did not work out" in text(called)
        for task in await all_tasks(client):
            assert task.status is TaskStatus.FAILED
            assert "it did not work out" in (task.message or "")


async def test_a_task_that_ends_in_a_protocol_error_raises_it(url: str) -> None:
    async with connect(url) as client:
        handle = await begin(client, "breaks")
        with pytest.raises(TaskFailed) as failed:
            await handle.result(PATIENCE)
        with pytest.raises(MCPError) as plain:
            await client.call_tool("breaks")
    assert (failed.value.message, failed.value.task_id) == ("the protocol says no", handle.id)
    assert failed.value.code == plain.value.code == CUSTOM_ERROR
    assert failed.value.data["hint"] == plain.value.data["hint"] == "ask again"


async def test_a_time_to_live_that_cannot_be_is_refused_before_anything_is_sent(url: str) -> None:
    async with connect(url) as client:
        with pytest.raises(InvalidOption):
            await start_task(client, "echo", {"value": 1}, ttl=timedelta(seconds=-1))
        with pytest.raises(InvalidOption):
            await call_tool(client, "echo", {"value": 1}, ttl=3600)  # pyright: ignore[reportArgumentType]
        assert await all_tasks(client) == []


# Waiting


async def test_progress_of_a_plain_call_reaches_its_own_callback_and_that_of_the_client(url: str, desk: Desk) -> None:
    reported, heard = list[Progress](), list[float]()

    async def report(progress: Progress) -> None:
        reported.append(progress)

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with connect(url, on_progress=report) as client:
        arguments = {"steps": 3, "total": 3, "message": "working on it"}
        calling = asyncio.create_task(client.call_tool("progressing", arguments, progress_callback=hear))
        await eventually(lambda: heard and reported and reported[-1].progress == 3)
        desk.gate.set()
        assert text(await calling) == "done"
    assert reported[-1] == Progress(progress=3, total=3, message="working on it")


async def test_a_task_that_has_ended_is_not_cancelled_and_an_unknown_one_is_unknown_to_every_verb(url: str) -> None:
    async with connect(url) as client:
        handle = await begin(client, "echo", value=1)
        await handle.result(PATIENCE)
        await handle.cancel()
        assert (await handle.status()).status is TaskStatus.COMPLETED
        nobody = resume_task(client, "nobody-knows-this")
        for verb in (nobody.status, nobody.result, nobody.cancel):
            with pytest.raises(UnknownTask):
                await verb()


# Questions


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
        # What does not fit is asked again.
        handle = await begin(client, "ask_name")
        [first] = (await shown(handle, lambda snapshot: snapshot.input_requests)).input_requests
        await handle.answer({first: MISFIT})
        again = await shown(handle, lambda snapshot: snapshot.input_requests.keys() - {first})
        await handle.answer(dict.fromkeys(again.input_requests, ANSWER))
        assert text(await handle.result(PATIENCE)) == "Hello, Ada!"


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


@pytest.mark.parametrize("failure", ["refuses", "raises"])
async def test_a_callback_that_fails_answers_with_its_error_as_in_a_plain_call(url: str, failure: str) -> None:
    async def person(context: ClientRequestContext, params: Any) -> ErrorData:
        if failure == "raises":
            raise ValueError("not today")
        return ErrorData(code=-1, message="not today")

    errors: list[tuple[int, str]] = []
    async with (
        Client(reconnecting_http(url), mode="legacy", elicitation_callback=person) as plain,
        connect(url, person=person) as client,
    ):
        for call in (plain.call_tool, client.call_tool, partial(call_tool, client)):
            with anyio.fail_after(PATIENCE), pytest.raises(MCPError) as raised:
                await call("ask_name")
            errors.append((raised.value.code, raised.value.message))
        assert {task.status for task in await all_tasks(client)} == {TaskStatus.FAILED}
    assert len(set(errors)) == 1


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
async def test_a_ledger_brings_back_a_task_and_has_plain_calls(url: str, ledger: Ledger, desk: Desk) -> None:
    async with connect(url, ledger=ledger) as client:
        handle = await begin(client, "gated")
    desk.gate.set()
    async with connect(url, ledger=ledger) as client:
        [found] = pending_tasks(client)
        assert (found.id, found.tool) == (handle.id, "gated")
        assert text(await found.result(PATIENCE)) == "through"
        desk.gate.clear()
        calling = asyncio.create_task(client.call_tool("gated"))
        await eventually(lambda: [entry.tool for entry in ledger.pending()] == ["gated"])
        desk.gate.set()
        assert text(await calling) == "through"
        assert pending_tasks(client) == []


# Transports


@pytest.mark.parametrize("target", ["url", "sdk"])
async def test_a_transport_that_cannot_carry_tasks_says_so_and_plain_calls_stay_plain(url: str, target: str) -> None:
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


async def test_what_one_era_started_the_other_reads_and_cancels_and_only_the_older_lists(url: str, desk: Desk) -> None:
    async with connect(url) as older, connecting.connect(url) as newer:
        handle = await begin(older, "gated")
        await desk.started.wait()
        await resume_task(newer, handle.id).cancel()
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)
        assert [task.id for task in await all_tasks(older)] == [handle.id]
        with pytest.raises(UsageError, match="does not list tasks"):
            await all_tasks(newer)


# Answers that do not fit: the question comes again

MISFIT = {"action": "accept", "content": {"name": 7}}


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


# Other ways to a server


async def test_tasks_and_their_questions_pass_where_answers_are_no_streams() -> None:
    desk = Desk()
    server = build(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=True) as wire, connect(wire.url, person=Person()) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("echo", {"value": 7})) == "7"
            assert text(await client.call_tool("ask_name")) == "Hello, Ada!"
            handle = await begin(client, "gated")
            waiting = asyncio.create_task(handle.result())
            desk.gate.set()
            assert text(await waiting) == "through"


async def test_a_result_of_some_megabytes_arrives() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = build(tasks, Desk())

    @server.tool()
    @tasks.task()
    def large(size: int) -> str:  # pyright: ignore[reportUnusedFunction]
        return "x" * size

    async with serving(server) as wire, connect(wire.url, person=Person()) as client:
        with anyio.fail_after(PATIENCE):
            handle = await begin(client, "large", size=3 * 2**20)
            assert len(text(await handle.result())) == 3 * 2**20


@pytest.mark.parametrize("meanwhile", ["tasks", "streams"])
async def test_leaving_while_the_server_still_speaks_is_quiet(meanwhile: str, caplog: pytest.LogCaptureFixture) -> None:
    desk, heard = Desk(), asyncio.Event()
    server = build(Tasks("memory://", settings=QUICK), desk)

    @server.tool()
    async def talks(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        for step in range(3000):
            await ctx.report_progress(step, None, "on and on")
            await asyncio.sleep(0)
        return "done"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async with serving(server) as wire:
        with anyio.fail_after(PATIENCE):
            async with connect(wire.url) as client:
                if meanwhile == "tasks":
                    handles = [await begin(client, "progressing", steps=200, total=None, message=None) for _ in "123"]
                    handles += [await begin(client, "gated") for _ in "123"]
                    waits = [asyncio.create_task(handle.result()) for handle in handles]
                    await desk.started.wait()
                    desk.gate.set()
                    await asyncio.sleep(0.02)  # sleep: it leaves in the middle of what is said
                else:
                    waits = [asyncio.create_task(client.call_tool("talks", progress_callback=hear)) for _ in "123"]
                    await heard.wait()
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
    # The server is in this process too, and the SDK says when a session is deleted under an answer.
    of_server = ("mcp.server", "uvicorn")
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors if not record.name.startswith(of_server)] == []


async def test_without_sessions_tasks_work_and_a_question_fails_clearly() -> None:
    server = build(Tasks("memory://", settings=QUICK), Desk())
    async with serving(server, stateless=True) as wire, connect(wire.url, person=Person()) as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("echo", {"value": 7})) == "7"
            handle = await begin(client, "ask_name")
            with pytest.raises(TaskFailed, match="stateless"):
                await handle.result()


async def test_a_stdio_server_is_driven(tmp_path: Path) -> None:
    command, *arguments = piped("tests.cli.asking_server", "--db", str(tmp_path / "tasks.db"))
    server = StdioServerParameters(command=command, args=arguments, env=dict(ENVIRONMENT), cwd=ROOT)
    async with connect(stdio_transport(server), ledger=tmp_path / "ledger.db") as client:
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("slow", {"seconds": 0.1})) == "slow done"
            assert text(await call_tool(client, "slow", {"seconds": 0.1})) == "slow done"
        assert pending_tasks(client) == []


async def test_the_old_sse_transport_carries_tasks_when_wrapped() -> None:
    server = build(Tasks("memory://", settings=QUICK), Desk())
    async with (
        serving_app(server.sse_app()) as base,
        connect(with_tasks(sse_client(f"{base}/sse")), person=Person()) as client,
    ):
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("ask_name")) == "Hello, Ada!"
