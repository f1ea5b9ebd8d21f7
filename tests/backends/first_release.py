"""What is in `first_release.sqlite`, a file that the first release (0.1.0, schema 1) wrote; and how it was written.

To write it again, with a checkout of commit 1acc012 in FOLDER and its dependencies installed:

    PYTHONPATH=FOLDER/src python -m tests.backends.first_release
"""

# ruff: noqa: ASYNC240 - a script may wait for a local file
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from mcp_tasks.core import (
    InputBook,
    InputRequest,
    JournalEntry,
    JsonObject,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

FILE = Path(__file__).with_suffix(".sqlite")

ODD: JsonObject = {
    "snow": "☃",
    "lone": "\ud800",
    "nul": "\0",
    "numbers": [2**70, 0.1, -0.0, 5e-324],
    "": [None, {"a": [[]]}],
}


def task(**fields: Any) -> TaskRecord:
    """A task that is the same whoever makes it: `make_record` by itself numbers what it makes."""
    return make_record(**{"request": TaskRequest(name="render", arguments={"scene": "forest"}), **fields})


TASKS: Sequence[TaskRecord] = [
    task(id="queued", request=TaskRequest(name="render", arguments=ODD, meta=ODD, client_info=ODD)),
    task(id="held", holder="a process of yesterday", attempt=1, started_at=NOON, version=2),
    task(
        id="parked",
        request=TaskRequest(name="ask", arguments={}, input_responses={"q0": ODD}, request_state="state"),
        status=TaskStatus.INPUT_REQUIRED,
        inputs=InputBook(
            outstanding={"q2": InputRequest(method="elicitation/create", params={"message": "Publish?"})},
            used=frozenset({"q1", "q2"}),
        ),
        attempt=1,
        progress=Progress(progress=0.5, total=3, message="one of three"),
        version=5,
    ),
    task(id="asleep", wake_at=NOON + timedelta(days=1), attempt=1, version=4, owner=None),
    task(
        id="ended",
        status=TaskStatus.COMPLETED,
        result={"content": [], "structuredContent": ODD},
        finished_at=NOON + timedelta(hours=1),
        version=3,
    ),
    task(id="lone \ud800 surrogate", owner="lone \udfff surrogate", ttl=None),
]

JOURNALS: Mapping[str, Sequence[JournalEntry]] = {
    "parked": [
        JournalEntry(kind="step", key="nothing", value=None),
        JournalEntry(kind="step", key="odd", value=ODD),
        JournalEntry(kind="step", key="looks like an outcome", value={"value": 1}),
        JournalEntry(kind="ask", key="q1", value={"message": "Sure?"}),
        JournalEntry(kind="answer", key="q1", value={"action": "accept"}),
    ],
    "asleep": [JournalEntry(kind="timer", key="nap", value="2026-01-02T12:00:00+00:00")],
    "lone \ud800 surrogate": [JournalEntry(kind="step", key="\ud800", value="\ud800")],
}


async def write(path: Path) -> None:
    """Write the file with whatever release is on the path; only the first is of use."""
    path.unlink(missing_ok=True)
    # Not typed: the release that runs this is not the one that it lies in.
    store: Any = SqliteStore(path)
    await store.open()
    for record in TASKS:
        await store.create(replace(record, version=1))
        entries = JOURNALS.get(record.id, ())
        if record.version > 1 or entries:
            await store.save(record, expected=1, entries=entries)
    await store.beat("a process of yesterday", until=NOON)
    await store.close()


if __name__ == "__main__":
    anyio.run(write, FILE)
