"""The two connections that read: one on the event loop's own thread, one in a thread for what is large.

A row by its key comes from the page cache in about 10 µs; the hop to a thread and back costs ten times that. WAL
readers never wait for the writer. What is large is read with a connection of its own: SQLite lets only one thread at a
time use a connection, and the event loop must not wait for that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from mcp_tasks.stores.sqlite.connection import Values, connect, fetch, translate

T = TypeVar("T")

Read: TypeAlias = Callable[[str, Values], Sequence[Any]]
"""Runs one query and returns all its rows."""

READ_PATIENCE = 0.25
"""Seconds a read may wait for a lock. In WAL mode it waits only for a recovery after a crash, and the event
loop waits with it."""


class Reader:
    """Reads from the file at `path`, which is there.

    Raises:
        sqlite3.Error: It cannot be opened; the caller translates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._small = _read_only(path)
        try:
            self._large = _read_only(path)
        except BaseException:
            self._small.close()
            raise
        # One at a time: large values are rare, and each takes as much memory as it has bytes.
        self._turn = anyio.CapacityLimiter(1)

    def rows(self, sql: str, values: Values) -> list[Any]:
        """All rows of one query, read on this thread.

        Raises:
            StoreError: The file cannot be read.
        """
        return self._fetch(self._small, sql, values)

    async def in_thread(self, work: Callable[[Read], T]) -> T:
        """What `work` makes of what it reads, all of it done in a thread."""
        return await to_thread.run_sync(work, self._fetch_large, limiter=self._turn)

    async def close(self) -> None:
        """Let go of the file once nobody reads."""
        self._small.close()
        async with self._turn:
            self._large.close()

    def abandon(self) -> None:
        """Let go of the file at once: nobody has read from it yet."""
        self._small.close()
        self._large.close()

    def _fetch_large(self, sql: str, values: Values) -> Sequence[Any]:
        return self._fetch(self._large, sql, values)

    def _fetch(self, connection: sqlite3.Connection, sql: str, values: Values) -> list[Any]:
        try:
            return fetch(connection, sql, values)
        except (sqlite3.Error, OverflowError) as exc:
            raise translate(exc, self._path) from exc


def _read_only(path: Path) -> sqlite3.Connection:
    connection = connect(path, timeout=READ_PATIENCE)
    try:
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection
