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
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any, Final, TypeVar

import anyio

from mcp_tasks.errors import SHOWN_OF_AN_ID, InvalidOption, StoreUnavailable, TaskExists, TaskUnreadable
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import check_duration, check_instance, check_number, check_text
from mcp_tasks.stores.base import (
    LARGEST,
    MOST_COUNTED,
    Backlog,
    Forgotten,
    Handing,
    IdPage,
    Owners,
    Page,
    Ready,
    Share,
    Standing,
    Usage,
    Whose,
    WorkLimits,
)
from mcp_tasks.stores.codec import (
    Codec,
    UnreadableLog,
    decode_cursor,
    earliest,
    encode_cursor,
    encoded_entries,
    encoded_outcome,
    encoded_request,
    from_micros,
    if_readable,
    in_thread_if,
    made_before,
    saved_before,
    to_micros,
)
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
from mcp_tasks.stores.redis.names import PLACE, from_bytes, key_name, place, to_bytes, whole
from mcp_tasks.stores.redis.sealing import agree
from mcp_tasks.stores.redis.writes import LOOKS, Row, Writes

# ---- inspecting
# What is asked of a Redis beyond its tasks: whether our keys are there, whose tasks are in them, what has a key.


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


# ---- reads
# The reads of the store: one round trip each, whatever is kept.


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


T = TypeVar("T")


class RedisStore(Inspecting):
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
        self._codec = codec or Codec()
        self._notifier = RedisNotifier(self._connection)
        self._reads = Reads(self._connection)
        self._writes = Writes(self._connection, self._notifier)
        self._turn = anyio.Lock()
        self._unreadable = UnreadableLog(self._connection.place, _deletion)

    def __repr__(self) -> str:
        return f"RedisStore({self._connection.place!r})"

    @property
    def round_trips(self) -> int:
        """How many round trips were made."""
        return self._connection.round_trips + self._pulse.round_trips

    async def open(self, namespace: str = "") -> None:
        """Reach the server, and look at whether it keeps what it is given."""
        async with self._turn:
            if self._connection.is_open:
                return
            self._connection.open()
            try:
                await check_layout(self._connection)
                await agree(self._connection, self._codec, namespace)
                await check_persistence(self._connection)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._connection.close()
                raise
            self._pulse.open()

    async def close(self) -> None:
        """Finish what was asked for and let go of the connections."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                await self._notifier.stop()
                await self._pulse.close()
                await self._connection.close()

    async def now(self) -> datetime:
        """The time of the server that has the keys."""
        seconds, micros = await self._connection.run("now")
        return from_micros(int(seconds) * 1_000_000 + int(micros))

    async def create(
        self,
        record: TaskRecord,
        request: TaskRequest,
        *,
        key: str | None = None,
        key_until_end: bool = False,
        key_outlives: timedelta | None = None,
        handing: Handing | None = None,
    ) -> TaskRecord:
        """Keep a new task, unless one stands under its key."""
        state = self._codec.encode_state(record)
        encoded = await encoded_request(self._codec, record.id, request)
        try:
            standing = await self._writes.create(
                record,
                state=state,
                request=encoded,
                key=key,
                key_until_end=key_until_end,
                key_outlives=key_outlives,
                handing=handing,
            )
        except TaskExists:
            return await made_before(self.get, record)
        return record if standing is None else self._record(*standing)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        """Replace the record if it is still at version `expected`, with what is kept beside it."""
        state = self._codec.encode_state(record)
        lines = await encoded_entries(self._codec, record.id, entries)
        kept = await encoded_outcome(self._codec, record.id, outcome)
        saved = await self._writes.save(
            record, expected=expected, state=state, lines=lines, outcome=kept, limits=limits
        )
        return record if saved else await saved_before(self.get, record, expected)

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        """Forget the task with all that is kept beside it if it is still at version `expected`."""
        await self._writes.delete(task_id, expected=expected, now=now)

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        version, owner, namespace, state = await self._reads.row(task_id, b"v", b"o", b"n", b"s")
        return None if version is None else self._record(to_bytes(task_id), owner, namespace, state)

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now, for its owner."""
        version, *row = await self._reads.owned(task_id, owner, b"v", b"o", b"n", b"s")
        return None if version is None else self._record(to_bytes(task_id), *row)

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for."""
        version, owner, request = await self._reads.row(task_id, b"v", b"o", b"r")
        if version is None:
            return None
        return await self._decoded(
            request, lambda: self._codec.decode_request(task_id, request, owner=_optional(owner))
        )

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        """The record as of now and its request, unless that is large."""
        found = await self._connection.run("get_with_request", to_bytes(task_id), LARGEST)
        version, owner, namespace, state, request = found
        if version is None:
            return None
        record = self._record(to_bytes(task_id), owner, namespace, state)
        if request is None:
            return record, None
        return record, self._codec.decode_request(task_id, request, owner=_optional(owner))

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        """The record as of now, and how the task ended, for its owner."""
        fields = b"v", b"o", b"n", b"s", b"b", b"m"
        version, whose, namespace, state, body, meta = await self._reads.owned(task_id, owner, *fields)
        if version is None:
            return None
        record = self._record(to_bytes(task_id), whose, namespace, state)
        return record, await self._outcome(task_id, whose, body, meta)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended."""
        return await self._outcome(task_id, *await self._reads.row(task_id, b"o", b"b", b"m"))

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`, in the order of writing."""
        owner, items = await self._reads.journal(task_id, after)
        if len(items) % 3:
            why = "its journal is damaged (it ends in the middle of an entry); restore a backup, or delete the task"
            raise TaskUnreadable(task_id, why, owner=_optional(owner))

        def decode() -> Sequence[JournalEntry]:
            lines = zip(items[::3], items[1::3], items[2::3], strict=True)
            return [
                self._codec.decode_entry(
                    task_id, from_bytes(kind), from_bytes(key), value, number=number, owner=_optional(owner)
                )
                for number, (kind, key, value) in enumerate(lines, after + 1)
            ]

        return await in_thread_if(sum(map(len, items)) > LARGE, decode)

    async def list(
        self,
        namespace: str,
        whose: Whose,
        *,
        now: datetime,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        """Tasks of the namespace in the order of creation, in one status or any."""
        rows, following = await self._reads.listing(
            namespace, whose, now, status, cursor, limit, newest_first=newest_first
        )
        return Page(records=self._unreadable.readable(self._record, rows), cursor=following)

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks of the namespace, as it was counted when it was written."""
        size_index, open_ones = names.usage(namespace, whose)
        count, size = await self._connection.run("usage", size_index, len(open_ones), *open_ones)
        return Usage(open_tasks=min(count, MOST_COUNTED), stored_bytes=int(size))

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Queued tasks that are not handed out, within the share, by priority and then owners by turns."""
        found: list[TaskRecord] = []
        unreadable: set[bytes] = set()
        while True:
            rows = await self._reads.hand_out(namespace, share, queues, mark, limit - len(found), unreadable)
            records = self._unreadable.readable(self._record, rows)
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
        """If the task is still queued, it waits for `hand_out` again."""
        await self._connection.run("hand_back", to_bytes(task_id))

    async def backlog(self, namespace: str, now: datetime) -> Mapping[str, Backlog]:
        """What waits in each queue of the namespace."""
        found = await self._connection.run("backlog", names.part(namespace), names.place(to_micros(now) + 1))
        return {
            names.whole(queue): Backlog(
                ready=min(count, MOST_COUNTED), since=earliest(*(names.instant(first) for first in firsts if first))
            )
            for queue, count, *firsts in found
            if count
        }

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        kinds = {None: ("waiting", "handed"), True: ("handed",), False: ("waiting",)}[handed_out]
        return await self._reads.ids([names.name(kind, namespace) for kind in kinds], cursor, limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""
        return await self._reads.ids([names.name("due", namespace)], cursor, limit, until=now)

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return await self._reads.ids([names.name("claimed", worker)], cursor, limit)

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Forget tasks whose time after the end is over, longest overdue first."""
        rows = await self._writes.forget_expired(now, limit, states=records)
        return [
            Forgotten(from_bytes(row[0]), int(version), if_readable(self._record, *row) if records else None)
            for version, *row in rows
        ]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        return await self._reads.versions(task_ids)

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        """Renew the lease of `worker`."""
        return await self._pulse.run("heartbeat", to_bytes(worker), names.name("beats", namespace), beats)

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten."""
        found = await self._connection.run("workers", names.name("beats", namespace), names.name("having", namespace))
        return {from_bytes(worker): int(beats) for worker, beats in zip(found[::2], found[1::2], strict=True)}

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`."""
        await self._connection.run("retire", to_bytes(worker))

    async def note(self, namespace: str, name: str) -> bytes | None:
        """The note of this name that the server has, or None."""
        data = await self._reads.note(namespace, name)
        return None if data is None else self._codec.decode_note(namespace, name, data)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected`."""
        encoded = self._codec.encode_note(namespace, name, value)
        was_sent = False
        while True:
            # By what it says, which only this side can read: encrypted bytes differ each time, whatever is in them.
            try:
                seen = await self._reads.note(namespace, name)
            except StoreUnavailable as exc:
                # Another note was there than was seen, which may be this one, kept by an attempt without an answer.
                exc.may_have_happened = was_sent
                raise
            found = None if seen is None else self._codec.decode_note(namespace, name, seen)
            if found != expected:
                return found == value
            was_sent = True
            if await self._writes.set_note(names.name("note", namespace, name), encoded, seen=seen):
                return True

    def notifier(self) -> RedisNotifier:
        """Hints between the processes that share the server."""
        return self._notifier

    async def _outcome(
        self, task_id: str, owner: bytes | None, body: bytes | None, meta: bytes | None
    ) -> Outcome | None:
        if body is None:
            return None
        return await self._decoded(
            body + (meta or b""), lambda: self._codec.decode_outcome(task_id, body, meta, owner=_optional(owner))
        )

    async def _decoded(self, data: bytes | None, decode: Callable[[], T]) -> T:
        return await in_thread_if(len(data or b"") > LARGE, decode)

    def _record(self, task_id: bytes, owner: bytes | None, namespace: bytes | None, state: object) -> TaskRecord:
        return self._codec.decode_state(
            from_bytes(task_id), state, namespace=from_bytes(namespace or b""), owner=_optional(owner)
        )


def _deletion(task_id: str) -> str:
    # Not `DEL`: a task is in indexes as well.
    start = task_id[:SHOWN_OF_AN_ID]
    shown = repr(start) if start == task_id else f"(the id that begins with {start!r})"
    return f"await store.delete({shown}, expected=(await store.versions([{shown}]))[{shown}])"


def _optional(text: bytes | None) -> str | None:
    return None if text is None else from_bytes(text)
