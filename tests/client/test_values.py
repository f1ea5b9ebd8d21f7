"""Whatever a host's author writes that cannot be meant is refused before a task is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.server import Desk
from harness.waiting import eventually
from mcp_tasks.client import Ledger, TasksClient, WaitTimedOut, call_tool, pending_tasks, resume_task
from mcp_tasks.errors import InvalidDuration, InvalidOption, UnknownTask
from tests.client.connecting import begin, connect, text
from tests.client.peer import TASK_ID, UNKNOWN_TASK, Peer, task

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"on_abandon": "kill"}, "on_abandon must be 'cancel' or 'leave', got 'kill'"),
        ({"patience": 5}, r"patience must be a Patience, got 5: write patience=Patience\(\.\.\.\)"),
        ({"ledger": 5}, "ledger must be the path of a file, or a Ledger; got 5"),
        ({"push": "no"}, "push must be True or False, got 'no'"),
        ({"on_progress": "x"}, "on_progress must be an async function of the progress, got 'x'"),
        ({"server": ""}, "server must be a non-empty string, got ''"),
        ({"identity": None}, "identity must be a string, got None"),
    ],
    ids=str,
)
def test_a_value_that_a_client_cannot_have_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        TasksClient(**mistake)


WRONG_WAITS: list[tuple[dict[str, Any], type[InvalidOption], str]] = [
    ({"on_abandon": "kill"}, InvalidOption, "on_abandon must be 'cancel' or 'leave', got 'kill'"),
    ({"on_progress": 5}, InvalidOption, "on_progress must be an async function of the progress, got 5"),
    ({"timeout": "1s"}, InvalidDuration, "timeout must be a timedelta or a number of seconds, got '1s'"),
    ({"timeout": True}, InvalidDuration, "timeout must be .*, got True"),
    ({"timeout": float("nan")}, InvalidDuration, "timeout must be .*, got nan"),
]


@pytest.mark.parametrize(("mistake", "kind", "says"), WRONG_WAITS, ids=str)
async def test_a_call_that_cannot_be_meant_is_refused_before_there_is_a_task(
    url: str, desk: Desk, mistake: dict[str, Any], kind: type[InvalidOption], says: str
) -> None:
    async with connect(url) as client:
        with pytest.raises(kind, match=says):
            await call_tool(client, "gated", **mistake)
        # The tool would have begun before any answer to a later request.
        await client.list_tools()
    assert not desk.started.is_set()


@pytest.mark.parametrize(("mistake", "kind", "says"), WRONG_WAITS, ids=str)
async def test_a_wait_that_cannot_be_meant_is_refused_and_the_task_goes_on(
    url: str, desk: Desk, mistake: dict[str, Any], kind: type[InvalidOption], says: str
) -> None:
    async with connect(url, on_abandon="cancel") as client:
        handle = await begin(client, "gated")
        with pytest.raises(kind, match=says):
            await handle.result(**mistake)
        desk.gate.set()
        assert text(await handle.result()) == "through"


async def test_a_task_is_not_abandoned_in_a_way_that_there_is_not(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handle = await begin(client, "gated")
        with pytest.raises(InvalidOption, match="on_abandon"):
            await handle.abandon("kill")  # pyright: ignore[reportArgumentType]
        desk.gate.set()
        assert text(await handle.result()) == "through"


@pytest.mark.parametrize("way", ["handle", "call"])
async def test_a_task_that_was_cancelled_from_here_is_no_longer_pending(
    url: str, desk: Desk, way: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    async with connect(url, ledger=ledger) as client:
        if way == "handle":
            handle = await begin(client, "gated")
            assert [known.id for known in pending_tasks(client)] == [handle.id]
            await handle.cancel()
        else:
            with pytest.raises(WaitTimedOut, match="was cancelled"):
                await call_tool(client, "gated", timeout=0.2, on_abandon="cancel")
        await eventually(desk.stopped.is_set)
        assert pending_tasks(client) == []
    assert ledger.entries() == []


async def test_a_ledger_that_keeps_results_keeps_a_task_that_was_cancelled_as_that(
    peer: Peer, peer_url: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db", keep_results=True)
    peer.on("tasks/cancel", {"resultType": "complete"})
    peer.on("tasks/get", task())
    async with connect(peer_url, ledger=ledger) as client:
        handle = resume_task(client, TASK_ID)
        handle.remember()
        await handle.cancel()
        assert pending_tasks(client) == []
        [entry] = ledger.entries()
        assert entry.status == "cancelled"
        assert entry.finished_at is not None
        # The server may take its time; what is seen later counts.
        await handle.status()
        assert [known.id for known in pending_tasks(client)] == [TASK_ID]


async def test_a_task_that_the_server_does_not_know_is_named(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", UNKNOWN_TASK)
    async with connect(peer_url) as client:
        with pytest.raises(UnknownTask, match=f"^Task {TASK_ID} not found: it does not exist, has expired, or is not"):
            await resume_task(client, TASK_ID).status()
