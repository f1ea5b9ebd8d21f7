"""What an author says of calls whose caller speaks no tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.values import check_choice, check_flag, check_number
from mcp_tasks.errors import InvalidOption

ShownTo: TypeAlias = Literal["auto", "always", "never"]
"""Who is shown the companion tools: callers that may need them, everybody, nobody."""

WhenCallerLeaves: TypeAlias = Literal["continue", "cancel"]
"""What becomes of the work when its caller goes away while the call is open."""

MOST_LEGS: Final = 9
"""Clients of the SDKs take ten answers that tell them to come back, and raise at the eleventh. One is for a retry."""

LONGEST: Final = timedelta(days=30)
"""The longest that a call may be taken up again: as long as a key is kept that it was sealed with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """How a call is answered whose caller speaks no tasks, for one tool or for all.

    Attributes:
        modern: Whether clients of 2026-07-28 that do not declare tasks are answered so; if not, a plain call.
        older: Whether clients of the older versions are, where they do not ask for a task; if not, a plain call.
        wait: How long a call waits for the tool before it answers something else; a client of 2026-07-28 comes back for
            as many waits as it has `legs`. A host that is known to give up sooner is answered sooner.
        legs: How often a client of 2026-07-28 is told to come back in one call. Questions count; with 0,
            those of the tool are asked by `task_status`.
        handle: Whether the call answers that the tool is still running when the waits are over. If not, it goes on
            waiting, and the caller may give up.
        heartbeat: The longest time between two progress notifications, where the caller has asked for progress.
        when_caller_leaves: What becomes of the work when the caller goes away while the call is open.
        model_may_answer: Whether a model may answer for a person, with the companion tool `task_answer`. Then what the
            tool asks stays open where the caller cannot be asked; otherwise the tool is told that it cannot ask. Over
            stateless HTTP of older versions, where nobody knows what a client can do, it stays open in any case.
        answer_within: How long a call may be taken up again, and a question stay open if the tool has no `max_wait`.
            At most 30 days. A question with a `timeout` stays open, and can be answered, for that long instead.
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
"""What can be said of a tool: how, as usual, or that its calls stay plain calls."""

USUAL: Final = Fallback()
INLINE: Final = Fallback(modern=False, older=False)


def check_ways(ways: object) -> None:
    """Refuse what is none of the three.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(ways, Fallback) and ways not in ("auto", "inline"):
        raise InvalidOption(
            f"fallback must be 'auto', 'inline' or a Fallback, got {ways!r}: write "
            "fallback=Fallback(wait=timedelta(seconds=20)), or 'inline' for plain calls"
        )


def chosen_ways(ways: Ways | None, usual: Fallback) -> Fallback:
    """What was said of a tool, or else of all."""
    if isinstance(ways, Fallback):
        return ways
    return INLINE if ways == "inline" else usual
