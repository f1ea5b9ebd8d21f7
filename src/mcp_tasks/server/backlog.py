"""How much waits in each queue, and for how long it has: the numbers by which a fleet of workers is made larger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores import Store
from mcp_tasks.stores.shares import Backlog


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What waits in one queue.

    Attributes:
        ready: How many tasks could run and nobody has.
        age: For how long the one has waited that has waited longest. Zero if none waits.
    """

    ready: int = 0
    age: timedelta = timedelta(0)


async def backlog_of(runtime: TaskRuntime) -> Mapping[str, Waiting]:
    """What waits in each queue of a runtime's server, wherever it is to be run.

    Raises:
        StoreError: The store cannot be read now.
    """
    known = {policy.queue for policy in (await runtime.tools()).values()}
    return await waiting_in(runtime.store, runtime.namespace, runtime.now(), known=known | (runtime.queues or set()))


async def waiting_in(
    store: Store, namespace: str, now: datetime, *, known: Collection[str] = ()
) -> Mapping[str, Waiting]:
    """What waits in each queue of a server, by name: those that are known, and any other that has something waiting.

    Raises:
        StoreError: The store cannot be read now.
    """
    backlog = await store.backlog(namespace, now)
    return {queue: _waiting(backlog.get(queue), now) for queue in sorted({*known, *backlog})}


def _waiting(found: Backlog | None, now: datetime) -> Waiting:
    if found is None:
        return Waiting()
    age = timedelta(0) if found.since is None else max(now - found.since, timedelta(0))
    return Waiting(ready=found.ready, age=age)
