"""A store's place as somebody else gets at it: the parts of a task as they lie in a file, in tables, and in Redis."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from redis import Redis

from mcp_tasks.stores import Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore

_PARTS: Final = {
    "row": ("tasks", "state"),
    "request": ("requests", "request"),
    "body": ("outcomes", "body"),
    "meta": ("outcomes", "meta"),
    "entry": ("journal", "value"),
    "kind": ("journal", "kind"),
    "note": ("notes", "value"),
}
_FIELDS: Final = {"row": "s", "request": "r", "body": "b", "meta": "m"}
_ENTRY: Final = {"kind": 0, "entry": 2}


class Place(Protocol):
    """Where one test keeps its tasks."""

    name: str
    shown: str
    remedy: str

    def store(self, codec: Codec | None = None) -> Store: ...

    def put(self, task_id: str, part: str, value: object) -> None:
        """Write another value into a part of a task, or of the note of that name; None removes the part."""

    def take(self, task_id: str, part: str) -> Any: ...

    def everything(self) -> bytes: ...

    def child_keys(self) -> int:
        """For how many children, or parents of them, keys are kept."""
        ...


class _Tables(Place, Protocol):
    prefix = ""
    mark = "?"

    def run(self, sql: str, *values: object) -> list[Any]: ...

    def put(self, task_id: str, part: str, value: object) -> None:
        table, column = _PARTS[part]
        if value is None:
            self.run(f"DELETE FROM {self.prefix}{table} WHERE {self._which(table)}", task_id)
        else:
            change = f"{column} = {self.mark} WHERE {self._which(table)}"
            self.run(f"UPDATE {self.prefix}{table} SET {change}", value, task_id)

    def take(self, task_id: str, part: str) -> Any:
        table, column = _PARTS[part]
        [(value,)] = self.run(f"SELECT {column} FROM {self.prefix}{table} WHERE {self._which(table)}", task_id)
        return value

    def child_keys(self) -> int:
        [(count,)] = self.run(f"SELECT count(*) FROM {self.prefix}child_keys")
        return count

    def _which(self, table: str) -> str:
        own = {"tasks": "id", "notes": "name"}.get(table)
        return f"{own} = {self.mark}" if own else f"task = (SELECT key FROM {self.prefix}tasks WHERE id = {self.mark})"


class SqlitePlace(_Tables):
    name = "sqlite"
    remedy = "DELETE FROM tasks WHERE id = 'bad'"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = str(path)

    @property
    def at(self) -> str:
        return f"sqlite:///{self.path}"

    def store(self, codec: Codec | None = None) -> SqliteStore:
        return SqliteStore(self.path, codec=codec)

    def run(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def locked(self, begin: str, *, wal: bool = False) -> Generator[sqlite3.Connection]:
        """While another program has a lock; with `wal` it may be upgrading the file, as far as SQLite can tell."""
        with closing(sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)) as other:
            if wal:
                other.execute("PRAGMA journal_mode = WAL")
            other.execute(begin)
            other.execute("SELECT count(*) FROM sqlite_master").fetchall()
            yield other

    def everything(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.path.parent.glob(f"{self.path.name}*"))


class PostgresPlace(_Tables):
    name = "postgres"
    prefix, mark = "mcp_tasks_", "%s"
    remedy = "DELETE FROM mcp_tasks_tasks WHERE id = 'bad'"

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = url

    def store(self, codec: Codec | None = None) -> PostgresStore:
        return PostgresStore(self.url, codec=codec)

    def run(self, sql: str, *values: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def everything(self) -> bytes:
        tables = ("tasks", "requests", "outcomes", "journal", "notes")
        rows = [row for table in tables for row in self.run(f"SELECT * FROM mcp_tasks_{table}")]
        return b" ".join(part if isinstance(part, bytes) else str(part).encode() for row in rows for part in row)


class RedisPlace(Place):
    name = "redis"
    remedy = "To delete it: await store.delete('bad', expected="

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = url
        self.client: Any = Redis.from_url(url)

    def store(self, codec: Codec | None = None) -> RedisStore:
        return RedisStore(self.url, codec=codec)

    def key(self, *parts: str) -> str:
        return ":".join(("{mcp-tasks}", *parts))

    def put(self, task_id: str, part: str, value: object) -> None:
        if part in _ENTRY:
            self.client.lset(self.key("j", task_id), _ENTRY[part], value)
        elif part == "note":
            self.client.hset(self.key("note", "demo", task_id), "v", value)
        elif value is None:
            self.client.hdel(self.key("t", task_id), _FIELDS[part])
        else:
            self.client.hset(self.key("t", task_id), _FIELDS[part], value)

    def take(self, task_id: str, part: str) -> Any:
        if part in _ENTRY:
            return self.client.lindex(self.key("j", task_id), _ENTRY[part])
        if part == "note":
            return self.client.hget(self.key("note", "demo", task_id), "v")
        return self.client.hget(self.key("t", task_id), _FIELDS[part])

    def names(self) -> set[str]:
        return {key.decode("utf-8", "surrogatepass") for key in self.client.scan_iter(count=1_000)}

    def everything(self) -> bytes:
        # Short texts are as they are in a dump; long ones may be compressed.
        return b" ".join(key + self.client.dump(key) for key in self.client.scan_iter())

    def child_keys(self) -> int:
        return len(self.client.keys(self.key("children", "*")))
