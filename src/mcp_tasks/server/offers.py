"""What of a server may be called as a task, where the caller is the one who asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_tasks.adapters.era import Offer
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark


class ServedOffers:
    """The offers of one server, by what its author said of its tools, prompts and resources."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def methods(self) -> frozenset[str]:
        """The methods whose calls may be tasks."""
        return self._catalogue.reads.methods() | {"tools/call"}

    async def find(self, method: str, name: str) -> Offer | None:
        """The offer for the tool or prompt of that name, or the resource of that URI; None if there is none."""
        if method != "tools/call":
            return await self._read(method, name)
        tool = await self._catalogue.tool(name)
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

    async def _read(self, method: str, name: str) -> Offer | None:
        read = await self._catalogue.read(method, name)
        if read is None:
            return None
        if read.options is None:
            return Offer(support="forbidden")
        return Offer(
            support=read.options.mode,
            retention=read.options.retention(self._catalogue.usual),
            poll_interval=read.options.poll_interval,
            problem_with=read.problem_with,
        )


def _problem(mark: Mark, arguments: Mapping[str, Any]) -> str | None:
    # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
    problem = None if mark.resolves else mark.problem_with(arguments)
    return None if problem is None else str(problem)
