"""Tools of our server that ask as a task of our client, each in a process of its own or nearly so, in a plain call or
in a task of the server: the person is asked once, whoever dies in between."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, ErrorData, TextContent

from harness.http import serving
from harness.older import ASKABLE, http_session
from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Hosting, TaskHandle, TasksClient, TaskWasCancelled, reconnecting_http
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.connecting import begin, connect, text
from tests.client.peer import old_task
from tests.hosted.asking_server import build
from tests.hosted.raw_server import RELATED, Host, hosted, http_server, over_stdio


@asynccontextmanager
async def any_client(kind: str, host: Host) -> AsyncGenerator[Client]:
    if kind == "stdio":
        async with hosted(over_stdio(), host) as client:
            yield client
        return
    async with (
        http_server(*(["--json"] if kind == "json" else [])) as server,
        hosted(reconnecting_http(server.url), host) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> str:
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool(tool, arguments)
    return said(result)


def said(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


@pytest.mark.parametrize("kind", ["stdio", "http", "json"])
async def test_a_tool_asks_as_a_task_and_gets_the_answer(kind: str, host: Host) -> None:
    host.ready.set()
    async with any_client(kind, host) as client:
        assert await call(client, "approve", question="Publish?") == "accept True"
        assert await call(client, "write", text="Hello") == "Hi"
    assert host.asked == ["Publish?", "sample"]


async def test_a_later_call_comes_back_for_the_answer(host: Host) -> None:
    async with any_client("stdio", host) as client:
        task_id = await call(client, "begin", question="Publish?")
        assert await call(client, "status", task_id=task_id) == "working"
        assert "did not end within 0.2 s" in await refused(client, "fetch", task_id=task_id, seconds=0.2)
        assert task_id in await call(client, "listed")
        host.ready.set()
        assert await call(client, "fetch", task_id=task_id, seconds=20) == "accept"
        assert await call(client, "status", task_id=task_id) == "completed"
    assert host.asked == ["Publish?"]


async def test_a_tool_cancels_what_it_asked(host: Host) -> None:
    async with any_client("stdio", host) as client:
        task_id = await call(client, "begin", question="Publish?")
        assert await call(client, "cancel", task_id=task_id) == "cancelled"
        assert await call(client, "status", task_id=task_id) == "cancelled"
        await eventually(lambda: host.cancelled == 1)
        # An error that it lets pass is said as what it was.
        assert "was cancelled" in await refused(client, "fetch", task_id=task_id, seconds=20)
        assert "already in terminal status" in await refused(client, "cancel", task_id=task_id)
        assert "The client has no such task" in await refused(client, "status", task_id="nobody's")


async def test_an_answer_that_is_no_and_an_error_reach_the_tool(host: Host) -> None:
    host.ready.set()
    async with any_client("stdio", host) as client:
        host.answer = ElicitResult(action="decline")
        assert await call(client, "approve", question="Publish?") == "decline"
        host.answer = ErrorData(code=-1, message="User rejected")
        assert "User rejected" in await refused(client, "approve", question="Publish?")


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as exc:
        return exc.error.message
    assert result.is_error
    return said(result)


@pytest.mark.requirement("hosted-requestor/declared-only")
async def test_a_client_that_declares_no_tasks_is_not_asked_for_one(host: Host) -> None:
    async with Client(over_stdio(), mode="legacy", elicitation_callback=host.elicit) as client:
        assert "did not declare tasks.requests.elicitation.create" in await call(client, "try_to_ask")
    async with Client(over_stdio(), elicitation_callback=host.elicit) as client:
        assert "only 2025-11-25 has tasks of clients" in await call(client, "try_to_ask")
    async with (
        http_server("--stateless") as server,
        Client(streamable_http_client(server.url), mode="legacy") as client,
    ):
        assert "stateless" in await call(client, "try_to_ask")
    async with hosted(over_stdio(), host, mode="auto") as client:
        assert "only 2025-11-25 has tasks of clients" in await call(client, "try_to_ask")
    assert host.asked == []


# In a task of the server


async def result_of(handle: TaskHandle) -> str:
    with anyio.fail_after(PATIENCE):
        return text(await handle.result())


async def until_noted(db: Path, task_id: str) -> None:
    """Return when the server's task has noted which task of the client holds its question."""
    store = SqliteStore(db)
    await store.open()
    try:

        async def is_noted() -> bool:
            record = await store.get(task_id)
            return record is not None and any(ask.hosted_as for ask in record.inputs.outstanding.values())

        await eventually(is_noted)
    finally:
        await store.close()


async def test_a_task_asks_as_a_task_of_the_client(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"))
    async with hosted(over_stdio(), host, tasks) as client:
        handle = await begin(client, "publish")
        waiting = asyncio.create_task(result_of(handle))
        await eventually(lambda: host.asked == ["Publish?"])
        host.ready.set()
        assert await waiting == "published True"
    assert host.meta[0][RELATED] == {"taskId": handle.id}
    kept = HostedFile(tmp_path / "hosted.db")
    assert kept.counts("")[2] == 1
    kept.close()


async def test_a_question_that_is_withdrawn_is_cancelled_at_the_client(host: Host) -> None:
    async with hosted(over_stdio(), host) as client:
        handle = await begin(client, "publish")
        waiting = asyncio.create_task(result_of(handle))
        await eventually(lambda: host.asked == ["Publish?"])
        await handle.cancel()
        await eventually(lambda: host.cancelled == 1)
        with pytest.raises(TaskWasCancelled):
            await waiting


async def test_a_question_that_is_withdrawn_while_the_client_takes_it_is_cancelled_there() -> None:
    declared: dict[str, Any] = {**ASKABLE, "tasks": {"cancel": {}, "requests": {"elicitation": {"create": {}}}}}
    async with serving(build()) as wire, http_session(wire, declared) as client, client.listening():
        task_id = await client.start("publish_soon")
        question = await client.wait_for(lambda seen: seen.method == "elicitation/create")
        await client.until(task_id, "completed")
        theirs = {**old_task(), "taskId": "theirs"}
        await client.answer(question, {"task": theirs})
        cancelled = await client.wait_for(lambda seen: seen.method == "tasks/cancel")
        assert cancelled.params["taskId"] == "theirs"
        await client.answer(cancelled, {**theirs, "status": "cancelled"})


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_hosts_no_tasks_is_asked_plainly(mode: str, host: Host) -> None:
    host.ready.set()
    callbacks: dict[str, Any] = {"elicitation_callback": host.elicit, "sampling_callback": host.sample}
    async with Client(over_stdio(), mode=mode, extensions=[TasksClient()], **callbacks) as client:
        assert await result_of(await begin(client, "publish")) == "published True"
        assert await result_of(await begin(client, "compose")) == "Hi"
    assert host.asked == ["Publish?", "sample"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_cannot_be_asked_at_all_is_not_asked_plainly_either(mode: str) -> None:
    async with connect(over_stdio(), mode=mode) as client:
        for tool, kind in (("publish", "elicitation"), ("compose", "sampling")):
            with pytest.raises(Exception, match=f"did not declare the {kind} capability"):
                await result_of(await begin(client, tool))


async def test_an_answer_that_does_not_fit_is_asked_for_again_and_an_error_reaches_the_tool(host: Host) -> None:
    host.first_answers = [ElicitResult(action="accept", content={"ok": "perhaps"})]
    host.ready.set()
    async with hosted(over_stdio(), host) as client:
        assert await result_of(await begin(client, "publish")) == "published True"
        assert host.asked == ["Publish?", "Publish?"]
        host.answer = ErrorData(code=-1, message="User rejected")
        handle = await begin(client, "publish")
        with pytest.raises(Exception, match="User rejected"):
            await result_of(handle)


async def test_a_person_is_asked_once_though_the_server_is_killed(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"), ledger=tmp_path / "ledger.db")
    async with http_server("--store", f"sqlite:///{tmp_path}/tasks.db") as server:
        async with hosted(reconnecting_http(server.url), host, tasks) as client:
            handle = await begin(client, "publish")
            waiting = asyncio.create_task(result_of(handle))
            await until_noted(tmp_path / "tasks.db", handle.id)
            server.kill()
            await server.started()
            # Whatever the new process does until it has looked at the question, the person is not asked again.
            await anyio.sleep(1)  # sleep: the time in which the person would be asked again, and must not
            host.ready.set()
            assert await waiting == "published True"
        assert host.asked == ["Publish?"]


async def test_a_person_who_answered_while_the_server_was_down_is_not_asked_again(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"), ledger=tmp_path / "ledger.db")
    async with http_server("--store", f"sqlite:///{tmp_path}/tasks.db") as server:
        async with hosted(reconnecting_http(server.url), host, tasks) as client:
            started = await begin(client, "publish")
            await until_noted(tmp_path / "tasks.db", started.id)
            server.kill()
            host.ready.set()
            await eventually(lambda: host.answered == 1)
        await server.started()
        async with hosted(reconnecting_http(server.url), host, tasks) as client:
            [handle] = tasks.pending(client)
            assert await result_of(handle) == "published True"
        assert host.asked == ["Publish?"]
