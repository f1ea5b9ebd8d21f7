"""`mcp-tasks tools`: what a server offers, and what is known about which of it can be a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import click
from mcp import Client, MCPError
from mcp_types import PaginatedRequestParams, ServerCapabilities, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from rich.text import Text

from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.options import Access, Output, takes_access, takes_output
from mcp_tasks.cli.running import run
from mcp_tasks.cli.target import Target, parse_target
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import listing, stdout
from mcp_tasks.client.fields import fields_of
from mcp_tasks.wire.models import EXTENSION_ID

PAGE_LIMIT = 100
"""Pages of a listing; a server whose listing never ends is not followed for ever."""

_HINTS: Mapping[str, str] = {"required": "always", "optional": "can be", "forbidden": "never"}

EPILOG = """\
\b
Examples:
  mcp-tasks tools http://localhost:8000/mcp
  mcp-tasks tools "python server.py" --json
"""


@click.command(epilog=EPILOG)
@click.argument("server")
@takes_access
@takes_output
def command(*, server: str, access: Access, output: Output) -> int:
    """List a server's tools, what they take, and which can be tasks.

    On the 2026-07-28 protocol the server decides call by call, and no listing tells; where it says more, that is
    shown.
    """
    return run(lambda: _list(parse_target(server), access, output))


async def list_tools(client: Client) -> list[Tool]:
    """All tools of a server.

    Raises:
        Problem: It does not list them.
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
        raise Problem(f"the server does not list its tools: {exc}", Exit.FAILED) from exc
    except ValidationError as exc:
        raise Problem(f"the server's list of tools is not valid: {exc}", Exit.FAILED) from exc
    return tools


async def _list(target: Target, access: Access, output: Output) -> int:
    async with connect(target, access) as client:
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        declared = _has_tasks(client.server_capabilities, modern=modern)
        # Pinned to the modern protocol, nobody asked the server what it can do.
        unasked = access.era == "modern"
        tools = await list_tools(client)
        version = client.protocol_version
    if output == "json":
        shown = [_json(tool, modern=modern, declared=declared or unasked) for tool in tools]
        print_json({"protocolVersion": version, "tasks": None if unasked else declared, "tools": shown})
        return Exit.OK
    _print(tools, modern=modern, declared=declared or unasked)
    say(_summary(version, modern=modern, declared=declared, unasked=unasked))
    return Exit.OK


def _json(tool: Tool, *, modern: bool, declared: bool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "task": can_be_task(tool, modern=modern, declared=declared),
        "inputSchema": tool.input_schema,
    }


def can_be_task(tool: Tool, *, modern: bool, declared: bool) -> str:
    """What is known about whether calls of a tool become tasks."""
    if not declared:
        return "never"
    hint = _task_support(tool)
    if hint is not None and hint in _HINTS:
        return _HINTS[hint]
    return "the server decides" if modern else "never"


def _has_tasks(capabilities: ServerCapabilities, *, modern: bool) -> bool:
    """Whether the server says that calls of tools may become tasks."""
    if modern:
        return EXTENSION_ID in (capabilities.extensions or {})
    requests = None if capabilities.tasks is None else capabilities.tasks.requests
    return requests is not None and requests.tools is not None and requests.tools.call is not None


def _task_support(tool: Tool) -> str | None:
    """`execution.taskSupport`: part of the 2025-11-25 protocol, and on the newer one whatever a server adds."""
    execution: Any = tool.model_dump(by_alias=True, mode="json").get("execution")
    return cast("Mapping[str, Any]", execution).get("taskSupport") if isinstance(execution, Mapping) else None


def _print(tools: list[Tool], *, modern: bool, declared: bool) -> None:
    rows: list[tuple[Text, Text, Text]] = []
    for tool in tools:
        about = Text(one_line(tool.description))
        for field in fields_of(tool.input_schema):
            about.append(f"\n  {one_line(field.name)}: {one_line(field.describe())}", style="bright_black")
        as_task = Text(can_be_task(tool, modern=modern, declared=declared))
        rows.append((Text(one_line(tool.name), style="bold"), as_task, about))
    stdout().print(listing(("tool", "as a task", "what it does and takes"), rows, fixed=2))


def _summary(version: str, *, modern: bool, declared: bool, unasked: bool) -> str:
    if not modern:
        has = "tasks of its own. The client decides which calls become one" if declared else "no tasks"
        return f"The server speaks {version}, with {has}."
    if unasked:
        return f"Spoken: {version}, without asking what the server supports."
    if not declared:
        return f"The server speaks {version} and does not support tasks: every call is answered directly."
    return f"The server speaks {version} with tasks. It decides call by call which become one."
