"""The one clock by which streams end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.protocol.listen import SPREAD, StreamEnds, expiry
from mcp_tasks.protocol.owners import Caller, Identity
from tests.unit.running import LIMIT

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"


class Hands:
    """A clock that is set by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def token(expires_at: float | None) -> Caller:
    return Caller(protocol_version=MODERN, identity=Identity(client_id="app", expires_at=expires_at))


def test_the_first_of_both_ends_a_stream() -> None:
    hands = Hands()
    ends = StreamEnds(timedelta(hours=1), hands)
    assert ends.after(token(hands.now + 60)) == hands.now + 61
    longest = ends.after(token(hands.now + 86_400))
    assert longest is not None
    assert hands.now + 3600 * (1 - SPREAD) <= longest <= hands.now + 3600
    assert StreamEnds(None, hands).after(token(None)) is None
    assert expiry(None) is None


async def test_streams_end_in_their_order_and_those_that_left_do_not() -> None:
    hands, ended = Hands(), list[str]()
    both = asyncio.Event()

    def first() -> None:
        ended.append("first")
        ends.add(int(hands.now) + 2, last)
        hands.now += 5

    def last() -> None:
        ended.append("last")
        both.set()

    def never() -> None:
        ended.append("never")

    ends = StreamEnds(None, hands)
    ends.add(int(hands.now) + 3_600, never)
    ends.add(int(hands.now), first)
    ends.add(int(hands.now), never)
    ends.leave(int(hands.now), never)
    with anyio.fail_after(LIMIT):
        await both.wait()
    ends.leave(1_000_000 + 3_600, never)
    assert ended == ["first", "last"]


def test_without_a_token_a_stream_lasts_as_long_as_any_may() -> None:
    hands = Hands()
    ends = StreamEnds(timedelta(hours=1), hands).after_token(None)
    assert ends is not None
    assert hands.now + 3600 * (1 - SPREAD) <= ends <= hands.now + 3600


async def test_who_leaves_twice_or_after_the_end_is_not_missed() -> None:
    hands, over = Hands(), asyncio.Event()
    ends = StreamEnds(None, hands)
    second = int(hands.now)
    ends.add(second, over.set)
    with anyio.fail_after(LIMIT):
        await over.wait()
    ends.leave(second, over.set)
    ends.leave(second, over.set)


async def test_of_two_that_end_together_one_may_leave() -> None:
    hands, over = Hands(), asyncio.Event()

    def never() -> None:
        raise AssertionError("it left")

    ends = StreamEnds(None, hands)
    second = int(hands.now)
    ends.add(second, never)
    ends.add(second, over.set)
    ends.leave(second, never)
    with anyio.fail_after(LIMIT):
        await over.wait()
