"""One ledger, several servers and users: whose task is whose, and who is given a recorded answer."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Ledger, TasksClient, pending_tasks, reconnecting_http, resume_task, stdio_transport
from mcp_tasks.errors import UnknownTask, UsageError
from tests.client.connecting import begin, connect, text
from tests.client.peer import ACK, TASK_ID, UNKNOWN_TASK, Peer, asking, completed, serving_peer, task


@pytest.fixture
async def other() -> AsyncGenerator[Peer]:
    """Another server that gives itself the same name, and its tasks the same ids."""
    async with serving_peer() as peer:
        yield peer


class Pins:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"name": f"PIN {len(self.asked)}"})


def pins(peer: Peer) -> list[Any]:
    return [
        answer["content"]["name"]
        for params in peer.asked("tasks/update")
        for answer in params["inputResponses"].values()
    ]


async def test_a_server_of_the_same_name_does_not_touch_the_tasks_of_another(
    peer: Peer, other: Peer, ledger: Ledger
) -> None:
    other.on("tasks/get", UNKNOWN_TASK)
    async with connect(peer.url, ledger=ledger) as client:
        await begin(client, "x")
    async with connect(other.url, ledger=ledger) as client:
        assert pending_tasks(client) == []
        with pytest.raises(UnknownTask):
            await resume_task(client, TASK_ID).result()
    peer.on("tasks/get", completed("still there"))
    async with connect(peer.url, ledger=ledger) as client:
        [handle] = pending_tasks(client)
        assert text(await handle.result()) == "still there"


async def test_a_recorded_answer_is_for_its_server_and_its_question(peer: Peer, other: Peer, ledger: Ledger) -> None:
    person = Pins()
    for server in (peer, other):
        server.on("tasks/get", asking("q"))
        server.on("tasks/update", ACK)
    async with connect(peer.url, ledger=ledger, person=person) as client, anyio.create_task_group() as group:
        handle = await begin(client, "x")
        group.start_soon(handle.result)
        await eventually(lambda: pins(peer))
        group.cancel_scope.cancel()
    other.on("tasks/get", asking("q"), completed())
    another = asking("q")
    another["inputRequests"]["q"]["params"]["message"] = "And the PIN of the safe?"
    peer.on("tasks/get", another, completed())
    for url in (other.url, peer.url):
        async with connect(url, ledger=ledger, person=person) as client:
            await resume_task(client, TASK_ID).result()
    assert (pins(peer), pins(other)) == (["PIN 1", "PIN 3"], ["PIN 2"])
    assert person.asked == ["Name?", "Name?", "And the PIN of the safe?"]


async def test_an_answer_by_hand_is_remembered_with_its_question(peer: Peer, ledger: Ledger) -> None:
    person = Pins()
    peer.on("tasks/get", asking("q"))
    peer.on("tasks/update", ACK)
    async with connect(peer.url, ledger=ledger) as client:
        handle = await begin(client, "x")
        await handle.answer({"q": {"action": "accept", "content": {"name": "by hand"}}})
    peer.on("tasks/get", asking("q"), completed())
    async with connect(peer.url, ledger=ledger, person=person) as client:
        [handle] = pending_tasks(client)
        await handle.result()
    assert (person.asked, pins(peer)) == ([], ["by hand", "by hand"])


async def test_users_of_a_server_have_tasks_of_their_own_whatever_their_tokens_are(peer: Peer, ledger: Ledger) -> None:
    for identity, token, tools in (("ann", "first", []), ("bob", "second", []), ("ann", "third", ["of ann"])):
        transport = reconnecting_http(peer.url, headers={"Authorization": f"Bearer {token}"})
        async with connect(transport, ledger=ledger, identity=identity) as client:
            assert [handle.tool for handle in pending_tasks(client)] == tools
            if not tools:
                await begin(client, f"of {identity}")
    assert [(entry.identity, entry.tool) for entry in ledger.entries()] == [("ann", "of ann"), ("bob", "of bob")]
    assert "Bearer" not in str(ledger.entries())


# Addresses


async def test_where_no_address_is_known_nothing_is_sent_or_written(peer: Peer, ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="server="):
        Client(peer.url, extensions=[TasksClient(ledger=ledger)])
    # Another client's transport that waits to be used says nothing about this one.
    waiting = reconnecting_http(peer.url)
    async with Client(peer.url, extensions=[TasksClient(ledger=ledger)]) as client:
        for use in (lambda: resume_task(client, TASK_ID), lambda: pending_tasks(client)):
            with pytest.raises(UsageError, match="server="):
                use()
        with pytest.raises(UsageError, match="server="):
            await begin(client, "x")
        assert peer.asked("tools/call") == []
        # The SDK does not let us speak before this one is sent, so it names the task.
        with pytest.raises(UsageError, match=TASK_ID):
            await client.call_tool("x")
    assert ledger.entries() == []
    del waiting


async def test_the_address_is_the_authors_or_that_of_the_transport(peer: Peer, other: Peer, ledger: Ledger) -> None:
    for target in (peer.url, reconnecting_http(peer.url)):
        async with connect(target, ledger=ledger, server="production") as client:
            await begin(client, "x")
    assert [entry.server for entry in ledger.entries()] == ["production"]
    ledger.forget(TASK_ID, server="production")
    # A server cannot claim the address of another, nor can a client that shares the extension.
    peer.on("tools/call", task(resultType="task", _meta={"mcp-tasks/transport": "https://bank.example/mcp"}))
    tasks = TasksClient(ledger=ledger)
    async with (
        connect(reconnecting_http(peer.url), tasks=tasks) as client,
        connect(reconnecting_http(other.url), tasks=tasks) as there,
    ):
        await begin(client, "here")
        await begin(there, "there")
        assert [handle.tool for handle in pending_tasks(client)] == ["here"]
        assert [handle.tool for handle in pending_tasks(there)] == ["there"]
    assert {entry.server: entry.tool for entry in ledger.entries()} == {peer.url: "here", other.url: "there"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("HTTPS://Me:secret@Host.example:443/mcp#there", "https://host.example/mcp"),
        ("http://host.example", "http://host.example/"),
        ("http://[::1]:8000/mcp?tenant=a", "http://[::1]:8000/mcp?tenant=a"),
    ],
)
def test_a_url_is_an_address_without_its_credentials(url: str, address: str) -> None:
    assert reconnecting_http(url).address == address


def test_a_command_is_an_address_with_its_folder_and_environment(tmp_path: Path) -> None:
    def address(**fields: Any) -> str:
        return stdio_transport(StdioServerParameters(command="serve", args=["--fast"], **fields)).address

    here = address()
    assert here == f"cd {Path.cwd()} && serve --fast"
    assert address(cwd=tmp_path) == f"cd {tmp_path} && serve --fast"
    keyed = [address(env={"API_KEY": value}) for value in ("hunter2", "hunter3")]
    assert len({here, *keyed}) == 3
    assert "API_KEY" in keyed[0]
    assert "hunter2" not in keyed[0]


async def test_a_stdio_server_is_known_by_its_command(ledger: Ledger) -> None:
    arguments = ["-m", "harness.furnished", "stdio"]
    command = StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    async with connect(stdio_transport(command), ledger=ledger) as client:
        with anyio.fail_after(PATIENCE):
            handle = await begin(client, "gated")
        [entry] = ledger.entries()
        await handle.cancel()
    assert entry.server.endswith(f"cd {ROOT} && {sys.executable} -m harness.furnished stdio")
