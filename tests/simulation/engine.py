"""The broker of a world that carries ids to its workers, behind the seam of `engines/remote.py`: it carries each at
least once, and may lose, repeat and delay them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.remote import Deliver

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

AGAIN_AFTER = 1.0
"""Seconds after which a message that a worker had no room for is given to another."""

FORGOTTEN_AFTER = 20.0
"""Seconds after which a message whose worker did not say that it arrived is given to another."""

DROPPED_AFTER = 2.0
"""Seconds after which a call to a broker that does not answer fails."""


@dataclass(eq=False)
class _Message:
    task_id: str
    queue: str
    tool: str | None
    taken: int = 0


class Broker:
    """Where messages wait for workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[_Message] = []
        self._takers: list[Taker] = []

    def put(self, task_id: str, route: Route, delay: float) -> None:
        weather = self._world.weather
        for _ in range(weather.copies()):
            message = _Message(task_id, route.queue, route.tool)
            self._world.clockwork.after(delay + weather.carrying(), self._offer, message)

    def join(self, taker: Taker) -> None:
        self._takers.append(taker)
        self._match()

    def _offer(self, message: _Message) -> None:
        self._waiting.append(message)
        self._match()

    def _match(self) -> None:
        self._takers = [taker for taker in self._takers if taker.waits]
        for message in tuple(self._waiting):
            taker = next((each for each in self._takers if each.serves(message)), None)
            if taker is not None:
                self._takers.remove(taker)
                self._waiting.remove(message)
                self._give(message, taker)

    def _give(self, message: _Message, taker: Taker) -> None:
        message.taken += 1
        number = message.taken
        clockwork = self._world.clockwork
        clockwork.after(self._world.weather.latency(), taker.process.loop.post, taker.take, message.task_id, message)
        # The worker may die with it.
        clockwork.after(FORGOTTEN_AFTER, self._forget, message, number)

    def _forget(self, message: _Message, number: int) -> None:
        if message.taken == number:
            self._offer(message)

    def settle(self, message: _Message, *, arrived: bool) -> None:
        """A worker says that it is done with a message, or had no room for it."""
        message.taken += 1
        if not arrived:
            self._world.clockwork.after(AGAIN_AFTER, self._offer, message)


class Taker:
    """A worker that waits for one message."""

    def __init__(self, process: Process, routes: Sequence[tuple[str, str | None]]) -> None:
        self.process = process
        self._routes = frozenset(routes)
        self.message: asyncio.Future[_Message] = process.loop.create_future()

    @property
    def waits(self) -> bool:
        return self.process.lives and not self.process.is_cut and not self.message.done()

    def serves(self, message: _Message) -> bool:
        return (message.queue, message.tool) in self._routes

    def take(self, task_id: str, message: _Message) -> None:
        """The message arrives. If the worker is gone by then, the broker gives it to another after a while."""
        if not self.message.done():
            self.message.set_result(message)


class SimulatedCarrier:
    """What one process has of the broker."""

    def __init__(self, world: World, process: Process) -> None:
        self.abilities = Abilities(delay=world.plan.carrier_delays, remote=True)
        self._world = world
        self._process = process
        self._delivering: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"SimulatedCarrier({self._process.name})"

    async def open(self, namespace: str) -> None:
        """Nothing to do."""

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        if self._process.is_cut:
            await asyncio.sleep(DROPPED_AFTER)
            raise ConnectionError("the simulated broker is unreachable")
        if self._world.tracing:
            self._world.trace(self._process.name, f"sends {task_id} to {route.queue}/{route.tool} in {delay}")
        seconds = 0.0 if delay is None else delay.total_seconds()
        self._world.broker.put(task_id, route, seconds)
        await asyncio.sleep(self._world.weather.latency())

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Take messages until cancelled."""
        routes = serves.routes()
        try:
            while await deliver.room():
                taker = Taker(self._process, routes)
                self._world.clockwork.after(self._world.weather.latency(), self._world.broker.join, taker)
                async with asyncio.timeout(30) as limit:
                    message = await taker.message
                    limit.reschedule(None)
                    self._deliver(deliver, message)
        except TimeoutError:
            return
        finally:
            for delivering in self._delivering:
                delivering.cancel()

    async def close(self) -> None:
        """Nothing to do."""

    def _deliver(self, deliver: Deliver, message: Any) -> None:
        delivering = asyncio.create_task(self._hand_over(deliver, message))
        self._delivering.add(delivering)
        delivering.add_done_callback(self._delivering.discard)

    async def _hand_over(self, deliver: Deliver, message: Any) -> None:
        arrived = False
        try:
            if self._world.tracing:
                self._world.trace(self._process.name, f"is brought {message.task_id}")
            arrived = await deliver(message.task_id)
        finally:
            if not self._process.is_cut and self._process.lives:
                self._world.clockwork.after(
                    self._world.weather.latency(), lambda: self._world.broker.settle(message, arrived=arrived)
                )
