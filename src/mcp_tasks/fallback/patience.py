"""How long a call may wait for its tool, and whether its caller can be told to come back: rules, and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mcp_tasks.fallback.hosts import Host
from mcp_tasks.fallback.ways import Fallback

LAST_STRETCH: Final = 1.2
"""How much longer than usual a wait may be that nothing comes after: a short one more is not worth a request."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What one request of a call may do.

    Attributes:
        limit: How long it may wait; None for as long as the tool takes.
        comes_back: Whether its caller can be told to come back when the wait is over.
        asks: Whether its caller can be told to come back with answers.
    """

    limit: timedelta | None
    comes_back: bool = False
    asks: bool = False


def patience_of_call(ways: Fallback, host: Host | None, unknown: Host, *, has_progress: bool) -> Patience:
    """For a call that is one request.

    Args:
        host: What is known of the caller's host; None for nothing.
        unknown: What is assumed of such a host.
        has_progress: Whether the caller is sent progress.
    """
    if host is not None:
        return Patience(host.answer_within(has_progress=has_progress))
    assumed = unknown.answer_within(has_progress=has_progress)
    return Patience(ways.wait if assumed is None else min(ways.wait, assumed))


def patience_of_leg(ways: Fallback, host: Host, *, legs: int, elapsed: timedelta, has_progress: bool) -> Patience:
    """For a request of a call that may take several.

    Args:
        legs: How often the caller has been told to come back.
        elapsed: How much of the host's limit for the whole call has gone by.
    """
    has_legs = legs < ways.legs
    within = host.answer_within(has_progress=has_progress)
    if within is None:
        return Patience(ways.wait, comes_back=has_legs, asks=has_legs)
    remaining = max(within - elapsed, timedelta(0))
    if remaining <= ways.wait * LAST_STRETCH:
        return Patience(remaining, asks=has_legs)
    return Patience(ways.wait, comes_back=has_legs, asks=has_legs)


def patience_of_status(
    wanted: timedelta, host: Host, *, elapsed: timedelta, asks: bool, has_progress: bool
) -> Patience:
    """For a request whose caller says how long it waits, and is answered then.

    Args:
        elapsed: How much of the host's limit for the whole call has gone by.
        asks: Whether the caller can be told to come back with answers.
    """
    within = host.answer_within(has_progress=has_progress)
    limit = wanted if within is None else min(wanted, max(within - elapsed, timedelta(0)))
    return Patience(limit, asks=asks)
