"""Store suite: the store's time, by which everything goes that others can see."""

from __future__ import annotations

from datetime import timedelta

from mcp_tasks.stores.base import Store
from mcp_tasks.testing._store_tests import WAIT, StoreTests


class TimeTests(StoreTests):
    """The time."""

    async def test_the_time_is_aware_and_in_utc(self, store: Store) -> None:
        assert (await store.now()).utcoffset() == timedelta(0)

    async def test_the_time_goes_on_and_not_back(self, store: Store) -> None:
        times = [await store.now() for _ in range(20)]
        assert times == sorted(times)
        # It is the time of each read, and not that of opening the store, say.
        while (passed := await store.now() - times[0]) == timedelta(0):
            pass
        assert passed < timedelta(seconds=WAIT)

    async def test_processes_that_share_a_store_share_its_time(self, store: Store, peer: Store) -> None:
        times = [await each.now() for each in (store, peer) * 10]
        assert times == sorted(times)
