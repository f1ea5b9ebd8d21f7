"""What a remote engine does with ids that arrive: at the door, while it drains, and in a second life."""

import asyncio
from datetime import timedelta

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import Abilities, Deliver, Lane, RemoteEngine, Route, Serves, Slot
from mcp_tasks.testing._engine_work import LONG, NONE, WAIT, Work, at_work, settle


class Hand:
    """A carrier that is worked by hand: the test says what arrives."""

    abilities: Abilities = Abilities(remote=True)

    def __init__(self) -> None:
        self.deliver: Deliver | None = None
        self.takes = 0
        self.fails = False
        self.leaves = True

    async def open(self, namespace: str) -> None:
        if self.fails:
            raise OSError("away")

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        raise OSError("away")

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        self.takes += 1
        if self.fails:
            raise OSError("away")
        self.deliver = deliver
        while True:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                if self.leaves:
                    raise

    async def close(self) -> None:
        self.deliver = None

    async def brings(self, task_id: str) -> bool:
        """An id arrives; whether it is taken."""
        if self.deliver is None:
            await settle()
        assert self.deliver is not None
        return await self.deliver(task_id)


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.mark.slow
async def test_an_id_without_a_slot_is_to_be_sent_again_after_a_while_and_takes_none_later(hand: Hand) -> None:
    async with at_work(RemoteEngine(hand, concurrency=1)) as work:
        assert await hand.brings("a")
        assert not await hand.brings("b")
        work.end("a")
        await work.until("end a")
        assert await hand.brings("c")
        assert work.started == ["a", "c"]


async def test_an_id_that_is_brought_twice_at_once_is_run_once(hand: Hand) -> None:
    async with at_work(RemoteEngine(hand, concurrency=2)) as work:
        assert await hand.brings("a")
        assert await hand.brings("b")
        twice = [asyncio.create_task(hand.brings("c")) for _ in range(2)]
        await settle()
        work.end("a", "b")
        assert await asyncio.gather(*twice) == [True, True]
        assert await hand.brings("d"), "the second one has given its slot back"
        work.end("c", "d")
        await work.until("end c", "end d")
        await settle()
        assert work.started == ["a", "b", "c", "d"]


async def test_a_delivery_that_is_given_up_in_line_leaves_the_slot_to_others(hand: Hand) -> None:
    async with at_work(RemoteEngine(hand, concurrency=1)) as work:
        assert await hand.brings("a")
        waiting = asyncio.create_task(hand.brings("b"))
        await settle()
        # Both at once: its turn comes as it is given up.
        work.end("a")
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await hand.brings("c")
        assert "b" not in work.started


async def test_a_delivery_that_is_given_up_while_it_claims_does_not_stop_the_run(hand: Hand) -> None:
    claims, begun = anyio.Event(), anyio.Event()
    work = Work()

    async def slowly(task_id: str, slot: Slot) -> None:
        begun.set()
        await claims.wait()
        await work.execute(task_id, slot)

    engine = RemoteEngine(hand)
    await engine.start(slowly)
    delivery = asyncio.create_task(hand.brings("a"))
    await begun.wait()
    delivery.cancel()
    await asyncio.wait({delivery})
    claims.set()
    work.end("a")
    await work.until("end a")
    await engine.stop(LONG)


async def test_room_is_waited_for_until_there_is_some(hand: Hand) -> None:
    async with at_work(RemoteEngine(hand, concurrency=1)) as work:
        assert await hand.brings("a")
        assert hand.deliver is not None
        room = asyncio.create_task(hand.deliver.room())
        await settle()
        assert not room.done()
        work.end("a")
        assert await room
        assert await hand.brings("b"), "asking for room takes none"


async def test_draining_turns_away_at_once_what_waits_for_a_slot(hand: Hand) -> None:
    engine = RemoteEngine(hand, concurrency=1)
    async with at_work(engine) as work:
        assert await hand.brings("a")
        assert hand.deliver is not None
        deliver = hand.deliver
        waiting, room = asyncio.create_task(deliver("b")), asyncio.create_task(deliver.room())
        await settle()
        draining = asyncio.create_task(engine.drain(LONG))
        await settle()
        assert (waiting.done(), room.done()) == (True, True), "neither waits for the slot, nor for its second"
        assert (await waiting, await room) == (False, False)
        assert not await deliver("c")
        assert not await deliver("a"), "it runs here, and would have no further turn"
        work.end("a")
        await draining
        assert work.log == ["start a", "end a"]


async def test_a_carrier_that_does_not_leave_is_left_behind(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks.engines.remote.LEAVING", 0.01)
    hand.leaves = False
    engine = RemoteEngine(hand)
    async with at_work(engine):
        assert await hand.brings("a")
        with anyio.fail_after(WAIT):
            await engine.drain(NONE)
        hand.leaves = True


@pytest.mark.slow
async def test_a_second_life_has_all_its_slots_whatever_the_first_left_behind(hand: Hand) -> None:
    engine = RemoteEngine(hand, concurrency=1)
    first, second = Work(), Work()
    await engine.start(first.execute)
    assert await hand.brings("a")
    await engine.stop(NONE)
    await engine.start(second.execute)
    assert await hand.brings("b")
    first.end("a")
    await first.until("end a")
    assert not await hand.brings("c"), "the slot of the first life is none of the second's"
    second.end("b")
    await second.until("end b")
    await engine.stop(LONG)


async def test_an_engine_whose_carrier_cannot_be_opened_has_not_been_started(hand: Hand) -> None:
    threads = anyio.to_thread.current_default_thread_limiter()
    before, hand.fails = threads.total_tokens, True
    engine = RemoteEngine(hand)
    with pytest.raises(OSError, match="away"):
        await engine.start(Work().execute)
    assert threads.total_tokens == before
    hand.fails = False
    async with at_work(engine):
        assert await hand.brings("a")


async def test_taking_goes_on_when_the_carrier_is_back_and_an_engine_says_whether_ids_reach_it(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks.engines.remote.SETTLED", 0.05)
    engine = RemoteEngine(hand)
    await engine.start(Work().execute)
    assert engine.is_taking
    await engine.drain(NONE)
    hand.fails = False
    await engine.start(Work().execute)
    hand.fails = True
    await eventually(lambda: hand.takes >= 3)
    assert not engine.is_taking
    hand.fails = False
    await eventually(lambda: engine.is_taking)
    assert await hand.brings("a")
    await engine.stop(NONE)


async def test_an_id_that_cannot_be_sent_is_said_and_harms_nobody(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    engine = RemoteEngine(hand)
    await engine.start(None)
    await engine.submit("task_12345678901234567890")
    assert "task_1234567… could not be submitted now: OSError" in caplog.text
    await engine.stop(LONG)
