"""Room for what tasks end with, while other results of the owner are being written."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio
import pytest

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime.launch import Quota
from mcp_tasks.stores.base import Owners, Usage

pytestmark = pytest.mark.anyio

LIMIT, FIRST, SECOND = 100_000, 40_000, 50_000


class Stored:
    """What the store has of an owner."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.looked: anyio.Event = anyio.Event()

    async def usage(self, _: Owners) -> Usage:
        self.looked.set()
        return Usage(open_tasks=2, stored_bytes=self.size)


async def test_a_result_that_fits_is_kept_though_another_one_is_counted_twice_for_a_moment() -> None:
    # The store has the first, and the process that writes it has not heard so yet.
    stored = Stored(FIRST)
    quota = Quota(Limits(owner_stored_bytes=LIMIT), stored.usage, time.monotonic)
    async with AsyncExitStack() as first, anyio.create_task_group() as group:
        await first.enter_async_context(quota.room_for("ann", "tool", FIRST))
        stored.looked = anyio.Event()
        kept = anyio.Event()

        async def second() -> None:
            async with quota.room_for("ann", "tool", SECOND):
                kept.set()

        group.start_soon(second)
        await stored.looked.wait()
        quota.grew("ann", FIRST)
        await first.aclose()
        with anyio.fail_after(5):
            await kept.wait()


async def test_what_is_on_its_way_keeps_its_room() -> None:
    stored = Stored(0)
    quota = Quota(Limits(owner_stored_bytes=LIMIT), stored.usage, time.monotonic)
    async with quota.room_for("ann", "tool", FIRST), anyio.create_task_group() as group:

        async def third() -> None:
            with pytest.raises(LimitExceeded):
                async with quota.room_for("ann", "tool", SECOND):
                    raise AssertionError("there was no room")

        async with quota.room_for("ann", "tool", SECOND):
            group.start_soon(third)
            await anyio.wait_all_tasks_blocked()
            stored.size = FIRST + SECOND
