"""Requests to a client whose answers the SDK's tables do not know: sent through the SDK, and answered as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from mcp.server.session import ServerSession
from mcp.shared.message import ServerMessageMetadata
from mcp_types import RequestId
from pydantic import BaseModel, Field, RootModel


async def raw_request(
    session: ServerSession,
    method: str,
    params: Mapping[str, Any],
    *,
    request_id: RequestId | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """The client's result, whatever it is. Cancelled, the request is cancelled at the client.

    Args:
        request_id: The request on whose stream it goes out; None for the session's own.
        timeout: Seconds to wait for the answer; None for as long as it takes.

    Raises:
        MCPError: The client answered with this error, or did not answer in time, or is gone.
    """
    request = _Request(asked=method, params=dict(params))
    metadata = None if request_id is None else ServerMessageMetadata(related_request_id=request_id)
    return (await session.send_request(cast(Any, request), _Answer, timeout, metadata)).root


class _Request(BaseModel):
    """A request whose answer the SDK hands on unchecked: it checks by `method`, and knows none of that name."""

    method: ClassVar[str] = "mcp_tasks/question"
    asked: str = Field(serialization_alias="method")
    params: dict[str, Any]


class _Answer(RootModel[dict[str, Any]]):
    """Whatever a client answers."""
