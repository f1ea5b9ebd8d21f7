"""JSON-RPC messages as a `Wire` sends and delivers them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError
from pydantic_core import from_json

from mcp_tasks.core.json import JsonObject, object_in

CONNECTION_OVER: Final = "Connection closed"
"""What the SDK says of a connection that is gone for good, a stdio server that ended for one. A request over HTTP that
was cut off has the same code and says something else."""

CUT_OFF: Final = "the server went away"
"""What a transport of ours says of an answer whose end did not come."""

ACCESS_REFUSED: Final = -32098
"""The code of the error that a transport of ours makes of a server that refuses our credentials."""

SENT_DATA_KEY: Final = "mcp-tasks/sent"
"""In the data of an error that a transport of ours made in place of an answer: whether the request may have reached the
server."""


def request_message(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> JSONRPCRequest:
    """A request."""
    # Params are left out, not null: JSON-RPC has no null there.
    if params is None:
        return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method)
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=dict(params))


def notification(method: str, params: Mapping[str, Any] | None) -> JSONRPCNotification:
    """A notification."""
    if params is None:
        return JSONRPCNotification(jsonrpc="2.0", method=method)
    return JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params))


def reply_to(request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> JSONRPCResponse | JSONRPCError:
    """The answer to a request."""
    if isinstance(outcome, ErrorData):
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=outcome)
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=dict(outcome))


async def messages_in(response: httpx2.Response) -> AsyncGenerator[JsonObject]:
    """The messages in an answer over HTTP, as they come: it is one, or a stream of events. What is no JSON object is
    passed over."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        if (message := _strict(await response.aread())) is not None:
            yield message
        return
    async for event in httpx2.EventSource(response):
        if (message := _strict(event.data)) is not None:
            yield message


def unreadable_answer(exc: Exception) -> JSONRPCError | None:
    """The error in place of an answer that cannot be read, if it still says to which request: whoever made that would
    wait for ever. None for anything else that a transport could not read."""
    if not isinstance(exc, ValidationError):
        return None
    for error in exc.errors(include_url=False, include_context=False):
        message = _lenient(error["input"])
        if isinstance(request_id := message.get("id"), str | int) and message.keys() & {"result", "error"}:
            why = f"The answer is no JSON-RPC message: {error['msg']}"
            answer = ErrorData(code=PARSE_ERROR, message=why, data={SENT_DATA_KEY: True})
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=answer)
    return None


def _strict(text: str | bytes) -> JsonObject | None:
    """The JSON object in a text, if it is one as the standard has it."""
    try:
        return object_in(from_json(text, allow_inf_nan=False))
    except ValueError:
        return None


def _lenient(given: Any) -> JsonObject:
    """A message as far as it is one: Python reads texts that are no Unicode."""
    try:
        return object_in(json.loads(given) if isinstance(given, str | bytes) else given) or {}
    except (ValueError, RecursionError):
        return {}


def connection_closed() -> MCPError:
    """What a request fails with whose connection has ended."""
    # In the SDK's own words: whoever waits is told by them that trying again is no use.
    return MCPError(code=CONNECTION_CLOSED, message=CONNECTION_OVER)
