"""The store of hosted tasks: a SQLite file, or an in-memory database.

One process at a time has the file, by SQLite's own lock, which ends with the process. So no process runs the unfinished
tasks that are found when the file is opened, and no user is asked by two processes at once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from weakref import finalize

from mcp_tasks.client.ledger_file import Sealer, bound_to, open_sealed
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreCorrupt, StoreUnavailable
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.record import TaskRecord, TaskStatus
from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

APPLICATION_ID: Final = int.from_bytes(b"MCPH", "big")
FORMAT: Final = 1

LOCK_PATIENCE: Final = 1.0
"""Seconds to wait for a process that is closing the file."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_STATE: Final = ("updated", "status", "message", "finished", "attempt", "worker", "lost", "version", "expires")
"""The columns that change with a task."""

_FIXED: Final = ("task_id", "owner", "method", "created", "retention", "poll_interval", "question", "request")

_SCHEMA: Final = (
    """
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
        method TEXT NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL, status TEXT NOT NULL, message TEXT,
        finished INTEGER, retention INTEGER, poll_interval INTEGER, attempt INTEGER NOT NULL, worker TEXT,
        lost INTEGER NOT NULL, version INTEGER NOT NULL, expires INTEGER, question TEXT, request TEXT NOT NULL,
        outcome TEXT
    )
    """,
    "CREATE INDEX tasks_of_owner ON tasks (owner, number)",
    "CREATE INDEX tasks_of_question ON tasks (owner, question) WHERE question IS NOT NULL",
    "CREATE INDEX tasks_by_expiry ON tasks (expires) WHERE expires IS NOT NULL",
    # All that a poll needs: requests and outcomes may be large.
    f"CREATE VIEW records AS SELECT number, {', '.join([*_FIXED[:-1], *_STATE])} FROM tasks",  # noqa: S608 - as below
    "CREATE TABLE owners (owner TEXT PRIMARY KEY, seen INTEGER NOT NULL)",
)

_INSERT: Final = f"""
    INSERT INTO tasks ({", ".join([*_FIXED, *_STATE])}) VALUES (:{", :".join([*_FIXED, *_STATE])})
"""  # noqa: S608 - names of ours

_UPDATE: Final = f"""
    UPDATE tasks SET {", ".join(f"{name} = :{name}" for name in _STATE)}, outcome = coalesce(:outcome, outcome)
    WHERE task_id = :task_id
"""  # noqa: S608 - names of ours

_ABANDONED: Final = """
    DELETE FROM tasks WHERE finished IS NULL AND owner NOT IN (SELECT value FROM json_each(:connected))
        AND coalesce((SELECT seen FROM owners WHERE owners.owner = tasks.owner), updated) + retention <= :before
"""

_LEFT: Final = """
    DELETE FROM owners WHERE owner NOT IN (SELECT owner FROM tasks)
        AND owner NOT IN (SELECT value FROM json_each(:connected))
"""

_COUNTS: Final = """
    SELECT count(*) FILTER (WHERE owner = :owner AND finished IS NULL), count(*) FILTER (WHERE owner = :owner), count(*)
    FROM tasks
"""


_SECRETS: Final = (("tasks", "task_id", ("message", "request", "outcome")),)
"""The columns that a cipher encrypts."""


class HostedFile:
    """Hosted tasks of all servers. Every change is durable on return.

    Any method raises `StoreUnavailable` if the file cannot be used now, for example because another process has it, and
    `StoreCorrupt` if it is another kind of file or corrupt.
    """

    def __init__(self, path: str | Path | None, cipher: Cipher | None = None) -> None:
        self._name = "the memory of hosted tasks" if path is None else str(path)
        self._sealer = Sealer(None if path is None else cipher)
        with self._translated():
            self._db = _open(None if path is None else Path(path), self._sealer.cipher)
        # A database in memory stays open for the next connection, for as long as this object.
        self._closed = finalize(self, self._db.close)

    def close(self) -> None:
        """Close the file, so that another process can open it. Safe to call twice."""
        self._closed()

    def add(self, record: TaskRecord, request: Mapping[str, Any], *, question: str | None = None) -> None:
        """Add a task with its request, and the name of the server's question if there is one."""
        sealed = self._sealer.seal(bound_to("request", record.id), json.dumps(request))
        self._run(_INSERT, {**self._row(record), "question": question, "request": sealed})

    def asked(self, owner: str, question: str) -> TaskRecord | None:
        """The last task of an owner with this question."""
        statement = "SELECT * FROM records WHERE owner = ? AND question = ? ORDER BY number DESC LIMIT 1"
        found = self._records(statement, (owner, question))
        return found[0] if found else None

    def save(self, record: TaskRecord, outcome: Mapping[str, Any] | None = None) -> None:
        """Save the next state of a task, with its outcome if it has ended."""
        sealed = self._sealer.seal(bound_to("outcome", record.id), None if outcome is None else json.dumps(outcome))
        self._run(_UPDATE, {**self._row(record), "outcome": sealed})

    def get(self, owner: str, task_id: str) -> TaskRecord | None:
        found = self._records("SELECT * FROM records WHERE owner = ? AND task_id = ?", (owner, task_id))
        return found[0] if found else None

    def page(self, owner: str, *, after: int, limit: int) -> list[tuple[int, TaskRecord | None]]:
        """The tasks of an owner after a number, oldest first, with their numbers; None for one that cannot be read."""
        statement = "SELECT * FROM records WHERE owner = ? AND number > ? ORDER BY number LIMIT ?"
        return [(row["number"], self._read(row)) for row in self._run(statement, (owner, after, limit))]

    def unfinished(self, owner: str) -> list[TaskRecord]:
        statement = "SELECT * FROM records WHERE owner = ? AND finished IS NULL ORDER BY number"
        return self._records(statement, (owner,))

    def request(self, task_id: str) -> dict[str, Any]:
        return self._json("request", task_id)

    def outcome(self, task_id: str) -> dict[str, Any]:
        """The outcome; empty if the task has not ended, or was cancelled."""
        return self._json("outcome", task_id)

    def counts(self, owner: str) -> tuple[int, int, int]:
        """The number of the owner's unfinished tasks, of all its tasks, and of the tasks of all owners."""
        running, kept, total = self._run(_COUNTS, {"owner": owner})[0]
        return running, kept, total

    def saw(self, owner: str, now: datetime) -> None:
        """Note that the owner is connected now."""
        self._run("INSERT OR REPLACE INTO owners (owner, seen) VALUES (?, ?)", (owner, _micros(now)))

    def delete_expired(self, now: datetime) -> None:
        self._run("DELETE FROM tasks WHERE expires <= ?", (_micros(now),))

    def delete_abandoned(self, seen_before: datetime, *, connected: Iterable[str]) -> None:
        """Delete unfinished tasks of servers that were last connected longer ago, by their ttl, than `seen_before`."""
        here = json.dumps(list(connected))
        self._run(_ABANDONED, {"before": _micros(seen_before), "connected": here})
        self._run(_LEFT, {"connected": here})

    def _json(self, column: Literal["request", "outcome"], task_id: str) -> dict[str, Any]:
        rows = self._run(f"SELECT {column} FROM tasks WHERE task_id = ?", (task_id,))  # noqa: S608 - names of ours
        with self._translated():
            found = self._sealer.open(bound_to(column, task_id), rows[0][0]) if rows else None
            return {} if found is None else json.loads(found)

    def _records(self, statement: str, values: Sequence[Any]) -> list[TaskRecord]:
        return [record for row in self._run(statement, values) if (record := self._read(row)) is not None]

    def _read(self, row: sqlite3.Row) -> TaskRecord | None:
        """The task in a row. One corrupt row affects no other."""
        try:
            return _record(row, self._sealer.open(bound_to("message", row["task_id"]), row["message"]))
        except (CannotDecrypt, EncryptionMismatch, ValueError, TypeError, OverflowError) as exc:
            logger.error("hosted task %.8s in %s is corrupt, and left alone: %s", row["task_id"], self._name, what(exc))
            return None

    def _row(self, record: TaskRecord) -> dict[str, Any]:
        row = _row(record)
        return {**row, "message": self._sealer.seal(bound_to("message", record.id), row["message"])}

    def _run(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        with self._translated():
            return self._db.execute(statement, values).fetchall()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except CannotDecrypt as exc:
            raise EncryptionMismatch(f"something in {self._name} cannot be decrypted: {exc}") from exc
        except sqlite3.OperationalError as exc:
            if "locked" in str(exc):
                why = "another process has it open; give each process a file of its own"
                raise StoreUnavailable(f"{self._name} cannot be used now: {why}") from exc
            raise StoreUnavailable(f"{self._name} cannot be used now: {exc}") from exc
        except (OSError, sqlite3.ProgrammingError) as exc:
            raise StoreUnavailable(f"{self._name} cannot be used now: {exc}") from exc
        except (sqlite3.DatabaseError, ValueError, TypeError, OverflowError) as exc:
            raise StoreCorrupt(f"{self._name} does not hold hosted tasks, or is corrupt: {exc}") from exc


def _open(path: Path | None, cipher: Cipher | None) -> sqlite3.Connection:
    if path is None:
        return _opened(None)
    # Private: it has the questions of servers and the answers of users.
    return open_sealed(path, cipher, _SECRETS, lambda: _opened(path))


def _opened(path: Path | None) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, timeout=LOCK_PATIENCE)
    db.row_factory = sqlite3.Row
    # Invalid text affects one task; by default it makes the whole query fail.
    db.text_factory = _text
    try:
        _prepare(db, ":memory:" if path is None else str(path))
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, name: str) -> None:
    is_new = _is_new(db, name)
    # Before WAL mode, so that no other process can even read.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    # A task is durable before its server gets its id, and an outcome before the server is told.
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("BEGIN IMMEDIATE")
    for statement in (*_SCHEMA, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}"):
        if is_new:
            db.execute(statement)
    db.execute("COMMIT")


def _is_new(db: sqlite3.Connection, name: str) -> bool:
    ((application,),) = db.execute("PRAGMA application_id").fetchall()
    ((version,),) = db.execute("PRAGMA user_version").fetchall()
    if application == APPLICATION_ID and version == FORMAT:
        return False
    if application == APPLICATION_ID:
        raise StoreCorrupt(f"{name} has format {version}, and this release knows format {FORMAT}. Use a newer release.")
    if application or version or db.execute("SELECT 1 FROM sqlite_master").fetchall():
        raise StoreCorrupt(
            f"{name} is a database of another kind. Give hosted tasks a file of their own, such as hosted.db."
        )
    return True


def _row(record: TaskRecord) -> dict[str, Any]:
    expiry = expires_at(record)
    return {
        "task_id": record.id,
        "owner": record.owner,
        "method": record.method,
        "created": _micros(record.created_at),
        "updated": _micros(record.updated_at),
        "status": record.status.value,
        "message": record.status_message,
        "finished": None if record.finished_at is None else _micros(record.finished_at),
        "retention": None if record.retention is None else record.retention // _MICROSECOND,
        "poll_interval": None if record.poll_interval is None else record.poll_interval // _MICROSECOND,
        "attempt": record.attempt,
        "worker": record.worker,
        "lost": record.lost,
        "version": record.version,
        "expires": None if expiry is None else _micros(expiry),
    }


def _record(row: sqlite3.Row, message: str | None) -> TaskRecord:
    retention, poll_interval, finished = row["retention"], row["poll_interval"], row["finished"]
    return TaskRecord(
        id=row["task_id"],
        owner=row["owner"],
        name=row["method"],
        method=row["method"],
        created_at=_instant(row["created"]),
        updated_at=_instant(row["updated"]),
        status=TaskStatus(row["status"]),
        status_message=message,
        finished_at=None if finished is None else _instant(finished),
        retention=None if retention is None else retention * _MICROSECOND,
        poll_interval=None if poll_interval is None else poll_interval * _MICROSECOND,
        # SQLite columns hold values of any type.
        attempt=int(row["attempt"]),
        worker=row["worker"],
        lost=int(row["lost"]),
        version=int(row["version"]),
    )


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _micros(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _instant(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
