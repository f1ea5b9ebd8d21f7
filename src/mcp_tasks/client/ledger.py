"""A file that keeps the tasks a client started: SEP-2663 asks clients to persist task ids.

It holds every task that is not finished with, the answers given to its questions, and results if asked for. A task is
kept under the address of its server and under the caller's identity there, never under the server's own name. An answer
is written down before it is sent, so that a person is never asked twice: after a crash it is sent again, to the same
server and for the same question only.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from weakref import finalize

from mcp_tasks.client.ledger_file import Sealer, bound_to, open_ledger
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, Cipher, keyring_from_environment
from mcp_tasks.errors import (
    CannotDecrypt,
    EncryptionMismatch,
    InvalidInput,
    InvalidOption,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UntrustedFile,
)
from mcp_tasks.files import private_state_folder, state_folder
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import FINAL_STATUSES, TaskStatus
from mcp_tasks.protocol.shapes import TaskSnapshot

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
    arguments: str | None = None
    named: str | None = None

    @classmethod
    def begun(cls, task_id: str = "", *, server: str, tool: str = "", identity: str = "") -> LedgerEntry:
        """A task, or a call that is not yet one, of which only its beginning is known."""
        now, status = datetime.now(UTC), TaskStatus.WORKING.value
        return cls(task_id=task_id, server=server, tool=tool, identity=identity, started_at=now, status=status)

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells the task from all others: its server, the identity there, and its id."""
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
        """Whether the task completed with a result by which the tool says that it failed."""
        return bool((self.result or {}).get("isError"))

    @property
    def server_label(self) -> str:
        """How its server is shown: a command without its folder."""
        return self.server.rpartition(" && ")[2]

    def has_text(self, text: str) -> bool:
        """Whether a text is in its id, tool, arguments, message or server, in upper or lower case."""
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


# ---- short ids
# Tasks by the beginnings of their ids, which are long, as people see and type them.


_SPELLING: Final = frozenset("\u200c\u200d")
"""Marks that have no width and belong to the spelling of words and emoji."""

_DROPPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories that a terminal obeys or does not show: controls, marks that reorder or hide, halves of characters,
separators that some terminals take for the end of a line."""

SHORT: Final = 8
"""Characters of an id's random part that are shown and asked for: 48 bits, more than a ledger can mix up."""


def is_dropped(char: str) -> bool:
    return char not in _SPELLING and unicodedata.category(char) in _DROPPED


def printable(text: str) -> str:
    """Text without control characters, on its lines: fit for a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char for char in text if char in "\n\t" or not is_dropped(char))


def on_one_line(text: str) -> str:
    """The same on one line."""
    return " ".join(printable(text).split())


def short_id(task_id: str) -> str:
    """As much of an id as tells tasks apart, fit for a terminal: an id is text of the server's."""
    kind, random = _split(on_one_line(task_id))
    return kind + random[:SHORT]


def short_ids(task_ids: Iterable[str]) -> dict[str, str]:
    """Short forms of ids by which `Ledger.find` finds each of these again; whole ones where ids are alike."""
    short = {task_id: short_id(task_id) for task_id in task_ids}
    taken = Counter(short.values())
    return {task_id: name if taken[name] == 1 else task_id for task_id, name in short.items()}


def _begins(task_id: str, start: str) -> bool:
    """Whether an id begins like that, as it is or as it is shown, with or without the part before `_`."""
    names = (task_id, shown := on_one_line(task_id), _split(task_id)[1], _split(shown)[1])
    return bool(start) and any(name.startswith(start) for name in names)


def _split(task_id: str) -> tuple[str, str]:
    """The part of an id that all of a server's ids share (`task_`), and the rest."""
    kind, separator, random = task_id.partition("_")
    return (kind + separator, random) if kind.isalpha() and random else ("", task_id)


# ---- ledger


class Ledger:
    """Tasks that this client started, in a SQLite file.

    Tasks of a server are kept apart by `identity`, for programs that come to it as more than one user.

    Args:
        path: The file, which is created if it does not exist.
        keep_results: Keep finished tasks, with their results and in short what they were called with, until `forget`.
            Otherwise a task is removed when its end was seen.
        cipher: Encrypts arguments, messages, results, errors, questions and answers (`mcp_tasks.encryption.Keyring`). A
            ledger that is plain, or has an older key of the ring, is encrypted when it is opened.

    Raises:
        EncryptionMismatch: It is encrypted, and the key is missing or another one.
        UntrustedFile: Another user may have put the file there, or can write it.
        StoreUnavailable: The file cannot be used now. Any method may raise this.
        StoreCorrupt: The file is not a ledger, or is corrupt. Any method may raise this.
    """

    def __init__(self, path: str | Path, *, keep_results: bool = False, cipher: Cipher | None = None) -> None:
        self.path: Path = Path(path)
        self.keep_results: bool = keep_results
        self._sealer = Sealer(cipher)
        with self._translated():
            self._db = open_ledger(self.path, timeout=5, cipher=cipher)
        # A client that was given a path made its ledger itself, and is not told when it is no longer used.
        self._closed = finalize(self, self._db.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; leaving a `with` does so, too. Safe to call twice."""
        self._closed()

    def add(
        self,
        task_id: str,
        *,
        server: str,
        tool: str,
        identity: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a task, as soon as its id is known."""
        called_with = in_short(arguments) if arguments and self.keep_results else None
        sealed = self._sealer.seal(bound_to("arguments", server, identity, task_id), called_with)
        self._run(
            "INSERT OR IGNORE INTO tasks (server, identity, task_id, tool, started, status, arguments, named)"
            " VALUES (?1, ?2, ?3, ?4, ?5, 'working', ?6, (SELECT name FROM servers WHERE server = ?1))",
            (server, identity, task_id, tool, datetime.now(UTC).isoformat(), sealed),
        )

    def called(self, server: str, *, name: str = "") -> None:
        """Record that the user is about to call a server, and how they said which: by a name, or without one by its
        address. Tasks that are added from now on are kept with that."""
        self._run("INSERT OR REPLACE INTO servers (server, name) VALUES (?, ?)", (server, name))

    def was_called(self, server: str) -> bool:
        """Whether the user has called the server before: see `called`."""
        return bool(self._run("SELECT 1 FROM servers WHERE server = ?", (server,)))

    def saw(self, server: str, snapshot: TaskSnapshot, *, identity: str = "") -> None:
        """Record a state. A task that ended is removed, unless results are kept."""
        if snapshot.is_final and not self.keep_results:
            self.forget(snapshot.id, server=server, identity=identity)
            return
        row = (server, identity, snapshot.id)
        finished = self._end_of(row, snapshot) if snapshot.is_final else None
        values = {"message": snapshot.message, "result": _json(snapshot.result), "error": _json(snapshot.error)}
        sealed = [self._sealer.seal(bound_to(column, *row), value) for column, value in values.items()]
        self._run(
            "UPDATE tasks SET status = ?, message = ?, result = ?, error = ?, finished = ? WHERE {task}",
            (snapshot.status.value, *sealed, finished, *row),
        )

    def lost(self, task_id: str, *, server: str, identity: str = "") -> None:
        """Record that the server does not know the task (any more): it is `unknown`, unless it was seen to end."""
        self._run("UPDATE tasks SET status = ? WHERE {task} AND finished IS NULL", (UNKNOWN, server, identity, task_id))

    def cancelled(self, task_id: str, *, server: str, identity: str = "") -> None:
        """Record that the server acknowledged our cancelling the task, which ends it for us. It is removed, unless
        results are kept; then a state that is seen later still counts."""
        if not self.keep_results:
            self.forget(task_id, server=server, identity=identity)
            return
        self._run(
            "UPDATE tasks SET status = ?, finished = ? WHERE {task} AND finished IS NULL",
            (TaskStatus.CANCELLED.value, datetime.now(UTC).isoformat(), server, identity, task_id),
        )

    def pending(self, *, server: str | None = None, identity: str | None = None) -> list[LedgerEntry]:
        """Tasks that were started and not seen to end, oldest first."""
        return self.entries(server=server, identity=identity, active=True)

    def entries(
        self,
        *,
        server: str | None = None,
        identity: str | None = None,
        active: bool | None = None,
        status: str | None = None,
        search: str | None = None,
    ) -> list[LedgerEntry]:
        """All tasks, oldest first, or those that are as all of this says.

        Args:
            server: Of this server.
            identity: Of this identity.
            active: True for those that were not seen to end, False for those that were.
            status: Last seen with this status.
            search: With this text in their id, tool, arguments, message or server.
        """
        rows = self._run(
            "SELECT task_id, server, tool, started, status, message, result, error, arguments, finished, identity,"
            " named FROM tasks WHERE (?1 IS NULL OR server = ?1) AND (?2 IS NULL OR identity = ?2)"
            " ORDER BY started",
            (server, identity),
        )
        with self._translated():
            entries = [self._entry(row) for row in rows]
        return [
            entry
            for entry in entries
            if (active is None or active != entry.is_final)
            and (status is None or status == entry.status)
            and (search is None or entry.has_text(search))
        ]

    def __contains__(self, entry: LedgerEntry) -> bool:
        return any(other.key == entry.key for other in self.entries(server=entry.server, identity=entry.identity))

    def find(self, start: str, *, server: str | None = None, identity: str | None = None) -> LedgerEntry:
        """The one task whose id begins with `start`, with or without the part before `_`.

        Raises:
            InvalidInput: No task begins like that, or more than one does.
        """
        found = [entry for entry in self.entries(server=server, identity=identity) if _begins(entry.task_id, start)]
        exact = [entry for entry in found if entry.task_id == start]
        match exact or found:
            case [entry]:
                return entry
            case []:
                hint = "That is the URL of a server; a task is named by its id." if "://" in start else ""
                raise InvalidInput("task", f"no task in the ledger begins with {start!r}", hint)
            case several:
                lines = [f"{e.task_id}  {e.tool}  {e.status}  {e.server}  {e.identity}".rstrip() for e in several[:10]]
                lines += [f"and {len(several) - 10} more"] if len(several) > 10 else []
                raise InvalidInput("several_tasks", f"{start!r} matches {len(several)} tasks", "\n".join(lines))

    def find_all(
        self, starts: Iterable[str], *, server: str | None = None, identity: str | None = None
    ) -> list[LedgerEntry]:
        """The tasks whose ids begin like these, each once, in the order named.

        Args:
            server: Of this server alone. With it, what no task begins with is the id of one that the ledger has never
                heard of.
            identity: Of this identity alone.

        Raises:
            InvalidInput: No task begins like one of them, or more than one does.
        """
        found: list[LedgerEntry] = []
        for start in starts:
            try:
                found.append(self.find(start, server=server, identity=identity))
            except InvalidInput as exc:
                if server is None or exc.reason != "task":
                    raise
                found.append(LedgerEntry.begun(start, server=server, identity=identity or ""))
        return list({entry.key: entry for entry in found}.values())

    def prune(self, *, older_than: timedelta = timedelta(0), dry_run: bool = False) -> list[LedgerEntry]:
        """Remove tasks that have ended, and those that their server did not know; gives what was removed.

        Args:
            older_than: Only those that were started longer ago.
            dry_run: Remove nothing, and give what would be.
        """
        now = datetime.now(UTC)
        over = [entry for entry in self.entries() if entry.is_over and now - entry.started_at >= older_than]
        for entry in () if dry_run else over:
            self.forget(entry.task_id, server=entry.server, identity=entry.identity)
        return over

    def forget(self, task_id: str, *, server: str, identity: str = "") -> None:
        """Remove the task, and the answers given to it."""
        self._run("DELETE FROM tasks WHERE {task}", (server, identity, task_id))
        self._run("DELETE FROM answers WHERE {task}", (server, identity, task_id))

    def record_answer(
        self,
        server: str,
        task_id: str,
        key: str,
        answer: Mapping[str, Any],
        *,
        question: JsonObject | None = None,
        identity: str = "",
    ) -> None:
        """Record an answer before it is sent, in place of an earlier one. On disk when this returns.

        Args:
            question: What was asked under the key. An answer to an unknown question is never given again.
        """
        row = (server, identity, task_id, key)
        sealed = (
            self._sealer.seal(bound_to("question", *row), _json(question)),
            self._sealer.seal(bound_to("answer", *row), _json(answer)),
        )
        self._run(
            "INSERT OR REPLACE INTO answers (server, identity, task_id, key, question, answer)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*row, *sealed),
        )

    def recorded_answer(
        self, server: str, task_id: str, key: str, *, question: JsonObject, identity: str = ""
    ) -> dict[str, Any] | None:
        """The answer that was given to this very question: the same server, task, key and content."""
        row = (server, identity, task_id, key)
        rows = self._run("SELECT question, answer FROM answers WHERE {task} AND key = ?", row)
        with self._translated():
            for asked, answer in rows:
                # Compared here: what is encrypted differs each time.
                if self._sealer.open(bound_to("question", *row), asked) == _json(question):
                    return json.loads(self._sealer.open(bound_to("answer", *row), answer))
        return None

    def answer_sent(self, server: str, task_id: str, key: str, *, identity: str = "") -> None:
        """Record that the server acknowledged the answer."""
        self._run("UPDATE answers SET sent = 1 WHERE {task} AND key = ?", (server, identity, task_id, key))

    def answer_refused(self, server: str, task_id: str, key: str, *, identity: str = "") -> None:
        """Remove an answer that the server refused."""
        self._run("DELETE FROM answers WHERE {task} AND key = ?", (server, identity, task_id, key))

    def answers(self, server: str, task_id: str, *, identity: str = "") -> dict[str, tuple[dict[str, Any], bool]]:
        """Answers given to a task, by key, and whether the server has acknowledged them."""
        task = (server, identity, task_id)
        rows = self._run("SELECT key, answer, sent FROM answers WHERE {task}", task)
        with self._translated():
            return {
                _text(key): (json.loads(self._sealer.open(bound_to("answer", *task, key), answer)), bool(sent))
                for key, answer, sent in rows
            }

    def _end_of(self, task: tuple[str, str, str], snapshot: TaskSnapshot) -> str:
        """When a task ended by our clock, which says when it was started: the server knows how long it took."""
        rows = self._run("SELECT started FROM tasks WHERE {task}", task)
        with self._translated(), suppress(OverflowError):
            for (started,) in rows:
                return (datetime.fromisoformat(started) + (snapshot.updated_at - snapshot.created_at)).isoformat()
        return datetime.now(UTC).isoformat()

    def _entry(self, row: tuple[Any, ...]) -> LedgerEntry:
        task_id, server, tool, started, status, *secrets, finished, identity, named = row
        message, result, error, arguments = (
            self._sealer.open(bound_to(column, server, identity, task_id), secret)
            for column, secret in zip(("message", "result", "error", "arguments"), secrets, strict=True)
        )
        return LedgerEntry(
            task_id=_text(task_id),
            server=_text(server),
            tool=_text(tool),
            started_at=datetime.fromisoformat(started),
            status=status,
            message=None if message is None else _text(message),
            result=None if result is None else json.loads(result),
            error=None if error is None else json.loads(error),
            finished_at=None if finished is None else datetime.fromisoformat(finished),
            identity=_text(identity),
            arguments=None if arguments is None else _text(arguments),
            named=None if named is None else _text(named),
        )

    def _run(self, statement: str, params: Sequence[str | bytes | None]) -> list[tuple[Any, ...]]:
        with self._translated():
            statement = statement.format(task="server = ? AND identity = ? AND task_id = ?")
            return self._db.execute(statement, [_bound(param) for param in params]).fetchall()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except CannotDecrypt as exc:
            raise EncryptionMismatch(f"something in the ledger {self.path} cannot be decrypted: {exc}") from exc
        except (sqlite3.OperationalError, OSError) as exc:
            raise StoreUnavailable(f"the ledger {self.path} cannot be used now: {exc}") from exc
        except (sqlite3.DatabaseError, ValueError, TypeError) as exc:
            raise StoreCorrupt(f"{self.path} is not a ledger, or is corrupt: {exc}") from exc


_LONGEST: Final = 200
_LONGEST_VALUE: Final = 60
_MOST: Final = 20
"""Limits on the arguments of a call that are kept: characters in all and of one value, and how many values."""

_SECRET_NAME: Final = re.compile(
    r"passw|secret|token|credential|authorization|cookie|(api|access|private)[_-]?key", re.IGNORECASE
)


def in_short(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call, on one line of bounded length: enough to tell two calls apart. Values that look like
    secrets by their names are left out."""
    words = [f"{name}={_value_in_short(name, value)}" for name, value in itertools.islice(arguments.items(), _MOST)]
    return _cut(" ".join(words), _LONGEST)


def _value_in_short(name: str, value: Any) -> str:
    if isinstance(value, str) and _SECRET_NAME.search(name):
        return "***"
    # A long text is not looked at as a whole.
    text = value[: _LONGEST_VALUE + 1] if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _cut(" ".join(text.split()), _LONGEST_VALUE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _json(value: Mapping[str, Any] | None) -> str | None:
    """A value as text that is the same for equal values, and always ASCII."""
    return None if value is None else json.dumps(dict(value), sort_keys=True)


def _bound(text: str | bytes | None) -> str | bytes | None:
    """Text as SQLite takes it. A lone surrogate, which JSON can spell, is not text to SQLite: it is kept as bytes."""
    if text is None or isinstance(text, bytes) or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")
    return text


def _text(value: str | bytes) -> str:
    return value.decode(errors="surrogatepass") if isinstance(value, bytes) else value


class TaskLedger:
    """The ledger as far as it concerns one task. Without a ledger, nothing is kept."""

    def __init__(self, ledger: Ledger | None, task_id: str, *, server: str = "", identity: str = "") -> None:
        self._ledger = ledger
        self._id = task_id
        self._server = server
        self._identity = identity

    @property
    def exists(self) -> bool:
        return self._ledger is not None

    def add(self, tool: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Add the task, and what its tool was called with.

        Raises:
            StoreError: It cannot be kept. A note of the exception has its id, which would be lost otherwise.
        """
        if self._ledger is None:
            return
        try:
            self._ledger.add(self._id, server=self._server, tool=tool, identity=self._identity, arguments=arguments)
        except StoreError as exc:
            exc.add_note(f"The task goes on, and is not in the ledger: {self._id}")
            raise

    def saw(self, snapshot: TaskSnapshot) -> None:
        if self._ledger is not None:
            self._ledger.saw(self._server, snapshot, identity=self._identity)

    def lost(self) -> None:
        if self._ledger is not None:
            self._ledger.lost(self._id, server=self._server, identity=self._identity)

    def cancelled(self) -> None:
        if self._ledger is not None:
            self._ledger.cancelled(self._id, server=self._server, identity=self._identity)

    def forget(self) -> None:
        if self._ledger is not None:
            self._ledger.forget(self._id, server=self._server, identity=self._identity)

    def recorded_answer(self, key: str, question: JsonObject) -> Mapping[str, Any] | None:
        if self._ledger is None:
            return None
        return self._ledger.recorded_answer(self._server, self._id, key, question=question, identity=self._identity)

    def record_answer(self, key: str, question: JsonObject | None, answer: Mapping[str, Any]) -> None:
        if self._ledger is not None:
            self._ledger.record_answer(self._server, self._id, key, answer, question=question, identity=self._identity)

    def answer_sent(self, key: str) -> None:
        if self._ledger is not None:
            self._ledger.answer_sent(self._server, self._id, key, identity=self._identity)

    def answer_refused(self, key: str) -> None:
        if self._ledger is not None:
            self._ledger.answer_refused(self._server, self._id, key, identity=self._identity)


def user_ledger_path() -> Path:
    """Where the ledger of the `mcp-tasks` command is: in the user's state folder."""
    return state_folder() / "ledger.db"


def user_ledger(path: Path | None = None) -> Ledger:
    """Open the ledger of the `mcp-tasks` command, with the keys of the environment (`MCP_TASKS_LEDGER_KEYS`) and
    results kept; made if it is not there. Only its owner may read it: ids can be all that protects a task.

    Args:
        path: Another file, which is opened in the same way.

    Raises:
        StoreError: The file cannot be used, or others can write to its folder; or the environment has no keys where it
            says that it has some.
    """
    if path is None:
        private_state_folder()
    where = path or user_ledger_path()
    try:
        cipher = keyring_from_environment(LEDGER_KEYS_VARIABLE)
    except (InvalidOption, UntrustedFile) as exc:
        raise EncryptionMismatch(f"the ledger {where} needs its keys, see {LEDGER_KEYS_VARIABLE}: {exc}") from exc
    return Ledger(where, keep_results=True, cipher=cipher)
