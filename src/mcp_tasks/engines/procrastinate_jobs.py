"""A task's id as a job of procrastinate: in which queue it stands, and how it is written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString

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

# The function is what procrastinate itself defers jobs with. Types are named because a row has no others to go by.
_DEFER: Final[LiteralString] = f"""
SELECT {SCHEMA}.procrastinate_defer_jobs_v1(ARRAY[ROW(
    %(job_queue)s::varchar, %(job_name)s::varchar, %(job_priority)s::integer, NULL::text, NULL::text,
    jsonb_build_object('task_id', %(job_task_id)s::text), NULL::timestamptz
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


def job_of(task_id: str, *, route: Route, namespace: str, delay: timedelta | None) -> Job:
    """What has a worker of the route run the task."""
    return Job(
        queue=queue_of(namespace, route.queue, route.tool),
        task_name=RUN,
        task_kwargs={"task_id": task_id},
        priority=_priority(route),
        scheduled_at=_after(delay),
        lock=None,
        queueing_lock=None,
    )


def again(job: Job, tries: int, *, at_once: bool) -> Job | None:
    """The job once more; None if it was tried often enough."""
    if tries >= TRIES:
        return None
    pause = None if at_once else backoff(tries, base=timedelta(milliseconds=200), limit=timedelta(seconds=10))
    return job.evolve(
        id=None, status=None, task_kwargs={**job.task_kwargs, "tries": tries + 1}, scheduled_at=_after(pause)
    )


def written(task_id: str, *, route: Route, namespace: str, place: str) -> Statement:
    """The same job as a statement, for somebody else's transaction."""
    values = {
        "job_queue": queue_of(namespace, route.queue, route.tool),
        "job_name": RUN,
        "job_priority": _priority(route),
        "job_task_id": task_id,
    }
    return Statement(place=place, text=_DEFER, values=values)


def _priority(route: Route) -> int:
    return max(-_LARGEST, min(route.priority, _LARGEST))


def _after(delay: timedelta | None) -> datetime | None:
    # By the clock of this machine; the database's decides when it is over. Were they to differ, a task would be found
    # not to be due yet, and the sweeps bring it when it is.
    return None if delay is None else datetime.now(UTC) + delay
