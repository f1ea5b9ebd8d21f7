"""What the state machine of stores does next: operations that are drawn before the state they will meet is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol, TypeAlias

from hypothesis import strategies as st

from mcp_tasks.core import JournalEntry, Outcome, TaskRecord, TaskRequest, apply
from mcp_tasks.core.events import RunPaused, RunResumed, RunResumeRequested, RunStarted
from mcp_tasks.core.json_bytes import encode_json
from mcp_tasks.errors import TransitionRefused
from mcp_tasks.stores.shares import Share, WorkLimits
from mcp_tasks.testing.clock import FakeClock
from mcp_tasks.testing.records import make_record
from mcp_tasks.testing.store_operations import (
    NOTED,
    PLENTY,
    Beat,
    Create,
    Delete,
    Get,
    HandBack,
    HandOut,
    Operation,
    Retire,
    Save,
    SetNote,
)
from mcp_tasks.testing.strategies import NAMESPACES, WORKERS, Chance, chances


class World(Protocol):
    """What a plan may ask when it becomes an operation."""

    clock: FakeClock
    lives: int

    def new_id(self, number: int) -> str:
        """A fresh id, or now and then one that was used before."""
        ...

    def record(self, number: int) -> TaskRecord:
        """A task as it is now, or a record that no store can have."""
        ...


Plan: TypeAlias = Callable[[World], Operation]
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
    rarely = [_reads(), _stale_saves(), _joins(), _deletions(), _hand_backs(), _beats(), _retirements(), _notes()]
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
    def make(
        number: int,
        owner: str | None,
        namespace: str,
        request: TaskRequest,
        age: int,
        retention: int | None,
        key: str | None,
        announced: bool,
        session: str | None,
        parent: str | None,
        key_until_end: bool,
        place: tuple[str, str, int, str | None],
        share: Share | None,
        outlives: int | None,
    ) -> Plan:
        name, queue, priority, worker = place

        def plan(machine: World) -> Operation:
            machine.lives += 1
            its_parent = parent if families or key is None else None
            if its_parent is not None and families and number % 2:
                its_parent = machine.record(number).id
            return Create(
                make_record(
                    id=machine.new_id(number),
                    owner=owner,
                    namespace=namespace,
                    created_at=machine.clock() - timedelta(seconds=age),
                    retention=None if retention is None else timedelta(seconds=retention),
                    announced=announced,
                    session=session,
                    parent=its_parent,
                    version=machine.lives * MANY,
                    name=name,
                    queue=queue,
                    priority=priority,
                    worker=worker,
                    attempt=int(worker is not None),
                ),
                request,
                key,
                key_until_end,
                share,
                None if outlives is None else timedelta(seconds=outlives),
            )

        return plan

    # Some are met more often than others, so that shares and limits are used up.
    owners = st.sampled_from([None, "alice", "alice", "bob"])
    calls = st.sampled_from([TaskRequest(name="render", arguments={"n": n}) for n in (1, "☃", None)])
    namespaces, retentions = st.sampled_from(servers), st.sampled_from([None, 0, 60])
    # Few keys, so that they meet, also across owners and servers.
    keys = st.sampled_from([None, None, "key", "☃"])
    sessions, parents = st.sampled_from([None, "session"]), st.sampled_from([None, "parent"])
    ages, flags = st.integers(0, 1), st.booleans()
    # Some are begun as they are made, as where there is a slot for them.
    names, priorities, begun = ["render", "render", "other"], [0, 0, 7, -7], [None, None, *list(WORKERS)[:1]]
    places = st.tuples(*(st.sampled_from(values) for values in (names, QUEUES, priorities, begun)))
    joined = (keys, flags, sessions, parents, flags)
    return st.builds(
        make,
        _numbers,
        owners,
        namespaces,
        calls,
        ages,
        retentions,
        *joined,
        places,
        st.sampled_from(shares),
        st.sampled_from([None, None, 0, 60]),
    )


def _events() -> st.SearchStrategy[Plan]:
    def make(number: int, chance: Chance) -> Plan:
        def plan(machine: World) -> Operation:
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
        def plan(machine: World) -> Operation:
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
        def plan(machine: World) -> Operation:
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
        def plan(machine: World) -> Operation:
            record = machine.record(number)
            return Save(replace(record, version=record.version + 1, session="session"), record.version)

        return plan

    return st.builds(make, _numbers)


def _stale_saves() -> st.SearchStrategy[Plan]:
    def make(number: int, off_by: int) -> Plan:
        entry = JournalEntry(kind="step", key="never", value=None)

        def plan(machine: World) -> Operation:
            record = machine.record(number)
            return Save(replace(record, version=record.version + 1), record.version + off_by, (entry,))

        return plan

    return st.builds(make, _numbers, st.sampled_from([-1, 2]))


def _deletions() -> st.SearchStrategy[Plan]:
    def make(number: int, off_by: int, says_when: bool) -> Plan:
        def plan(machine: World) -> Operation:
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


def _beats() -> st.SearchStrategy[Plan]:
    return st.sampled_from(list(WORKERS)).map(lambda worker: lambda machine: Beat(worker))


def _retirements() -> st.SearchStrategy[Plan]:
    return st.sampled_from(list(WORKERS)).map(lambda worker: lambda machine: Retire(worker))


def _notes() -> st.SearchStrategy[Plan]:
    def make(name: str, value: bytes, expected: bytes | None) -> Plan:
        return lambda machine: SetNote(name, value, expected)

    # Few, so that what is expected is there now and then.
    values = st.sampled_from([b"", b"\0"])
    return st.builds(make, st.sampled_from(NOTES), values, st.none() | values)
