"""The furnished server with results of every kind, and with a way to open its gate over the wire.

python -m tests.spec.legacy.furnished stdio [--store URL]
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Annotations,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from harness.auth import Tokens
from harness.server import CUSTOM_ERROR, QUICK, Desk, build
from harness.serving import serve_stdio
from mcp_tasks import Tasks

ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("echo", {"value": "Grüße, 世界"}),
    "structured": ("point", {"x": 1.5}),
    "picture": ("picture", {}),
    "sound": ("sound", {}),
    "link": ("link", {}),
    "embedded": ("embedded", {}),
    "nothing": ("nothing", {}),
    "meta": ("with_meta", {}),
    "failing": ("fails", {}),
    "crashing": ("crashes", {}),
    "failing-by-result": ("fails_by_result", {}),
    "error-with-object": ("breaks", {}),
    "error-without-data": ("breaks_bare", {}),
    "error-with-list": ("breaks_with_list", {}),
    "error-with-text": ("breaks_with_text", {}),
    "error-with-meta": ("breaks_with_meta", {}),
}
"""A tool and its arguments for every way in which a call ends."""

FAILURES = ("failing", "crashing", "failing-by-result")
"""Those that end with a result that is an error."""

ERRORS = ("error-with-object", "error-without-data", "error-with-list", "error-with-text", "error-with-meta")
"""Those that end with a JSON-RPC error."""


def furnished(
    tasks: Tasks,
    desk: Desk | None = None,
    *,
    guarded: bool = False,
) -> MCPServer[Any]:
    """The server; a guarded one lets nobody in without a token."""
    desk = desk or Desk()
    server = build(tasks, desk, verifier=Tokens("alice", "bob") if guarded else None)
    _add_results(server, tasks)
    _add_errors(server, tasks)
    _add_gate(server, tasks, desk)
    return server


def _add_results(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.task()
    def picture() -> CallToolResult:
        """A picture and its caption."""
        image = ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")
        return CallToolResult(content=[TextContent(type="text", text="a dot"), image])

    @server.tool()
    @tasks.task()
    def sound() -> CallToolResult:
        """A sound, for the assistant only."""
        audience = Annotations(audience=["assistant"], priority=0.5)
        audio = AudioContent(type="audio", data="aGVsbG8=", mime_type="audio/wav", annotations=audience)
        return CallToolResult(content=[audio])

    @server.tool()
    @tasks.task()
    def link() -> CallToolResult:
        """Where to find it."""
        place = ResourceLink(type="resource_link", uri="memo://greeting", name="greeting", mime_type="text/plain")
        return CallToolResult(content=[place])

    @server.tool()
    @tasks.task()
    def embedded() -> CallToolResult:
        """A resource in the result itself."""
        text = TextResourceContents(uri="memo://greeting", text="Good day.", mime_type="text/plain")
        return CallToolResult(content=[EmbeddedResource(type="resource", resource=text)])

    @server.tool()
    @tasks.task()
    def nothing() -> CallToolResult:
        """No content at all."""
        return CallToolResult(content=[])

    @server.tool()
    @tasks.task()
    def with_meta() -> CallToolResult:
        """A result with a `_meta` and structured content of its own."""
        block = TextContent(type="text", text="marked", _meta={"example.com/block": [1, None]})
        return CallToolResult(
            content=[block], structured_content={"a": {"b": [1, None, "c"]}}, _meta={"example.com/kind": {"x": None}}
        )

    @server.tool()
    @tasks.task()
    def fails_by_result() -> CallToolResult:
        """Fail by returning a result that is an error."""
        return CallToolResult(content=[TextContent(type="text", text="the printer is on fire")], is_error=True)


def _add_errors(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.task()
    def breaks_bare() -> str:
        """Fail with a JSON-RPC error without data."""
        raise MCPError(code=CUSTOM_ERROR, message="just no")

    @server.tool()
    @tasks.task()
    def breaks_with_list() -> str:
        """Fail with a JSON-RPC error whose data is no object."""
        raise MCPError(code=CUSTOM_ERROR, message="no, twice", data=["first", 2])

    @server.tool()
    @tasks.task()
    def breaks_with_text() -> str:
        """Fail with a JSON-RPC error whose data is a text."""
        raise MCPError(code=CUSTOM_ERROR, message="no, in words", data="a text")

    @server.tool()
    @tasks.task()
    def breaks_with_meta() -> str:
        """Fail with a JSON-RPC error whose data has a `_meta` of its own."""
        raise MCPError(code=CUSTOM_ERROR, message="no", data={"_meta": {"example.com/kind": 1}, "hint": None})


def _add_gate(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    @server.tool()
    def release() -> str:
        """Open the gate that others wait at; not marked."""
        desk.gate.set()
        return "open"

    @server.tool()
    @tasks.task()
    async def ask_late(ctx: Context) -> str:
        """Report progress, ask the model, and go on."""
        await ctx.report_progress(1, 3, "about to ask")
        roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(2, 3, "asked")
        await desk.gate.wait()
        await ctx.report_progress(3, 3, "done")
        return f"{len(roots.roots)} roots"


def main() -> None:
    """Serve the pipes of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio",))
    parser.add_argument("--store", default="memory://")
    options = parser.parse_args()
    asyncio.run(serve_stdio(furnished(Tasks(options.store, settings=QUICK))))


if __name__ == "__main__":
    main()
