"""Forgetting what has expired, a slice at a time: one statement removes it, and a trigger what is kept beside it.

A slice is written together with whatever else waits to be written, so its size is what others wait for: a task of a few
hundred bytes takes a tenth of a millisecond, most of it for the pages of indexes that it is taken from, and a megabyte
beside one some milliseconds, because SQLite goes from page to page of it. So a slice is bounded by its bytes too.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from mcp_tasks.stores.columns import to_micros
from mcp_tasks.stores.sqlite.connection import fetch
from mcp_tasks.stores.sqlite.queries import Query
from mcp_tasks.stores.sqlite.writer import Operation, Writer

MOST_BYTES: Final = 1024 * 1024
"""What is kept beside the tasks of one slice, together; or one task, whatever it has."""

_ANY = "SELECT 1 FROM tasks INDEXED BY tasks_expires WHERE expires <= ? LIMIT 1"
_ANY_KEY = "SELECT 1 FROM spent_keys INDEXED BY spent_keys_until WHERE until <= ? LIMIT 1"

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

_KEYS = "SELECT t.key" + _NEXT
_ONE = " FROM tasks t WHERE t.key = ? AND t.expires <= ?"
_ONE_ID, _ONE_STATE = "SELECT " + _ID + _ONE, "SELECT " + _STATE + _ONE
_DELETE_ONE = "DELETE FROM tasks WHERE key = ? AND expires <= ?"


def any_expired(now: datetime) -> Query:
    """The query for whether there is a task that has expired."""
    return _ANY, (to_micros(now),)


def any_key_over(now: datetime) -> Query:
    """The query for whether there is a key that outlived its task, and whose time is over."""
    return _ANY_KEY, (to_micros(now),)


def keys(now: datetime, *, limit: int) -> Query:
    """The query for the keys of the next tasks that have expired."""
    return _KEYS, (to_micros(now), max(limit, 0))


def forget_expired(now: datetime, *, limit: int, states: bool) -> Operation[list[Any]]:
    """Remove the next tasks that have expired; gives their rows: version and id, and all that a record is made from."""
    instant = to_micros(now)

    def run(cursor: sqlite3.Cursor) -> list[Any]:
        rows = fetch(cursor.connection, STATES if states else IDS, (instant, max(limit, 0)))
        count = _how_many([size for size, *_ in rows])
        if count:
            cursor.execute(DELETE, (instant, count))
        cursor.execute(FORGET_KEYS, (instant, KEYS_AT_ONCE))
        return [row for _, *row in rows[:count]]

    return run


async def forget_one_by_one(writer: Writer, keys: Sequence[int], now: datetime, *, states: bool) -> list[Any]:
    """As `forget_expired`, for a file with damage in it: the tasks with these keys that it does not touch go.

    The writer does each by itself when one of them fails.

    Raises:
        StoreError: None of them can be removed.
    """
    removals = [writer.run(_forget_one(key, to_micros(now), states=states)) for key in keys]
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
