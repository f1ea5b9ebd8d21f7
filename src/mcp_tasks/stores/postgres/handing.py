"""What waits, looked at in one statement, for a fair choice among it (`stores/fairness.py`).

Postgres walks from group to group in its index (queue, priority, owner, tool) and takes the first few tasks of each:
what is skipped is not looked at, so ten thousand tasks of one owner, or of a tool without room, cost what a few cost.

Weaknesses: of a queue with more than `MOST_GROUPS` groups, the next look begins where this one ended, so everybody has
a turn, but over several looks. If the connection breaks under the commit, tasks may be marked that nobody was given;
they are found again as all tasks are that an engine lost.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Place, Room, Route, Step, Turns
from mcp_tasks.stores.postgres.database import Query, Row, Session
from mcp_tasks.stores.postgres.queries import AT_ANY_TIME, OF_OWNER, OF_TOOL
from mcp_tasks.stores.postgres.text import from_owner, from_text, to_owner, to_text
from mcp_tasks.stores.postgres.writes import lock_number
from mcp_tasks.stores.shares import Ready, Share

MOST_GROUPS: Final = 2_000
"""Groups of one queue in one look: some ten milliseconds."""

MOST_TASKS: Final = 4_000
"""Tasks in one look, where that is more than one of each group."""

_WAITS = f"t.ready = {AT_ANY_TIME} AND NOT t.handed AND t.namespace = %(namespace)s"
_GROUP = "t.rank, t.owner, t.method, t.name"
_COUNT = """(
    SELECT count(*) FROM (
        SELECT FROM mcp_tasks_tasks t
        WHERE {where} AND t.namespace = %(namespace)s LIMIT {limit}
    ) counted
)"""
_HANDED = _COUNT.format(
    where="t.handed AND t.owner = g.owner AND t.queue = g.queue AND t.name = g.name AND t.method = g.method",
    limit="%(of_owner)s",
)
_AT_WORK = _COUNT.format(where=f"{OF_OWNER} AND NOT t.handed AND t.owner = g.owner", limit="%(at_work)s::bigint")
_OF_TOOL = _COUNT.format(where=f"{OF_TOOL} AND t.name = tool.name AND t.method = %(method)s", limit="tool.most")

LOOK = f"""
WITH RECURSIVE queues AS (
    (SELECT t.queue FROM mcp_tasks_tasks t WHERE {_WAITS} ORDER BY t.queue LIMIT 1)
    UNION ALL
    SELECT following.queue FROM queues q, LATERAL (
        SELECT t.queue FROM mcp_tasks_tasks t WHERE {_WAITS} AND t.queue > q.queue ORDER BY t.queue LIMIT 1
    ) following
), groups AS (
    SELECT q.queue, first.*, 1 AS number FROM queues q
    LEFT JOIN unnest(%(queues_seen)s::text[], %(ranks)s::bigint[], %(owners)s::text[], %(methods)s::text[],
        %(names)s::text[]) AS seen (queue, rank, owner, method, name) ON seen.queue = q.queue,
    LATERAL (
        SELECT {_GROUP} FROM mcp_tasks_tasks t
        WHERE {_WAITS} AND t.queue = q.queue AND ({_GROUP}) > (
            coalesce(seen.rank, -9223372036854775808), coalesce(seen.owner, ''), coalesce(seen.method, ''),
            coalesce(seen.name, '')
        )
        ORDER BY {_GROUP} LIMIT 1
    ) first
    WHERE %(queues)s::text[] IS NULL OR q.queue = ANY(%(queues)s::text[])
    UNION ALL
    SELECT g.queue, following.*, g.number + 1 FROM groups g, LATERAL (
        SELECT {_GROUP} FROM mcp_tasks_tasks t
        WHERE {_WAITS} AND t.queue = g.queue AND ({_GROUP}) > (g.rank, g.owner, g.method, g.name)
        ORDER BY {_GROUP} LIMIT 1
    ) following WHERE g.number < {MOST_GROUPS}
)
SELECT g.queue, g.rank, g.owner, g.method, g.name, g.handed, g.at_work, g.number, first.created, first.id
FROM (SELECT g.*, {_HANDED} AS handed, {_AT_WORK} AS at_work FROM groups g) g, LATERAL (
    SELECT t.created, t.id FROM mcp_tasks_tasks t
    WHERE {_WAITS} AND t.queue = g.queue AND t.rank = g.rank AND t.owner = g.owner AND t.method = g.method
        AND t.name = g.name
    ORDER BY t.created, t.id
    LIMIT least(%(limit)s::bigint, greatest(1, {MOST_TASKS} / greatest(1, (SELECT count(*) FROM groups))))
) first
UNION ALL
SELECT NULL, NULL, NULL, NULL, tool.name, {_OF_TOOL}, NULL, NULL, NULL, NULL
FROM unnest(%(tools)s::text[], %(most)s::bigint[]) AS tool (name, most)
""".encode()

_LOCK = b"SELECT pg_advisory_xact_lock(%(lock)s)"
_MARK = f"""
UPDATE mcp_tasks_tasks SET handed = true WHERE id = ANY(%(ids)s) AND ready = {AT_ANY_TIME} AND NOT handed RETURNING id
""".encode()


class HandingOut:
    """Chooses among what waits. It remembers, for as long as the store is open, whose turn it was."""

    def __init__(self) -> None:
        self._turns = Turns()
        # Where the last look at a queue ended that did not come to its end.
        self._seen: dict[tuple[str, str], Row] = {}

    async def run(
        self, session: Session, namespace: str, share: Share, *, queues: Collection[str] | None, mark: bool, limit: int
    ) -> Sequence[Ready]:
        """The tasks that are handed out, marked if they are to be."""
        if limit <= 0 or share.owner <= 0:
            return []
        wanted = None if queues is None else [to_text(queue) for queue in queues]
        is_whole = not self._is_midway(namespace)
        while True:
            chosen = await self._once(session, namespace, share, wanted, mark, limit)
            # Behind what was looked at, or before it, there may be owners who have room.
            if chosen or (is_whole and not self._is_midway(namespace)):
                return chosen
            is_whole = is_whole or not self._is_midway(namespace)

    async def _once(
        self, session: Session, namespace: str, share: Share, wanted: list[str] | None, mark: bool, limit: int
    ) -> Sequence[Ready]:
        """What one look gives."""

        def look() -> Query:
            return LOOK, self._values(namespace, share, wanted, limit)

        def choose(rows: Sequence[Row]) -> list[Ready]:
            waiting = _Looked(rows)
            limits = {(TOOL_METHOD, to_text(name)): most for name, most in share.tools.items()}
            chosen = Choice(waiting, Room(waiting, share, limits), wanted, limit).make(namespace, self._turns)
            self._remember(namespace, waiting, chosen)
            return chosen

        # Mostly nothing waits, and no lock has to be taken to see that.
        rows = await session.rows(*look())
        if not mark or _Looked(rows).is_empty:
            return choose(rows)
        chosen: list[Ready] = []

        def then(found: list[list[Row]]) -> Sequence[Query]:
            chosen[:] = choose(found[-1])
            return [(_MARK, {"ids": [to_text(ready.id) for ready in chosen]})] if chosen else []

        # Under a lock: two that hand out at once would both find the same room.
        lock = _LOCK, {"lock": lock_number("hand out", to_text(namespace))}
        marked = {from_text(task_id) for (task_id,) in await session.in_two_parts(lock, look(), then=then)}
        return [ready for ready in chosen if ready.id in marked]

    def _values(self, namespace: str, share: Share, queues: list[str] | None, limit: int) -> dict[str, Any]:
        here = to_text(namespace)
        seen = [row for (where, _), row in self._seen.items() if where == namespace]
        names = ("queues_seen", "ranks", "owners", "methods", "names")
        return {
            "namespace": here,
            "queues": queues,
            "limit": min(limit, share.owner),
            "of_owner": share.owner,
            "at_work": share.owner_at_work,
            "method": TOOL_METHOD,
            "tools": [to_text(name) for name in share.tools],
            "most": list(share.tools.values()),
            **{name: [row[place] for row in seen] for place, name in enumerate(names)},
        }

    def _is_midway(self, namespace: str) -> bool:
        """Whether the next look begins where the last one ended."""
        return any(where == namespace for where, _ in self._seen)

    def _remember(self, namespace: str, waiting: _Looked, chosen: Sequence[Ready]) -> None:
        """The next look begins behind who was served last, or where this one ended if nobody was.

        One that began at the beginning and came to the end of a queue has seen all of it, and so will the next.
        """
        served = {to_text(ready.queue): _group_of(ready) for ready in chosen}
        ends = {row[0]: row for row in waiting.cut_off}
        midway = {queue for where, queue in self._seen if where == namespace}
        self._seen = {key: row for key, row in self._seen.items() if key[0] != namespace}
        for queue in ends.keys() | (midway & served.keys()):
            self._seen[namespace, queue] = served.get(queue) or ends[queue]


def _group_of(ready: Ready) -> Row:
    """Where a task stands in the index."""
    return to_text(ready.queue), -ready.priority, to_owner(ready.owner), to_text(ready.method), to_text(ready.name)


class _Looked:
    """What one look found, to be chosen from. Values are as in the index."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.cut_off: list[Row] = []  # the last group of each queue that has more
        self._tree: dict[Any, Any] = {}
        self._places: dict[Step, list[Place]] = {}
        self._ready: dict[str, Ready] = {}
        self._handed: dict[Route, int] = {}
        self._at_work: dict[str, int] = {}
        self._of_tool: dict[tuple[str, str], int] = {}
        for row in rows:
            self._add(*row)
        self._sorted = {step: sorted(node) for step, node in self._nodes((), self._tree)}

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._places

    def following(self, step: Step, after: Any = None) -> Any:
        """What entries that begin with `step` have next, beyond `after`."""
        values = self._sorted.get(step, [])
        place = 0 if after is None else bisect_right(values, after)
        return values[place] if place < len(values) else None

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool."""
        return iter(sorted(self._places.get(step, ())))

    def ready(self, task_id: str) -> Ready:
        """The task."""
        return self._ready[task_id]

    def handed(self, route: Route, most: int) -> int:
        """How many tasks of the route are handed out."""
        return self._handed[route]

    def owner_at_work(self, owner: str, most: int) -> int:
        """How many tasks of the owner are at work."""
        return self._at_work[owner]

    def of_tool(self, tool: tuple[str, str], most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        return self._of_tool[tool]

    def _add(
        self,
        queue: str | None,
        rank: int,
        owner: str,
        method: str,
        name: str,
        handed: int,
        at_work: int,
        number: int,
        created: int,
        task_id: str,
    ) -> None:
        if queue is None:
            self._of_tool[TOOL_METHOD, name] = handed
            return
        tool = method, name
        self._tree.setdefault(queue, {}).setdefault(rank, {}).setdefault(owner, {}).setdefault(tool, {})
        self._places.setdefault((queue, rank, owner, tool), []).append((created, task_id))
        self._handed[queue, owner, tool], self._at_work[owner] = handed, at_work
        self._ready[task_id] = Ready(
            id=from_text(task_id),
            owner=from_owner(owner),
            method=from_text(method),
            name=from_text(name),
            queue=from_text(queue),
            priority=-rank,
        )
        if number == MOST_GROUPS:
            self.cut_off.append((queue, rank, owner, method, name))

    def _nodes(self, step: Step, node: Mapping[Any, Any]) -> Iterator[tuple[Step, Mapping[Any, Any]]]:
        yield step, node
        for value, below in node.items():
            yield from self._nodes((*step, value), below)
