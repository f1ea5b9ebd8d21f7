"""Store suite: who is next. `hand_out` by priority, by turns of owners, by queue and within a share."""

from __future__ import annotations

from collections import Counter

import pytest

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.shares import Share
from mcp_tasks.testing._store_handing import PLENTY, create_at_once, hand_out, in_hand, save, task
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, create_all
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

MANY = 1_000
"""More tasks than anybody asks for at a time."""


class TurnTests(StoreTests):
    """Whose tasks are handed out, and in which order."""

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
        late = task(MANY, owner="bob")
        await store.create(late, REQUEST)
        assert late.id in await hand_out(store, limit=2, mark=False)
        assert late.id in await hand_out(store, Share(owner=5), limit=10)
        # And the one with many has no more than the share, however often somebody asks.
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
            # It has ended before the next one is asked for: nothing that is left tells whose turn it was.
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
        # What an owner may have in hand of one queue and tool goes to what is urgent.
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
        # Nothing of that is at work, so that it keeps nobody back.
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
        last = task(MANY, name="other")
        await store.create(last, REQUEST)
        assert await hand_out(store, share, limit=10) == [last.id]

    async def test_a_tool_without_room_keeps_no_other_tool_back(self, store: Store) -> None:
        await create_at_once(store, [task(number, name="busy") for number in range(MANY)])
        last = task(MANY, name="other")
        await store.create(last, REQUEST)
        assert await hand_out(store, Share(owner=100, tools={"busy": 0}), limit=10) == [last.id]
