"""The reference store: dictionaries and sorted lists. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need
not outlive them.

Requests and journals are kept as bytes, as other stores keep them: what a tool does to its arguments is not done to
what the next run gets, and what no store could keep is refused here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json_bytes import LARGE
from mcp_tasks.core.pacing import is_expired
from mcp_tasks.core.record import Outcome, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import KeySpent, LimitReached, VersionConflict
from mcp_tasks.stores.base import Forgotten, IdPage, Owners, Page, Whose
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.columns import (
    MICROSECOND,
    decode_cursor,
    encode_cursor,
    expiry,
    is_resuming,
    sort_key,
    to_micros,
)
from mcp_tasks.stores.encoding import Line, encoded_entries, encoded_request, in_thread_if, size_of
from mcp_tasks.stores.fairness import Choice, Turns
from mcp_tasks.stores.hints import LocalNotifier
from mcp_tasks.stores.ordered import Ordered, Place
from mcp_tasks.stores.places import (
    Wait,
    Waiting,
    backlog_of,
    created_place,
    listing,
    owner_of,
    places,
    route_of,
    tool_of,
    wait_of,
)
from mcp_tasks.stores.repeats import made_before, saved_before
from mcp_tasks.stores.shares import Backlog, Handing, Ready, Share, Usage, WorkLimits
from mcp_tasks.stores.tally import SpentKeys, Tally, Under


class MemoryStore:
    """Keeps tasks in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._requests: dict[str, bytes] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._journals: dict[str, list[Line]] = {}
        self._keys: dict[Under, str] = {}
        self._key_of: dict[str, tuple[Under, timedelta | None]] = {}
        self._spent = SpentKeys()
        self._children: dict[str, dict[Under, str]] = {}
        self._tally = Tally()
        self._order = Ordered()
        self._waits: dict[str, Wait] = {}
        self._turns = Turns()
        self._beats: dict[str, tuple[str, int]] = {}
        self._notes: dict[tuple[str, str], bytes] = {}
        self._notifier = LocalNotifier()
        self._codec = Codec()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def open(self, namespace: str = "") -> None:
        """Nothing to do: no task here is older than namespaces."""

    async def close(self) -> None:
        """Nothing to do; what is kept stays until the object goes."""

    async def now(self) -> datetime:
        """The time of this machine."""
        return datetime.now(UTC)

    async def create(
        self,
        record: TaskRecord,
        request: TaskRequest,
        *,
        key: str | None = None,
        key_until_end: bool = False,
        key_outlives: timedelta | None = None,
        handing: Handing | None = None,
        outcome: Outcome | None = None,
    ) -> TaskRecord:
        """Keep a new task, unless one stands under its key."""
        if handing is not None:
            handing.handed = handing.carried = False
        self._codec.encode_state(record)
        encoded = await encoded_request(self._codec, record.id, request)
        # From here on nobody else has a turn: whoever comes second under a key finds the first.
        under = None if key is None else (record.namespace, owner_of(record), key)
        standing = None if under is None else self._records.get(self._keys.get(under, ""))
        loses_key = key_until_end and standing is not None and standing.is_final
        if standing is not None and not loses_key and not is_expired(standing, record.created_at):
            return standing
        parent = self._open_parent(record)
        if under is not None and record.parent is not None and not key_until_end:
            if not parent:
                raise KeySpent
            if under in self._children.get(parent, {}):
                raise KeySpent(self._children[parent][under])
        if under is not None and not key_until_end and self._is_spent(under, standing, sort_key(record)):
            raise KeySpent
        if record.id in self._records:
            return await made_before(self.get, record)
        if standing is not None:
            self._free_key(standing.id) if loses_key else self._forget(standing.id)
        self._put(record)
        self._requests[record.id] = encoded
        self._tally.grow(record, len(encoded))
        self._journals[record.id] = []
        if outcome is not None:
            self._keep(record, outcome)
        if under is not None:
            self._spent.free(under)
            self._keys[under] = record.id
            self._key_of[record.id] = under, key_outlives
            if parent:
                self._children.setdefault(parent, {})[under] = record.id
        if handing is not None and record.id in self._waits:
            room = Waiting(self._order, self._records, record.namespace).room(handing.share)
            handing.handed = room.has(route_of(record))
            if handing.handed:
                self._mark(record.id, handed=True)
        return record

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        return self._keys.get((namespace, () if owner is None else (owner,), key))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        return self._records.get(task_id)

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for."""
        data = self._requests.get(task_id)
        if data is None:
            return None
        return await in_thread_if(len(data) > LARGE, self._codec.decode_request, task_id, data)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended."""
        return self._outcomes.get(task_id)

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
        self._codec.encode_state(record)
        lines = await encoded_entries(self._codec, record.id, entries)
        current = self._records.get(record.id)
        if current is None or current.version != expected:
            return await saved_before(self.get, record, expected)
        self._check_limits(record, limits or WorkLimits())
        self._put(record)
        self._journals[record.id] += lines
        self._tally.grow(record, sum(len(value) for _, _, value in lines))
        if outcome is not None:
            self._keep(record, outcome)
        return record

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        """Forget the task if it is still at version `expected`."""
        current = self._records.get(task_id)
        if current is None or current.version != expected:
            raise VersionConflict(task_id, expected, current)
        self._forget(task_id, now)

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`."""
        lines = self._journals.get(task_id, [])[after:]

        def decode() -> Sequence[JournalEntry]:
            return [
                self._codec.decode_entry(task_id, kind, key, value, number=number)
                for number, (kind, key, value) in enumerate(lines, after + 1)
            ]

        return await in_thread_if(sum(len(value) for _, _, value in lines) > LARGE, decode)

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
        index, after = listing(namespace, whose), _after(cursor)
        places = self._order.before(index, after or None) if newest_first else self._order.after(index, after)
        records = (self._records[task_id] for _, task_id in places)
        wanted = (
            record for record in records if (status is None or record.status is status) and not is_expired(record, now)
        )
        found = list(islice(wanted, limit + 1))
        standing = [created_place(record) for record in found]
        return Page(records=found[:limit], cursor=_cursor(standing, limit))

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks of the namespace."""
        return self._tally.usage(namespace, whose)

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Queued tasks that are not handed out: of the highest priority first, and owners by turns."""
        waiting = Waiting(self._order, self._records, namespace)
        chosen = Choice(waiting, waiting.room(share), queues, limit).make(namespace, self._turns)
        for ready in chosen if mark else ():
            self._mark(ready.id, handed=True)
        return chosen

    async def hand_back(self, task_id: str) -> None:
        """The task waits for `hand_out` again, if it is queued."""
        if task_id in self._waits:
            self._mark(task_id, handed=False)

    async def backlog(self, namespace: str, now: datetime) -> dict[str, Backlog]:
        """What waits in each queue of the namespace that has something waiting."""
        return backlog_of(self._order, namespace, now)

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        group = ("queued", namespace) if handed_out is None else ("queued", namespace, handed_out)
        return _page(self._order.after(group, _after(cursor)), limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""
        instant = to_micros(now)
        parked = self._order.after(("parked", namespace), _after(cursor))
        return _page(takewhile(lambda place: place[0] <= instant, parked), limit)

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return _page(self._order.after(("claimed", worker), _after(cursor)), limit)

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Forget tasks whose time after the end is over, longest overdue first."""
        instant = to_micros(now)
        overdue = takewhile(lambda place: place[0] <= instant, self._order.after("expiring"))
        found = [self._records[task_id] for _, _, task_id in islice(overdue, limit)]
        for record in found:
            self._forget(record.id)
        self._spent.forget(instant)
        return [Forgotten(record.id, record.version, record if records else None) for record in found]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        return {task_id: self._records[task_id].version for task_id in task_ids if task_id in self._records}

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        """Renew the lease of `worker`."""
        before = self._beats.get(worker, ("", 0))[1]
        self._beats[worker] = namespace, max(before, before + 1 if beats is None else beats)

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten."""
        beating = [worker for worker, (beats_for, _) in self._beats.items() if beats_for == namespace]
        having = self._order.heads(("working", namespace))
        return {worker: self._beats.get(worker, ("", 0))[1] for worker in (*beating, *having)}

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`."""
        self._beats.pop(worker, None)

    async def note(self, namespace: str, name: str) -> bytes | None:
        """The note of this name that the server has, or None."""
        data = self._notes.get((namespace, name))
        return None if data is None else self._codec.decode_note(namespace, name, data)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected`."""
        encoded = self._codec.encode_note(namespace, name, value)
        found = await self.note(namespace, name)
        if found != expected:
            return found == value
        self._notes[namespace, name] = encoded
        return True

    def notifier(self) -> LocalNotifier:
        """Hints within this process; there is no other that could share this store."""
        return self._notifier

    def _check_limits(self, record: TaskRecord, limits: WorkLimits) -> None:
        by = {
            "tool": (limits.tool, ("in hand of tool", record.namespace, tool_of(record))),
            "owner": (limits.owner, ("at work of owner", record.namespace, owner_of(record))),
        }
        marks = ("at work",) if is_resuming(self._records[record.id]) else ("at work", "resuming")
        for what, (limit, group) in by.items():
            others = sum(
                self._order.count(group, (mark,)) - self._order.count(group, (mark, record.id)) for mark in marks
            )
            if limit is not None and others >= limit:
                raise LimitReached(record.id, what)

    def _open_parent(self, record: TaskRecord) -> str:
        """The id of the task's parent if that has not ended, and is there."""
        parent = self._records.get(record.parent or "")
        return "" if parent is None or parent.is_final else parent.id

    def _put(self, record: TaskRecord) -> None:
        if record.is_final:
            self._children.pop(record.id, None)
        self._move(record.id, record, wait_of(record, self._waits.get(record.id)))

    def _mark(self, task_id: str, *, handed: bool) -> None:
        self._move(task_id, self._records[task_id], replace(self._waits[task_id], handed=handed))

    def _keep(self, record: TaskRecord, outcome: Outcome) -> None:
        before = self._outcomes.get(record.id)
        self._tally.grow(record, size_of(outcome) - (0 if before is None else size_of(before)))
        self._outcomes[record.id] = outcome

    def _is_spent(self, under: Under, standing: TaskRecord | None, now: int) -> bool:
        """Whether a key is taken under which no task stands, or one that has expired."""
        if standing is None:
            return self._spent.is_spent(under, now)
        _, outlives = self._key_of[standing.id]
        return outlives is not None and _until(standing, outlives) > now

    def _forget(self, task_id: str, now: datetime | None = None) -> None:
        record = self._records[task_id]
        self._children.pop(task_id, None)
        self._move(task_id, None, None)
        del self._requests[task_id], self._journals[task_id]
        self._outcomes.pop(task_id, None)
        under, outlives = self._key_of.get(task_id, (None, None))
        self._free_key(task_id)
        if under is not None and outlives is not None:
            self._spent.spend(under, _until(record, outlives, now))

    def _move(self, task_id: str, record: TaskRecord | None, wait: Wait | None) -> None:
        """Have the task where it belongs now: nowhere, if there is no record of it any more."""
        earlier = self._records.pop(task_id, None)
        self._tally.move(earlier, record)
        before = set(() if earlier is None else places(earlier, self._waits.pop(task_id, None)))
        now = set(() if record is None else places(record, wait))
        for group, place in before - now:
            self._order.remove(group, place)
        for group, place in now - before:
            self._order.add(group, place)
        if record is not None:
            self._records[task_id] = record
        if wait is not None:
            self._waits[task_id] = wait

    def _free_key(self, task_id: str) -> None:
        if (taken := self._key_of.pop(task_id, None)) is not None:
            self._keys.pop(taken[0], None)


def _until(record: TaskRecord, outlives: timedelta, now: datetime | None = None) -> int:
    """Until when the key of a task is taken that is gone since `now`, or else expired."""
    gone = to_micros(now) if now is not None else expiry(record)
    return (sort_key(record) if gone is None else gone) + outlives // MICROSECOND


def _after(cursor: str | None) -> Place:
    return () if cursor is None else decode_cursor(cursor)


def _cursor(places: Sequence[Place], limit: int) -> str | None:
    """Where the next page starts, if there is a place that is not on this one."""
    return encode_cursor(places[limit - 1][0], places[limit - 1][1]) if len(places) > limit > 0 else None


def _page(places: Iterator[Place], limit: int) -> IdPage:
    found = list(islice(places, limit + 1))
    return IdPage(ids=[task_id for _, task_id in found[:limit]], cursor=_cursor(found, limit))
