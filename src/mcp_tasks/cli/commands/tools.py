"""`mcp-tasks tools`: what a server offers, and what is known about which of it can be a task."""

from __future__ import annotations

from collections.abc import Mapping

import click
from mcp_types import Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from rich.text import Text

from mcp_tasks.cli.commands.servers.names import SERVER
from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.options import Access, Output, takes_access, takes_output
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Columns, listing, print_json, say, stdout
from mcp_tasks.client import ServerAddress, TaskSupport, fields_of, list_tools, task_support
from mcp_tasks.client.tools import declares_tasks

_WORDS: Mapping[TaskSupport, str] = {
    "required": "always",
    "optional": "can be",
    "forbidden": "never",
    "undeclared": "the server decides",
}


@click.command()
@click.argument("server", type=SERVER)
@takes_access
@takes_output
async def command(*, server: ServerAddress, access: Access, output: Output) -> int:
    """List a server's tools, what they take, and which can be tasks.

    On the 2026-07-28 protocol the server decides call by call, and no listing tells; where it says more, that is
    shown.

    Examples:
      mcp-tasks tools http://localhost:8000/mcp
      mcp-tasks tools "python server.py" --json
    """
    async with connect(server, access) as client:
        tools = [(tool, _WORDS[task_support(tool, client)]) for tool in await list_tools(client)]
        version, declared = client.protocol_version, declares_tasks(client)
    if output == "json":
        shown = [
            {"name": tool.name, "description": tool.description, "task": words, "inputSchema": tool.input_schema}
            for tool, words in tools
        ]
        print_json({"protocolVersion": version, "tasks": declared, "tools": shown})
        return Exit.OK
    columns: Columns[tuple[Tool, str]] = {
        "tool": lambda each: Text(one_line(each[0].name), style="bold"),
        "as a task": lambda each: each[1],
        "what it does and takes": lambda each: _about(each[0]),
    }
    stdout().print(listing(columns, tools, fixed=2))
    say(_summary(version, declared))
    return Exit.OK


def _about(tool: Tool) -> Text:
    about = Text(one_line(tool.description))
    for field in fields_of(tool.input_schema):
        about.append(f"\n  {one_line(field.name)}: {one_line(field.describe())}", style="bright_black")
    return about


def _summary(version: str, declared: bool | None) -> str:
    if version not in MODERN_PROTOCOL_VERSIONS:
        has = "tasks of its own. The client decides which calls become one" if declared else "no tasks"
        return f"The server speaks {version}, with {has}."
    if declared is None:
        return f"Spoken: {version}, without asking what the server supports."
    if not declared:
        return f"The server speaks {version} and does not support tasks: every call is answered directly."
    return f"The server speaks {version} with tasks. It decides call by call which become one."
