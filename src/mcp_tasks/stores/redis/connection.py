"""One round trip to the server: connections that are shared, and attempts that are repeated.

A write whose connection broke after it was sent may have been written or not. It is sent again, under the same token
(`lua/tokens.lua`), and a write that finds its token does nothing: so what comes of it is known, unless the server
stays out of reach. Then the caller is told `StoreUnavailable`, and what was sent last may yet be found written. No
later write is lost by that: whoever tries again names the version that it knew, and is told of the conflict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from mcp_tasks.errors import UsageError
from mcp_tasks.stores.redis.address import driver_url, shown
from mcp_tasks.stores.redis.errors import is_driver_error, is_passing, translate
from mcp_tasks.stores.redis.scripts import script

Argument: TypeAlias = bytes | str | int

PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds before each further attempt. A server that is restarted is back after them, mostly."""

WAIT_FOR_CONNECTION: Final = 30.0
"""Seconds that a call waits for one of the connections while all are in use."""


class Connection:
    """The server behind a URL.

    Args:
        prefix: What all keys begin with, hash tag included.
        max_connections: Calls at a time; more wait for their turn.
        timeout: Seconds that one attempt may take.
    """

    def __init__(self, url: str, *, prefix: bytes, max_connections: int, timeout: float) -> None:
        self._url = driver_url(url)
        self.place: str = shown(url)
        self.prefix: bytes = prefix
        self.round_trips: int = 0
        self._max_connections = max_connections
        self._timeout = timeout
        self._client: Redis | None = None
        self._under_way = 0
        self._idle = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return self._client is not None

    def open(self) -> None:
        """Take calls from now on. Connections are made when they are needed, and belong to this event loop."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._client = self.new_client(self._max_connections)

    def new_client(self, max_connections: int) -> Redis:
        """A client with connections of its own. It repeats nothing by itself, and answers with bytes."""
        pool = BlockingConnectionPool.from_url(
            self._url,
            max_connections=max_connections,
            timeout=WAIT_FOR_CONNECTION,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        return Redis(connection_pool=pool)

    async def close(self) -> None:
        """Take no more calls, wait for those under way, and let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            await self._idle.wait()
            await dispose(client)

    async def call(self, *command: Argument) -> Any:
        """What one command answers.

        Raises:
            StoreError: It cannot be had.
        """
        return await self._attempt(lambda client, _: _execute(client, *command))

    async def run(self, name: str, *arguments: Argument, again: bool = False) -> Any:
        """What a script answers. With `again`, one more argument says whether it may have been run before.

        Raises:
            StoreError: It cannot be had.
        """
        wanted = script(name)

        async def attempt(client: Redis, number: int) -> Any:
            rest = (1, self.prefix, *arguments, *((int(number > 0),) if again else ()))
            try:
                return await _execute(client, "EVALSHA", wanted.digest, *rest)
            except NoScriptError:
                self.round_trips += 1
                return await _execute(client, "EVAL", wanted.text, *rest)

        return await self._attempt(attempt)

    async def _attempt(self, act: Callable[[Redis, int], Awaitable[Any]]) -> Any:
        client = self._client
        if client is None:
            raise UsageError(f"the store {self.place} is not open: `await store.open()` comes first")
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._with_patience(client, act)
        except Exception as exc:
            if is_driver_error(exc):
                raise translate(exc, self.place) from exc
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _with_patience(self, client: Redis, act: Callable[[Redis, int], Awaitable[Any]]) -> Any:
        began = time.monotonic()
        for number, pause in enumerate((*PAUSES, None)):
            self.round_trips += 1
            try:
                return await act(client, number)
            except Exception as exc:
                # At least twice: to a server that was restarted all connections are broken, and a write that was sent
                # must be asked about.
                is_late = number > 0 and time.monotonic() - began > self._timeout
                if pause is None or is_late or not is_passing(exc):
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


async def _execute(client: Redis, *command: Argument) -> Any:
    return cast(Any, await client.execute_command(*command))


async def dispose(client: Redis) -> None:
    """Let go of a client and its connections, whatever state they are in."""
    with suppress(Exception):
        await client.aclose()
    with suppress(Exception):
        await client.connection_pool.disconnect()
