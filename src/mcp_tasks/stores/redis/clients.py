"""Which server is talked to, and the connections to it.

That is the one which the URL names, but for one case: in a cluster another may have the keys, which says so, and they
may move to another still. As they are all in one slot, there is always one server that has them all.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mcp_tasks.stores.redis.address import at, driver_url
from mcp_tasks.stores.redis.errors import NotConnected, is_unanswered
from mcp_tasks.stores.redis.packing import packing

WAIT_FOR_CONNECTION: Final = 30.0
"""Seconds that a call waits for one of the connections while all are in use."""


class _Pool(BlockingConnectionPool):
    """Connections whose failures to be made are told apart from those that break under a request."""

    async def get_connection(self, *args: Any, **options: Any) -> AbstractConnection:
        """A connection, ready to be used."""
        try:
            return await super().get_connection(*args, **options)
        except Exception as exc:
            if is_unanswered(exc):
                raise NotConnected(str(exc)) from exc
            raise


class Clients:
    """The client that is to be used now.

    Args:
        max_connections: Calls at a time; more wait for their turn.
        timeout: Seconds that one attempt may take.
    """

    def __init__(self, url: str, *, max_connections: int, timeout: float) -> None:
        self._home = self._url = driver_url(url)
        self._max_connections = max_connections
        self.timeout: float = timeout
        self.current: Redis | None = None
        self._left: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Have a client. Connections are made when they are needed, and belong to this event loop."""
        self._url = self._home
        self.current = self.new(self._max_connections)

    def new(self, max_connections: int) -> Redis:
        """A client with connections of its own. It repeats nothing by itself, and answers with bytes."""
        pool = _Pool.from_url(
            self._url,
            max_connections=max_connections,
            timeout=WAIT_FOR_CONNECTION,
            socket_timeout=self.timeout,
            socket_connect_timeout=self.timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        pool.connection_class = packing(pool.connection_class)
        return Redis(connection_pool=pool)

    def follow(self, host: str, port: int) -> None:
        """Talk to another server of the cluster from now on."""
        self._use(at(self._home, host, port))

    def go_home(self) -> None:
        """Talk to the server that the URL names: the other one cannot be reached, and this one may know where to go."""
        self._use(self._home)

    async def close(self, client: Redis) -> None:
        """Let go of a client, and of those that were left."""
        for leaving in list(self._left):
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
        await dispose(client)

    def _use(self, url: str) -> None:
        if url == self._url or self.current is None:
            return
        self._url, left = url, self.current
        self.current = self.new(self._max_connections)
        leaving = asyncio.create_task(self._leave(left), name="mcp-tasks leaves a server")
        self._left.add(leaving)
        leaving.add_done_callback(self._left.discard)

    async def _leave(self, client: Redis) -> None:
        """Let go of a client once nobody waits for an answer to it any more."""
        try:
            await asyncio.sleep(self.timeout)
        finally:
            await dispose(client)


async def dispose(client: Redis) -> None:
    """Let go of a client and its connections, whatever state they are in."""
    with suppress(Exception):
        await client.aclose()
    with suppress(Exception):
        await client.connection_pool.disconnect()
