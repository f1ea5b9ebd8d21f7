"""A proxy before a Redis that loses answers: what was asked arrives, and whoever asked never hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Hands on everything, but for the answers that it is told to lose.

    Attributes:
        url: Where it listens.
        lose: How many answers are lost from now on, each with its connection.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.lose = 0
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        upstream, server = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.ensure_future(_copy(reader, server))
        try:
            while data := await upstream.read(65_536):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        finally:
            asking.cancel()
            writer.close()
            server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncGenerator[Proxy]:
    """A proxy before the server on this port."""
    proxy = Proxy(port)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
    try:
        yield proxy
    finally:
        listening.close()
