"""A stream on which a client of an older era can be asked: that of an open request, or its session's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CONNECTION_CLOSED, RequestId

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.tools.channel import require_capability
from mcp_tasks.tools.raw import raw_request


class StreamLost(Exception):
    """The stream was closed before an answer came."""


class ClientStream:
    """One stream to a client.

    Args:
        session: The SDK's session, of the request whose stream this is or of any message of the connection.
        request_id: The request whose stream this is; None for the session's own.

    Attributes:
        declared: The capabilities of the client.
    """

    def __init__(self, session: ServerSession, request_id: RequestId | None = None) -> None:
        self._session = session
        self._request_id = request_id
        declared = session.client_capabilities
        self.declared: dict[str, Any] = (
            {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
        )

    def takes(self, question: InputRequest) -> bool:
        """Whether the client declared that it answers such questions."""
        try:
            require_capability(question, self.declared)
        except RpcError:
            return False
        return True

    async def put(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer to a question, whatever it is: whether it fits is for whoever asks to see.

        Cancelled, it cancels the question at the client.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await self.request(method, params)
        except MCPError as exc:
            raise AnswerRefused(exc.error.code, exc.error.message, exc.error.data) from exc

    async def request(self, method: str, params: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """What the client answers to a request of any kind.

        Raises:
            MCPError: It answered with this error, or did not in time.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await raw_request(self._session, method, params, request_id=self._request_id, timeout=timeout)
        except NoBackChannelError as exc:
            raise StreamLost from exc
        except MCPError as exc:
            error = exc.error
            # The SDK's own words for a connection that went away; a client that says just that is as good as gone.
            if (error.code, error.message, error.data) == (CONNECTION_CLOSED, "Connection closed", None):
                raise StreamLost from exc
            raise
