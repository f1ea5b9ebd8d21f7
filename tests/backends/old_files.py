"""What is in the files that older releases wrote: `schema_1.sqlite` is one of the first release (0.1.0).

They were written by the releases themselves, at the commits 1acc012, aa51081, eb8c067 and 3f0e52d.
A file of a new schema is written with `create`, `save`, `heartbeat` and `set_note`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

from mcp_tasks.model import InputBook, InputRequest, JournalEntry, JsonObject, Progress, TaskRequest, TaskStatus
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
    """One file: its tasks, their journals, and the notes of the server."""

    schema: int
    tasks: Sequence[Fields]
    journals: Mapping[str, Sequence[JournalEntry]]
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def path(self) -> Path:
        return Path(__file__).with_name(f"schema_{self.schema}.sqlite")


def task(*, request: TaskRequest | None = None, **fields: Any) -> Fields:
    """A task that is the same whoever makes it."""
    return {"request": request or TaskRequest(name="render", arguments={"scene": "forest"}), **fields}


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


ENDED: Fields = {"finished_at": NOON + HOUR, "attempt": 1, "version": 3, "namespace": "demo"}
SCHEMA_2 = OldFile(
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
            **ENDED,
        ),
        task(id="completed without meta", status=TaskStatus.COMPLETED, result={"content": []}, ttl=None, **ENDED),
        task(
            id="failed",
            status=TaskStatus.FAILED,
            status_message="broken",
            error={"code": -32603, "message": "broken", "data": ODD},
            **ENDED,
        ),
        task(id="cancelled", status=TaskStatus.CANCELLED, status_message="not wanted", **ENDED),
        task(
            id="large",
            status=TaskStatus.COMPLETED,
            request=TaskRequest(name="render", arguments={"image": "x" * 70_000}),
            result={"content": [{"type": "text", "text": "y" * 70_000}]},
            **ENDED,
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


# The last one without queues: tasks are handed to nobody, and at work for nobody's share. They may have sessions,
# parents, keys, and questions that the client holds; those of the second schema have the words of now.
RENAMED = {"holder": "worker", "ttl": "retention"}
HOSTED = InputRequest(method="sampling/createMessage", params=ODD, hosted_as="theirs")
AT_WORK: Fields = {"owner": "bob", "namespace": "demo", "worker": "a process of yesterday", "attempt": 1, "version": 2}
SCHEMA_5 = OldFile(
    5,
    [
        *({RENAMED.get(name, name): value for name, value in fields.items()} for fields in SCHEMA_2.tasks),
        task(id="under a key", namespace="demo", key="the key", announced=False),
        task(id="with a session", namespace="demo", session="s1", parent="under a key"),
        task(
            id="hosted",
            namespace="demo",
            status=TaskStatus.INPUT_REQUIRED,
            inputs=InputBook(outstanding={"q1": HOSTED}, used=frozenset({"q1"})),
            attempt=1,
            version=4,
        ),
        task(
            id="completed with an error",
            status=TaskStatus.COMPLETED,
            is_error=True,
            result={"content": [], "isError": True},
            key="a key of an ended task",
            **ENDED,
        ),
        task(id="queued again", namespace="demo", owner=None, attempt=1, version=4, updated_at=NOON + HOUR),
        task(id="at work for bob", **AT_WORK),
        task(id="asks in memory", status=TaskStatus.INPUT_REQUIRED, **AT_WORK),
    ],
    SCHEMA_2.journals,
    notes={"note": b"value", "\u2603": b"\0"},
)

# The last one that did not count what is kept of whom.
CAROL: Fields = {"namespace": "demo", "owner": "carol", "version": 1}
SCHEMA_7 = OldFile(
    7,
    [
        *SCHEMA_5.tasks,
        task(id="very large", request=TaskRequest(name="render", arguments={"text": "x" * 10_000}), **CAROL),
        task(id="very small", key="a key of now", **CAROL),
    ],
    SCHEMA_5.journals,
    notes=SCHEMA_5.notes,
)
