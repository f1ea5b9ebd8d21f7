"""What a worker says of itself over HTTP: `/live`, `/ready`, `/backlog` and `/metrics`.

For whatever restarts, rolls and scales workers. Nothing of tasks is in it but how many there are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from mcp_tasks.cli.commands.worker.health_http import JSON, Answer, serving
from mcp_tasks.errors import StoreError
from mcp_tasks.server import Waiting, Worker
from mcp_tasks.telemetry.contract import QUEUE_AGE, QUEUE_READY

T = TypeVar("T")

KEPT_FOR: Final = 1.0
"""Seconds for which an answer of the store is given again: however many ask, it is asked once."""

LOOK_LIMIT: Final = 3.0
"""Seconds that counting may take."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def health_of(worker: Worker, host: str, port: int) -> AsyncGenerator[int]:
    """Serve the pages of a worker while the block lasts; gives the port.

    Raises:
        OSError: The address cannot be listened at.
    """
    health = Health(worker)
    pages = {"/live": health.live, "/ready": health.ready, "/backlog": health.backlog, "/metrics": health.metrics}
    async with serving(host, port, pages) as chosen:
        yield chosen


class Health:
    """The pages of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._problems = Recent(worker.problems)
        self._backlog = Recent(self._look)
        self._metrics = worker.metrics()

    async def live(self) -> Answer:
        """That the event loop turns. A process that does not answer this is to be restarted."""
        return Answer(body="alive\n")

    async def ready(self) -> Answer:
        """Whether tasks are taken here. Not while it starts or drains, nor without its store, its engine or its
        lease."""
        problems = await self._found_problems()
        said = {"ready": not problems, "state": self._worker.state, "problems": problems}
        return _json(said, HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK)

    async def backlog(self) -> Answer:
        """How much waits in each queue, over the whole fleet."""
        found = await self._backlog.get()
        if isinstance(found, str):
            return _json({"error": found}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json(backlog_json(found))

    async def metrics(self) -> Answer:
        """The same, what this worker does, and the metrics of its tasks, for Prometheus."""
        # Together: each waits for a store that is away for as long as it may, and one after the other is too long.
        found, problems, more = await asyncio.gather(
            self._backlog.get(), self._found_problems(), self._metrics_of_tasks()
        )
        queues: Mapping[str, Waiting] = {} if isinstance(found, str) else found
        ready = not problems
        lines = [
            *_gauge("queue_ready", "Tasks that could run and nobody has.", {q: w.ready for q, w in queues.items()}),
            *_gauge(
                "queue_oldest_age_seconds",
                "For how long the task has waited that has waited longest.",
                {queue: round(waiting.age.total_seconds(), 3) for queue, waiting in queues.items()},
            ),
            *_gauge("worker_ready", "Whether this worker takes tasks.", {None: int(ready)}),
            *_gauge("worker_at_work", "Tools that are at work in this worker.", {None: self._worker.at_work()}),
        ]
        return Answer(body="\n".join(lines) + "\n" + more, kind=PROMETHEUS)

    async def _metrics_of_tasks(self) -> str:
        # Where prometheus_client is installed. What waits in queues is told by the worker itself.
        return "" if self._metrics is None else await self._metrics.text(without=(QUEUE_READY, QUEUE_AGE))

    async def _found_problems(self) -> Sequence[str]:
        # Whoever is told to stop must not be sent work for another second.
        return [self._worker.state] if self._worker.state != "working" else await self._problems.get()

    async def _look(self) -> Mapping[str, Waiting] | str:
        if self._worker.state in ("starting", "stopped"):
            return f"the worker is {self._worker.state}"
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                return await self._worker.backlog()
        except TimeoutError:
            return f"the store did not answer within {LOOK_LIMIT:g} s"
        except StoreError as exc:
            return str(exc)


class Recent(Generic[T]):
    """A value that is found anew once it is older than a moment."""

    def __init__(self, find: Callable[[], Awaitable[T]]) -> None:
        self._find = find
        self._found: tuple[float, T] | None = None
        self._finding = asyncio.Lock()

    async def get(self) -> T:
        """The value; those who ask at once share one look."""
        async with self._finding:
            now = asyncio.get_running_loop().time()
            if self._found is None or now - self._found[0] > KEPT_FOR:
                value = await self._find()
                self._found = asyncio.get_running_loop().time(), value
            return self._found[1]


def backlog_json(queues: Mapping[str, Waiting]) -> dict[str, Any]:
    """What waits, for scripts and autoscalers."""
    return {
        "ready": sum(waiting.ready for waiting in queues.values()),
        "oldestAgeSeconds": max((_seconds(waiting) for waiting in queues.values()), default=0.0),
        "queues": {
            queue: {"ready": waiting.ready, "oldestAgeSeconds": _seconds(waiting)} for queue, waiting in queues.items()
        },
    }


def _seconds(waiting: Waiting) -> float:
    return round(waiting.age.total_seconds(), 3)


def _json(value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(body=json.dumps(value) + "\n", status=status, kind=JSON)


def _gauge(name: str, about: str, values: Mapping[str | None, float]) -> list[str]:
    full = f"mcp_tasks_{name}"
    samples = [f"{full}{_label(queue)} {value}" for queue, value in values.items()]
    return [f"# HELP {full} {about}", f"# TYPE {full} gauge", *samples]


def _label(queue: str | None) -> str:
    if queue is None:
        return ""
    escaped = queue.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{queue="{escaped}"}}'
