"""How late an event loop is: a coroutine that sleeps for a millisecond, over and over, and the commands to read it.

A measured server runs this beside its app. Commands come on stdin and are read by a thread, so that asking costs the
loop nothing: `start`, and `stop`. Each is answered with a line of JSON: by how many seconds each sleep was late, and
how many seconds of CPU the process used meanwhile. On a busy machine a process is late without having done anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time

TICK = 0.001
"""Seconds between two looks. The loop's own timers are no finer."""


class Ticker:
    """Measures the loop that it is started on."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._going = False
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> list[tuple[float, float]]:
        """Begin to measure, and forget what was measured before. On return the first sleep has begun."""
        self._late = []
        self._going = True
        self._ticking = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self._late

    async def stop(self) -> list[tuple[float, float]]:
        """By how much each sleep was late, and the CPU used; the one that lasts now included."""
        self._going = False
        if self._ticking is not None:
            await self._ticking
        return self._late

    async def _tick(self) -> None:
        while self._going:
            due, used = time.perf_counter() + TICK, time.process_time()
            await asyncio.sleep(TICK)
            self._late.append((time.perf_counter() - due, time.process_time() - used))


def obey(ticker: Ticker) -> None:
    """Do what stdin says, on a thread, while the running loop lasts. Nobody there any more ends the process."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            act = ticker.start if line.strip() == "start" else ticker.stop
            late = asyncio.run_coroutine_threadsafe(act(), loop).result()
            print(json.dumps(late), flush=True)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
