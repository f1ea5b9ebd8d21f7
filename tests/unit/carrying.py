"""A small remote engine: ids go through a broker that all processes of a test share, and that may lose or repeat them.

The broker hands an id out and forgets it, so what dies with its process is lost too. That is the worst that a real one
does; whatever a task needs beyond it comes from the store.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from mcp_tasks.engines import Abilities, Deliver, Lane, RemoteEngine, Route, Serves


class Carried(NamedTuple):
    """An id on its way. Of two, the smaller is handed out first."""

    rank: int
    number: int
    namespace: str
    route: Route
    task_id: str


class Broker:
    """Carries ids between the engines of a test."""

    def __init__(self, copies: int = 1) -> None:
        self.copies = copies
        self.submitted: Counter[str] = Counter()
        self._ids: list[Carried] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Condition()

    async def put(self, namespace: str, route: Route, task_id: str) -> None:
        self.submitted[task_id] += 1
        for _ in range(self.copies):
            await self.put_back(Carried(-route.priority, next(self._numbers), namespace, route, task_id))

    async def put_back(self, carried: Carried) -> None:
        async with self._changed:
            self._ids.append(carried)
            self._changed.notify_all()

    async def take(self, serves: Serves) -> Carried:
        """Hand out the first id that is served, once there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._served(serves))
            first = min(self._served(serves), key=lambda carried: carried[:2])
            self._ids.remove(first)
            return first

    def _served(self, serves: Serves) -> Collection[Carried]:
        routes = set(serves.routes())
        return [
            carried
            for carried in self._ids
            if carried.namespace == serves.namespace and (carried.route.queue, carried.route.tool) in routes
        ]


class BrokerCarrier:
    """Hands ids to the broker, and delivers what the broker hands out."""

    abilities: Abilities = Abilities(remote=True, delay=True, priority=True)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._namespace = ""
        self._delayed: set[asyncio.Task[None]] = set()

    async def open(self, namespace: str) -> None:
        self._namespace = namespace

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        if delay is None:
            await self._broker.put(self._namespace, route, task_id)
        else:
            later = asyncio.create_task(self._send_later(task_id, route, delay))
            self._delayed.add(later)
            later.add_done_callback(self._delayed.discard)

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Deliver what is handed out, as there is room for it."""
        async with asyncio.TaskGroup() as group:
            while await deliver.room():
                group.create_task(self._hand_over(deliver, await self._broker.take(serves)))
                # Whoever has had one stands behind the others for the next.
                await asyncio.sleep(0)

    async def close(self) -> None:
        """There is nothing to let go of: what is delayed is the broker's."""

    async def _hand_over(self, deliver: Deliver, carried: Carried) -> None:
        try:
            has_arrived = await deliver(carried.task_id)
        except asyncio.CancelledError:
            await self._broker.put_back(carried)
            raise
        if not has_arrived:
            await self._broker.put_back(carried)

    async def _send_later(self, task_id: str, route: Route, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())
        await self._broker.put(self._namespace, route, task_id)


def carrying_engine(broker: Broker, concurrency: int = 4) -> RemoteEngine:
    """An engine of one process, whose ids the broker carries."""
    return RemoteEngine(BrokerCarrier(broker), concurrency)
