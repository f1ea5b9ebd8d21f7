"""Ids carried by Docket (PyPI: pydocket), on streams of a Redis or a Valkey.

Each route has a stream of its own, and a worker reads those it serves: no id reaches a worker that lacks the tool. Ids
that are for later wait on one more stream, and are put on their route's when their time has come, so that only one is
looked at for what is due, however many routes there are.

A reader waits on the server until something arrives, so an idle stream is picked up from as fast as a busy one; how
often it asks only decides what waiting costs. It asks often while something arrives, because Docket notices ended work
when it asks, and rarely when nothing has arrived for a while.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from docket import Docket, Worker
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mcp_tasks.core.values import check_number
from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.docket_quiet import quiet_context
from mcp_tasks.engines.docket_reader import BUSY, REST, Deliveries, Handler, Reader
from mcp_tasks.engines.remote import Deliver
from mcp_tasks.errors import UsageError

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

READER: Final = "worker"
"""The one name of all readers. A stream remembers the names of its readers for ever; two of the same name share what
there is to read like two of different names, and what a dead one leaves is found by its age."""

RECONNECT: Final = timedelta(milliseconds=500)
"""After which a server is tried again that is away."""


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
    ) -> None:
        check_number("batch", batch, 1)
        self._url = _of_redis(url)
        self._prefix = prefix
        self._batch = batch
        self._idle_check = idle_check
        self._timer_check = timer_check
        self._redelivery = redelivery
        self._timeout = timeout
        self._namespace = ""
        self._in_cluster: bool | None = None
        self._context: Context | None = None
        self._dockets: dict[str, Docket] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._sends = asyncio.Semaphore(SENDS)

    def __repr__(self) -> str:
        parts = urlsplit(self._url)
        return f"DocketCarrier({parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path})"

    async def open(self, namespace: str) -> None:
        """Be ready to send. Nothing is connected before something is sent or taken."""
        if self._context is None:
            self._namespace = namespace
            self._context = quiet_context()
            # Of the event loop that is running now.
            self._opening = asyncio.Lock()
            self._sends = asyncio.Semaphore(SENDS)

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Put the id on its route's stream, or among those that are for later."""
        context, name = self._its_context(), self._name(route.queue, route.tool)
        if delay is None or delay <= timedelta(0):
            adding = self._add(name, None, task_id)
        else:
            adding = self._add(self._later, datetime.now(UTC) + delay, task_id, name)
        # Apart from the request or the run that sends: a docket may be opened here, and has background tasks.
        await asyncio.create_task(adding, context=context)

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Read the streams of the routes served, and move on what is due, until cancelled."""
        names = [self._name(queue, tool) for queue, tool in serves.routes()]
        deliveries = Deliveries(deliver)
        moving = Reader(self._later, self._move_on, due_check=self._timer_check)
        taking = [Reader(name, self._hand_over_from(name, deliveries), due_check=NEVER) for name in names]
        readers = [moving, *taking]
        running = [asyncio.create_task(self._read(reader), context=self._its_context()) for reader in readers]
        running.append(asyncio.create_task(deliveries.keep_room(taking)))
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
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        await asyncio.gather(*running)
        raise ConnectionError("the streams are not read any more")

    async def close(self) -> None:
        """Let go of every connection."""
        self._context = None
        async with self._opening:
            self._dockets = {}
            stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

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

    async def _move_on(self, task_id: str, name: str) -> None:
        await self._add(name, None, task_id)

    def _hand_over_from(self, name: str, deliveries: Deliveries) -> Handler:
        async def hand_over(task_id: str) -> None:
            if await deliveries.made(task_id):
                return
            # Where nothing is taken any more it goes to another at once; where there was no room, in a moment.
            if deliveries.stopping:
                await self._add(name, None, task_id)
            else:
                await self._add(self._later, datetime.now(UTC) + SOON, task_id, name)

        return hand_over

    async def _add(self, name: str, when: datetime | None, *args: str) -> None:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), self._sends:
                await self._add_to(await self._docket(name), when, *args)
        except TimeoutError:
            raise RedisConnectionError(f"{self!r} does not answer") from None

    async def _add_to(self, docket: Docket, when: datetime | None, *args: str) -> None:
        for pause in AGAIN:
            try:
                # A key of its own for each: Docket drops what has the key of something that still runs.
                await docket.add(RUN, when=when, key=uuid4().hex)(*args)
            except (RedisConnectionError, RedisTimeoutError):
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    async def _docket(self, name: str) -> Docket:
        """The docket of that name, opened."""
        async with self._opening:
            if name not in self._dockets:
                docket = Docket(
                    name=name,
                    url=await self._url_for_docket(),
                    # Who reads is nobody's business; by itself Docket would tell every two seconds.
                    heartbeat_interval=timedelta(minutes=1),
                    # What was carried is forgotten at once.
                    execution_ttl=timedelta(0),
                )
                docket.tasks.clear()
                docket.register(_carried, names=[RUN])
                self._dockets[name] = await self._stack.enter_async_context(docket)
            return self._dockets[name]

    async def _url_for_docket(self) -> str:
        """The URL as Docket wants it, which asks to be told of a cluster."""
        if self._in_cluster is None:
            async with Redis.from_url(self._url) as redis:
                try:
                    found: dict[str, object] = await redis.info("cluster")
                except ResponseError:
                    # A user who may not ask.
                    found = {}
            self._in_cluster = bool(found.get("cluster_enabled"))
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}+cluster://{rest}" if self._in_cluster else self._url

    def _its_context(self) -> Context:
        if self._context is None:
            raise ConnectionError(f"{self!r} is not open")
        return self._context.copy()

    @property
    def _later(self) -> str:
        # As the keys of a store: in a cluster, what is in braces decides which server has a key.
        return f"{{{self._prefix}}}:docket/{_quoted(self._namespace)}"

    def _name(self, queue: str, tool: str | None) -> str:
        # A colon ends the name of a docket in the names of its keys.
        return "/".join((self._later, _quoted(queue), *(() if tool is None else (_quoted(tool),))))


async def _carried(*args: str) -> None:
    """What Docket knows the task as where it is only sent; nothing is read there."""


def _of_redis(url: str) -> str:
    """The URL as redis-py has it, with room for as many connections as there may be requests at a time."""
    parts = urlsplit(url)
    options = {"max_connections": "1000", **dict(parse_qsl(parts.query, keep_blank_values=True))}
    url = urlunsplit(parts._replace(scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)))
    try:
        ConnectionPool.from_url(url)
    except (TypeError, ValueError) as exc:
        raise UsageError(f"a URL that Redis cannot be reached by: {exc}") from exc
    return url


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")
