"""Store suite: the notifier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio

from mcp_tasks.stores.base import Hint, Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests
from mcp_tasks.testing.records import make_record


async def following(hints: AsyncIterator[Hint]) -> Hint:
    """The next hint, within the time that a hint may take."""
    with anyio.fail_after(WAIT):
        return await anext(hints)


async def hint_of(hints: AsyncIterator[Hint], wanted: Hint) -> None:
    """Return when `wanted` comes; a hint may come twice, and older ones may come before it."""
    while (hint := await following(hints)) != wanted:
        assert (hint.task_id, hint.version <= wanted.version) == (wanted.task_id, True)


class HintTests(StoreTests):
    """Hints: at once in this process, soon in others."""

    async def test_a_listener_hears_what_is_published(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            await notifier.publish(Hint("a", 1))
            await notifier.publish(Hint("b", 7))
            assert [await following(hints), await following(hints)] == [Hint("a", 1), Hint("b", 7)]

    async def test_a_listener_that_waits_is_woken(self, store: Store) -> None:
        notifier = store.notifier()
        heard: list[Hint] = []

        async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            async with notifier.listen() as hints:
                task_status.started()
                heard.append(await following(hints))

        async with anyio.create_task_group() as group:
            await group.start(listen)
            await anyio.lowlevel.checkpoint()
            await notifier.publish(Hint("a", 1))
        assert heard == [Hint("a", 1)]

    async def test_every_listener_hears(self, store: Store) -> None:
        async with store.notifier().listen() as first, store.notifier().listen() as second:
            await store.notifier().publish(Hint("a", 1))
            assert await following(first) == await following(second) == Hint("a", 1)

    async def test_a_listener_hears_only_what_comes_after_it(self, store: Store) -> None:
        notifier = store.notifier()
        await notifier.publish(Hint("early", 1))
        async with notifier.listen() as hints:
            await notifier.publish(Hint("late", 1))
            assert await following(hints) == Hint("late", 1)

    async def test_a_listener_that_left_disturbs_nobody(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            async with notifier.listen():
                pass
            await notifier.publish(Hint("a", 1))
            assert await following(hints) == Hint("a", 1)
        await notifier.publish(Hint("nobody hears", 1))

    async def test_a_slow_reader_gets_the_newest_hint_of_each_task(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            for hint in (Hint("a", 1), Hint("b", 1), Hint("a", 3), Hint("a", 2)):
                await notifier.publish(hint)
            assert sorted([await following(hints), await following(hints)], key=str) == [
                Hint("a", 3),
                Hint("b", 1),
            ]

    async def test_a_wait_that_is_given_up_loses_no_hint(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            with anyio.move_on_after(0.01):
                await anext(hints)
            await notifier.publish(Hint("a", 1))
            assert await following(hints) == Hint("a", 1)

    async def test_a_change_in_another_process_is_heard_of(self, store: Store, peer: Store) -> None:
        record = make_record()
        async with store.notifier().listen() as hints:
            await peer.create(record, REQUEST)
            await peer.notifier().publish(Hint(record.id, 1))
            await hint_of(hints, Hint(record.id, 1))
            await peer.save(replace(record, version=2), expected=1)
            await peer.notifier().publish(Hint(record.id, 2))
            await hint_of(hints, Hint(record.id, 2))

    async def test_changes_on_both_sides_are_heard_of(self, store: Store, peer: Store) -> None:
        here, there = make_record(), make_record()
        async with store.notifier().listen() as hints:
            for where, record in ((store, here), (peer, there)):
                await where.create(record, REQUEST)
                await where.notifier().publish(Hint(record.id, 1))
            heard = {await following(hints)}
            while len(heard) < 2:
                heard.add(await following(hints))
            assert heard == {Hint(here.id, 1), Hint(there.id, 1)}
