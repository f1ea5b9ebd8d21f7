"""Our client and our command line against servers of the TypeScript and Python SDKs 1.x, with their experimental tasks.

Both keep tasks in memory, and give them only to the session that made them. So there a task is resumed in its session;
from another one, or after a restart, it is not known any more, and our client has to say just that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import running as running_process
from harness.serving import serving_command
from mcp_tasks.client import (
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

from .conftest import Installs
from .driving import command, quiet_environment

PARKED = 30.0
PATIENCE = 20.0
TYPESCRIPT, PYTHON = "typescript", "python"
SERVERS = {TYPESCRIPT: ("npm", "older_server.mjs"), PYTHON: ("python_sdk", "older_server.py")}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server of others: where it is, or how to start it."""

    sdk: str
    command: list[str]
    url: str | None

    @property
    def transport(self) -> ServerTransport:
        """A transport of ours to it."""
        if self.url is not None:
            return reconnecting_http(self.url)
        program, *arguments = self.command
        return stdio_transport(StdioServerParameters(command=program, args=arguments, env=quiet_environment()))

    @property
    def word(self) -> str:
        """What the command line knows it by."""
        return self.url or " ".join(self.command)


@pytest.fixture(params=["stdio", "http"])
def way(request: pytest.FixtureRequest) -> str:
    """How our client reaches it."""
    return request.param


@pytest.fixture(params=[TYPESCRIPT, PYTHON])
def peer(request: pytest.FixtureRequest, way: str, installs: Installs) -> Generator[Peer]:
    """A server of each of them, for one test.

    The Python SDK runs the tasks of all sessions in that of the last one: what one leaves behind may end another.
    """
    needs, driver = SERVERS[request.param]
    server = command(installs[needs], driver)
    with ExitStack() as stack:
        url = stack.enter_context(serving_command([*server, "--port", "{port}"])) if way == "http" else None
        yield Peer(sdk=request.param, command=server, url=url)


class Person:
    """Answers questions, and remembers them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        if "keep.txt" in params.message:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"confirm": True})


@asynccontextmanager
async def _connected(peer: Peer, person: Person | None = None, **options: Any) -> AsyncGenerator[Client]:
    async with Client(peer.transport, extensions=[TasksClient(**options)], elicitation_callback=person) as client:
        assert client.protocol_version == "2025-11-25"
        yield client


@pytest.mark.anyio
async def test_plain_call(peer: Peer) -> None:
    async with _connected(peer) as client:
        assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"


# --- create -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_create(peer: Peer) -> None:
    async with _connected(peer) as client:
        handle = await begin(client, "park", seconds=PARKED)
        assert (await handle.status()).status is TaskStatus.WORKING
        await handle.cancel()


# --- result -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_call_waits_for_its_task(peer: Peer) -> None:
    async with _connected(peer) as client:
        result = await client.call_tool("slow_compute", {"seconds": 0.6, "label": "task"})
    assert text(result) == "task: done after 0.6 s"
    assert not result.is_error


@pytest.mark.anyio
async def test_states_on_the_way_to_the_result(peer: Peer) -> None:
    async with _connected(peer) as client:
        handle = await begin(client, "slow_compute", seconds=3, label="watch")
        states = [state async for state in handle.watch()]
        result = await handle.result(PATIENCE)
    messages = [state.message for state in states if state.message is not None]
    assert messages
    assert all(message.startswith("watch: step ") for message in messages)
    assert states[-1].status is TaskStatus.COMPLETED
    assert text(result) == "watch: done after 3 s"


@pytest.mark.anyio
async def test_a_tool_that_fails(peer: Peer) -> None:
    """The TypeScript SDK keeps the result of a failed task; the Python SDK keeps what was raised as `statusMessage`."""
    async with _connected(peer) as client:
        handle = await begin(client, "failing_job")
        if peer.sdk == TYPESCRIPT:
            result = await handle.result(PATIENCE)
            assert result.is_error
            assert "the job failed, as it always does" in text(result)
        else:
            with pytest.raises(TaskFailed, match="the job failed, as it always does"):
                await handle.result(PATIENCE)
        assert (await handle.status()).status is TaskStatus.FAILED


# --- question -----------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(("filename", "expected"), [("a.txt", "deleted a.txt"), ("keep.txt", "kept keep.txt")])
async def test_question(peer: Peer, filename: str, expected: str) -> None:
    person = Person()
    async with _connected(peer, person) as client:
        assert text(await call_tool(client, "confirm_delete", {"filename": filename}, timeout=PATIENCE)) == expected
    assert person.asked == [f"Delete {filename}?"]


@pytest.mark.anyio
async def test_question_to_who_holds_a_handle(peer: Peer) -> None:
    person = Person()
    async with _connected(peer, person) as client:
        handle = await begin(client, "confirm_delete", filename="handle.txt")
        assert text(await handle.result(PATIENCE)) == "deleted handle.txt"
    assert person.asked == ["Delete handle.txt?"]


# --- cancel -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_cancel(peer: Peer) -> None:
    async with _connected(peer) as client:
        handle = await begin(client, "park", seconds=PARKED)
        await handle.cancel()
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)
        assert (await handle.status()).status is TaskStatus.CANCELLED


@pytest.mark.anyio
async def test_a_wait_that_times_out_cancels(peer: Peer) -> None:
    async with _connected(peer) as client:
        handle = await begin(client, "park", seconds=PARKED)
        with pytest.raises(WaitTimedOut):
            await handle.result(0.3, on_abandon="cancel")
        with pytest.raises(TaskWasCancelled):
            await handle.result(PATIENCE)


# --- list ---------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_list(peer: Peer) -> None:
    """Twelve, which are two pages of the TypeScript SDK's."""
    async with _connected(peer) as client:
        made = [await begin(client, "slow_compute", seconds=0, label=f"list {number}") for number in range(12)]
        listed = [snapshot.id async for snapshot in list_tasks(client)]
    assert {handle.id for handle in made} <= set(listed)
    assert len(listed) == len(set(listed))


# --- resume -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_resume_in_the_session(peer: Peer) -> None:
    async with _connected(peer) as client:
        task_id = (await begin(client, "slow_compute", seconds=0.6, label="resumed")).id
        assert text(await resume_task(client, task_id).result(PATIENCE)) == "resumed: done after 0.6 s"


@pytest.mark.anyio
async def test_resume_from_another_session_is_told_that_the_task_is_unknown(peer: Peer, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    async with _connected(peer, ledger=ledger) as client:
        task_id = (await begin(client, "slow_compute", seconds=0.2, label="lost")).id
    async with _connected(peer, ledger=ledger) as other:
        [handle] = pending_tasks(other)
        assert handle.id == task_id
        with pytest.raises(UnknownTask):
            await handle.result(PATIENCE)
        # It stays until it is given up: the credentials may have been the wrong ones.
        assert [handle.id for handle in pending_tasks(other)] == [task_id]


@pytest.mark.anyio
async def test_unknown_task(peer: Peer) -> None:
    async with _connected(peer) as client:
        with pytest.raises(UnknownTask):
            await resume_task(client, "no-such-task").status()


@pytest.mark.anyio
async def test_a_restart_in_the_middle(installs: Installs) -> None:
    """Who waits for a task is told when its server comes back without it, and does not wait for ever."""
    needs, driver = SERVERS[TYPESCRIPT]
    server = command(installs[needs], driver)
    with ExitStack() as running:
        url = running.enter_context(serving_command([*server, "--port", "{port}"]))
        async with _connected(Peer(sdk=TYPESCRIPT, command=server, url=url)) as client:
            handle = await begin(client, "park", seconds=PARKED)
            await anyio.to_thread.run_sync(running.close)
            again = [*server, "--port", str(urlsplit(url).port)]
            with running_process(again, env=quiet_environment()), pytest.raises((UnknownTask, MCPError)):
                await handle.result(PATIENCE)


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`mcp-tasks` with a ledger of its own."""
    return Cli(tmp_path)


def test_the_command_line_calls_and_lists(cli: Cli, peer: Peer) -> None:
    done = cli("call", peer.word, "slow_compute", "seconds=0.6", "label=cli")
    assert (done.returncode, done.stdout) == (0, "cli: done after 0.6 s\n"), done.stderr
    [entry] = cli.json("ls")
    assert (entry["tool"], entry["status"]) == ("slow_compute", "completed")


def test_the_command_line_says_how_a_task_failed(cli: Cli, peer: Peer) -> None:
    done = cli("call", peer.word, "failing_job")
    # A tool that failed, or a call: see above.
    assert done.returncode == (1 if peer.sdk == TYPESCRIPT else 3)
    assert "the job failed, as it always does" in done.stderr + done.stdout


def test_the_command_line_asks_at_the_terminal(cli: Cli, peer: Peer) -> None:
    with on_terminal(cli, "call", peer.word, "confirm_delete", "filename=a.txt") as terminal:
        terminal.expect("Delete a.txt?")
        terminal.expect("confirm (yes or no")
        terminal.enter("yes")
        terminal.expect("deleted a.txt")
        assert terminal.wait() == 0


def test_the_command_line_has_nobody_to_ask(cli: Cli, peer: Peer) -> None:
    done = cli("call", peer.word, "confirm_delete", "filename=a.txt", "--on-abandon", "cancel")
    assert done.returncode == 7
    assert "no terminal to ask at; it was cancelled" in done.stderr


def test_the_command_line_cancels(cli: Cli, peer: Peer) -> None:
    # The time runs from when the server is reached for, and over stdio it is started first.
    done = cli("call", peer.word, "park", "seconds=30", "--timeout", "5", "--on-abandon", "cancel")
    assert done.returncode == 5
    assert "cancelled" in done.stderr


def test_the_command_line_comes_back_to_a_task_that_is_not_known_any_more(cli: Cli, peer: Peer) -> None:
    """The task was given to the session of the command that started it, and that one has ended."""
    task_id = cli.start(peer.word, "slow_compute", "seconds=0.2", "label=left")
    done = cli("wait", task_id)
    assert done.returncode != 0
    assert [entry["status"] for entry in cli.json("ls")] == ["unknown"]


def test_the_command_line_tells_which_tools_can_be_tasks(cli: Cli, peer: Peer) -> None:
    told = cli.json("tools", peer.word)
    assert (told["protocolVersion"], told["tasks"]) == ("2025-11-25", True)
    can_be = {tool["name"]: tool["task"] for tool in told["tools"]}
    assert (can_be["greet"], can_be["slow_compute"], can_be["failing_job"]) == ("never", "can be", "always")


def test_the_doctor_knows_the_era(cli: Cli, peer: Peer) -> None:
    done = cli("doctor", peer.word)
    # It examines the newer era only, and does not call well what it has not looked at.
    assert done.returncode == 6
    assert "the server speaks only 2025-11-25, with the tasks of that version" in " ".join(done.stdout.split())
