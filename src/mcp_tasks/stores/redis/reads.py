"""The reads of the store: one round trip each, whatever is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Final

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import IdPage, Whose
from mcp_tasks.stores.columns import decode_cursor, encode_cursor, to_micros
from mcp_tasks.stores.redis import names
from mcp_tasks.stores.redis.connection import Argument, Connection
from mcp_tasks.stores.redis.names import PLACE, from_bytes, place, to_bytes
from mcp_tasks.stores.redis.writes import LOOKS, Row
from mcp_tasks.stores.shares import Share

AT_ONCE: Final = 1_000
"""Ids in one script."""


class Reads:
    """Reads from one server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def row(self, task_id: str, *fields: bytes) -> Sequence[bytes | None]:
        """Some fields of a task; nothing but None if there is no such task."""
        return await self._connection.call("HMGET", self._connection.prefix + b"t:" + to_bytes(task_id), *fields)

    async def owned(self, task_id: str, owner: str | None, *fields: bytes) -> Sequence[bytes | None]:
        """Some fields of a task of this owner; nothing but None if the owner has no such task."""
        whose = b"" if owner is None else b"=" + to_bytes(owner)
        found = await self._connection.run("get_owned", to_bytes(task_id), whose, len(fields), *fields)
        return found or (None,) * len(fields)

    async def note(self, namespace: str, name: str) -> bytes | None:
        """A note as it is kept."""
        return await self._connection.call("HGET", self._connection.prefix + names.name("note", namespace, name), "v")

    async def journal(self, task_id: str, after: int) -> tuple[bytes | None, Sequence[bytes]]:
        """Whose task it is, and the entries of its journal, three items each."""
        owner, items = await self._connection.run("journal", to_bytes(task_id), after)
        return owner, items

    async def listing(
        self,
        namespace: str,
        whose: Whose,
        now: datetime,
        status: TaskStatus | None,
        cursor: str | None,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> tuple[Sequence[Row], str | None]:
        """The rows of one page of a listing, and where the next page starts."""
        index, after = names.listing(namespace, whose, status), _after(cursor)
        instant, wanted = to_micros(now), "" if status is None else status.value
        # One more than asked for tells whether there is a next page.
        looks, way = limit + 1 + LOOKS, "newest" if newest_first else ""
        last, found = await self._connection.run("list", index, after, limit + 1, instant, wanted, looks, way)
        rows = [(member[PLACE:], *rest) for member, *rest in found[:limit]]
        if len(found) > limit:
            return rows, _cursor(found[limit - 1][0]) if limit > 0 else None
        # Short of what was asked for, because much was passed over: there may be more behind it.
        return rows, _cursor(last) if last else None

    async def ids(
        self, indexes: Sequence[bytes], cursor: str | None, limit: int, *, until: datetime | None = None
    ) -> IdPage:
        """One page of the ids in some indexes, in their order."""
        after = _after(cursor)
        first = b"(" + after if after else b"-"
        last = b"+" if until is None else b"(" + place(to_micros(until) + 1)
        ranges: list[Argument] = [part for index in indexes for part in (index, first, last)]
        found = await self._connection.run("ranges", limit + 1, len(ranges), *ranges)
        members: list[bytes] = list(islice(merge(*found), limit + 1))
        ids = [from_bytes(member[PLACE:]) for member in members[:limit]]
        return IdPage(ids=ids, cursor=_cursor(members[limit - 1]) if len(members) > limit > 0 else None)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks."""
        ids = list(dict.fromkeys(task_ids))
        versions: dict[str, int] = {}
        if len(ids) == 1:
            # The look on the path of every poll needs no script.
            (version,) = await self.row(ids[0], b"v")
            return versions if version is None else {ids[0]: int(version)}
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            found = await self._connection.run("versions", *map(to_bytes, some))
            versions |= {task_id: int(version) for task_id, version in zip(some, found, strict=True) if version}
        return versions

    async def hand_out(
        self,
        namespace: str,
        share: Share,
        queues: Collection[str] | None,
        mark: bool,
        limit: int,
        unreadable: Collection[bytes],
    ) -> Sequence[Row]:
        """The rows of tasks that are handed out, none of them one of those that cannot be read."""
        wanted = [names.part(queue) for queue in queues or ()]
        return await self._connection.run(
            "hand_out",
            names.part(namespace),
            limit,
            int(mark),
            *names.share_arguments(share),
            int(queues is None),
            len(wanted),
            *wanted,
            len(unreadable),
            *unreadable,
        )


def _after(cursor: str | None) -> bytes:
    """The member behind which a page starts."""
    if cursor is None:
        return b""
    micros, task_id = decode_cursor(cursor)
    return place(micros) + to_bytes(task_id)


def _cursor(member: bytes) -> str:
    return encode_cursor(names.instant(member), from_bytes(member[PLACE:]))
