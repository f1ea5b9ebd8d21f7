"""What waits to be handed out and what is in hand, looked at by seeks in the indexes for it (see `fairness`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import neg
from typing import Any, Final, TypeAlias

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Place, Room, Route, Step, Turns, ready_of
from mcp_tasks.stores.shares import Ready, Share
from mcp_tasks.stores.sqlite.connection import from_text, to_text
from mcp_tasks.stores.sqlite.reader import Read

WAITS, HANDED, AT_WORK, RESUMING = 0, 1, 2, 3
"""What the column `hand` says of a task; NULL if it is neither queued nor at work nor about to be again."""

Decode: TypeAlias = Callable[[str, Any, Any, Any], TaskRecord | None]
"""The record of a row (id, owner, namespace, state), or None if it cannot be read."""

_COLUMNS = ("queue", "priority", "owner", "tool")
_OWNER = 2
"""Which of the columns may be NULL: that is the first owner, nobody."""

_WAITING = "SELECT {wanted} FROM tasks INDEXED BY tasks_waiting WHERE {where} ORDER BY {order} LIMIT {limit}"


def _waiting(count: int, wanted: str, *beyond: str, limit: str = "1") -> str:
    """The query for what is wanted of entries of the index with the same first values, so many of them."""
    same = [f"{column} IS ?" for column in ("namespace", *_COLUMNS[:count])]
    order = "priority DESC" if wanted == "priority" else wanted
    return _WAITING.format(wanted=wanted, where=" AND ".join(["hand = 0", *same, *beyond]), order=order, limit=limit)


_FIRST = [_waiting(count, column) for count, column in enumerate(_COLUMNS)]
_NEXT = [
    _waiting(count, column, f"{column} {'<' if column == 'priority' else '>'} ?")
    for count, column in enumerate(_COLUMNS)
]
_FIRST_SOMEBODY = _waiting(_OWNER, "owner", "owner IS NOT NULL")
_TASKS = _waiting(4, "created, id", "(created, id) > (?, ?)", limit="?")
_TASK = "SELECT owner, namespace, state FROM tasks WHERE id = ?"

# `hand` as in the schema: SQLite uses a partial index only if it sees that the condition holds.
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY {index} WHERE {where} LIMIT ?)"
_HANDED = _COUNT.format(
    index="tasks_handed", where="hand = 1 AND namespace = ? AND owner IS ? AND queue = ? AND tool = ?"
)
_OWNER_AT_WORK = _COUNT.format(
    index="tasks_owner_at_work", where="hand > 1 AND namespace = ? AND owner IS ? AND hand <= ?"
)
_TOOL_IN_HAND = _COUNT.format(index="tasks_tool_hand", where="hand > 0 AND namespace = ? AND tool = ?")
_TOOL_AT_WORK = _COUNT.format(
    index="tasks_tool_hand", where="hand > 0 AND namespace = ? AND tool = ? AND hand BETWEEN 2 AND ?"
)

QUERIES: Final = {
    **{f"first {column}": sql for column, sql in zip(_COLUMNS, _FIRST, strict=True)},
    **{f"next {column}": sql for column, sql in zip(_COLUMNS, _NEXT, strict=True)},
    "first somebody": _FIRST_SOMEBODY,
    "tasks": _TASKS,
    "task": _TASK,
    "handed out of a route": _HANDED,
    "at work of an owner": _OWNER_AT_WORK,
    "in hand of a tool": _TOOL_IN_HAND,
    "at work of a tool": _TOOL_AT_WORK,
}
"""All queries of this file, for those who look at how SQLite goes about them."""

FIRST_PAGE = 2
"""Tasks of one owner that are read at first: mostly there are others who have their turns. Then ever more."""


@lru_cache(maxsize=1_000)
def tool_digest(method: str, name: str) -> bytes:
    """What the column `tool` has for a tool."""
    return blake2b(f"{method}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def owner_key(owner: str | None) -> bytes:
    """An owner as bytes, which sort as the owners in the index do: nobody, then texts, then blobs."""
    return _key(None if owner is None else to_text(owner))


class InHand:
    """How many tasks of a namespace are handed out or at work."""

    def __init__(self, read: Read, namespace: str) -> None:
        self._read = read
        self._namespace = to_text(namespace)

    def handed(self, route: Route, most: int) -> int:
        """How many tasks of the route are handed out."""
        queue, owner, tool = route
        return self._count(_HANDED, _owner(owner), queue, tool, most=most)

    def of_tool(self, tool: bytes, most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        return self._count(_TOOL_IN_HAND, tool, most=most)

    def owner_at_work(self, owner: bytes, most: int, up_to: int = RESUMING) -> int:
        """How many tasks of the owner are at work; those that are resuming included, unless it is up to `AT_WORK`."""
        return self._count(_OWNER_AT_WORK, _owner(owner), up_to, most=most)

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
        count, values = len(step), self._values(*step)
        beyond = () if after is None else self._values(*step, after)[-1:]
        if after is None:
            rows = self._read(_FIRST[count], values)
        elif beyond == (None,):
            rows = self._read(_FIRST_SOMEBODY, values)
        else:
            rows = self._read(_NEXT[count], (*values, *beyond))
        if not rows:
            return None
        ((found,),) = rows
        return _FROM_COLUMN[count](found)

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool."""
        values, place, size = self._values(*step), (-(2**63), ""), FIRST_PAGE
        while True:
            rows = self._read(_TASKS, (*values, *place, size))
            yield from ((created, from_text(task_id)) for created, task_id in rows)
            if len(rows) < size:
                return
            place, size = rows[-1], size * 4

    def _values(self, *step: Any) -> Step:
        """What the queries ask by, as the columns have it."""
        return self._namespace, *(to_column(value) for to_column, value in zip(_TO_COLUMN, step, strict=False))

    def ready(self, task_id: str) -> Ready | None:
        """The task, if it can be read."""
        for row in self._read(_TASK, (to_text(task_id),)):
            record = self._decode(task_id, *row)
            if record is not None:
                return ready_of(record)
        return None


def _same(value: Any) -> Any:
    return value


def _key(owner: str | bytes | None) -> bytes:
    if owner is None:
        return b""
    return b"t" + owner.encode() if isinstance(owner, str) else b"x" + owner


def _owner(key: bytes) -> str | bytes | None:
    if not key:
        return None
    return key[1:].decode() if key.startswith(b"t") else key[1:]


_TO_COLUMN: Sequence[Callable[[Any], Any]] = (_same, neg, _owner, _same)
_FROM_COLUMN: Sequence[Callable[[Any], Any]] = (_same, neg, _key, _same)
"""Values of the index as `fairness` has them: negative priorities, and owners that can be compared."""
