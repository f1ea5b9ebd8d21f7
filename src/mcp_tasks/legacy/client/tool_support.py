"""Which tools of a server may be called as tasks: what `tools/list` says of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import anyio

from mcp_tasks.legacy.client.connection import Connection
from mcp_tasks.legacy.client.reading import mapping

Support: TypeAlias = Literal["forbidden", "optional", "required"]

MAX_PAGES: Final = 100
"""A server whose list never ends keeps nobody waiting."""

LIST_TIMEOUT: Final = 60.0


class ToolSupport:
    """What is known of the tools of one server."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._known: dict[str, Support] = {}
        self._listing = anyio.Lock()

    def known(self, tool: str) -> Support | None:
        """What a list said of the tool; None if none did yet."""
        return self._known.get(tool)

    def saw(self, page: Mapping[str, Any]) -> None:
        """Take in a page of the list, whoever asked for it."""
        tools: object = page.get("tools")
        for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
            name, said = mapping(tool).get("name"), mapping(mapping(tool).get("execution")).get("taskSupport")
            if isinstance(name, str):
                # Absent means forbidden, and so does what nobody knows the meaning of.
                self._known[name] = cast(Support, said) if said in ("optional", "required") else "forbidden"

    def forget(self) -> None:
        """The list has changed."""
        self._known.clear()

    async def find(self, tool: str) -> Support:
        """What the server says of the tool; one that it does not list is `forbidden`.

        Raises:
            MCPError: The server does not list its tools.
        """
        if tool not in self._known:
            async with self._listing:
                if tool not in self._known:
                    await self._list()
        return self._known.get(tool, "forbidden")

    async def _list(self) -> None:
        cursor: object = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._wire.request("tools/list", params, timeout=LIST_TIMEOUT)
            self.saw(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return
