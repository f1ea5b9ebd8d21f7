"""Callers who do what honest ones do not: told once a minute and pattern, with the principal.

Kept for a minute at a time, of so many callers at most, and forgotten then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from mcp_tasks.core.actor import Actor
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.accesses import Refusal, TaskAccess
from mcp_tasks.telemetry.audit_log import AuditEntry, AuditLog
from mcp_tasks.telemetry.contract import SUSPICIOUS
from mcp_tasks.telemetry.numbers import Numbers

logger: Final = get_logger(__name__)

Pattern: TypeAlias = Literal["failed_lookups", "excessive_polling", "limit_hits"]

MINUTE: Final = 60.0

THRESHOLDS: Final[dict[Pattern, int]] = {
    # A client that comes back for tasks that have expired asks for each once. Nobody guesses an id of 160 bits, but who
    # tries is to be known, and so is who tries ids that leaked.
    "failed_lookups": 30,
    # Of one task. The shortest interval that clients are told is 0.2 s: twice as often as that, for a whole minute.
    "excessive_polling": 600,
    "limit_hits": 60,
}
"""How many in a minute are suspicious, of one principal; of callers without one, of all together."""

MOST_CALLERS: Final = 10_000
"""Callers (for polling: callers and tasks) that are counted at a time, for each pattern. Beyond it, those that come new
are not."""

_WORDS: Final[dict[Pattern, str]] = {
    "failed_lookups": "asked for tasks that are not there, or not theirs",
    "excessive_polling": "asked for the same task",
    "limit_hits": "were over a limit",
}
_LONGEST_NAME: Final = 200


class Suspicion:
    """Watches the callers of one runtime."""

    def __init__(self, numbers: Numbers, audit: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._numbers = numbers
        self._audit = audit
        self._clock = clock
        self._since = clock()
        # Each has a bound of its own: who polls many tasks must not hide who guesses ids.
        self._counts: dict[Pattern, dict[Hashable, int]] = {pattern: {} for pattern in THRESHOLDS}
        for pattern in THRESHOLDS:
            numbers.expect(SUSPICIOUS, pattern)

    def consider(self, access: TaskAccess) -> None:
        """See whether the caller has done this too often by now."""
        now = self._clock()
        if now >= self._since + MINUTE:
            self._since = now
            self._counts = {pattern: {} for pattern in THRESHOLDS}
        match access.refused:
            case None:
                if access.verb == "read" and access.method != "local":
                    self._count("excessive_polling", (access.owner, access.task_id), access)
            case Refusal.UNKNOWN:
                self._count("failed_lookups", access.owner, access)
            case Refusal.LIMIT:
                self._count("limit_hits", access.owner, access)
            case _:
                pass

    def _count(self, pattern: Pattern, who: Hashable, access: TaskAccess) -> None:
        counts = self._counts[pattern]
        before = counts.get(who, 0)
        if before == 0 and len(counts) >= MOST_CALLERS:
            return
        count = counts[who] = before + access.times
        if before < THRESHOLDS[pattern] <= count:
            self._tell(pattern, access)

    def _tell(self, pattern: Pattern, access: TaskAccess) -> None:
        self._numbers.add(SUSPICIOUS, pattern)
        name = "callers without a name" if access.owner is None else repr(access.owner[:_LONGEST_NAME])
        logger.warning(
            "suspicious (%s): %s %s %d times within a minute", pattern, name, _WORDS[pattern], THRESHOLDS[pattern]
        )
        self._audit.write(
            AuditEntry(
                event="suspicious",
                actor=Actor("client", access.owner),
                task_id=access.task_id if pattern == "excessive_polling" else None,
                method=access.method,
                reason=pattern,
                count=THRESHOLDS[pattern],
                at=datetime.fromtimestamp(access.at, UTC),
            )
        )
