"""What waits to be handed out and what is in hand, looked at by seeks in the indexes for it (see `fairness`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.stores.base import Ready, Share
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Place, Room, Step, Turns, ready_of
from mcp_tasks.stores.sqlite.connection import from_text, to_text
from mcp_tasks.stores.sqlite.reader import Read

WAITS, HANDED, AT_WORK = 0, 1, 2
"""What the column `hand` says of a task; NULL if it is neither queued nor at work."""

Decode: TypeAlias = Callable[[str, Any, Any, Any], TaskRecord | None]
"""The record of a row (id, owner, namespace, state), or None if it cannot be read."""

_COLUMNS = ("queue", "-priority", "ifnull(owner, 0)", "tool")


_WAITING = "SELECT {wanted} FROM tasks INDEXED BY tasks_waiting WHERE {where} ORDER BY {wanted} LIMIT {limit}"


def _waiting(count: int, wanted: str, *beyond: str, limit: str = "1") -> str:
    """The query for what is wanted of entries of the index with the same first values, so many of them."""
    same = [f"{column} = ?" for column in ("namespace", *_COLUMNS[:count])]
    return _WAITING.format(wanted=wanted, where=" AND ".join(["hand = 0", *same, *beyond]), limit=limit)


_FIRST = [_waiting(count, column) for count, column in enumerate(_COLUMNS)]
_NEXT = [_waiting(count, column, f"{column} > ?") for count, column in enumerate(_COLUMNS)]
_TASKS = _waiting(4, "created, id", "(created, id) > (?, ?)", limit="?")
_TASK = "SELECT owner, namespace, state FROM tasks WHERE id = ?"

# `hand > 0` as in the schema: SQLite uses a partial index only if it sees that the condition holds.
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY {index} WHERE hand > 0 AND {where} LIMIT ?)"
_OF_OWNER = _COUNT.format(index="tasks_owner_hand", where="namespace = ? AND ifnull(owner, 0) = ?")
_OF_TOOL = _COUNT.format(index="tasks_tool_hand", where="namespace = ? AND tool = ?")
_OWNER_BY_HAND = _COUNT.format(index="tasks_owner_hand", where="namespace = ? AND ifnull(owner, 0) = ? AND hand = ?")
_TOOL_BY_HAND = _COUNT.format(index="tasks_tool_hand", where="namespace = ? AND tool = ? AND hand = ?")

QUERIES: Final = {
    **{f"first {column}": sql for column, sql in zip(_COLUMNS, _FIRST, strict=True)},
    **{f"next {column}": sql for column, sql in zip(_COLUMNS, _NEXT, strict=True)},
    "tasks": _TASKS,
    "task": _TASK,
    "of owner": _OF_OWNER,
    "of tool": _OF_TOOL,
    "owner by hand": _OWNER_BY_HAND,
    "tool by hand": _TOOL_BY_HAND,
}
"""All queries of this file, for those who look at how SQLite goes about them."""

FIRST_PAGE = 2
"""Tasks of one owner that are read at first: mostly there are others who have their turns. Then ever more."""


def tool_digest(method: str, name: str) -> bytes:
    """What the column `tool` has for a tool."""
    return blake2b(f"{method}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def owner_key(owner: str | None) -> bytes:
    """An owner as bytes, which sort as the owners in the index do: nobody, then texts, then blobs."""
    return _key(0 if owner is None else to_text(owner))


class InHand:
    """How many tasks of a namespace are handed out or at work."""

    def __init__(self, read: Read, namespace: str) -> None:
        self._read = read
        self._namespace = to_text(namespace)

    def handed(self, owner: bytes, most: int) -> int:
        """How many tasks of the owner are handed out."""
        return self._count(_OWNER_BY_HAND, _owner(owner), HANDED, most)

    def of_owner(self, owner: bytes, most: int) -> int:
        """How many tasks of the owner are handed out or at work."""
        return self._count(_OF_OWNER, _owner(owner), most)

    def of_tool(self, tool: bytes, most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        return self._count(_OF_TOOL, tool, most)

    def owner_at_work(self, owner: bytes, most: int) -> int:
        """How many tasks of the owner are at work."""
        return self._count(_OWNER_BY_HAND, _owner(owner), AT_WORK, most)

    def tool_at_work(self, tool: bytes, most: int) -> int:
        """How many tasks of the tool are at work."""
        return self._count(_TOOL_BY_HAND, tool, AT_WORK, most)

    def room(self, share: Share) -> Room:
        """What a share leaves."""
        return Room(self, share, {tool_digest(TOOL_METHOD, name): limit for name, limit in share.tools.items()})

    def _count(self, sql: str, *values: Any) -> int:
        # A negative LIMIT would be none.
        *asked, most = values
        rows = self._read(sql, (self._namespace, *asked, max(most, 0)))
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
        count = len(step)
        values = (self._namespace, *_unkeyed(step))
        if after is None:
            rows = self._read(_FIRST[count], values)
        else:
            rows = self._read(_NEXT[count], (*values, _owner(after) if count == 2 else after))
        if not rows:
            return None
        return _key(rows[0][0]) if count == 2 else rows[0][0]

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool."""
        values, place, size = (self._namespace, *_unkeyed(step)), (-(2**63), ""), FIRST_PAGE
        while True:
            rows = self._read(_TASKS, (*values, *place, size))
            yield from ((created, from_text(task_id)) for created, task_id in rows)
            if len(rows) < size:
                return
            place, size = rows[-1], size * 4

    def ready(self, task_id: str) -> Ready | None:
        """The task, if it can be read."""
        for row in self._read(_TASK, (to_text(task_id),)):
            record = self._decode(task_id, *row)
            if record is not None:
                return ready_of(record)
        return None


def _unkeyed(step: Step) -> Step:
    return (*step[:2], _owner(step[2]), *step[3:]) if len(step) > 2 else step


def _key(owner: str | bytes | int) -> bytes:
    if isinstance(owner, int):
        return b""
    return b"t" + owner.encode() if isinstance(owner, str) else b"x" + owner


def _owner(key: bytes) -> str | bytes | int:
    if not key:
        return 0
    return key[1:].decode() if key.startswith(b"t") else key[1:]
