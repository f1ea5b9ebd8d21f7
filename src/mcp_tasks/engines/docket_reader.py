"""Reading one of Docket's streams: how often it is asked, and whether there is room for what it brings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from docket import Execution, Worker

from mcp_tasks.engines.remote import Deliver

Handler: TypeAlias = Callable[..., Awaitable[None]]

BUSY: Final = timedelta(milliseconds=10)
"""How long a read waits for more while something arrives, and how long a reader with its hands full waits."""

FULL: Final = timedelta(milliseconds=100)
"""How often a reader looks whether there is room again, when there has been none for a while. It asks nobody."""

REST: Final = 1.0
"""Seconds without anything new after which a reader asks rarely."""


class Reader:
    """Reads one stream, and asks often or rarely as things arrive.

    Args:
        name: Of the docket.
        handler: What is done with what arrives.
        due_check: How often it is looked for what is due.
    """

    def __init__(self, name: str, handler: Handler, *, due_check: timedelta) -> None:
        self.name = name
        self.due_check = due_check
        self._handler = handler
        self._worker: Worker | None = None
        self._idle_check = BUSY
        self._concurrency = 0
        self._paused = False
        self._at_work = 0
        self._noticed = 0.0

    def begin(self, worker: Worker) -> None:
        """Take charge of a worker: it asks rarely to begin with, and reads unless there is no room."""
        self._worker, self._idle_check, self._concurrency = worker, worker.minimum_check_interval, worker.concurrency
        if self._paused:
            self.pause()

    async def handle(self, *args: str) -> None:
        """Handle what has arrived; nothing that is none of ours."""
        if not args:
            return
        self._at_work += 1
        try:
            await self._handler(*args)
        finally:
            self._at_work -= 1
            self._noticed = time.monotonic()

    def notice(self, execution: Execution) -> bool:
        """Something has arrived: ask often.

        Docket calls this first of all for what it has read, and goes by the answer whether not to do it. The next read
        comes back later than that. So as long as one read does not fill its hands, it never waits for them to be free
        for as long as an idle read waits for something to arrive.
        """
        self._noticed = time.monotonic()
        self._ask_every(BUSY)
        return False

    def rest(self) -> None:
        """Ask rarely, if nothing has arrived for a while."""
        if time.monotonic() - self._noticed > REST and not self._at_work:
            self._ask_every(FULL if self._paused else self._idle_check)

    def pause(self) -> None:
        """Read nothing more for now."""
        self._paused = True
        self._noticed = time.monotonic()
        if self._worker is not None:
            self._worker.concurrency = 0
            self._ask_every(BUSY)

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._worker is not None:
            self._worker.concurrency = self._concurrency

    def _ask_every(self, interval: timedelta) -> None:
        if self._worker is not None:
            self._worker.minimum_check_interval = interval


class Deliveries:
    """The ids that have been read, and wait for a slot here or for the store to know who has the task."""

    def __init__(self, deliver: Deliver) -> None:
        self.stopping: bool = False
        self._deliver = deliver
        self._under_way: set[asyncio.Future[bool]] = set()
        self._arrived = asyncio.Event()

    async def made(self, task_id: str) -> bool:
        """Deliver an id. False if it is to be sent again."""
        if self.stopping:
            return False
        delivery = asyncio.ensure_future(self._deliver(task_id))
        self._under_way.add(delivery)
        self._arrived.set()
        try:
            await asyncio.wait({delivery})
        finally:
            self._under_way.discard(delivery)
        return not delivery.cancelled() and delivery.result()

    async def keep_room(self, readers: Sequence[Reader]) -> None:
        """Have nothing read while there is no room for it: it would only wait here, where others may have room."""
        while True:
            self._arrived.clear()
            asking = asyncio.ensure_future(self._deliver.room())
            if not (await asyncio.wait({asking}, timeout=BUSY.total_seconds()))[0]:
                for reader in readers:
                    reader.pause()
                await asyncio.wait({asking})
            if not asking.result():
                # Nothing is taken here any more, and whoever takes is about to be told.
                await asyncio.Event().wait()
            for reader in readers:
                reader.resume()
            await self._arrived.wait()

    def stop(self) -> None:
        """What still waits is to be sent again."""
        self.stopping = True
        for delivery in self._under_way:
            delivery.cancel()
