"""What an author says of a tool, and of calls whose caller speaks no tasks. One class goes from the mark to the run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.record import DEFAULT_QUEUE
from mcp_tasks.model.values import check_choice, check_duration, check_flag, check_number, check_queue, check_text

WhenCallerLeaves: TypeAlias = Literal["continue", "cancel"]
"""What happens to the work when its caller disconnects while the call is open."""

MOST_LEGS: Final = 9
"""Clients of the SDKs accept ten answers that ask them to come back, and raise at the eleventh. One is for a retry."""

LONGEST: Final = timedelta(days=30)
"""The longest time after which a call can be resumed: as long as the key is kept that sealed its state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """How calls of clients without tasks are answered, for one tool or for all.

    Attributes:
        modern: Whether this applies to clients of 2026-07-28 that do not declare tasks; if not, they get a plain call.
        older: Whether it applies to clients of older versions that do not ask for a task; if not, a plain call.
        wait: How long a request waits for the tool before it is answered in another way. A client of 2026-07-28 comes
            back up to `legs` times and waits as long each time. Hosts known to give up sooner are answered sooner.
        legs: How often a client of 2026-07-28 is asked to come back in one call. Questions count as well; with 0, the
            tool's questions are asked by `task_status`.
        handle: Whether the call is answered that the tool is still running when the time to wait is over. If not, it
            goes on waiting, and the caller may give up.
        heartbeat: The longest time between two progress notifications, if the caller asked for progress.
        when_caller_leaves: What happens to the work when the caller disconnects while the call is open.
        model_may_answer: Whether a model may answer questions for the user, with the companion tool `task_answer`.
            Then questions stay open when the client cannot be asked; otherwise the tool is told that it cannot ask.
            Over stateless HTTP of older versions, where a client's capabilities are unknown, they stay open in any
            case.
        answer_within: How long a call can be resumed, and a question stays open if the tool has no `max_wait`. At most
            30 days. A question with a `timeout` stays open for that long instead.
    """

    modern: bool = True
    older: bool = True
    wait: timedelta = timedelta(seconds=25)
    legs: int = 8
    handle: bool = True
    heartbeat: timedelta = timedelta(seconds=10)
    when_caller_leaves: WhenCallerLeaves = "continue"
    model_may_answer: bool = False
    answer_within: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        for name in ("modern", "older", "handle", "model_may_answer"):
            check_flag(name, getattr(self, name))
        for name in ("wait", "heartbeat", "answer_within"):
            check_duration(name, getattr(self, name), zero=name == "wait", longest=LONGEST)
        check_number("legs", self.legs, 0)
        if self.legs > MOST_LEGS:
            raise InvalidOption(f"legs must be at most {MOST_LEGS}, got {self.legs}: clients give up after ten")
        check_choice("when_caller_leaves", self.when_caller_leaves, get_args(WhenCallerLeaves))


Ways: TypeAlias = Fallback | Literal["auto", "inline"]
"""The option of a tool: options of its own, those of the server, or plain calls."""


def fallback_from(ways: object, usual: Fallback) -> Fallback:
    """The options that a tool has, where `"auto"` stands for those of its server.

    Raises:
        InvalidOption: It is none of the three.
    """
    if isinstance(ways, Fallback):
        return ways
    match ways:
        case "auto":
            return usual
        case "inline":
            return Fallback(modern=False, older=False)
        case _:
            raise InvalidOption(
                f"fallback must be 'auto', 'inline' or a Fallback, got {ways!r}: write "
                "fallback=Fallback(wait=timedelta(seconds=20)), or 'inline' for plain calls"
            )


TaskMode: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether calls of a tool become tasks: never; for all clients, in the way that each can follow; only for clients that
speak tasks, while others are refused."""

Recover: TypeAlias = Literal["rerun", "fail"]
"""What happens to a task whose process died: the tool is started again, or the task ends as interrupted."""

OnOtherVersion: TypeAlias = Literal["continue", "restart", "fail"]
"""What becomes of a parked or interrupted task that was begun with another version of its tool: it goes on from what
was recorded, starts over as if nothing had been, or fails and says so."""

DEFAULT_TTL: Final = timedelta(days=1)
"""How long a finished task is kept: long enough to come back for it tomorrow, short enough not to pile up."""

LONGEST_POLL_INTERVAL: Final = timedelta(days=1)
"""Beyond it no task would be polled while anybody still waits, and clients count milliseconds in 32 bits."""

MOST_URGENT: Final = 1_000
"""The highest priority, and below zero the lowest: every backend can keep them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """How calls of one tool become tasks, and how its runs are treated. `ToolOptions` describes each option.

    Attributes:
        recover: None where neither the author nor the tool's annotations say anything: then it does not run again.
        asks_first: None where the author does not say, so that the tool's return annotation decides.
        in_thread: Whether the tool is a sync function, which runs on a thread. Not an option.
    """

    mode: TaskMode = "optional"
    ttl: timedelta | None = DEFAULT_TTL
    recover: Recover | None = None
    max_runtime: timedelta | None = None
    poll_interval: timedelta | None = None
    grace: timedelta | None = None
    park_after: timedelta = timedelta(seconds=30)
    max_wait: timedelta | None = None
    max_lost_runs: int = 3
    asks_first: bool | None = None
    immediate_response: str | None = None
    fallback: Fallback = Fallback()
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    max_at_work: int | None = None
    version: str | None = None
    on_other_version: OnOtherVersion = "continue"
    join_running: bool = False
    in_thread: bool = False

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(TaskMode))
        if self.recover is not None:
            check_choice("recover", self.recover, get_args(Recover))
        check_number("max_lost_runs", self.max_lost_runs, 1)
        if self.asks_first is not None:
            check_flag("asks_first", self.asks_first)
        if self.immediate_response is not None:
            check_text("immediate_response", self.immediate_response)
        check_flag("join_running", self.join_running)
        check_queue("queue", self.queue)
        check_number("priority", self.priority, -MOST_URGENT, MOST_URGENT)
        if self.max_at_work is not None:
            check_number("max_at_work", self.max_at_work, 1)
        if self.version is not None:
            check_text("version", self.version)
        check_choice("on_other_version", self.on_other_version, get_args(OnOtherVersion))
        for name in ("ttl", "max_runtime", "poll_interval", "grace", "park_after", "max_wait"):
            value: object = getattr(self, name)
            if value is not None or name == "park_after":
                longest = LONGEST_POLL_INTERVAL if name == "poll_interval" else timedelta.max
                check_duration(name, value, zero=name in ("grace", "park_after"), longest=longest)

    @property
    def settled(self) -> TaskOptions | None:
        """The same, once it is known whether the tool may run again; until then None, so that a launch looks it up."""
        return None if self.recover is None else self

    @property
    def rerun(self) -> bool:
        """Whether the tool may be started again after its process went away."""
        return self.recover == "rerun"
