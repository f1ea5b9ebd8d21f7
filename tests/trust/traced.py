"""A server that only serves, or a worker that only runs, in a process of its own whose spans and metrics go to a file.

python -m tests.trust.traced serve|serve-long STORE FILE FD
python -m tests.trust.traced work STORE FILE
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

from harness.server import QUICK, Name
from harness.serving import serve_app
from mcp_tasks import Tasks


class FileExporter(SpanExporter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(json.dumps(_told(span)) + "\n")
        return SpanExportResult.SUCCESS


def _told(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": format_trace_id(context.trace_id),
        "id": format_span_id(context.span_id),
        "parent": None if span.parent is None else format_span_id(span.parent.span_id),
        "links": [format_trace_id(link.context.trace_id) for link in span.links],
        "attributes": dict(span.attributes or {}),
    }


def build(store: str, *, short_way: bool) -> tuple[MCPServer[Any], Tasks]:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    tasks = Tasks(store, settings=QUICK, runs_tools=False, short_way=short_way)
    server: MCPServer[Any] = MCPServer("traced", version="1", **tasks.wiring(), log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def ask(ctx: Context) -> str:
        """Ask for a name, with a span of its own around it."""
        with trace.get_tracer("author").start_as_current_span("author.work"):
            answer = await ctx.elicit("Who?", Name)
        return str(answer.action)

    @server.tool()
    async def measured() -> str:
        """What OpenTelemetry would export of this process."""
        data = reader.get_metrics_data()
        return "{}" if data is None else data.to_json()

    return server, tasks


def main(role: str, store: str, path: str, *number: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(path))))
    trace.set_tracer_provider(provider)
    server, tasks = build(store, short_way=role == "serve")
    if role == "work":
        asyncio.run(tasks.work(server))
        return
    serve_app(server.streamable_http_app(), fd=int(number[0]), log_level="critical", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
