"""The listeners of the short way, on a runtime and a web server that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from harness.rpc import PATIENCE
from mcp_tasks.model import TaskRecord
from mcp_tasks.protocol.dialect import ModernDialect
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.run import Run
from mcp_tasks.server.fast_path.listening import AT_A_TIME, Listener, Listeners
from mcp_tasks.server.fast_path.requests import Counts, HandedOver, Handover
from mcp_tasks.stores.memory import MemoryStore
from tests.push.asgi import Peer
from tests.unit.running import Ending, cancel, launch, ok, running, settle
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

QUIET = 3_600.0
"""Seconds after which a stream of these tests would be kept alive: never."""


@dataclass
class World:
    """A runtime whose tools wait, and its listeners."""

    runtime: TaskRuntime
    store: CountingStore
    gate: asyncio.Event
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counts = field(default_factory=Counts)

    def listeners(self, most: int = 10_000, keep_alive: float = QUIET) -> Listeners:
        return Listeners(self.stop.wait, self.counts, most, keep_alive=keep_alive)

    async def open(self, listeners: Listeners, ids: Sequence[str], peer: Peer) -> Listener:
        return await listeners.open(Listening(self.runtime, ModernDialect(), ids), 7, peer.send)

    @asynccontextmanager
    async def listening(self, listeners: Listeners, *ids: str) -> AsyncGenerator[Peer]:
        """A stream that somebody stays on."""
        peer = Peer()
        await peer.receive()
        listener = await self.open(listeners, ids, peer)
        staying = asyncio.create_task(listener.stay(peer.receive))
        try:
            yield peer
        finally:
            peer.leave()
            with anyio.fail_after(PATIENCE):
                await staying

    def nothing_is_left(self) -> bool:
        return self.counts.listeners == 0 and not self.runtime.hints.listened()


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    gate = asyncio.Event()

    async def waits(run: Run) -> Ending:
        await gate.wait()
        return ok()

    store = CountingStore()
    async with running(waits, store=store) as runtime:
        yield World(runtime, store, gate)
        gate.set()


class CountingStore(MemoryStore):
    """Counts what is read of it, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.defect: Exception | None = None

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.defect is not None:
            raise self.defect
        return await super().get(task_id)


async def at_work(world: World) -> TaskRecord:
    record = await launch(world.runtime)
    await settle()
    return record


async def test_the_acknowledgement_is_first_and_the_state_of_each_task_follows(world: World) -> None:
    ids = [(await at_work(world)).id for _ in range(3)]
    async with world.listening(world.listeners(), *ids) as peer:
        first, *states = peer.frames
        assert first["params"]["notifications"] == {"taskIds": ids}
        assert [state["params"]["taskId"] for state in states] == ids
        assert peer.status == 200
        assert (b"content-type", b"text/event-stream") in peer.headers


@simulated
async def test_a_silent_stream_is_kept_alive(world: World) -> None:
    async with world.listening(world.listeners(keep_alive=15)) as peer:
        await time_passes(14)
        assert ": ping" not in peer.events
        await time_passes(40)
        assert peer.events[1:] == [": ping"] * 3


@simulated
async def test_a_stream_that_speaks_is_not_disturbed(world: World) -> None:
    tasks = [await at_work(world) for _ in range(5)]
    async with world.listening(world.listeners(keep_alive=15), *(task.id for task in tasks)) as peer:
        for task in tasks:
            await time_passes(10)
            await cancel(world.runtime, task)
            await settle()
        assert [peer.statuses(task.id)[-1] for task in tasks] == ["cancelled"] * 5
        assert ": ping" not in peer.events


async def test_thousands_of_silent_streams_are_all_kept_alive(world: World) -> None:
    listeners = world.listeners(keep_alive=0.2)
    peers = [Peer() for _ in range(5 * AT_A_TIME)]
    streams = [await world.open(listeners, (), peer) for peer in peers]
    for peer in peers:
        await peer.until(lambda seen: ": ping" in seen.events)
    for stream in streams:
        stream.close()
    assert world.nothing_is_left()


async def test_a_client_that_leaves_leaves_nothing_behind(world: World) -> None:
    task = await at_work(world)
    listeners = world.listeners()
    before = asyncio.all_tasks()
    async with world.listening(listeners, task.id, task.id) as peer:
        assert world.counts.listeners == 1
        assert list(world.runtime.hints.listened()) == [task.id]
    assert world.nothing_is_left()
    await settle()
    assert asyncio.all_tasks() == before
    await cancel(world.runtime, task)
    await settle()
    assert peer.statuses(task.id) == ["working"]


async def test_a_request_that_the_web_server_cancels_leaves_nothing_behind(world: World) -> None:
    task = await at_work(world)
    before = asyncio.all_tasks()
    stream = await world.open(world.listeners(), [task.id], Peer())
    staying = asyncio.create_task(stream.stay(asyncio.Event().wait))  # pyright: ignore[reportArgumentType]
    await settle()
    staying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staying
    assert world.nothing_is_left()
    await settle()
    assert asyncio.all_tasks() == before


async def test_every_stream_ends_with_a_result_when_the_server_is_told_to_stop(world: World) -> None:
    task = await at_work(world)
    listeners = world.listeners()
    async with world.listening(listeners, task.id) as one, world.listening(listeners) as other:
        world.stop.set()
        for peer in (one, other):
            await peer.until(lambda seen: seen.is_complete)
            assert peer.frames[-1]["id"] == 7
            assert peer.frames[-1]["result"]["resultType"] == "complete"
        assert world.nothing_is_left()


async def test_a_stream_that_is_opened_while_the_server_stops_ends_as_well(world: World) -> None:
    listeners = world.listeners()
    async with world.listening(listeners) as one:
        # It does not read, and so is still there when the other comes.
        one.reads.clear()
        world.stop.set()
        await settle()
        async with world.listening(listeners) as late:
            await late.until(lambda seen: seen.is_complete)
        one.reads.set()
        await one.until(lambda seen: seen.is_complete)


async def test_a_reader_that_is_slow_gets_fewer_states_and_the_newest_last(world: World) -> None:
    tasks = [await at_work(world) for _ in range(2)]
    listeners = world.listeners()
    async with world.listening(listeners, *[task.id for task in tasks]) as slow:
        async with world.listening(listeners, *[task.id for task in tasks]) as quick:
            slow.reads.clear()
            await cancel(world.runtime, tasks[0])
            # Whoever reads is not held up by who does not.
            await quick.until(lambda seen: seen.statuses(tasks[0].id)[-1] == "cancelled")
            pieces = len(slow.sent)
            world.gate.set()
            await quick.until(lambda seen: seen.statuses(tasks[1].id)[-1] == "completed")
            assert len(slow.sent) == pieces
        slow.reads.set()
        await slow.until(lambda seen: seen.statuses(tasks[1].id)[-1] == "completed")
        assert slow.statuses(tasks[0].id) == ["working", "cancelled"]


async def test_one_that_never_reads_can_still_be_left(world: World) -> None:
    task = await at_work(world)
    async with world.listening(world.listeners(), task.id) as peer:
        peer.reads.clear()
        await cancel(world.runtime, task)
        await settle()
    assert world.nothing_is_left()


async def test_no_more_than_the_limit_are_served(world: World) -> None:
    listeners = world.listeners(most=2)
    async with world.listening(listeners):
        async with world.listening(listeners):
            refused = Peer()
            with pytest.raises(HandedOver) as exc:
                await world.open(listeners, (), refused)
            assert exc.value.reason is Handover.LISTENERS
            assert refused.status is None
        async with world.listening(listeners) as peer:
            assert peer.status == 200
    assert world.nothing_is_left()


async def test_a_thousand_listeners_of_one_task_are_told_once_each_while_others_have_their_turn(world: World) -> None:
    task = await at_work(world)
    listeners = world.listeners()
    peers = [Peer() for _ in range(1_000)]
    streams = [await world.open(listeners, [task.id], peer) for peer in peers]
    turns = asyncio.create_task(count_turns(peers))
    await cancel(world.runtime, task)
    with anyio.fail_after(PATIENCE):
        # More than a few turns of the event loop: nobody else waited until all were told.
        assert await turns > len(peers) / AT_A_TIME / 2
    for peer in peers:
        assert peer.statuses(task.id) == ["working", "cancelled"]
    for stream in streams:
        stream.close()
    assert world.nothing_is_left()


async def count_turns(peers: Sequence[Peer]) -> int:
    """How many turns others have between the first and the last that is told."""
    turns = 0
    while (told := sum(len(peer.sent) > 1 for peer in peers)) < len(peers):
        turns += told > 0
        await asyncio.sleep(0)
    return turns


async def test_what_happens_while_the_first_states_are_sent_is_told(world: World) -> None:
    task = await at_work(world)
    peer = Peer()
    peer.reads.clear()
    opening = asyncio.create_task(world.open(world.listeners(), [task.id], peer))
    await settle()
    await cancel(world.runtime, task)
    peer.reads.set()
    stream = await opening
    await peer.until(lambda seen: "cancelled" in seen.statuses(task.id))
    stream.close()


async def test_a_request_that_is_given_up_while_it_is_acknowledged_leaves_nothing(world: World) -> None:
    task = await at_work(world)
    peer = Peer()
    peer.reads.clear()
    opening = asyncio.create_task(world.open(world.listeners(), [task.id], peer))
    await settle()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert world.nothing_is_left()


async def test_a_web_server_that_says_the_client_is_gone_ends_the_stream(world: World) -> None:
    task = await at_work(world)
    peer = Peer()
    stream = await world.open(world.listeners(), [task.id], peer)
    peer.broken = OSError("gone")
    await cancel(world.runtime, task)
    with anyio.fail_after(PATIENCE):
        await stream.stay(Peer().receive)
    assert world.nothing_is_left()


async def test_a_defect_ends_the_stream_with_an_error_that_says_nothing_of_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task = await at_work(world)
    async with world.listening(world.listeners(), task.id) as peer:
        await cancel(world.runtime, task)
        world.store.defect = RuntimeError("the password is swordfish")
        await peer.until(lambda seen: seen.is_complete)
        world.store.defect = None
        assert peer.frames[-1]["id"] == 7
        assert peer.frames[-1]["error"] == {"code": -32603, "message": "Internal server error"}
    # The SDK, which is asked for the words of the error, may log it as it logs defects of its own.
    said = [record for record in caplog.records if record.name.startswith("mcp_tasks")]
    assert [record.getMessage() for record in said] == ["a listen stream ends with an error"]
    assert not [record for record in said if "swordfish" in str(record.exc_text)]
    assert world.nothing_is_left()


async def test_whoever_waits_for_the_end_of_a_stream_is_told_once(world: World) -> None:
    ends: list[str] = []
    stream = await world.open(world.listeners(), (), Peer())
    stream.when_over(lambda: ends.append("over"))
    stream.close()
    stream.close()
    assert ends == ["over"]
    stream.when_over(lambda: ends.append("late"))
    assert ends == ["over", "late"]
