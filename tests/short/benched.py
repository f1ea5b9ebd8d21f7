"""The benchmark's server in a process of its own, with what else a server may have, on a socket that is bound already.

python -m tests.short.benched FD DB [auth] [traced] [long] [watched]
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from mcp.server import MCPServer
from mcp_types import ToolAnnotations
from opentelemetry.trace import set_tracer_provider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.auth import USERS, server_with
from harness.server import UNPACED
from harness.serving import serve_app
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.stores.sqlite import SqliteStore
from tests.short.collecting import Collector


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


def build(tasks: Tasks, collector: Collector, *, auth: bool) -> MCPServer[Any]:
    """The server, with tools that tell of it."""
    server = server_with(tasks, "benched", USERS if auth else None)
    repeatable = ToolAnnotations(idempotent_hint=True)

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def noop(fails: str | None = None) -> str:
        """Do nothing, as a task."""
        return "ok"

    @server.tool()
    async def seen() -> str:
        """What was answered, what was handed over, and the spans of it all."""
        counts = tasks.short_way
        spans = [span.told() for span in collector.spans]
        return json.dumps({"answered": counts.answered, "handed_over": counts.handed_over, "spans": spans})

    return server


def leaving(app: ASGIApp) -> ASGIApp:
    """The app, with clients that are gone when they are to be answered, if they say so before."""

    async def lost(message: Message) -> None:
        raise OSError("the client is gone")

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        leaves = (b"x-leaves", b"1") in scope.get("headers", ())
        await app(scope, receive, lost if leaves else send)

    return watched


def main(number: int, db: str, *options: str) -> None:
    """Serve until stopped."""
    logging.disable(logging.CRITICAL)
    collector = Collector()
    if "traced" in options:
        set_tracer_provider(collector)
    is_watched = "watched" in options
    tasks = Tasks(
        FailingStore(db),
        limits=UNPACED,
        short_way="long" not in options,
        audit=f"{db}.audit.jsonl" if is_watched else None,
    )
    server = build(tasks, collector, auth="auth" in options)
    if is_watched:
        server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)
    serve_app(leaving(server.streamable_http_app()), fd=number, log_level="critical", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
