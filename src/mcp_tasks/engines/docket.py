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
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import quote
from uuid import uuid4

from docket import Docket, Worker
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mcp_tasks.core.values import check_number
from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.docket_plain import PlainDocket, key_of
from mcp_tasks.engines.docket_quiet import quiet_context
from mcp_tasks.engines.docket_reader import BUSY, REST, Deliveries, Handler, Reader
from mcp_tasks.engines.docket_server import FAULTS, Server
from mcp_tasks.engines.remote import Deliver
from mcp_tasks.errors import StoreUnavailable

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
