"""Reading in one look what a claim needs, or a poll: for a store where each look is a round trip."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from mcp_tasks.core.record import Outcome, TaskRecord, TaskRequest

LARGEST: Final = 64 * 1024
"""Bytes of a request that is read with its task. Who looks at a task may find that it cannot be run, and then a large
request would have been read for nothing."""


@runtime_checkable
class ReadsTogether(Protocol):
    """A store that gives a task and what is kept beside it in one round trip."""

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        """The record as of now and its request, or None; without the request if that is large, or missing.

        Raises:
            TaskUnreadable: One of the two cannot be read. Which, `Store.get` and `Store.request` say.
        """
        ...

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        """The record as of now and how the task ended, if it has; None if the owner has no such task, of which nothing
        is read then.

        Raises:
            TaskUnreadable: One of the two cannot be read. Which, `Store.get` and `Store.outcome` say.
        """
        ...


@runtime_checkable
class ReadsOwned(Protocol):
    """A store that sees whose a task is before it reads the rest."""

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now; None if the owner has no such task. What another has is not read, whatever its size, so
        that it takes as long as if there were none.

        Raises:
            TaskUnreadable: The owner has one, and it cannot be read.
        """
        ...
