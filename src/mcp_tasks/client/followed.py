"""How a call or a task stood when it was last heard of: one value, for whoever shows it, keeps it or decides by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from mcp_types import INVALID_PARAMS

from mcp_tasks.client.ledger_entry import UNKNOWN, LedgerEntry
from mcp_tasks.client.questions import Question, questions_of
from mcp_tasks.client.saving import blocks_of, save_files
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.core.durations import clock
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus
from mcp_tasks.errors import Fate, TasksError
from mcp_tasks.wire.parse import TaskSnapshot

COMPLETED_BADLY: Final = "completed with an error"
"""What the protocol calls completed of a tool that says that it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """How a task stood when it was last heard of, or a call that has not become one.

    Attributes:
        entry: The task, as the ledger had it. That of a call has no task id.
        snapshot: Its last state; None if none was seen. That of a call has what it was answered with.
        problem: Why no more is known of it; None if there is no reason. A `WaitTimedOut` if the time was up.
        left_open: Whether a question of it was left open on purpose.
        saved: Files of its result that `save` wrote, by the number of their block.
        not_saved: Why `save` could not write one; None if it could.
        fate: What became of it when the wait for it ended early; None if it did not.
        away_since: Since when its server is out of reach; None if it is not.
    """

    entry: LedgerEntry
    snapshot: TaskSnapshot | None = None
    problem: Exception | None = None
    left_open: bool = False
    saved: Mapping[int, Path] = field(default_factory=dict[int, Path])
    not_saved: TasksError | None = None
    fate: Fate | None = None
    away_since: datetime | None = None

    @property
    def task_id(self) -> str | None:
        """The id of the task; None of a call that has not become one."""
        return self.entry.task_id or None

    @property
    def name(self) -> str:
        """What to call it: its tool, or of a task that is not ours the beginning of its id."""
        return self.entry.tool or short_id(self.entry.task_id)

    @property
    def status(self) -> str:
        """The task's status as it was last seen, `unknown` if there was no way to find out."""
        if self.snapshot is not None:
            return self.snapshot.status.value
        return self.entry.status if self.problem is None else UNKNOWN

    @property
    def state(self) -> str:
        """The same for people: `completed with an error` if the tool says that it failed."""
        return COMPLETED_BADLY if self.is_error and self.status == TaskStatus.COMPLETED else self.status

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL_STATUSES

    @property
    def elapsed(self) -> timedelta | None:
        """How long it took, or has taken so far; None where that is not known."""
        entry, snapshot = self.entry, self.snapshot
        if self.status == UNKNOWN:
            return None
        if not self.is_final:
            return entry.age
        if snapshot is not None:
            # Both by the server's clock, so their difference is right whatever that clock says.
            return snapshot.updated_at - snapshot.created_at
        return None if entry.finished_at is None else entry.finished_at - entry.started_at

    @property
    def progress(self) -> Progress | None:
        """How far it is; None if it does not say, or has ended."""
        return None if self.snapshot is None or self.is_final else self.snapshot.progress

    @property
    def percent(self) -> int | None:
        """The same in percent, if it says of how much."""
        if self.progress is None or not self.progress.total:
            return None
        # Within bounds before it is rounded: a server may say more than fits a whole number.
        return int(max(0.0, min(100.0, 100 * self.progress.progress / self.progress.total)))

    @property
    def message(self) -> str | None:
        """What the task says of itself."""
        return self.entry.message if self.snapshot is None else self.snapshot.message

    @property
    def says(self) -> str:
        """The same for people, or what is more important now: for how long its server is out of reach."""
        if self.away_since is None:
            return self.message or ""
        return f"server out of reach for {clock(datetime.now(UTC) - self.away_since)}, trying again"

    @property
    def result(self) -> JsonObject | None:
        """The result of the call, as the protocol has it."""
        return self.entry.result if self.snapshot is None else self.snapshot.result

    @property
    def error(self) -> JsonObject | None:
        """The JSON-RPC error of the call."""
        return self.entry.error if self.snapshot is None else self.snapshot.error

    @property
    def failure(self) -> str:
        """Why the call failed, for people; nothing if it did not, or has a result that says so."""
        if self.status != TaskStatus.FAILED or self.result is not None:
            return ""
        error = self.error or {}
        why = str(error.get("message") or self.message or "the server does not say why")
        return f"{why} (code {error['code']})" if "code" in error else why

    @property
    def input_requests(self) -> Mapping[str, JsonObject]:
        """What is asked, by key, as the protocol has it."""
        return {} if self.snapshot is None else self.snapshot.input_requests

    @property
    def questions(self) -> list[Question]:
        """The same, for a person."""
        return questions_of(self.input_requests, self.entry.tool or self.entry.task_id, self.entry.server_label)

    @property
    def is_error(self) -> bool:
        """Whether there is a result by which the tool says that it failed."""
        return bool((self.result or {}).get("isError"))

    @property
    def outcome(self) -> str:
        """What came of it, in one word: its status; but `tool_error` if the tool says that it failed, `left_open` if
        somebody chose to leave what it asks, and `unknown` if there is a problem."""
        if self.problem is not None:
            return UNKNOWN
        if self.is_error and self.is_final:
            # What is a result to newer servers is a failure to those of 2025-11-25.
            return "tool_error"
        if self.status == TaskStatus.INPUT_REQUIRED.value and self.left_open:
            # Nobody has a choice about what is for a model or a program.
            return "left_open" if all(question.is_elicitation for question in self.questions) else self.status
        return self.status

    @property
    def refuses_arguments(self) -> bool:
        """Whether the server did not take what it was called with: by its error, or in the words of the SDKs."""
        if self.error is not None:
            return self.error.get("code") == INVALID_PARAMS
        said = [str(block.get("text")) for block in blocks_of(self.result or {})] if self.is_error else []
        return any("validation error" in text.lower() for text in said)

    def save(self, folder: Path) -> Followed:
        """The same, after images, sounds and files of its result were written into a folder; see `save_files`."""
        if self.result is None:
            return self
        saved, problem = save_files(self.result, folder, self.entry.tool)
        return replace(self, saved=saved, not_saved=problem)

    def state_to_json(self) -> dict[str, Any]:
        """What changes while it is followed, as JSON: for one line of a log, or one event of a stream."""
        progress = None if self.snapshot is None else self.snapshot.progress
        return _with_values(
            taskId=self.task_id,
            tool=self.name,
            status=self.status,
            isError=self.is_error or None,
            statusMessage=self.message,
            progress=progress and progress.progress,
            total=progress and progress.total,
            outOfReachSince=self.away_since and self.away_since.isoformat(),
        )

    def to_json(self) -> dict[str, Any]:
        """The same as JSON, in the protocol's words: what has a value."""
        problem = self.problem or self.not_saved
        return _with_values(
            server=self.entry.server,
            tool=self.entry.tool or None,
            taskId=self.task_id,
            status=self.status,
            statusMessage=self.message,
            result=self.result,
            error=self.error,
            inputRequests=dict(self.input_requests) or None,
            problem=None if problem is None else str(problem),
            saved=[str(path) for path in self.saved.values()] or None,
        )


def _with_values(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
