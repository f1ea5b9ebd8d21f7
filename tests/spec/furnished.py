"""The furnished server with results and errors of every kind, with tools that talk, and with its gate on the wire.

python -m tests.spec.furnished stdio
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any, cast

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from harness.auth import Tokens
from harness.older import RELATED
from harness.server import CUSTOM_ERROR, QUICK, REPEATABLE, Desk, Name, build
from harness.serving import serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.model.json import LARGE


def _text(text: str, **more: Any) -> TextContent:
    return TextContent(type="text", text=text, **more)


NOTES = Annotations(audience=["assistant"], priority=0.5)
ICON = Icon(src="https://example.com/a.png")
STRUCTURED: dict[str, Any] = {
    "none": None,
    "nan": float("nan"),
    "dates": [date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)],
    "keys": {1: 2, None: 3},
    "model": NOTES,
    "tuple": (1, 2.5, True),
    "bytes": b"abc",
    "nested": reduce(lambda value, _: [value], range(100), cast("Any", 1)),
}
RESULTS: dict[str, CallToolResult] = {
    "picture": CallToolResult(
        content=[_text("a dot"), ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")]
    ),
    "sound": CallToolResult(
        content=[AudioContent(type="audio", data="aGVsbG8=", mime_type="audio/wav", annotations=NOTES)]
    ),
    "link": CallToolResult(
        content=[ResourceLink(type="resource_link", uri="memo://greeting", name="greeting", size=3, icons=[ICON])]
    ),
    "embedded": CallToolResult(
        content=[
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="memo://greeting", text="Good day.")),
            EmbeddedResource(
                type="resource", resource=BlobResourceContents(uri="file:///b", blob="AAAA"), annotations=NOTES
            ),
        ]
    ),
    "nothing": CallToolResult(content=[]),
    "with_meta": CallToolResult(
        content=[_text("☃", _meta={"example.com/block": [1, None]})],
        structured_content=STRUCTURED,
        _meta={"example.com/kind": {"x": None}, "nothing": None, RELATED: {"taskId": "a lie"}},
    ),
    # More than is decoded on the event loop.
    "large": CallToolResult(content=[_text("x" * LARGE * 2)]),
    "fails_by_result": CallToolResult(content=[_text("the printer is on fire")], is_error=True),
    "fails_silently": CallToolResult(content=[], is_error=True),
}
"""Tools and what they return; those whose name begins with `fails` report an error."""

ERRORS: dict[str, MCPError] = {
    "breaks_bare": MCPError(code=CUSTOM_ERROR, message="just no"),
    "breaks_without_a_word": MCPError(code=CUSTOM_ERROR, message=""),
    # What is said of this server's client where it cannot be asked, but of another one.
    "breaks_as_elsewhere": MCPError(-32021, "another client cannot", {"requiredCapabilities": {"sampling": {}}}),
    "breaks_with_meta": MCPError(CUSTOM_ERROR, "no", {"_meta": {"example.com/kind": 1}, "hint": None}),
    "breaks_with_list": MCPError(CUSTOM_ERROR, "no", ["first", 2]),
    "breaks_with_text": MCPError(CUSTOM_ERROR, "no", "a text"),
    "breaks_with_number": MCPError(CUSTOM_ERROR, "no", 0),
    "breaks_with_odd_meta": MCPError(CUSTOM_ERROR, "no", {"_meta": 7, "a": 1}),
}
"""Tools and the JSON-RPC error that they raise."""

ENDINGS: dict[str, dict[str, Any]] = {
    "echo": {"value": "Grüße, 世界"},
    "point": {"x": 1.5},
    "logs": {},
    "fails": {},
    "crashes": {},
    "breaks": {},
    **{name: {} for name in (*RESULTS, *ERRORS)},
}
"""A tool and its arguments for every way in which a call ends."""


def is_failure(tool: str) -> bool:
    return tool.startswith("fails") or tool == "crashes"


def furnished(tasks: Tasks, desk: Desk | None = None, *, guarded: bool = False) -> MCPServer[Any]:
    desk = desk or Desk()
    server = build(tasks, desk, verifier=Tokens("alice", "bob") if guarded else None)
    for name, ending in {**RESULTS, **ERRORS}.items():
        server.add_tool(tasks.task(name=name)(_ending(ending)), name=name, description=name)
    _add_gate(server, tasks, desk)
    _add_asking(server, tasks, desk)
    _add_talking(server, tasks, desk)
    return server


def _ending(how: CallToolResult | MCPError) -> Callable[[], CallToolResult]:
    def tool() -> CallToolResult:
        if isinstance(how, MCPError):
            raise MCPError(how.error.code, how.error.message, how.error.data)
        return how

    return tool


def _add_gate(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    @server.tool()
    def release() -> str:
        desk.gate.set()
        return "open"

    @server.tool()
    @tasks.task()
    async def ask_late(ctx: Context) -> str:
        await ctx.report_progress(1, 3, "about to ask")
        roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(2, 3, "asked")
        await desk.gate.wait()
        await ctx.report_progress(3, 3, "done")
        return f"{len(roots.roots)} roots"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def ask_until_told(ctx: Context) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.elicit, "Who is there?", Name)
            await desk.started.wait()
            group.cancel_scope.cancel()
        await desk.gate.wait()
        return "went on"


def _add_asking(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def knock(ctx: Context) -> str:
        desk.started.set()
        await desk.gate.wait()
        answer = await ctx.elicit("Who is there?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def insist(ctx: Context) -> str:
        try:
            answer = await ctx.elicit("Who is there?", Name)
        except MCPError as exc:
            return f"{exc.code} {exc.message} {exc.data}"
        return f"no error, but {answer.action}"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def waver(ctx: Context) -> str:
        with anyio.move_on_after(1):
            await ctx.elicit("Who is there?", Name)
        await desk.gate.wait()
        return "went on"

    @server.tool()
    @tasks.task()
    async def trust(ctx: Context) -> str:
        answer = await ctx.elicit("Who is there?", Name)
        return f"{answer.action}"

    @server.tool()
    @tasks.task()
    async def steps(values: list[float], ctx: Context) -> str:
        for value in values:
            desk.started.set()
            await desk.gate.wait()
            desk.gate.clear()
            await ctx.report_progress(value, 10, f"at {value}")
        desk.started.set()
        await desk.gate.wait()
        return "done"

    @server.tool()
    @tasks.task()
    async def count(reports: int, ctx: Context) -> str:
        for number in range(1, reports + 1):
            await ctx.report_progress(number, reports)
            await anyio.sleep(0.001)  # sleep: the work between two reports
        await desk.gate.wait()
        return "counted"

    @server.tool()
    @tasks.task()
    async def delegate() -> str:
        return (await tasks.start("ask_name")).id


def _add_talking(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    @server.tool()
    @tasks.task()
    async def talk(ctx: Context) -> str:
        await desk.gate.wait()
        await ctx.info("said first")  # pyright: ignore[reportDeprecated]
        await ctx.session.send_tool_list_changed()
        await ctx.session.send_resource_updated("demo://one")
        await ctx.session.send_elicit_complete("e1", related_request_id=ctx.request_id)
        await ctx.info("said last")  # pyright: ignore[reportDeprecated]
        return "talked"

    @server.tool()
    @tasks.task()
    async def chatter(count: int, ctx: Context) -> str:
        for number in range(count):
            await ctx.info(f"said {number}")  # pyright: ignore[reportDeprecated]
        desk.started.set()
        await desk.gate.wait()
        return "enough"

    @server.tool()
    @tasks.task()
    async def ping(ctx: Context) -> str:
        await desk.gate.wait()
        await ctx.session.send_ping()
        return "pinged"


if __name__ == "__main__":
    asyncio.run(serve_stdio(furnished(Tasks("memory://", settings=QUICK))))
