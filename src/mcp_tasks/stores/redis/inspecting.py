"""What is asked of a Redis beyond its tasks: whether our keys are there, whose tasks are in them, what has a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from mcp_tasks.stores.inspecting import Standing
from mcp_tasks.stores.redis.checkup import LAYOUT
from mcp_tasks.stores.redis.connection import Connection
from mcp_tasks.stores.redis.names import from_bytes, key_name, whole

_AT_ONCE: Final = 1_000
"""Keys that one look goes through."""


class Inspecting:
    """The part of `RedisStore` that is for operators, and for what is looked up by its key."""

    _connection: Connection

    async def standing(self) -> Standing:
        """Whether our keys are there, and in the layout of this release. Makes and changes nothing."""
        was_open = self._connection.is_open
        if not was_open:
            self._connection.open()
        try:
            kept = await self._connection.call("TYPE", self._connection.prefix + b"meta")
            if kept == b"none":
                return "absent"
            layout: Any = await self._connection.call("HGET", self._connection.prefix + b"meta", "layout")
            # What is no layout at all, `open` says in words.
            return "older" if layout is not None and layout.isdigit() and int(layout) < LAYOUT else "current"
        finally:
            if not was_open:
                await self._connection.close()

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order. No index has them: all keys are gone through, so many
        at a time."""
        found: set[str] = set()
        for kind in (b"tasks:", b"beats:"):
            start = self._connection.prefix + kind
            found.update(whole(key.removeprefix(start)) for key in await self._keys(_escaped(start) + b"*"))
        return sorted(found)

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        found = await self._connection.call("GET", self._connection.prefix + key_name(namespace, key, owner))
        return None if found is None else from_bytes(found)

    async def _keys(self, pattern: bytes) -> set[bytes]:
        keys, cursor = set[bytes](), b"0"
        while True:
            cursor, found = await self._connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE)
            keys.update(found)
            if int(cursor) == 0:
                return keys


def _escaped(text: bytes) -> bytes:
    """The text as a pattern that matches itself."""
    return re.sub(rb"([\\*?\[\]^-])", rb"\\\1", text)
