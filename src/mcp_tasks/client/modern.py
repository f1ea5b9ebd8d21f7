"""Tasks of 2026-07-28, through the SDK's own session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import ErrorData, InputRequest
from pydantic import TypeAdapter, ValidationError

from mcp_tasks.client.mailbox import Mailbox
from mcp_tasks.client.push import PushHub
from mcp_tasks.client.requests import cancel_task, get_task, update_task
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.wire.parse import TaskSnapshot

_requests: TypeAdapter[InputRequest] = TypeAdapter(InputRequest)


class ModernTask:
    """One task of a server, as `TaskPort` has it."""

    immediate_response: str | None = None

    def __init__(self, session: ClientSession, task_id: str, *, hub: PushHub | None = None) -> None:
        self._session = session
        self._id = task_id
        self._hub = hub

    async def get(self) -> TaskSnapshot:
        """`tasks/get`."""
        return await get_task(self._session, self._id)

    async def state(self) -> TaskSnapshot:
        """The same: here the outcome is in the state."""
        return await self.get()

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """`tasks/update`."""
        await update_task(self._session, self._id, responses)

    async def cancel(self) -> None:
        """`tasks/cancel`."""
        await cancel_task(self._session, self._id)

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Put a question to the session's callbacks."""
        try:
            # The SDK's models have their methods as defaults; a question without one says nothing about what it is.
            typed = _requests.validate_python({"method": None, **request}, by_name=False)
        except (ValidationError, TypeError) as exc:
            raise InvalidResponse("the question is not a valid input request") from exc
        context = ClientRequestContext(
            session=self._session, request_id=key, meta=typed.params.meta if typed.params else None
        )
        response = await self._session.dispatch_input_request(context, typed)
        if isinstance(response, ErrorData):
            raise MCPError.from_error_data(response)
        return response.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Never: an input response of 2026-07-28 is a result."""
        return False

    @asynccontextmanager
    async def join(self, box: Mailbox, *, questions: bool) -> AsyncGenerator[None]:
        """Listen for changes, where the server pushes. Its questions come with every look, whoever looks."""
        del questions
        if self._hub is None:
            yield
            return
        async with self._hub.join(self._id, box):
            yield
