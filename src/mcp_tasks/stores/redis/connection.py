"""One round trip to the server: connections that are shared, and attempts that are repeated.

A write whose connection broke after it was sent may have been made or not. It is sent again: if it had been made, it
meets a conflict or an id that is taken, and the write id in the record tells that this is its own doing
(`stores.repeats`). If the server stays out of reach, the caller gets `StoreUnavailable`, which says whether the write
may have been made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

from redis.asyncio import Redis
from redis.exceptions import MovedError, NoScriptError

from mcp_tasks.errors import UsageError
from mcp_tasks.stores.redis.address import shown
from mcp_tasks.stores.redis.clients import Clients
from mcp_tasks.stores.redis.errors import is_driver_error, is_passing, is_unanswered, translate
from mcp_tasks.stores.redis.scripts import WRITES, script

Argument: TypeAlias = bytes | str | int

PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds before each further attempt. A server that is restarted is back after them, mostly."""


class Connection:
    """The server behind a URL.

    Args:
        prefix: What all keys begin with, hash tag included.
        max_connections: Calls at a time; more wait for their turn.
        timeout: Seconds that one attempt may take.
    """

    def __init__(self, url: str, *, prefix: bytes, max_connections: int, timeout: float) -> None:
        self.clients: Clients = Clients(url, max_connections=max_connections, timeout=timeout)
        self.place: str = shown(url)
        self.prefix: bytes = prefix
        self.round_trips: int = 0
        self._is_open = False
        self._under_way = 0
        self._idle = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return self._is_open

    def open(self) -> None:
        """Take calls from now on."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.clients.open()
        self._is_open = True

    async def close(self) -> None:
        """Take no more calls, wait for those under way, and let go of the connections."""
        self._is_open = False
        if self.clients.current is not None:
            await self._idle.wait()
            client, self.clients.current = self.clients.current, None
            await self.clients.close(client)

    async def call(self, *command: Argument) -> Any:
        """What one command answers. It only reads, or does the same each time.

        Raises:
            StoreError: It cannot be had.
        """
        return await self._attempt(lambda client, _: _execute(client, *command), writes=False)

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

        return await self._attempt(attempt, writes=name in WRITES)

    async def _attempt(self, act: Callable[[Redis, int], Awaitable[Any]], *, writes: bool) -> Any:
        if not self._is_open:
            raise UsageError(f"the store {self.place} is not open: `await store.open()` comes first")
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._with_patience(act, writes=writes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _with_patience(self, act: Callable[[Redis, int], Awaitable[Any]], *, writes: bool) -> Any:
        began = time.monotonic()
        may_have_happened = False
        for number, pause in enumerate((*PAUSES, None)):
            client = cast(Redis, self.clients.current)
            self.round_trips += 1
            try:
                return await act(client, number)
            except Exception as exc:
                if not is_driver_error(exc):
                    raise
                # What a later attempt is told says nothing of an earlier one whose answer was lost.
                may_have_happened = may_have_happened or (writes and is_unanswered(exc))
                # At least twice: to a server that was restarted all connections are broken, and a write that was sent
                # must be asked about.
                is_late = number > 0 and time.monotonic() - began > self.clients.timeout
                if pause is None or is_late or not is_passing(exc):
                    raise translate(exc, self.place, may_have_happened=may_have_happened) from exc
                self._turn_elsewhere(client, exc)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _turn_elsewhere(self, client: Redis, exc: Exception) -> None:
        """Go where the keys are, if they are elsewhere; unless another call has found that out already."""
        if client is not self.clients.current:
            return
        if isinstance(exc, MovedError):
            host, port = cast("tuple[str, int]", exc.node_addr)
            self.clients.follow(host, port)
        else:
            self.clients.go_home()


async def _execute(client: Redis, *command: Argument) -> Any:
    return cast(Any, await client.execute_command(*command))
