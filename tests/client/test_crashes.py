"""Servers and clients that are killed in the middle of a wait: the other side gets what it waits for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.shared.exceptions import MCPError

from harness.http import serving
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import PATIENCE
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import Ledger, reconnecting_http
from mcp_tasks.model import TaskStatus
from mcp_tasks.testing import fixture_server
from tests.client.connecting import Person, begin, connect, seen, text
from tests.client.peer import TASK_ID, Answer, Peer, asking, completed
from tests.client.processes import client_process, lines_of, logged, server_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fixture_url() -> AsyncGenerator[str]:
    """Where a fixture server is that stays."""
    async with serving(fixture_server.build(Tasks("memory://", settings=QUICK))) as wire:
        yield wire.url


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where people write down what they were asked."""
    return tmp_path / "people.log"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Where clients write down what they started."""
    return tmp_path / "ledger.db"


def left_in(ledger: Path) -> list[str]:
    """The tools of the tasks that the ledger still has."""
    book = Ledger(ledger)
    tools = [entry.tool for entry in book.entries()]
    book.close()
    return tools


# The server dies


@pytest.mark.parametrize("push", [True, False], ids=["push", "polls"])
async def test_a_server_that_is_killed_and_started_again_on_its_port_does_not_end_a_wait(
    tmp_path: Path, push: bool, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[str] = []
    async with (
        server_process(tmp_path) as server,
        connect(reconnecting_http(server.url), push=push, person=Person()) as client,
    ):
        parked = await begin(client, "park", seconds=0.5)
        handle = await begin(client, "confirm_delete", filename="a.txt")

        async def wait() -> None:
            results.append(text(await parked.result()))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await seen(handle, lambda snapshot: snapshot.input_requests)
            server.kill()
            await eventually(lambda: "cannot be looked at" in caplog.text)
            await server.started()
        assert results == ["ok"]
        # And what waited for an answer before waits for it now.
        asking = await seen(handle, lambda snapshot: snapshot.input_requests)
        await handle.answer(dict.fromkeys(asking.input_requests, _confirmed()))
        assert text(await handle.result(PATIENCE)) == "deleted a.txt"


async def test_a_person_who_is_still_thinking_when_the_server_comes_back_is_not_asked_again(tmp_path: Path) -> None:
    results: list[str] = []
    ready = asyncio.Event()
    person = Person(ready=ready)
    async with (
        server_process(tmp_path) as server,
        connect(reconnecting_http(server.url), person=_yes(person)) as client,
        anyio.create_task_group() as group,
    ):

        async def call() -> None:
            results.append(text(await client.call_tool("confirm_delete", {"filename": "b.txt"})))

        group.start_soon(call)
        await person.until_asked()
        server.kill()
        await server.started()
        ready.set()
    assert results == ["deleted b.txt"]
    assert len(person.asked) == 1


def _confirmed() -> dict[str, Any]:
    return {"action": "accept", "content": {"confirm": True}}


def _yes(person: Person) -> Any:
    async def ask(context: Any, params: Any) -> Any:
        answer = await person(context, params)
        return answer.model_copy(update={"content": {"confirm": True}})

    return ask


# The client dies


@pytest.mark.requirement("client/persists-ids")
async def test_a_client_that_is_killed_at_a_question_and_at_work_comes_back_for_both(
    fixture_url: str, ledger: Path, log: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work.log"
    job = json.dumps({"n": 1, "seconds": 1.0, "log": str(work)})
    question = "Delete a.txt?"
    arguments = ("confirm_delete", json.dumps({"filename": "a.txt"}), "job", job)
    async with client_process(fixture_url, ledger, log, "start", "--think", question, *arguments) as client:
        started = [(await client.line())["tool"] for _ in range(2)]
        await logged(log, f"asked: {question}")
        await client.kill()
    assert left_in(ledger) == started == ["confirm_delete", "job"]
    async with client_process(fixture_url, ledger, log, "resume") as client:
        assert await client.results() == {"confirm_delete": "deleted a.txt", "job": "job 1 done"}
    # Nobody had answered: the question was put again, and answered once.
    assert lines_of(log) == [f"asked: {question}"] * 2 + [f"answered: {question}"]
    assert [line.split()[1] for line in lines_of(work)] == ["start", "end"]
    assert left_in(ledger) == []


async def test_a_client_that_is_killed_between_two_answers_is_asked_for_the_missing_one_only(
    fixture_url: str, ledger: Path, log: Path
) -> None:
    name, sure = "What is your name?", "Are you sure?"
    async with client_process(fixture_url, ledger, log, "start", "--think", sure, "multi_input", "{}") as client:
        task_id = (await client.line())["started"]
        await logged(log, f"asked: {sure}", f"answered: {name}")
        book = Ledger(ledger)
        # Acknowledged by the server, so that it is not asked any more.
        await eventually(lambda: [sent for _, sent in book.answers(fixture_url, task_id).values()] == [True])
        book.close()
        await client.kill()
    async with client_process(fixture_url, ledger, log, "resume") as client:
        assert await client.results() == {"multi_input": "name: accept, confirmation: accept"}
    asked = [line for line in lines_of(log) if line.startswith("asked")]
    assert sorted(asked) == [f"asked: {sure}", f"asked: {sure}", f"asked: {name}"]
    assert lines_of(log)[-1] == f"answered: {sure}"


@pytest.mark.requirement("client/deduplicates-keys")
async def test_a_client_that_is_killed_before_its_answer_arrived_sends_it_again_and_asks_nobody(
    peer: Peer, peer_url: str, ledger: Path, log: Path
) -> None:
    never = asyncio.Event()

    async def hold(params: Mapping[str, Any]) -> Answer:
        await never.wait()
        return {}

    async def accept(params: Mapping[str, Any]) -> Answer:
        peer.on("tasks/get", completed("thanks"))
        return {"resultType": "complete"}

    peer.on("tasks/get", asking("q"))
    peer.handlers["tasks/update"] = hold
    async with client_process(peer_url, ledger, log, "start", "x", "{}") as client:
        assert (await client.line())["started"] == TASK_ID
        await eventually(lambda: peer.asked("tasks/update"))
        await client.kill()
    peer.handlers["tasks/update"] = accept
    async with client_process(peer_url, ledger, log, "resume") as client:
        assert await client.results() == {"x": "thanks"}
    first, second = peer.asked("tasks/update")
    assert first["inputResponses"] == second["inputResponses"]
    assert lines_of(log) == ["asked: Name?", "answered: Name?"]
    assert left_in(ledger) == []


async def test_a_task_started_here_can_be_waited_for_in_another_process(fixture_url: str, log: Path) -> None:
    async with connect(fixture_url, person=Person()) as client:
        handle = await begin(client, "confirm_delete", filename="c.txt")
        async with client_process(fixture_url, "-", log, "wait", handle.id) as other:
            assert await other.results() == {"": "deleted c.txt"}
        # Answered there, by the person there, and seen here.
        snapshot = await handle.status()
    assert snapshot.status is TaskStatus.COMPLETED
    assert lines_of(log) == ["asked: Delete c.txt?", "answered: Delete c.txt?"]


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
