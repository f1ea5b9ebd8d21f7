"""Operations on a store as values, and whether some order of them explains what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from mcp_tasks.core import JournalEntry, TaskRecord
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.strategies import HOLDERS


@dataclass(frozen=True)
class Create:
    record: TaskRecord

    @property
    def subject(self) -> str:
        return f"task {self.record.id}"

    async def run(self, store: Store) -> object:
        return await store.create(self.record)


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
    entries: Sequence[JournalEntry]

    @property
    def subject(self) -> str:
        return f"task {self.record.id}"

    async def run(self, store: Store) -> object:
        return await store.save(self.record, expected=self.expected, entries=self.entries)


@dataclass(frozen=True)
class Delete:
    task_id: str
    expected: int

    @property
    def subject(self) -> str:
        return f"task {self.task_id}"

    async def run(self, store: Store) -> object:
        return await store.delete(self.task_id, expected=self.expected)


@dataclass(frozen=True)
class Beat:
    worker: str

    @property
    def subject(self) -> str:
        return f"worker {self.worker}"

    async def run(self, store: Store) -> object:
        return await store.heartbeat(self.worker, namespace=HOLDERS[self.worker])


@dataclass(frozen=True)
class Retire:
    worker: str

    @property
    def subject(self) -> str:
        return f"worker {self.worker}"

    async def run(self, store: Store) -> object:
        return await store.retire(self.worker)


Operation: TypeAlias = Create | Get | Save | Delete | Beat | Retire
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


async def follow(oracle: MemoryStore, done: Sequence[Done], stores: Sequence[Store]) -> None:
    """Bring the reference to where the stores are, by an order that explains all outcomes.

    Raises:
        AssertionError: There is no such order.
    """
    # Operations on different tasks (or workers) do not see each other, so each subject has its own order.
    for subject in dict.fromkeys(operation.subject for operation, _ in done):
        mine = [pair for pair in done if pair[0].subject == subject]
        for order in permutations(mine):
            if await _explains(order, oracle, stores):
                break
        else:
            raise AssertionError(f"no order explains what happened to {subject}: {mine}")
        for operation, _ in order:
            await perform(operation, oracle)


async def _explains(order: Sequence[Done], oracle: MemoryStore, stores: Sequence[Store]) -> bool:
    kind, name = order[0][0].subject.split(" ", 1)
    scratch = MemoryStore()
    await _copy(oracle, scratch, kind, name)
    for operation, outcome in order:
        if await perform(operation, scratch) != outcome:
            return False
    end = await _reading(scratch, kind, name)
    return all([await _reading(store, kind, name) == end for store in stores])


async def _copy(source: Store, target: Store, kind: str, name: str) -> None:
    if kind == "worker":
        for _ in range(await _beats(source, name)):
            await target.heartbeat(name, namespace=HOLDERS[name])
    elif record := await source.get(name):
        await target.create(record)
        await target.save(record, expected=record.version, entries=await source.journal(name))


async def _reading(store: Store, kind: str, name: str) -> object:
    if kind == "worker":
        return await _beats(store, name)
    return await store.get(name), list(await store.journal(name))


async def _beats(store: Store, worker: str) -> int:
    # A worker that is known only by its tasks did not beat, and neither did one that is not known.
    return (await store.workers(HOLDERS[worker])).get(worker, 0)
