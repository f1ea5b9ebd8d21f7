"""What is in the files that older releases wrote, and how they were written.

`schema_1.sqlite` is a file of the first release (0.1.0). To write them again, with a checkout of the commit in FOLDER
and its dependencies installed:

    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 1     # commit 1acc012
    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 2     # commit aa51081
    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 3     # commit bba4828
    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 4     # commit ca78dfb
    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 5     # commit eb8c067
    PYTHONPATH=FOLDER/src:. python -m tests.backends.old_files 7     # commit 3f0e52d
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from mcp_tasks.model import InputBook, InputRequest, JournalEntry, JsonObject, Progress, TaskRequest, TaskStatus
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

Fields: TypeAlias = dict[str, Any]
"""A task by the names that its fields had in the release that wrote it."""

HOUR = timedelta(hours=1)

ODD: JsonObject = {
    "snow": "☃",
    "lone": "\ud800",
    "nul": "\0",
    "numbers": [2**70, 0.1, -0.0, 5e-324],
    "": [None, {"a": [[]]}],
}


@dataclass(frozen=True)
class OldFile:
    """One file: its tasks, their journals, who was alive, and the notes of the server."""

    schema: int
    tasks: Sequence[Fields]
    journals: Mapping[str, Sequence[JournalEntry]]
    worker: str = field(default="a process of yesterday")
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def path(self) -> Path:
        return Path(__file__).with_name(f"schema_{self.schema}.sqlite")


def task(**fields: Any) -> Fields:
    """A task that is the same whoever makes it."""
    return {"request": TaskRequest(name="render", arguments={"scene": "forest"}), **fields}


SCHEMA_1 = OldFile(
    1,
    [
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
    ],
    {
        "parked": [
            JournalEntry(kind="step", key="nothing", value=None),
            JournalEntry(kind="step", key="odd", value=ODD),
            JournalEntry(kind="step", key="looks like an outcome", value={"value": 1}),
            JournalEntry(kind="ask", key="q1", value={"message": "Sure?"}),
            JournalEntry(kind="answer", key="q1", value={"action": "accept"}),
        ],
        "asleep": [JournalEntry(kind="timer", key="nap", value="2026-01-02T12:00:00+00:00")],
        "lone \ud800 surrogate": [JournalEntry(kind="step", key="\ud800", value="\ud800")],
    },
)


def schema_2() -> OldFile:
    """A function, because the first release has not all that is in it."""
    ended: Fields = {"finished_at": NOON + timedelta(hours=1), "attempt": 1, "version": 3, "namespace": "demo"}
    return OldFile(
        2,
        [
            task(id="queued", namespace="demo"),
            task(id="of another server", namespace="another", request=TaskRequest(name="other", arguments=ODD)),
            task(
                id="held",
                namespace="demo",
                request=TaskRequest(name="prompt", arguments={}, method="prompts/get"),
                holder="a process of yesterday",
                attempt=3,
                lost=2,
                trial="alone",
                version=2,
            ),
            task(
                id="parked",
                namespace="demo",
                status=TaskStatus.INPUT_REQUIRED,
                status_message="half way",
                inputs=InputBook(
                    outstanding={
                        "q1": InputRequest(method="roots/list", params={}, deadline=NOON + timedelta(hours=2)),
                        "q2": InputRequest(method="elicitation/create", params=ODD),
                    },
                    used=frozenset({"q1", "q2"}),
                ),
                wake_at=NOON + timedelta(hours=2),
                poll_interval=timedelta(seconds=1.5),
                version=7,
            ),
            task(
                id="completed",
                status=TaskStatus.COMPLETED,
                result={"resultType": "complete", "content": [], "structuredContent": ODD, "_meta": {"trace": ODD}},
                **ended,
            ),
            task(id="completed without meta", status=TaskStatus.COMPLETED, result={"content": []}, ttl=None, **ended),
            task(
                id="failed",
                status=TaskStatus.FAILED,
                status_message="broken",
                error={"code": -32603, "message": "broken", "data": ODD},
                **ended,
            ),
            task(id="cancelled", status=TaskStatus.CANCELLED, status_message="not wanted", **ended),
            task(
                id="large",
                status=TaskStatus.COMPLETED,
                request=TaskRequest(name="render", arguments={"image": "x" * 70_000}),
                result={"content": [{"type": "text", "text": "y" * 70_000}]},
                **ended,
            ),
        ],
        {
            "parked": [
                JournalEntry(kind="step", key="done", value={"value": ODD}),
                JournalEntry(kind="ask", key="q1", value={"message": "Sure?"}),
                JournalEntry(kind="done", key="q1", value="question"),
            ],
            "completed": [JournalEntry(kind="step", key="\ud800", value={"value": "\ud800"})],
        },
    )


def schema_3() -> OldFile:
    """The last one without sessions and parents: its tasks are those of the second, in the words of now."""
    second = schema_2()
    renamed = {"holder": "worker", "ttl": "retention"}
    tasks = [{renamed.get(name, name): value for name, value in fields.items()} for fields in second.tasks]
    keyed = task(id="under a key", namespace="demo", key="the key", announced=False)
    return OldFile(3, [*tasks, keyed], second.journals)


def schema_4() -> OldFile:
    """The last one without notes: tasks may have sessions and parents, and questions that the client holds."""
    third = schema_3()
    hosted = InputRequest(method="sampling/createMessage", params=ODD, hosted_as="theirs")
    return OldFile(
        4,
        [
            *third.tasks,
            task(id="with a session", namespace="demo", session="s1", parent="under a key"),
            task(
                id="hosted",
                namespace="demo",
                status=TaskStatus.INPUT_REQUIRED,
                inputs=InputBook(outstanding={"q1": hosted}, used=frozenset({"q1"})),
                attempt=1,
                version=4,
            ),
            task(
                id="completed with an error",
                namespace="demo",
                status=TaskStatus.COMPLETED,
                is_error=True,
                result={"content": [], "isError": True},
                finished_at=NOON + timedelta(hours=1),
                attempt=1,
                version=3,
                key="a key of an ended task",
            ),
        ],
        third.journals,
    )


def schema_5() -> OldFile:
    """The last one without queues: tasks are queued, handed to nobody, and at work for nobody's share."""
    fourth = schema_4()
    at_work = {"namespace": "demo", "worker": "a process of yesterday", "attempt": 1, "version": 2}
    return OldFile(
        5,
        [
            *fourth.tasks,
            task(id="queued again", namespace="demo", owner=None, attempt=1, version=4, updated_at=NOON + HOUR),
            task(id="at work for bob", owner="bob", **at_work),
            task(id="asks in memory", owner="bob", status=TaskStatus.INPUT_REQUIRED, **at_work),
        ],
        fourth.journals,
        notes={"note": b"value", "\u2603": b"\0"},
    )


def schema_7() -> OldFile:
    """The last one that did not count what is kept of whom."""
    fifth = schema_5()
    large = TaskRequest(name="render", arguments={"text": "x" * 10_000})
    there = {"namespace": "demo", "owner": "carol", "version": 1}
    return OldFile(
        7,
        [
            *fifth.tasks,
            task(id="very large", **{**there, "request": large}),
            task(id="very small", key="a key of now", **there),
        ],
        fifth.journals,
        notes=fifth.notes,
    )


async def write(file: OldFile) -> None:
    """Write the file with whatever release is on the path; only the one that it is of is of use."""
    file.path.unlink(missing_ok=True)
    # Not typed: the release that runs this is not the one that it lies in.
    store: Any = SqliteStore(file.path)
    await store.open()
    await (write_parts if file.schema > 2 else write_whole)(store, file)
    await store.close()


async def write_parts(store: Any, file: OldFile) -> None:
    """As from schema 3 on: request and outcome beside the record."""
    # Releases before it have neither.
    from mcp_tasks.model import Outcome
    from mcp_tasks.model.json import encode_json

    for whole in file.tasks:
        fields = dict(whole)
        request, key = fields.pop("request"), fields.pop("key", None)
        ended = fields.pop("result", fields.pop("error", None))
        record: Any = make_record(**fields, method=request.method, name=request.name)
        await store.create(replace(record, version=1), request, key=key)
        outcome: Any = None
        if ended is not None:
            body = {name: value for name, value in ended.items() if name not in ("resultType", "_meta")}
            outcome = Outcome(body=encode_json(body), meta=encode_json(ended["_meta"]) if "_meta" in ended else None)
        entries = file.journals.get(record.id, ())
        if record.version > 1 or entries:
            await store.save(record, expected=1, entries=entries, outcome=outcome)
    await store.heartbeat(file.worker, namespace="demo")
    for name, value in file.notes.items():
        await store.set_note("demo", name, value, expected=None)


async def write_whole(store: Any, file: OldFile) -> None:
    """As before: all of a task in one."""
    for fields in file.tasks:
        record: Any = make_record(**fields)
        await store.create(replace(record, version=1))
        entries = file.journals.get(record.id, ())
        if record.version > 1 or entries:
            await store.save(record, expected=1, entries=entries)
    alive: Fields = {"until": NOON} if file.schema == 1 else {"namespace": "demo"}
    await store.beat(file.worker, **alive)


if __name__ == "__main__":
    files = {"1": lambda: SCHEMA_1, "2": schema_2, "3": schema_3, "4": schema_4, "5": schema_5, "7": schema_7}
    anyio.run(write, files[sys.argv[1]]())
