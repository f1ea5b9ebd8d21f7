"""The benchmark's server in a process of its own, with all that a server may have beside tasks, and its spans.

python -m tests.short.benched FD DB short|long
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from mcp_types import ToolAnnotations
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_tracer_provider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.auth import USERS, server_with
from harness.server import UNPACED
from harness.serving import serve_app
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.stores.sqlite import SqliteStore


class FailingStore(SqliteStore):
    """Fails where it is asked to."""

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        match request.arguments.get("fails"):
            case "store":
                raise StoreUnavailable("nothing can be written now")
            case "defect":
                raise ZeroDivisionError("a defect")
            case _:
                return await super().create(record, request, **options)


def told(span: ReadableSpan) -> dict[str, Any]:
    """What a collector sees of a span, as JSON, but for what differs between any two spans."""
    # Whether it names its task, and not which that is: no two servers have the same.
    attributes = {name: name == "mcp_tasks.task" or value for name, value in (span.attributes or {}).items()}
    return {
        "name": span.name,
        "kind": span.kind.name,
        "attributes": attributes,
        "status": [span.status.status_code.name, span.status.description],
        "exceptions": [(event.attributes or {}).get("exception.type") for event in span.events],
        "parent": None if span.parent is None else f"{span.parent.span_id:x}",
    }


def leaving(app: ASGIApp) -> ASGIApp:
    """The app, with clients that are gone when they are to be answered, if they say so before."""

    async def lost(message: Message) -> None:
        raise OSError("the client is gone")

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        leaves = (b"x-leaves", b"1") in scope.get("headers", ())
        await app(scope, receive, lost if leaves else send)

    return watched


def main(number: int, db: str, way: str) -> None:
    """Serve until stopped."""
    logging.disable(logging.CRITICAL)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_tracer_provider(provider)
    tasks = Tasks(FailingStore(db), limits=UNPACED, short_way=way == "short", audit=f"{db}.audit.jsonl")
    server = server_with(tasks, "benched", USERS)
    server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def noop(fails: str | None = None) -> str:
        """Do nothing, as a task."""
        return "ok"

    @server.tool()
    async def seen() -> str:
        """What was answered, what was handed over, and the spans of it all in the order in which they began."""
        counts = tasks.short_way
        spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        return json.dumps(
            {
                "answered": counts.answered,
                "handed_over": counts.handed_over,
                "spans": [told(span) for span in spans if span.name not in ("tools/call seen", "tasks.run")],
            }
        )

    serve_app(leaving(server.streamable_http_app()), fd=number, log_level="critical", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
