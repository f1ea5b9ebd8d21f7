"""`RedisStore`: tasks in Redis or Valkey, for all processes that reach the server.

Durability depends on the server, and is checked when the store is opened: with `appendonly yes` and `appendfsync
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
- Tasks of a lost answer to `hand_out` count as dispatched until a sweep finds them idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any, Final, cast

import anyio

from mcp_tasks.errors import InvalidOption, LimitReached, TaskUnreadable, ValueNotStorable
from mcp_tasks.model.record import TaskRecord, TaskStatus
from mcp_tasks.model.values import check_duration, check_instance, check_number, check_text
from mcp_tasks.stores.base import (
    EVERYBODY,
    MOST_COUNTED,
    AnyOwner,
    Change,
    Created,
    Creation,
    Hint,
    Listing,
    Owners,
    Part,
    Place,
    Ready,
    Row,
    Share,
    Standing,
    Store,
    Sweep,
    Usage,
    WorkLimits,
    narrowed,
)
from mcp_tasks.stores.codec import (
    BODY,
    META,
    MICROSECOND,
    REQUEST,
    STATE,
    Codec,
    entry_part,
    expiry,
    from_micros,
    note_id,
    part_id,
    queued_since,
    sort_key,
)
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, Value, Vault, is_encrypted
from mcp_tasks.stores.fairness import ready_of
from mcp_tasks.stores.redis import names
from mcp_tasks.stores.redis.connection import LAYOUT, Connection, RedisNotifier, check_layout, check_persistence
from mcp_tasks.stores.redis.names import PLACE, Argument, from_bytes, place, to_bytes

AT_ONCE: Final = 1_000
"""Ids in one script."""

LARGEST: Final = 512 * 1024 * 1024
"""Bytes of a value. Redis takes no larger one, unless it was told to (`proto-max-bulk-len`)."""

LOOKS: Final = 1_000
"""Tasks beyond those asked for that one look passes over, because they have expired or are gone: nothing else runs on
the server meanwhile."""

KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, and are removed with one slice of what has expired."""

KEPT_BEYOND: Final = timedelta(days=1)
"""For how long a task that has expired waits for a sweep before the server removes it by itself."""

_FIELDS: Final[Mapping[Part | None, Sequence[bytes]]] = {None: (), "request": (b"r",), "outcome": (b"b", b"m")}
"""The fields of a task's row that a part is in."""


class RedisStore(Store):
    """Keeps tasks on the server that `url` names: `redis://HOST:PORT/DATABASE`, `rediss://…`, `valkey://…`,
    `valkeys://…`.

    Args:
        prefix: The beginning of all keys of this store. Stores with different prefixes share a server and nothing else.
        codec: How what is kept of a task becomes bytes; give it a cipher to have it encrypted.
        max_connections: Round trips at a time; more wait for their turn. The heartbeat has a connection of its own.
        timeout: How long one attempt at a round trip may take.
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
        self._run = self._connection.run

    @property
    def round_trips(self) -> int:
        """How many round trips were made."""
        return self._connection.round_trips + self._pulse.round_trips

    async def _open(self) -> None:
        self._connection.open()
        try:
            await check_layout(self._connection)
            await RedisVault(self._connection).agree(self._codec)
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
        seconds, micros = await self._run("now")
        return from_micros(int(seconds) * 1_000_000 + int(micros))

    async def standing(self) -> Standing:
        async with self._reached() as connection:
            if await connection.call("TYPE", connection.prefix + b"meta") == b"none":
                return "absent"
            layout: Any = await connection.call("HGET", connection.prefix + b"meta", "layout")
            # If it is no layout at all, `open` explains that.
            return "older" if layout is not None and layout.isdigit() and int(layout) < LAYOUT else "current"

    def notifier(self) -> RedisNotifier:
        """Hints between the processes that share the server."""
        return self._notifier

    @asynccontextmanager
    async def vault(self) -> AsyncGenerator[RedisVault]:
        async with self._reached() as connection:
            await check_layout(connection)
            yield RedisVault(connection)

    # ---- writing

    async def _create(self, new: Creation) -> Created:
        record, outlives = new.record, new.key_outlives
        _check_sizes(new.state, new.request)
        answer = await self._run(
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
            b"" if new.key is None else names.of_owner("key", record.namespace, record.owner, new.key),
            int(new.key_until_end),
            b"" if outlives is None else outlives // MICROSECOND,
            b"" if new.key is None or record.parent is None else to_bytes(record.parent),
            *names.indexed(record, sort_key(record)),
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
        answer = await self._run(
            "save",
            to_bytes(record.id),
            change.expected,
            record.version,
            change.state,
            *_fate(record),
            *_expiry(record),
            *names.indexed(record, queued_since(record)),
            *_list(entries),
            *_list(parts),
            *_list([*_limits(record, change.limits)]),
            *self._hint(record),
        )
        if answer not in (b"saved", b"conflict"):
            raise LimitReached(record.id, answer.decode())
        return bool(answer == b"saved")

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        answer = await self._run("delete", to_bytes(task_id), expected, b"" if now is None else now, again=True)
        return bool(answer == b"deleted")

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Row | None]]:
        values = place(now + 1), limit, limit + LOOKS, int(records), now, KEYS_AT_ONCE
        while True:
            is_end, rows = await self._run("forget_expired", *values)
            # None, and yet not the end: so many were gone by themselves.
            if rows or is_end:
                return [(int(version), from_bytes(row[0]), _row(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        wanted = [names.part(queue) for queue in dict.fromkeys(queues or ())]
        found: list[TaskRecord] = []
        unreadable: set[bytes] = set()
        while True:
            rows = await self._run(
                "hand_out",
                names.part(namespace),
                limit - len(found),
                int(mark),
                *names.share_arguments(share),
                int(queues is None),
                *_list(wanted),
                *_list([*unreadable]),
            )
            records = [record for row in rows if (record := self._readable(_row(*row))) is not None]
            found += records
            others = {row[0] for row in rows} - {to_bytes(record.id) for record in records}
            if not others:
                return [ready_of(record) for record in found]
            # Only here it is seen that they cannot be read. They go back, and what they kept from being chosen comes.
            unreadable |= others
            if mark:
                await asyncio.gather(*(self._run("hand_back", task_id) for task_id in others))
            else:
                found.clear()

    async def hand_back(self, task_id: str) -> None:
        await self._run("hand_back", to_bytes(task_id))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        return await self._pulse.run("heartbeat", to_bytes(worker), names.name("beats", namespace), beats)

    async def retire(self, worker: str) -> None:
        await self._run("retire", to_bytes(worker))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        expected = (seen,) if isinstance(seen, bytes) else ()
        return bool(await self._run("set_note", names.name("note", namespace, name), *_list(expected), value))

    def _hint(self, record: TaskRecord) -> tuple[Argument, ...]:
        return self._notifier.message(Hint(record.id, record.version))

    # ---- reading

    async def _fields(self, task_id: str, *fields: bytes) -> Sequence[Any]:
        """Some fields of a task; nothing but None if there is no such task."""
        return await self._connection.call("HMGET", self._connection.prefix + b"t:" + to_bytes(task_id), *fields)

    async def _read(
        self, task_id: str, part: Part | None = None, *, owner: AnyOwner = EVERYBODY, most: int | None = None
    ) -> tuple[Row, Sequence[Any]] | None:
        fields = (b"v", b"o", b"n", b"s", *_FIELDS[part])
        if owner is EVERYBODY and most is None:
            found = await self._fields(task_id, *fields)
        else:
            whose = b"*" if owner is EVERYBODY else b"" if owner is None else b"=" + to_bytes(owner)
            found = await self._run("read", to_bytes(task_id), whose, b"" if most is None else most, *_list(fields))
        if not found or found[0] is None:
            return None
        _, stored_owner, namespace, state, *parts = found
        return (task_id, _optional(stored_owner), from_bytes(namespace or b""), state), parts

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        owner, items = await self._run("journal", to_bytes(task_id), after)
        if len(items) % 3:
            why = "its journal is damaged (it ends in the middle of an entry); restore a backup, or delete the task"
            raise TaskUnreadable(task_id, why, owner=_optional(owner))
        entries = enumerate(zip(items[::3], items[1::3], items[2::3], strict=True), after + 1)
        return _optional(owner), [
            (number, from_bytes(kind), from_bytes(key), value) for number, (kind, key, value) in entries
        ]

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Row]], Place | None]:
        status, limit = listing.status, listing.limit
        last, found = await self._run(
            "list",
            names.listing(listing.namespace, listing.field, listing.of, status),
            _member(listing.after),
            limit,
            listing.now,
            "" if status is None else status.value,
            limit + LOOKS,
            "newest" if listing.newest_first else "",
        )
        rows = [(_place(member), _row(member[PLACE:], *row)) for member, *row in found]
        # Short of what was asked for, because much was passed over: there may be more behind it.
        return rows, _place(last) if last else None

    async def _ids(self, sweep: Sweep) -> Sequence[Place]:
        kinds = {None: ("waiting", "handed"), True: ("handed",), False: ("waiting",)}[sweep.handed_out]
        indexes = [names.name(kind, sweep.of) for kind in (kinds if sweep.kind == "queued" else (sweep.kind,))]
        first = b"-" if sweep.after is None else b"(" + _member(sweep.after)
        last = b"(" + place(sweep.now + 1) if sweep.kind == "due" else b"+"
        ranges = _list([part for index in indexes for part in (index, first, last)])
        found = await self._run("ranges", sweep.limit, *ranges)
        return [_place(member) for member in islice(merge(*found), sweep.limit)]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        found = await self._run("backlog", names.part(namespace), place(now + 1))
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
        field, of = narrowed(whose)
        open_ones = [names.listing(namespace, field, of, status) for status in TaskStatus if not status.is_final]
        sized = b"" if whose is EVERYBODY else names.of_owner("bytes", namespace, of)
        count, size = await self._run("usage", sized, *_list(open_ones))
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
            found = await self._run("versions", *map(to_bytes, some))
            versions |= {task_id: int(version) for task_id, version in zip(some, found, strict=True) if version}
        return versions

    async def workers(self, namespace: str) -> dict[str, int]:
        found = await self._run("workers", names.name("beats", namespace), names.name("having", namespace))
        return {from_bytes(worker): int(beats) for worker, beats in zip(found[::2], found[1::2], strict=True)}

    async def namespaces(self) -> Sequence[str]:
        # No index has them: all keys are gone through, so many at a time.
        found = {names.whole(key[6:]) async for key in self._connection.names(b"tasks:")}
        return sorted(found | {names.whole(key[6:]) async for key in self._connection.names(b"beats:")})

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        place = names.of_owner("key", namespace, owner, key)
        return _optional(await self._connection.call("GET", self._connection.prefix + place))

    async def _note(self, namespace: str, name: str) -> object:
        return await self._connection.call("HGET", self._connection.prefix + names.name("note", namespace, name), "v")

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
    return expires, (record.retention + KEPT_BEYOND) // timedelta(milliseconds=1) if record.is_final else b""


def _limits(record: TaskRecord, limits: WorkLimits | None) -> Iterator[Argument]:
    """For each limit: its name, the number, and the index of the tasks at work."""
    if limits is not None and limits.tool is not None:
        yield from ("tool", limits.tool, names.name("tool-at-work", record.namespace, record.method, record.name))
    if limits is not None and limits.owner is not None:
        yield from ("owner", limits.owner, names.of_owner("owner-at-work", record.namespace, record.owner))


def _check_sizes(*values: bytes) -> None:
    largest = max(map(len, values))
    if largest > LARGEST:
        raise ValueNotStorable(
            f"a value of {largest:,} bytes cannot be stored, because Redis takes at most {LARGEST:,} in one piece"
        )


# ---- encryption
# Earlier values stay in the append-only file, snapshots and replicas for a while: see docs/encryption.md.

_PLACE: Final = names.name("note", NAMESPACE, NAME)
_SEALED: Final = ((b"s", STATE), (b"r", REQUEST), (b"b", BODY), (b"m", META))
"""The encrypted fields of a task's row: its state, its request, its outcome, and what belongs to that."""


def _bound_to(key: bytes) -> str:
    """The name that the note of a key is bound to."""
    _, namespace, note = (names.whole(part) for part in key.split(b":"))
    return note_id(namespace, note)


class RedisVault(Vault):
    """The keys of one prefix."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.place)
        self._connection = connection

    async def _call(self, command: str, key: bytes, *arguments: Argument) -> Any:
        return await self._connection.call(command, self._connection.prefix + key, *arguments)

    async def note(self) -> bytes | None:
        return await self._call("HGET", _PLACE, "v")

    async def write_note(self, note: bytes) -> None:
        await self._call("HSET", _PLACE, "v", note)

    async def sample(self) -> Sample | None:
        async for key in self._connection.names(b"t:"):
            if (state := await self._call("HGET", key, "s")) is not None:
                return part_id(from_bytes(key.removeprefix(b"t:")), STATE), state
        async for key in self._connection.names(b"note:"):
            if key != _PLACE and (value := await self._call("HGET", key, "v")) is not None:
                return _bound_to(key), value
        return None

    async def mark(self, note: bytes) -> None:
        await self._call("HSETNX", _PLACE, "v", note)
        # From here on nothing plain can be added (`lua/tasks.lua`). Just before, it could; then the second look of
        # `agree` refuses it.
        if (sample := await self.sample()) is not None and not is_encrypted(sample[1]):
            await self._call("DEL", _PLACE)

    async def heartbeats(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        async for key in self._connection.names(b"beats:"):
            beats = cast("dict[bytes, bytes]", await self._call("HGETALL", key))
            found |= {from_bytes(worker): int(count) for worker, count in beats.items()}
        return found

    async def values(self) -> AsyncIterator[Value]:
        async for key in self._connection.names(b"t:"):
            task_id = from_bytes(key.removeprefix(b"t:"))
            for field, part in _SEALED:
                if (data := await self._call("HGET", key, field)) is not None:
                    yield Value(("field", key, field), part_id(task_id, part), data)
        async for key in self._connection.names(b"j:"):
            task_id, place = from_bytes(key.removeprefix(b"j:")), 1
            # Three items for each entry: kind, key and value.
            while len(entry := cast("list[bytes]", await self._call("LRANGE", key, place - 1, place + 1))) == 3:
                kind, its_key, data = entry
                bound_to = part_id(task_id, entry_part(from_bytes(kind)))
                yield Value(("entry", key, place), bound_to, data, from_bytes(its_key))
                place += 3
        async for key in self._connection.names(b"note:"):
            if key != _PLACE and (data := await self._call("HGET", key, b"v")) is not None:
                yield Value(("field", key, b"v"), _bound_to(key), data)

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        values = (value.data, new) if key is None else (value.data, to_bytes(key), new)
        return bool(await self._connection.run("reseal", *value.where, *values))

    async def again(self, value: Value) -> Value | None:
        kind, key, field = value.where
        # Entries of a journal never change; they may be gone.
        data = await self._call("HGET", key, field) if kind == "field" else None
        return None if data is None else Value(value.where, value.bound_to, data)
