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
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from docket import Docket, Execution, Worker

from mcp_tasks.core.values import check_number
from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.docket_quiet import quiet_context
from mcp_tasks.engines.remote import Deliver

BUSY: Final = timedelta(milliseconds=10)
"""How long a read waits for more while something arrives, and how long a reader with its hands full waits."""

NEVER: Final = timedelta(minutes=5)
"""How often a route is looked at for what is due: nothing ever is, ids for later wait elsewhere."""

REST: Final = 1.0
"""Seconds without anything new after which a reader asks rarely."""

SOON: Final = timedelta(milliseconds=250)
"""After which an id is sent again that found no room."""

SENDS: Final = 16
"""How many ids are sent at a time; each needs a connection."""

RUN: Final = "run"
"""The one task of every docket."""

READER: Final = "worker"
"""The one name of all readers. A stream remembers the names of its readers for ever; two of the same name share what
there is to read like two of different names, and what a dead one leaves is found by its age."""

RECONNECT: Final = timedelta(milliseconds=500)
"""After which a server is tried again that is away."""

_Handler: TypeAlias = Callable[..., Awaitable[None]]


class DocketCarrier:
    """Carries ids over streams of a Redis or a Valkey.

    Args:
        url: Of the server: `redis://`, `rediss://`, `valkey://` or `valkeys://`.
        prefix: What all names of keys begin with.
        batch: How many ids are read from a route at a time. At most twice as many of a route wait in this process for
            a slot.
        idle_check: How long a read waits, where nothing arrives. It costs a round trip each, for every route.
        timer_check: How often a worker looks for ids whose time has come.
        redelivery: After how long an id is carried again that was read by a process which died before it began.
    """

    abilities: Abilities = Abilities(delay=True, remote=True)

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "mcp-tasks",
        batch: int = 8,
        idle_check: timedelta = timedelta(seconds=5),
        timer_check: timedelta = timedelta(milliseconds=250),
        redelivery: timedelta = timedelta(seconds=30),
    ) -> None:
        check_number("batch", batch, 1)
        self._url = _of_redis(url)
        self._prefix = prefix
        self._batch = batch
        self._idle_check = idle_check
        self._timer_check = timer_check
        self._redelivery = redelivery
        self._namespace = ""
        self._context: Context | None = None
        self._dockets: dict[str, Docket] = {}
        self._stack = AsyncExitStack()
        self._sends = asyncio.Semaphore(SENDS)

    def __repr__(self) -> str:
        parts = urlsplit(self._url)
        return f"DocketCarrier({parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path})"

    async def open(self, namespace: str) -> None:
        """Be ready to send. Nothing is connected before something is sent or taken."""
        if self._context is None:
            self._namespace = namespace
            self._context = quiet_context()
            self._sends = asyncio.Semaphore(SENDS)

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Put the id on its route's stream, or among those that are for later."""
        name = self._name(route.queue, route.tool)
        if delay is None or delay <= timedelta(0):
            await self._apart(self._add(name, None, task_id))
        else:
            await self._apart(self._add(self._later, datetime.now(UTC) + delay, task_id, name))

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Read the streams of the routes served, and move on what is due, until cancelled."""
        names = [self._name(queue, tool) for queue in serves.queues for tool in (None, *serves.tools)]
        deliveries = _Deliveries(deliver)

        async def move_on(task_id: str, name: str) -> None:
            await self._add(name, None, task_id)

        def to_worker(name: str) -> _Handler:
            async def hand_over(task_id: str) -> None:
                if await deliveries.made(task_id):
                    return
                # Where nothing is taken any more it goes to another at once; where there was no room, in a moment.
                if deliveries.stopping:
                    await self._add(name, None, task_id)
                else:
                    await self._add(self._later, datetime.now(UTC) + SOON, task_id, name)

            return hand_over

        readers = [_Reader(name, to_worker(name), due_check=NEVER, idle_check=self._idle_check) for name in names]
        readers.append(_Reader(self._later, move_on, due_check=self._timer_check, idle_check=self._idle_check))
        running = [asyncio.create_task(self._read(reader), context=self._its_context()) for reader in readers]
        try:
            while not (await asyncio.wait(running, timeout=REST, return_when=asyncio.FIRST_COMPLETED))[0]:
                for reader in readers:
                    reader.rest()
        finally:
            deliveries.stop()
            for reader in readers:
                reader.stop()
            # A read that is cancelled may have been answered: what it was given is then carried again only much later.
            # Where something arrives, reads are short.
            await asyncio.sleep(4 * BUSY.total_seconds())
            for reading in running:
                reading.cancel()
            await asyncio.wait(running)
        for reading in running:
            reading.result()
        raise ConnectionError("the streams are not read any more")

    async def close(self) -> None:
        """Let go of every connection."""
        self._context = None
        self._dockets = {}
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _read(self, reader: _Reader) -> None:
        docket = await self._docket(reader.name)
        docket.register(reader.handle, names=[RUN])
        docket.strike_list.add_condition(reader.notice)
        try:
            async with Worker(
                docket,
                name=READER,
                # More than one read brings: see `_Reader.notice`.
                concurrency=2 * self._batch,
                message_batch=self._batch,
                redelivery_timeout=self._redelivery,
                reconnection_delay=RECONNECT,
                minimum_check_interval=reader.idle_check,
                scheduling_resolution=reader.due_check,
                schedule_automatic_tasks=False,
            ) as worker:
                reader.worker = worker
                await worker.run_forever()
        finally:
            docket.strike_list.remove_condition(reader.notice)

    async def _add(self, name: str, when: datetime | None, *args: str) -> None:
        docket = await self._docket(name)
        # A key of its own for each: Docket drops what has the key of something that still runs.
        async with self._sends:
            await docket.add(RUN, when=when, key=uuid4().hex)(*args)

    async def _docket(self, name: str) -> Docket:
        """The docket of that name, opened. Its background tasks belong to no request and no run: see `_apart`."""
        if name not in self._dockets:
            docket = Docket(
                name=name,
                url=self._url,
                # Who reads is nobody's business, and the server would be told every two seconds.
                heartbeat_interval=timedelta(minutes=1),
                # What was carried is forgotten at once.
                execution_ttl=timedelta(0),
            )
            docket.tasks.clear()
            docket.register(_carried, names=[RUN])
            self._dockets[name] = docket
            await self._stack.enter_async_context(docket)
        return self._dockets[name]

    async def _apart(self, work: Awaitable[None]) -> None:
        """Await in a context of the carrier's own: quiet, and with nothing of the request or the run that sends."""

        async def awaiting() -> None:
            await work

        await asyncio.create_task(awaiting(), context=self._its_context())

    def _its_context(self) -> Context:
        if self._context is None:
            raise ConnectionError(f"{self!r} is not open")
        return self._context.copy()

    @property
    def _later(self) -> str:
        return f"{self._prefix}:docket/{_quoted(self._namespace)}"

    def _name(self, queue: str, tool: str | None) -> str:
        # A colon ends the name of a docket in the names of its keys.
        return "/".join((self._later, _quoted(queue), *(() if tool is None else (_quoted(tool),))))


class _Deliveries:
    """The ids that have been read, and wait for a slot here or for the store to know who has them."""

    def __init__(self, deliver: Deliver) -> None:
        self.stopping = False
        self._deliver = deliver
        self._under_way: set[asyncio.Future[bool]] = set()

    async def made(self, task_id: str) -> bool:
        """Deliver an id. False if it is to be sent again."""
        if self.stopping:
            return False
        delivery = asyncio.ensure_future(self._deliver(task_id))
        self._under_way.add(delivery)
        try:
            await asyncio.wait({delivery})
        finally:
            self._under_way.discard(delivery)
        return not delivery.cancelled() and delivery.result()

    def stop(self) -> None:
        """What still waits is to be sent again."""
        self.stopping = True
        for delivery in self._under_way:
            delivery.cancel()


class _Reader:
    """Reads one stream, and asks often or rarely as things arrive."""

    def __init__(self, name: str, handler: _Handler, *, due_check: timedelta, idle_check: timedelta) -> None:
        self.name = name
        self.due_check = due_check
        self.idle_check = idle_check
        self.worker: Worker | None = None
        self._handler = handler
        self._at_work = 0
        self._noticed = 0.0

    async def handle(self, *args: str) -> None:
        """Handle what has arrived."""
        self._at_work += 1
        try:
            await self._handler(*args)
        finally:
            self._at_work -= 1
            self._noticed = time.monotonic()

    def notice(self, execution: Execution) -> bool:
        """Something has arrived: ask often.

        Docket calls this first of all for what it has read, and goes by the answer whether to do it at all: yes. It has
        done so before the next read has come back. So as long as one read does not fill its hands, it never waits for
        them to be free for as long as an idle read waits for something to arrive.
        """
        self._noticed = time.monotonic()
        if self.worker is not None:
            self.worker.minimum_check_interval = BUSY
        return False

    def rest(self) -> None:
        """Ask rarely, if nothing has arrived for a while."""
        if self.worker is not None and not self._at_work and time.monotonic() - self._noticed > REST:
            self.worker.minimum_check_interval = self.idle_check

    def stop(self) -> None:
        """Read nothing more."""
        if self.worker is not None:
            self.worker.concurrency = 0


async def _carried(*args: str) -> None:
    """What Docket knows the task as where it is only sent; nothing is read there."""


def _of_redis(url: str) -> str:
    """The URL as redis-py has it, with room for as many connections as there may be requests at a time."""
    parts = urlsplit(url)
    options = {"max_connections": "1000", **dict(parse_qsl(parts.query, keep_blank_values=True))}
    return urlunsplit(parts._replace(scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)))


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")
