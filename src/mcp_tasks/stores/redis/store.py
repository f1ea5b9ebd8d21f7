"""`RedisStore`: tasks in Redis or Valkey, for all processes that reach the server.

Durability is the server's to give, and is looked at when the store is opened: with `appendonly yes` and `appendfsync
always` what was acknowledged survives the death of the server and of its machine; with `everysec` that of the server,
and of the machine but for the last second; without an append-only file nothing survives but the last snapshot, and the
store warns. A failover to a replica may lose what the replica had not been sent.

Every verb that writes is one Lua script, and so one round trip: compare-and-swap, journal, outcome, indexes, limits and
the hint to other processes happen together or not at all.

All keys begin with `{PREFIX}:`. The braces are a hash tag: in a cluster the keys of one store are in one slot, and so
on one server, which is what lets a script touch them all. The store finds that server from any that the URL names, and
again when the slot has moved. A store therefore does not grow with the cluster; several stores, each with a prefix of
its own, do.

Nothing expires by itself that has not ended. A task that has, and has a retention, is removed by the sweeps; should no
process sweep for a day beyond, the server removes it, and the next sweep what is left of it in the indexes.

Weaknesses:

- Everything is in memory: about 2 KB for a small task.
- While one script runs nothing else does. Each costs some ten microseconds, and a page of a listing a millisecond.
- While the server is out of reach for seconds, a write that was sent may have been made: `StoreUnavailable` says so
  (`may_have_happened`).
- Tasks of a lost answer to `hand_out` count as handed out until a sweep finds them idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any, Final

import anyio

from mcp_tasks.errors import InvalidOption, LimitReached, TaskUnreadable, ValueNotStorable
from mcp_tasks.model.record import Outcome, TaskRecord, TaskRequest
from mcp_tasks.model.values import check_duration, check_instance, check_number, check_text
from mcp_tasks.stores.backend import BaseStore, Change, Created, Creation, Listing, Place, Row
from mcp_tasks.stores.base import LARGEST as LARGEST_REQUEST
from mcp_tasks.stores.base import MOST_COUNTED, Hint, Owners, Ready, Share, Standing, Usage, WorkLimits
from mcp_tasks.stores.codec import MICROSECOND, Codec, expiry, from_micros, queued_since, sort_key
from mcp_tasks.stores.fairness import ready_of
from mcp_tasks.stores.redis import names
from mcp_tasks.stores.redis.connection import (
    LAYOUT,
    Argument,
    Connection,
    RedisNotifier,
    check_layout,
    check_persistence,
)
from mcp_tasks.stores.redis.encryption import RedisVault, agree
from mcp_tasks.stores.redis.names import PLACE, from_bytes, place, to_bytes

AT_ONCE: Final = 1_000
"""Ids in one script."""

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


class RedisStore(BaseStore):
    """Keeps tasks on the server that `url` names: `redis://HOST:PORT/DATABASE`, `rediss://…`, `valkey://…`, `valkeys://…`.

    Args:
        prefix: What the keys of this store begin with. Stores with different prefixes share a server and nothing else.
        codec: How what is kept of a task becomes bytes; give it a cipher to have it encrypted.
        max_connections: Round trips at a time; more wait for their turn. The heartbeat has a connection of its own.
        timeout: How long one attempt at a round trip may take.

    Attributes:
        round_trips: How many round trips were made, for those who measure.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "mcp-tasks",
        codec: Codec | None = None,
        max_connections: int = 32,
        timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        check_text("prefix", prefix)
        if not prefix.isprintable() or set(prefix) & set("{}"):
            raise InvalidOption(f"prefix must be a non-empty string without braces, got {prefix!r}")
        check_number("max_connections", max_connections, 1)
        check_duration("timeout", timeout)
        if codec is not None:
            check_instance("codec", codec, Codec)
        keys, seconds = b"{" + prefix.encode() + b"}:", timeout.total_seconds()
        self._connection = Connection(url, prefix=keys, max_connections=max_connections, timeout=seconds)
        # A connection of its own: however many calls wait for theirs, a process that is alive says so in time.
        self._pulse = Connection(url, prefix=keys, max_connections=1, timeout=seconds)
        super().__init__(self._connection.place, codec)
        self._notifier = RedisNotifier(self._connection)

    @property
    def round_trips(self) -> int:
        """How many round trips were made."""
        return self._connection.round_trips + self._pulse.round_trips

    async def _open(self) -> None:
        self._connection.open()
        try:
            await check_layout(self._connection)
            await agree(self._connection, self._codec)
            await check_persistence(self._connection)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._connection.close()
            raise
        self._pulse.open()

    async def _close(self) -> None:
        await self._notifier.stop()
        await self._pulse.close()
        await self._connection.close()

    @asynccontextmanager
    async def _reached(self) -> AsyncGenerator[Connection]:
        """The connection, also while the store is not open."""
        was_open = self._connection.is_open
        if not was_open:
            self._connection.open()
        try:
            yield self._connection
        finally:
            if not was_open:
                await self._connection.close()

    async def now(self) -> datetime:
        seconds, micros = await self._connection.run("now")
        return from_micros(int(seconds) * 1_000_000 + int(micros))

    async def standing(self) -> Standing:
        async with self._reached() as connection:
            if await connection.call("TYPE", connection.prefix + b"meta") == b"none":
                return "absent"
            layout: Any = await connection.call("HGET", connection.prefix + b"meta", "layout")
            # What is no layout at all, `open` says in words.
            return "older" if layout is not None and layout.isdigit() and int(layout) < LAYOUT else "current"

    @asynccontextmanager
    async def vault(self) -> AsyncGenerator[RedisVault]:
        async with self._reached() as connection:
            await check_layout(connection)
            yield RedisVault(connection)

    # Writing

    async def _create(self, new: Creation) -> Created:
        record, outlives = new.record, new.key_outlives
        _check_sizes(new.state, new.request)
        answer = await self._connection.run(
            "create",
            to_bytes(record.id),
            record.version,
            to_bytes(record.namespace),
            *_list(() if record.owner is None else (to_bytes(record.owner),)),
            new.state,
            new.request,
            *_fate(record),
            sort_key(record),
            *_expiry(record),
            b"" if new.key is None else names.key_name(record.namespace, new.key, record.owner),
            int(new.key_until_end),
            b"" if outlives is None else outlives // MICROSECOND,
            b"" if new.key is None or record.parent is None else to_bytes(record.parent),
            *names.indexed(record, sort_key(record)),
            names.sizes(record.namespace, record.owner),
            *names.share_arguments(None if new.handing is None else new.handing.share),
            *self._hint(record),
        )
        match answer:
            case [b"made", handed]:
                return Created(handed=handed == b"1")
            case [b"standing", *row]:
                return Created(standing=_row(*row))
            case [b"spent", *child]:
                return Created(spent=True, child=from_bytes(child[0]) if child else None)
            case _:
                return Created(exists=True)

    async def _save(self, change: Change) -> bool:
        record, outcome = change.record, change.outcome
        parts = () if outcome is None else (outcome.body,) if outcome.meta is None else (outcome.body, outcome.meta)
        entries = [part for kind, key, value in change.lines for part in (kind.encode(), to_bytes(key), value)]
        _check_sizes(change.state, *parts, *entries)
        answer = await self._connection.run(
            "save",
            to_bytes(record.id),
            change.expected,
            record.version,
            change.state,
            *_fate(record),
            *_expiry(record),
            *names.indexed(record, queued_since(record)),
            names.sizes(record.namespace, record.owner),
            *_list(entries),
            *_list(parts),
            *_list([*_limits(record, change.limits)]),
            *self._hint(record),
        )
        if answer not in (b"saved", b"conflict"):
            raise LimitReached(record.id, answer.decode())
        return bool(answer == b"saved")

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        since = b"" if now is None else now
        answer = await self._connection.run("delete", to_bytes(task_id), expected, since, again=True)
        return bool(answer == b"deleted")

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Row | None]]:
        before, looks = place(now + 1), limit + LOOKS
        while True:
            is_end, rows = await self._connection.run(
                "forget_expired", before, limit, looks, int(records), now, KEYS_AT_ONCE
            )
            # None, and yet not the end: so many were gone by themselves.
            if rows or is_end:
                return [(int(version), from_bytes(row[0]), _row(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        wanted = [names.part(queue) for queue in queues or ()]
        found: list[TaskRecord] = []
        unreadable: set[bytes] = set()
        while True:
            rows = await self._connection.run(
                "hand_out",
                names.part(namespace),
                limit - len(found),
                int(mark),
                *names.share_arguments(share),
                int(queues is None),
                *_list(wanted),
                *_list([*unreadable]),
            )
            records = self._readable(_row(*row) for row in rows)
            found += records
            others = {row[0] for row in rows} - {to_bytes(record.id) for record in records}
            if not others:
                return [ready_of(record) for record in found]
            # Only here it is seen that they cannot be read. They go back, and what they kept from being chosen comes.
            unreadable |= others
            if mark:
                await asyncio.gather(*(self._connection.run("hand_back", task_id) for task_id in others))
            else:
                found.clear()

    async def hand_back(self, task_id: str) -> None:
        await self._connection.run("hand_back", to_bytes(task_id))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        return await self._pulse.run("heartbeat", to_bytes(worker), names.name("beats", namespace), beats)

    async def retire(self, worker: str) -> None:
        await self._connection.run("retire", to_bytes(worker))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        expected = (seen,) if isinstance(seen, bytes) else ()
        return bool(
            await self._connection.run("set_note", names.name("note", namespace, name), *_list(expected), value)
        )

    def _hint(self, record: TaskRecord) -> tuple[Argument, ...]:
        return self._notifier.message(Hint(record.id, record.version))

    # Reading

    async def _fields(self, task_id: str, *fields: bytes) -> Sequence[Any]:
        """Some fields of a task; nothing but None if there is no such task."""
        return await self._connection.call("HMGET", self._connection.prefix + b"t:" + to_bytes(task_id), *fields)

    async def _owned(self, task_id: str, owner: str | None, *fields: bytes) -> Sequence[Any]:
        """Some fields of a task of this owner; nothing but None if the owner has no such task."""
        whose = b"" if owner is None else b"=" + to_bytes(owner)
        found = await self._connection.run("get_owned", to_bytes(task_id), whose, *_list(fields))
        return found or (None,) * len(fields)

    async def _get(self, task_id: str) -> Row | None:
        version, *row = await self._fields(task_id, b"v", b"o", b"n", b"s")
        return None if version is None else _row(to_bytes(task_id), *row)

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        version, *row = await self._owned(task_id, owner, b"v", b"o", b"n", b"s")
        return None if version is None else self._record(_row(to_bytes(task_id), *row))

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        version, *row, request = await self._connection.run("get_with_request", to_bytes(task_id), LARGEST_REQUEST)
        return None if version is None else self._with_request(_row(to_bytes(task_id), *row), request)

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        version, *row, body, meta = await self._owned(task_id, owner, b"v", b"o", b"n", b"s", b"b", b"m")
        return None if version is None else await self._with_outcome(_row(to_bytes(task_id), *row), body, meta)

    async def _request(self, task_id: str) -> tuple[str | None, object] | None:
        version, owner, request = await self._fields(task_id, b"v", b"o", b"r")
        return None if version is None else (_optional(owner), request)

    async def _outcome(self, task_id: str) -> tuple[str | None, object, object] | None:
        owner, body, meta = await self._fields(task_id, b"o", b"b", b"m")
        return None if body is None else (_optional(owner), body, meta)

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        owner, items = await self._connection.run("journal", to_bytes(task_id), after)
        if len(items) % 3:
            why = "its journal is damaged (it ends in the middle of an entry); restore a backup, or delete the task"
            raise TaskUnreadable(task_id, why, owner=_optional(owner))
        entries = enumerate(zip(items[::3], items[1::3], items[2::3], strict=True), after + 1)
        return _optional(owner), [
            (number, from_bytes(kind), from_bytes(key), value) for number, (kind, key, value) in entries
        ]

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Row]], Place | None]:
        index, status = names.listing(listing.namespace, listing.whose, listing.status), listing.status
        wanted, way = "" if status is None else status.value, "newest" if listing.newest_first else ""
        limit, looks = listing.limit, listing.limit + LOOKS
        last, found = await self._connection.run(
            "list", index, _member(listing.after), limit, listing.now, wanted, looks, way
        )
        rows = [(_place(member), _row(member[PLACE:], *row)) for member, *row in found]
        # Short of what was asked for, because much was passed over: there may be more behind it.
        return rows, _place(last) if last else None

    async def _queued(
        self, namespace: str, handed_out: bool | None, after: Place | None, limit: int
    ) -> Sequence[Place]:
        kinds = {None: ("waiting", "handed"), True: ("handed",), False: ("waiting",)}[handed_out]
        return await self._places([names.name(kind, namespace) for kind in kinds], after, limit)

    async def _due(self, namespace: str, now: int, after: Place | None, limit: int) -> Sequence[Place]:
        return await self._places([names.name("due", namespace)], after, limit, last=b"(" + place(now + 1))

    async def _claimed(self, worker: str, after: Place | None, limit: int) -> Sequence[Place]:
        return await self._places([names.name("claimed", worker)], after, limit)

    async def _places(
        self, indexes: Sequence[bytes], after: Place | None, limit: int, last: bytes = b"+"
    ) -> Sequence[Place]:
        first = b"-" if after is None else b"(" + _member(after)
        found = await self._connection.run(
            "ranges", limit, *_list([part for index in indexes for part in (index, first, last)])
        )
        return [_place(member) for member in islice(merge(*found), limit)]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        found = await self._connection.run("backlog", names.part(namespace), place(now + 1))
        return [
            (
                names.whole(queue),
                count,
                names.instant(since) if since else None,
                names.instant(woken) if woken else None,
            )
            for queue, count, since, woken in found
        ]

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        size_index, open_ones = names.usage(namespace, whose)
        count, size = await self._connection.run("usage", size_index, *_list(open_ones))
        return Usage(open_tasks=min(count, MOST_COUNTED), stored_bytes=int(size))

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        ids = list(dict.fromkeys(task_ids))
        if len(ids) == 1:
            # The look on the path of every poll needs no script.
            (version,) = await self._fields(ids[0], b"v")
            return {} if version is None else {ids[0]: int(version)}
        versions: dict[str, int] = {}
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            found = await self._connection.run("versions", *map(to_bytes, some))
            versions |= {task_id: int(version) for task_id, version in zip(some, found, strict=True) if version}
        return versions

    async def workers(self, namespace: str) -> dict[str, int]:
        found = await self._connection.run("workers", names.name("beats", namespace), names.name("having", namespace))
        return {from_bytes(worker): int(beats) for worker, beats in zip(found[::2], found[1::2], strict=True)}

    async def namespaces(self) -> Sequence[str]:
        # No index has them: all keys are gone through, so many at a time.
        found = {names.whole(key[6:]) async for key in self._connection.names(b"tasks:")}
        return sorted(found | {names.whole(key[6:]) async for key in self._connection.names(b"beats:")})

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        found = await self._connection.call("GET", self._connection.prefix + names.key_name(namespace, key, owner))
        return None if found is None else from_bytes(found)

    async def _note(self, namespace: str, name: str) -> object:
        return await self._connection.call("HGET", self._connection.prefix + names.name("note", namespace, name), "v")

    def notifier(self) -> RedisNotifier:
        """Hints between the processes that share the server."""
        return self._notifier

    def _deletion(self, start: str, is_whole: bool) -> str:
        # Not `DEL`: a task is in indexes as well.
        shown = repr(start) if is_whole else f"(the id that begins with {start!r})"
        return f"await store.delete({shown}, expected=(await store.versions([{shown}]))[{shown}])"


def _row(task_id: bytes, owner: bytes | None, namespace: bytes | None, state: object) -> Row:
    return from_bytes(task_id), _optional(owner), from_bytes(namespace or b""), state


def _optional(text: bytes | None) -> str | None:
    return None if text is None else from_bytes(text)


def _member(after: Place | None) -> bytes:
    """The member behind which a page starts."""
    return b"" if after is None else place(after[0]) + to_bytes(after[1])


def _place(member: bytes) -> Place:
    return names.instant(member), from_bytes(member[PLACE:])


def _list(items: Sequence[Argument]) -> tuple[Argument, ...]:
    return len(items), *items


def _fate(record: TaskRecord) -> tuple[Argument, ...]:
    """The status, and whether it is a final one."""
    return record.status.value, b"1" if record.is_final else b""


def _expiry(record: TaskRecord) -> tuple[Argument, ...]:
    """When the task expires, and after how many milliseconds the server may remove it by itself; or nothing.

    Counted from now on by the server's own clock, which has nothing to do with the clock that ended the task.
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


def _check_sizes(*values: bytes) -> None:
    largest = max(map(len, values))
    if largest > LARGEST:
        raise ValueNotStorable(
            f"a value of {largest:,} bytes cannot be stored, because Redis takes at most {LARGEST:,} in one piece"
        )
