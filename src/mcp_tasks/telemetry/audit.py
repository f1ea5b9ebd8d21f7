"""What happens to tasks, as entries of the audit log: an observer like any other, in a thread of its own.

Looks at tasks are many, and a caller can have as many refusals as it likes: the first look of a principal at a task is
written at once, and those of the minute after it as one entry with their number. So are its refusals for one reason,
whichever tasks they are about. What could not be told to this observer is an entry, too.
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

# ---- audit file
# The file of the audit log: only added to, only its owner's, opened again when it was moved away (logrotate).


audit_file_logger: Final = get_logger(__name__)

WARN_EVERY: Final = 60.0
"""Seconds between two words in the log of a file that cannot be written."""

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class AuditFile:
    """Appends lines to a file.

    Raises:
        UsageError: It cannot be opened.
        UntrustedFile: Somebody else may have put it there, or could write it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._lost = 0
        self._is_half = False
        self._warned = -inf
        try:
            # Only to see that it can be: it is opened for good by the first entry.
            os.close(open_private(self._path, _FLAGS))
        except OSError as exc:
            raise UsageError(f"the audit log {str(self._path)!r} cannot be written: {exc.strerror or exc}") from exc

    def append(self, line: str) -> None:
        """Add one line."""
        with self._lock:
            try:
                file = self._current()
                self._say_lost(file)
                _write(file, line)
            except (OSError, UntrustedFile) as exc:
                self._lost += 1
                self._is_half = self._is_half or isinstance(exc, _HalfLine)
                self._warn(exc)

    def close(self) -> None:
        """See that all is on the disk, and let go of the file."""
        with self._lock:
            if self._lost:
                # The last chance to say so, whether or not the file could be opened the last time.
                with suppress(OSError, UntrustedFile):
                    self._say_lost(self._current())
            file, self._file = self._file, None
            if file is not None:
                try:
                    # Not every file can: a pipe or a terminal cannot.
                    with suppress(OSError):
                        os.fsync(file)
                finally:
                    os.close(file)
            if self._lost:
                audit_file_logger.error("%d entries of the audit log %s were lost", self._lost, self._path)

    def _say_lost(self, file: int) -> None:
        """Write down how many entries are missing here, if any are."""
        if not self._lost:
            return
        # What the disk was too full for may have left half a line.
        if self._is_half:
            _write(file, "")
            self._is_half = False
        _write(file, _word_of_lost(self._lost))
        self._lost = 0

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

    def _warn(self, why: Exception) -> None:
        now = time.monotonic()
        if now >= self._warned + WARN_EVERY:
            self._warned = now
            audit_file_logger.error(
                "the audit log %s cannot be written: %s. %d entries are lost so far; the file will say how many",
                self._path,
                why,
                self._lost,
            )


class _HalfLine(OSError):
    """The disk was full in the middle of an entry."""


def _write(file: int, line: str) -> None:
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    written = os.write(file, data)
    if written != len(data):
        raise _HalfLine(f"only {written} of {len(data)} bytes could be written")


def _word_of_lost(count: int) -> str:
    time_ = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    said = {"time": time_, "event": "lost", "count": count, "reason": f"entries lost: {count} (could not be written)"}
    return json.dumps(said, separators=(",", ":"))


# ---- audit log
# The audit log: who did what to which task, one JSON object an entry, and never what a task is about.


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


TOGETHER_FOR: Final = 60.0
"""Seconds for which looks of one principal at one task, and its refusals for one reason, are written as one entry."""

MOST_TOGETHER: Final = 10_000
"""Of these, those that are counted at a time. Beyond it, the oldest is written before its time."""

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


class _Later:
    """Looks or refusals that came after the first of their kind."""

    __slots__ = ("count", "last", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.last: TaskAccess | None = None
        self.count = 0

    def add(self, access: TaskAccess) -> None:
        if self.last is not None and self.last.task_id != access.task_id:
            # Of several tasks: a count of them all names none.
            access = access._replace(task_id=None)
        self.last = access
        self.count += access.times


class Audit(Watcher):
    """Writes the audit log of one runtime."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._later: OrderedDict[tuple[str | None, ...], _Later] = OrderedDict()

    def __repr__(self) -> str:
        return "the audit log"

    def wanted(self) -> Collection[type[Wanted]]:
        """Nothing, as long as nobody reads it."""
        return _CHANGES | {TaskAccess, Refusal} if self._log.is_read() else ()

    def __call__(self, change: TaskChange) -> None:
        """Write down a change."""
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
        """Write down a look at a task, or a refusal."""
        self.tick()
        key = _kind_of(access)
        later = self._later.get(key)
        if later is not None:
            later.add(access)
            return
        self._log.write(_entry(access))
        if len(self._later) >= MOST_TOGETHER:
            self._write_oldest()
        self._later[key] = _Later(self._clock())

    def lost(self, count: int) -> None:
        """Write down that something cannot be."""
        entry = AuditEntry(event="lost", actor=_SELF, count=count, reason=f"entries lost: {count} (too many at once)")
        self._log.write(entry)

    def tick(self) -> None:
        """Write down the looks and refusals whose minute is over."""
        now = self._clock()
        while self._later:
            if now < next(iter(self._later.values())).since + TOGETHER_FOR:
                return
            self._write_oldest()

    def close(self) -> None:
        """Write down what has only been counted so far."""
        while self._later:
            self._write_oldest()
        self._log.close()

    def _write_oldest(self) -> None:
        _, later = self._later.popitem(last=False)
        if later.last is not None:
            self._log.write(_entry(later.last._replace(times=later.count)))


def _kind_of(access: TaskAccess) -> tuple[str | None, ...]:
    """What is one entry for a minute. Refusals do not go by the task: a caller names as many as it likes."""
    if access.refused is None:
        return access.owner, access.task_id, access.method
    return access.owner, None, access.method, access.verb, access.refused.value, access.detail


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
    """What a change is called here, and why it came about."""
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
            return ("expired", None) if change.actor.kind == "sweep" else ("deleted", _why_deleted(change))
        case _:
            raise ValueError(f"{change.event!r} is nothing that the audit log tells of")


def _why_deleted(change: TaskChange) -> str | None:
    return None if change.task.announced else "answered on the call"
