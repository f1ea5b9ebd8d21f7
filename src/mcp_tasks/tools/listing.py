"""What a low-level server lists, asked for by nobody: as a client sees it that declares nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from mcp.server import Server
from mcp_types import PaginatedRequestParams

from mcp_tasks.quiet import get_logger, what
from mcp_tasks.tools.lone import lone_context

logger: Final = get_logger(__name__)

Listing: TypeAlias = Literal["tools/list", "prompts/list", "resources/list", "resources/templates/list"]

_FIELDS: Final[dict[Listing, str]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
}

MOST_PAGES: Final = 1_000
"""Pages that are asked for: a cursor that never ends is the author's mistake, and not ours to run into."""


async def listed(server: Server[Any], method: Listing) -> Sequence[Any]:
    """All that the server's own handler lists, page by page; nothing if it has none, or needs a live request."""
    entry = server.get_request_handler(method)
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES if entry is not None else 0):
        try:
            page = await cast(Any, entry).handler(lone_context(method, {}), PaginatedRequestParams(cursor=cursor))
        except Exception as exc:
            logger.warning("%s could not be asked for, so what it would list decides nothing: %s", method, what(exc))
            return []
        found += getattr(page, _FIELDS[method], [])
        cursor = getattr(page, "next_cursor", None)
        if cursor is None:
            break
    return found
