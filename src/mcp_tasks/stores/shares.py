"""The values of `Store` for a fleet: how much of what is queued an engine has, how much may be at work, what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mcp_tasks.core.statement import Statement


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """How many tasks may be at work at a time, over all processes: of one tool, and of one owner. None for any number.

    A task is at work if a worker has it, it has not ended, and its run does not wait (`TaskRecord.pause`). A run that
    waits in memory gives up its place, and takes it again with a `save` within the limits, as a claim does.

    A task that is resuming is not at work yet, and takes a place from all tasks but those that are resuming themselves:
    of those, each is compared only with what is at work. So the places that become free go to runs that want to go on,
    before any new run begins, and never more tasks are at work than the limit says.
    """

    tool: int | None = None
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A queued task that is handed to an engine, and what decides where it goes."""

    id: str
    owner: str | None
    method: str
    name: str
    queue: str
    priority: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How much of what is queued may be in the hands of an engine at a time. The rest waits in the store.

    Attributes:
        owner: Of one owner, in one queue, of one tool: tasks that are handed out and not claimed, so that what nobody
            serves keeps nothing else back. Those that nobody owns count as one owner's.
        tools: Of each of these tools, by name: tasks that are handed out or at work.
        owner_at_work: Of one owner: tasks that are at work; None for any number. Who has as many is handed no more, and
            who has fewer at most so many at a time, of each queue and tool, as there is room for.
    """

    owner: int
    tools: Mapping[str, int] = field(default_factory=dict[str, int])
    owner_at_work: int | None = None


@dataclass(kw_only=True, slots=True)
class Handing:
    """That a new task is to be handed to an engine right away, and what came of it.

    Attributes:
        share: Within which it is. Several that create at once may go a little beyond it.
        job: What has the engine run the task, for a store that can write it in the same transaction.
        handed: Set by the store: the task is marked as handed out. Otherwise it waits for `hand_out`.
        carried: Set by the store: the job was written with the task, so that it need not be submitted.
    """

    share: Share
    job: Statement | None = None
    handed: bool = False
    carried: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What waits in one queue.

    Attributes:
        ready: How many tasks could run and nobody has; at most `MOST_COUNTED`.
        since: Since when the one has waited that has waited longest, in the store's time: the task's creation, or if it
            was queued again since, what `columns.queued_since` says. One that slept has waited since the moment at
            which it was to wake.
    """

    ready: int
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What is kept of some tasks.

    Attributes:
        open_tasks: How many have not ended; at most `MOST_COUNTED`.
        stored_bytes: Bytes of their requests, outcomes and journals as they are kept, those of ended ones included;
            what is small of every task (its row) counts as nothing.
    """

    open_tasks: int
    stored_bytes: int


MOST_COUNTED: Final = 100_000
"""Where counting stops: no fleet is scaled by what is beyond it."""
