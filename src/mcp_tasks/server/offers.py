"""What of a server may be called as a task, where the caller is the one who asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from mcp_tasks.adapters.era import Offer
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark
from mcp_tasks.server.options import DEFAULT_MAX_TTL


class ServedOffers:
    """The offers of one server, by what its author said of its tools.

    Args:
        max_ttl: The longest that a caller may have a task kept for, unless its tool keeps tasks for longer anyway.
    """

    def __init__(self, catalogue: Catalogue, max_ttl: timedelta = DEFAULT_MAX_TTL) -> None:
        self._catalogue = catalogue
        self._max_ttl = max_ttl

    def methods(self) -> frozenset[str]:
        """The methods whose calls may be tasks."""
        return frozenset({"tools/call"})

    async def find(self, method: str, name: str) -> Offer | None:
        """The offer for the tool of that name; None if there is no such tool."""
        tool = await self._catalogue.tool(name) if method == "tools/call" else None
        if tool is None:
            return None
        mark = tool.mark
        if mark is None:
            return Offer(support="forbidden")
        retention = mark.options.retention(self._catalogue.usual)
        return Offer(
            support=mark.options.mode,
            retention=retention,
            max_retention=None if retention is None else max(retention, self._max_ttl),
            poll_interval=mark.options.poll_interval,
            immediate_response=mark.options.immediate_response,
            problem_with=lambda arguments: _problem(mark, arguments),
            may_refuse=mark.may_refuse,
        )


def _problem(mark: Mark, arguments: Mapping[str, Any]) -> str | None:
    # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
    problem = None if mark.resolves else mark.problem_with(arguments)
    return None if problem is None else str(problem)
