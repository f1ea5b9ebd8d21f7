"""What is counted of responses that clients have not read."""

from __future__ import annotations

import asyncio

import pytest

from mcp_tasks import Limits
from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import Outcome
from mcp_tasks.protocol.limits import AT_A_TIME, Held, Unread, current_held, hold

pytestmark = pytest.mark.anyio


def test_an_owner_and_all_together_have_so_many_bytes_and_a_single_response_any_number() -> None:
    unread = Unread(Limits(owner_unread_bytes=10, unread_bytes=20))
    unread.take("alice", 15)
    with pytest.raises(LimitExceeded) as of_owner:
        unread.take("alice", 1)
    assert of_owner.value.limit == "owner_unread_bytes"
    unread.take("bob", 5)
    for owner in ("carol", None):
        with pytest.raises(LimitExceeded) as at_all:
            unread.take(owner, 1)
        assert at_all.value.limit == "unread_bytes"
    unread.give_back("alice", 15)
    unread.take(None, 15)
    unread.give_back(None, 15)
    unread.give_back("bob", 5)
    unread.take("alice", 1_000)


def test_a_response_counts_until_it_is_over_and_never_after() -> None:
    unread = Unread(Limits(owner_unread_bytes=10, unread_bytes=10))
    held = Held(unread)
    held.take("alice", 10)
    # The next part of a stream, in place of the one before it.
    held.take("alice", 5)
    with pytest.raises(LimitExceeded):
        unread.take("alice", 6)
    held.close()
    held.take("alice", 10)
    assert held.size == 0
    unread.take("alice", 10)


def test_only_what_is_large_and_asked_for_over_http_is_counted() -> None:
    unread = Unread(Limits(owner_unread_bytes=1, unread_bytes=1))
    large, small = Outcome(body=b"x" * (LARGE + 1)), Outcome(body=b"x")
    assert hold("alice", [large]) is large
    token = current_held.set(Held(unread))
    try:
        assert hold("alice", [small]) is small
        assert hold("alice", [None]) is None
        assert hold("alice", [large]) is large
        current_held.set(Held(unread))
        read: list[Outcome | None] = [large]
        with pytest.raises(LimitExceeded):
            hold("alice", read)
        # The exception does not keep it.
        assert read == []
    finally:
        current_held.reset(token)


async def test_so_many_outcomes_of_an_owner_are_read_at_a_time() -> None:
    unread = Unread(Limits())
    at_work, most, gate = 0, 0, asyncio.Event()

    async def read(owner: str) -> None:
        nonlocal at_work, most
        async with unread.turn(owner):
            at_work += 1
            most = max(most, at_work)
            await gate.wait()
            at_work -= 1

    reading = [asyncio.create_task(read("alice")) for _ in range(3 * AT_A_TIME)]
    async with asyncio.timeout(10):
        while at_work < AT_A_TIME:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        # Another does not wait for them.
        gate_of_bob = asyncio.create_task(read("bob"))
        while at_work < AT_A_TIME + 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*reading, gate_of_bob)
    assert most == AT_A_TIME + 1
