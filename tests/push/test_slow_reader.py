"""A reader that does not read: it gets fewer states and never older ones, and costs the server next to nothing."""

from __future__ import annotations

import anyio
import pytest

from harness.http import HttpWire
from harness.rpc import PATIENCE, Tasking
from harness.server import Desk
from mcp_tasks.protocol.shapes import PROGRESS_META_KEY
from tests.push.listening import listen, listening
from tests.push.raw import raw_listening

pytestmark = pytest.mark.anyio

CHANGES = 1_000
MESSAGE = "x" * 50_000
BUFFERS = 12 * 2**20
"""What the buffers of the two sockets may hold, with room to spare. All states together are four times that."""


async def test_a_reader_that_stops_reading_gets_the_newest_state_in_the_end(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    busy = await client.create("progressing", steps=CHANGES, total=CHANGES, message=MESSAGE)
    async with raw_listening(wire.url, listen([busy]), receive_buffer=4_096) as slow:
        await slow.frame()
        async with listening(wire, [busy]) as quick:
            await quick.acknowledged()
            state = await quick.task()
            while state.get("_meta", {}).get(PROGRESS_META_KEY, {}).get("progress") != CHANGES:
                state = await quick.task()
            desk.gate.set()
            # Whoever reads is not held up by who does not.
            await quick.until("completed")
        with anyio.fail_after(PATIENCE):
            frames = await slow.until("completed")
    done = [frame["params"].get("_meta", {}).get(PROGRESS_META_KEY, {}).get("progress", 0) for frame in frames]
    assert done == sorted(done)
    # Everything that waited anywhere for this reader has arrived by now: it was never more than this.
    assert slow.received < BUFFERS
    assert len(frames) < CHANGES / 2


async def test_a_reader_that_hangs_up_in_the_middle_is_nobodys_problem(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    busy = await client.create("progressing", steps=CHANGES, total=CHANGES, message=MESSAGE)
    async with raw_listening(wire.url, listen([busy]), receive_buffer=4_096) as slow:
        await slow.frame()
    desk.gate.set()
    await client.until(busy, "completed")
