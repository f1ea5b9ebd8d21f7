"""Tools that ask as a task of the client in a task of the server: the person is asked once, whoever dies in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult, ErrorData

from harness.http import serving
from harness.older import ASKABLE, http_session
from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Hosting, ServerTransport, TaskHandle, TasksClient, reconnecting_http
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.connecting import text
from tests.client.peer import old_task
from tests.hosted.asking_server import build
from tests.hosted.processes import http_server, over_stdio
from tests.hosted.raw_server import RELATED, Host

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hosting(tasks: TasksClient, transport: ServerTransport, host: Host) -> AsyncGenerator[Client]:
    async with Client(
        tasks.host(transport), mode="legacy", extensions=[tasks], elicitation_callback=host.elicit
    ) as client:
        yield client


async def result_of(handle: TaskHandle) -> str:
    with anyio.fail_after(PATIENCE):
        return text(await handle.result())


async def until_noted(db: Path, task_id: str) -> None:
    store = SqliteStore(db)
    await store.open()
    try:
        with anyio.fail_after(PATIENCE):
            while not _is_noted(await store.get(task_id)):  # noqa: ASYNC110 - what another process writes
                await anyio.sleep(0.02)
    finally:
        await store.close()


def _is_noted(record: TaskRecord | None) -> bool:
    return record is not None and any(ask.hosted_as for ask in record.inputs.outstanding.values())


async def begin(tasks: TasksClient, client: Client, tool: str) -> TaskHandle:
    handle = await tasks.start(client, tool)
    assert isinstance(handle, TaskHandle)
    return handle


async def test_a_task_asks_as_a_task_of_the_client(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"))
    async with hosting(tasks, over_stdio(), host) as client:
        handle = await begin(tasks, client, "publish")
        async with anyio.create_task_group() as group:

            async def answer() -> None:
                await eventually(lambda: host.asked == ["Publish?"])
                host.ready.set()

            group.start_soon(answer)
            assert await result_of(handle) == "published True"
    assert host.asked == ["Publish?"]
    assert host.meta[0][RELATED] == {"taskId": handle.id}
    kept = HostedFile(tmp_path / "hosted.db")
    assert kept.counts("")[2] == 1
    kept.close()


async def test_a_question_that_is_withdrawn_is_cancelled_at_the_client(host: Host) -> None:
    tasks = TasksClient(hosting=Hosting())
    async with hosting(tasks, over_stdio(), host) as client:
        handle = await begin(tasks, client, "publish_soon")
        assert await result_of(handle) == "too late"
        await eventually(lambda: host.cancelled == len(host.asked))


async def test_a_question_that_is_withdrawn_while_the_client_takes_it_is_cancelled_there() -> None:
    declared = {**ASKABLE, "tasks": {"cancel": {}, "requests": {"elicitation": {"create": {}}}}}
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
    tasks = TasksClient()
    async with Client(
        over_stdio(),
        mode=mode,
        extensions=[tasks],
        elicitation_callback=host.elicit,
        sampling_callback=host.sample,
    ) as client:
        assert await result_of(await begin(tasks, client, "publish")) == "published True"
        assert await result_of(await begin(tasks, client, "compose")) == "Hi"
    assert host.asked == ["Publish?", "sample"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_cannot_be_asked_at_all_is_not_asked_plainly_either(mode: str) -> None:
    tasks = TasksClient()
    async with Client(over_stdio(), mode=mode, extensions=[tasks]) as client:
        for tool, kind in (("publish", "elicitation"), ("compose", "sampling")):
            with pytest.raises(Exception, match=f"did not declare the {kind} capability"):
                await result_of(await begin(tasks, client, tool))


async def test_an_answer_that_does_not_fit_is_asked_for_again_as_a_new_task_and_an_error_reaches_the_tool(
    host: Host,
) -> None:
    host.first_answers = [ElicitResult(action="accept", content={"ok": "perhaps"})]
    host.ready.set()
    tasks = TasksClient(hosting=Hosting())
    async with hosting(tasks, over_stdio(), host) as client:
        assert await result_of(await begin(tasks, client, "publish")) == "published True"
        assert host.asked == ["Publish?", "Publish?"]
        host.answer = ErrorData(code=-1, message="User rejected")
        handle = await begin(tasks, client, "publish")
        with pytest.raises(Exception, match="User rejected"):
            await result_of(handle)


async def test_a_person_is_asked_once_though_the_server_is_killed(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"), ledger=tmp_path / "ledger.db")
    async with http_server("--store", f"sqlite:///{tmp_path}/tasks.db") as server:
        async with hosting(tasks, reconnecting_http(server.url), host) as client:
            handle = await begin(tasks, client, "publish")
            async with anyio.create_task_group() as group:

                async def crash() -> None:
                    await until_noted(tmp_path / "tasks.db", handle.id)
                    server.kill()
                    await server.started()
                    # Whatever the new process does until it has looked at the question, the person is not asked again.
                    await anyio.sleep(1)  # sleep: the time in which the person would be asked again, and must not
                    host.ready.set()

                group.start_soon(crash)
                assert await result_of(handle) == "published True"
        assert host.asked == ["Publish?"]


async def test_a_person_who_answered_while_the_server_was_down_is_not_asked_again(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"), ledger=tmp_path / "ledger.db")
    async with http_server("--store", f"sqlite:///{tmp_path}/tasks.db") as server:
        async with hosting(tasks, reconnecting_http(server.url), host) as client:
            started = await begin(tasks, client, "publish")
            await until_noted(tmp_path / "tasks.db", started.id)
            server.kill()
            host.ready.set()
            await eventually(lambda: host.answered == 1)
        await server.started()
        async with hosting(tasks, reconnecting_http(server.url), host) as client:
            [handle] = tasks.pending(client)
            assert await result_of(handle) == "published True"
        assert host.asked == ["Publish?"]
