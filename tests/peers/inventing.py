"""A low-level server that lists nothing, and a client that calls it by whatever name it likes.

`python -m tests.peers.inventing` prints the spans of such a call as JSON: a process of its own, because a process has
one tracer provider for good.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, TextContent
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK
from mcp_tasks import Tasks


def low_level(tasks: Tasks) -> Server[Any]:
    """A server that takes every name; its author marked one."""

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[Any] = Server("low", version="1", on_call_tool=call_tool)
    tasks.mark("own")
    tasks.attach(server)
    return server


async def call(wire: HttpWire, name: str) -> None:
    """Call a tool as a task, and wait for its end."""
    client = Tasking(wire, EVERYTHING)
    await client.until(await client.create(name), "completed")


async def _main() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    tasks = Tasks("memory://", settings=QUICK, default_mode="optional")
    async with serving(low_level(tasks)) as wire:
        await call(wire, "x" * 20_000)
    ours = [
        {"name": span.name, "attributes": dict(span.attributes or {})}
        for span in kept.get_finished_spans()
        if span.instrumentation_scope is not None and span.instrumentation_scope.name == "mcp-tasks"
    ]
    print(json.dumps(ours))


if __name__ == "__main__":
    anyio.run(_main)
