"""Store suite: which queued tasks are in the hands of an engine. `create`, `hand_out`, `hand_back`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mcp_tasks.errors import LimitReached, TaskExists, VersionConflict
from mcp_tasks.model.record import ALWAYS, JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.stores.base import (
    EVERYBODY,
    UNOWNED,
    Backlog,
    Handing,
    OwnedBy,
    Owners,
    Ready,
    Share,
    Store,
    Usage,
    WorkLimits,
)
from mcp_tasks.testing._store_listings import swept
from mcp_tasks.testing._store_records import REQUEST, StoreTests, at_once, create_all, race
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request

SECOND = timedelta(seconds=1)

PLENTY = Share(owner=1_000_000)
"""A share that is never used up."""


def task(number: int = 0, **fields: Any) -> TaskRecord:
    """A queued task of the server `demo`, made so many seconds after noon."""
    return make_record(**{"namespace": "demo", "created_at": NOON + SECOND * number, **fields})


async def create_at_once(store: Store, records: Sequence[TaskRecord]) -> None:
    """Create all of them at once."""
    await at_once(*(partial(store.create, record, REQUEST) for record in records))


async def hand_out(store: Store, share: Share = PLENTY, *, limit: int = 100, **how: Any) -> list[str]:
    """The ids that the server `demo` is given."""
    return [ready.id for ready in await store.hand_out("demo", share, limit=limit, **how)]


async def create_handed(store: Store, record: TaskRecord, share: Share = PLENTY) -> bool:
    """Create a task; whether it was handed out."""
    handing = Handing(share=share)
    await store.create(record, REQUEST, handing=handing)
    assert not handing.carried
    return handing.handed


async def claim(store: Store, record: TaskRecord, **fields: Any) -> TaskRecord:
    """Claim a task as it is."""
    changed = {"version": record.version + 1, "worker": "worker", "attempt": record.attempt + 1, "wake_at": None}
    claimed = replace(record, **{**changed, **fields})
    await store.save(claimed, expected=record.version)
    return claimed


async def save(store: Store, record: TaskRecord, **fields: Any) -> TaskRecord:
    """Save a task one version on."""
    changed = replace(record, version=record.version + 1, **fields)
    await store.save(changed, expected=record.version)
    return changed


async def waiting(store: Store) -> list[str]:
    return await swept(partial(store.queued, "demo", handed_out=False))


async def in_hand(store: Store) -> list[str]:
    return await swept(partial(store.queued, "demo", handed_out=True))


class HandingTests(StoreTests):
    async def test_a_task_is_handed_out_as_it_is_made_if_that_is_asked_for(self, store: Store) -> None:
        plain, handed = task(1), task(2)
        await store.create(plain, REQUEST)
        assert await create_handed(store, handed)
        assert (await waiting(store), await in_hand(store)) == ([plain.id], [handed.id])
        assert await swept(partial(store.queued, "demo")) == [plain.id, handed.id]
        assert await store.get(handed.id) == handed

    async def test_only_a_queued_task_is_handed_out_as_it_is_made(self, store: Store) -> None:
        others: Sequence[dict[str, Any]] = (
            {"worker": "worker"},
            {"wake_at": NOON},
            {"status": TaskStatus.INPUT_REQUIRED},
            {"status": TaskStatus.CANCELLED, "finished_at": NOON},
        )
        for fields in others:
            assert not await create_handed(store, task(**fields))
        assert await in_hand(store) == []
        assert await create_handed(store, task(status=TaskStatus.INPUT_REQUIRED, wake_at=ALWAYS))

    async def test_an_owner_has_a_share_of_what_is_handed_out(self, store: Store) -> None:
        share = Share(owner=2)
        handed = [
            await create_handed(store, task(number, owner=owner), share)
            for number, owner in enumerate(
                ["alice", "alice", "alice", "bob", "bob", "alice", "bob", None, "", None, None]
            )
        ]
        # Tasks without an owner count as one owner's.
        assert handed == [True, True, False, True, True, False, False, True, True, True, False]
        # Another server's tasks count for nothing here.
        assert await create_handed(store, task(namespace="another", owner="alice"), share)

    async def test_a_share_has_room_again_when_a_task_is_claimed(self, store: Store) -> None:
        share, first = Share(owner=1), task(1)
        assert await create_handed(store, first, share)
        assert not await create_handed(store, task(2), share)
        await claim(store, first)
        assert await create_handed(store, task(3), share)

    async def test_a_tool_has_a_share_of_what_is_handed_out_or_at_work(self, store: Store) -> None:
        share = Share(owner=100, tools={"render": 2, "none": 0})
        first, second = task(1, owner="alice"), task(2, owner="bob")
        assert await create_handed(store, first, share)
        assert await create_handed(store, second, share)
        assert not await create_handed(store, task(3), share)
        assert await create_handed(store, task(3, name="other"), share)
        assert not await create_handed(store, task(3, name="none"), share)
        claimed = await claim(store, first)
        assert not await create_handed(store, task(4), share)
        # A run that waits for an answer counts as long as a worker has it.
        asking = await save(store, claimed, status=TaskStatus.INPUT_REQUIRED)
        assert not await create_handed(store, task(5), share)
        await save(store, asking, worker=None)
        assert await create_handed(store, task(6), share)
        assert await create_handed(store, task(namespace="another"), share)

    async def test_a_share_is_of_an_owner_a_queue_and_a_tool(self, store: Store) -> None:
        share = Share(owner=1)
        others: Sequence[dict[str, Any]] = (
            {},
            {"queue": "gpu"},
            {"name": "other"},
            {"method": "prompts/get"},
            {"owner": "bob"},
            {"queue": "gpu", "name": "other"},
        )
        for fields in others:
            # A tool that no worker serves holds nothing else back.
            assert await create_handed(store, task(1, **fields), share)
            assert not await create_handed(store, task(2, **fields, priority=7), share)
        assert await hand_out(store, share) == []
        assert len(await waiting(store)) == len(others)

    async def test_a_task_that_is_moved_counts_where_it_is(self, store: Store) -> None:
        share, moving = Share(owner=1), task(1)
        assert await create_handed(store, moving, share)
        moving = await save(store, moving, queue="gpu")
        assert await create_handed(store, task(2), share)
        assert not await create_handed(store, task(3, queue="gpu"), share)
        await store.hand_back(moving.id)
        assert await hand_out(store, share, queues=["gpu"]) == [moving.id]

    async def test_an_owner_with_enough_at_work_is_handed_no_more(self, store: Store) -> None:
        share = Share(owner=100, owner_at_work=2)
        first, second = task(1), task(2, queue="gpu")
        # Dispatched tasks are not at work.
        assert await create_handed(store, first, share)
        assert await create_handed(store, second, share)
        assert await create_handed(store, task(3, name="other"), share)
        claimed = await claim(store, first)
        assert await create_handed(store, task(4), share)
        await claim(store, second)
        last = task(5, name="other")
        assert not await create_handed(store, last, share)
        assert await hand_out(store, share) == []
        assert await create_handed(store, task(6, owner=None), share)
        asking = await save(store, claimed, status=TaskStatus.INPUT_REQUIRED)
        assert not await create_handed(store, task(7, queue="gpu"), share)
        await save(store, asking, status=TaskStatus.COMPLETED, worker=None, finished_at=NOON)
        assert last.id in await hand_out(store, share)
        assert await create_handed(store, task(8), share)

    async def test_what_stands_under_a_key_is_not_handed_out_again(self, store: Store) -> None:
        standing, handing = task(), Handing(share=PLENTY)
        await store.create(standing, REQUEST, key="key")
        assert await store.create(task(), REQUEST, key="key", handing=handing) == standing
        assert (handing.handed, handing.carried) == (False, False)
        assert await in_hand(store) == []
        with pytest.raises(TaskExists):
            await store.create(standing, REQUEST, handing=handing)
        assert not handing.handed

    async def test_a_job_for_another_place_is_not_carried(self, store: Store) -> None:
        job = Statement(place="somewhere else altogether", text="not a statement of any database", values={"id": "x"})
        record, handing = task(), Handing(share=PLENTY, job=job)
        assert await store.create(record, REQUEST, handing=handing) == record
        assert (handing.handed, handing.carried) == (True, False)
        assert await store.get(record.id) == record

    async def test_a_task_that_stays_queued_stays_as_handed_out_as_it_was(self, store: Store) -> None:
        handed, plain = task(1), task(2)
        assert await create_handed(store, handed)
        await store.create(plain, REQUEST)
        for record in (handed, plain):
            await save(store, record, announced=False)
        assert (await in_hand(store), await waiting(store)) == ([handed.id], [plain.id])
        assert await hand_out(store) == [plain.id]

    async def test_a_task_that_is_queued_anew_is_not_handed_out(self, store: Store) -> None:
        release = {"worker": None}
        ways: Sequence[Sequence[dict[str, Any]]] = (
            [{"worker": "worker", "attempt": 1}, release],
            [{"wake_at": NOON}, {"wake_at": None}],
            [{"status": TaskStatus.INPUT_REQUIRED}, {"status": TaskStatus.WORKING}],
            [{"status": TaskStatus.INPUT_REQUIRED}, {"wake_at": ALWAYS}],
        )
        for number, way in enumerate(ways):
            record = task(number)
            assert await create_handed(store, record)
            for fields in way:
                assert record.id not in await waiting(store)
                record = await save(store, record, **fields)
                assert record.id not in await in_hand(store)
            assert await waiting(store) == [record.id]
            assert await hand_out(store) == [record.id]

    async def test_what_is_gone_is_not_handed_out(self, store: Store) -> None:
        deleted, ended, asleep = task(1), task(2), task(3)
        await create_all(store, deleted, ended, asleep)
        await store.delete(deleted.id, expected=1)
        await save(store, ended, status=TaskStatus.CANCELLED, finished_at=NOON)
        await save(store, asleep, wake_at=NOON)
        assert await hand_out(store) == []
        # Nor do they count for a share.
        assert await create_handed(store, task(4), Share(owner=1, tools={"render": 1}, owner_at_work=1))

    async def test_what_is_handed_out_says_where_it_goes(self, store: Store) -> None:
        record = task(owner=None, method="prompts/get", name="☃ \ud800", queue="gpu", priority=-7)
        await store.create(record, REQUEST)
        assert list(await store.hand_out("demo", PLENTY, limit=1)) == [
            Ready(id=record.id, owner=None, method="prompts/get", name="☃ \ud800", queue="gpu", priority=-7)
        ]
        assert await store.get(record.id) == record

    async def test_a_task_is_handed_out_once_and_again_after_it_was_handed_back(self, store: Store) -> None:
        record = await store.create(task(), REQUEST)
        assert await hand_out(store) == [record.id]
        assert await hand_out(store) == []
        await store.hand_back(record.id)
        assert await waiting(store) == [record.id]
        await store.hand_back(record.id)
        assert await hand_out(store) == [record.id]
        assert await store.get(record.id) == record

    async def test_handing_back_what_is_not_queued_does_nothing(self, store: Store) -> None:
        record = task()
        assert await create_handed(store, record)
        claimed = await claim(store, record)
        for task_id in (record.id, "unknown", "\ud800"):
            await store.hand_back(task_id)
        assert await store.get(record.id) == claimed
        assert await swept(partial(store.queued, "demo")) == []
        assert await hand_out(store) == []

    async def test_a_choice_that_is_not_marked_changes_nothing(self, store: Store) -> None:
        records = [task(number) for number in range(3)]
        await create_all(store, *records)
        for _ in range(2):
            assert await hand_out(store, mark=False, limit=2) == [records[0].id, records[1].id]
        assert await in_hand(store) == []
        assert await hand_out(store, Share(owner=1)) == [records[0].id]
        assert await hand_out(store, mark=False) == [records[1].id, records[2].id]

    async def test_nothing_is_handed_out_where_nothing_is_asked_for(self, store: Store) -> None:
        assert await hand_out(store) == []
        await store.create(task(), REQUEST)
        assert await hand_out(store, limit=0) == []
        assert await hand_out(store, Share(owner=0)) == []
        assert len(await hand_out(store)) == 1

    async def test_two_processes_are_not_handed_the_same_task(self, store: Store, peer: Store) -> None:
        records = [task(number, owner=f"owner {number % 3}") for number in range(30)]
        await create_at_once(store, records)
        found: list[str] = []

        async def take(mine: Store) -> None:
            while some := await hand_out(mine, limit=3):
                found.extend(some)

        await at_once(*(partial(take, each) for each in (store, peer) * 2))
        assert sorted(found) == sorted(record.id for record in records)
        assert await in_hand(peer) == [record.id for record in records]

    async def test_a_task_that_is_claimed_while_others_hand_out_is_in_nobodys_hands(self, store: Store) -> None:
        records = [task(number) for number in range(20)]
        await create_at_once(store, records)
        await at_once(*(partial(claim, store, record) for record in records), partial(hand_out, store))
        assert (await waiting(store), await in_hand(store)) == ([], [])
        with pytest.raises(VersionConflict):
            await claim(store, records[0])

    async def test_pages_of_what_is_handed_out_hold_every_task_once(self, store: Store) -> None:
        # Pairs share an instant, so that only their ids tell them apart.
        records = [task(number // 2, id=f"t{number:02}") for number in range(12)]
        await create_all(store, *records)
        handed = set(await hand_out(store, limit=5))
        for limit in (1, 2, 3, 20):
            for handed_out in (True, False):
                expected = [record.id for record in records if (record.id in handed) == handed_out]
                assert await swept(partial(store.queued, "demo", handed_out=handed_out), limit=limit) == expected
            assert await swept(partial(store.queued, "demo"), limit=limit) == [record.id for record in records]


# ---- turns

MANY = 1_000
"""More tasks than a process asks for at a time."""


class TurnTests(StoreTests):
    async def test_the_tasks_of_an_owner_are_handed_out_in_the_order_of_creation(self, store: Store) -> None:
        # With different tools and in different queues: neither comes before the other.
        same = [task(5, id=name, name=name, queue=name) for name in ("c", "a", "b")]
        await create_all(store, task(9, id="z", name="a"), *same, task(1, id="y", name="z", queue="z"))
        assert await hand_out(store, limit=4) == ["y", "a", "b", "c"]
        assert await hand_out(store, limit=4) == ["z"]

    async def test_owners_take_turns(self, store: Store) -> None:
        for number in range(3):
            for owner in ("alice", "bob", None) if number < 2 else ("alice",):
                await store.create(task(number, owner=owner, id=f"{owner} {number}"), REQUEST)
        found = await hand_out(store)
        assert [set(found[:3]), set(found[3:6]), found[6:]] == [
            {"alice 0", "bob 0", "None 0"},
            {"alice 1", "bob 1", "None 1"},
            ["alice 2"],
        ]

    async def test_an_owner_with_many_tasks_keeps_nobody_back(self, store: Store) -> None:
        await create_at_once(store, [task(number, owner="alice") for number in range(MANY)])
        late = await store.create(task(MANY, owner="bob"), REQUEST)
        assert late.id in await hand_out(store, limit=2, mark=False)
        assert late.id in await hand_out(store, Share(owner=5), limit=10)
        # And the one with many has no more than the share, in however many calls.
        assert await hand_out(store, Share(owner=5), limit=10) == []
        assert len(await in_hand(store)) == 6

    @pytest.mark.parametrize("mark", [True, False])
    async def test_who_asks_for_one_at_a_time_comes_to_every_owner(self, store: Store, mark: bool) -> None:
        records = [task(number, owner=owner) for owner in ("alice", "bob", "carol", None) for number in range(4)]
        await create_all(store, *records)
        owners: list[str | None] = []
        by_id = {record.id: record for record in records}
        for _ in range(8):
            (task_id,) = await hand_out(store, limit=1, mark=mark)
            owners.append(by_id[task_id].owner)
            # It has ended before the next call: no task that is left tells whose turn it was.
            await save(store, by_id[task_id], status=TaskStatus.CANCELLED, finished_at=NOON)
        assert set(owners[:4]) == set(owners[4:]) == {"alice", "bob", "carol", None}

    async def test_a_higher_priority_comes_first_and_owners_take_turns_within_it(self, store: Store) -> None:
        await create_all(
            store,
            task(1, id="low", owner="alice", priority=-5),
            task(2, id="plain 1", owner="alice"),
            task(3, id="plain 2", owner="alice", queue="another"),
            task(4, id="plain of bob", owner="bob"),
            task(5, id="high 1", owner="alice", priority=10),
            task(6, id="high 2", owner="alice", priority=10, queue="another"),
            task(7, id="highest", owner="bob", priority=11),
        )
        found = await hand_out(store, mark=False)
        assert found[:3] == ["highest", "high 1", "high 2"]
        assert [set(found[3:5]), found[5:]] == [{"plain 1", "plain of bob"}, ["plain 2", "low"]]
        # The share of an owner goes to urgent tasks.
        assert await hand_out(store, Share(owner=1)) == ["highest", "high 1", "high 2"]

    async def test_only_tasks_of_the_wanted_queues_are_handed_out(self, store: Store) -> None:
        for number, queue in enumerate(("default", "gpu", "gpu", "☃", "")):
            await store.create(task(number, id=f"{queue} {number}", queue=queue), REQUEST)
        assert await hand_out(store, queues=[]) == []
        assert await hand_out(store, queues=["unknown", "\ud800"]) == []
        assert await hand_out(store, queues=["gpu"], limit=1) == ["gpu 1"]
        assert await hand_out(store, queues={"☃", "", "gpu"}) == ["gpu 2", "☃ 3", " 4"]
        assert await hand_out(store, queues=None) == ["default 0"]

    async def test_a_save_moves_a_task_to_another_queue_and_priority(self, store: Store) -> None:
        moving, other = task(2, id="moving"), task(1, id="other")
        await create_all(store, moving, other)
        moving = await save(store, moving, queue="gpu")
        assert await hand_out(store, queues=["default"], mark=False) == ["other"]
        assert await hand_out(store, queues=["gpu"], mark=False) == ["moving"]
        moving = await save(store, moving, queue="default", priority=1)
        assert await hand_out(store, queues=["default"]) == ["moving", "other"]

    async def test_each_server_is_handed_its_own_tasks(self, store: Store) -> None:
        for namespace in ("", "demo", "Demo"):
            await store.create(make_record(id=f"of {namespace!r}", namespace=namespace), REQUEST)
        for namespace in ("Demo", "", "demo", "another"):
            found = await store.hand_out(namespace, PLENTY, limit=9)
            assert [ready.id for ready in found] == ([f"of {namespace!r}"] if namespace != "another" else [])

    async def test_what_is_handed_out_is_within_the_share(self, store: Store) -> None:
        share = Share(owner=3, tools={"render": 2}, owner_at_work=2)
        for owner in ("alice", "bob", None):
            for number in range(3):
                await store.create(task(number, owner=owner, name="render"), REQUEST)
                await store.create(task(number, owner=owner, name="other"), REQUEST)
        found = await store.hand_out("demo", share, limit=100)
        # Two renders at most, and of each owner no more of one tool than it may have at work.
        assert Counter(ready.name for ready in found) == {"render": 2, "other": 6}
        assert Counter(ready.owner for ready in found if ready.name == "other") == {"alice": 2, "bob": 2, None: 2}
        # None of them is at work, so that they hold nothing back.
        found = await store.hand_out("demo", share, limit=100)
        assert Counter((ready.owner, ready.name) for ready in found) == {
            (owner, "other"): 1 for owner in ("alice", "bob", None)
        }
        assert list(await store.hand_out("demo", share, limit=100)) == []
        more = await store.hand_out("demo", Share(owner=3), limit=100)
        assert Counter(ready.name for ready in more) == {"render": 7}

    async def test_what_nobody_serves_keeps_nothing_else_back(self, store: Store) -> None:
        stuck = [task(number, queue="gpu", name="new", priority=9) for number in range(MANY)]
        await create_at_once(store, [*stuck, *(task(number, name="new") for number in range(20))])
        share = Share(owner=5, owner_at_work=3)
        for _ in range(3):
            await hand_out(store, share)
        assert len(await in_hand(store)) == 10
        last = await store.create(task(MANY, name="other"), REQUEST)
        assert await hand_out(store, share, limit=10) == [last.id]

    async def test_a_tool_without_room_keeps_no_other_tool_back(self, store: Store) -> None:
        await create_at_once(store, [task(number, name="busy") for number in range(MANY)])
        last = await store.create(task(MANY, name="other"), REQUEST)
        assert await hand_out(store, Share(owner=100, tools={"busy": 0}), limit=10) == [last.id]


# ---- limits


def claimed(record: TaskRecord, **fields: Any) -> TaskRecord:
    """The task one version on, at work."""
    return replace(
        record, **{"version": record.version + 1, "worker": "worker", "attempt": 1, "wake_at": None, **fields}
    )


def claim_within(
    store: Store, record: TaskRecord, limits: WorkLimits, **fields: Any
) -> Callable[[], Awaitable[object]]:
    """Claims the task within limits."""
    return partial(store.save, claimed(record, **fields), expected=record.version, limits=limits)


async def at_work(store: Store) -> list[str]:
    return await swept(partial(store.claimed, "worker"))


class LimitTests(StoreTests):
    @pytest.mark.parametrize(
        "limits", [WorkLimits(tool=3), WorkLimits(owner=3), WorkLimits(tool=3, owner=4), WorkLimits(tool=9, owner=3)]
    )
    async def test_of_many_that_claim_at_once_as_many_succeed_as_may(
        self, store: Store, peer: Store, limits: WorkLimits
    ) -> None:
        records = [task(number) for number in range(20)]
        await create_at_once(store, records)
        outcomes = await race(*(claim_within((store, peer)[n % 2], record, limits) for n, record in enumerate(records)))
        assert sum(outcome is None for outcome in outcomes) == 3
        assert {type(outcome) for outcome in outcomes if outcome} == {LimitReached}
        assert len(await at_work(store)) == 3

    async def test_of_many_that_claim_one_task_within_limits_one_succeeds(self, store: Store) -> None:
        record = await store.create(task(), REQUEST)
        outcomes = await race(*[claim_within(store, record, WorkLimits(tool=1, owner=1))] * 10)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert {type(outcome) for outcome in outcomes if outcome} <= {LimitReached, VersionConflict}

    async def test_a_claim_that_is_refused_changes_nothing(self, store: Store) -> None:
        first, second = task(1), task(2)
        await create_all(store, first, second)
        await claim_within(store, first, WorkLimits(tool=1))()
        entry = JournalEntry(kind="step", key="never", value=None)
        with pytest.raises(LimitReached) as refused:
            await store.save(claimed(second), expected=1, entries=[entry], limits=WorkLimits(tool=1))
        assert (refused.value.task_id, refused.value.what) == (second.id, "tool")
        assert await store.get(second.id) == second
        assert list(await store.journal(second.id)) == []
        assert await swept(partial(store.queued, "demo")) == [second.id]
        with pytest.raises(LimitReached, match="owner"):
            await claim_within(store, second, WorkLimits(owner=1))()

    async def test_a_limit_is_of_one_tool_of_one_server(self, store: Store) -> None:
        first = task(1, owner="alice")
        others = [
            task(2, name="other"),
            task(3, method="prompts/get"),
            task(4, namespace="another"),
        ]
        await create_all(store, first, *others, last := task(5, owner="bob"))
        await claim_within(store, first, WorkLimits(tool=1))()
        for record in others:
            await claim_within(store, record, WorkLimits(tool=1))()
        with pytest.raises(LimitReached):
            await claim_within(store, last, WorkLimits(tool=1))()
        await claim_within(store, last, WorkLimits(tool=2))()

    async def test_a_limit_is_of_one_owner_of_one_server(self, store: Store) -> None:
        first, unowned = task(1, owner="alice"), task(2, owner=None)
        others = [task(3, owner="bob"), task(4, owner=""), task(5, owner="alice", namespace="another")]
        await create_all(store, first, unowned, *others)
        for record in (first, unowned, *others):
            await claim_within(store, record, WorkLimits(owner=1))()
        for owner in ("alice", None):
            # Tasks without an owner count as one owner's.
            await create_all(store, last := task(6, owner=owner, name="other"))
            with pytest.raises(LimitReached):
                await claim_within(store, last, WorkLimits(owner=1))()

    async def test_without_limits_any_number_is_at_work(self, store: Store) -> None:
        records = [task(number) for number in range(5)]
        await create_all(store, *records)
        for record, limits in zip(records, (WorkLimits(tool=1), WorkLimits(), None, WorkLimits(), None), strict=True):
            await store.save(claimed(record), expected=1, limits=limits)
        assert len(await at_work(store)) == 5

    async def test_only_tasks_that_are_at_work_count(self, store: Store) -> None:
        await create_all(
            store,
            task(1),
            task(2, wake_at=NOON),
            task(3, status=TaskStatus.INPUT_REQUIRED),
            task(4, status=TaskStatus.COMPLETED, finished_at=NOON, worker="worker"),
        )
        await create_all(store, wanted := task(5))
        await claim_within(store, wanted, WorkLimits(tool=1, owner=1))()

    async def test_a_run_that_asks_counts_until_it_says_that_it_waits(self, store: Store) -> None:
        one = WorkLimits(tool=1, owner=1)
        await create_all(store, first := task(1), second := task(2))
        await claim_within(store, first, one)()
        asking = replace(claimed(first), version=3, status=TaskStatus.INPUT_REQUIRED)
        await store.save(asking, expected=2)
        with pytest.raises(LimitReached):
            await claim_within(store, second, one)()
        # It may be answered, which needs no claim: no more than one goes on.
        answered = replace(asking, version=4, status=TaskStatus.WORKING)
        await store.save(answered, expected=3)
        with pytest.raises(LimitReached):
            await claim_within(store, second, one)()
        await store.save(replace(asking, version=5, worker=None), expected=4)
        await claim_within(store, second, one)()

    async def test_a_run_that_paused_gives_up_its_place_and_takes_it_again_with_a_limited_save(
        self, store: Store, peer: Store
    ) -> None:
        one = WorkLimits(tool=1, owner=1)
        await create_all(store, first := task(1), second := task(2), third := task(3))
        await claim_within(store, first, one)()
        await store.save(waiting := claimed(first, version=3, pause="waiting"), expected=2)
        await claim_within(peer, second, one)()
        resumed = claimed(first, version=4)
        for limits in (WorkLimits(tool=1), WorkLimits(owner=1)):
            with pytest.raises(LimitReached):
                await store.save(resumed, expected=3, limits=limits)
        assert await peer.get(first.id) == waiting
        ended = claimed(second, version=3, status=TaskStatus.COMPLETED, worker=None, finished_at=NOON)
        await peer.save(ended, expected=2)
        await store.save(resumed, expected=3, limits=one)
        with pytest.raises(LimitReached):
            await claim_within(peer, third, one)()

    async def test_a_run_that_is_resuming_goes_on_before_a_new_run_begins(self, store: Store, peer: Store) -> None:
        two = WorkLimits(tool=2, owner=2)
        await create_all(store, *(tasks := [task(number) for number in range(5)]))
        for record in tasks[:2]:
            await claim_within(store, record, two)()
            await store.save(claimed(record, version=3, pause="waiting"), expected=2)
        for record in tasks[2:4]:
            await claim_within(peer, record, two)()
        for record in tasks[:2]:
            await store.save(claimed(record, version=4, pause="resuming"), expected=3)
        # The place that becomes free is for those that are resuming, and these do not stand in each other's way.
        await peer.delete(tasks[2].id, expected=2)
        with pytest.raises(LimitReached):
            await claim_within(peer, tasks[4], two)()
        await store.save(claimed(tasks[1], version=5), expected=4, limits=two)
        for limits in (WorkLimits(tool=2), WorkLimits(owner=2)):
            with pytest.raises(LimitReached):
                await store.save(claimed(tasks[0], version=5), expected=4, limits=limits)
        await peer.delete(tasks[3].id, expected=2)
        await store.save(claimed(tasks[0], version=5), expected=4, limits=two)

    @pytest.mark.parametrize("limits", [WorkLimits(tool=3), WorkLimits(owner=3), WorkLimits(tool=3, owner=4)])
    async def test_of_many_that_resume_and_claim_at_once_as_many_succeed_as_may(
        self, store: Store, peer: Store, limits: WorkLimits
    ) -> None:
        paused, new = [task(number) for number in range(10)], [task(number) for number in range(10, 20)]
        await create_at_once(store, [*paused, *new])
        for record in paused:
            await store.save(claimed(record, pause="resuming"), expected=1)
        resumes = [
            claim_within((store, peer)[number % 2], claimed(record), limits) for number, record in enumerate(paused)
        ]
        claims = [claim_within((store, peer)[number % 2], record, limits) for number, record in enumerate(new)]
        outcomes = await race(*resumes, *claims)
        assert sum(outcome is None for outcome in outcomes[:10]) == 3
        assert {type(outcome) for outcome in outcomes[10:]} == {LimitReached}

    async def test_what_is_resuming_takes_a_place_from_what_is_handed_out(self, store: Store) -> None:
        share = Share(owner=9, tools={"render": 2}, owner_at_work=2)
        await create_all(store, *(tasks := [task(number, owner="alice") for number in range(4)]))
        await store.save(claimed(tasks[0], pause="waiting"), expected=1)
        await store.save(claimed(tasks[1], pause="resuming"), expected=1)
        assert [ready.id for ready in await store.hand_out("demo", share, mark=False, limit=9)] == [tasks[2].id]
        await store.save(claimed(tasks[0], version=3, pause="resuming"), expected=2)
        assert list(await store.hand_out("demo", share, mark=False, limit=9)) == []

    @pytest.mark.parametrize("pause", ["waiting", "resuming"])
    async def test_a_dead_workers_paused_task_counts_for_nothing_once_it_is_released(
        self, store: Store, pause: str
    ) -> None:
        one = WorkLimits(tool=1, owner=1)
        await create_all(store, first := task(1), second := task(2))
        await store.save(claimed(first, pause=pause), expected=1)
        await store.save(claimed(first, version=3, worker=None, pause=None), expected=2)
        assert await swept(partial(store.queued, "demo")) == [first.id, second.id]
        await claim_within(store, second, one)()

    async def test_there_is_room_when_one_leaves_ends_or_is_gone(self, store: Store) -> None:
        one = WorkLimits(tool=1, owner=1)
        first = await store.create(task(0), REQUEST)
        await claim_within(store, first, one)()
        ends: list[dict[str, Any] | None] = [
            {"worker": None},
            {"worker": None, "wake_at": NOON},
            {"status": TaskStatus.INPUT_REQUIRED, "worker": None},
            {"status": TaskStatus.COMPLETED, "worker": None, "finished_at": NOON},
            None,
        ]
        has = claimed(first)
        for number, end in enumerate(ends, 1):
            await create_all(store, record := task(number))
            with pytest.raises(LimitReached):
                await claim_within(store, record, one)()
            if end is None:
                await store.delete(has.id, expected=has.version)
            else:
                await store.save(replace(has, version=3, **end), expected=2)
            await claim_within(store, record, one)()
            has = claimed(record)

    async def test_a_task_does_not_count_against_itself(self, store: Store) -> None:
        record = await store.create(task(), REQUEST)
        await claim_within(store, record, WorkLimits(tool=1, owner=1))()
        again = replace(claimed(record), version=3, worker="another")
        await store.save(again, expected=2, limits=WorkLimits(tool=1, owner=1))
        assert await store.get(record.id) == again

    async def test_a_claim_of_what_has_changed_is_refused_whatever_the_limits(self, store: Store) -> None:
        record = await store.create(task(), REQUEST)
        with pytest.raises(VersionConflict):
            await store.save(claimed(record), expected=7, limits=WorkLimits(tool=5))
        with pytest.raises(VersionConflict):
            await store.save(claimed(task()), expected=1, limits=WorkLimits(owner=5))
        assert await at_work(store) == []


# ---- backlog

LATER = NOON + timedelta(hours=1)


class BacklogTests(StoreTests):
    async def test_an_empty_store_has_no_backlog(self, store: Store) -> None:
        assert await store.backlog("demo", LATER) == {}

    async def test_a_backlog_counts_what_is_queued_in_each_queue(self, store: Store) -> None:
        await create_all(
            store,
            task(3, queue="gpu"),
            task(1, queue="gpu", priority=9),
            task(2, queue="gpu", owner=None),
            task(5),
            task(6, queue="☃", status=TaskStatus.INPUT_REQUIRED, wake_at=ALWAYS),
            # None of these is queued.
            task(0, queue="gpu", worker="worker"),
            task(0, queue="gpu", wake_at=LATER + SECOND),
            task(0, queue="empty", wake_at=LATER + SECOND),
            task(0, queue="empty", status=TaskStatus.INPUT_REQUIRED),
            task(0, queue="empty", status=TaskStatus.FAILED, finished_at=NOON),
            task(0, namespace="another"),
        )
        assert await store.backlog("demo", LATER) == {
            "gpu": Backlog(ready=3, since=NOON + SECOND),
            "default": Backlog(ready=1, since=NOON + SECOND * 5),
            "☃": Backlog(ready=1, since=NOON + SECOND * 6),
        }
        assert await store.backlog("another", LATER) == {"default": Backlog(ready=1, since=NOON)}

    async def test_what_is_handed_out_and_not_claimed_still_waits(self, store: Store) -> None:
        records = [task(number) for number in range(3)]
        await create_all(store, *records)
        assert len(await hand_out(store, PLENTY, limit=2)) == 2
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=3, since=NOON)}
        await store.hand_back(records[0].id)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=3, since=NOON)}
        await claim(store, records[0])
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=2, since=NOON + SECOND)}
        await store.delete(records[1].id, expected=1)
        await claim(store, records[2])
        assert await store.backlog("demo", LATER) == {}

    async def test_a_task_waits_since_it_was_last_queued(self, store: Store) -> None:
        record = await store.create(task(), REQUEST)
        # It stays queued, so it has waited since it was made.
        record = await save(store, record, updated_at=NOON + SECOND)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON)}
        record = await claim(store, record, started_at=NOON + SECOND * 5)
        assert await store.backlog("demo", LATER) == {}
        # A run that was given back moved nothing that a client can see: it was queued after it had begun.
        record = await save(store, record, worker=None)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON + SECOND * 5)}
        record = await claim(store, record)
        asking = replace(record, status=TaskStatus.INPUT_REQUIRED, worker=None, updated_at=NOON + SECOND * 7)
        record = await save(store, asking)
        record = await save(store, record, status=TaskStatus.WORKING, updated_at=NOON + SECOND * 9)
        assert await store.backlog("demo", LATER) == {"default": Backlog(ready=1, since=NOON + SECOND * 9)}

    async def test_what_sleeps_waits_from_the_moment_at_which_it_wakes(self, store: Store) -> None:
        sleeper, later = task(1, wake_at=NOON + SECOND * 60), task(2, wake_at=NOON + SECOND * 90)
        asking = task(3, queue="☃ :a", status=TaskStatus.INPUT_REQUIRED, wake_at=NOON + SECOND * 70)
        await create_all(store, sleeper, later, asking, task(4, queue="☃ ", wake_at=LATER))
        await create_all(store, task(0, namespace="another", wake_at=NOON))
        assert await store.backlog("demo", NOON + SECOND * 59) == {}
        first = Backlog(ready=1, since=NOON + SECOND * 60)
        assert await store.backlog("demo", NOON + SECOND * 60) == {"default": first}
        assert await store.backlog("demo", NOON + SECOND * 80) == {
            "default": first,
            "☃ :a": Backlog(ready=1, since=NOON + SECOND * 70),
        }
        # The task that has waited longest counts; a queued task counts at any time of the clock.
        await create_all(store, queued := task(65), ahead := task(9_999, queue="ahead"))
        backlog = await store.backlog("demo", NOON + SECOND * 90)
        assert backlog["default"] == Backlog(ready=3, since=NOON + SECOND * 60)
        assert backlog["ahead"] == Backlog(ready=1, since=ahead.created_at)
        await claim(store, sleeper)
        assert (await store.backlog("demo", LATER))["default"] == Backlog(ready=2, since=queued.created_at)
        await claim(store, queued)
        await save(store, later, queue="gpu")
        backlog = await store.backlog("demo", LATER)
        assert {queue: waits.ready for queue, waits in backlog.items()} == {"gpu": 1, "☃ :a": 1, "☃ ": 1, "ahead": 1}
        await store.delete(asking.id, expected=asking.version)
        assert "☃ :a" not in await store.backlog("demo", LATER)


# ---- usage

NOTHING = Usage(open_tasks=0, stored_bytes=0)
ALICE = OwnedBy("alice")
LARGE = "x" * 10_000


def ended(record: TaskRecord, **changes: object) -> TaskRecord:
    """The task one version later, when it has ended."""
    return replace(
        record, **{"version": record.version + 1, "status": TaskStatus.COMPLETED, "finished_at": NOON, **changes}
    )


async def bytes_of(store: Store, whose: Owners = ALICE) -> int:
    """Stored bytes of tasks without a namespace."""
    return (await store.usage("", whose)).stored_bytes


class UsageTests(StoreTests):
    async def test_of_nobody_who_has_tasks_nothing_is_kept(self, store: Store) -> None:
        for whose in (ALICE, OwnedBy("never \ud800 there"), OwnedBy("nul\0"), UNOWNED, EVERYBODY):
            assert await store.usage("", whose) == NOTHING

    async def test_open_tasks_are_those_that_have_not_ended(self, store: Store) -> None:
        for status in TaskStatus:
            finished = NOON if status.is_final else None
            await store.create(make_record(owner="alice", status=status, finished_at=finished), REQUEST)
        record = await store.create(make_record(owner="alice"), REQUEST)
        for whose in (ALICE, EVERYBODY):
            assert (await store.usage("", whose)).open_tasks == 3
        await store.save(replace(record, version=2, worker="w", status_message="half way"), expected=1)
        assert (await store.usage("", ALICE)).open_tasks == 3
        await store.save(ended(record, version=3), expected=2)
        for whose in (ALICE, EVERYBODY):
            assert (await store.usage("", whose)).open_tasks == 2

    async def test_owners_and_servers_are_counted_apart(self, store: Store) -> None:
        owners = ("alice", "Alice", "", "0", "None", "lone \ud800", None)
        for number, owner in enumerate(owners, start=1):
            for namespace in ("", "demo"):
                for _ in range(number):
                    await store.create(make_record(owner=owner, namespace=namespace), REQUEST)
        one = await bytes_of(store)
        assert one > 0
        for number, owner in enumerate(owners, start=1):
            whose = UNOWNED if owner is None else OwnedBy(owner)
            for namespace in ("", "demo"):
                assert await store.usage(namespace, whose) == Usage(open_tasks=number, stored_bytes=number * one)
        together = sum(range(1, len(owners) + 1))
        for namespace in ("", "demo"):
            # There is no limit for the bytes of all.
            assert await store.usage(namespace, EVERYBODY) == Usage(open_tasks=together, stored_bytes=0)
        assert await store.usage("Demo", EVERYBODY) == NOTHING

    @pytest.mark.parametrize("owner", ["alice", None])
    async def test_requests_journals_and_outcomes_count_and_nothing_else_does(
        self, store: Store, owner: str | None
    ) -> None:
        whose = UNOWNED if owner is None else ALICE
        record = make_record(owner=owner, retention=None)
        await store.create(record, make_request(arguments={"text": LARGE}))
        size = await bytes_of(store, whose)
        assert size > len(LARGE)
        await store.save(replace(record, version=2, worker="w", status_message=LARGE), expected=1)
        assert await bytes_of(store, whose) == size
        entries = [JournalEntry(kind="step", key=key, value={"value": LARGE}) for key in ("one", "two")]
        await store.save(replace(record, version=3, worker="w"), expected=2, entries=entries)
        size, before = await bytes_of(store, whose), size
        assert size > before + 2 * len(LARGE)
        outcome = Outcome(body=f'"{LARGE}"'.encode(), meta=f'{{"a":"{LARGE}"}}'.encode())
        await store.save(ended(record, version=4), expected=3, outcome=outcome)
        size, before = await bytes_of(store, whose), size
        # Those of a task that has ended are still kept.
        assert size > before + 2 * len(LARGE)
        await store.delete(record.id, expected=4)
        assert await store.usage("", whose) == NOTHING

    async def test_an_outcome_that_takes_the_place_of_another_counts_once(self, store: Store) -> None:
        record = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOON, retention=None)
        large, small = Outcome(body=f'"{LARGE}"'.encode(), meta=b"{}"), Outcome(body=b'"small"')
        await store.create(record, REQUEST)
        await store.save(replace(record, version=2), expected=1, outcome=small)
        before = await bytes_of(store)
        await store.save(replace(record, version=3), expected=2, outcome=large)
        assert await bytes_of(store) > len(LARGE)
        await store.save(replace(record, version=4), expected=3, outcome=small)
        assert await bytes_of(store) == before

    async def test_what_was_not_written_does_not_count(self, store: Store) -> None:
        record = make_record(owner="alice")
        await store.create(record, REQUEST, key="key")
        usage = await store.usage("", ALICE)
        with pytest.raises(TaskExists):
            await store.create(record, make_request(arguments={"text": LARGE}))
        await store.create(make_record(owner="alice"), make_request(arguments={"text": LARGE}), key="key")
        entry = JournalEntry(kind="step", key="one", value={"value": LARGE})
        with pytest.raises(VersionConflict):
            await store.save(ended(record), expected=7, entries=[entry], outcome=Outcome(body=LARGE.encode()))
        with pytest.raises(VersionConflict):
            await store.delete(record.id, expected=7)
        assert await store.usage("", ALICE) == usage

    async def test_what_has_expired_counts_until_it_is_forgotten(self, store: Store) -> None:
        for number in range(3):
            record = make_record(owner="alice", retention=timedelta(0), created_at=NOON + timedelta(seconds=number))
            await store.create(record, make_request(arguments={"text": LARGE}))
            await store.save(ended(record), expected=1, outcome=Outcome(body=b"{}"))
        full = await bytes_of(store)
        assert full > 3 * len(LARGE)
        for left in (2, 1, 0):
            await store.forget_expired(NOON, limit=1)
            assert await store.usage("", ALICE) == Usage(open_tasks=0, stored_bytes=full // 3 * left)

    async def test_what_gives_way_to_another_under_its_key_does_not_count(self, store: Store) -> None:
        expired = make_record(owner="alice", status=TaskStatus.COMPLETED, finished_at=NOON, retention=timedelta(0))
        await store.create(expired, make_request(arguments={"text": LARGE}), key="key")
        await store.create(make_record(owner="alice"), REQUEST, key="key")
        usage = await store.usage("", ALICE)
        assert usage.open_tasks == 1
        assert 0 < usage.stored_bytes < len(LARGE)

    async def test_many_that_write_at_once_are_all_counted(self, store: Store, peer: Store) -> None:
        records = [make_record(owner="alice", retention=timedelta(0)) for _ in range(20)]
        entry = JournalEntry(kind="step", key="one", value={"value": 1})

        async def live(at: Store, record: TaskRecord) -> None:
            await at.create(record, REQUEST)
            await at.save(replace(record, version=2, worker="w"), expected=1, entries=[entry])
            await at.save(ended(record, version=3), expected=2, outcome=Outcome(body=b"{}"))

        await at_once(*(partial(live, (store, peer)[n % 2], record) for n, record in enumerate(records)))
        await live(store, make_record(owner="bob", retention=None))
        one = await bytes_of(store, OwnedBy("bob"))
        for at in (store, peer):
            assert await at.usage("", ALICE) == Usage(open_tasks=0, stored_bytes=20 * one)
        await at_once(*(partial(at.forget_expired, NOON, limit=5) for at in (store, peer) * 2))
        while await store.forget_expired(NOON, limit=5):
            pass
        for at in (store, peer):
            assert await at.usage("", ALICE) == NOTHING
