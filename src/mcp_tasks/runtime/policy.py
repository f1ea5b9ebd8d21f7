"""What the author decides: per tool, and for the whole runtime."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolPolicy:
    """How runs of one tool are treated.

    Attributes:
        rerun: Whether the tool may be started again after its process went away.
        max_runtime: How long one run may take, waits for people and timers not counted; None for no limit.
        hold: How long a run that may be started again stays in memory while it waits. After that it is unwound,
            and started again when what it waits for has come.
    """

    rerun: bool = False
    max_runtime: timedelta | None = None
    hold: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a runtime keeps house.

    Attributes:
        lease: For how long a process that says nothing is believed alive. A dead process on the same machine is
            noticed at once; this is for the others, and for an event loop that is blocked.
        sweep: How often to look for expired, lost and forgotten tasks.
        drain: How long a shutdown waits for running tools.
        stop: How long it then waits for tools that were told to stop.
        progress: The least time between two progress reports of one task that reach the store.
    """

    lease: timedelta = timedelta(seconds=15)
    sweep: timedelta = timedelta(seconds=1)
    drain: timedelta = timedelta(seconds=5)
    stop: timedelta = timedelta(seconds=2)
    progress: timedelta = timedelta(milliseconds=200)
