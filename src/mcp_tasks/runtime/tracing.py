"""The seam at which traces are made, which this room knows nothing of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from mcp_tasks.core.record import TaskRecord, TaskRequest

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run


class Tracing(Protocol):
    """Makes one trace of all that is done for a task. Each of these is on the path of a request, and must be quick."""

    def trace_of(self, request: TaskRequest) -> str | None:
        """What a new task keeps of the trace that its call is in (`TaskRecord.trace`); None if it is in none."""
        ...

    def around(self, run: Run) -> AbstractContextManager[None]:
        """What a run is at work in."""
        ...

    def touched(self, record: TaskRecord) -> None:
        """A request about the task is being answered."""
        ...
