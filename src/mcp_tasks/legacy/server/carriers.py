"""A stream on which a client can be asked and told things: that of an open `tasks/result`, or a session's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CONNECTION_CLOSED, RequestId

from mcp_tasks.adapters.sdk_listen import PlainNotification
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.text import valid_json
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.legacy.server.raw import raw_request
from mcp_tasks.legacy.shapes import VERSION, related_task
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.tools.channel import require_capability
from mcp_tasks.wire.models import QUESTION_META_KEY


class StreamLost(Exception):
    """The stream was closed before an answer came."""


class Carrier:
    """One stream to a client.

    Args:
        session: The SDK's session, of the request whose stream this is or of any message of the connection.
        request_id: The request whose stream this is; None for the session's own.

    Attributes:
        is_open: Whether what is sent on it arrives, as far as is known. One that is closed may be opened again if its
            client takes it up where it was cut off.
    """

    def __init__(self, session: ServerSession, request_id: RequestId | None = None) -> None:
        self.is_open: bool = True
        self._session = session
        self._request_id = request_id
        declared = session.client_capabilities
        self._declared: dict[str, Any] = (
            {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
        )

    def renewed(self) -> Carrier:
        """The same stream, opened anew: what was sent on the old one and had not arrived is lost."""
        return Carrier(self._session, self._request_id)

    def takes(self, question: InputRequest) -> bool:
        """Whether the client declared that it answers such questions."""
        try:
            require_capability(question, self._declared)
        except RpcError:
            return False
        return True

    def hosts(self, question: InputRequest) -> bool:
        """Whether the client declared that it takes such questions as tasks of its own."""
        declared: Any = self._declared
        for name in ("tasks", "requests", *question.method.split("/")):
            declared = cast("dict[str, Any]", declared).get(name) if isinstance(declared, dict) else None
        return declared is not None and self._session.protocol_version == VERSION

    async def ask(self, task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
        """The client's answer, whatever it is: whether it fits is for whoever asks to see.

        Cancelled, it cancels the question at the client.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await self.request(question.method, related_params(task_id, key, question))
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

    async def tell(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; nobody knows whether it arrives."""
        await self._session.send_notification(
            cast(Any, PlainNotification(method=method, params=params)), self._request_id
        )


def related_params(task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
    """The params of a question, which task it is of, and which of its questions it is."""
    params: dict[str, Any] = valid_json(question.params)
    return {**params, "_meta": {**params.get("_meta", {}), **related_task(task_id), QUESTION_META_KEY: key}}
