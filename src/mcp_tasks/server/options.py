"""What an author says of one tool: `@tasks.task(...)`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from mcp_types import ToolAnnotations

from mcp_tasks.core.durations import check_duration
from mcp_tasks.errors import InvalidOption
from mcp_tasks.runtime import ToolPolicy

TaskMode: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether calls of a tool become tasks: never; for clients that declare the extension; always, or not at all."""

Recover: TypeAlias = Literal["rerun", "fail"]
"""What happens to a task whose process died: the tool is started again, or the task ends as interrupted."""


class Unset:
    """The author said nothing; None means something else."""


UNSET: Final = Unset()


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """How calls of one tool become tasks.

    Attributes:
        recover: What the author said; None leaves it to the tool's `readOnlyHint` and `idempotentHint`.
        asks_first: Whether the tool may begin by returning an `InputRequiredResult`.
    """

    mode: TaskMode = "optional"
    ttl: timedelta | Unset | None = UNSET
    recover: Recover | None = None
    max_runtime: timedelta | None = None
    poll_interval: timedelta | None = None
    grace: timedelta | None = None
    park_after: timedelta | None = None
    max_wait: timedelta | None = None
    max_lost_runs: int | None = None
    asks_first: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("forbidden", "optional", "required"):
            raise InvalidOption(f"mode must be 'forbidden', 'optional' or 'required', got {self.mode!r}")
        if self.recover not in (None, "rerun", "fail"):
            raise InvalidOption(f"recover must be 'rerun' or 'fail', got {self.recover!r}")
        lost = self.max_lost_runs
        if lost is not None and (not isinstance(lost, int) or isinstance(lost, bool) or lost < 1):
            raise InvalidOption(f"max_lost_runs must be a whole number from 1, got {lost!r}")
        for name in ("ttl", "max_runtime", "poll_interval", "grace", "park_after", "max_wait"):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, Unset):
                check_duration(name, value, zero=name in ("grace", "park_after"))

    def policy(self, annotations: ToolAnnotations | None, usual: TaskOptions | None = None) -> ToolPolicy:
        """How runs of the tool are treated, given what it says of itself and what holds for all tools."""
        rerun = self.recover == "rerun" or (self.recover is None and _is_repeatable(annotations))
        default = ToolPolicy()
        for_all = usual or TaskOptions()
        return ToolPolicy(
            rerun=rerun,
            max_runtime=self.max_runtime,
            park_after=default.park_after if self.park_after is None else self.park_after,
            max_wait=for_all.max_wait if self.max_wait is None else self.max_wait,
            max_lost_runs=self.max_lost_runs or for_all.max_lost_runs or default.max_lost_runs,
        )


def _is_repeatable(annotations: ToolAnnotations | None) -> bool:
    return annotations is not None and bool(annotations.read_only_hint or annotations.idempotent_hint)
