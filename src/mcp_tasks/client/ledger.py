"""A file in which a client remembers the tasks it started: SEP-2663 asks clients to persist task ids.

It holds every task that is not finished with, the answers given to its questions, and results if asked for. An
answer is written down before it is sent, so that a person is never asked twice: after a crash it is sent again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_tasks.core.status import FINAL_STATUSES
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.wire.parse import TaskSnapshot

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    task_id TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, started TEXT NOT NULL,
    status TEXT NOT NULL, message TEXT, result TEXT, error TEXT, finished TEXT,
    PRIMARY KEY (server, task_id)
);
CREATE TABLE IF NOT EXISTS answers (
    server TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, answer TEXT NOT NULL,
    sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, task_id, key)
);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One task that this client started."""

    task_id: str
    server: str
    tool: str
    started: datetime
    status: str
    message: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    finished: datetime | None = None

    @property
    def is_final(self) -> bool:
        """Whether the task was seen to have ended."""
        return self.status in FINAL_STATUSES


class Ledger:
    """Tasks that this client started, in a SQLite file.

    Args:
        path: The file; it is made if it is not there.
        keep_results: Keep results of finished tasks, and the tasks themselves, until `forget`. Otherwise a task is
            forgotten when its end was seen.

    Raises:
        StoreUnavailable: The file cannot be used now. Any method may raise this.
        StoreCorrupt: It is no ledger, or is damaged. Any method may raise this.
    """

    def __init__(self, path: str | Path, *, keep_results: bool = False) -> None:
        self.path = Path(path)
        self.keep_results = keep_results
        with self._translated():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # For its owner alone: answers and results are in it as they are.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=5, check_same_thread=False)
            try:
                _use_wal(self._db)
                self._db.executescript(_SCHEMA)
            except sqlite3.Error:
                self._db.close()
                raise

    def close(self) -> None:
        """Let go of the file. Safe twice."""
        self._db.close()

    def add(self, task_id: str, *, server: str, tool: str) -> None:
        """Remember a task, from the moment its id is known."""
        self._run(
            "INSERT OR IGNORE INTO tasks (task_id, server, tool, started, status) VALUES (?, ?, ?, ?, 'working')",
            (task_id, server, tool, datetime.now(UTC).isoformat()),
        )

    def saw(self, server: str, snapshot: TaskSnapshot) -> None:
        """Take note of a state. A task that ended is finished with, unless results are kept."""
        if snapshot.is_final and not self.keep_results:
            self.forget(snapshot.id, server=server)
            return
        finished = snapshot.updated_at.isoformat() if snapshot.is_final else None
        outcome = (_text(snapshot.result), _text(snapshot.error), finished)
        self._run(
            "UPDATE tasks SET status = ?, message = ?, result = ?, error = ?, finished = ?"
            " WHERE server = ? AND task_id = ?",
            (snapshot.status.value, snapshot.message, *outcome, server, snapshot.id),
        )

    def pending(self, *, server: str | None = None) -> list[LedgerEntry]:
        """Tasks that were started and not seen to end, oldest first."""
        return [entry for entry in self.entries(server=server) if not entry.is_final]

    def entries(self, *, server: str | None = None) -> list[LedgerEntry]:
        """All tasks that are remembered, oldest first."""
        rows = self._run(
            "SELECT task_id, server, tool, started, status, message, result, error, finished FROM tasks"
            " WHERE ?1 IS NULL OR server = ?1 ORDER BY started",
            (server,),
        )
        with self._translated():
            return [_entry(row) for row in rows]

    def forget(self, task_id: str, *, server: str) -> None:
        """Remember the task no longer."""
        self._run("DELETE FROM tasks WHERE server = ? AND task_id = ?", (server, task_id))
        self._run("DELETE FROM answers WHERE server = ? AND task_id = ?", (server, task_id))

    def lost(self, task_id: str, *, server: str) -> None:
        """The server knows the task no more. One that was seen to end is remembered all the same."""
        ended = any(entry.task_id == task_id and entry.is_final for entry in self.entries(server=server))
        if not ended:
            self.forget(task_id, server=server)

    def record_answer(self, server: str, task_id: str, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer before it is sent, in place of one that was kept before."""
        self._run(
            "INSERT OR REPLACE INTO answers (server, task_id, key, answer) VALUES (?, ?, ?, ?)",
            (server, task_id, key, json.dumps(dict(answer))),
        )

    def answer_sent(self, server: str, task_id: str, key: str) -> None:
        """The server has acknowledged the answer."""
        self._run("UPDATE answers SET sent = 1 WHERE server = ? AND task_id = ? AND key = ?", (server, task_id, key))

    def answer_refused(self, server: str, task_id: str, key: str) -> None:
        """The server did not take the answer: it is none to come back to."""
        self._run("DELETE FROM answers WHERE server = ? AND task_id = ? AND key = ?", (server, task_id, key))

    def answers(self, server: str, task_id: str) -> dict[str, tuple[dict[str, Any], bool]]:
        """Answers given to a task, by key, and whether the server has acknowledged them."""
        rows = self._run("SELECT key, answer, sent FROM answers WHERE server = ? AND task_id = ?", (server, task_id))
        with self._translated():
            return {key: (json.loads(answer), bool(sent)) for key, answer, sent in rows}

    def _run(self, statement: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._db.execute(statement, params).fetchall()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as exc:
            raise StoreUnavailable(f"the ledger {self.path} cannot be used now: {exc}") from exc
        except (sqlite3.DatabaseError, ValueError, TypeError) as exc:
            raise StoreCorrupt(f"the ledger {self.path} is damaged, or is none: {exc}") from exc


def _use_wal(db: sqlite3.Connection) -> None:
    # Two processes that make the file at the same moment: here SQLite does not wait for a lock, whatever its timeout.
    for _ in range(100):
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc):
                raise
            time.sleep(0.02)
    db.execute("PRAGMA journal_mode=WAL")


def _entry(row: tuple[Any, ...]) -> LedgerEntry:
    task_id, server, tool, started, status, message, result, error, finished = row
    return LedgerEntry(
        task_id=task_id,
        server=server,
        tool=tool,
        started=datetime.fromisoformat(started),
        status=status,
        message=message,
        result=None if result is None else json.loads(result),
        error=None if error is None else json.loads(error),
        finished=None if finished is None else datetime.fromisoformat(finished),
    )


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(dict(value))
