"""One round trip to the server: connections that are shared, attempts that are repeated, and hints.

A write whose connection broke after it was sent may have been made or not. It is sent again: if it had been made, it
meets a conflict or an id that is taken, and the write id in the record tells that this is its own doing (`Store`). If
the server stays out of reach, the caller gets `StoreUnavailable`, which says whether the write may have been made.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio
from redis import exceptions as driver
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import EncryptionMismatch, StoreCorrupt, StoreError, StoreUnavailable, UsageError
from mcp_tasks.model.values import names_redis_database
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.stores.base import Hint, Meanings, meaning_of
from mcp_tasks.stores.hints import RemoteNotifier
from mcp_tasks.stores.redis.names import Argument, from_bytes, to_bytes

logger: Final = get_logger(__name__)

# ---- scripts

_CHANGES_TASKS: Final = frozenset(
    {"create", "save", "set_note", "reseal", "delete", "forget_expired", "hand_out", "hand_back"}
)
"""The scripts that begin with `lua/tasks.lua`. Not more: the server runs all of a script each time."""

WRITES: Final = _CHANGES_TASKS | {"heartbeat", "retire", "layout"}
"""The scripts that change something."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script: what the server runs, and what it knows that by."""

    text: bytes
    digest: str


@cache
def script(name: str) -> Script:
    """The script in the file of that name, behind what it needs."""
    folder = files("mcp_tasks.stores.redis") / "lua"
    parts = ("arguments", "tasks", name) if name in _CHANGES_TASKS else ("arguments", name)
    text = b"\n".join((folder / f"{part}.lua").read_bytes() for part in parts)
    # How Redis names scripts; no secret depends on it.
    return Script(text, sha1(text, usedforsecurity=False).hexdigest())


# ---- errors

NOT_REACHED: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
"""Errors when no answer came: a connection that could not be made, or broke, or took too long."""

_REFUSED: Final = (driver.AuthenticationError, driver.AuthorizationError)
_MOVING: Final = (driver.MovedError, driver.TryAgainError, driver.ClusterDownError)


class NotConnected(driver.ConnectionError):
    """No connection could be had, so no request was sent."""


def is_unanswered(exc: Exception) -> bool:
    """Whether a request was sent and no answer came: the server may have carried it out."""
    # The driver has these as errors of the connection too, but the server sent them.
    answered = (*_REFUSED, driver.BusyLoadingError)
    return isinstance(exc, (*NOT_REACHED, driver.InvalidResponse)) and not isinstance(exc, (NotConnected, *answered))


def is_passing(exc: Exception) -> bool:
    """Whether another attempt, at once or a little later, may well do better."""
    if isinstance(exc, _REFUSED):
        return False
    # The others: a server that has begun to read its file, or a cluster in which something moves.
    return isinstance(exc, (*NOT_REACHED, driver.BusyLoadingError, *_MOVING))


def translate(exc: Exception, place: str, *, may_have_happened: bool) -> StoreError:
    """The error of ours for a driver's exception. Raise it `from exc`."""
    error = _translated(exc, place)
    if isinstance(error, StoreUnavailable):
        error.may_have_happened = may_have_happened
    return error


def _translated(exc: Exception, place: str) -> StoreError:
    said = f"{getattr(exc, 'status_code', None) or ''} {exc}".strip()
    if (error := meaning_of(said, _MEANINGS, place, said, fits=str.__contains__)) is not None:
        return error
    reason = exc.__cause__ if isinstance(exc, NotConnected) else exc
    if isinstance(reason, driver.TimeoutError | TimeoutError):
        return StoreUnavailable(f"{place} did not answer in time; it is tried again when it is needed. ({said})")
    if isinstance(exc, NOT_REACHED):
        return StoreUnavailable(
            f"{place} cannot be reached. Start the server, or look at host, port and network. ({said})"
        )
    return StoreUnavailable(f"{place} cannot be used: {said}")


_MEANINGS: Final[Meanings] = {
    "SEALED": (EncryptionMismatch, "has been encrypted since this process opened it. Restart it with the keys."),
    "WRONGTYPE": (
        StoreCorrupt,
        "has something else where tasks are kept. Give the store a prefix of its own, or another database.",
    ),
    "LOADING": (StoreUnavailable, "is reading its data after a start. Try again."),
    "OOM": (
        StoreUnavailable,
        "has no memory left: it takes no new tasks and no results until there is room. Raise its maxmemory, or keep "
        "results for a shorter time. Tasks that have expired are removed meanwhile.",
    ),
    "MISCONF": (StoreUnavailable, "cannot write to its disk. Look at its log, and make room."),
    "READONLY": (StoreUnavailable, "is a replica, which takes no writes. Give the address of the primary."),
    "MASTERDOWN": (StoreUnavailable, "is a replica that has lost its primary. Try again."),
    "NOREPLICAS": (StoreUnavailable, "has not enough replicas to take writes (min-replicas-to-write). Try again."),
    "CLUSTERDOWN": (StoreUnavailable, "is in a cluster that is down. Try again."),
    "MOVED": (
        StoreUnavailable,
        "is in a cluster whose servers do not agree which of them has the tasks. Try again.",
    ),
    "BUSY ": (StoreUnavailable, "runs a script that does not end (SCRIPT KILL ends it). Try again."),
    "NOPERM": (
        StoreUnavailable,
        "does not let this user do what a task store needs: read, write, EVALSHA, EVAL, SUBSCRIBE and PUBLISH on the "
        "keys and channels of the prefix.",
    ),
    "WRONGPASS": (StoreUnavailable, "does not take this user and password. Correct them in the URL."),
    "NOAUTH": (StoreUnavailable, "asks for a password. Put it into the URL: redis://:PASSWORD@HOST/0."),
    "Authentication": (StoreUnavailable, "does not take this user and password. Correct them in the URL."),
    "DB index is out of range": (StoreUnavailable, "has no database of that number. Correct the URL."),
}


# ---- address

_SCHEMES: Final = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss", "unix": "unix"}


def driver_url(url: str) -> str:
    """The URL in the words of redis-py: a Valkey is addressed as a Redis is.

    Raises:
        UsageError: It is no URL of a server. It is not repeated: there may be a password in it.
    """
    # Not always a string: it is what authors pass.
    scheme, separator, rest = str(url).partition("://")
    if not separator or scheme not in _SCHEMES:
        raise UsageError("the URL of a Redis store begins with redis://, rediss:// (TLS), valkey:// or valkeys://")
    plain = f"{_SCHEMES[scheme]}://{rest}"
    try:
        parse_url(plain)
        is_read = names_redis_database(plain)
    except ValueError:
        is_read = False
    if not is_read:
        raise UsageError(
            "the URL of the Redis store cannot be read: write redis://[USER:PASSWORD@]HOST[:PORT]/DATABASE, where the "
            "database is a number, and what is special in the password percent-encoded (/ is %2F, @ is %40, # is %23)"
        )
    return plain


def at(url: str, host: str, port: int) -> str:
    """The same URL with another host and port."""
    parts = urlsplit(url)
    secret, separator, _ = parts.netloc.rpartition("@")
    # A server that does not know its own name says none: it is at the same host then.
    name = host or parts.hostname or "localhost"
    return parts._replace(netloc=f"{secret}{separator}{f'[{name}]' if ':' in name else name}:{port}").geturl()


def shown(url: str) -> str:
    """The URL without what is secret in it: user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.hostname or "localhost"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path or '/0'}"


# ---- packing
# Commands are put together by hiredis. The driver does so where it blocks, and not where it is awaited: in Python the
# thirty arguments of one write took a seventh of a worker's time.

try:
    import hiredis
except ImportError:  # pragma: no cover - the extra installs it
    _pack: Callable[..., bytes] | None = None
else:
    _pack = cast("Callable[..., bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

_Base = AbstractConnection if TYPE_CHECKING else object


@cache
def packing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """The same kind of connection, which packs faster; the same one where there is no hiredis."""
    return kind if _pack is None else type(f"Packing{kind.__name__}", (_Packing, kind), {})


class _Packing(_Base):
    def pack_command(self, *args: Any) -> list[bytes]:
        name: str | bytes = args[0]
        # Of a command in two words the driver makes two arguments.
        has_two_words = " " in name if isinstance(name, str) else b" " in name
        return super().pack_command(*args) if _pack is None or has_two_words else [_pack(args)]


# ---- connections

WAIT_FOR_CONNECTION: Final = 30.0
"""Seconds that a call waits for one of the connections while all are in use."""

PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds before each further attempt. A server that is restarted is back after them, mostly."""


class _Pool(BlockingConnectionPool):
    """Tells failures to connect from connections that break under a request."""

    async def get_connection(self, *args: Any, **options: Any) -> AbstractConnection:
        try:
            return await super().get_connection(*args, **options)
        except Exception as exc:
            if is_unanswered(exc):
                raise NotConnected(str(exc)) from exc
            raise


class Connection:
    """The server behind a URL, or the one in its cluster that has the keys.

    Args:
        prefix: The beginning of all keys, hash tag included.
        max_connections: Calls at a time; more wait for their turn.
        timeout: Seconds that one attempt may take.
    """

    def __init__(self, url: str, *, prefix: bytes, max_connections: int, timeout: float) -> None:
        self._home = self._url = driver_url(url)
        self._max_connections = max_connections
        self._timeout = timeout
        self._client: Redis | None = None
        self._leaving = BackgroundTasks()
        self.place: str = shown(url)
        self.prefix: bytes = prefix
        self.round_trips: int = 0
        self.is_open: bool = False
        self._under_way = 0
        self._idle = asyncio.Event()

    def open(self) -> None:
        """Take calls from now on. Connections are made when they are needed, and belong to this event loop."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._url = self._home
        self._client = self.new_client(self._max_connections)
        self.is_open = True

    async def close(self) -> None:
        """Take no more calls, wait for those under way, and close the connections."""
        self.is_open = False
        if self._client is None:
            return
        await self._idle.wait()
        client, self._client = self._client, None
        self._leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await dispose(client)

    def new_client(self, max_connections: int) -> Redis:
        """A client with connections of its own. It repeats nothing by itself, and answers with bytes."""
        pool = _Pool.from_url(
            self._url,
            max_connections=max_connections,
            timeout=WAIT_FOR_CONNECTION,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        pool.connection_class = packing(pool.connection_class)
        return Redis(connection_pool=pool)

    async def call(self, *command: Argument) -> Any:
        """The answer to one command, which only reads, or does the same each time.

        Raises:
            StoreError: There is none.
        """
        return await self._attempt(lambda client, _: _execute(client, *command), writes=False)

    async def run(self, name: str, *arguments: Argument, again: bool = False) -> Any:
        """The answer of a script. With `again`, one more argument says whether it may have been run before.

        Raises:
            StoreError: There is none.
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

    async def names(self, start: bytes) -> AsyncGenerator[bytes]:
        """The names, without the prefix, of the keys that begin like this. One may be given twice."""
        # Special characters of patterns are escaped: a prefix may have them.
        pattern = re.sub(rb"([\\*?\[\]^-])", rb"\\\1", self.prefix + start) + b"*"
        cursor = b"0"
        while True:
            cursor, keys = await self.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            for key in keys:
                yield key.removeprefix(self.prefix)
            if int(cursor) == 0:
                return

    async def _attempt(self, act: Callable[[Redis, int], Awaitable[Any]], *, writes: bool) -> Any:
        if not self.is_open:
            raise UsageError(f"the store {self.place} is not open: `await store.open()` comes first")
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._persist(act, writes=writes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _persist(self, act: Callable[[Redis, int], Awaitable[Any]], *, writes: bool) -> Any:
        began = time.monotonic()
        may_have_happened = False
        for number, pause in enumerate((*PAUSES, None)):
            client = cast(Redis, self._client)
            self.round_trips += 1
            try:
                return await act(client, number)
            except (driver.RedisError, OSError) as exc:
                # An error of a later attempt says nothing of an earlier one whose answer was lost.
                may_have_happened = may_have_happened or (writes and is_unanswered(exc))
                # At least twice: to a server that was restarted all connections are broken, and a write that was sent
                # must be asked about.
                is_late = number > 0 and time.monotonic() - began > self._timeout
                if pause is None or is_late or not is_passing(exc):
                    raise translate(exc, self.place, may_have_happened=may_have_happened) from exc
                # Unless another call has found that out already: go where the keys are, or to the server that the URL
                # names, which may know.
                if client is self._client:
                    moved = cast("tuple[str, int]", exc.node_addr) if isinstance(exc, MovedError) else None
                    self._use(at(self._home, *moved) if moved else self._home)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _use(self, url: str) -> None:
        if url == self._url or self._client is None:
            return
        self._url, left = url, self._client
        self._client = self.new_client(self._max_connections)
        self._leaving.start(self._leave(left), name="mcp-tasks leaves a server")

    async def _leave(self, client: Redis) -> None:
        """Close a client when no call waits for an answer to it any more."""
        try:
            await asyncio.sleep(self._timeout)
        finally:
            await dispose(client)


async def dispose(client: Redis) -> None:
    """Close a client and its connections, whatever state they are in."""
    with suppress(Exception):
        await client.aclose()
    with suppress(Exception):
        await client.connection_pool.disconnect()


async def _execute(client: Redis, *command: Argument) -> Any:
    return cast(Any, await client.execute_command(*command))


# ---- notifier

SENDER = 8
"""Bytes that say which store sent a hint."""

LONGEST_VERSION = 20
"""Digits."""

SILENCE = 10.0
"""Seconds without a hint after which the server is asked whether it is still there."""


class RedisNotifier(RemoteNotifier):
    """Carries hints by publish and subscribe. The script that changes a task tells the other processes."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.place)
        self._connection = connection
        self._channel = connection.prefix + b"hints"
        self._sender = token_bytes(SENDER)

    def message(self, hint: Hint) -> tuple[int, bytes, bytes]:
        """The hint as an argument of the script that publishes it: a list of the channel and what is said there."""
        return 2, self._channel, self._sender + b"%d:" % hint.version + to_bytes(hint.task_id)

    def _is_open(self) -> bool:
        return self._connection.is_open

    def _passes(self, exc: Exception) -> bool:
        return isinstance(exc, driver.RedisError | OSError)

    async def _hear(self, connected: asyncio.Event) -> None:
        client = self._connection.new_client(1)
        channel = client.pubsub()
        try:
            await channel.subscribe(self._channel)
            asked = False
            while True:
                message = cast("dict[str, Any] | None", await channel.get_message(timeout=SILENCE))
                if message is not None:
                    asked = False
                    if message["type"] == "subscribe":
                        connected.set()
                    self._take(message)
                elif asked:
                    raise TimeoutError("the server does not answer")
                else:
                    asked = True
                    await channel.ping()
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(Exception):
                    await channel.aclose()
                await dispose(client)

    def _take(self, message: dict[str, Any]) -> None:
        data = message["data"]
        if message["type"] != "message" or not isinstance(data, bytes) or data.startswith(self._sender):
            return
        version, _, task_id = data[SENDER:].partition(b":")
        # Any client of the server may publish here.
        if version.isdigit() and len(version) <= LONGEST_VERSION:
            self._fan.put(Hint(from_bytes(task_id), int(version)))


# ---- checks when a store is opened

LAYOUT: Final = 1
"""How tasks are kept. A release that keeps them in another way raises it, and reads what older ones kept."""

COMPATIBLE_FROM: Final = 1
"""The first layout whose releases may work beside this one. It stays where it is if something was only added (a field
of a row, a key) that they need not know and do not remove; otherwise it is `LAYOUT`."""

_NOT_DURABLE: Final = (
    "%s keeps tasks in memory alone (appendonly no): what was acknowledged since its last snapshot is lost when it "
    "stops or crashes. Set `appendonly yes`, and `appendfsync always` to lose nothing when the machine fails."
)
_EVICTS: Final = (
    "%s removes keys when its memory is full (maxmemory-policy %s): tasks could be lost. Set `maxmemory-policy "
    "noeviction`."
)
_UP_TO_A_SECOND: Final = (
    "%s writes to its disk once a second (appendfsync %s): if the machine fails, the last second may be lost. "
    "`appendfsync always` loses nothing."
)


async def check_layout(connection: Connection) -> None:
    """Mark the keys as ours, or see that they are.

    Raises:
        StoreCorrupt: They are of another program, or of a newer release.
    """
    found = await connection.run("layout", LAYOUT, COMPATIBLE_FROM)
    layout, compatible_from = (int(number) if number and number.isdigit() else 0 for number in found)
    if not layout or not compatible_from:
        raise StoreCorrupt(
            f"{connection.place} has keys that begin with {connection.prefix.decode()} and are not a task store's. "
            "Give the store another prefix."
        )
    if layout > LAYOUT and compatible_from > LAYOUT:
        raise StoreCorrupt(
            f"{connection.place} has tasks in layout {layout}, and this release knows up to {LAYOUT}. Use the release "
            "of mcp-tasks that wrote them, or a newer one."
        )


async def check_persistence(connection: Connection) -> None:
    """Warn if the server may forget tasks, as far as that can be found out."""
    try:
        found = [cast("dict[str, Any]", await connection.call("INFO", part)) for part in ("persistence", "memory")]
    except StoreError as exc:
        logger.info("whether the server keeps tasks over a restart could not be checked: %s", exc)
        return
    said = found[0] | found[1]
    if said.get("aof_enabled") == 0:
        logger.warning(_NOT_DURABLE, connection.place)
    policy = said.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        logger.warning(_EVICTS, connection.place, policy)
    if said.get("aof_enabled") != 1:
        return
    try:
        _, sync = await connection.call("CONFIG", "GET", "appendfsync")
    except (StoreError, ValueError) as exc:
        # Hosted services mostly forbid it.
        logger.debug("how often the server writes to its disk could not be checked: %s", what(exc))
        return
    if sync != b"always":
        logger.info(_UP_TO_A_SECOND, connection.place, sync.decode(errors="replace"))
