"""Spans of a call under a long name that its caller invented, as JSON: `python -m tests.peers.forged_spans`.

A process of its own, because a process has one tracer provider for good.
"""

from __future__ import annotations

import json

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.http import serving
from harness.server import QUICK
from mcp_tasks import Tasks
from tests.peers.test_forged_text import call, low_level


async def main() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    async with serving(low_level(Tasks("memory://", settings=QUICK, default_mode="optional"))) as wire:
        await call(wire, "x" * 20_000)
    spans = [
        {"name": span.name, "attributes": dict(span.attributes or {})}
        for span in kept.get_finished_spans()
        if span.instrumentation_scope is not None and span.instrumentation_scope.name == "mcp-tasks"
    ]
    print(json.dumps(spans))


if __name__ == "__main__":
    anyio.run(main)
