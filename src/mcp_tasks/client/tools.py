"""The tools of a server: all of them, one by its name, and what is known about which of their calls become tasks."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, cast, get_args

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PaginatedRequestParams, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_tasks.core.json import object_in
from mcp_tasks.errors import InvalidResponse, UnknownTool
from mcp_tasks.wire.models import EXTENSION_ID

PAGE_LIMIT: Final = 100
"""Pages of a listing; a server whose listing never ends is not followed for ever."""

TaskSupport: TypeAlias = Literal["required", "optional", "forbidden", "undeclared"]
"""What a server says about calls of a tool: they are tasks, can be, never are; or it decides call by call."""

_SAID: Final = frozenset(get_args(TaskSupport)) - {"undeclared"}


async def list_tools(client: Client) -> list[Tool]:
    """All tools of a server, page by page.

    Raises:
        InvalidResponse: It does not list them.
    """
    tools: list[Tool] = []
    cursor: str | None = None
    try:
        for _ in range(PAGE_LIMIT):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
    except MCPError as exc:
        raise InvalidResponse(f"the server does not list its tools: {exc}") from exc
    except ValidationError as exc:
        raise InvalidResponse(f"the server's list of tools is not valid: {exc}") from exc
    return tools


async def find_tool(client: Client, name: str) -> Tool:
    """The tool of that name.

    Raises:
        UnknownTool: The server has none; it says which are spelled like it.
        InvalidResponse: It does not list its tools.
    """
    tools = {tool.name: tool for tool in reversed(await list_tools(client))}
    if name in tools:
        return tools[name]
    raise unknown_tool(name, [*reversed(tools)])


def unknown_tool(name: str, names: Collection[str]) -> UnknownTool:
    """That a server has no tool of that name: which of its tools are spelled like it, or what it has."""
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    # On one line, whatever a server calls them.
    near, names = ([" ".join(found.split()) for found in some] for some in (near, names))
    hint = f"Did you mean {' or '.join(near)}?" if near else f"It has: {', '.join(names) or 'no tools'}"
    return UnknownTool(f"the server has no tool {name!r}", hint)


def declares_tasks(client: Client) -> bool | None:
    """Whether the server says that calls of tools may become tasks; None if nobody has asked it, which is so for a
    client that is pinned to the newer protocol."""
    capabilities = client.server_capabilities
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
        if client.mode in MODERN_PROTOCOL_VERSIONS:
            return None
        return EXTENSION_ID in (capabilities.extensions or {})
    requests = None if capabilities.tasks is None else capabilities.tasks.requests
    return requests is not None and requests.tools is not None and requests.tools.call is not None


def task_support(tool: Tool, client: Client) -> TaskSupport:
    """What is known about whether calls of a tool become tasks.

    On the 2026-07-28 protocol the server decides call by call and need not say anything in advance; where it does,
    that is given.
    """
    if declares_tasks(client) is False:
        return "forbidden"
    # Part of the 2025-11-25 protocol, and on the newer one whatever a server adds.
    hint = (object_in(tool.model_dump(by_alias=True, mode="json"), "execution") or {}).get("taskSupport")
    if isinstance(hint, str) and hint in _SAID:
        return cast("TaskSupport", hint)
    return "undeclared" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "forbidden"
