"""Operations on a store as values, and whether some order of them explains what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from mcp_tasks.core import JournalEntry, Outcome, TaskRecord, TaskRequest
from mcp_tasks.core.record import ALWAYS
from mcp_tasks.errors import KeySpent, LimitReached, TaskExists, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.stores.shares import Handing, Share, WorkLimits
from mcp_tasks.testing.strategies import WORKERS

NOTED = "demo"
"""The server that has notes."""

PLENTY = Share(owner=1_000_000)
"""A share that nobody comes to the end of."""

ENOUGH = 1_000
"""More tasks than there are."""


@dataclass(frozen=True)
class Create:
    record: TaskRecord
    request: TaskRequest
    key: str | None = None
    key_until_end: bool = False
    share: Share | None = None
    key_outlives: timedelta | None = None

    @property
    def subject(self) -> str:
        return f"task {self.record.id}"

    async def run(self, store: Store) -> object:
        handing = None if self.share is None else Handing(share=self.share)
        created = await store.create(
            self.record,
            self.request,
            key=self.key,
            key_until_end=self.key_until_end,
            key_outlives=self.key_outlives,
            handing=handing,
        )
        return created, handing is not None and handing.handed


@dataclass(frozen=True)
class Get:
    task_id: str

    @property
    def subject(self) -> str:
        return f"task {self.task_id}"

    async def run(self, store: Store) -> object:
        return await store.get(self.task_id)


@dataclass(frozen=True)
class Save:
    record: TaskRecord
    expected: int
    entries: Sequence[JournalEntry] = ()
    outcome: Outcome | None = None
    limits: WorkLimits | None = None

    @property
    def subject(self) -> str:
        return f"task {self.record.id}"

    async def run(self, store: Store) -> object:
        try:
            return await store.save(
                self.record, expected=self.expected, entries=self.entries, outcome=self.outcome, limits=self.limits
            )
        except (LimitReached, VersionConflict):
            if self.limits is None:
                raise
            # Which of the two is found first, is the store's to choose.
            return "not claimed"


@dataclass(frozen=True)
class Delete:
    task_id: str
    expected: int
    now: datetime | None = None

    @property
    def subject(self) -> str:
        return f"task {self.task_id}"

    async def run(self, store: Store) -> object:
        return await store.delete(self.task_id, expected=self.expected, now=self.now)


@dataclass(frozen=True)
class HandOut:
    namespace: str
    share: Share
    queues: Sequence[str] | None
    mark: bool

    @property
    def subject(self) -> str:
        return f"tasks of {self.namespace}"

    async def run(self, store: Store) -> object:
        """All that the share allows: with fewer, whose turn it is would be the store's to choose."""
        chosen = await store.hand_out(self.namespace, self.share, queues=self.queues, mark=self.mark, limit=ENOUGH)
        rounds: Counter[tuple[int, str | None]] = Counter()
        turns: list[tuple[int, int]] = []
        for ready in chosen:
            turns.append((-ready.priority, rounds[ready.priority, ready.owner]))
            rounds[ready.priority, ready.owner] += 1
        # By priority, then by rounds. In which order owners come within a round, is the store's to choose.
        assert turns == sorted(turns)
        return sorted(zip(turns, chosen, strict=True), key=lambda turn: (turn[0], turn[1].id))


@dataclass(frozen=True)
class HandBack:
    task_id: str

    @property
    def subject(self) -> str:
        return f"task {self.task_id}"

    async def run(self, store: Store) -> object:
        return await store.hand_back(self.task_id)


@dataclass(frozen=True)
class Beat:
    worker: str

    @property
    def subject(self) -> str:
        return f"worker {self.worker}"

    async def run(self, store: Store) -> object:
        return await store.heartbeat(self.worker, namespace=WORKERS[self.worker])


@dataclass(frozen=True)
class Retire:
    worker: str

    @property
    def subject(self) -> str:
        return f"worker {self.worker}"

    async def run(self, store: Store) -> object:
        return await store.retire(self.worker)


@dataclass(frozen=True)
class SetNote:
    name: str
    value: bytes
    expected: bytes | None

    @property
    def subject(self) -> str:
        return f"note {self.name}"

    async def run(self, store: Store) -> object:
        return await store.set_note(NOTED, self.name, self.value, expected=self.expected)


Operation: TypeAlias = Create | Get | Save | Delete | HandOut | HandBack | Beat | Retire | SetNote
Done: TypeAlias = tuple[Operation, object]
"""An operation and its outcome."""


@dataclass(frozen=True)
class Issue:
    """An operation on its way: to which store, and how many turns of the event loop late."""

    operation: Operation
    store: Store
    delay: int


async def perform(operation: Operation, store: Store) -> object:
    """The outcome as a value that can be compared: what was returned, or what was raised."""
    try:
        return await operation.run(store)
    except TaskExists as exc:
        return "exists", exc.task_id
    except KeySpent as exc:
        return "spent", exc.task_id
    except VersionConflict as exc:
        return "conflict", exc.task_id, exc.expected


async def perform_at_once(issues: Sequence[Issue]) -> list[Done]:
    """Start all at the same time."""
    done: list[Any] = [None] * len(issues)

    async def run(number: int, issue: Issue) -> None:
        for _ in range(issue.delay):
            await anyio.lowlevel.checkpoint()
        done[number] = issue.operation, await perform(issue.operation, issue.store)

    async with anyio.create_task_group() as group:
        for number, issue in enumerate(issues):
            group.start_soon(run, number, issue)
    return done


class Oracle(MemoryStore):
    """The reference store, which can be told of keys that outlived their tasks."""

    def spend_keys_of(self, other: Oracle) -> None:
        """Have the same keys spent as another."""
        self._spent = other._spent.copy()
        self._children = {parent: dict(keys) for parent, keys in other._children.items()}


class Reference:
    """The reference store, and under which key each of its tasks was created."""

    def __init__(self) -> None:
        self.store: Oracle = Oracle()
        self.keys: dict[str, str] = {}
        self.outlives: dict[str, timedelta | None] = {}
        self.known: dict[str, None] = {}

    async def perform(self, operation: Operation) -> object:
        """Do it, and say what came of it."""
        outcome = await perform(operation, self.store)
        if isinstance(operation, Create) and outcome in ((operation.record, False), (operation.record, True)):
            self.known[operation.record.id] = None
            self.keys.pop(operation.record.id, None)
            if operation.key is not None:
                await self._free(operation.key, operation.record)
                self.keys[operation.record.id] = operation.key
                self.outlives[operation.record.id] = operation.key_outlives
        return outcome

    async def _free(self, key: str, record: TaskRecord) -> None:
        """Whoever stood under the key that is the record's now has lost it, or is gone."""
        for task_id in [task_id for task_id, theirs in self.keys.items() if theirs == key]:
            other = await self.store.get(task_id)
            if other is None or (other.owner, other.namespace) == (record.owner, record.namespace):
                del self.keys[task_id]

    async def follow(self, done: Sequence[Done], stores: Sequence[Store]) -> None:
        """Go to where the stores are, by an order that explains all outcomes.

        Raises:
            AssertionError: There is no such order.
        """
        for group in _groups(done):
            for order in permutations(group):
                if await self._explains(order, stores):
                    break
            else:
                raise AssertionError(f"no order explains what happened: {group}")
            for operation, _ in order:
                await self.perform(operation)

    async def _explains(self, order: Sequence[Done], stores: Sequence[Store]) -> bool:
        scratch = Oracle()
        subjects = await self._copy(scratch, [operation for operation, _ in order])
        for operation, outcome in order:
            if await perform(operation, scratch) != outcome:
                return False
        end = [await reading(scratch, subject) for subject in subjects]
        return all([[await reading(store, subject) for subject in subjects] == end for store in stores])

    async def _copy(self, scratch: Oracle, operations: Sequence[Operation]) -> Sequence[str]:
        """Give the scratch store all that the operations can see, and return what that is."""
        keys = {operation.key for operation in operations if isinstance(operation, Create)}
        under_keys = [f"task {task_id}" for task_id, key in self.keys.items() if key in keys]
        subjects = list(dict.fromkeys([operation.subject for operation in operations] + under_keys))
        # A claim within limits sees whatever is at work.
        limited = any(isinstance(operation, Save) and operation.limits is not None for operation in operations)
        others = [f"task {task_id}" for task_id in self.known] if limited else []
        for subject in dict.fromkeys(subjects + others):
            kind, name = subject.split(" ", 1)
            if kind == "note":
                if (note := await self.store.note(NOTED, name)) is not None:
                    await scratch.set_note(NOTED, name, note, expected=None)
            elif kind == "worker":
                for _ in range(await _beats(self.store, name)):
                    await scratch.heartbeat(name, namespace=WORKERS[name])
            elif (record := await self.store.get(name)) and (request := await self.store.request(name)):
                handing = Handing(share=PLENTY) if await _is_handed(self.store, record) else None
                key, outlives = self.keys.get(name), self.outlives.get(name)
                # The key is its own already, also if its parent has ended since.
                await scratch.create(
                    record, request, key=key, key_until_end=True, key_outlives=outlives, handing=handing
                )
                entries, outcome = await self.store.journal(name), await self.store.outcome(name)
                await scratch.save(record, expected=record.version, entries=entries, outcome=outcome)
        scratch.spend_keys_of(self.store)
        return subjects


def _groups(done: Sequence[Done]) -> Sequence[Sequence[Done]]:
    """The operations that may see each other. Those on different things do not, unless a key or a limit joins them."""
    joined = any(
        operation.key is not None if isinstance(operation, Create) else operation.limits is not None
        for operation, _ in done
        if isinstance(operation, Create | Save)
    )
    groups: dict[str, list[Done]] = {}
    for pair in done:
        subject = pair[0].subject
        groups.setdefault("tasks" if joined and subject.startswith("task ") else subject, []).append(pair)
    return list(groups.values())


async def reading(store: Store, subject: str) -> object:
    """All that can be read of one task, worker or note."""
    kind, name = subject.split(" ", 1)
    if kind == "note":
        return await store.note(NOTED, name)
    if kind == "worker":
        return await _beats(store, name)
    journal = await store.journal(name)
    numbers = [entry.number for entry in journal]
    # Which numbers, is the store's to choose.
    assert numbers == sorted(set(numbers))
    assert all(number > 0 for number in numbers)
    entries = [replace(entry, number=0) for entry in journal]
    record = await store.get(name)
    handed = record is not None and await _is_handed(store, record)
    return record, handed, await store.request(name), await store.outcome(name), entries


async def _is_handed(store: Store, record: TaskRecord) -> bool:
    if record.ready_at != ALWAYS:
        return False
    return record.id in (await store.queued(record.namespace, handed_out=True, limit=ENOUGH)).ids


async def _beats(store: Store, worker: str) -> int:
    # A worker that is known only by its tasks did not beat, and neither did one that is not known.
    return (await store.workers(WORKERS[worker])).get(worker, 0)
