"""Store suite: how many tasks may be at work at a time. `save` with limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import LimitReached, VersionConflict
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.shares import Share, WorkLimits
from mcp_tasks.testing._store_handing import create_at_once, task
from mcp_tasks.testing._store_races import race
from mcp_tasks.testing._store_sweeps import swept
from mcp_tasks.testing._store_tests import StoreTests, create_all
from mcp_tasks.testing.clock import NOON


def claimed(record: TaskRecord, **fields: Any) -> TaskRecord:
    """The task one version on, at work."""
    return replace(
        record, **{"version": record.version + 1, "worker": "worker", "attempt": 1, "wake_at": None, **fields}
    )


def claim(store: Store, record: TaskRecord, limits: WorkLimits, **fields: Any) -> Callable[[], Awaitable[object]]:
    """Claims the task within limits."""
    return partial(store.save, claimed(record, **fields), expected=record.version, limits=limits)


async def at_work(store: Store) -> list[str]:
    """What the worker has."""
    return await swept(partial(store.claimed, "worker"))


class LimitTests(StoreTests):
    """How many tasks may be at work at a time, over all processes."""

    @pytest.mark.parametrize(
        "limits", [WorkLimits(tool=3), WorkLimits(owner=3), WorkLimits(tool=3, owner=4), WorkLimits(tool=9, owner=3)]
    )
    async def test_of_many_that_claim_at_once_as_many_succeed_as_may(self, store: Store, limits: WorkLimits) -> None:
        records = [task(number) for number in range(20)]
        await create_at_once(store, records)
        outcomes = await race(*(claim(store, record, limits) for record in records))
        assert sum(outcome is None for outcome in outcomes) == 3
        assert {type(outcome) for outcome in outcomes if outcome} == {LimitReached}
        assert len(await at_work(store)) == 3

    async def test_of_those_that_claim_in_two_processes_as_many_succeed_as_may(self, store: Store, peer: Store) -> None:
        records = [task(number) for number in range(20)]
        await create_at_once(store, records)
        claims = [claim((store, peer)[number % 2], record, WorkLimits(tool=5)) for number, record in enumerate(records)]
        outcomes = await race(*claims)
        assert sum(outcome is None for outcome in outcomes) == 5
        assert len(await at_work(peer)) == 5

    async def test_of_many_that_claim_one_task_within_limits_one_succeeds(self, store: Store) -> None:
        record = task()
        await create_all(store, record)
        outcomes = await race(*[claim(store, record, WorkLimits(tool=1, owner=1))] * 10)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert {type(outcome) for outcome in outcomes if outcome} <= {LimitReached, VersionConflict}

    async def test_a_claim_that_is_refused_changes_nothing(self, store: Store) -> None:
        first, second = task(1), task(2)
        await create_all(store, first, second)
        await claim(store, first, WorkLimits(tool=1))()
        entry = JournalEntry(kind="step", key="never", value=None)
        with pytest.raises(LimitReached) as refused:
            await store.save(claimed(second), expected=1, entries=[entry], limits=WorkLimits(tool=1))
        assert (refused.value.task_id, refused.value.what) == (second.id, "tool")
        assert await store.get(second.id) == second
        assert list(await store.journal(second.id)) == []
        assert await swept(partial(store.queued, "demo")) == [second.id]
        with pytest.raises(LimitReached, match="owner"):
            await claim(store, second, WorkLimits(owner=1))()

    async def test_a_limit_is_of_one_tool_of_one_server(self, store: Store) -> None:
        first = task(1, owner="alice")
        others = [
            task(2, name="other"),
            task(3, method="prompts/get"),
            task(4, namespace="another"),
        ]
        await create_all(store, first, *others, last := task(5, owner="bob"))
        await claim(store, first, WorkLimits(tool=1))()
        for record in others:
            await claim(store, record, WorkLimits(tool=1))()
        with pytest.raises(LimitReached):
            await claim(store, last, WorkLimits(tool=1))()
        await claim(store, last, WorkLimits(tool=2))()

    async def test_a_limit_is_of_one_owner_of_one_server(self, store: Store) -> None:
        first, unowned = task(1, owner="alice"), task(2, owner=None)
        others = [task(3, owner="bob"), task(4, owner=""), task(5, owner="alice", namespace="another")]
        await create_all(store, first, unowned, *others)
        for record in (first, unowned, *others):
            await claim(store, record, WorkLimits(owner=1))()
        for owner in ("alice", None):
            # Those that nobody owns count as one owner's.
            await create_all(store, last := task(6, owner=owner, name="other"))
            with pytest.raises(LimitReached):
                await claim(store, last, WorkLimits(owner=1))()

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
        await claim(store, wanted, WorkLimits(tool=1, owner=1))()

    async def test_a_run_that_asks_counts_until_it_says_that_it_waits(self, store: Store) -> None:
        one = WorkLimits(tool=1, owner=1)
        await create_all(store, first := task(1), second := task(2))
        await claim(store, first, one)()
        asking = replace(claimed(first), version=3, status=TaskStatus.INPUT_REQUIRED)
        await store.save(asking, expected=2)
        with pytest.raises(LimitReached):
            await claim(store, second, one)()
        # It may be answered, which needs no claim: no more than one goes on.
        answered = replace(asking, version=4, status=TaskStatus.WORKING)
        await store.save(answered, expected=3)
        with pytest.raises(LimitReached):
            await claim(store, second, one)()
        await store.save(replace(asking, version=5, worker=None), expected=4)
        await claim(store, second, one)()

    async def test_a_run_that_paused_gives_up_its_place_and_takes_it_again_with_a_limited_save(
        self, store: Store, peer: Store
    ) -> None:
        one = WorkLimits(tool=1, owner=1)
        await create_all(store, first := task(1), second := task(2), third := task(3))
        await claim(store, first, one)()
        await store.save(waiting := claimed(first, version=3, pause="waiting"), expected=2)
        await claim(peer, second, one)()
        resumed = claimed(first, version=4)
        for limits in (WorkLimits(tool=1), WorkLimits(owner=1)):
            with pytest.raises(LimitReached):
                await store.save(resumed, expected=3, limits=limits)
        assert await peer.get(first.id) == waiting
        ended = claimed(second, version=3, status=TaskStatus.COMPLETED, worker=None, finished_at=NOON)
        await peer.save(ended, expected=2)
        await store.save(resumed, expected=3, limits=one)
        with pytest.raises(LimitReached):
            await claim(peer, third, one)()

    async def test_a_run_that_is_resuming_goes_on_before_a_new_run_begins(self, store: Store, peer: Store) -> None:
        two = WorkLimits(tool=2, owner=2)
        await create_all(store, *(tasks := [task(number) for number in range(5)]))
        for record in tasks[:2]:
            await claim(store, record, two)()
            await store.save(claimed(record, version=3, pause="waiting"), expected=2)
        for record in tasks[2:4]:
            await claim(peer, record, two)()
        for record in tasks[:2]:
            await store.save(claimed(record, version=4, pause="resuming"), expected=3)
        # The place that becomes free is for those that are resuming, and these do not stand in each other's way.
        await peer.delete(tasks[2].id, expected=2)
        with pytest.raises(LimitReached):
            await claim(peer, tasks[4], two)()
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
        resumes = [claim((store, peer)[number % 2], claimed(record), limits) for number, record in enumerate(paused)]
        claims = [claim((store, peer)[number % 2], record, limits) for number, record in enumerate(new)]
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
        await claim(store, second, one)()

    async def test_there_is_room_when_one_leaves_ends_or_is_gone(self, store: Store) -> None:
        one = WorkLimits(tool=1, owner=1)
        first = task(0)
        await create_all(store, first)
        await claim(store, first, one)()
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
                await claim(store, record, one)()
            if end is None:
                await store.delete(has.id, expected=has.version)
            else:
                await store.save(replace(has, version=3, **end), expected=2)
            await claim(store, record, one)()
            has = claimed(record)

    async def test_a_task_does_not_count_against_itself(self, store: Store) -> None:
        record = task()
        await create_all(store, record)
        await claim(store, record, WorkLimits(tool=1, owner=1))()
        again = replace(claimed(record), version=3, worker="another")
        await store.save(again, expected=2, limits=WorkLimits(tool=1, owner=1))
        assert await store.get(record.id) == again

    async def test_a_claim_of_what_has_changed_is_refused_whatever_the_limits(self, store: Store) -> None:
        record = task()
        await create_all(store, record)
        with pytest.raises(VersionConflict):
            await store.save(claimed(record), expected=7, limits=WorkLimits(tool=5))
        with pytest.raises(VersionConflict):
            await store.save(claimed(task()), expected=1, limits=WorkLimits(owner=5))
        assert await at_work(store) == []
