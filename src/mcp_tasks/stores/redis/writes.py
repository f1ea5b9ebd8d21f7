"""The writes of the store, each as the script that does it and what comes of it.

What they write was encoded by their caller, so that a value that is no JSON fails where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from mcp_tasks.errors import KeySpent, LimitReached, TaskExists, ValueNotStorable, VersionConflict
from mcp_tasks.model.record import Outcome, TaskRecord
from mcp_tasks.stores.base import Handing, Hint, WorkLimits
from mcp_tasks.stores.codec import MICROSECOND, Line, expiry, queued_since, sort_key, to_micros
from mcp_tasks.stores.redis import names
from mcp_tasks.stores.redis.connection import Argument, Connection, RedisNotifier
from mcp_tasks.stores.redis.names import to_bytes

Row: TypeAlias = tuple[bytes, bytes | None, bytes, bytes | None]
"""Id, owner, namespace and state of a task."""

LARGEST: Final = 512 * 1024 * 1024
"""Bytes of a value. Redis takes no larger one, unless it was told to (`proto-max-bulk-len`)."""

LOOKS: Final = 1_000
"""Tasks beyond those asked for that one look passes over, because they have expired or are gone: nothing else runs on
the server meanwhile."""

KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, and are forgotten with one slice of what has expired."""

MILLISECOND: Final = timedelta(milliseconds=1)
KEPT_BEYOND: Final = timedelta(days=1)
"""For how long a task that has expired waits for a sweep before the server removes it by itself."""


class Writes:
    """Writes tasks and notes to one server."""

    def __init__(self, connection: Connection, notifier: RedisNotifier) -> None:
        self._connection = connection
        self._notifier = notifier

    async def create(
        self,
        record: TaskRecord,
        *,
        state: bytes,
        request: bytes,
        key: str | None,
        key_until_end: bool,
        key_outlives: timedelta | None,
        handing: Handing | None,
    ) -> Row | None:
        """Keep a task with its request; gives the one that stands under the key instead.

        Raises:
            TaskExists: There is a task of this id.
        """
        _check_sizes(state, request)
        answer = await self._connection.run(
            "create",
            to_bytes(record.id),
            record.version,
            to_bytes(record.namespace),
            *_list(() if record.owner is None else (to_bytes(record.owner),)),
            state,
            request,
            *_fate(record),
            sort_key(record),
            *_expiry(record),
            b"" if key is None else names.key_name(record.namespace, key, record.owner),
            int(key_until_end),
            b"" if key is None or key_outlives is None else key_outlives // MICROSECOND,
            b"" if key is None or record.parent is None else to_bytes(record.parent),
            *names.indexed(record, sort_key(record)).arguments(),
            names.sizes(record.namespace, record.owner),
            *names.share_arguments(None if handing is None else handing.share),
            *self._hint(record),
        )
        match answer:
            case [b"made", handed]:
                if handing is not None:
                    handing.handed = handed == b"1"
                return None
            case [b"standing", task_id, owner, namespace, found]:
                return task_id, owner, namespace, found
            case [b"spent"]:
                raise KeySpent
            case [b"spent", child]:
                raise KeySpent(names.from_bytes(child))
            case _:
                raise TaskExists(record.id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        state: bytes,
        lines: Sequence[Line],
        outcome: Outcome | None,
        limits: WorkLimits | None,
    ) -> bool:
        """Replace a task, append to its journal and keep its outcome; False if it is at another version, or gone."""
        parts = _parts(outcome)
        entries = [part for kind, key, value in lines for part in (kind.encode(), to_bytes(key), value)]
        _check_sizes(state, *parts, *entries)
        answer = await self._connection.run(
            "save",
            to_bytes(record.id),
            expected,
            record.version,
            state,
            *_fate(record),
            *_expiry(record),
            *names.indexed(record, queued_since(record)).arguments(),
            names.sizes(record.namespace, record.owner),
            *_list(entries),
            *_list(parts),
            *_list([*_limits(record, limits)]),
            *self._hint(record),
        )
        if answer not in (b"saved", b"conflict"):
            raise LimitReached(record.id, answer.decode())
        return bool(answer == b"saved")

    async def delete(self, task_id: str, *, expected: int, now: datetime | None) -> None:
        """Forget a task with all that is kept beside it."""
        since = b"" if now is None else to_micros(now)
        if await self._connection.run("delete", to_bytes(task_id), expected, since, again=True) != b"deleted":
            raise VersionConflict(task_id, expected)

    async def forget_expired(self, now: datetime, limit: int, *, states: bool) -> Sequence[Any]:
        """Forget tasks that have expired; gives version and id of each, and all that a record is made from."""
        instant = to_micros(now)
        last, most = names.place(instant + 1), limit + LOOKS
        while True:
            is_end, rows = await self._connection.run(
                "forget_expired", last, limit, most, int(states), instant, KEYS_AT_ONCE
            )
            # None, and yet not the end: so many were gone by themselves.
            if rows or is_end:
                return rows

    async def set_note(self, note: bytes, value: bytes, *, seen: bytes | None) -> bool:
        """Keep a note if what is there is what was seen, byte by byte."""
        expected = () if seen is None else (seen,)
        return bool(await self._connection.run("set_note", note, *_list(expected), value))

    def _hint(self, record: TaskRecord) -> tuple[Argument, ...]:
        return self._notifier.message(Hint(record.id, record.version))


def _parts(outcome: Outcome | None) -> tuple[bytes, ...]:
    """What is kept of an outcome: its body, and its meta if it has any."""
    return () if outcome is None else (outcome.body, *(() if outcome.meta is None else (outcome.meta,)))


def _fate(record: TaskRecord) -> tuple[Argument, ...]:
    """The status, and whether it is a final one."""
    return record.status.value, b"1" if record.is_final else b""


def _expiry(record: TaskRecord) -> tuple[Argument, ...]:
    """When the task expires, and after how many milliseconds the server may remove it by itself; or nothing.

    Counted from now on by the server's own clock, which has nothing to do with that of whoever ended the task.
    """
    expires = expiry(record)
    if expires is None or record.retention is None:
        return b"", b""
    return expires, (record.retention + KEPT_BEYOND) // MILLISECOND if record.is_final else b""


def _limits(record: TaskRecord, limits: WorkLimits | None) -> Iterator[Argument]:
    """What is limited, to how many, and the index of those at work."""
    if limits is not None and limits.tool is not None:
        yield from ("tool", limits.tool, names.tool_at_work(record.namespace, record.method, record.name))
    if limits is not None and limits.owner is not None:
        yield from ("owner", limits.owner, names.owner_at_work(record.namespace, record.owner))


def _list(items: Sequence[Argument]) -> tuple[Argument, ...]:
    return len(items), *items


def _check_sizes(*values: bytes) -> None:
    largest = max(map(len, values))
    if largest > LARGEST:
        raise ValueNotStorable(
            f"a value of {largest:,} bytes cannot be stored, because Redis takes at most {LARGEST:,} in one piece"
        )
