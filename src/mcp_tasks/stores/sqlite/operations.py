"""The writes of the store as operations for the `Writer`.

What they write was encoded by their caller, so that the transaction is short and a value that is no JSON fails where it
came from. Each function returns what the writer's thread is to do. Conflicts show in the row count: an exception or a
savepoint for each would cost more than the write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from mcp_tasks.errors import LimitReached, StoreError
from mcp_tasks.model.record import ALWAYS, TaskRecord, TaskStatus
from mcp_tasks.stores.backend import Change, Created, Creation, Row
from mcp_tasks.stores.base import Ready, Share, WorkLimits
from mcp_tasks.stores.codec import MICROSECOND, expiry, is_at_work, is_resuming, queued_since, ready, sort_key
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Place, Room, Route, Step, Turns, ready_of
from mcp_tasks.stores.sqlite.file import Operation, Read, Writer, fetch, from_owner, from_text, to_owner, to_text

# ---- expiring
# Forgetting what has expired, a slice at a time: one statement removes it, and a trigger what is kept beside it.


MOST_BYTES: Final = 1024 * 1024
"""What is kept beside the tasks of one slice, together; or one task, whatever it has."""

ANY_EXPIRED: Final = "SELECT 1 FROM tasks INDEXED BY tasks_expires WHERE expires <= ? LIMIT 1"
ANY_KEY_OVER: Final = "SELECT 1 FROM spent_keys INDEXED BY spent_keys_until WHERE until <= ? LIMIT 1"

# Read from the index alone but for the sizes, which are in the first page of what they are the sizes of.
_SIZE = """
SELECT
    ifnull((SELECT length(request) FROM requests WHERE task = t.key), 0)
        + ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = t.key), 0)
        + ifnull((SELECT sum(length(value)) FROM journal INDEXED BY journal_task WHERE task = t.key), 0),
"""
_ID, _STATE = "t.version, t.id", "t.version, t.id, t.owner, t.namespace, t.state"
_NEXT = """
FROM tasks t INDEXED BY tasks_expires WHERE t.expires <= ? ORDER BY t.expires, t.created, t.id LIMIT ?
"""
IDS: Final = _SIZE + _ID + _NEXT
STATES: Final = _SIZE + _STATE + _NEXT

# The same ones, in the same order: nobody else writes in between.
DELETE: Final = """
DELETE FROM tasks WHERE key IN (
    SELECT key FROM tasks INDEXED BY tasks_expires WHERE expires <= ? ORDER BY expires, created, id LIMIT ?
)
"""

FORGET_KEYS: Final = """
DELETE FROM spent_keys WHERE (idempotency_key, namespace, owner) IN (
    SELECT idempotency_key, namespace, owner FROM spent_keys INDEXED BY spent_keys_until WHERE until <= ? LIMIT ?
)
"""

KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, of one slice: each is one row, in two indexes."""

EXPIRED_KEYS: Final = "SELECT t.key" + _NEXT
_ONE = " FROM tasks t WHERE t.key = ? AND t.expires <= ?"
_ONE_ID, _ONE_STATE = "SELECT " + _ID + _ONE, "SELECT " + _STATE + _ONE
_DELETE_ONE = "DELETE FROM tasks WHERE key = ? AND expires <= ?"


def forget_expired(now: int, limit: int, *, states: bool) -> Operation[list[Any]]:
    """Remove the next tasks that have expired; gives their rows: version and id, and all that a record is made from."""

    def run(cursor: sqlite3.Cursor) -> list[Any]:
        rows = fetch(cursor.connection, STATES if states else IDS, (now, limit))
        count = _how_many([size for size, *_ in rows])
        if count:
            cursor.execute(DELETE, (now, count))
        cursor.execute(FORGET_KEYS, (now, KEYS_AT_ONCE))
        return [row for _, *row in rows[:count]]

    return run


async def forget_one_by_one(writer: Writer, keys: Sequence[int], now: int, *, states: bool) -> list[Any]:
    """As `forget_expired`, for a file with damage in it: the tasks with these keys that it does not touch go.

    The writer does each by itself when one of them fails.

    Raises:
        StoreError: None of them can be removed.
    """
    removals = [writer.run(_forget_one(key, now, states=states)) for key in keys]
    done = await asyncio.gather(*removals, return_exceptions=True)
    failures = [one for one in done if isinstance(one, BaseException)]
    rows = [row for one in done if not isinstance(one, BaseException) for row in one]
    if failures and not rows:
        raise failures[0]
    return rows


def _forget_one(key: int, instant: int, *, states: bool) -> Operation[list[Any]]:
    def run(cursor: sqlite3.Cursor) -> list[Any]:
        rows = fetch(cursor.connection, _ONE_STATE if states else _ONE_ID, (key, instant))
        cursor.execute(_DELETE_ONE, (key, instant))
        return rows

    return run


def _how_many(sizes: Sequence[int]) -> int:
    """How many of the first may go at once."""
    together = 0
    for number, size in enumerate(sizes):
        together += size
        if together > MOST_BYTES:
            return max(number, 1)
    return len(sizes)


# ---- waiting
# What waits to be handed out and what is in hand, looked at by seeks in the indexes for it (see `fairness`).


WAITS, HANDED, AT_WORK, RESUMING = 0, 1, 2, 3
"""What the column `hand` says of a task; NULL if it is neither queued nor at work nor about to be again."""

Decode: TypeAlias = Callable[[Row], TaskRecord | None]
"""The record of a row, or None if it cannot be read."""

_COLUMNS = ("queue", "rank", "owner", "tool")

_WAITING = "SELECT {wanted} FROM tasks INDEXED BY tasks_waiting WHERE {where} ORDER BY {wanted} LIMIT {limit}"


def _waiting(count: int, wanted: str, *beyond: str, limit: str = "1") -> str:
    """The query for what is wanted of entries of the index with the same first values, so many of them."""
    same = [f"{column} = ?" for column in ("namespace", *_COLUMNS[:count])]
    return _WAITING.format(wanted=wanted, where=" AND ".join(["hand = 0", *same, *beyond]), limit=limit)


_FIRST = [_waiting(count, column) for count, column in enumerate(_COLUMNS)]
_WAITING_NEXT = [_waiting(count, column, f"{column} > ?") for count, column in enumerate(_COLUMNS)]
_TASKS = _waiting(4, "created, id", "(created, id) > (?, ?)", limit="?")
_TASK = "SELECT owner, namespace, state FROM tasks WHERE id = ?"

# `hand` as in the schema: SQLite uses a partial index only if it sees that the condition holds.
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY {index} WHERE {where} LIMIT ?)"
_HANDED = _COUNT.format(
    index="tasks_handed", where="hand = 1 AND namespace = ? AND owner = ? AND queue = ? AND tool = ?"
)
_OWNER_AT_WORK = _COUNT.format(
    index="tasks_owner_at_work", where="hand > 1 AND namespace = ? AND owner = ? AND hand <= ?"
)
_TOOL_IN_HAND = _COUNT.format(index="tasks_tool_hand", where="hand > 0 AND namespace = ? AND tool = ?")
_TOOL_AT_WORK = _COUNT.format(
    index="tasks_tool_hand", where="hand > 0 AND namespace = ? AND tool = ? AND hand BETWEEN 2 AND ?"
)

FIRST_PAGE = 2
"""Tasks of one owner that are read at first: mostly there are others who have their turns. Then ever more."""


@lru_cache(maxsize=1_000)
def tool_digest(method: str, name: str) -> bytes:
    """What the column `tool` has for a tool."""
    return blake2b(f"{method}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


class InHand:
    """How many tasks of a namespace are handed out or at work."""

    def __init__(self, read: Read, namespace: str) -> None:
        self._read = read
        self._namespace = to_text(namespace)

    def handed(self, route: Route, most: int) -> int:
        """How many tasks of the route are handed out."""
        queue, owner, tool = route
        return self._count(_HANDED, owner, queue, tool, most=most)

    def of_tool(self, tool: bytes, most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        return self._count(_TOOL_IN_HAND, tool, most=most)

    def owner_at_work(self, owner: bytes, most: int, up_to: int = RESUMING) -> int:
        """How many tasks of the owner are at work; those that are resuming included, unless it is up to `AT_WORK`."""
        return self._count(_OWNER_AT_WORK, owner, up_to, most=most)

    def tool_at_work(self, tool: bytes, most: int, up_to: int = RESUMING) -> int:
        """How many tasks of the tool are at work; those that are resuming as with `owner_at_work`."""
        return self._count(_TOOL_AT_WORK, tool, up_to, most=most)

    def room(self, share: Share) -> Room:
        """What a share leaves."""
        return Room(self, share, {tool_digest(TOOL_METHOD, name): limit for name, limit in share.tools.items()})

    def _count(self, sql: str, *by: Any, most: int) -> int:
        # A negative LIMIT would be none.
        rows = self._read(sql, (self._namespace, *by, max(most, 0)))
        return rows[0][0] if rows else 0


class SqliteWaiting(InHand):
    """What waits in a namespace."""

    def __init__(self, read: Read, namespace: str, decode: Decode) -> None:
        super().__init__(read, namespace)
        self._name = namespace
        self._decode = decode

    def choose(self, share: Share, queues: Collection[str] | None, limit: int, turns: Turns) -> list[Ready]:
        """The tasks that are next, in order."""
        wanted = None if queues is None else [to_text(queue) for queue in queues]
        return Choice(self, self.room(share), wanted, limit).make(self._name, turns)

    def following(self, step: Step, after: Any = None) -> Any:
        """What follows in the order of queue, priority, owner and tool."""
        values = self._namespace, *step
        if after is None:
            rows = self._read(_FIRST[len(step)], values)
        else:
            rows = self._read(_WAITING_NEXT[len(step)], (*values, after))
        return rows[0][0] if rows else None

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool."""
        values, place, size = (self._namespace, *step), (-(2**63), ""), FIRST_PAGE
        while True:
            rows = self._read(_TASKS, (*values, *place, size))
            yield from ((created, from_text(task_id)) for created, task_id in rows)
            if len(rows) < size:
                return
            place, size = rows[-1], size * 4

    def ready(self, task_id: str) -> Ready | None:
        """The task, if it can be read."""
        for row in self._read(_TASK, (to_text(task_id),)):
            if (record := self._decode(row_of(task_id, *row))) is not None:
                return ready_of(record)
        return None


def row_of(task_id: str | bytes, owner: bytes, namespace: str | bytes, state: object) -> Row:
    """What the columns have of a task."""
    return from_text(task_id), from_owner(owner), from_text(namespace), state


class _Waits:
    """The columns that decide who is next."""

    def __init__(self, record: TaskRecord) -> None:
        self.is_queued = record.ready_at == ALWAYS
        self.since = queued_since(record) if self.is_queued else None
        at_work = RESUMING if is_resuming(record) else AT_WORK if is_at_work(record) else None
        self.hand = WAITS if self.is_queued else at_work
        self._record = record
        self.place = (to_text(record.queue), -record.priority)
        self.tool = tool_digest(record.method, record.name)

    def fits(self, share: Share, read: Read) -> bool:
        """Whether the task is queued, and may be handed out within the share."""
        route = self.place[0], to_owner(self._record.owner), self.tool
        return self.is_queued and InHand(read, self._record.namespace).room(share).has(route)


_INSERT_TASK = """
INSERT INTO tasks (
    id, version, namespace, owner, session, parent, idempotency_key, status, worker, created, ready, expires, state,
    queue, rank, tool, key_outlives, since, hand, seq
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT seq FROM meta)) ON CONFLICT (id) DO NOTHING
"""
_INSERT_REQUEST = "INSERT INTO requests (task, request) VALUES (?, ?)"
# What never changes is left out, so that its indexes are not touched. What stays queued stays as it is with those who
# wait.
_UPDATE_TASK = """
UPDATE tasks
SET version = ?, session = ?, status = ?, worker = ?, ready = ?, expires = ?, state = ?, queue = ?, rank = ?,
    since = CASE WHEN ? AND hand IN (0, 1) THEN since ELSE ? END,
    hand = CASE WHEN ? THEN hand IS 1 ELSE ? END, seq = (SELECT seq FROM meta)
WHERE id = ? AND version = ?
"""
_VERSION = "SELECT version, hand FROM tasks WHERE id = ?"
_MARK = "UPDATE tasks SET hand = 1 WHERE id = ? AND hand = 0"
_HAND_BACK = "UPDATE tasks SET hand = 0 WHERE id = ? AND hand = 1"
_INSERT_ENTRY = "INSERT INTO journal (task, kind, key, value) SELECT key, ?, ?, ? FROM tasks WHERE id = ?"
_INSERT_OUTCOME = "INSERT OR REPLACE INTO outcomes (task, body, meta) SELECT key, ?, ? FROM tasks WHERE id = ?"
_DELETE_TASK = "DELETE FROM tasks WHERE id = ? AND version = ?"
_STANDING = """
SELECT key, status, expires, expires + key_outlives, id, owner, namespace, state FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND owner = ?
"""
_FIND = "SELECT key FROM tasks WHERE id = ?"
_DELETE_STANDING = "DELETE FROM tasks WHERE key = ?"
_FREE_KEY = "UPDATE tasks SET idempotency_key = NULL, key_outlives = NULL WHERE key = ?"
SPENT = "SELECT until FROM spent_keys WHERE idempotency_key = ? AND namespace = ? AND owner = ?"
CHILD = """
SELECT c.task FROM tasks p LEFT JOIN child_keys c
    ON c.parent = p.id AND c.idempotency_key = ?2 AND c.namespace = ?3 AND c.owner = ?4
WHERE p.id = ?1 AND p.status NOT IN ('completed', 'failed', 'cancelled')
"""
_KEEP_CHILD = """
INSERT OR REPLACE INTO child_keys
SELECT id, ?, ?, ?, ? FROM tasks WHERE id = ? AND status NOT IN ('completed', 'failed', 'cancelled')
"""
FREE_SPENT = "DELETE FROM spent_keys WHERE idempotency_key = ? AND namespace = ? AND owner = ?"
_OUTLIVED = """
SELECT ? + key_outlives, idempotency_key, namespace, owner FROM tasks
WHERE id = ? AND version = ? AND key_outlives IS NOT NULL AND idempotency_key IS NOT NULL
"""
SPEND = "UPDATE spent_keys SET until = ? WHERE idempotency_key = ? AND namespace = ? AND owner = ?"
_FINAL = frozenset(status.value for status in TaskStatus if status.is_final)
_BEAT = """
INSERT INTO heartbeats (worker, namespace, beats) VALUES (?, ?, ?)
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace, beats = max(beats, excluded.beats)
"""
_BEATS = "SELECT beats FROM heartbeats WHERE worker = ?"
_DELETE_HEARTBEAT = "DELETE FROM heartbeats WHERE worker = ?"
_ADD_NOTE = "INSERT OR IGNORE INTO notes (namespace, name, value) VALUES (?, ?, ?)"
_CHANGE_NOTE = "UPDATE notes SET value = ?3 WHERE namespace = ?1 AND name = ?2 AND value = ?4"


def create(new: Creation) -> Operation[Created]:
    """Insert a task with its request, unless a task stands under the key."""
    record, share, outlives = new.record, None if new.handing is None else new.handing.share, new.key_outlives
    place = under, namespace, owner = _optional_text(new.key), to_text(record.namespace), to_owner(record.owner)
    now, parent, waits = sort_key(record), _optional_text(record.parent), _Waits(record)
    row = (
        to_text(record.id),
        record.version,
        namespace,
        owner,
        _optional_text(record.session),
        parent,
        under,
        record.status.value,
        _optional_text(record.worker),
        now,
        ready(record),
        expiry(record),
        new.state,
        *waits.place,
        waits.tool,
        None if outlives is None else outlives // MICROSECOND,
    )

    def spent_for(cursor: sqlite3.Cursor) -> Created | None:
        """What the parent keeps from being made: its child under this key, or any, if it is not open."""
        if parent is None or new.key_until_end:
            return None
        rows = cursor.execute(CHILD, (parent, *place)).fetchall()
        if rows == [(None,)]:
            return None
        return Created(spent=True, child=from_text(rows[0][0]) if rows and rows[0][0] is not None else None)

    def find(cursor: sqlite3.Cursor) -> Created | None:
        """What is in the way of a task under this key; what need not be is taken out of it."""
        # Under the write lock: whoever comes second under a key finds the first.
        for standing, status, expires, until, *found in cursor.execute(_STANDING, place).fetchall():
            loses_key = new.key_until_end and status in _FINAL
            if not loses_key and (expires is None or expires > now):
                return Created(standing=row_of(*found))
            if (spent := spent_for(cursor)) is not None:
                return spent
            if not loses_key and until is not None and until > now:
                return Created(spent=True)
            if cursor.execute(_FIND, row[:1]).fetchall():
                return Created(exists=True)
            cursor.execute(_FREE_KEY if loses_key else _DELETE_STANDING, (standing,))
            return None
        if (spent := spent_for(cursor)) is not None:
            return spent
        for (until,) in cursor.execute(SPENT, place).fetchall():
            if until > now and not new.key_until_end:
                return Created(spent=True)
            if cursor.execute(_FIND, row[:1]).fetchall():
                return Created(exists=True)
            cursor.execute(FREE_SPENT, place)
        return None

    def run(cursor: sqlite3.Cursor) -> Created:
        if new.key is not None and (found := find(cursor)) is not None:
            return found
        handed = share is not None and waits.fits(share, partial(fetch, cursor.connection))
        if cursor.execute(_INSERT_TASK, (*row, waits.since, HANDED if handed else waits.hand)).rowcount == 0:
            return Created(exists=True)
        cursor.execute(_INSERT_REQUEST, (cursor.lastrowid, new.request))
        if new.key is not None and parent is not None:
            cursor.execute(_KEEP_CHILD, (*place, row[0], parent))
        return Created(handed=handed)

    return run


def save(change: Change) -> Operation[bool]:
    """Update a task, append to its journal and keep its outcome; False if it is at another version, or gone."""
    record, outcome = change.record, change.outcome
    task_id, waits = to_text(record.id), _Waits(record)
    row = (
        record.version,
        _optional_text(record.session),
        record.status.value,
        _optional_text(record.worker),
        ready(record),
        expiry(record),
        change.state,
        *waits.place,
        waits.is_queued,
        waits.since,
        waits.is_queued,
        waits.hand,
        task_id,
        change.expected,
    )

    def run(cursor: sqlite3.Cursor) -> bool | StoreError:
        if change.limits is not None and (refusal := _refusal(record, change.expected, change.limits, cursor)):
            return refusal
        if cursor.execute(_UPDATE_TASK, row).rowcount == 0:
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
    found = cursor.execute(_VERSION, (to_text(record.id),)).fetchall()
    if not found or found[0][0] != expected:
        return None
    # A task that is at work does not count against itself, and of those that are resuming none against another.
    up_to = AT_WORK if found[0][1] == RESUMING else RESUMING
    itself = int(found[0][1] == AT_WORK)
    in_hand = InHand(partial(fetch, cursor.connection), record.namespace)
    if limits.tool is not None:
        tool = tool_digest(record.method, record.name)
        if in_hand.tool_at_work(tool, limits.tool + itself, up_to) - itself >= limits.tool:
            return LimitReached(record.id, "tool")
    if limits.owner is not None:
        owner = to_owner(record.owner)
        if in_hand.owner_at_work(owner, limits.owner + itself, up_to) - itself >= limits.owner:
            return LimitReached(record.id, "owner")
    return None


def hand_out(
    namespace: str, share: Share, *, queues: Collection[str] | None, limit: int, turns: Turns, decode: Decode
) -> Operation[list[Ready]]:
    """Choose tasks and mark them."""

    def run(cursor: sqlite3.Cursor) -> list[Ready]:
        waiting = SqliteWaiting(partial(fetch, cursor.connection), namespace, decode)
        chosen = waiting.choose(share, queues, limit, turns)
        cursor.executemany(_MARK, [(to_text(task.id),) for task in chosen])
        return chosen

    return run


def delete(task_id: str, expected: int, now: int | None) -> Operation[bool]:
    """Remove a task; a trigger removes what is kept beside it, and keeps its key if that outlives it."""
    which = to_text(task_id), expected

    def run(cursor: sqlite3.Cursor) -> bool:
        outlived = [] if now is None else cursor.execute(_OUTLIVED, (now, *which)).fetchall()
        if not cursor.execute(_DELETE_TASK, which).rowcount:
            return False
        cursor.executemany(SPEND, outlived)
        return True

    return run


def heartbeat(worker: str, namespace: str, beats: int) -> Operation[int]:
    """Keep the count of a worker, unless it is more already. Gives the count before."""
    row = to_text(worker), to_text(namespace), beats

    def run(cursor: sqlite3.Cursor) -> int:
        before = cursor.execute(_BEATS, row[:1]).fetchone()
        cursor.execute(_BEAT, row)
        return 0 if before is None else before[0]

    return run


def set_note(namespace: str, name: str, seen: object, value: bytes) -> Operation[bool]:
    """Keep a note if what is there is what was seen; whether it was kept."""
    row = to_text(namespace), to_text(name), value
    sql, values = (_ADD_NOTE, row) if seen is None else (_CHANGE_NOTE, (*row, seen))
    return lambda cursor: cursor.execute(sql, values).rowcount > 0


def hand_back(task_id: str) -> Operation[object]:
    """Take the mark from a task."""
    return lambda cursor: cursor.execute(_HAND_BACK, (to_text(task_id),)).rowcount


def retire(worker: str) -> Operation[object]:
    """Forget the heartbeat of a worker."""
    return lambda cursor: cursor.execute(_DELETE_HEARTBEAT, (to_text(worker),)).rowcount


def _optional_text(text: str | None) -> str | bytes | None:
    return None if text is None else to_text(text)
