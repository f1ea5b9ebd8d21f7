"""One task of a ledger: what is kept of it, and what that says of the task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus

UNKNOWN: Final = "unknown"
"""The status of a task that its server did not know when it was last asked. It is kept: the server may have been asked
with the wrong credentials, or may get its tasks back from a backup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One task that this client started.

    Attributes:
        server: The server's address.
        identity: Who we are to the server, where that was said.
        arguments: What the tool was called with, in short (`in_short`), if results are kept.
        status: As it was last seen; `unknown` if the server did not know the task when it was last asked.
        attributed: False for a task of the first release's ledger, which did not note addresses: `server` is then
            whatever name it had for the server, and no recorded answer goes there.
        named: How the user said which server is called, if that is known (`Ledger.called`): the name that it has in a
            file; empty if the address was typed.
    """

    task_id: str
    server: str
    tool: str
    started_at: datetime
    status: str
    message: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    finished_at: datetime | None = None
    identity: str = ""
    attributed: bool = True
    arguments: str | None = None
    named: str | None = None

    @classmethod
    def begun(cls, task_id: str = "", *, server: str, tool: str = "", identity: str = "") -> LedgerEntry:
        """A task, or a call that is none yet, of which no more is known than that it works now."""
        now, status = datetime.now(UTC), TaskStatus.WORKING.value
        return cls(task_id=task_id, server=server, tool=tool, identity=identity, started_at=now, status=status)

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells the task from all others: its server, who we are there, and its id."""
        return self.server, self.identity, self.task_id

    @property
    def age(self) -> timedelta:
        """How long ago it was started."""
        return datetime.now(UTC) - self.started_at

    @property
    def is_final(self) -> bool:
        """Whether the task was seen to have ended."""
        return self.status in FINAL_STATUSES

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected of it: it has ended, or its server did not know it."""
        return self.is_final or self.status == UNKNOWN

    @property
    def is_error(self) -> bool:
        """Whether the tool says that it failed: its task has completed with that for a result."""
        return bool((self.result or {}).get("isError"))

    @property
    def server_label(self) -> str:
        """How its server is shown: a command without its folder."""
        return self.server.rpartition(" && ")[2]

    def has_text(self, text: str) -> bool:
        """Whether a text is in its id, tool, arguments, message or server, in letters of whatever case."""
        parts = (self.task_id, self.tool, self.arguments or "", self.message or "", self.server)
        return text.casefold() in " ".join(parts).casefold()

    def to_json(self) -> dict[str, Any]:
        """The task as JSON, in the protocol's words: what has a value."""
        values = {
            "taskId": self.task_id,
            "server": self.server,
            "identity": self.identity or None,
            "tool": self.tool,
            "arguments": self.arguments,
            "status": self.status,
            "isError": self.is_error or None,
            "statusMessage": self.message,
            "startedAt": self.started_at.isoformat(),
            "finishedAt": self.finished_at and self.finished_at.isoformat(),
            "result": self.result,
            "error": self.error,
        }
        return {name: value for name, value in values.items() if value is not None}
