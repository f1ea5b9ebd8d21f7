"""The writes of the store as operations for the `Writer`, and the fair choice of what is dispatched.

The caller has encoded all values, so that the transaction is short. Each function returns an operation for the writer's
thread. Conflicts show in the row count: an exception or a savepoint for each would cost more than the write.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from mcp_tasks.errors import LimitReached, StoreError
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.base import Change, Created, Creation, Ready, Row, Share, WorkLimits
from mcp_tasks.stores.codec import FINAL, MICROSECOND, columns_of, sort_key
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Position, Room, Route, Step, Turns, Waiting, ready_of
from mcp_tasks.stores.sqlite.file import (
    Operation,
    Read,
    fetch,
    from_owner,
    from_text,
    to_optional,
    to_owner,
    to_text,
)

WAITS, HANDED, AT_WORK, RESUMING = 0, 1, 2, 3
"""Values of the column `hand` of a task; NULL if it is neither queued nor at work nor about to be again."""


def row_of(task_id: str | bytes, owner: bytes, namespace: str | bytes, state: object) -> Row:
    """A task as its columns have it."""
    return from_text(task_id), from_owner(owner), from_text(namespace), state


@lru_cache(maxsize=1_000)
def tool_digest(method: str, name: str) -> bytes:
    """The column `tool` of a tool."""
    return blake2b(f"{method}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


# ---- dispatch

Decode: TypeAlias = Callable[[Row], TaskRecord | None]
"""The record of a row, or None if it cannot be read."""

_COLUMNS = ("queue", "rank", "owner", "tool")

_TASK = "SELECT owner, namespace, state FROM tasks WHERE id = ?"


def _waiting(count: int, wanted: str, *beyond: str, limit: str = "1") -> str:
    """The query for what is wanted of entries of the index with the same first values, so many of them."""
    where = ["hand = 0", *(f"{column} = ?" for column in ("namespace", *_COLUMNS[:count])), *beyond]
    seek = f"SELECT {wanted} FROM tasks INDEXED BY tasks_waiting WHERE {' AND '.join(where)}"
    return f"{seek} ORDER BY {wanted} LIMIT {limit}"


def _count(index: str, where: str) -> str:
    # `hand` as in the schema: SQLite uses a partial index only if it sees that the condition holds.
    return f"SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY {index} WHERE namespace = ? AND {where} LIMIT ?)"


_FIRST = [_waiting(count, column) for count, column in enumerate(_COLUMNS)]
_NEXT = [_waiting(count, column, f"{column} > ?") for count, column in enumerate(_COLUMNS)]
_TASKS = _waiting(4, "created, id", "(created, id) > (?, ?)", limit="?")
_HANDED = _count("tasks_handed", "hand = 1 AND queue = ? AND owner = ? AND tool = ?")
_OWNER_AT_WORK = _count("tasks_owner_at_work", "hand > 1 AND owner = ? AND hand <= ?")
_TOOL_IN_HAND = _count("tasks_tool_hand", "hand > 0 AND tool = ?")
_TOOL_AT_WORK = _count("tasks_tool_hand", "hand > 0 AND tool = ? AND hand BETWEEN 2 AND ?")

FIRST_PAGE = 2
"""Tasks of one owner that are read at first: mostly other owners have their turns then. Then ever more."""


class SqliteWaiting(Waiting):
    """The tasks that wait in a namespace, and those in hand, read by seeks in their indexes."""

    def __init__(self, read: Read, namespace: str, decode: Decode | None = None) -> None:
        self._read = read
        self._name = namespace
        self._namespace = to_text(namespace)
        self._decode = decode

    def choose(self, share: Share, queues: Collection[str] | None, limit: int, turns: Turns) -> list[Ready]:
        """The tasks that are next, in order."""
        wanted = None if queues is None else [to_text(queue) for queue in queues]
        return Choice(self, self.room(share), wanted, limit).make(self._name, turns)

    def room(self, share: Share) -> Room:
        return Room(self, share, {tool_digest(TOOL_METHOD, name): limit for name, limit in share.tools.items()})

    def handed(self, route: Route, most: int) -> int:
        return self._counted(_HANDED, *route, most=most)

    def of_tool(self, tool: bytes, most: int) -> int:
        return self._counted(_TOOL_IN_HAND, tool, most=most)

    def owner_at_work(self, owner: bytes, most: int, up_to: int = RESUMING) -> int:
        """Tasks of the owner that are at work; those that are resuming included, unless it is up to `AT_WORK`."""
        return self._counted(_OWNER_AT_WORK, owner, up_to, most=most)

    def tool_at_work(self, tool: bytes, most: int, up_to: int) -> int:
        """Tasks of the tool that are at work; those that are resuming as with `owner_at_work`."""
        return self._counted(_TOOL_AT_WORK, tool, up_to, most=most)

    def _counted(self, sql: str, *by: Any, most: int) -> int:
        # A negative LIMIT would be none.
        rows = self._read(sql, (self._namespace, *by, max(most, 0)))
        return rows[0][0] if rows else 0

    def following(self, step: Step, after: Any = None) -> Any:
        values = self._namespace, *step
        sql, values = (_FIRST, values) if after is None else (_NEXT, (*values, after))
        rows = self._read(sql[len(step)], values)
        return rows[0][0] if rows else None

    def tasks(self, step: Step) -> Iterator[Position]:
        values, place, size = (self._namespace, *step), (-(2**63), ""), FIRST_PAGE
        while True:
            rows = self._read(_TASKS, (*values, *place, size))
            yield from ((created, from_text(task_id)) for created, task_id in rows)
            if len(rows) < size:
                return
            place, size = rows[-1], size * 4

    def ready(self, task_id: str) -> Ready | None:
        for row in self._read(_TASK, (to_text(task_id),)):
            if self._decode is not None and (record := self._decode(row_of(task_id, *row))) is not None:
                return ready_of(record)
        return None


def hand_out(
    namespace: str, share: Share, *, queues: Collection[str] | None, limit: int, turns: Turns, decode: Decode
) -> Operation[list[Ready]]:
    """Choose tasks and mark them."""

    def run(cursor: sqlite3.Cursor) -> list[Ready]:
        waiting = SqliteWaiting(partial(fetch, cursor.connection), namespace, decode)
        chosen = waiting.choose(share, queues, limit, turns)
        mark = "UPDATE tasks SET hand = 1 WHERE id = ? AND hand = 0"
        cursor.executemany(mark, [(to_text(task.id),) for task in chosen])
        return chosen

    return run


# ---- tasks


def _columns(record: TaskRecord, state: bytes) -> dict[str, Any]:
    values = columns_of(record, state, to_text)
    at_work = RESUMING if values["resuming"] else AT_WORK if values["at_work"] else None
    return values | {"hand": WAITS if values["queued"] else at_work}


_INSERT_TASK = """
INSERT INTO tasks (
    id, version, namespace, owner, session, parent, idempotency_key, status, worker, created, ready, expires, state,
    queue, rank, tool, key_outlives, since, hand, seq
)
VALUES (
    :id, :version, :namespace, :owner, :session, :parent, :key, :status, :worker, :created, :ready, :expires, :state,
    :queue, :rank, :tool, :outlives, :since, :hand, (SELECT seq FROM meta)
) ON CONFLICT (id) DO NOTHING
"""
_INSERT_REQUEST = "INSERT INTO requests (task, request) VALUES (?, ?)"
UNDER_KEY: Final = "idempotency_key = :key AND namespace = :namespace AND owner = :owner"
_STANDING = f"""
SELECT key, status, expires, expires + key_outlives, id, owner, namespace, state FROM tasks INDEXED BY tasks_key
WHERE {UNDER_KEY}
"""
_SPENT = f"SELECT until FROM spent_keys WHERE {UNDER_KEY}"
_FREE_SPENT = f"DELETE FROM spent_keys WHERE {UNDER_KEY}"
_FREE_KEY = "UPDATE tasks SET idempotency_key = NULL, key_outlives = NULL WHERE key = ?"
_CHILD = """
SELECT c.task FROM tasks p LEFT JOIN child_keys c
    ON c.parent = p.id AND c.idempotency_key = :key AND c.namespace = :namespace AND c.owner = :owner
WHERE p.id = :parent AND p.status NOT IN ('completed', 'failed', 'cancelled')
"""
_KEEP_CHILD = """
INSERT OR REPLACE INTO child_keys
SELECT id, :key, :namespace, :owner, :id FROM tasks
WHERE id = :parent AND status NOT IN ('completed', 'failed', 'cancelled')
"""


def create(new: Creation) -> Operation[Created]:
    """Insert a task with its request, unless a task stands under the key."""
    record, outlives, until_end = new.record, new.key_outlives, new.key_until_end
    share = None if new.handing is None else new.handing.share
    tool = tool_digest(record.method, record.name)
    values = _columns(record, new.state) | {
        "namespace": to_text(record.namespace),
        "owner": to_owner(record.owner),
        "parent": to_optional(record.parent),
        "key": to_optional(new.key),
        "created": (now := sort_key(record)),
        "tool": tool,
        "outlives": None if outlives is None else outlives // MICROSECOND,
    }

    def in_the_way(cursor: sqlite3.Cursor) -> Created | None:
        """What keeps a task from being made under this key. A task that loses the key, or has expired, is taken
        away."""
        # Under the write lock: of two that create under a key, the second one finds the first.
        found = cursor.execute(_STANDING, values).fetchall()
        key, status, expires, until, *row = found[0] if found else (None, "", None, None)
        loses_key = until_end and status in FINAL
        if found and not loses_key and (expires is None or expires > now):
            return Created(standing=row_of(*row))
        if record.parent is not None and not until_end:
            child = cursor.execute(_CHILD, values).fetchall()
            if child != [(None,)]:
                return Created(spent=True, child=from_text(child[0][0]) if child else None)
        spent = [] if found else cursor.execute(_SPENT, values).fetchall()
        if not until_end and any(each is not None and each > now for each in (until, *(each for (each,) in spent))):
            return Created(spent=True)
        if (found or spent) and cursor.execute("SELECT key FROM tasks WHERE id = :id", values).fetchall():
            return Created(exists=True)
        if found:
            cursor.execute(_FREE_KEY if loses_key else "DELETE FROM tasks WHERE key = ?", (key,))
        if spent:
            cursor.execute(_FREE_SPENT, values)
        return None

    def run(cursor: sqlite3.Cursor) -> Created:
        if new.key is not None and (found := in_the_way(cursor)) is not None:
            return found
        handed = False
        if share is not None and values["queued"]:
            room = SqliteWaiting(partial(fetch, cursor.connection), record.namespace).room(share)
            handed = room.has((values["queue"], values["owner"], tool))
        if cursor.execute(_INSERT_TASK, {**values, "hand": HANDED} if handed else values).rowcount == 0:
            return Created(exists=True)
        cursor.execute(_INSERT_REQUEST, (cursor.lastrowid, new.request))
        if new.key is not None and record.parent is not None:
            cursor.execute(_KEEP_CHILD, values)
        return Created(handed=handed)

    return run


# Columns that never change are left out, so that their indexes are not touched. A task that stays queued keeps its
# place among those that wait.
_UPDATE_TASK = """
UPDATE tasks
SET version = :version, session = :session, status = :status, worker = :worker, ready = :ready, expires = :expires,
    state = :state, queue = :queue, rank = :rank,
    since = CASE WHEN :queued AND hand IN (0, 1) THEN since ELSE :since END,
    hand = CASE WHEN :queued THEN hand IS 1 ELSE :hand END, seq = (SELECT seq FROM meta)
WHERE id = :id AND version = :expected
"""
_INSERT_ENTRY = "INSERT INTO journal (task, kind, key, value) SELECT key, ?, ?, ? FROM tasks WHERE id = ?"
_INSERT_OUTCOME = "INSERT OR REPLACE INTO outcomes (task, body, meta) SELECT key, ?, ? FROM tasks WHERE id = ?"


def save(change: Change) -> Operation[bool]:
    """Update a task, append to its journal and keep its outcome; False if it is at another version, or gone."""
    record, outcome = change.record, change.outcome
    values = _columns(record, change.state) | {"expected": change.expected}
    task_id = values["id"]

    def run(cursor: sqlite3.Cursor) -> bool | StoreError:
        if change.limits is not None and (refusal := _refusal(record, change.expected, change.limits, cursor)):
            return refusal
        if cursor.execute(_UPDATE_TASK, values).rowcount == 0:
            return False
        for kind, key, value in change.lines:
            cursor.execute(_INSERT_ENTRY, (kind, to_text(key), value, task_id))
        if outcome is not None:
            cursor.execute(_INSERT_OUTCOME, (outcome.body, outcome.meta, task_id))
        return True

    return run


def _refusal(record: TaskRecord, expected: int, limits: WorkLimits, cursor: sqlite3.Cursor) -> StoreError | None:
    """Which limit keeps the task from being claimed, if it is at the expected version.

    Under the write lock, so that nothing is claimed between counting and writing.
    """
    found = cursor.execute("SELECT version, hand FROM tasks WHERE id = ?", (to_text(record.id),)).fetchall()
    if not found or found[0][0] != expected:
        return None
    # A task that is at work does not count against itself, and of those that are resuming none against another.
    up_to = AT_WORK if found[0][1] == RESUMING else RESUMING
    itself = int(found[0][1] == AT_WORK)
    in_hand = SqliteWaiting(partial(fetch, cursor.connection), record.namespace)
    tool, owner = tool_digest(record.method, record.name), to_owner(record.owner)
    if limits.tool is not None and in_hand.tool_at_work(tool, limits.tool + itself, up_to) - itself >= limits.tool:
        return LimitReached(record.id, "tool")
    if limits.owner is not None and in_hand.owner_at_work(owner, limits.owner + itself, up_to) - itself >= limits.owner:
        return LimitReached(record.id, "owner")
    return None


_OUTLIVED = """
SELECT ? + key_outlives, idempotency_key, namespace, owner FROM tasks
WHERE id = ? AND version = ? AND key_outlives IS NOT NULL AND idempotency_key IS NOT NULL
"""
_SPEND = "UPDATE spent_keys SET until = ? WHERE idempotency_key = ? AND namespace = ? AND owner = ?"


def delete(task_id: str, expected: int, now: int | None) -> Operation[bool]:
    """Remove a task; a trigger removes what is kept beside it, and keeps its key if that outlives it."""
    which = to_text(task_id), expected

    def run(cursor: sqlite3.Cursor) -> bool:
        outlived = [] if now is None else cursor.execute(_OUTLIVED, (now, *which)).fetchall()
        if not cursor.execute("DELETE FROM tasks WHERE id = ? AND version = ?", which).rowcount:
            return False
        cursor.executemany(_SPEND, outlived)
        return True

    return run


_BEAT = """
INSERT INTO heartbeats (worker, namespace, beats) VALUES (?, ?, ?)
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace, beats = max(beats, excluded.beats)
"""


def heartbeat(worker: str, namespace: str, beats: int) -> Operation[int]:
    """Keep the count of a worker, unless it is more already. Gives the count before."""
    row = to_text(worker), to_text(namespace), beats

    def run(cursor: sqlite3.Cursor) -> int:
        before = cursor.execute("SELECT beats FROM heartbeats WHERE worker = ?", row[:1]).fetchone()
        cursor.execute(_BEAT, row)
        return 0 if before is None else before[0]

    return run


def set_note(namespace: str, name: str, seen: object, value: bytes) -> Operation[bool]:
    """Keep a note if what is there is what was seen; whether it was kept."""
    row: Mapping[str, Any] = {"namespace": to_text(namespace), "name": to_text(name), "value": value, "seen": seen}
    sql = "INSERT OR IGNORE INTO notes (namespace, name, value) VALUES (:namespace, :name, :value)"
    if seen is not None:
        sql = "UPDATE notes SET value = :value WHERE namespace = :namespace AND name = :name AND value = :seen"
    return lambda cursor: cursor.execute(sql, row).rowcount > 0


def change_row(sql: str, value: str) -> Operation[object]:
    """Run a statement that finds its row by a string."""
    return lambda cursor: cursor.execute(sql, (to_text(value),)).rowcount


HAND_BACK: Final = "UPDATE tasks SET hand = 0 WHERE id = ? AND hand = 1"
RETIRE: Final = "DELETE FROM heartbeats WHERE worker = ?"

# ---- expiry
# Removing what has expired, a slice at a time: one statement removes it, and a trigger what is kept beside it.

MOST_BYTES: Final = 1024 * 1024
"""Bytes beside the tasks of one slice, together; or one task, however large it is."""

KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, of one slice: each is one row, in two indexes."""

ANY_EXPIRED: Final = "SELECT 1 FROM tasks INDEXED BY tasks_expires WHERE expires <= ? LIMIT 1"
ANY_KEY_OVER: Final = "SELECT 1 FROM spent_keys INDEXED BY spent_keys_until WHERE until <= ? LIMIT 1"

_ID, _STATE = "t.version, t.id", "t.version, t.id, t.owner, t.namespace, t.state"
_OVERDUE = "FROM tasks t INDEXED BY tasks_expires WHERE t.expires <= ? ORDER BY t.expires, t.created, t.id LIMIT ?"
# Read from the index alone but for the sizes, which are in the first page of what they are the sizes of.
_SIZE = """
SELECT
    ifnull((SELECT length(request) FROM requests WHERE task = t.key), 0)
        + ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = t.key), 0)
        + ifnull((SELECT sum(length(value)) FROM journal INDEXED BY journal_task WHERE task = t.key), 0),
"""
EXPIRED_KEYS: Final = f"SELECT t.key {_OVERDUE}"
_FORGET_KEYS = """
DELETE FROM spent_keys WHERE (idempotency_key, namespace, owner) IN (
    SELECT idempotency_key, namespace, owner FROM spent_keys INDEXED BY spent_keys_until WHERE until <= ? LIMIT ?
)
"""


def forget_expired(now: int, limit: int, *, states: bool) -> Operation[list[Any]]:
    """Remove the next tasks that have expired; gives their rows: version and id, and all that a record is made from."""

    def run(cursor: sqlite3.Cursor) -> list[Any]:
        rows = fetch(cursor.connection, f"{_SIZE} {_STATE if states else _ID} {_OVERDUE}", (now, limit))
        together = count = 0
        for size, *_ in rows:
            together += size
            if count and together > MOST_BYTES:
                break
            count += 1
        if count:
            # The same ones, in the same order: no other process writes in between.
            cursor.execute(f"DELETE FROM tasks WHERE key IN ({EXPIRED_KEYS})", (now, count))
        cursor.execute(_FORGET_KEYS, (now, KEYS_AT_ONCE))
        return [row for _, *row in rows[:count]]

    return run


async def forget_one_by_one(
    write: Callable[[Operation[list[Any]]], Awaitable[list[Any]]], keys: Sequence[int], now: int, *, states: bool
) -> list[Any]:
    """As `forget_expired`, for a damaged file: of the tasks with these keys, those that the damage does not touch go.

    The writer does each by itself when one of them fails.

    Raises:
        StoreError: None of them can be removed.
    """
    done = await asyncio.gather(
        *(write(_forget_one((key, now), _STATE if states else _ID)) for key in keys), return_exceptions=True
    )
    failures = [one for one in done if isinstance(one, BaseException)]
    rows = [row for one in done if not isinstance(one, BaseException) for row in one]
    if failures and not rows:
        raise failures[0]
    return rows


def _forget_one(which: tuple[int, int], wanted: str) -> Operation[list[Any]]:
    def run(cursor: sqlite3.Cursor) -> list[Any]:
        rows = fetch(cursor.connection, f"SELECT {wanted} FROM tasks t WHERE t.key = ? AND t.expires <= ?", which)
        cursor.execute("DELETE FROM tasks WHERE key = ? AND expires <= ?", which)
        return rows

    return run
