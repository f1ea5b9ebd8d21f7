"""The contract of an engine: it carries task ids to workers, at least once.

An engine gets ids and starts `execute` for each, in this process or another. It may do so twice: a run begins by
claiming the task with a compare-and-swap, and the second run finds the task claimed. The engine distributes, the store
decides: an engine knows nothing of records, statuses or tools, and a lost id costs time, never a task, because sweeps
submit idle tasks again. `mcp_tasks.testing.engine_suite` is this contract as tests.
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
takes from both lanes in turn, so that neither blocks the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The workers that a task may go to, and its place in their order.

    Attributes:
        queue: Only to workers that serve this queue.
        tool: Only to workers that announce this tool; None if any worker of the queue may take it.
        priority: Higher numbers first within the queue, as far as the engine can.
    """

    queue: str = DEFAULT_QUEUE
    tool: str | None = None
    priority: int = 0


ANYWHERE = Route()
"""To any worker of the default queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Serves:
    """The tasks that a worker takes: those of these queues, for these tools or for no tool in particular.

    Attributes:
        namespace: The server whose tasks it takes. Engines of two servers may share one carrier.
        homes: The queue of each tool, where it is known: that tool's tasks are in no other queue. A queue that is no
            tool's home may still hold older tasks of any tool.
        owner_share: The part of its slots that tasks of one owner may have while other owners wait; None for all.
    """

    namespace: str = ""
    queues: Collection[str] = (DEFAULT_QUEUE,)
    tools: Collection[str] = ()
    homes: Mapping[str, str] = field(default_factory=dict[str, str])
    owner_share: float | None = None

    def routes(self) -> Sequence[tuple[str, str | None]]:
        """Each served queue with each tool that may be in it, and with None for tasks of no tool in particular."""
        homes = set(self.homes.values())
        return [
            (queue, tool)
            for queue in dict.fromkeys(self.queues)
            for tool in (None, *dict.fromkeys(self.tools))
            if tool is None or queue not in homes or self.homes.get(tool, queue) == queue
        ]


EVERYTHING = Serves()
"""All tasks of the default queue that are for no tool in particular."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """What an engine can do beyond carrying an id.

    Attributes:
        delay: It can hold an id back until a time; otherwise sweeps find timers.
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
        """Take it back, in turn with runs that have not started."""
        ...

    def claimed(self) -> None:
        """The run calls this once the store knows who has the task, or that there is nothing to run. The carrier may
        then forget the id."""
        ...


class ReservedSlot(Protocol):
    """A slot for a task that is about to be created."""

    def start(self, task_id: str) -> bool:
        """Run the task now. False if nothing is started here any more; the slot is then free again."""
        ...

    def release(self) -> None:
        """Give the slot back: the task was not created."""
        ...


Execute: TypeAlias = Callable[[str, Slot], Awaitable[None]]
"""Runs one task by its id. It never raises: an error in a run is that task's outcome."""


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
        """Whether an id submitted now would start in this process at once. False if the engine cannot tell.

        A sweep submits queued tasks to an engine with room as soon as it finds them; to any other only after they have
        been idle for long.
        """
        ...

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to call `execute` for submitted ids; None in a process that submits and runs nothing itself.

        A remote engine takes the ids that `serves` describes, and submits under its namespace. A local engine runs
        everything that is submitted to it; without `execute` it drops ids, as the tasks are in the store for a process
        that runs tools. Ids submitted before the start may be forgotten.
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

        With `delay`, not before that much time has passed; only for an engine that can. Submitting an id that already
        waits in this process does nothing. The owner is for engines that share slots fairly; a sweep, which knows only
        ids, gives none. This may return while the id is only in memory, and does not raise when the id cannot be
        carried: a sweep submits it again.
        """
        ...

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more here, and give runs up to `timeout` to end; those left then keep running.

        Ids that wait in this process are forgotten; those that wait elsewhere stay for other processes. Ids submitted
        from now on are at most carried elsewhere.
        """
        ...

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for runs that were told to stop, and close everything. Safe twice, and before `start`.

        A thread that does not check whether it should stop is left behind.
        """
        ...


@runtime_checkable
class WritesJobs(Protocol):
    """A remote engine whose jobs are rows of a database, which a store in the same database can write."""

    def job(self, task_id: str, *, route: Route, namespace: str) -> Statement:
        """The statement that has the task run, for the transaction that creates the task."""
        ...


@runtime_checkable
class ReservesSlots(Protocol):
    """An engine that runs tools in this process, and can reserve a slot for a task that is being created."""

    def reserve(self, owner: str | None = None) -> ReservedSlot | None:
        """A slot in this process for a task of that owner, if one is free and no other id waits for it."""
        ...
