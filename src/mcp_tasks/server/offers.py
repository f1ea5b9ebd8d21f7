"""What of a server may be called as a task, where the caller is the one who asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_tasks.adapters.era import Offer
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark


class ServedOffers:
    """The offers of one server, by what its author said of its tools."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

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
        return Offer(
            support=mark.options.mode,
            retention=mark.options.retention(self._catalogue.usual),
            poll_interval=mark.options.poll_interval,
            problem_with=lambda arguments: _problem(mark, arguments),
        )


def _problem(mark: Mark, arguments: Mapping[str, Any]) -> str | None:
    # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
    problem = None if mark.resolves else mark.problem_with(arguments)
    return None if problem is None else str(problem)
