"""What of a server may be called as a task, where the caller is the one who asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from mcp_tasks.adapters.era import Offer
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark
from mcp_tasks.server.options import TaskOptions


class ServedOffers:
    """The offers of one server, by what its author said of its tools, prompts and resources.

    Args:
        longest: The longest that a caller may have a task kept for, unless its tool keeps tasks for longer anyway; None
            for as long as it likes. The `max_ttl` of the catalogue stands above it.
    """

    def __init__(self, catalogue: Catalogue, longest: timedelta | None = None) -> None:
        self._catalogue = catalogue
        self._longest = longest

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
        offer = self._offer(mark.options)
        return replace(
            offer,
            problem_with=partial(_problem, mark),
            may_refuse=mark.may_refuse,
            is_refusal=partial(mark.is_refusal, name),
        )

    async def _read(self, method: str, name: str) -> Offer | None:
        read = await self._catalogue.read(method, name)
        if read is None:
            return None
        if read.options is None:
            return Offer(support="forbidden")
        return replace(self._offer(read.options), problem_with=read.problem_with)

    def _offer(self, options: TaskOptions) -> Offer:
        retention, longest = self._catalogue.retention(options), self._longest
        if self._catalogue.max_ttl is not None:
            most = self._catalogue.max_ttl
        else:
            most = None if retention is None or longest is None else max(retention, longest)
        return Offer(
            support=options.mode,
            retention=retention,
            max_retention=most,
            poll_interval=options.poll_interval,
            immediate_response=options.immediate_response,
        )


def _problem(mark: Mark, arguments: Mapping[str, Any]) -> str | None:
    # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
    problem = None if mark.resolves else mark.problem_with(arguments)
    return None if problem is None else str(problem)
