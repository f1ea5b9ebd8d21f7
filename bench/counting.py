"""Counts round trips where they are made: at the socket, by a proxy between a process and its database.

A round trip is what one side says after the other has spoken: statements that are sent in one go count once, however
many they are, and so does a blocking read for as long as it waits. What the database says by itself (a notification)
counts nothing. Connections that are opened count as well, so look when all of them are open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit


class CountingProxy:
    """Passes on what processes say to the server at `url`.

    Attributes:
        url: Where to connect instead.
        round_trips: Made so far, over all connections.
        connections: Open now.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = parts.hostname, parts.port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="counting-proxy", daemon=True)
        self._port = 0
        self.round_trips = 0
        self.connections = 0
        self._thread.start()
        self._ready.wait()
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self._port}"))

    def close(self) -> None:
        """Stop; whoever is connected is cut off."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.run_until_complete(asyncio.start_server(self._pass_on, "127.0.0.1", 0))
        self._port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        listening.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(*self._server)
        self.connections += 1
        answered = True

        async def ask() -> None:
            nonlocal answered
            while data := await reader.read(65536):
                self.round_trips += answered
                answered = False
                server.write(data)
            server.close()

        async def answer() -> None:
            nonlocal answered
            while data := await answers.read(65536):
                answered = True
                writer.write(data)
            writer.close()

        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(ask(), answer())
        self.connections -= 1


@contextmanager
def counting(url: str) -> Generator[CountingProxy]:
    """A proxy in front of the server at `url`, while the block lasts."""
    proxy = CountingProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
