"""`tools/list` for callers that speak no tasks: schemas that allow the handle, and the companion tools.

On the newest wire every request says whether its caller takes tasks, so those that do see what they always saw. On the
older ones a call asks for a task or does not, and nobody knows when the tools are listed: everybody is shown the wider
schemas there, which is right for both, and the companions, unless the host is known to ask for tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from mcp_tasks.fallback.companions import Companions, ToolWays, answers_for
from mcp_tasks.fallback.schema import widened
from mcp_tasks.protocol import Caller, TasksProtocol
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

_Tool: TypeAlias = dict[str, Any]


class Listing:
    """Shows callers the tools as these callers need them.

    Args:
        ways: How calls of the server's tools are answered whose callers speak no tasks.
    """

    def __init__(self, protocol: TasksProtocol, ways: ToolWays, companions: Companions) -> None:
        self._protocol = protocol
        self._ways = ways
        self._companions = companions
        self._reported: set[str] = set()

    async def show(self, caller: Caller, result: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/list` as this caller is to see it: the very same if nothing is different."""
        listed = cast("list[_Tool]", result.get("tools", []))
        is_modern = self._protocol.speaks(caller.protocol_version)
        tools = listed if self._protocol.takes_tasks(caller) else await self._wider(listed, is_modern=is_modern)
        tools = self._with(tools, await self._companions.tools(caller), is_last=result.get("nextCursor") is None)
        shown = result if tools is listed else {**result, "tools": tools}
        if is_modern and (tools is not listed or result.get("cacheScope") == "public") and await self._varies():
            # Otherwise somebody between may give to one caller what was made for another.
            return {**shown, "cacheScope": "private"}
        return shown

    async def _wider(self, listed: list[_Tool], *, is_modern: bool) -> list[_Tool]:
        """The tools with schemas that allow the handle, where they may answer with one.

        Those that are to give no word before the end do so too when the server stops, or the tool is stopped.
        """
        wider: dict[int, _Tool] = {}
        for place, tool in enumerate(listed):
            schema = tool.get("outputSchema")
            ways = await self._ways.of(tool["name"]) if isinstance(schema, Mapping) else None
            if ways is not None and answers_for(ways, is_modern):
                wider[place] = {**tool, "outputSchema": widened(cast("Mapping[str, Any]", schema))}
        return [wider.get(place, tool) for place, tool in enumerate(listed)] if wider else listed

    def _with(self, tools: list[_Tool], companions: Sequence[_Tool], *, is_last: bool) -> list[_Tool]:
        names = {tool["name"] for tool in companions}
        if hidden := {tool["name"] for tool in tools} & names:
            # Refused at start; this one was added since. A name that is there twice makes some hosts refuse all tools.
            self._report(hidden)
            tools = [tool for tool in tools if tool["name"] not in hidden]
        return [*tools, *companions] if companions and is_last else tools

    async def _varies(self) -> bool:
        """Whether callers of the newest wire are shown different tools."""
        return any(answers_for(ways, True) for ways in await self._ways.all())

    def _report(self, hidden: set[str]) -> None:
        for name in sorted(hidden - self._reported):
            logger.error(
                "the server has a tool %r, and so is called a companion tool of tasks, which is listed and called in "
                'its place: rename one of them, with Tasks(companion_prefix="my_") or in the server',
                name,
            )
        self._reported |= hidden
