"""How much time one request of a call has, by what is known of its caller's host and of the requests before it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.fallback.hosts import Host, host_of
from mcp_tasks.fallback.legs import Leg
from mcp_tasks.fallback.patience import Patience, patience_of_call, patience_of_leg, patience_of_status
from mcp_tasks.fallback.ways import Fallback
from mcp_tasks.protocol import Caller

USUAL_WAIT: Final = Fallback().wait


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHosts:
    """What is known of hosts.

    Attributes:
        by_name: By their names.
        unknown: What is assumed of those that are not known.
    """

    by_name: Mapping[str, Host]
    unknown: Host

    def of(self, caller: Caller, ctx: RequestContext) -> Host | None:
        """The host of a caller; None for one that is not known."""
        return host_of(caller.client_info, self.by_name, over_stdio=ctx.request is None)


class RequestTime:
    """The time that one request has.

    Args:
        host: The caller's host; None for one that is not known.
        unknown: What is assumed of such a host.
        leg: Which request of its call it is; None where the caller cannot be told to come back.
        began: When it began, in seconds of the monotonic clock.
        now: The time as people tell it, which states carry from one request of a call to the next.
        wanted: How long the caller wants to wait, where it says so.
        is_sent_progress: Whether the caller asked for progress, and its connection carries any.

    Attributes:
        window: Since when the host's limit for the whole call counts.
        patience: How long the request may wait, from its beginning, and what may come after.
    """

    def __init__(
        self,
        ways: Fallback,
        host: Host | None,
        unknown: Host,
        *,
        leg: Leg | None,
        now: datetime,
        began: float,
        wanted: timedelta | None,
        is_sent_progress: bool,
    ) -> None:
        self._began = began
        assumed = host or unknown
        brought = None if leg is None else leg.brought
        self.window: datetime = now if brought is None else _window(brought.window, assumed.limit, now)
        elapsed = max(now - self.window, timedelta(0))
        legs = 0 if brought is None else brought.legs
        # Progress that comes too seldom keeps nobody.
        has_progress = is_sent_progress and (assumed.limit is None or ways.heartbeat < assumed.limit)
        self.patience: Patience
        if wanted is not None:
            # As the call itself, or as is usual: the author may have said that a call is answered at once.
            bound = max(ways.wait, USUAL_WAIT) if leg is None and host is None else wanted
            # At least once, where a call may not be told to come back: nobody else would ask.
            asks = leg is not None and legs < max(ways.legs, 1)
            self.patience = patience_of_status(
                min(wanted, bound), assumed, elapsed=elapsed, asks=asks, has_progress=has_progress
            )
        elif leg is None:
            self.patience = patience_of_call(ways, host, unknown, has_progress=has_progress)
        else:
            self.patience = patience_of_leg(ways, assumed, legs=legs, elapsed=elapsed, has_progress=has_progress)

    @property
    def waited(self) -> timedelta:
        """How long the request has been there."""
        return timedelta(seconds=time.monotonic() - self._began)

    @property
    def remaining(self) -> timedelta | None:
        """How long it may go on waiting; None for as long as it takes."""
        limit = self.patience.limit
        return None if limit is None else max(limit - self.waited, timedelta(0))


def _window(since: datetime, limit: timedelta | None, now: datetime) -> datetime:
    """Since when the limit counts. A host that comes back after it does not count what its person takes."""
    return now if limit is not None and now - since >= limit else min(since, now)
