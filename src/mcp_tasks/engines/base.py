"""The seam behind which work is carried to where it runs.

An engine is handed ids and starts `execute` for each, in this process or another. It may do so twice: a run begins by
claiming the task with a compare-and-swap, and the second one finds it claimed. The engine distributes, the store
decides: an engine knows nothing of records, statuses or tools, and losing an id costs time, never a task, because
sweeps submit again what has been idle for long. `mcp_tasks.testing.engine_suite` is this contract as tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from mcp_tasks.model.record import DEFAULT_QUEUE
from mcp_tasks.model.values import Statement

Lane: TypeAlias = Literal["new", "again"]
"""Whether a task is submitted for the first time, or again: woken, recovered, or left by another process. An engine
takes from both by turns, so that neither keeps the other from running."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Which workers a task may be carried to, and which task goes first.

    Attributes:
        queue: Only to workers that serve this queue.
        tool: Only to workers that say that they have this tool; None if any worker of the queue may look at it.
        priority: Before those of a lower number in the same queue, as far as the engine can.
    """

    queue: str = DEFAULT_QUEUE
    tool: str | None = None
    priority: int = 0


ANYWHERE = Route()
"""To any worker of the usual queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Serves:
    """What a worker takes: tasks of these queues, and of these tools among them. Tasks that are routed to no tool in
    particular are always taken.

    Attributes:
        namespace: Whose tasks it takes. Engines of two servers may share one carrier.
        homes: The queue that a tool has, where it is known: tasks of it are in no other. In a queue that no tool has, a
            tool may have had its tasks before.
        owner_share: The part of its slots that tasks of one owner have while those of others wait; None for all.
    """

    namespace: str = ""
    queues: Collection[str] = (DEFAULT_QUEUE,)
    tools: Collection[str] = ()
    homes: Mapping[str, str] = field(default_factory=dict[str, str])
    owner_share: float | None = None

    def routes(self) -> Sequence[tuple[str, str | None]]:
        """Each queue that is served, with each tool that may be in it, and with None for tasks of no tool in
        particular."""
        homes = set(self.homes.values())
        return [
            (queue, tool)
            for queue in dict.fromkeys(self.queues)
            for tool in (None, *dict.fromkeys(self.tools))
            if tool is None or queue not in homes or self.homes.get(tool, queue) == queue
        ]


EVERYTHING = Serves()
"""All of the usual queue that is for no tool in particular."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """What an engine can do beyond carrying an id.

    Attributes:
        delay: It can keep an id back until a time; otherwise timers are found by sweeps.
        priority: It takes some lanes or owners before others.
        remote: It carries ids to other processes, and keeps them when this one dies.
    """

    delay: bool = False
    priority: bool = False
    remote: bool = False


class Slot(Protocol):
    """The right to use the worker. A run that only waits releases it meanwhile."""

    def release(self) -> None:
        """Let another run have it. Releasing twice does nothing."""
        ...

    async def acquire(self) -> None:
        """Have it back; waits for its turn, by turns with runs that have not begun."""
        ...

    def claimed(self) -> None:
        """Said by the run, once: the store knows by now who has the task, or that there is nothing to run. Whatever
        carried the id may forget it."""
        ...


class ReservedSlot(Protocol):
    """A slot for a task that is about to be made."""

    def start(self, task_id: str) -> bool:
        """Run the task now. False if nothing is started here any more; the slot is then free again."""
        ...

    def release(self) -> None:
        """There is no such task after all."""
        ...


Execute: TypeAlias = Callable[[str, Slot], Awaitable[None]]
"""Runs one task by its id. It never raises: what goes wrong in a run is that task's outcome."""


class Engine(Protocol):
    """Carries task ids to workers."""

    @property
    def abilities(self) -> Abilities:
        """What the engine can do."""
        ...

    @property
    def backlog(self) -> int:
        """How many ids of the lane `again` wait in this process; those that wait elsewhere do not count."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether an id submitted now would start in this process, at once. False if that is not for it to say.

        A sweep hands queued tasks to an engine with room as soon as it finds them; to any other only after they have
        been idle for long.
        """
        ...

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to hand submitted ids to `execute`; None in a process that submits and runs nothing itself.

        A remote engine takes what `serves` says, and submits under its namespace. One that runs tools in this very
        process runs what it is handed.

        Without `execute`, an engine that only runs tools here does nothing with what it is handed: the task is in the
        store, for a process that runs tools. What was submitted before the start may be forgotten.
        """
        ...

    async def submit(
        self,
        task_id: str,
        *,
        lane: Lane = "new",
        owner: str | None = None,
        route: Route = ANYWHERE,
        delay: timedelta | None = None,
    ) -> None:
        """Have the task run once there is a slot, and not before an earlier run of it in the same process has ended.

        With `delay`, not before so much time has passed; only for an engine that can.

        Submitting one that waits already does nothing in the process where it waits. The owner is for engines that
        share slots out fairly; a sweep, which knows nothing but ids, names none. This may return before the id is
        anywhere but in memory, and does not raise when the id cannot be carried now: a sweep submits it again.
        """
        ...

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more here, and give what runs up to `timeout` to end. What is left then keeps running.

        Ids that wait in this process are forgotten; those that wait elsewhere stay for other processes. What is
        submitted from now on is at most carried elsewhere.
        """
        ...

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop, and let go of everything. Safe twice, and before `start`.

        A thread that does not look whether it should stop cannot be made to; it is left behind.
        """
        ...


@runtime_checkable
class WritesJobs(Protocol):
    """A remote engine whose jobs are rows of a database: they can be written by whoever keeps tasks there."""

    def job(self, task_id: str, *, route: Route, namespace: str) -> Statement:
        """What has the task run, for a transaction of the one who makes the task."""
        ...


@runtime_checkable
class Takes(Protocol):
    """A remote engine that can tell whether ids reach this process."""

    @property
    def is_taking(self) -> bool:
        """Whether what carries ids was last found to work. True until it has failed."""
        ...


@runtime_checkable
class ReservesSlots(Protocol):
    """An engine that runs tools in this very process, and can keep a slot for a task that is being made."""

    def reserve(self, owner: str | None = None) -> ReservedSlot | None:
        """A slot right here and now for a task of that owner, if one is free and nobody waits for it."""
        ...
