"""The audit log: who did what to which task, one JSON object an entry, and never what a task is about.

Each entry goes to a file, if there is one; and to the logger `mcp_tasks.audit` at INFO, with its JSON as the message
and the same object as the `audit` of the log record, if somebody has set that logger up: given it a handler, or a
level. Nobody finds the console of a new server full of it.

A task stands in it under the short id of all log lines and under a digest of the whole id. The whole id is nowhere:
without authentication it is the right to the task, and logs are read by more people than tasks are. The digest is
without a key, because an id has 160 bits of chance: nobody finds it by trying, and whoever has an id finds its entries,
in the logs of all processes (`printf %s ID | sha256sum | cut -c1-32`).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from os import PathLike
from typing import Any, Final, Literal, TypeAlias

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.text import valid_text
from mcp_tasks.quiet import short_id
from mcp_tasks.telemetry.audit_file import AuditFile

logger: Final = logging.getLogger("mcp_tasks.audit")

LONGEST_TEXT: Final = 1_000
"""Characters of any text in an entry: some of it is what a caller says."""

AuditEvent: TypeAlias = Literal[
    "created",
    "read",
    "listed",
    "listened",
    "asked",
    "answered",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "deleted",
    "refused",
    "suspicious",
    "lost",
    # What operators do, beside what anybody does.
    "shown",
    "rerun",
    "drained",
    "reencrypted",
]
"""What an entry is about."""


def digest_of(task_id: str) -> str:
    """What stands for a task's id in the audit log: the first 128 bits of its SHA-256."""
    return sha256(task_id.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One entry.

    Attributes:
        event: What happened.
        actor: Who did it; the name of a client is its principal.
        owner: Whose task it is. Not written where the owner did it.
        task_id: The task, if it is about one. Only its short form and its digest are written.
        tool: Its tool.
        method: How it was asked for.
        outcome: What came of it, where that is not the event itself.
        reason: Why it was refused, failed or suspected, in a word.
        count: How many times, of what is written down once for many.
        about: The task that this one is a repetition of, written like `task_id`.
        worker: The worker that it is about, if it is about one.
        at: When.
    """

    event: AuditEvent
    actor: Actor
    owner: str | None = None
    task_id: str | None = None
    tool: str | None = None
    method: str | None = None
    outcome: str | None = None
    reason: str | None = None
    count: int = 1
    about: str | None = None
    worker: str | None = None
    at: datetime | None = None

    def to_json(self, server: str) -> dict[str, Any]:
        """The entry as it is written; what there is nothing to say of is left out."""
        said: dict[str, Any] = {
            "time": _timestamp(self.at or datetime.now(UTC)),
            "event": self.event,
            "actor": self.actor.kind,
            "principal": self.actor.name,
            "owner": None if self.actor.kind == "client" and self.owner == self.actor.name else self.owner,
            "server": server,
            **_named("task", self.task_id),
            "tool": self.tool,
            "method": self.method,
            "outcome": self.outcome,
            "reason": self.reason,
            "count": None if self.count == 1 else self.count,
            **_named("rerunOf", self.about),
            "worker": self.worker,
        }
        return {name: _bounded(value) for name, value in said.items() if value is not None}


class AuditLog:
    """Writes entries.

    Args:
        path: A file to append them to. The logger gets them if it has a handler or a level of its own.
        server: Whose tasks they are about: the namespace.

    Raises:
        UsageError: The file cannot be written.
        UntrustedFile: Somebody else may have put it there, or could write it.
    """

    def __init__(self, path: str | PathLike[str] | None = None, *, server: str = "") -> None:
        self._server = server
        self._file = None if path is None else AuditFile(path)

    def is_read(self) -> bool:
        """Whether entries go anywhere."""
        return self._file is not None or _is_logged()

    def write(self, entry: AuditEntry) -> None:
        """Write one entry."""
        to_logger = _is_logged()
        if self._file is None and not to_logger:
            return
        said = entry.to_json(self._server)
        line = _line(said)
        if self._file is not None:
            self._file.append(line)
        if to_logger:
            # Whatever the level is of all other logs.
            told = logger.makeRecord(logger.name, logging.INFO, __file__, 0, "%s", (line,), None, extra={"audit": said})
            logger.handle(told)

    def close(self) -> None:
        """See that all is on the disk, and let go of the file. An entry after this opens it again."""
        if self._file is not None:
            self._file.close()


def _is_logged() -> bool:
    return bool(logger.handlers) if logger.level == logging.NOTSET else logger.isEnabledFor(logging.INFO)


def _line(said: dict[str, Any]) -> str:
    """As it would be read; all in ASCII if there is anything in it that a terminal or a reader of lines would obey."""
    line = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    return line if line.isprintable() else json.dumps(said, separators=(",", ":"))


def _named(name: str, task_id: str | None) -> dict[str, str]:
    if task_id is None:
        return {}
    return {name: short_id(task_id), f"{name}Digest": digest_of(task_id)}


def _bounded(value: Any) -> Any:
    return valid_text(value[:LONGEST_TEXT]) if isinstance(value, str) else value


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
