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
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import permutations
from typing import Any, TypeAlias

import anyio.lowlevel
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcp_tasks.errors import KeySpent, LimitReached, TaskExists, TransitionRefused, VersionConflict
from mcp_tasks.model import JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.machine import RunPaused, RunResumed, RunResumeRequested, RunStarted, apply
from mcp_tasks.model.record import ALWAYS
from mcp_tasks.stores.base import (
    EVERYBODY,
    UNOWNED,
    ChildrenOf,
    Handing,
    IdPage,
    InSession,
    OwnedBy,
    Page,
    Share,
    Store,
    Whose,
    WorkLimits,
)
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.clock import FakeClock
from mcp_tasks.testing.records import make_record
from tests.contracts.strategies import MOMENTS, NAMESPACES, WORKERS, Chance, chances

__all__ = ["StoreMachine", "store_machine"]

# ---- operations

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

    async def run(self, store: Store) -> object:
        return await store.get(self.task_id)


@dataclass(frozen=True)
class Save:
    record: TaskRecord
    expected: int
    entries: Sequence[JournalEntry] = ()
    outcome: Outcome | None = None
    limits: WorkLimits | None = None

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

    async def run(self, store: Store) -> object:
        return await store.delete(self.task_id, expected=self.expected, now=self.now)


@dataclass(frozen=True)
class HandOut:
    namespace: str
    share: Share
    queues: Sequence[str] | None
    mark: bool

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

    async def run(self, store: Store) -> object:
        return await store.hand_back(self.task_id)


@dataclass(frozen=True)
class Beat:
    worker: str
    beats: int

    async def run(self, store: Store) -> object:
        return await store.heartbeat(self.worker, namespace=WORKERS[self.worker], beats=self.beats)


@dataclass(frozen=True)
class Retire:
    worker: str

    async def run(self, store: Store) -> object:
        return await store.retire(self.worker)


@dataclass(frozen=True)
class SetNote:
    name: str
    value: bytes
    expected: bytes | None

    async def run(self, store: Store) -> object:
        return await store.set_note(NOTED, self.name, self.value, expected=self.expected)


Operation: TypeAlias = Create | Get | Save | Delete | HandOut | HandBack | Beat | Retire | SetNote


def subject_of(operation: Operation) -> str:
    """The task, worker or note that an operation is about."""
    match operation:
        case Create() | Save():
            return f"task {operation.record.id}"
        case Get() | Delete() | HandBack():
            return f"task {operation.task_id}"
        case Beat() | Retire():
            return f"worker {operation.worker}"
        case HandOut():
            return f"tasks of {operation.namespace}"
        case SetNote():
            return f"note {operation.name}"


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
        self._spent, self._spent_until = dict(other._spent), [*other._spent_until]
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
        subjects = list(dict.fromkeys([subject_of(operation) for operation in operations] + under_keys))
        # A claim within limits sees whatever is at work.
        limited = any(isinstance(operation, Save) and operation.limits is not None for operation in operations)
        others = [f"task {task_id}" for task_id in self.known] if limited else []
        for subject in dict.fromkeys(subjects + others):
            kind, name = subject.split(" ", 1)
            if kind == "note":
                if (note := await self.store.note(NOTED, name)) is not None:
                    await scratch.set_note(NOTED, name, note, expected=None)
            elif kind == "worker":
                if beats := await _beats(self.store, name):
                    await scratch.heartbeat(name, namespace=WORKERS[name], beats=beats)
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
        subject = subject_of(pair[0])
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


# ---- plans

Plan: TypeAlias = Callable[["StoreMachine"], Operation]
"""An operation that is drawn before the state it will meet is known (see `Chance`)."""

MANY = 1_000
"""Versions of one life of a task. Each creation starts its own thousand, so that a save of an earlier life of
the same id cannot hit a version of a later one: in the package ids are never used again."""


NOTES = ("note", "☃")
"""The names of notes."""

QUEUES = ("default", "☃")
"""Few, so that tasks meet in them."""


SHARES = (Share(owner=1), Share(owner=3, tools={"render": 2}), Share(owner=9, owner_at_work=2))
"""Small, so that they are used up."""


def issues(*, at_once: bool = False) -> st.SearchStrategy[tuple[Plan, int, int]]:
    """A plan, the store it is for, and its delay.

    Args:
        at_once: Only plans of which some order explains what comes of many at once: who creates or hands out within a
            share may go a little beyond it then, or stay below.
    """
    # What happens most is drawn most. Each is made anew, because `one_of` drops what it has already.
    shares = (None, None, PLENTY) if at_once else (None, None, None, *SHARES)
    often = (
        [_events() for _ in range(8)]
        + [_creations(shares, families=not at_once) for _ in range(2)]
        + [_claims() for _ in range(2)]
    )
    rarely = [_reads(), _stale_saves(), _joins(), _deletions(), _hand_backs(), _beat_plans(), _retirements(), _notes()]
    in_turn = [] if at_once else [_hand_outs(), _hand_outs()]
    return st.tuples(st.one_of(*often, *rarely, *in_turn), st.integers(0, 3), st.integers(0, 3))


def crowds() -> st.SearchStrategy[Sequence[tuple[Plan, int, int]]]:
    """Plans that meet: tasks of one server are made, handed out within a share, claimed within limits, and wait."""
    numbers = st.integers(0, 3)

    def some(plans: st.SearchStrategy[Plan], most: int) -> st.SearchStrategy[list[tuple[Plan, int, int]]]:
        return st.lists(st.tuples(plans, numbers, numbers), min_size=min(most, 3), max_size=most)

    parts = (
        some(_creations((None, *SHARES), servers=(NOTED,), families=True), 5),
        some(_hand_outs((NOTED,)), 1),
        some(_claims(), 5),
        some(_pauses(), 3),
        some(_claims(), 3),
        some(_hand_outs((NOTED,)), 1),
    )
    return st.tuples(*parts).map(lambda plans: [plan for part in plans for plan in part])


_numbers = st.integers(0, 9)


def _creations(
    shares: Sequence[Share | None], servers: Sequence[str] = (*NAMESPACES, NOTED), *, families: bool = False
) -> st.SearchStrategy[Plan]:
    def make(drawn: dict[str, Any]) -> Plan:
        number: int = drawn.pop("number")
        key, until_end, share, outlives, age, parent, retention = (drawn.pop(name) for name in apart)

        def plan(machine: StoreMachine) -> Operation:
            machine.lives += 1
            its_parent = parent if families or key is None else None
            if its_parent is not None and families and number % 2:
                its_parent = machine.record(number).id
            record = make_record(
                id=machine.new_id(number),
                created_at=machine.clock() - timedelta(seconds=age),
                retention=None if retention is None else timedelta(seconds=retention),
                parent=its_parent,
                version=machine.lives * MANY,
                attempt=int(drawn["worker"] is not None),
                **{name: value for name, value in drawn.items() if name != "request"},
            )
            outlived = None if outlives is None else timedelta(seconds=outlives)
            return Create(record, drawn["request"], key, until_end, share, outlived)

        return plan

    apart = ("key", "until_end", "share", "outlives", "age", "parent", "retention")
    # Some are met more often than others, so that shares and limits are used up. Keys are few, so that they meet, also
    # across owners and servers. Some tasks are begun as they are made, as where there is a slot for them.
    values: dict[str, Sequence[Any]] = {
        "number": range(10),
        "owner": [None, "alice", "alice", "bob"],
        "namespace": servers,
        "request": [TaskRequest(name="render", arguments={"n": n}) for n in (1, "☃", None)],
        "age": [0, 1],
        "retention": [None, 0, 60],
        "key": [None, None, "key", "☃"],
        "announced": [False, True],
        "session": [None, "session"],
        "parent": [None, "parent"],
        "until_end": [False, True],
        "name": ["render", "render", "other"],
        "queue": QUEUES,
        "priority": [0, 0, 7, -7],
        "worker": [None, None, *list(WORKERS)[:1]],
        "share": shares,
        "outlives": [None, None, 0, 60],
    }
    return st.fixed_dictionaries({name: st.sampled_from(some) for name, some in values.items()}).map(make)


def _events() -> st.SearchStrategy[Plan]:
    def make(number: int, chance: Chance) -> Plan:
        def plan(machine: StoreMachine) -> Operation:
            record, now = machine.record(number), machine.clock()
            event, entries = chance.for_record(record, now)
            try:
                changed = apply(record, event, now)
            except TransitionRefused:
                changed = record
            if changed is record:
                return Get(record.id)
            return Save(changed, record.version, tuple(entries), _outcome(chance) if changed.is_final else None)

        return plan

    return st.builds(make, _numbers, chances())


def _claims() -> st.SearchStrategy[Plan]:
    def make(number: int, worker: str, limits: WorkLimits) -> Plan:
        def plan(machine: StoreMachine) -> Operation:
            record, now = machine.record(number), machine.clock()
            if record.pause is not None and not record.is_final:
                return Save(apply(record, RunResumed(attempt=record.attempt), now), record.version, limits=limits)
            if not record.is_queued(now):
                return Get(record.id)
            return Save(apply(record, RunStarted(worker=worker), now), record.version, limits=limits)

        return plan

    limits = st.sampled_from([WorkLimits(tool=1), WorkLimits(owner=1), WorkLimits(tool=3, owner=2)])
    return st.builds(make, _numbers, st.sampled_from(list(WORKERS)), limits)


def _pauses() -> st.SearchStrategy[Plan]:
    """A run gives up its place, or wants it back."""

    def make(number: int, resumes: bool) -> Plan:
        def plan(machine: StoreMachine) -> Operation:
            record, now = machine.record(number), machine.clock()
            if record.worker is None or record.is_final:
                return Get(record.id)
            paused = apply(record, RunPaused(attempt=record.attempt), now)
            changed = apply(paused, RunResumeRequested(attempt=record.attempt), now) if resumes else paused
            return Get(record.id) if changed is record else Save(changed, record.version)

        return plan

    return st.builds(make, _numbers, st.booleans())


def _outcome(chance: Chance) -> Outcome | None:
    """What the task came to: nothing, a value, or a value with something beside it."""
    data = encode_json(chance.value)
    return [None, Outcome(body=data), Outcome(body=b"{}", meta=data)][chance.choice % 3]


def _joins() -> st.SearchStrategy[Plan]:
    """A task joins a session: what it waits for stays as it is."""

    def make(number: int) -> Plan:
        def plan(machine: StoreMachine) -> Operation:
            record = machine.record(number)
            return Save(replace(record, version=record.version + 1, session="session"), record.version)

        return plan

    return st.builds(make, _numbers)


def _stale_saves() -> st.SearchStrategy[Plan]:
    def make(number: int, off_by: int) -> Plan:
        entry = JournalEntry(kind="step", key="never", value=None)

        def plan(machine: StoreMachine) -> Operation:
            record = machine.record(number)
            return Save(replace(record, version=record.version + 1), record.version + off_by, (entry,))

        return plan

    return st.builds(make, _numbers, st.sampled_from([-1, 2]))


def _deletions() -> st.SearchStrategy[Plan]:
    def make(number: int, off_by: int, says_when: bool) -> Plan:
        def plan(machine: StoreMachine) -> Operation:
            record = machine.record(number)
            return Delete(record.id, record.version + off_by, machine.clock() if says_when else None)

        return plan

    return st.builds(make, _numbers, st.sampled_from([0, 0, 1]), st.booleans())


def _hand_outs(servers: Sequence[str] = NAMESPACES) -> st.SearchStrategy[Plan]:
    def make(namespace: str, share: Share, queues: Sequence[str] | None, mark: bool) -> Plan:
        return lambda machine: HandOut(namespace, share, queues, mark)

    # Without shares of tools: whose task has the last place, would be the store's to choose.
    shares = st.sampled_from([share for share in (PLENTY, *SHARES) if not share.tools])
    queues = st.sampled_from([None, None, QUEUES[:1], QUEUES])
    return st.builds(make, st.sampled_from(servers), shares, queues, st.booleans())


def _hand_backs() -> st.SearchStrategy[Plan]:
    return _numbers.map(lambda number: lambda machine: HandBack(machine.record(number).id))


def _reads() -> st.SearchStrategy[Plan]:
    return _numbers.map(lambda number: lambda machine: Get(machine.record(number).id))


def _beat_plans() -> st.SearchStrategy[Plan]:
    return st.builds(Beat, st.sampled_from(list(WORKERS)), st.integers(1, 9)).map(lambda beat: lambda machine: beat)


def _retirements() -> st.SearchStrategy[Plan]:
    return st.sampled_from(list(WORKERS)).map(lambda worker: lambda machine: Retire(worker))


def _notes() -> st.SearchStrategy[Plan]:
    def make(name: str, value: bytes, expected: bytes | None) -> Plan:
        return lambda machine: SetNote(name, value, expected)

    # Few, so that what is expected is there now and then.
    values = st.sampled_from([b"", b"\0"])
    return st.builds(make, st.sampled_from(NOTES), values, st.none() | values)


Factory: TypeAlias = Callable[[], AbstractContextManager[Sequence[Store]]]
"""Gives one or more stores, not yet open, that share one empty place."""

_OWNERS: Sequence[Whose] = (EVERYBODY, UNOWNED, OwnedBy("alice"), InSession("session"), ChildrenOf("parent"))


class StoreMachine(RuleBasedStateMachine):
    """The rules. Use `store_machine`, which says where the stores come from."""

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
                readings[f"usage {namespace} {whose}"] = await store.usage(namespace, whose)
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


def store_machine(factory: Factory) -> type[StoreMachine]:
    """A state machine for the stores that `factory` gives; its `TestCase` runs under unittest and pytest."""

    class Machine(StoreMachine):
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
