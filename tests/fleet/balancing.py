"""A plain balancer, which gives each connection to the next replica, and a line that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

_TRIES = 100
_PAUSE = 0.1


class Balancer:
    """Passes connections on: to the replicas by turns, and past those that are not there.

    It keeps nothing and looks at nothing, so there are no sticky sessions.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.port: int = 0
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._ports = list(ports)
        self._turn = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told: what is open stays so, in silence."""
        self._is_whole.clear()

    def mend(self, *, late: bool) -> None:
        """Everything passes again. With `late` also what was on its way when the line was cut, as if nothing had been;
        otherwise the connections of that time are closed."""
        if not late:
            self.close()
        self._is_whole.set()

    def close(self) -> None:
        """Close all connections, whatever is on its way."""
        for writer in list(self._open):
            writer.transport.abort()

    async def end(self) -> None:
        """Let go of everything."""
        self.mend(late=False)
        for serving in list(self._serving):
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until an end closes it."""
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                there_reader, there = await self._next()
                self._open |= {writer, there}
                try:
                    passing = [self._pass(reader, there), self._pass(there_reader, writer)]
                    await asyncio.gather(*passing)
                finally:
                    self._open -= {writer, there}
                    there.close()
        finally:
            writer.close()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(_TRIES):
            for _ in self._ports:
                self._turn += 1
                with suppress(OSError):
                    await self._is_whole.wait()
                    return await asyncio.open_connection("127.0.0.1", self._ports[self._turn % len(self._ports)])
            await asyncio.sleep(_PAUSE)
        raise ConnectionError("no replica is there")

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._is_whole.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            # An end that has closed has nothing to hear either: HTTP needs no half-open connections.
            writer.close()


@asynccontextmanager
async def balancing(*ports: int) -> AsyncGenerator[Balancer]:
    """A balancer before these ports, on one of its own, while the block lasts."""
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        await balancer.end()
