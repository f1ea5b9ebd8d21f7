"""Ids carried by Docket (PyPI: pydocket), on streams of a Redis or a Valkey.

Each route has a stream of its own, and a worker reads those it serves: no id reaches a worker that lacks the tool. Ids
that are for later wait in one sorted set, and are put on their route's stream when their time has come, so that only
one key is looked at for what is due, however many routes there are. Docket could do that too, but compares the clock of
the machine that sends with the clock of the machine that looks. Here the server's clock decides.

A reader waits on the server until something arrives, so an idle stream is picked up from as fast as a busy one; how
often it asks only decides what waiting costs. It asks often while something arrives, because Docket notices ended work
when it asks, and rarely when nothing has arrived for a while.

Docket itself tries for ever to reach a server that is away, and says so to nobody. So the server is asked now and then
whether it still answers, and taking ends with an error when it does not: whoever takes tries again, and knows meanwhile
that nothing is taken.
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
from typing import Any, Final, TypeAlias, cast
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

# ---- docket reader
# Reading one of Docket's streams: how often it is asked, and whether there is room for what it brings.


Handler: TypeAlias = Callable[..., Awaitable[None]]

BUSY: Final = timedelta(milliseconds=10)
"""How long a read waits for more while something arrives, and how long a reader with its hands full waits."""

FULL: Final = timedelta(milliseconds=100)
"""How often a reader looks whether there is room again, when there has been none for a while. It asks nobody."""

REST: Final = 1.0
"""Seconds without anything new after which a reader asks rarely."""


class Reader:
    """Reads one stream, and asks often or rarely as things arrive.

    Args:
        name: Of the docket.
        handler: What is done with what arrives.
        due_check: How often it is looked for what is due.
    """

    def __init__(self, name: str, handler: Handler, *, due_check: timedelta) -> None:
        self.name = name
        self.due_check = due_check
        self._handler = handler
        self._worker: Worker | None = None
        self._idle_check = BUSY
        self._concurrency = 0
        self._paused = False
        self._at_work = 0
        self._noticed = 0.0

    def begin(self, worker: Worker) -> None:
        """Take charge of a worker: it asks rarely to begin with, and reads unless there is no room."""
        self._worker, self._idle_check, self._concurrency = worker, worker.minimum_check_interval, worker.concurrency
        if self._paused:
            self.pause()

    async def handle(self, *args: str) -> None:
        """Handle what has arrived; nothing that is none of ours."""
        if not args:
            return
        self._at_work += 1
        try:
            await self._handler(*args)
        finally:
            self._at_work -= 1
            self._noticed = time.monotonic()

    def notice(self, execution: Execution) -> bool:
        """Something has arrived: ask often.

        Docket calls this first of all for what it has read, and goes by the answer whether not to do it. The next read
        comes back later than that. So as long as one read does not fill its hands, it never waits for them to be free
        for as long as an idle read waits for something to arrive.
        """
        self._noticed = time.monotonic()
        self._ask_every(BUSY)
        return False

    def rest(self) -> None:
        """Ask rarely, if nothing has arrived for a while."""
        if time.monotonic() - self._noticed > REST and not self._at_work:
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


class Deliveries:
    """The ids that have been read, and wait for a slot here or for the store to know who has the task."""

    def __init__(self, deliver: Deliver) -> None:
        self.stopping: bool = False
        self._deliver = deliver
        self._under_way: set[asyncio.Future[bool]] = set()
        self._arrived = asyncio.Event()

    async def made(self, task_id: str) -> bool:
        """Deliver an id. False if it is to be sent again."""
        if self.stopping:
            return False
        delivery = asyncio.ensure_future(self._deliver(task_id))
        self._under_way.add(delivery)
        self._arrived.set()
        try:
            await asyncio.wait({delivery})
        finally:
            self._under_way.discard(delivery)
        return not delivery.cancelled() and delivery.result()

    async def keep_room(self, readers: Sequence[Reader]) -> None:
        """Have nothing read while there is no room for it: it would only wait here, where others may have room."""
        while True:
            self._arrived.clear()
            asking = asyncio.ensure_future(self._deliver.room())
            if not (await asyncio.wait({asking}, timeout=BUSY.total_seconds()))[0]:
                for reader in readers:
                    reader.pause()
                await asyncio.wait({asking})
            if not asking.result():
                # Nothing is taken here any more, and whoever takes is about to be told.
                await asyncio.Event().wait()
            for reader in readers:
                reader.resume()
            await self._arrived.wait()

    def stop(self) -> None:
        """What still waits is to be sent again."""
        self.stopping = True
        for delivery in self._under_way:
            delivery.cancel()


# ---- docket server
# The server that Docket's streams are on: its URL, as redis-py and as Docket want it, and whether it answers.


FAULTS: Final = (RedisError, RedisClusterException, OSError)
"""What is raised when the server cannot be asked."""


class Server:
    """A Redis or a Valkey.

    Args:
        url: `redis://`, `rediss://`, `valkey://` or `valkeys://`.
    """

    def __init__(self, url: str) -> None:
        self._url = _of_redis(url)
        self._in_cluster = False

    def __str__(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def url_for_docket(self) -> str:
        """The URL as Docket wants it, which asks to be told of a cluster."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}+cluster://{rest}" if self._in_cluster else self._url

    async def reach(self, seconds: float) -> None:
        """Connect, and find out whether the server is one of a cluster.

        Raises:
            StoreUnavailable: It does not answer, or does not let us in.
        """
        found: dict[str, object] = {}
        try:
            async with asyncio.timeout(seconds), Redis.from_url(self._url) as redis:
                # A user who may not ask is answered all the same.
                with suppress(NoPermissionError):
                    await redis.ping()
                with suppress(NoPermissionError):
                    found = await redis.info("cluster")
        except FAULTS as exc:
            raise self.unavailable(exc) from exc
        self._in_cluster = bool(found.get("cluster_enabled"))

    def unavailable(self, exc: Exception) -> StoreUnavailable:
        """What it means for us that the server could not be asked. Raise it `from exc`."""
        # asyncio's, which is an OSError, says nothing.
        said = str(exc).rstrip(".") or "it does not answer in time"
        return StoreUnavailable(
            f"the streams on {self} cannot be used: {said}. Start the server, or correct host, port, user and password "
            "in the engine's URL"
        )


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
        # What is wrong is not passed on: it may quote the password.
        raise UsageError(_NO_URL) from None
    if not names_redis_database(plain):
        raise UsageError(_NO_URL)
    return plain


# ---- docket plain
# `PlainDocket`: a docket that unpickles nothing of what is on the server.


logger: Final = get_logger(__name__)

READS: Final = ("XREADGROUP", "XAUTOCLAIM", "XCLAIM")
"""The commands that give messages."""

_NO_NAMES: Final = pickle.dumps({})


def key_of(task_id: str) -> str:
    """The key of a message that carries an id. Each is new: Docket drops a message with the key of one that runs."""
    return f"{uuid4().hex}/{quote(task_id, safe='', errors='surrogatepass')}"


class PlainDocket(Docket):
    """Reads the keys of messages, and no pickles."""

    @property
    def strike_list(self) -> StrikeList:
        """One that is this process's alone."""
        return self._own_strikes

    @strike_list.setter
    def strike_list(self, _: StrikeList) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Docket makes one that reads from the server; without a URL there is no server.
        self._own_strikes = StrikeList(name=self.name)

    @asynccontextmanager
    async def redis(self) -> AsyncGenerator[Any]:
        """The client with which Docket reads, whose messages have no pickles of others."""
        async with super().redis() as client:
            _guard(cast("Redis", client))
            yield client


def _guard(client: Redis) -> None:
    for command in READS:
        callback: Any = client.response_callbacks.get(command)
        if not (isinstance(callback, partial) and callback.func is _read):
            client.set_response_callback(command, partial(_read, callback))


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
        logger.warning("a message on the server that carries tasks is none of ours, and is passed over")
        return ()
    return (unquote(quoted, errors="surrogatepass"),)


# ---- docket quiet
# Docket, without what it says about itself: our ids are no work of their own, and the tasks they stand for are told of
# elsewhere.


docket_quiet_logger: Final = get_logger("mcp_tasks.engines.docket")

QUIET_FOR: Final = 60.0
"""Seconds between two lines about a server that is away."""

_LOGGERS: Final = ("docket", "execution", "strikelist", "worker", "_redelivery", "_redis", "_redis_sentinel")

_voice: ContextVar[_Voice | None] = ContextVar("mcp_tasks_docket_voice", default=None)


def quiet_context() -> Context:
    """A copy of the current context in which Docket is quiet."""
    new = contextvars.copy_context()
    new.run(_voice.set, _Voice())
    new.run(context.attach, trace.set_span_in_context(trace.NonRecordingSpan(_NOT_SAMPLED)))
    return new


_NOT_SAMPLED: Final = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags(0))


class _Voice:
    """Says that the server is away, once in a while."""

    def __init__(self) -> None:
        self._said = -QUIET_FOR

    def away(self, error: BaseException) -> None:
        """Something could not be asked of the server."""
        now = time.monotonic()
        if now - self._said >= QUIET_FOR:
            self._said = now
            docket_quiet_logger.warning(
                "Redis does not carry tasks now, and is tried again until it does: %s", what(error)
            )


class _Quiet(logging.Filter):
    """Decides what is let through of what Docket logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is."""
        voice = _voice.get()
        if voice is None:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not _is_of_redis(error):
            return True
        if record.levelno >= logging.WARNING and error is not None:
            voice.away(error)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _is_of_redis(error: BaseException | None) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(RedisError)[1] is None
    return isinstance(error, RedisError)


_quiet: Final = _Quiet()
for _name in _LOGGERS:
    logging.getLogger(f"docket.{_name}").addFilter(_quiet)


NEVER: Final = timedelta(minutes=5)
"""How often a route is looked at for what is due: nothing ever is, ids for later wait elsewhere."""

SOON: Final = timedelta(milliseconds=250)
"""After which an id is sent again that found no room."""

SENDS: Final = 16
"""How many ids are sent at a time; each needs a connection."""

AGAIN: Final = (0.0, 0.1, 0.5, None)
"""Seconds after which what could not be sent is sent again: a connection of before a restart says so when it is used,
and an id that arrives twice does no harm."""

BATCH: Final = 8
"""How many ids are read at a time."""

RUN: Final = "run"
"""The one task of every docket."""

LATER: Final = "later"
"""The sorted set of the ids that are for later."""

MOVES: Final = 100
"""How many of them are put on their streams at a time."""

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

READER: Final = "worker"
"""The one name of all readers. A stream remembers the names of its readers for ever; two of the same name share what
there is to read like two of different names, and what a dead one leaves is found by its age."""

RECONNECT: Final = timedelta(milliseconds=500)
"""After which a server is tried again that is away."""

REACHED: Final = 5.0
"""Seconds that the server may take to be reached at the start."""

AT_ONCE: Final = 0.6
"""Seconds that the server may take to be reached after it was away. Less than a carrier that has failed must go on for
before it counts as working again (`RemoteEngine`)."""

LEAVING: Final = 3.0
"""Seconds that readers have to end in."""

GIVEN_UP: Final = 0.5
"""The same where the server does not answer: Docket would wait for it."""


class DocketCarrier:
    """Carries ids over streams of a Redis or a Valkey.

    Args:
        url: Of the server: `redis://`, `rediss://`, `valkey://` or `valkeys://`.
        prefix: What all names of keys begin with.
        batch: How many ids are read from a route at a time. At most twice as many of a route wait in this process for
            a slot.
        idle_check: How long a read waits, where nothing arrives. It costs a round trip each, for every route.
        timer_check: How often a worker looks for ids whose time has come.
        redelivery: After how long an id is carried again that was read by a process which died before it began. Looked
            for no more often than an idle read ends.
        timeout: How long the server may take to answer when something is sent.
        watch: How often a worker asks the server whether it still answers, and how long that may take. Two questions
            without an answer end the taking.
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
        self._server = Server(url)
        self._prefix = prefix
        self._batch = batch
        self._idle_check = idle_check
        self._timer_check = timer_check
        self._redelivery = redelivery
        self._timeout = timeout
        self._watch = watch.total_seconds()
        self._namespace = ""
        self._context: Context | None = None
        self._dockets: dict[str, Docket] = {}
        self._stack = AsyncExitStack()
        self._is_stale = False
        self._opening = asyncio.Lock()
        self._sends = asyncio.Semaphore(SENDS)

    def __repr__(self) -> str:
        return f"DocketCarrier({self._server})"

    async def open(self, namespace: str) -> None:
        """Look whether the server can be reached, and be ready to send.

        Raises:
            StoreUnavailable: It cannot.
        """
        if self._context is None:
            await self._server.reach(min(REACHED, self._timeout.total_seconds()))
            self._namespace = namespace
            self._context = quiet_context()
            # Of the event loop that is running now.
            self._opening = asyncio.Lock()
            self._sends = asyncio.Semaphore(SENDS)

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Put the id on its route's stream, or among those that are for later."""
        context, name = self._its_context(), self._name(route.queue, route.tool)
        if delay is None or delay <= timedelta(0):
            adding = self._add(name, task_id)
        else:
            adding = self._add_later(delay, task_id, name)
        # Apart from the request or the run that sends: a docket may be opened here, and has background tasks.
        await asyncio.create_task(adding, context=context)

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Read the streams of the routes served, and move on what is due, until cancelled.

        Raises:
            StoreUnavailable: The server does not answer.
        """
        try:
            if self._is_stale:
                await self._server.reach(AT_ONCE)
            docket = await asyncio.create_task(self._docket(self._beside), context=self._its_context())
            await self._read_all(deliver, serves, docket)
        except Exception:
            # A connection of before may never hear of the server's return.
            self._is_stale = True
            raise

    async def close(self) -> None:
        """Let go of every connection."""
        self._context = None
        async with self._opening:
            await self._let_go()

    async def _read_all(self, deliver: Deliver, serves: Serves, watched: Docket) -> None:
        names = [self._name(queue, tool) for queue, tool in serves.routes()]
        deliveries = Deliveries(deliver)
        readers = [Reader(name, self._hand_over_from(name, deliveries), due_check=NEVER) for name in names]
        watching = asyncio.create_task(self._keep_watch(watched), context=self._its_context())
        running = [watching, asyncio.create_task(deliveries.keep_room(readers))]
        running += [asyncio.create_task(self._keep_moving(watched), context=self._its_context())]
        running += [asyncio.create_task(self._read(reader), context=self._its_context()) for reader in readers]
        try:
            while not (await asyncio.wait(running, timeout=REST, return_when=asyncio.FIRST_COMPLETED))[0]:
                for reader in readers:
                    reader.rest()
        finally:
            deliveries.stop()
            for reader in readers:
                reader.pause()
            # A read that is cancelled may have been answered: what it was given is then carried again only much later.
            # Where something arrives, reads are short.
            await asyncio.sleep(4 * BUSY.total_seconds())
            await _end(running, patience=GIVEN_UP if watching.done() else LEAVING)
        for task in running:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        raise ConnectionError("the streams are not read any more")

    async def _keep_watch(self, docket: Docket) -> None:
        """Ask the server now and then, until it has not answered twice."""
        while True:
            try:
                await self._ask(docket)
            except StoreUnavailable:
                # Once may be chance: its connection was an old one, or this process was busy with something else.
                await self._ask(docket)
            await asyncio.sleep(self._watch)

    async def _ask(self, docket: Docket) -> None:
        """Ask the way the readers do, and for a write: a replica, or a server whose disk is full, answers whoever only
        reads."""
        try:
            async with asyncio.timeout(self._watch), docket.redis() as redis:
                await redis.delete(docket.key("nothing"))
        except FAULTS as exc:
            raise self._server.unavailable(exc) from exc

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
                scheduling_resolution=reader.due_check,
                schedule_automatic_tasks=False,
            ) as worker:
                reader.begin(worker)
                await worker.run_forever()
        finally:
            docket.strike_list.remove_condition(reader.notice)

    async def _keep_moving(self, docket: Docket) -> None:
        """Put on its route's stream what is due, again and again."""
        while True:
            # Whether the server is gone for good, the watch finds out. Anything else ends the taking, and is logged.
            with suppress(RedisConnectionError, RedisTimeoutError, OSError):
                while len(await self._move(docket)) == MOVES:
                    pass
            await asyncio.sleep(self._timer_check.total_seconds())

    async def _move(self, docket: Docket) -> Sequence[bytes]:
        # Whoever takes an id may die with it: it is due again after a while, unless it was put on its stream.
        due: Sequence[bytes] = await _run(docket, _DUE, MOVES, _milliseconds(self._redelivery))
        if due:
            ids = [json.loads(member) for member in due]
            await asyncio.gather(*(self._add(name, task_id) for task_id, name, _ in ids))
            async with docket.redis() as redis:
                await redis.zrem(docket.key(LATER), *due)
        return due

    def _hand_over_from(self, name: str, deliveries: Deliveries) -> Handler:
        async def hand_over(task_id: str) -> None:
            if await deliveries.made(task_id):
                return
            # Where nothing is taken any more it goes to another at once; where there was no room, in a moment.
            if deliveries.stopping:
                await self._add(name, task_id)
            else:
                await self._add_later(SOON, task_id, name)

        return hand_over

    async def _add(self, name: str, task_id: str) -> None:
        async def add(docket: Docket) -> None:
            await docket.add(RUN, key=key_of(task_id))()

        await self._write(name, add)

    async def _add_later(self, delay: timedelta, task_id: str, name: str) -> None:
        # One id may wait several times, for one instant each.
        member = json.dumps([task_id, name, uuid4().hex])

        async def add(docket: Docket) -> None:
            await _run(docket, _ADD, _milliseconds(delay), member)

        await self._write(self._beside, add)

    async def _write(self, name: str, write: Callable[[Docket], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), self._sends:
                await _persist(await self._docket(name), write)
        except TimeoutError:
            raise RedisConnectionError(f"{self!r} does not answer") from None

    async def _docket(self, name: str) -> Docket:
        """The docket of that name, opened."""
        async with self._opening:
            if self._is_stale:
                await self._let_go()
            if name not in self._dockets:
                docket = PlainDocket(
                    name=name,
                    url=self._server.url_for_docket,
                    # Who reads is nobody's business; by itself Docket would tell every two seconds.
                    heartbeat_interval=timedelta(minutes=1),
                    # What was carried is forgotten at once.
                    execution_ttl=timedelta(0),
                )
                docket.tasks.clear()
                docket.register(_carried, names=[RUN])
                # In a cluster it is connected here.
                async with asyncio.timeout(self._timeout.total_seconds()):
                    self._dockets[name] = await self._stack.enter_async_context(docket)
            return self._dockets[name]

    async def _let_go(self) -> None:
        self._dockets, self._is_stale = {}, False
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                await stack.aclose()

    def _its_context(self) -> Context:
        if self._context is None:
            raise ConnectionError(f"{self!r} is not open")
        return self._context.copy()

    @property
    def _beside(self) -> str:
        """The docket that carries nothing: the server is asked and ids for later are kept with its connections."""
        # As the keys of a store: in a cluster, what is in braces decides which server has a key.
        return f"{{{self._prefix}}}:docket/{_quoted(self._namespace)}"

    def _name(self, queue: str, tool: str | None) -> str:
        # A colon ends the name of a docket in the names of its keys.
        return "/".join((self._beside, _quoted(queue), *(() if tool is None else (_quoted(tool),))))


async def _persist(docket: Docket, write: Callable[[Docket], Awaitable[None]]) -> None:
    for pause in AGAIN:
        try:
            await write(docket)
        except (RedisConnectionError, RedisTimeoutError):
            if pause is None:
                raise
            await asyncio.sleep(pause)
        else:
            return


async def _run(docket: Docket, script: str, *arguments: str | int) -> Any:
    """What a script answers for the ids that are for later."""
    async with docket.redis() as client:
        # Docket's own type of it knows fewer commands.
        redis = cast(Redis, client)
        return await redis.eval(script, 1, docket.key(LATER), *arguments)


def _milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))


async def _carried(*args: str) -> None:
    """What Docket knows the task as where it is only sent; nothing is read there."""


async def _end(running: Collection[asyncio.Task[None]], *, patience: float) -> None:
    """Cancel what runs; once more if it has not ended by then, because Docket tells the server goodbye first."""
    while running:
        for task in running:
            task.cancel()
        running = (await asyncio.wait(running, timeout=patience))[1]


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")
