"""What the author decides for the whole runtime. For one tool: `model.options`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mcp_tasks.model.values import check_duration, check_number

DEFAULT_DRAIN: Final = timedelta(seconds=5)
"""How long a shutdown waits for running tools, unless the author or the operator says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a runtime keeps house.

    Attributes:
        lease_duration: For how long a process whose heartbeat does not change is believed alive, measured by the one
            that watches it. A dead process on the same machine is noticed at once; this is for the others, and for an
            event loop that is blocked. A process that cannot renew its lease stops its own runs before it is over.
        sweep_interval: How often to look for expired, lost and forgotten tasks. Without it, every second where the
            engine is of this process, and every three where a fleet shares the store and each of its processes looks;
            or five times in a lease, if that is more often.
        look_interval: How often to compare the runs of this process with their rows, for hints that were lost.
        drain_timeout: How long a shutdown waits for running tools. Without it, 5 seconds where clients are served, and
            25 in a process that `mcp-tasks worker` started.
        stop_timeout: How long it then waits for tools that were told to stop.
        progress_interval: The least time between two progress reports of one task that reach the store.
        trial_duration: How long a run is watched by itself after too many were lost. It doubles with every further
            loss.
        max_waiting_runs: How many runs may wait in memory without a slot. Those beyond it keep theirs.
        max_handed_out: How many queued tasks of one owner, queue and tool may be in the hands of a remote engine at a
            time. The rest waits in the store, so that one owner with many tasks does not keep the others back.
        max_at_work_per_owner: How many tasks of one owner may be at work at a time, over all processes; None for any
            number. Those that nobody owns count as one owner's.
    """

    lease_duration: timedelta = timedelta(seconds=15)
    sweep_interval: timedelta | None = None
    look_interval: timedelta = timedelta(seconds=3)
    drain_timeout: timedelta | None = None
    stop_timeout: timedelta = timedelta(seconds=2)
    progress_interval: timedelta = timedelta(milliseconds=200)
    trial_duration: timedelta = timedelta(seconds=10)
    max_waiting_runs: int = 1_000
    max_handed_out: int = 100
    max_at_work_per_owner: int | None = None

    @property
    def drains_for(self) -> timedelta:
        """How long a shutdown waits for running tools."""
        return DEFAULT_DRAIN if self.drain_timeout is None else self.drain_timeout

    def sweeps_every(self, *, remote: bool) -> timedelta:
        """How often to sweep, beside an engine that carries tasks to other processes or one that does not."""
        if self.sweep_interval is not None:
            return self.sweep_interval
        # Often enough for the lease, too: whoever is dead is found by some sweeps in a row.
        return min(timedelta(seconds=3), self.lease_duration / 5) if remote else timedelta(seconds=1)

    def __post_init__(self) -> None:
        durations = (
            "lease_duration",
            "sweep_interval",
            "look_interval",
            "drain_timeout",
            "stop_timeout",
            "progress_interval",
            "trial_duration",
        )
        for name in durations:
            value: object = getattr(self, name)
            if value is not None or name not in ("sweep_interval", "drain_timeout"):
                check_duration(name, value, zero=name not in ("lease_duration", "sweep_interval", "look_interval"))
        for name, least in (("max_waiting_runs", 0), ("max_handed_out", 1)):
            check_number(name, getattr(self, name), least)
        if self.max_at_work_per_owner is not None:
            check_number("max_at_work_per_owner", self.max_at_work_per_owner, 1)
