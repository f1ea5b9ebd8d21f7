"""A proxy before a Redis that loses answers: what was asked arrives, and whoever asked never hears of it.

It can also fall silent, as when a network is cut: whoever asks is not even told that there will be no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Hands on everything, but for the answers that it is told to lose.

    Attributes:
        url: Where it listens.
        lose: How many answers are lost from now on, each with its connection.
        is_silent: Whether no answer is handed on now. A connection that has met the silence stays silent for ever.
        serving: The connections.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.lose = 0
        self.lost = 0
        self.is_silent = False
        self.serving: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self.serving.add(serving)
        serving.add_done_callback(self.serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, server = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.ensure_future(_copy(reader, server))
        try:
            while data := await upstream.read(65_536):
                if self.is_silent:
                    await asyncio.wait({asking})
                    break
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
        if proxy.serving:
            await asyncio.wait(proxy.serving, timeout=1)
