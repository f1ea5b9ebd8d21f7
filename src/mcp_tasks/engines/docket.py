"""Ids carried by Docket (PyPI: pydocket), on streams of a Redis or a Valkey.

Each route has a stream of its own, and a worker reads those it serves: no id reaches a worker that lacks the tool.
Delayed ids wait in one sorted set and are put on their route's stream when they are due, so one key is checked, however
many routes there are. Docket has delays too, but compares the clock of the sender's machine with the reader's. Here the
server's clock decides.

A reader waits on the server until something arrives, so an id on an idle stream is picked up as fast as on a busy one;
the interval only decides what waiting costs. It is short while ids arrive, because Docket notices ended work when it
asks, and long when nothing has arrived for a while.

Docket itself reconnects for ever and does not report it. So a watch asks the server regularly, and `take` ends with an
error when it does not answer: the engine tries again, and knows meanwhile that nothing is taken.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import pickle
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context, ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from docket import Docket, Execution, Worker
from docket.strikelist import StrikeList
from opentelemetry import context, trace
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.remote import Deliver
from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.model.values import check_number, names_redis_database
from mcp_tasks.quiet import get_logger, what

__all__ = ["DocketCarrier"]

logger: Final = get_logger(__name__)

BUSY: Final = timedelta(milliseconds=10)
"""How long a read waits for more while ids arrive."""

FULL: Final = timedelta(milliseconds=100)
"""How often a reader without room checks whether there is room again. It sends no request for that."""

REST: Final = 1.0
"""Seconds without a new id after which reads are long."""

NEVER: Final = timedelta(minutes=5)
"""Docket's own interval for delayed work: there never is any, delayed ids wait elsewhere."""

SOON: Final = timedelta(milliseconds=250)
"""The delay of an id that found no room."""

SENDS: Final = 16
"""How many ids are sent at a time; each needs a connection."""

AGAIN: Final = (0.0, 0.1, 0.5, None)
"""Seconds before each new attempt to send: a connection from before a restart of the server fails when it is used. An
id that arrives twice does no harm."""

BATCH: Final = 8
"""How many ids are read at a time."""

MOVES: Final = 100
"""How many due ids are put on their streams at a time."""

RUN: Final = "run"
"""The one task of every docket."""

LATER: Final = "later"
"""The sorted set of delayed ids."""

READER: Final = "worker"
"""The one name of all readers. A stream remembers the names of its readers for ever. Two readers with one name share
the stream like two with different names, and ids left by a dead reader are found by their age."""

RECONNECT: Final = timedelta(milliseconds=500)
"""How often Docket tries to reach a server that is unavailable."""

REACHED: Final = 5.0
"""Seconds that the server may take to answer at the start."""

AT_ONCE: Final = 0.6
"""Seconds that the server may take to answer after it was unavailable. Less than `remote.SETTLED`, so that a failing
attempt never counts as working."""

LEAVING: Final = 3.0
"""Seconds that readers have to end."""

GIVEN_UP: Final = 0.5
"""The same where the server does not answer: Docket would wait for it."""

QUIET_FOR: Final = 60.0
"""Seconds between two log lines about an unavailable server."""

FAULTS: Final = (RedisError, RedisClusterException, OSError)
"""The exceptions of a server that cannot be asked."""

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_ADD: Final = f"{_NOW} return redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])"

_DUE: Final = f"""{_NOW}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  redis.call('ZADD', KEYS[1], now + ARGV[2], member)
end
return due
"""


# ---- no pickles
# Docket's messages are pickles, which run code where they are read. Here the key of a message carries the id, and the
# pickles in an answer of the server are replaced before Docket reads them.

_NO_NAMES: Final = pickle.dumps({})


def key_of(task_id: str) -> str:
    """The key of a message that carries an id. Always new: Docket drops a message with the key of one that runs."""
    return f"{uuid4().hex}/{_quoted(task_id)}"


class PlainDocket(Docket):
    """A docket that unpickles nothing from the server."""

    @property
    def strike_list(self) -> StrikeList:
        """A list of this process alone."""
        return self._own_strikes

    @strike_list.setter
    def strike_list(self, _: StrikeList) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Docket's own reads pickles from the server; one without a URL reads nothing.
        self._own_strikes = StrikeList(name=self.name)

    @asynccontextmanager
    async def redis(self) -> AsyncGenerator[Any]:
        """The client with which Docket reads, without the pickles of other programs."""
        async with super().redis() as connected:
            # Docket's own type of it knows fewer methods.
            client = cast("Redis", connected)
            for command in ("XREADGROUP", "XAUTOCLAIM", "XCLAIM"):
                callback: Any = client.response_callbacks.get(command)
                if not (isinstance(callback, partial) and callback.func is _read):
                    client.set_response_callback(command, partial(_read, callback))
            yield connected


def _read(parse: Any, response: Any, **options: Any) -> Any:
    found = response if parse is None else parse(response, **options)
    _replace_arguments(found)
    return found


def _replace_arguments(found: Any) -> None:
    """Give each message in an answer of the server the id of its key as its one argument."""
    if isinstance(found, list | tuple):
        for each in cast("list[Any]", found):
            _replace_arguments(each)
    elif isinstance(found, dict):
        message = cast("dict[Any, Any]", found)
        if b"key" in message or b"args" in message or b"kwargs" in message:
            message[b"args"], message[b"kwargs"] = pickle.dumps(_arguments(message)), _NO_NAMES
        else:
            for each in message.values():
                _replace_arguments(each)


def _arguments(message: Mapping[Any, Any]) -> tuple[str, ...]:
    _, slash, quoted = cast("bytes", message.get(b"key", b"")).decode("ascii", "replace").partition("/")
    if not slash:
        logger.warning("ignored a message on the Redis server that is not from mcp-tasks")
        return ()
    return (unquote(quoted, errors="surrogatepass"),)


# ---- Docket's logs and spans
# Ids are no work of their own, and their tasks are logged elsewhere. So Docket is silent, except that one line in a
# while says that the server is unavailable.

_warned: ContextVar[list[float] | None] = ContextVar("mcp_tasks_docket", default=None)
"""In the context of a carrier: when it last said that the server is unavailable."""

_NOT_SAMPLED: Final = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags(0))


def quiet_context() -> Context:
    """A copy of the current context in which Docket is silent."""
    new = contextvars.copy_context()
    new.run(_warned.set, [-QUIET_FOR])
    new.run(context.attach, trace.set_span_in_context(trace.NonRecordingSpan(_NOT_SAMPLED)))
    return new


class _Quiet(logging.Filter):
    """Decides which of Docket's log records pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one does."""
        warned = _warned.get()
        if warned is None:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not _is_of_redis(error):
            return True
        if record.levelno >= logging.WARNING and error is not None and time.monotonic() - warned[0] >= QUIET_FOR:
            warned[0] = time.monotonic()
            logger.warning("Redis does not carry tasks now; retrying: %s", what(error))
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _is_of_redis(error: BaseException | None) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(RedisError)[1] is None
    return isinstance(error, RedisError)


_quiet: Final = _Quiet()
for _name in ("docket", "execution", "strikelist", "worker", "_redelivery", "_redis", "_redis_sentinel"):
    logging.getLogger(f"docket.{_name}").addFilter(_quiet)


# ---- reading


class Reader:
    """Reads one stream, with short reads while ids arrive and long reads otherwise.

    Args:
        name: The name of the docket.
        handle: Called with the id of each message.
    """

    def __init__(self, name: str, handle: Callable[[str, str], Awaitable[None]]) -> None:
        self.name = name
        self._handle = handle
        self._worker: Worker | None = None
        self._idle_check = BUSY
        self._concurrency = 0
        self._paused = False
        self._handling = 0
        self._noticed = 0.0

    def begin(self, worker: Worker) -> None:
        """Control this worker: long reads to begin with, none if there is no room."""
        self._worker, self._idle_check, self._concurrency = worker, worker.minimum_check_interval, worker.concurrency
        if self._paused:
            self.pause()

    async def handle(self, *args: str) -> None:
        """Handle a message, unless another program sent it."""
        if not args:
            return
        self._handling += 1
        try:
            await self._handle(self.name, *args)
        finally:
            self._handling -= 1
            self._noticed = time.monotonic()

    def notice(self, execution: Execution) -> bool:
        """Begin with short reads: a message has arrived.

        Docket calls this first for every message it has read, as a condition to skip it. The next read begins later
        than that. So as long as one read brings less than the worker's concurrency, no read waits for a free place as
        long as an idle read waits for a message.
        """
        self._noticed = time.monotonic()
        self._ask_every(BUSY)
        return False

    def rest(self) -> None:
        """Begin with long reads if nothing has arrived for a while."""
        if time.monotonic() - self._noticed > REST and not self._handling:
            self._ask_every(FULL if self._paused else self._idle_check)

    def pause(self) -> None:
        """Read nothing more for now."""
        self._paused = True
        self._noticed = time.monotonic()
        if self._worker is not None:
            self._worker.concurrency = 0
            self._ask_every(BUSY)

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._worker is not None:
            self._worker.concurrency = self._concurrency

    def _ask_every(self, interval: timedelta) -> None:
        if self._worker is not None:
            self._worker.minimum_check_interval = interval


class DocketCarrier:
    """Carries ids over streams of a Redis or a Valkey.

    Args:
        url: The server: `redis://`, `rediss://`, `valkey://` or `valkeys://`.
        prefix: The beginning of all names of keys.
        batch: How many ids are read from a route at a time. At most twice as many of a route wait in this process for
            a slot.
        idle_check: How long a read waits when nothing arrives. It costs a round trip each, for every route.
        timer_check: How often a worker looks for delayed ids that are due.
        redelivery: After how long an id is carried again that was read by a process which died before it began. Checked
            no more often than an idle read ends.
        timeout: How long the server may take to answer when something is sent.
        watch: How often a worker asks the server whether it still answers, and how long the answer may take. Two
            requests without an answer end the `take`.
    """

    abilities: Abilities = Abilities(delay=True, remote=True)

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "mcp-tasks",
        batch: int = BATCH,
        idle_check: timedelta = timedelta(seconds=5),
        timer_check: timedelta = timedelta(milliseconds=250),
        redelivery: timedelta = timedelta(minutes=1),
        timeout: timedelta = timedelta(seconds=10),
        watch: timedelta = timedelta(seconds=2),
    ) -> None:
        check_number("batch", batch, 1)
        self._url = _of_redis(url)
        parts = urlsplit(self._url)
        self._place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._prefix = prefix
        self._batch = batch
        self._idle_check = idle_check
        self._timer_check = timer_check
        self._redelivery = redelivery
        self._timeout = timeout.total_seconds()
        self._watch = watch.total_seconds()
        self._root = ""
        self._context: Context | None = None
        self._dockets: dict[str, Docket] = {}
        self._stack = AsyncExitStack()
        self._is_stale = False
        self._opening = asyncio.Lock()
        self._sends = asyncio.Semaphore(SENDS)

    def __repr__(self) -> str:
        return f"DocketCarrier({self._place})"

    async def open(self, namespace: str) -> None:
        """Check that the server answers, and be ready to send.

        Raises:
            StoreUnavailable: It does not.
        """
        if self._context is None:
            await self._reach(min(REACHED, self._timeout))
            # As the keys of a store: in a cluster, the part in braces decides which server has a key. The docket of
            # this name carries nothing: the watch and the delayed ids use its connections.
            self._root = f"{{{self._prefix}}}:docket/{_quoted(namespace)}"
            self._context = quiet_context()
            # Of the event loop that is running now.
            self._opening = asyncio.Lock()
            self._sends = asyncio.Semaphore(SENDS)

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Put the id on its route's stream, or among the delayed ids."""
        context, name = self._own_context(), self._name(route.queue, route.tool)
        if delay is None or delay <= timedelta(0):
            adding = self._add(name, task_id)
        else:
            adding = self._add_later(delay, task_id, name)
        # Apart from the request or the run that sends: a docket may be opened here, and has background tasks.
        await asyncio.create_task(adding, context=context)

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Read the streams of the routes served, and move ids that are due, until cancelled.

        Raises:
            StoreUnavailable: The server does not answer.
        """
        try:
            if self._is_stale:
                await self._reach(AT_ONCE)
            docket = await asyncio.create_task(self._docket(self._root), context=self._own_context())
            await self._read_all(_Deliveries(self, deliver), serves, docket)
        except Exception:
            # A connection from before may never notice that the server is back.
            self._is_stale = True
            raise

    async def close(self) -> None:
        """Close every connection."""
        self._context = None
        async with self._opening:
            await self._close_dockets()

    async def send_again(self, name: str, task_id: str, *, at_once: bool) -> None:
        """Put an id back that was not taken here."""
        await (self._add(name, task_id) if at_once else self._add_later(SOON, task_id, name))

    async def _read_all(self, deliveries: _Deliveries, serves: Serves, root: Docket) -> None:
        readers = [Reader(self._name(queue, tool), deliveries.take) for queue, tool in serves.routes()]
        watching = asyncio.create_task(self._keep_watch(root), context=self._own_context())
        running = [
            watching,
            asyncio.create_task(deliveries.keep_room(readers)),
            asyncio.create_task(self._keep_moving(root), context=self._own_context()),
            *(asyncio.create_task(self._read(reader), context=self._own_context()) for reader in readers),
        ]
        try:
            while not (await asyncio.wait(running, timeout=REST, return_when=asyncio.FIRST_COMPLETED))[0]:
                for reader in readers:
                    reader.rest()
        finally:
            deliveries.stop()
            for reader in readers:
                reader.pause()
            # A read that is cancelled may have been answered: its ids would be carried again only much later. While
            # ids arrive, reads are short.
            await asyncio.sleep(4 * BUSY.total_seconds())
            await _end(running, patience=GIVEN_UP if watching.done() else LEAVING)
        for each in running:
            if not each.cancelled() and (error := each.exception()) is not None:
                raise error
        raise ConnectionError("the streams are not read any more")

    async def _read(self, reader: Reader) -> None:
        docket = await self._docket(reader.name)
        docket.register(reader.handle, names=[RUN])
        docket.strike_list.add_condition(reader.notice)
        try:
            async with Worker(
                docket,
                name=READER,
                # More than one read brings: see `Reader.notice`.
                concurrency=2 * self._batch,
                message_batch=self._batch,
                redelivery_timeout=self._redelivery,
                reconnection_delay=RECONNECT,
                minimum_check_interval=self._idle_check,
                scheduling_resolution=NEVER,
                schedule_automatic_tasks=False,
            ) as worker:
                reader.begin(worker)
                await worker.run_forever()
        finally:
            docket.strike_list.remove_condition(reader.notice)

    async def _keep_watch(self, root: Docket) -> None:
        """Ask the server regularly, until it has not answered twice."""
        while True:
            try:
                await self._ask(root)
            except StoreUnavailable:
                # Once may be chance: an old connection, or this process was busy.
                await self._ask(root)
            await asyncio.sleep(self._watch)

    async def _ask(self, root: Docket) -> None:
        # With a connection like the readers', and a write: a replica, or a server whose disk is full, answers reads.
        try:
            async with asyncio.timeout(self._watch), root.redis() as redis:
                await redis.delete(root.key("nothing"))
        except FAULTS as exc:
            raise self._unavailable(exc) from exc

    async def _keep_moving(self, root: Docket) -> None:
        """Put due ids on their routes' streams, again and again."""
        while True:
            # The watch finds out whether the server is gone for good. Any other error ends the `take`, and is logged.
            with suppress(RedisConnectionError, RedisTimeoutError, OSError):
                while await self._move(root) == MOVES:
                    pass
            await asyncio.sleep(self._timer_check.total_seconds())

    async def _move(self, root: Docket) -> int:
        # This process may die with the ids that it takes: they are due again after a while, unless it removes them.
        due: Sequence[bytes] = await _run_script(root, _DUE, MOVES, _milliseconds(self._redelivery))
        if due:
            ids = [json.loads(member) for member in due]
            await asyncio.gather(*(self._add(name, task_id) for task_id, name, _ in ids))
            async with root.redis() as redis:
                await redis.zrem(root.key(LATER), *due)
        return len(due)

    async def _add(self, name: str, task_id: str) -> None:
        async def add(docket: Docket) -> None:
            await docket.add(RUN, key=key_of(task_id))()

        await self._write(name, add)

    async def _add_later(self, delay: timedelta, task_id: str, name: str) -> None:
        # One id may wait several times, for one instant each.
        member = json.dumps([task_id, name, uuid4().hex])

        async def add(docket: Docket) -> None:
            await _run_script(docket, _ADD, _milliseconds(delay), member)

        await self._write(self._root, add)

    async def _write(self, name: str, write: Callable[[Docket], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timeout), self._sends:
                docket = await self._docket(name)
                for pause in AGAIN:
                    try:
                        return await write(docket)
                    except (RedisConnectionError, RedisTimeoutError):
                        if pause is None:
                            raise
                        await asyncio.sleep(pause)
        except TimeoutError:
            raise RedisConnectionError(f"{self!r} does not answer") from None

    async def _docket(self, name: str) -> Docket:
        """The docket of that name, opened."""
        async with self._opening:
            if self._is_stale:
                await self._close_dockets()
            if name not in self._dockets:
                docket = PlainDocket(
                    name=name,
                    # Docket has to be told of a cluster by the URL.
                    url=self._url,
                    # Other processes need not know who reads; Docket's default is every two seconds.
                    heartbeat_interval=timedelta(minutes=1),
                    # Delivered messages are forgotten at once.
                    execution_ttl=timedelta(0),
                )
                docket.tasks.clear()
                docket.register(_carried, names=[RUN])
                # In a cluster it connects here.
                async with asyncio.timeout(self._timeout):
                    self._dockets[name] = await self._stack.enter_async_context(docket)
            return self._dockets[name]

    async def _close_dockets(self) -> None:
        self._dockets, self._is_stale = {}, False
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                await stack.aclose()

    async def _reach(self, seconds: float) -> None:
        """Connect, and find out whether the server is one of a cluster.

        Raises:
            StoreUnavailable: It does not answer, or refuses the user.
        """
        url, found = self._url.replace("+cluster://", "://"), dict[str, object]()
        try:
            async with asyncio.timeout(seconds), Redis.from_url(url) as redis:
                # A user without the permission gets an answer all the same.
                with suppress(NoPermissionError):
                    await redis.ping()
                with suppress(NoPermissionError):
                    found = await redis.info("cluster")
        except FAULTS as exc:
            raise self._unavailable(exc) from exc
        self._url = url.replace("://", "+cluster://") if found.get("cluster_enabled") else url

    def _unavailable(self, exc: Exception) -> StoreUnavailable:
        # asyncio's TimeoutError, which is an OSError, has no text.
        said = str(exc).rstrip(".") or "it does not answer in time"
        return StoreUnavailable(
            f"the streams on {self._place} cannot be used: {said}. Start the server, or correct host, port, user and "
            "password in the engine's URL"
        )

    def _own_context(self) -> Context:
        if self._context is None:
            raise ConnectionError(f"{self!r} is not open")
        return self._context.copy()

    def _name(self, queue: str, tool: str | None) -> str:
        # A colon ends the name of a docket in the names of its keys.
        return "/".join((self._root, _quoted(queue), *(() if tool is None else (_quoted(tool),))))


class _Deliveries:
    """The ids of one `take` that have been read and wait for a slot here, or for their claim."""

    def __init__(self, carrier: DocketCarrier, deliver: Deliver) -> None:
        self._carrier = carrier
        self._deliver = deliver
        self._stopping = False
        self._pending: set[asyncio.Future[bool]] = set()
        self._arrived = asyncio.Event()

    async def take(self, name: str, task_id: str) -> None:
        """Deliver an id, or send it again: at once while this process stops, otherwise after a moment."""
        delivered = False
        if not self._stopping:
            delivery = asyncio.ensure_future(self._deliver(task_id))
            self._pending.add(delivery)
            self._arrived.set()
            try:
                await asyncio.wait({delivery})
            finally:
                self._pending.discard(delivery)
            delivered = not delivery.cancelled() and delivery.result()
        if not delivered:
            await self._carrier.send_again(name, task_id, at_once=self._stopping)

    async def keep_room(self, readers: Sequence[Reader]) -> None:
        """Pause the readers while there is no room here: another worker may have room."""
        while True:
            self._arrived.clear()
            asking = asyncio.ensure_future(self._deliver.room())
            if not (await asyncio.wait({asking}, timeout=BUSY.total_seconds()))[0]:
                for reader in readers:
                    reader.pause()
                await asyncio.wait({asking})
            if not asking.result():
                # Nothing is taken here any more, and this `take` is about to be cancelled.
                await asyncio.Event().wait()
            for reader in readers:
                reader.resume()
            await self._arrived.wait()

    def stop(self) -> None:
        """Have all waiting ids sent again."""
        self._stopping = True
        for delivery in self._pending:
            delivery.cancel()


async def _run_script(docket: Docket, script: str, *arguments: str | int) -> Any:
    """Run a script on the sorted set of delayed ids."""
    async with docket.redis() as client:
        # Docket's own type of the client knows fewer commands.
        return await cast(Redis, client).eval(script, 1, docket.key(LATER), *arguments)


def _milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))


async def _carried(*args: str) -> None:
    """Docket's task in a process that only sends; it never runs."""


async def _end(running: Collection[asyncio.Task[None]], *, patience: float) -> None:
    """Cancel these; and again if they have not ended in time, because Docket first signs off from the server."""
    while running:
        for each in running:
            each.cancel()
        running = (await asyncio.wait(running, timeout=patience))[1]


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")


_NO_URL: Final = (
    "a URL that Redis cannot be reached by: write redis://[USER:PASSWORD@]HOST[:PORT]/DATABASE, where the database is "
    "a number, and what is special in the password percent-encoded (/ is %2F, @ is %40, # is %23)"
)


def _of_redis(url: str) -> str:
    """The URL as redis-py has it, with room for as many connections as there may be requests at a time."""
    try:
        parts = urlsplit(url)
        options = {"max_connections": "1000", **dict(parse_qsl(parts.query, keep_blank_values=True))}
        plain = urlunsplit(parts._replace(scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)))
        ConnectionPool.from_url(plain)
    except (TypeError, ValueError):
        # The cause is not passed on: it may quote the password.
        raise UsageError(_NO_URL) from None
    if not names_redis_database(plain):
        raise UsageError(_NO_URL)
    return plain
