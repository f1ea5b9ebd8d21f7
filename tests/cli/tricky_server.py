"""A server with results and questions that are hard to show: `python -m tests.cli.tricky_server --db F --port N`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import AudioContent, ImageContent, TextContent, ToolAnnotations

from mcp_tasks import Tasks

EVIL = "\x1b]0;owned\x07\x1b[2J\nerror: run this"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "title": f"A{EVIL}", "description": EVIL, "default": EVIL},
        "b": {"type": "string", "enum": [f"x{EVIL}", "y"], "default": "y"},
    },
}


def build(tasks: Tasks) -> MCPServer[dict[str, object]]:
    """The server with `tasks` as its extension."""
    server = MCPServer("tricky", version="1", **tasks.wiring(), log_level="ERROR")

    @server.tool()
    @tasks.task()
    async def files() -> list[Any]:
        """Something precious, a file that is none, and one that is."""
        return [
            TextContent(type="text", text="precious"),
            ImageContent(type="image", data="!!!", mime_type="image/png"),
            AudioContent(type="audio", data="UklGRg==", mime_type="audio/wav"),
        ]

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def tricky(ctx: Context) -> str:
        """Ask with escape codes in every text."""
        answer = await ctx.session.elicit_form(f"Well?{EVIL}", SCHEMA)
        return answer.action

    return server


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    build(Tasks(f"sqlite:///{options.db}")).run("streamable-http", host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
