"""A network between a client and a server, which can be cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CUT_AT = 40
"""Bytes of an answer that arrive when it is cut: a part of its head."""


class Relay:
    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._target = (where.hostname, where.port)
        self._path = where.path
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.made = 0
        """Connections so far, with those that were dropped."""
        self.refusals = 0
        """Connections still to be dropped as soon as they are made."""
        self.cuts = 0
        """Answers still to be cut in the middle, with their connection."""
        self.keep_bytes = CUT_AT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._path}"

    def drop_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusals:
            self.refusals -= 1
            self.made += 1
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._open |= {writer, back}
        # From here on it can be cut.
        self.made += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hand_on(reader, back, answers=False))
                group.create_task(self._hand_on(there, writer, answers=True))
        except* OSError:
            pass
        finally:
            for end in (writer, back):
                self._open.discard(end)
                end.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(65536):
            if answers and self.cuts:
                self.cuts -= 1
                writer.write(data[: self.keep_bytes])
                await writer.drain()
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@asynccontextmanager
async def relaying(url: str) -> AsyncGenerator[Relay]:
    relay = Relay(url)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.drop_all()
