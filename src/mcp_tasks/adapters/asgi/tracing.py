"""Spans of what is answered here, like those that the SDK makes of what it answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    get_current_span,
    get_tracer,
    use_span,
)

from mcp_tasks.adapters.asgi.counts import HandedOver
from mcp_tasks.adapters.asgi.wire import RpcRequest
from mcp_tasks.core.text import legible
from mcp_tasks.quiet import LONGEST_LINE

_tracer: Final = get_tracer("mcp-tasks")


@contextmanager
def traced(request: RpcRequest, version: str) -> Generator[Span]:
    """A span around one request. Whoever answers the request ends it: one that is handed over is the SDK's to show."""
    method, tool = request.method, request.params.get("name")
    # The caller chooses it, and the id: a collector of spans is no place for megabytes.
    target = legible(tool) if isinstance(tool, str) else None
    attributes: dict[str, Any] = {
        "mcp.method.name": method,
        "mcp.protocol.version": version,
        "jsonrpc.request.id": legible(str(request.id)),
    }
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
        if target is not None:
            attributes["gen_ai.tool.name"] = target
    span = _tracer.start_span(
        method if target is None else f"{method} {target}",
        kind=SpanKind.SERVER,
        attributes=attributes,
        context=_parent(request.meta),
        record_exception=False,
        set_status_on_exception=False,
    )
    with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except HandedOver:
            raise
        except BaseException:
            # Answered, but its client has left, or nobody waits for it any more.
            span.end()
            raise


def note_failure(span: Span, error: Exception) -> None:
    """Say on a span that its request is answered with an error, in the way in which the SDK says it."""
    if isinstance(error, MCPError):
        code = str(error.error.code)
        span.set_attributes({"error.type": code, "rpc.response.status_code": code})
        span.set_status(StatusCode.ERROR, legible(error.error.message, LONGEST_LINE))
    else:
        span.set_attribute("error.type", type(error).__qualname__)
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, legible(str(error), LONGEST_LINE))


def _parent(meta: Mapping[str, Any]) -> Context | None:
    """The trace that the client says it is in; None to go on with the one of this process, if any."""
    try:
        context = extract(meta)
    except (ValueError, TypeError):
        return None
    return context if get_current_span(context).get_span_context().is_valid else None
