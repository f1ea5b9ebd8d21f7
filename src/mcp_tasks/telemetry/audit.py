"""The audit log: who did what to which task, one JSON object for each entry, without the content of any task.

An observer of the runtime writes it, in a thread of its own. Reads are many, and a caller can have as many refusals as
it likes: the first read of a task by a principal is written at once, and those of the minute after it as one entry with
their number. So are its refusals for one reason, whichever tasks they are about. Changes that this observer could not
be told of are an entry, too.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from mcp_tasks._utils import short_id
from mcp_tasks.errors import UntrustedFile, UsageError
from mcp_tasks.files import open_private
from mcp_tasks.model.json import valid_text
from mcp_tasks.model.machine import (
    InputAnswered,
    InputRequested,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.model.record import Actor
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.observers import Refusal, TaskAccess, TaskChange, Verb, Wanted, Watcher

audit_file_logger: Final = get_logger(__name__)

WARN_EVERY: Final = 60.0
"""Seconds between two log lines about a file that cannot be written."""

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class AuditFile:
    """Appends lines to a file that only its owner can read. It is opened again when it was moved away (logrotate).

    Raises:
        UsageError: It cannot be opened.
        UntrustedFile: Another user may have created it, or could write it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._lost = 0
        self._is_half = False
        self._warned = -inf
        try:
            # Only a check: the first entry opens it for good.
            os.close(open_private(self._path, _FLAGS))
        except OSError as exc:
            raise UsageError(f"the audit log {str(self._path)!r} cannot be written: {exc.strerror or exc}") from exc

    def append(self, line: str) -> None:
        """Add one line."""
        with self._lock:
            try:
                file = self._current()
                self._write_lost(file)
                self._write(file, line)
            except (OSError, UntrustedFile) as exc:
                self._lost += 1
                now = time.monotonic()
                if now >= self._warned + WARN_EVERY:
                    self._warned = now
                    audit_file_logger.error(
                        "the audit log %s cannot be written: %s. %d entries are lost so far; the file will say how "
                        "many",
                        self._path,
                        exc,
                        self._lost,
                    )

    def close(self) -> None:
        """Bring everything to the disk, and close the file."""
        with self._lock:
            # The last chance, whether or not the file could be opened before.
            with suppress(OSError, UntrustedFile):
                if self._lost:
                    self._write_lost(self._current())
            file, self._file = self._file, None
            if file is not None:
                try:
                    # A pipe or a terminal cannot be synced.
                    with suppress(OSError):
                        os.fsync(file)
                finally:
                    os.close(file)
            if self._lost:
                audit_file_logger.error("%d entries of the audit log %s were lost", self._lost, self._path)

    def _write_lost(self, file: int) -> None:
        """Write how many entries are missing here, if any are."""
        if not self._lost:
            return
        # A full disk may have left half a line.
        if self._is_half:
            self._write(file, "")
        reason = f"entries lost: {self._lost} (could not be written)"
        said = {"time": _timestamp(datetime.now(UTC)), "event": "lost", "count": self._lost, "reason": reason}
        self._write(file, json.dumps(said, separators=(",", ":")))
        self._lost = 0

    def _write(self, file: int, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        written = os.write(file, data)
        if written != len(data):
            self._is_half = True
            raise OSError(f"only {written} of {len(data)} bytes could be written")
        self._is_half = False

    def _current(self) -> int:
        """The file that is at the path now."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(self._path), os.fstat(self._file)):
                    return self._file
            os.close(self._file)
            self._file, self._is_half = None, False
        self._file = open_private(self._path, _FLAGS)
        return self._file


logger: Final = logging.getLogger("mcp_tasks.audit")

LONGEST_TEXT: Final = 1_000
"""Characters of any text in an entry: callers choose some of it."""

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
    # By operators alone:
    "shown",
    "rerun",
    "drained",
    "reencrypted",
]
"""The subject of an entry."""


def digest_of(task_id: str) -> str:
    """The digest of a task's id in the audit log: the first 128 bits of its SHA-256."""
    return sha256(task_id.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One entry.

    Attributes:
        actor: Who did it; the name of a client is its principal.
        owner: The owner of the task. Not written if the owner did it.
        task_id: The task, if it is about one. Only its short form and its digest are written.
        method: The method of the request.
        outcome: The outcome, if the event does not say it.
        reason: Why it was refused, failed or suspected, in a word.
        count: How many times, for an entry that stands for several.
        about: The task that this one repeats, written like `task_id`.
        worker: The worker, if it is about one.
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
        """The entry as it is written, without empty fields."""
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
        server: The server whose tasks they are about: the namespace.

    Raises:
        UsageError: The file cannot be written.
        UntrustedFile: Another user may have created it, or could write it.
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
        line = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        if not line.isprintable():
            # All in ASCII: a terminal, or a reader of lines, would obey some of these characters.
            line = json.dumps(said, separators=(",", ":"))
        if self._file is not None:
            self._file.append(line)
        if to_logger:
            # Whatever the level of all other logs is.
            told = logger.makeRecord(logger.name, logging.INFO, __file__, 0, "%s", (line,), None, extra={"audit": said})
            logger.handle(told)

    def close(self) -> None:
        """Bring everything to the disk, and close the file. A later entry opens it again."""
        if self._file is not None:
            self._file.close()


def _is_logged() -> bool:
    return bool(logger.handlers) if logger.level == logging.NOTSET else logger.isEnabledFor(logging.INFO)


def _named(name: str, task_id: str | None) -> dict[str, str]:
    return {} if task_id is None else {name: short_id(task_id), f"{name}Digest": digest_of(task_id)}


def _bounded(value: Any) -> Any:
    return valid_text(value[:LONGEST_TEXT]) if isinstance(value, str) else value


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


TOGETHER_FOR: Final = 60.0
"""Seconds for which reads of one task by one principal, and its refusals for one reason, are one entry."""

MOST_TOGETHER: Final = 10_000
"""How many of these are counted at a time. Beyond it, the oldest is written early."""

_SELF: Final = Actor("worker")

_CHANGES: frozenset[type[Wanted]] = frozenset(
    {
        TaskCreated,
        InputRequested,
        InputAnswered,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        TaskCancelled,
        TaskDeleted,
    }
)

_READS: Final[dict[Verb, AuditEvent]] = {"read": "read", "list": "listed", "listen": "listened"}


class Audit(Watcher):
    """Writes the audit log of one runtime."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        # By kind, oldest first: when the first of the kind was written, and the sum of those after it.
        self._later: OrderedDict[tuple[str | None, ...], tuple[float, TaskAccess | None]] = OrderedDict()

    def __repr__(self) -> str:
        return "the audit log"

    def wanted(self) -> Collection[type[Wanted]]:
        """Everything that is logged, if the log is read."""
        return _CHANGES | {TaskAccess, Refusal} if self._log.is_read() else ()

    def __call__(self, change: TaskChange) -> None:
        """Write a change."""
        task = change.task
        event, reason = _event_of(change)
        self._log.write(
            AuditEntry(
                event=event,
                actor=change.actor,
                owner=task.owner,
                task_id=task.id,
                tool=task.name,
                method=task.method,
                outcome=task.status.value if event in ("created", "answered", "asked") else None,
                reason=reason,
                about=task.rerun_of if event == "created" else None,
                at=change.at,
            )
        )

    def access(self, access: TaskAccess) -> None:
        """Write a read of a task, or a refusal."""
        self.tick()
        if access.refused is None:
            kind = (access.owner, access.task_id, access.method)
        else:
            # Whatever the task: a caller can name any number of them.
            kind = (access.owner, None, access.method, access.verb, access.refused.value, access.detail)
        if kind in self._later:
            since, sum_ = self._later[kind]
            if sum_ is not None:
                # A count of several tasks names none.
                task_id = access.task_id if access.task_id == sum_.task_id else None
                access = access._replace(task_id=task_id, times=sum_.times + access.times)
            self._later[kind] = since, access
            return
        self._log.write(_entry(access))
        if len(self._later) >= MOST_TOGETHER:
            self._write_oldest()
        self._later[kind] = self._clock(), None

    def lost(self, count: int) -> None:
        """Write that entries are missing."""
        entry = AuditEntry(event="lost", actor=_SELF, count=count, reason=f"entries lost: {count} (too many at once)")
        self._log.write(entry)

    def tick(self) -> None:
        """Write the counts whose minute is over."""
        now = self._clock()
        while self._later and now >= next(iter(self._later.values()))[0] + TOGETHER_FOR:
            self._write_oldest()

    def close(self) -> None:
        """Write all counts."""
        while self._later:
            self._write_oldest()
        self._log.close()

    def _write_oldest(self) -> None:
        _, (_, sum_) = self._later.popitem(last=False)
        if sum_ is not None:
            self._log.write(_entry(sum_))


def _entry(access: TaskAccess) -> AuditEntry:
    outcome: str | None = None
    reason: str | None = None
    event: AuditEvent = _READS.get(access.verb, "read")
    if access.refused is not None:
        event, outcome = "refused", access.verb
        reason = str(access.refused) if access.detail is None else f"{access.refused}: {access.detail}"
    return AuditEntry(
        event=event,
        actor=Actor("client", access.owner),
        task_id=access.task_id,
        tool=access.tool,
        method=access.method,
        outcome=outcome,
        reason=reason,
        count=access.times,
        at=datetime.fromtimestamp(access.at, UTC),
    )


def _event_of(change: TaskChange) -> tuple[AuditEvent, str | None]:
    """The event of a change, and its reason."""
    match change.event:
        case TaskCreated():
            return "created", None
        case InputRequested():
            return "asked", None
        case InputAnswered():
            return "answered", None
        case TaskCancelled():
            return "cancelled", None
        case RunFailed(reason=reason):
            return "failed", reason or "error"
        case RunCompleted(is_error=is_error):
            return "completed", "isError" if is_error else None
        case RunAskedOnCall():
            return "completed", "asked on the call"
        case TaskDeleted():
            if change.actor.kind == "sweep":
                return "expired", None
            return "deleted", None if change.task.announced else "answered on the call"
        case _:
            raise ValueError(f"the audit log has no entry for {change.event!r}")
