"""Any store against the reference store, under random sequences and random interleavings.

Each step issues some operations at the same time, on one or several stores that share a place. Nobody can say
in which order they take effect, so the check is that *some* order explains all of it: for each task there
must be an order in which the reference store gives every operation the outcome that it had, and ends where
the store ended. Of several saves of one version exactly one can win in any order, so exactly one may. After
each step all readings of all stores must equal those of the reference.

    TestMyStore = store_machine(fresh_stores).TestCase

where `fresh_stores()` is a context manager that gives stores, not yet open, on one empty place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcp_tasks.core import TaskRecord, TaskStatus
from mcp_tasks.core.pacing import expires_at
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, ChildrenOf, IdPage, InSession, OwnedBy, Page, Store, Whose
from mcp_tasks.testing.clock import FakeClock
from mcp_tasks.testing.records import make_record
from mcp_tasks.testing.store_operations import (
    Issue,
    Reference,
    perform,
    perform_at_once,
    reading,
)
from mcp_tasks.testing.store_plans import MANY, NOTES, Plan, crowds, issues
from mcp_tasks.testing.strategies import MOMENTS, NAMESPACES, WORKERS

Factory: TypeAlias = Callable[[], AbstractContextManager[Sequence[Store]]]
"""Gives one or more stores, not yet open, that share one empty place."""

_OWNERS: Sequence[Whose] = (EVERYBODY, UNOWNED, OwnedBy("alice"), InSession("session"), ChildrenOf("parent"))


class StoreMachine(RuleBasedStateMachine):
    """The rules. Use `store_machine`, which says where the stores come from."""

    same_bytes: ClassVar[bool] = True

    def new_place(self) -> AbstractContextManager[Sequence[Store]]:
        """Stores, not yet open, on one empty place."""
        raise NotImplementedError("use `store_machine(factory)`")

    def __init__(self) -> None:
        super().__init__()
        self.clock: FakeClock = FakeClock()
        self.reference: Reference = Reference()
        self.oracle: Store = self.reference.store
        self.lives: int = 0
        self.known: list[str] = []
        self.runner: asyncio.Runner = asyncio.Runner()
        self.place: AbstractContextManager[Sequence[Store]] = self.new_place()
        self.stores: Sequence[Store] = self.place.__enter__()
        self.in_all("open")

    def teardown(self) -> None:
        """Close everything, whatever happened."""
        self.in_all("close")
        self.runner.close()
        self.place.__exit__(None, None, None)

    def in_all(self, verb: str) -> None:
        """Call `open` or `close` on each store."""
        for store in self.stores:
            self.runner.run(getattr(store, verb)())

    @rule(plans=st.lists(issues(), min_size=1, max_size=12), seconds=st.sampled_from(MOMENTS))
    def operations_one_after_another(self, plans: Sequence[tuple[Plan, int, int]], seconds: int) -> None:
        """Each operation knows what came of the one before; its outcome must be that of the reference."""
        self._perform_in_turn(plans)
        self.clock.advance(timedelta(seconds=seconds))

    @rule(plans=crowds())
    def a_crowd_in_one_server(self, plans: Sequence[tuple[Plan, int, int]]) -> None:
        """So many tasks that shares and limits are used up; in any other rule they rarely are."""
        self._perform_in_turn(plans)

    @rule(plans=st.lists(issues(at_once=True), min_size=2, max_size=6))
    def operations_at_the_same_time(self, plans: Sequence[tuple[Plan, int, int]]) -> None:
        """Issue operations that all know the same state, and find an order that explains the outcomes."""
        issued = [
            Issue(operation=plan(self), store=self.stores[place % len(self.stores)], delay=delay)
            for plan, place, delay in plans
        ]
        done = self.runner.run(perform_at_once(issued))
        self.runner.run(self.reference.follow(done, self.stores))

    @rule()
    def the_next_timer_runs_out(self) -> None:
        """Go to the very moment at which a task wakes up or expires."""
        moments = [moment for record in self.records() for moment in (record.wake_at, expires_at(record))]
        coming = [moment for moment in moments if moment is not None and moment > self.clock()]
        if coming:
            self.clock.advance(min(coming) - self.clock())

    @rule(place=st.integers(0, 3), limit=st.sampled_from([1, 2, 100]))
    def what_has_expired_is_forgotten(self, place: int, limit: int) -> None:
        """In one store; the same tasks as in the reference, and in the same order."""
        now, store = self.clock(), self.stores[place % len(self.stores)]
        forgotten = list(self.runner.run(store.forget_expired(now, limit=limit, records=True)))
        assert forgotten == list(self.runner.run(self.oracle.forget_expired(now, limit=limit, records=True)))

    @rule()
    def all_is_closed_and_opened_again(self) -> None:
        """Start again in another event loop; nothing may be lost."""
        self.in_all("close")
        self.runner.close()
        self.runner = asyncio.Runner()
        self.in_all("open")

    @invariant()
    def all_stores_read_like_the_reference(self) -> None:
        """Compare everything that can be read."""
        expected = self.runner.run(self._readings(self.oracle))
        for store in self.stores:
            assert self.runner.run(self._readings(store)) == expected

    def _perform_in_turn(self, plans: Sequence[tuple[Plan, int, int]]) -> None:
        for plan, place, _ in plans:
            operation, store = plan(self), self.stores[place % len(self.stores)]
            assert self.runner.run(perform(operation, store)) == self.runner.run(self.reference.perform(operation))

    def new_id(self, number: int) -> str:
        """A fresh id, or now and then one that was used before, its task still there or not."""
        # The number comes first, so that the order of ids is not that of creation.
        fresh = f"{number}-{len(self.known)}"
        task_id = self.known[number % len(self.known)] if self.known and number >= 9 else fresh
        if task_id not in self.known:
            self.known.append(task_id)
        return task_id

    def record(self, number: int) -> TaskRecord:
        """A task as it is now, most often one that still runs; if it is gone, a record no store can have."""
        running = [record.id for record in self.records() if not record.is_final]
        choice = running if running and number < 8 else self.known or ["none yet"]
        task_id = choice[number % len(choice)]
        return self.runner.run(self.oracle.get(task_id)) or make_record(id=task_id, version=MANY - 1)

    def records(self) -> list[TaskRecord]:
        """All tasks as they are now, those of each namespace in the order of their creation."""
        found = [self.runner.run(self.oracle.get(task_id)) for task_id in sorted(self.known)]
        return [record for record in found if record is not None]

    async def _readings(self, store: Store) -> Mapping[str, Any]:
        now = self.clock()
        readings: dict[str, Any] = {"versions": await store.versions([*self.known, "never there"])}
        for task_id in self.known:
            readings[f"task {task_id}"] = await reading(store, f"task {task_id}")
        for name in NOTES:
            readings[f"note {name}"] = await reading(store, f"note {name}")
        for worker in WORKERS:
            readings[f"claimed by {worker}"] = await _all_ids(partial(store.claimed, worker), limit=3)
        for namespace in NAMESPACES:
            readings[f"workers {namespace}"] = await store.workers(namespace)
            readings[f"queued {namespace}"] = await _all_ids(partial(store.queued, namespace), limit=2)
            for handed in (True, False):
                handed_out = partial(store.queued, namespace, handed_out=handed)
                readings[f"queued {namespace} {handed}"] = await _all_ids(handed_out, limit=2)
            for whose in (EVERYBODY, UNOWNED, OwnedBy("alice"), OwnedBy("bob")):
                usage = await store.usage(namespace, whose)
                # How many bytes something is kept as, may be the store's to choose.
                stored = usage.stored_bytes if self.same_bytes else bool(usage.stored_bytes)
                readings[f"usage {namespace} {whose}"] = usage.open_tasks, stored
            readings[f"backlog {namespace}"] = dict(await store.backlog(namespace, now))
            readings[f"due {namespace}"] = await _all_ids(partial(store.due, namespace, now), limit=2)
            for whose in (*_OWNERS, OwnedBy("bob")):
                listing = partial(store.list, namespace, whose, now=now)
                readings[f"tasks {namespace} {whose}"] = await _list_all(listing, limit=2)
                backwards = partial(listing, newest_first=True)
                readings[f"newest tasks {namespace} {whose}"] = await _list_all(backwards, limit=3)
            # In one status each, of somebody: all statuses of everybody take most of the time, and find nothing more.
            for status, whose in zip(TaskStatus, _OWNERS, strict=True):
                listing = partial(store.list, namespace, whose, now=now, status=status)
                readings[f"tasks {namespace} {whose} {status}"] = await _list_all(listing, limit=3)
        return readings


def store_machine(factory: Factory, *, same_bytes: bool = True) -> type[StoreMachine]:
    """A state machine for the stores that `factory` gives; its `TestCase` runs under unittest and pytest.

    Args:
        same_bytes: Whether a store keeps what it is given in as many bytes as the reference; False for one that
            encrypts or compresses.
    """
    alike = same_bytes

    class Machine(StoreMachine):
        same_bytes = alike

        def new_place(self) -> AbstractContextManager[Sequence[Store]]:
            return factory()

    return Machine


async def _list_all(listing: Callable[..., Awaitable[Page]], *, limit: int) -> list[TaskRecord]:
    page = await listing(limit=limit)
    found = list(page.records)
    while page.cursor is not None:
        page = await listing(limit=limit, cursor=page.cursor)
        found += page.records
    return found


async def _all_ids(sweep: Callable[..., Awaitable[IdPage]], *, limit: int) -> list[str]:
    page = await sweep(limit=limit)
    found = list(page.ids)
    while page.cursor is not None:
        page = await sweep(limit=limit, cursor=page.cursor)
        found += page.ids
    return found
