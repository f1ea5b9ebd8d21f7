"""What needs a process of its own.

    python -m tests.push.processes serve PORT SHORT_WAY
    python -m tests.push.processes spans

The first is a server that is served while its tasks run already. The second prints which spans of a stream have ended
while it is open, and when its client has left: a process has one tracer provider for good.
"""

import asyncio
import json
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_tracer_provider

from harness import server as furnished
from harness.serving import serving_until_told
from mcp_tasks import Tasks
from mcp_tasks.testing.fixture_server import build
from tests.push.asgi import app_of, at
from tests.push.listening import listen


async def serve(port: int, *, short_way: bool) -> None:
    tasks = Tasks("memory://", short_way=short_way)
    server = build(tasks)
    async with tasks.running(server):
        # Nobody is cut off: whoever listens is to be told.
        await serving_until_told(server.streamable_http_app(), port=port, timeout_graceful_shutdown=None)


async def spans() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_tracer_provider(provider)

    def ended() -> list[str]:
        return [span.name for span in exporter.get_finished_spans()]

    said: list[dict[str, Any]] = []
    for short_way in (True, False):
        exporter.clear()
        tasks = Tasks("memory://", settings=furnished.QUICK, short_way=short_way)
        async with app_of(furnished.build(tasks)) as app:
            async with at(app, listen([])) as peer:
                await peer.until(lambda seen: seen.frames)
                open_ = ended()
            said.append({"open": open_, "ended": ended(), "answered": tasks.short_way.answered.total()})
    print(json.dumps(said))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port, short_way]:
            asyncio.run(serve(int(port), short_way=short_way == "True"))
        case _:
            asyncio.run(spans())
