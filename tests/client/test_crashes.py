"""Servers and clients of both eras that are killed in the middle: the other side gets what it waits for."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from harness.http import serving
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import PATIENCE
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import Ledger, TasksClient, reconnecting_http, resume_task
from mcp_tasks.testing import fixture_server
from tests.client.connecting import LONG, Person, begin, connect, text
from tests.client.peer import ACK, TASK_ID, Answer, Peer, asking, completed
from tests.client.processes import client_process, lines_of, logged, server_process

Mode: TypeAlias = Literal["auto", "legacy"]


@pytest.fixture
async def fixture_url() -> AsyncGenerator[str]:
    async with serving(fixture_server.build(Tasks("memory://", settings=QUICK))) as wire:
        yield wire.url


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "people.log"


def left_in(path: Path) -> list[str]:
    with closing(Ledger(path)) as book:
        return [entry.tool for entry in book.entries()]


# The server dies


def connect_to(url: str, mode: Mode, person: Any = None) -> Client:
    tasks = TasksClient(patience=LONG)
    return Client(reconnecting_http(url), mode=mode, elicitation_callback=person, extensions=[tasks])


both_eras = pytest.mark.parametrize("mode", ["auto", "legacy"])


@both_eras
async def test_a_server_that_is_killed_and_started_again_does_not_end_a_wait_nor_ask_somebody_who_thinks_again(
    tmp_path: Path, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    ready = asyncio.Event()
    person = Person(ready=ready)
    async with server_process(tmp_path) as server, connect_to(server.url, mode, person) as client:
        before = (await client.list_tools()).tools
        parked = await begin(client, "park", seconds=0.5)
        waiting = asyncio.create_task(parked.result())
        asking = asyncio.create_task(client.call_tool("confirm_delete", {"filename": "a.txt"}))
        await person.until_asked()
        server.kill()
        await eventually(lambda: "cannot be looked at" in caplog.text)
        await server.started()
        ready.set()
        with anyio.fail_after(PATIENCE):
            assert [text(await waiting), text(await asking)] == ["ok", "deleted a.txt"]
        # In the older era, in a new session: the server has forgotten the old one.
        assert (await client.session.list_tools()).tools == before
    assert len(person.asked) == 1


@both_eras
async def test_a_question_open_when_the_server_died_is_answered_from_a_new_client(tmp_path: Path, mode: Mode) -> None:
    async with server_process(tmp_path) as server:
        person = Person(ready=asyncio.Event())
        async with connect_to(server.url, mode, person) as client:
            handle = await begin(client, "confirm_delete", filename="a.txt")
            waiting = asyncio.create_task(handle.result())
            await person.until_asked()
            server.kill()
            waiting.cancel()
        await server.started()
        async with connect_to(server.url, mode, Person()) as client:
            assert text(await resume_task(client, handle.id).result(PATIENCE)) == "deleted a.txt"


# The client dies


@pytest.mark.requirement("client/persists-ids")
@both_eras
async def test_a_client_that_is_killed_at_a_question_and_at_work_comes_back_for_both(
    fixture_url: str, path: Path, log: Path, tmp_path: Path, mode: Mode
) -> None:
    work = tmp_path / "work.log"
    job = json.dumps({"n": 1, "seconds": 1.0, "log": str(work)})
    question = "Delete a.txt?"
    arguments = ("confirm_delete", json.dumps({"filename": "a.txt"}), "job", job)
    async with client_process(
        fixture_url, path, log, "start", "--mode", mode, "--think", question, *arguments
    ) as client:
        started = [(await client.line())["tool"] for _ in range(2)]
        await logged(log, f"asked: {question}")
        await client.kill()
    assert left_in(path) == started == ["confirm_delete", "job"]
    async with client_process(fixture_url, path, log, "resume", "--mode", mode) as client:
        assert await client.results() == {"confirm_delete": "deleted a.txt", "job": "job 1 done"}
    # Nobody had answered: the question was put again, and answered once.
    assert lines_of(log) == [f"asked: {question}"] * 2 + [f"answered: {question}"]
    assert [line.split()[1] for line in lines_of(work)] == ["start", "end"]
    assert left_in(path) == []


async def test_a_client_killed_between_two_answers_is_asked_for_the_other(
    fixture_url: str, path: Path, log: Path
) -> None:
    name, sure = "What is your name?", "Are you sure?"
    async with client_process(fixture_url, path, log, "start", "--think", sure, "multi_input", "{}") as client:
        task_id = (await client.line())["started"]
        await logged(log, f"asked: {sure}", f"answered: {name}")
        with closing(Ledger(path)) as book:
            # Acknowledged by the server, so that it is not asked any more.
            await eventually(lambda: [sent for _, sent in book.answers(fixture_url, task_id).values()] == [True])
        await client.kill()
    async with client_process(fixture_url, path, log, "resume") as client:
        assert await client.results() == {"multi_input": "name: accept, confirmation: accept"}
    asked = [line for line in lines_of(log) if line.startswith("asked")]
    assert sorted(asked) == [f"asked: {sure}", f"asked: {sure}", f"asked: {name}"]
    assert lines_of(log)[-1] == f"answered: {sure}"


@pytest.mark.requirement("client/deduplicates-keys")
async def test_a_client_killed_before_its_answer_arrived_sends_it_again(peer: Peer, path: Path, log: Path) -> None:
    async def hold(params: object) -> Answer:
        return await anyio.sleep_forever()

    async def accept(params: object) -> Answer:
        peer.on("tasks/get", completed("thanks"))
        return ACK

    peer.on("tasks/get", asking("q"))
    peer.on("tasks/update", hold)
    async with client_process(peer.url, path, log, "start", "x", "{}") as client:
        assert (await client.line())["started"] == TASK_ID
        await eventually(lambda: peer.asked("tasks/update"))
        await client.kill()
    peer.on("tasks/update", accept)
    async with client_process(peer.url, path, log, "resume") as client:
        assert await client.results() == {"x": "thanks"}
    first, second = peer.asked("tasks/update")
    assert first["inputResponses"] == second["inputResponses"]
    assert lines_of(log) == ["asked: Name?", "answered: Name?"]
    assert left_in(path) == []


_WITH_PID = """
import os, runpy, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
sys.argv = ["process", "stdio"]
runpy.run_module("harness.furnished", run_name="__main__")
"""


async def test_a_server_at_the_end_of_a_pipe_that_dies_ends_the_wait(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    command = StdioServerParameters(
        command=sys.executable, args=["-c", _WITH_PID, str(written)], cwd=ROOT, env=ENVIRONMENT
    )
    async with connect(command) as client:
        handle = await begin(client, "gated")
        asyncio.get_running_loop().call_later(0.1, os.kill, int(written.read_text()), signal.SIGKILL)
        with anyio.fail_after(3), pytest.raises(MCPError, match="closed"):
            await handle.result()
