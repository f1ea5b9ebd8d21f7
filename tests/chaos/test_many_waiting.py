"""Many tasks of one server: thousands that wait for a person, and more that block threads than there are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from harness.http import HttpWire, http_client
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.serving import ServerProcess
from harness.stored import opened
from harness.waiting import eventually
from mcp_tasks.model import InputRequest, InputRequested, JournalEntry, RunParked, RunStarted, TaskRequest, apply
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record
from tests.chaos.subject import NAME, Name

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WAITING = 4_000
KEY = "elicitation-1"
SCHEMA = Name.model_json_schema()
THREADS = 50
"""More than anyio has for sync functions."""


def subject(folder: Path, *options: str) -> ServerProcess:
    url = f"sqlite:///{folder / 'tasks.db'}"
    return ServerProcess("tests.chaos.subject", "--fd", "{fd}", "--url", url, "--folder", folder, *options)


async def leave(store: SqliteStore, number: int) -> None:
    """Leave a task as a process does that asked, waited, and let the run leave memory."""
    params = {"mode": "form", "message": "What is your name?", "requestedSchema": SCHEMA}
    question = InputRequest(method="elicitation/create", params=params)
    now = datetime.now(UTC)
    record = make_record(id=f"task-{number}", name="greet", namespace=NAME, owner=None, created_at=now, updated_at=now)
    request = TaskRequest(
        name="greet", arguments={}, protocol_version="2026-07-28", client_capabilities={"elicitation": {}}
    )
    parked = apply(record, RunStarted(worker="an earlier process"), now)
    parked = apply(parked, InputRequested(attempt=1, requests={KEY: question}), now)
    parked = apply(parked, RunParked(attempt=1, keys={KEY}), now)
    await store.create(replace(parked, version=1), request)
    asked = JournalEntry(kind="ask", key=KEY, value={"method": question.method, "params": params})
    await store.save(parked, expected=1, entries=[asked])


def memory(server: ServerProcess) -> int:
    """Bytes that the server has for itself: what it shares with the file cache is not its own."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


async def test_thousands_of_waiting_tasks_cost_less_than_a_kilobyte_each_and_one_answer_wakes_one(
    tmp_path: Path,
) -> None:
    for folder in ("empty", "full"):
        (tmp_path / folder).mkdir()
    async with opened(SqliteStore(tmp_path / "full" / "tasks.db")) as store:
        for start in range(0, WAITING, 1000):
            await asyncio.gather(*(leave(store, number) for number in range(start, start + 1000)))
    async with http_client() as http, subject(tmp_path / "empty") as empty, subject(tmp_path / "full") as full:
        for server in (empty, full):
            await Tasking(HttpWire(server.url, http), EVERYTHING).call("plain")
        client = Tasking(HttpWire(full.url, http), EVERYTHING)
        assert (await client.get("task-7"))["status"] == "input_required"
        assert (memory(full) - memory(empty)) / WAITING < 1024
        await client.update("task-7", **{KEY: accept(name="Ann")})
        assert text_of((await client.until("task-7", "completed"))["result"]) == "Hello, Ann!"
        assert {(await client.get(f"task-{number}"))["status"] for number in range(0, WAITING, 397)} == {
            "input_required"
        }


async def test_blocking_tools_in_every_slot_delay_neither_looking_nor_plain_calls(tmp_path: Path) -> None:
    async with http_client() as http, subject(tmp_path, "--slots", str(THREADS)) as server:
        client = Tasking(HttpWire(server.url, http), EVERYTHING)
        tasks = [await client.create("blocks", job=f"job-{number}") for number in range(THREADS + 5)]
        await eventually(lambda: (tmp_path / "log").read_text().count("at work") == THREADS)
        with anyio.fail_after(20):
            assert text_of(await client.call("plain")) == "here"
            assert {(await client.get(task))["status"] for task in tasks} == {"working"}
        (tmp_path / "open").touch()
        for task in tasks:
            await client.until(task, "completed")
