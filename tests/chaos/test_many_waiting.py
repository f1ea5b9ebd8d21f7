"""Ten thousand tasks that wait for a person, after a restart: they cost the server next to nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mcp_tasks.model import (
    InputRequest,
    InputRequested,
    JournalEntry,
    RunParked,
    RunStarted,
    TaskRecord,
    TaskRequest,
    apply,
)
from mcp_tasks.stores.sqlite import SqliteStore
from tests.chaos.serving import Server, site

WAITING = 10_000
KEY = "elicitation-1"
SCHEMA = {
    "description": "Yes or no.",
    "properties": {"confirm": {"title": "Confirm", "type": "boolean"}},
    "required": ["confirm"],
    "title": "Confirmation",
    "type": "object",
}


def _request(number: int) -> TaskRequest:
    return TaskRequest(
        name="confirm_delete",
        arguments={"filename": f"file-{number}"},
        protocol_version="2026-07-28",
        client_capabilities={"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    )


def _question(number: int) -> InputRequest:
    params = {"mode": "form", "message": f"Delete file-{number}?", "requestedSchema": SCHEMA}
    return InputRequest(method="elicitation/create", params=params)


def _parked(number: int) -> TaskRecord:
    """A task as a process leaves it that asked, waited, and let the run leave memory."""
    now = datetime.now(UTC)
    record = TaskRecord(
        id=f"task-{number}",
        owner=None,
        name="confirm_delete",
        created_at=now,
        updated_at=now,
        namespace="mcp-tasks-fixture",
    )
    record = apply(record, RunStarted(worker="an earlier process"), now)
    record = apply(record, InputRequested(attempt=1, requests={KEY: _question(number)}), now)
    return apply(record, RunParked(attempt=1, keys={KEY}), now)


async def _leave(store: SqliteStore, number: int) -> None:
    record, question = _parked(number), _question(number)
    await store.create(replace(record, version=1), _request(number))
    asked = JournalEntry(kind="ask", key=KEY, value={"method": question.method, "params": dict(question.params)})
    await store.save(record, expected=1, entries=[asked])


async def _fill(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    for start in range(0, WAITING, 1000):
        await asyncio.gather(*(_leave(store, number) for number in range(start, start + 1000)))
    await store.close()


def _memory(server: Server) -> int:
    """Bytes that the server has for itself: what it shares with the file cache is not its own."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


def test_ten_thousand_waiting_tasks_cost_less_than_a_kilobyte_each_and_one_answer_wakes_one() -> None:
    with site() as empty:
        server = empty.serve()
        server.plain("plain_noop")
        alone = _memory(server)
    with site() as full:
        asyncio.run(_fill(full.db))
        server = full.serve()
        server.plain("plain_noop")
        assert server.status("task-7") == "input_required"
        assert (_memory(server) - alone) / WAITING < 1024
        server.answer("task-7", elicitation_1={"confirm": True})
        done = server.until_status("task-7", "completed")
        assert done["result"]["content"][0]["text"] == "deleted file-7"
        statuses = {server.status(f"task-{number}") for number in range(0, WAITING, 97)}
        assert statuses == {"input_required"}
