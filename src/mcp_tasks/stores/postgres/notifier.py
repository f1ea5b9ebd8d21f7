"""Hints between processes by LISTEN and NOTIFY.

A process has one connection that listens, from the first listener to the last. It connects again by itself; what is
missed meanwhile is lost, which does no harm.

Hints are told after the commit of what they are about, many at once, and not in its transaction: Postgres lets only one
transaction that notifies commit at a time, in the whole cluster, and each waits for the disk. Measured on 16
connections, single-row updates that notified were four times slower than those that did not; a statement that only
notifies waits for no disk.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.hints import HintFan, Inbox
from mcp_tasks.stores.postgres.database import Database, keeping_alive

logger: Final = get_logger(__name__)

CHANNEL: Final = "mcp_tasks"
_LISTEN: Final = f"LISTEN {CHANNEL}".encode()
_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', payload) FROM unnest(%(payloads)s::text[]) AS payload".encode()

LARGEST_PAYLOAD: Final = 7_900
"""Bytes. Postgres takes fewer than 8,000."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds before connecting again."""

_TOGETHER_FOR: Final = 0.01
"""Seconds between two tellings. The first hint is told at once; those that follow closely go together, and of one task
only the newest. Each telling is a round trip, and a busy process would make one of every change."""

_READY: Final = 5.0
"""Seconds that a listener waits at most until the process listens: without that it has the hints of its own process."""


class PostgresNotifier:
    """Gives this process's hints to its listeners at once, and to other processes through the database."""

    def __init__(self, url: str, database: Database) -> None:
        self._url = url
        self._database = database
        # What this process told comes back to it, and its listeners have heard it.
        self._me = secrets.token_hex(8)
        self._fan = HintFan()
        self._listeners = 0
        self._listening: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._untold = Inbox()
        self._telling: asyncio.Task[None] | None = None

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process, and soon those of the others."""
        self._fan.put(hint, origin=origin)
        self._untold.put(hint)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as inbox:
            self._listeners += 1
            try:
                await self._begin()
                yield inbox
            finally:
                self._listeners -= 1
                if not self._listeners:
                    self._end()

    async def close(self) -> None:
        """Tell what waits, and stop."""
        listening = self._listening
        self._end()
        await asyncio.gather(*filter(None, (self._telling, listening)), return_exceptions=True)
        self._telling = None

    async def _begin(self) -> None:
        if self._listening is None or self._listening.done():
            self._connected = asyncio.Event()
            self._listening = asyncio.create_task(self._keep_listening())
        try:
            async with asyncio.timeout(_READY):
                await self._connected.wait()
        except TimeoutError:
            logger.warning("%s: no hints of other processes for now; polling goes on", self._database.place)

    def _end(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def _keep_listening(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    fallback_application_name="mcp-tasks hints",
                    **keeping_alive(self._url),
                ) as connection:
                    await connection.execute(_LISTEN)
                    self._connected.set()
                    pause = _FIRST_PAUSE
                    async for notify in connection.notifies():
                        self._hear(notify.payload)
            except (psycopg.Error, OSError) as exc:
                logger.debug("%s: listening broke off: %s", self._database.place, what(exc))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _hear(self, payload: str) -> None:
        sender, _, hints = payload.partition(" ")
        if sender == self._me:
            return
        try:
            for task_id, version in json.loads(hints):
                self._fan.put(Hint(str(task_id), int(version)))
        except (ValueError, TypeError):
            logger.debug("%s: a hint of somebody else: %r", self._database.place, payload[:100])

    async def _tell(self) -> None:
        """Tell all that waits, and what comes meanwhile in one go after it."""
        while payloads := self._payloads():
            try:
                await self._database.rows(_NOTIFY, {"payloads": payloads})
            except (StoreError, UsageError) as exc:
                # A hint is worth less than the work that caused it.
                logger.debug("%s: hints were not told: %s", self._database.place, exc)
            await asyncio.sleep(_TOGETHER_FOR)

    def _payloads(self) -> list[str]:
        payloads: list[str] = []
        hints: list[str] = []
        size = 0
        while (hint := self._untold.pop()) is not None:
            # ASCII, whatever is in the id.
            line = json.dumps([hint.task_id, hint.version])
            if len(line) > LARGEST_PAYLOAD:
                continue
            size += len(line) + 1
            if size > LARGEST_PAYLOAD:
                payloads.append(self._payload(hints))
                hints, size = [], len(line) + 1
            hints.append(line)
        return [*payloads, self._payload(hints)] if hints else payloads

    def _payload(self, hints: Sequence[str]) -> str:
        return f"{self._me} [{','.join(hints)}]"
