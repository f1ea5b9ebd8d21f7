"""Hints between processes, by publish and subscribe.

A script that changes a task publishes the hint itself, so that it costs no round trip. Redis keeps none for whoever
does not listen just then: what is lost is found by looking at the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from secrets import token_bytes
from typing import Any, Final, cast

import anyio
from redis.asyncio import Redis

from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.hints import HintFan
from mcp_tasks.stores.redis.clients import dispose
from mcp_tasks.stores.redis.connection import Connection
from mcp_tasks.stores.redis.errors import is_driver_error
from mcp_tasks.stores.redis.names import from_bytes, to_bytes

logger: Final = get_logger(__name__)

SENDER = 8
"""Bytes that say which store sent a hint."""

LONGEST_VERSION = 20
"""Digits."""

SILENCE = 10.0
"""Seconds without a hint after which the server is asked whether it is still there."""

MOST_PAUSE = 5.0
"""Seconds between two attempts to listen again, at most."""

PATIENCE = 2.0
"""Seconds that a new listener waits for the subscription: one that is late loses hints, and nothing else."""


class RedisNotifier:
    """Gives this process's hints to its listeners at once, and those of others as they are published."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.prefix + b"hints"
        self._sender = token_bytes(SENDER)
        self._fan = HintFan()
        self._listeners = 0
        self._listening: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    def message(self, hint: Hint) -> tuple[int, bytes, bytes]:
        """The hint as an argument of the script that publishes it: a list of the channel and what is said there."""
        return 2, self._channel, self._sender + b"%d:" % hint.version + to_bytes(hint.task_id)

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process; the others were told with the change."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as hints:
            self._listeners += 1
            try:
                await self._start()
                yield hints
            finally:
                self._listeners -= 1
                if not self._listeners:
                    with anyio.CancelScope(shield=True):
                        await self.stop()

    async def stop(self) -> None:
        """Hear nothing more of other processes."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _start(self) -> None:
        if self._listening is None and self._connection.is_open:
            self._subscribed = asyncio.Event()
            self._listening = asyncio.create_task(self._listen(), name="mcp-tasks hints")
        with anyio.move_on_after(PATIENCE):
            await self._subscribed.wait()

    async def _listen(self) -> None:
        failures = 0
        while True:
            client = self._connection.clients.new(1)
            try:
                await self._subscribe(client)
            except Exception as exc:
                if not is_driver_error(exc):
                    logger.error(
                        "%s: hints of other processes cannot be read", self._connection.place, exc_info=quietly()
                    )
                failures = 0 if self._subscribed.is_set() else failures + 1
                logger.debug("%s: listening again (%s)", self._connection.place, type(exc).__name__)
            finally:
                self._subscribed.clear()
                with anyio.CancelScope(shield=True):
                    await dispose(client)
            await asyncio.sleep(min(0.05 * 2**failures, MOST_PAUSE))

    async def _subscribe(self, client: Redis) -> None:
        """Hand on what comes, until the connection breaks."""
        channel = client.pubsub()
        try:
            await channel.subscribe(self._channel)
            asked = False
            while True:
                message = cast("dict[str, Any] | None", await channel.get_message(timeout=SILENCE))
                if message is not None:
                    asked = False
                    self._take(message)
                elif asked:
                    raise TimeoutError("the server does not answer")
                else:
                    asked = True
                    await channel.ping()
        finally:
            with suppress(Exception):
                await channel.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._subscribed.set()
        data = message["data"]
        if message["type"] != "message" or not isinstance(data, bytes) or data.startswith(self._sender):
            return
        version, _, task_id = data[SENDER:].partition(b":")
        # Anybody may publish anything.
        if version.isdigit() and len(version) <= LONGEST_VERSION:
            self._fan.put(Hint(from_bytes(task_id), int(version)))
