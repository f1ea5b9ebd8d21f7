"""Another engine in one file: ids carried by Celery. docs/engines.md walks through it.

Celery's own worker calls functions, in processes of its own. What is needed here is what it is fed by: its messages.
They are taken from Celery's queues by a thread of the process that runs the tools, and acknowledged as soon as the task
is claimed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from celery import Celery
from kombu.message import Message
from kombu.messaging import Consumer

from mcp_tasks.engines import Abilities, Deliver, Lane, RemoteEngine, Route, Serves

RUN = "mcp_tasks.run"
RETRIES = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2}
AT_A_TIME = 16
"""Ids that have been taken and are not acknowledged: each waits for a free slot, a second at most."""


class CeleryCarrier:
    """Carries ids by Celery, in one of its queues for each route."""

    # Not `delay`: Celery keeps what is for later in the memory of a worker. Timers are found by sweeps instead.
    abilities = Abilities(remote=True)

    def __init__(self, broker: str) -> None:
        # Celery has no types.
        self.app: Any = Celery("mcp-tasks", broker=broker, set_as_current=False)
        self.app.conf.task_ignore_result = True
        # How long the broker waits for a process that has died with an id. A claim takes milliseconds.
        self.app.conf.broker_transport_options = {"visibility_timeout": 60}
        self._namespace = ""

    async def open(self, namespace: str) -> None:
        """Be ready to send. Celery connects when it has something to send."""
        self._namespace = namespace

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Put the id into the queue of its route."""
        queue = self._queue(route.queue, route.tool)
        await asyncio.to_thread(self.app.send_task, RUN, (task_id,), queue=queue, retry=True, retry_policy=RETRIES)

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Hand over what arrives in the queues of the routes served, until cancelled."""
        queues = [self._queue(queue, tool) for queue, tool in serves.routes()]
        taking = _Taking(self.app, queues, deliver)
        thread = asyncio.get_running_loop().run_in_executor(None, taking.run)
        try:
            await asyncio.shield(thread)
        finally:
            taking.stopped.set()
            await asyncio.wait({thread})

    async def close(self) -> None:
        """Let go of the broker."""
        await asyncio.to_thread(self.app.close)

    def _queue(self, queue: str, tool: str | None) -> str:
        parts = (self._namespace, queue) if tool is None else (self._namespace, queue, tool)
        return "/".join(("mcp-tasks", *(quote(part, safe="") for part in parts)))


class _Taking:
    """A thread that takes messages from Celery's queues, and acknowledges those that were handed over."""

    def __init__(self, app: Any, queues: Sequence[str], deliver: Deliver) -> None:
        self.stopped = threading.Event()
        self._app = app
        self._queues = [app.amqp.queues[name] for name in queues]
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Future[bool], Message] = {}

    def run(self) -> None:
        # Closing the connection gives back what has not been acknowledged.
        with (
            self._app.connection_for_read() as connection,
            Consumer(connection, self._queues, callbacks=[self._arrived], accept=["json"], prefetch_count=AT_A_TIME),
        ):
            while self._under_way or not self.stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.01 if self._under_way else 0.2)
                self._answer()

    def _arrived(self, body: Any, message: Message) -> None:
        try:
            (task_id,), _options, _embedded = body
        except (TypeError, ValueError):
            # Not one of ours. Left in the queue, it would come back for ever.
            message.reject()
            return
        self._under_way[asyncio.run_coroutine_threadsafe(self._hand_over(task_id), self._loop)] = message

    async def _hand_over(self, task_id: str) -> bool:
        taken = await self._deliver(task_id)
        if not taken:
            # Before it goes back into the queue: if the store is away, it would be here again at once.
            await asyncio.sleep(0.25)
        return taken

    def _answer(self) -> None:
        for delivery in [delivery for delivery in self._under_way if delivery.done()]:
            message = self._under_way.pop(delivery)
            if delivery.result():
                message.ack()
            else:
                message.requeue()


def celery_engine(broker: str, concurrency: int = 100) -> RemoteEngine:
    """For `Tasks(store, engine=celery_engine("redis://…"))`."""
    return RemoteEngine(CeleryCarrier(broker), concurrency)
