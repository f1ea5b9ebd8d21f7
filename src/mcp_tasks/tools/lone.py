"""The context of a request that no client made: nobody can be asked, and nobody hears of progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import anyio
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId
from mcp_types.version import LATEST_MODERN_VERSION

RequestContext: TypeAlias = ServerRequestContext[Any, Any]


class LoneChannel:
    """Where the client would be: the shape of `mcp.shared.dispatcher.DispatchContext`."""

    transport: TransportContext = TransportContext(kind="local", can_send_request=False)
    can_send_request: bool = False
    request_id: RequestId | None = None
    message_metadata: MessageMetadata = None

    def __init__(self) -> None:
        self.cancel_requested: anyio.Event = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> NoReturn:
        """Refuse it, as for a client that cannot be asked."""
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Drop it."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Drop it."""


def lone_context(method: str, lifespan_state: Any, params: dict[str, Any] | None = None) -> RequestContext:
    """The context of a request that code in this process makes."""
    channel = LoneChannel()
    connection = Connection.from_envelope(LATEST_MODERN_VERSION, None, {}, outbound=channel)
    return ServerRequestContext(
        session=ServerSession(channel, connection),
        lifespan_context=lifespan_state,
        protocol_version=LATEST_MODERN_VERSION,
        method=method,
        params=params,
    )
