"""A task's id as a job of procrastinate: in which queue it stands, and how it is written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, LiteralString

from procrastinate import PsycopgConnector
from procrastinate.jobs import Job

from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.statement import Statement
from mcp_tasks.engines.base import Route, Serves
from mcp_tasks.engines.procrastinate_schema import SCHEMA

RUN: Final = "mcp_tasks.run"
UPKEEP: Final = "mcp_tasks.upkeep"

TRIES = 8
"""How often an id is sent again that could not be taken. After that it is for the sweeps, which have more patience."""

_LARGEST: Final = 2**31 - 1
"""A priority is an integer of the database."""

# The function is what procrastinate itself defers jobs with. Types are named because a row has no others to go by. A
# delay is added to the clock of the database, which also decides when it is over: no machine's own clock takes part.
_DEFER: Final[LiteralString] = f"""
SELECT {SCHEMA}.procrastinate_defer_jobs_v1(ARRAY[ROW(
    %(job_queue)s::varchar, %(job_name)s::varchar, %(job_priority)s::integer, NULL::text, NULL::text,
    %(job_args)s::jsonb, clock_timestamp() + %(job_delay)s::interval
)]::{SCHEMA}.procrastinate_job_to_defer_v1[])
"""


def queue_of(namespace: str, queue: str, tool: str | None) -> str:
    """The queue of a route. Names that people chose are cut short: a channel of Postgres has 63 bytes, of which
    procrastinate takes 23."""
    whole = json.dumps([namespace, queue, tool]).encode()
    words = re.sub(r"[^A-Za-z0-9_]+", "-", queue if tool is None else f"{queue}-{tool}")
    return f"{words[:23]}.{hashlib.sha256(whole).hexdigest()[:16]}"


def queues_of(serves: Serves) -> Sequence[str]:
    """The queues that a worker takes from."""
    return [queue_of(serves.namespace, queue, tool) for queue, tool in serves.routes()]


def job_of(task_id: str, *, route: Route, namespace: str, delay: timedelta | None) -> dict[str, Any]:
    """What has a worker of the route run the task, after a delay if there is one."""
    return _job(queue_of(namespace, route.queue, route.tool), _priority(route), delay, task_id=task_id)


def again(job: Job, tries: int, *, at_once: bool) -> dict[str, Any] | None:
    """The job once more; None if it was tried often enough."""
    if tries >= TRIES:
        return None
    pause = None if at_once else backoff(tries, base=timedelta(milliseconds=200), limit=timedelta(seconds=10))
    return _job(job.queue, job.priority, pause, **{**job.task_kwargs, "tries": tries + 1})


async def defer(connector: PsycopgConnector, job: dict[str, Any]) -> None:
    """Write a job.

    Raises:
        ConnectorException: The database cannot be reached.
    """
    await connector.execute_query_async(_DEFER, **job)


def written(task_id: str, *, route: Route, namespace: str, place: str) -> Statement:
    """A job as a statement, for somebody else's transaction."""
    return Statement(place=place, text=_DEFER, values=job_of(task_id, route=route, namespace=namespace, delay=None))


def _job(queue: str, priority: int, delay: timedelta | None, **arguments: Any) -> dict[str, Any]:
    return {
        "job_queue": queue,
        "job_name": RUN,
        "job_priority": priority,
        "job_args": json.dumps(arguments),
        "job_delay": delay,
    }


def _priority(route: Route) -> int:
    return max(-_LARGEST, min(route.priority, _LARGEST))
