"""A server whose tasks ask every kind of question, over HTTP or stdio, to try forms with.

    python -m tests.cli.asking_server --db tasks.db [--port 8000]

Without a port it speaks over its pipes.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

from mcp_tasks import Settings, Tasks

REPEATABLE = ToolAnnotations(idempotent_hint=True)
HARMLESS = ToolAnnotations(read_only_hint=True)
PIXEL = "iVBORw0KGgo="

SURVEY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "description": "As on your passport"},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "weight": {"type": "number", "default": 70.5},
        "subscribe": {"type": "boolean", "default": True},
        "colour": {"type": "string", "enum": ["red", "green"], "enumNames": ["Red wine", "Green tea"]},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "days": {
            "type": "array",
            "items": {"anyOf": [{"const": "mon", "title": "Monday"}, {"const": "tue", "title": "Tuesday"}]},
            "minItems": 1,
        },
    },
    "required": ["name", "age", "colour", "days"],
}
EVIL = "\x1b]0;owned\x07\x1b[2J\nerror: run this"
TRICKY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "title": f"A{EVIL}", "description": EVIL, "default": EVIL},
        "b": {"type": "string", "enum": [f"x{EVIL}", "y"], "default": "y"},
    },
}


def build(tasks: Tasks) -> MCPServer[dict[str, object]]:
    server = MCPServer("asking", version="1", **tasks.wiring(), log_level="ERROR")

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def survey(ctx: Context) -> str:
        """Ask for everything a form can ask for."""
        answer = await ctx.session.elicit_form("Tell us about yourself", SURVEY)
        return json.dumps({"action": answer.action, "content": answer.content}, sort_keys=True)

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def link_account(ctx: Context, url: str = "https://a.example/link?id=7") -> str:
        """Ask somebody to visit a page."""
        answer = await ctx.elicit_url("Link your account", url, "link-7")
        return f"link: {answer.action}"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def slow(seconds: float, ctx: Context) -> str:
        """Take some time, and say how far it is."""
        steps = int(seconds * 10)
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step} of {steps}")
            await anyio.sleep(0.1)
        return "slow done"

    @server.tool(annotations=HARMLESS)
    @tasks.task()
    async def fails() -> str:
        """Say that it failed."""
        raise ToolError("out of paper")

    @server.tool(annotations=HARMLESS)
    @tasks.task()
    async def pictures() -> list[ImageContent | AudioContent | EmbeddedResource]:
        """Give a file of every kind, with names that lead elsewhere."""
        blob = BlobResourceContents(uri="file:///../../evil.sh", mime_type="application/x-sh", blob=PIXEL)
        page = TextResourceContents(uri="file://../../.profile", mime_type="text/html", text="<p>hello</p>")
        return [
            ImageContent(data=PIXEL, mime_type="image/png"),
            AudioContent(data=PIXEL, mime_type="audio/wav"),
            EmbeddedResource(resource=blob),
            EmbeddedResource(resource=page),
        ]

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def files() -> list[Any]:
        """Something precious, a file that is none, and one that is."""
        return [
            TextContent(type="text", text="precious"),
            ImageContent(type="image", data="!!!", mime_type="image/png"),
            AudioContent(type="audio", data="UklGRg==", mime_type="audio/wav"),
        ]

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def tricky(ctx: Context) -> str:
        """Ask with escape codes in every text."""
        return (await ctx.session.elicit_form(f"Well?{EVIL}", TRICKY)).action

    @server.tool()
    def echo(
        text: str,
        times: int = 1,
        loud: bool = False,
        tags: list[str] | None = None,
        options: dict[str, int] | None = None,
    ) -> str:
        """Say what it was given, at once."""
        given = {"text": text, "times": times, "loud": loud, "tags": tags, "options": options}
        return json.dumps(given, sort_keys=True)

    return server


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--drain", type=float, default=0.1)
    options = parser.parse_args(argv)
    # The SDK's client waits two seconds for a stdio server to end before it ends it.
    settings = Settings(drain_timeout=timedelta(seconds=options.drain), stop_timeout=timedelta(milliseconds=100))
    server = build(Tasks(f"sqlite:///{options.db}", settings=settings))
    if options.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
