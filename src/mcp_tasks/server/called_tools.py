"""How calls of a server's tools are answered whose callers speak no tasks, by what its author said of each."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tasks.fallback.ways import Fallback
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark
from mcp_tasks.server.options import TaskOptions


class CalledTools:
    """The tools of one server.

    Args:
        augments: Whether a rule of the author's makes tasks of calls of tools that are not marked, too.
    """

    def __init__(self, catalogue: Catalogue, *, augments: bool) -> None:
        self._catalogue = catalogue
        self._augments = augments

    async def of(self, tool: str) -> Fallback | None:
        """How calls of one tool are answered; None if they are plain calls or refused, or there is no such tool."""
        found = await self._catalogue.tool(tool)
        return None if found is None else self._ways(found.mark)

    async def all(self) -> Sequence[Fallback]:
        """How calls of every tool are that may become tasks."""
        every = (self._ways(tool.mark) for tool in await self._catalogue.tools())
        return [ways for ways in every if ways is not None]

    def names(self) -> Sequence[str]:
        """The names of all tools that are known."""
        return self._catalogue.marks.names()

    def _ways(self, mark: Mark | None) -> Fallback | None:
        if mark is None and not self._augments:
            return None
        options = TaskOptions() if mark is None else mark.options
        ways = options.ways(self._catalogue.usual)
        return ways if options.mode == "optional" and (ways.modern or ways.older) else None
