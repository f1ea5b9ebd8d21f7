"""A stream on which a client can be asked and told things: that of an open `tasks/result`, or a session's own."""

from __future__ import annotations

from typing import Any, cast

from mcp.server.session import ServerSession
from mcp_types import RequestId

from mcp_tasks.adapters.sdk_listen import PlainNotification
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.text import valid_json
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.legacy.shapes import VERSION, plain_data, related_task
from mcp_tasks.tools.client_stream import ClientStream
from mcp_tasks.wire.models import QUESTION_META_KEY


class Carrier(ClientStream):
    """One stream to a client.

    Attributes:
        is_open: Whether what is sent on it arrives, as far as is known. One that is closed may be opened again if its
            client takes it up where it was cut off.
    """

    def __init__(self, session: ServerSession, request_id: RequestId | None = None) -> None:
        super().__init__(session, request_id)
        self.is_open: bool = True

    def renewed(self) -> Carrier:
        """The same stream, opened anew: what was sent on the old one and had not arrived is lost."""
        return Carrier(self._session, self._request_id)

    def hosts(self, question: InputRequest) -> bool:
        """Whether the client declared that it takes such questions as tasks of its own."""
        declared: Any = self.declared
        for name in ("tasks", "requests", *question.method.split("/")):
            declared = cast("dict[str, Any]", declared).get(name) if isinstance(declared, dict) else None
        return declared is not None and self._session.protocol_version == VERSION

    async def ask(self, task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
        """The client's answer, as `put` gives it, to a question of a task that the client knows.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await self.put(question.method, related_params(task_id, key, question))
        except AnswerRefused as exc:
            raise AnswerRefused(exc.code, exc.message, plain_data(exc.data)) from exc

    async def tell(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification; nobody knows whether it arrives."""
        await self._session.send_notification(
            cast(Any, PlainNotification(method=method, params=params)), self._request_id
        )


def related_params(task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
    """The params of a question, which task it is of, and which of its questions it is."""
    params: dict[str, Any] = valid_json(question.params)
    return {**params, "_meta": {**params.get("_meta", {}), **related_task(task_id), QUESTION_META_KEY: key}}
