"""Listen streams at an ASGI app whose web server a test plays; the events that they are made of."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from mcp.server import MCPServer
from starlette.types import ASGIApp

from harness.rpc import PATIENCE, request
from harness.server import QUICK, UNPACED
from mcp_tasks import Tasks
from mcp_tasks.model.json import LARGE, encode_json
from mcp_tasks.server.fast_path.listening import AT_A_TIME, KEEP_ALIVE, escaped, event
from mcp_tasks.server.local import LocalTask
from tests.contracts.strategies import json_values
from tests.push.asgi import Peer, app_of, at
from tests.unit.running import MeddledStore, settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")]),
]


@dataclass
class World:
    tasks: Tasks
    store: MeddledStore
    app: ASGIApp
    gate: asyncio.Event
    peers: list[Peer] = field(default_factory=list[Peer])

    async def at_work(self) -> LocalTask[Any]:
        task = await self.tasks.start("waits", {})
        await settle()
        return task

    @asynccontextmanager
    async def listening(self, *tasks: LocalTask[Any]) -> AsyncGenerator[Peer]:
        params = {"notifications": {"taskIds": [task.id for task in tasks]}}
        async with at(self.app, request("subscriptions/listen", params)) as peer:
            await peer.until(lambda seen: len(seen.events) > len(tasks))
            yield peer


@asynccontextmanager
async def new_world() -> AsyncGenerator[World]:
    gate, store = asyncio.Event(), MeddledStore()

    def now() -> datetime:
        return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)

    tasks = Tasks(store, settings=QUICK, limits=UNPACED, clock=now)
    server: MCPServer[Any] = MCPServer("streams", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def waits() -> str:
        await gate.wait()
        return "waited"

    async with app_of(server) as app:
        yield World(tasks, store, app, gate)
        gate.set()


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with new_world() as made:
        yield made


async def test_every_stream_ends_with_a_result_when_the_server_is_told_to_stop_also_one_that_is_opened_then() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        async with new_world() as world:
            task = await world.at_work()
            async with world.listening(task) as one, world.listening() as other:
                # It does not read, and so is still there when the last one comes.
                one.reads.clear()
                os.kill(os.getpid(), signal.SIGTERM)
                await other.until(lambda seen: seen.is_complete)
                async with world.listening() as late:
                    await late.until(lambda seen: seen.is_complete)
                one.reads.set()
                await one.until(lambda seen: seen.is_complete)
                for peer in (one, other, late):
                    assert peer.frames[-1]["result"]["resultType"] == "complete"
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_stream_is_kept_alive_while_it_is_silent(world: World) -> None:
    tasks = [await world.at_work() for _ in range(3)]
    async with world.listening(*tasks) as peer, world.listening() as silent:
        for task in tasks:
            await time_passes(KEEP_ALIVE * 2 / 3)
            await task.cancel()
            await settle()
        assert [peer.statuses(task.id)[-1] for task in tasks] == ["cancelled"] * 3
        assert ": ping" not in peer.events
        assert silent.events[1:] == [": ping"] * 2
        await time_passes(KEEP_ALIVE * 2)
        assert ": ping" in peer.events


async def test_many_listeners_of_one_task_are_told_once_each_while_others_have_their_turn(world: World) -> None:
    task = await world.at_work()
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(world.listening(task)) for _ in range(6 * AT_A_TIME)]

        async def count_turns() -> int:
            """How many turns others have between the first and the last that is told."""
            turns = 0
            while (told := sum(len(peer.events) > 2 for peer in peers)) < len(peers):
                turns += told > 0
                await asyncio.sleep(0)
            return turns

        turns = asyncio.create_task(count_turns())
        await task.cancel()
        with anyio.fail_after(PATIENCE):
            # More than a few turns of the event loop: nobody else waited until all were told.
            assert await turns > len(peers) / AT_A_TIME / 2
        assert {tuple(peer.statuses(task.id)) for peer in peers} == {("working", "cancelled")}
        # And all of them are kept alive.
        await time_passes(KEEP_ALIVE * 1.5)
        assert all(": ping" in peer.events for peer in peers)


async def test_a_reader_that_is_slow_gets_fewer_states_and_the_newest_last_and_holds_up_nobody(world: World) -> None:
    first, second = await world.at_work(), await world.at_work()
    async with world.listening(first, second) as slow, world.listening(first, second) as quick:
        slow.reads.clear()
        await first.cancel()
        await quick.until(lambda seen: seen.statuses(first.id)[-1] == "cancelled")
        pieces = len(slow.sent)
        world.gate.set()
        await quick.until(lambda seen: seen.statuses(second.id)[-1] == "completed")
        assert len(slow.sent) == pieces
        slow.reads.set()
        await slow.until(lambda seen: seen.statuses(second.id)[-1] == "completed")
        assert slow.statuses(first.id) == ["working", "cancelled"]


async def test_what_happens_while_the_first_states_are_sent_is_told(world: World) -> None:
    task = await world.at_work()
    params = {"notifications": {"taskIds": [task.id]}}
    async with at(world.app, request("subscriptions/listen", params)) as peer:
        peer.reads.clear()
        await settle()
        await task.cancel()
        peer.reads.set()
        await peer.until(lambda seen: "cancelled" in seen.statuses(task.id))


@pytest.mark.parametrize("when", ["it was opened", "it does not read", "it breaks"])
async def test_a_client_that_leaves_leaves_nothing_behind(world: World, when: str) -> None:
    task = await world.at_work()
    before = asyncio.all_tasks()
    async with world.listening(task, task) as peer:
        if when == "it does not read":
            peer.reads.clear()
        if when == "it breaks":
            peer.broken = OSError("gone")
        if when != "it was opened":
            await task.cancel()
            await settle()
    await settle()
    assert asyncio.all_tasks() <= before
    if when == "it was opened":
        await task.cancel()
        await settle()
        assert peer.statuses(task.id) == ["working"]


async def test_a_defect_ends_the_stream_with_an_error_that_says_nothing_of_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task = await world.at_work()
    async with world.listening(task) as peer:
        await task.cancel()
        world.store.refuse(RuntimeError("the password is swordfish"), "get")
        await peer.until(lambda seen: seen.is_complete)
        world.store.before.clear()
        assert peer.frames[-1]["error"] == {"code": -32603, "message": "Internal server error"}
    # The SDK, which is asked for the words of the error, may log it as it logs defects of its own.
    said = [record for record in caplog.records if record.name.startswith("mcp_tasks.server")]
    assert [record.getMessage() for record in said] == ["a listen stream ends with an error"]
    assert not [record for record in said if "swordfish" in str(record.exc_text)]


# Messages as events: one line each, whatever is in them


EVERYTHING = "".join(map(chr, [*range(0x3000), 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]))


@given(value=json_values())
@example(value=EVERYTHING)
@example(value={EVERYTHING: "\\\u2028"})
@example(value=["\u2028", "\\u0001\\u0002\\\\u0001\x01\x02\\"])
@settings(deadline=None)
async def test_an_event_is_one_line_to_every_reader_and_says_the_same(value: Any) -> None:
    first, second, *rest = event(encode_json(value)).decode("ascii").splitlines()
    assert (first, rest) == ("event: message", [""])
    assert json.loads(second.removeprefix("data: ")) == value


@pytest.mark.parametrize("text", ["x", "ü", "\u2028", "\U0001f600", "ü\U0001f600xyz", EVERYTHING])
async def test_what_is_large_is_escaped_the_same(text: str) -> None:
    # Whichever of its bytes is the last of a piece.
    for shift in range(4):
        value = "s" * shift + text * (3 * LARGE // len(text))
        assert json.loads((await escaped(encode_json(value))).decode("ascii")) == value
    assert await escaped('\t{"a\u2028"\t:\t["\\t",\t1 ]}'.encode()) == b' {"a\\u2028" : ["\\t", 1 ]}'
