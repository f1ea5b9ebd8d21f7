"""JSON-RPC messages as a `Wire` sends and delivers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

CONNECTION_OVER: Final = "Connection closed"
"""What the SDK says of a connection that is gone for good, a stdio server that ended for one. A request over HTTP that
was cut off has the same code and says something else."""

CUT_OFF: Final = "the server went away"
"""What a transport of ours says of an answer whose end did not come."""

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


def connection_closed() -> MCPError:
    """What a request fails with whose connection has ended."""
    # In the SDK's own words: whoever waits is told by them that trying again is no use.
    return MCPError(code=CONNECTION_CLOSED, message=CONNECTION_OVER)
