"""The spans and metrics of a server with its worker, as JSON: `python -m tests.trust.traced short|long|forged`.

A process of its own, because a process has one tracer provider for good. With `forged`, those of a call under a long
name that its caller invented; otherwise those of a task that asks.
"""

import json
import sys
import tempfile
from typing import Any

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams, CallToolResult, TextContent, ToolAnnotations
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from harness.http import serving
from harness.rpc import EVERYTHING, Tasking, accept
from harness.server import QUICK, Name
from harness.waiting import eventually
from mcp_tasks import Tasks

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def build(tasks: Tasks) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("traced", version="1", **tasks.wiring(), log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def ask(ctx: Context) -> str:
        """Ask for a name, with a span of its own around it."""
        with trace.get_tracer("author").start_as_current_span("author.work"):
            answer = await ctx.elicit("Who?", Name)
        return str(answer.action)

    return server


def any_name(tasks: Tasks) -> Server[Any]:
    """A server that takes every name of a tool."""

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[Any] = Server("any", version="1", on_call_tool=call_tool)
    tasks.attach(server)
    return server


async def live(url: str, kept: InMemorySpanExporter, *, short_way: bool) -> str:
    """Lead a task through its life: one half of the server takes requests, and the other runs tools. Gives its id."""
    half = Tasks(url, settings=QUICK, runs_tools=False, short_way=short_way)
    other = Tasks(url, settings=QUICK)
    async with serving(build(half)) as wire, other.running(build(other)):
        client, meta = Tasking(wire, EVERYTHING), {"traceparent": PARENT}
        created = await client.ask("tools/call", {"name": "ask", "arguments": {}}, meta=meta)
        task_id: str = created.result["taskId"]
        await client.until(task_id, "input_required")
        await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
        await client.until(task_id, "completed")
        await eventually(lambda: {"tasks.run", "tasks.question"} <= {span.name for span in kept.get_finished_spans()})
    return task_id


def told(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "scope": None if span.instrumentation_scope is None else span.instrumentation_scope.name,
        "trace": format_trace_id(context.trace_id),
        "id": format_span_id(context.span_id),
        "parent": None if span.parent is None else format_span_id(span.parent.span_id),
        "links": [format_trace_id(link.context.trace_id) for link in span.links],
        "attributes": dict(span.attributes or {}),
    }


async def main(what: str) -> None:
    kept, provider, reader = InMemorySpanExporter(), TracerProvider(), InMemoryMetricReader()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    task_id = ""
    if what == "forged":
        async with serving(any_name(Tasks("memory://", settings=QUICK, default_mode="optional"))) as wire:
            client = Tasking(wire, EVERYTHING)
            await client.until(await client.create("x" * 20_000), "completed")
    else:
        with tempfile.TemporaryDirectory() as folder:
            task_id = await live(f"sqlite:///{folder}/tasks.db", kept, short_way=what == "short")
    measured = reader.get_metrics_data()
    spans = [told(span) for span in kept.get_finished_spans()]
    print(json.dumps({"task": task_id, "spans": spans, "metrics": measured and json.loads(measured.to_json())}))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
