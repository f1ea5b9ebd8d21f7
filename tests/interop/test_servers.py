"""Our client and our command line against the servers of others.

FastMCP's has tasks of the newer era and does not push. Those of the TypeScript and Python SDKs 1.x have tasks of the
older era, in memory, and give them only to the session that made them: from another one, or after a restart, a task is
not known any more, and our client has to say just that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import ENVIRONMENT, run
from harness.processes import running as running_process
from harness.serving import serving_command
from mcp_tasks.client import (
    Hosting,
    ServerTransport,
    TaskFailed,
    TasksClient,
    call_tool,
    list_tasks,
    pending_tasks,
    reconnecting_http,
    resume_task,
    stdio_transport,
)
from mcp_tasks.errors import TaskWasCancelled, UnknownTask, WaitTimedOut
from mcp_tasks.model.record import TaskStatus
from tests.cli.running import Cli
from tests.cli.terminal import on_terminal
from tests.client.connecting import begin, text
from tests.hosted.raw_server import Host

from .conftest import Begun
from .driving import DRIVERS, command, quiet_environment

PARKED = 30.0
PATIENCE = 20.0
FASTMCP, TYPESCRIPT, PYTHON = "fastmcp", "typescript", "python"
SERVERS = {
    FASTMCP: ("fastmcp", "fastmcp_server.py"),
    TYPESCRIPT: ("npm", "older_server.mjs"),
    PYTHON: ("python_sdk", "older_server.py"),
}
OLDER = [(sdk, way) for sdk in (TYPESCRIPT, PYTHON) for way in ("stdio", "http")]
ALL = [*OLDER, (FASTMCP, "http")]
TOOL_ERROR = "the job failed, as it always does"


def name_of(peer: Any) -> str:
    return "-".join(peer if peer[0] == FASTMCP else ("older", *peer))


def with_peers(*peers: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", peers, indirect=True, ids=name_of)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server of others: where it is, or how to start it."""

    sdk: str
    command: list[str]
    url: str | None

    @property
    def transport(self) -> ServerTransport:
        if self.url is not None:
            return reconnecting_http(self.url)
        program, *arguments = self.command
        return stdio_transport(StdioServerParameters(command=program, args=arguments, env=quiet_environment()))

    @property
    def word(self) -> str:
        """What the command line knows it by."""
        return self.url or " ".join(self.command)


@pytest.fixture(params=ALL, ids=name_of)
def peer(request: pytest.FixtureRequest, installs: Begun) -> Generator[Peer]:
    """A server of each of them, for one test.

    The Python SDK runs the tasks of all sessions in that of the last one: what one leaves behind may end another.
    """
    sdk, way = request.param
    needs, driver = SERVERS[sdk]
    server = command(installs[needs], driver)
    with ExitStack() as stack:
        url = stack.enter_context(serving_command([*server, "--port", "{port}"])) if way == "http" else None
        yield Peer(sdk=sdk, command=server, url=url)


class Person:
    """Answers questions, and remembers them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        if "keep.txt" in params.message:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"confirm": True} if "Delete" in params.message else {"name": "A"})


@asynccontextmanager
async def connected(peer: Peer, person: Person | None = None, **options: Any) -> AsyncGenerator[Client]:
    async with Client(peer.transport, extensions=[TasksClient(**options)], elicitation_callback=person) as client:
        assert (client.protocol_version == "2025-11-25") is (peer.sdk != FASTMCP)
        yield client


async def test_a_call_waits_for_its_task(peer: Peer) -> None:
    async with connected(peer) as client:
        assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
        result = await client.call_tool("slow_compute", {"seconds": 0.6, "label": "task"})
    assert text(result) == "task: done after 0.6 s"
    assert not result.is_error


async def test_states_on_the_way_to_the_result(peer: Peer) -> None:
    async with connected(peer) as client:
        handle = await begin(client, "slow_compute", seconds=3, label="watch")
        states = [state async for state in handle.watch()]
        result = await handle.result(PATIENCE)
    messages = [state.message for state in states if state.message is not None]
    assert messages
    assert all(message.startswith("watch: step ") for message in messages)
    assert states[-1].status is TaskStatus.COMPLETED
    assert text(result) == "watch: done after 3 s"


async def test_a_tool_that_fails(peer: Peer) -> None:
    """The Python SDK 1.x keeps what was raised as `statusMessage`; the others keep the result of a failed task."""
    async with connected(peer) as client:
        handle = await begin(client, "failing_job")
        if peer.sdk == PYTHON:
            with pytest.raises(TaskFailed, match=TOOL_ERROR):
                await handle.result(PATIENCE)
        else:
            result = await handle.result(PATIENCE)
            assert result.is_error
            assert TOOL_ERROR in text(result)
        if peer.sdk == FASTMCP:
            with pytest.raises(MCPError, match="the job ended in a protocol error") as caught:
                await (await begin(client, "protocol_error_job")).result()
            assert caught.value.code == -32603
        else:
            assert (await handle.status()).status is TaskStatus.FAILED


async def test_questions(peer: Peer) -> None:
    person = Person()
    async with connected(peer, person) as client:
        for filename, expected in (("a.txt", "deleted a.txt"), ("keep.txt", "kept keep.txt")):
            assert text(await call_tool(client, "confirm_delete", {"filename": filename}, timeout=PATIENCE)) == expected
        handle = await begin(client, "confirm_delete", filename="handle.txt")
        assert text(await handle.result(PATIENCE)) == "deleted handle.txt"
        if peer.sdk == FASTMCP:
            two = await call_tool(client, "multi_input", {}, timeout=PATIENCE)
            assert text(two) == "name: accept, confirmation: accept"
    assert person.asked[:3] == [f"Delete {filename}?" for filename in ("a.txt", "keep.txt", "handle.txt")]


async def test_cancel(peer: Peer) -> None:
    async with connected(peer) as client:
        handle = await begin(client, "park", seconds=PARKED)
        assert (await handle.status()).status is TaskStatus.WORKING
        await handle.cancel()
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)
        assert (await handle.status()).status is TaskStatus.CANCELLED
        handle = await begin(client, "park", seconds=PARKED)
        with pytest.raises(WaitTimedOut):
            await handle.result(0.3, on_abandon="cancel")
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)


async def test_resume_and_unknown_task(peer: Peer, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    async with connected(peer, ledger=ledger) as client:
        task_id = (await begin(client, "slow_compute", seconds=0.6, label="resumed")).id
        assert text(await resume_task(client, task_id).result(PATIENCE)) == "resumed: done after 0.6 s"
        with pytest.raises(UnknownTask):
            await resume_task(client, "no-such-task").status()
        task_id = (await begin(client, "slow_compute", seconds=0.6, label="left")).id
    async with connected(peer, ledger=ledger) as other:
        if peer.sdk == FASTMCP:
            assert text(await resume_task(other, task_id).result(PATIENCE)) == "left: done after 0.6 s"
            return
        with pytest.raises(UnknownTask):
            await resume_task(other, task_id).result(PATIENCE)
        # It stays until it is given up: the credentials may have been the wrong ones.
        assert task_id in [handle.id for handle in pending_tasks(other)]


@with_peers(*OLDER)
async def test_list(peer: Peer) -> None:
    """Twelve, which are two pages of the TypeScript SDK's."""
    async with connected(peer) as client:
        made = [await begin(client, "slow_compute", seconds=0, label=f"list {number}") for number in range(12)]
        listed = [snapshot.id async for snapshot in list_tasks(client)]
    assert {handle.id for handle in made} <= set(listed)
    assert len(listed) == len(set(listed))


@with_peers((FASTMCP, "http"))
async def test_leaving_right_after_a_short_task(peer: Peer) -> None:
    """A server without push refuses `subscriptions/listen`; that is no concern of a client that has left by then."""

    async def visit() -> None:
        async with connected(peer) as client:
            await client.call_tool("failing_job")

    for _ in range(4):
        await asyncio.gather(*(visit() for _ in range(4)))


async def test_a_restart_of_an_older_typescript_server_in_the_middle(installs: Begun) -> None:
    """Who waits for a task is told when its server comes back without it, and does not wait for ever."""
    needs, driver = SERVERS[TYPESCRIPT]
    server = command(installs[needs], driver)
    with ExitStack() as running:
        url = running.enter_context(serving_command([*server, "--port", "{port}"]))
        async with connected(Peer(sdk=TYPESCRIPT, command=server, url=url)) as client:
            handle = await begin(client, "park", seconds=PARKED)
            await anyio.to_thread.run_sync(running.close)
            again = [*server, "--port", str(urlsplit(url).port)]
            with running_process(again, env=quiet_environment()), pytest.raises((UnknownTask, MCPError)):
                await handle.result(PATIENCE)


@with_peers(*OLDER)
def test_the_command_line(tmp_path: Path, peer: Peer) -> None:
    cli = Cli(tmp_path)
    done = cli("call", peer.word, "slow_compute", "seconds=0.6", "label=cli")
    assert (done.returncode, done.stdout) == (0, "cli: done after 0.6 s\n"), done.stderr
    [entry] = cli.json("ls")
    assert (entry["tool"], entry["status"]) == ("slow_compute", "completed")
    done = cli("call", peer.word, "failing_job")
    # A tool that failed, or a call: see above.
    assert done.returncode == (1 if peer.sdk == TYPESCRIPT else 3)
    assert TOOL_ERROR in done.stderr + done.stdout
    done = cli("call", peer.word, "confirm_delete", "filename=a.txt", "--on-abandon", "cancel")
    assert done.returncode == 7
    assert "no terminal to ask at; it was cancelled" in done.stderr
    # The time runs from when the server is reached for, and over stdio it is started first.
    done = cli("call", peer.word, "park", "seconds=30", "--timeout", "5", "--on-abandon", "cancel")
    assert done.returncode == 5
    assert "cancelled" in done.stderr
    told = cli.json("tools", peer.word)
    assert (told["protocolVersion"], told["tasks"]) == ("2025-11-25", True)
    can_be = {tool["name"]: tool["task"] for tool in told["tools"]}
    assert (can_be["greet"], can_be["slow_compute"], can_be["failing_job"]) == ("never", "can be", "always")
    done = cli("doctor", peer.word)
    # It examines the newer era only, and does not call well what it has not looked at.
    assert done.returncode == 6
    assert "the server speaks only 2025-11-25, with the tasks of that version" in " ".join(done.stdout.split())


@with_peers(*OLDER)
def test_the_command_line_asks_at_the_terminal(tmp_path: Path, peer: Peer) -> None:
    with on_terminal(Cli(tmp_path), "call", peer.word, "confirm_delete", "filename=a.txt") as terminal:
        terminal.expect("Delete a.txt?")
        terminal.expect("confirm (yes or no")
        terminal.enter("yes")
        terminal.expect("deleted a.txt")
        assert terminal.wait() == 0


@with_peers(*OLDER)
def test_the_command_line_comes_back_to_a_task_that_is_not_known_any_more(tmp_path: Path, peer: Peer) -> None:
    """The task was given to the session of the command that started it, and that one has ended."""
    cli = Cli(tmp_path)
    task_id = cli.start(peer.word, "slow_compute", "seconds=0.2", "label=left")
    assert cli("wait", task_id).returncode != 0
    assert [entry["status"] for entry in cli.json("ls")] == ["unknown"]


# Tasks of the client, with the Python SDK 1.x at the other end: the server that asks, or the client that hosts


async def test_an_older_server_asks_our_client_for_tasks(installs: Begun) -> None:
    host = Host()
    host.ready.set()
    host.answer = ElicitResult(action="accept", content={"confirm": True})
    tasks = TasksClient(hosting=Hosting())
    server = StdioServerParameters(command=str(installs["python_sdk"]), args=[str(DRIVERS / "older_server.py")])
    async with Client(
        tasks.host(stdio_transport(server)),
        mode="legacy",
        extensions=[tasks],
        elicitation_callback=host.elicit,
        sampling_callback=host.sample,
    ) as client:
        with anyio.fail_after(60):
            said = [text(await client.call_tool(tool, {})) for tool in ("elicit", "sample")]
    assert said == ["accept {'confirm': True}", "Hi"]
    assert host.asked == ["Approve?", "sample"]


async def test_our_server_asks_an_older_client_for_tasks(installs: Begun) -> None:
    server = [sys.executable, "-m", "tests.hosted.asking_server", "stdio"]
    client = [installs["python_sdk"], DRIVERS / "older_hosting_client.py", *server]
    done = await anyio.to_thread.run_sync(partial(run, client, env=ENVIRONMENT, limit=90, check=True))
    assert json.loads(done.stdout) == {
        "approve": "accept True",
        "listed": True,
        "fetch": "accept",
        "in_task": "published True",
        "asked": ["Approve?", "Later?", "Publish?"],
    }
