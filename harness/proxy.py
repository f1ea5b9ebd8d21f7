"""A TCP proxy before a real Redis or Postgres, for tests of what a network does to a store.

    async with proxy_to(server.url) as proxy:
        store = PostgresStore(proxy.url)    # or RedisStore(proxy.url), or proxy.before(server.new_database())

        proxy.cut()                 # unreachable: connections end now, and new ones end as soon as they are made
        proxy.restore()
        proxy.turn_to(replica.url)  # a failover: another server answers from now on
        proxy.is_silent = True      # packets are dropped: nothing arrives either way, and no connection ends
        proxy.is_silent = False     # as TCP does it, what was sent meanwhile arrives now
        proxy.delay = 2.0           # each answer comes so many seconds late
        proxy.lose()                # the next write is carried out, and its answer lost with its connection
        proxy.lose(of="save")       # only of these: a pattern for the script (Redis) or the SQL (Postgres)
        proxy.lose(then_cut=True)   # and from that moment on the server is unreachable
        await proxy.until_lost()    # an answer has been lost since the last `lose`

A write is what the server reports as done: an error is handed on, and the next write meets the fate instead. On
Postgres it is the answer to the end of the transaction that is lost. One request at a time on each connection is
expected, as our stores do it.
"""

import asyncio
import re
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha1
from typing import Final, Protocol
from urllib.parse import urlsplit

from mcp_tasks.stores.redis.connection import script

_CHUNK: Final = 65_536
_REDIS_WRITES: Final = (
    "create",
    "save",
    "delete",
    "set_note",
    "hand_out",
    "hand_back",
    "forget_expired",
    "heartbeat",
    "retire",
)
_SQL_WRITES: Final = r"\b(INSERT|UPDATE|DELETE)\b"
CLOSING_TURNS: Final = 3
"""Turns of the event loop in which it closes what was aborted."""
ANY: Final = ""
"""For `of`: every request, writes or not."""


class _Talk(Protocol):
    """What one connection says, in one protocol."""

    writes: str
    """The pattern of requests that write."""

    def requests(self, data: bytes) -> list[str]:
        """The requests that are whole with this data."""
        ...

    def answers(self, data: bytes) -> list[tuple[bytes, bool | None]]:
        """The data in pieces, with whether the request is done with each, has failed, or (None) goes on."""
        ...


class _Redis:
    writes = rf"^({'|'.join(_REDIS_WRITES)})$"

    def __init__(self) -> None:
        self._unread = b""
        self._scripts = {script(name).digest: name for name in _REDIS_WRITES}

    def requests(self, data: bytes) -> list[str]:
        self._unread += data
        found: list[str] = []
        while (command := self._take()) is not None:
            found.append(self._name(command))
        return found

    def _name(self, command: list[bytes]) -> str:
        verb, *rest = command
        if verb == b"EVALSHA":
            return self._scripts.get(rest[0].decode(), "another script")
        if verb == b"EVAL":
            return self._scripts.get(sha1(rest[0], usedforsecurity=False).hexdigest(), "another script")
        return b" ".join(command[:2]).decode("utf-8", "replace")

    def _take(self) -> list[bytes] | None:
        """The next command, if all of it is there."""
        parts: list[bytes] = []
        count, at = self._number(0)
        for _ in range(count):
            length, start = self._number(at)
            at = start + length + 2
            if length < 0 or at > len(self._unread):
                return None
            parts.append(self._unread[start : at - 2])
        if count < 0:
            return None
        self._unread = self._unread[at:]
        return parts

    def _number(self, at: int) -> tuple[int, int]:
        """The number in the line that begins here, and where the next begins; -1 if there is no whole line."""
        end = self._unread.find(b"\r\n", at)
        return (-1, at) if end < 0 else (int(self._unread[at + 1 : end]), end + 2)

    def answers(self, data: bytes) -> list[tuple[bytes, bool | None]]:
        return [(data, not data.startswith(b"-"))]


class _Postgres:
    writes = _SQL_WRITES
    _NEGOTIATIONS: Final = (80877103, 80877104)

    def __init__(self) -> None:
        self._asked = self._answered = b""
        self._is_starting = True
        self._short_answers = 0
        self._statements: dict[bytes, str] = {}
        self._failed = False

    def requests(self, data: bytes) -> list[str]:
        self._asked += data
        found: list[str] = []
        while len(self._asked) >= 8 if self._is_starting else len(self._asked) >= 5:
            at = 0 if self._is_starting else 1
            (length,) = struct.unpack_from("!i", self._asked, at)
            if len(self._asked) < at + length:
                break
            kind, body = self._asked[:at], self._asked[at + 4 : at + length]
            self._asked = self._asked[at + length :]
            if not kind:
                # A client may ask for encryption first, and is answered with one byte.
                negotiates = struct.unpack("!i", body[:4])[0] in self._NEGOTIATIONS
                self._short_answers += negotiates
                self._is_starting = negotiates
            elif kind == b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._statements[name] = sql.decode()
            elif kind == b"B":
                found.append(self._statements[body.split(b"\0", 2)[1]])
            elif kind == b"Q":
                found.append(body[:-1].decode())
        return found

    def answers(self, data: bytes) -> list[tuple[bytes, bool | None]]:
        self._answered += data
        pieces: list[tuple[bytes, bool | None]] = []
        while self._answered:
            length = 1
            if self._short_answers:
                self._short_answers -= 1
            elif len(self._answered) < 5 or len(self._answered) < (length := 1 + self._length()):
                break
            message, self._answered = self._answered[:length], self._answered[length:]
            self._failed = self._failed or (message[:1] == b"E" and length > 1)
            done = None
            if message[:1] == b"Z" and message[-1:] == b"I":
                done, self._failed = not self._failed, False
            pieces.append((message, done))
        return pieces

    def _length(self) -> int:
        return struct.unpack_from("!i", self._answered, 1)[0]


class Proxy:
    """Hands on everything, but for what it is told."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._talk: Callable[[], _Talk] = _Postgres if self._server.scheme.startswith("postgres") else _Redis
        self.port = 0
        self.delay = 0.0
        self.lost = 0
        self._to_lose = 0
        self._of: str | None = None
        self._then_cut = False
        self._losing = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_cut = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self.before(self._server.geturl())

    def before(self, url: str) -> str:
        """The URL of something on the server, such as a database, with the proxy's address."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}").geturl()

    def cut(self) -> None:
        self._is_cut = True
        for connection in self._connections:
            connection.cancel()

    def restore(self) -> None:
        self._is_cut = False

    def turn_to(self, url: str) -> None:
        """Have this server answer from now on, as after a failover."""
        self._server = urlsplit(url)
        for connection in self._connections:
            connection.cancel()

    @property
    def is_silent(self) -> bool:
        """Whether packets are dropped."""
        return not self._flowing.is_set()

    @is_silent.setter
    def is_silent(self, silent: bool) -> None:
        (self._flowing.clear if silent else self._flowing.set)()

    def lose(self, count: int = 1, *, of: str | None = None, then_cut: bool = False) -> None:
        """Have the next so many writes carried out and their answers lost; 0 to have no more lost."""
        self._to_lose, self._of, self._then_cut = count, of, then_cut
        self._losing.clear()

    async def until_lost(self) -> None:
        """Return when an answer has been lost since the last `lose`."""
        await self._losing.wait()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)
        # Also of one that is cancelled before it began.
        serving.add_done_callback(lambda _: writer.transport.abort())

    async def close(self) -> None:
        self.cut()
        if self._connections:
            await asyncio.wait(self._connections)
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            upstream, server = await asyncio.open_connection(self._server.hostname, self._server.port)
            exchange = _Exchange(self, self._talk())
            asking = asyncio.ensure_future(exchange.ask(reader, server))
            answering = asyncio.ensure_future(exchange.answer(upstream, writer))
            try:
                # The end of either side is the end of both: nothing that comes after it has a reader.
                await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in (asking, answering):
                    half.cancel()
                server.transport.abort()

    def meets(self, talk: _Talk, request: str) -> bool:
        """Whether the answer to this request is to be lost."""
        wanted = self._to_lose > 0 and re.search(talk.writes if self._of is None else self._of, request) is not None
        self._to_lose -= wanted
        return wanted

    def spare(self) -> None:
        """The request that was met has failed: the next one is to be met instead."""
        self._to_lose += 1

    def note_loss(self) -> None:
        self.lost += 1
        self._losing.set()
        if self._then_cut and not self._to_lose:
            self.cut()

    async def flows(self) -> None:
        await self._flowing.wait()


class _Exchange:
    """One connection: requests on their way there, answers on their way back."""

    def __init__(self, proxy: Proxy, talk: _Talk) -> None:
        self._proxy = proxy
        self._talk = talk
        self._is_met = False

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._proxy.flows()
                for request in self._talk.requests(data):
                    self._is_met = self._is_met or self._proxy.meets(self._talk, request)
                writer.write(data)
                await writer.drain()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        handing_on = asyncio.ensure_future(self._hand_on(late, writer))
        loop = asyncio.get_running_loop()
        held = b""
        try:
            with suppress(OSError):
                while data := await reader.read(_CHUNK):
                    for piece, done in self._talk.answers(data):
                        held += piece
                        if done and self._is_met:
                            self._proxy.note_loss()
                            return
                        if done is False and self._is_met:
                            self._is_met = False
                            self._proxy.spare()
                    late.put_nowait((loop.time() + self._proxy.delay, held))
                    held = b""
        finally:
            handing_on.cancel()

    async def _hand_on(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                await self._proxy.flows()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def proxy_to(url: str) -> AsyncGenerator[Proxy]:
    proxy = Proxy(url)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.close()
