"""`notifications/tasks` on a `subscriptions/listen` stream of the SDK, and when such a stream ends.

The SDK's own handler serves the stream. This rides beside it: it adds the ids that are honoured to the
acknowledgement, and after that sends the states of the tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup
from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import RequestId, ServerNotification, SubscriptionFilter, SubscriptionsAcknowledgedNotification
from pydantic import BaseModel

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.protocol import Listening, Message
from mcp_tasks.protocol.stream_ends import End, StreamEnds
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]


async def serve_listening(
    listening: Listening,
    ctx: RequestContext,
    call_next: CallNext,
    *,
    to_params: Callable[[Message], Awaitable[dict[str, Any]]],
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve the stream with the states of its tasks, until the client leaves, the stream's time is over, or the process
    is told to stop."""
    stream = _Stream(ctx.session, ctx.request_id, listening)

    async def send_states(end: End) -> None:
        await _send_states(listening, stream, to_params, end)

    return await _serve(replace(ctx, session=cast(ServerSession, stream)), call_next, send_states, stopping)


async def serve_other(
    ends: StreamEnds,
    second: int | None,
    ctx: RequestContext,
    call_next: CallNext,
    *,
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve a stream that is not about tasks. It ends like one that is, in that second at the latest."""

    async def keep_time(end: End) -> None:
        with ends.ending(second, end):
            await anyio.sleep_forever()

    return await _serve(ctx, call_next, keep_time, stopping)


async def _serve(
    ctx: RequestContext,
    call_next: CallNext,
    beside: Callable[[End], Coroutine[Any, Any, None]],
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve a stream while something goes on beside it, which is given how to end the stream."""
    refused: Exception | None = None
    result: HandlerResult = None
    async with anyio.create_task_group() as group:
        group.start_soon(beside, group.cancel_scope.cancel)
        group.start_soon(_end_with, stopping, group)
        try:
            result = await call_next(ctx)
        except Exception as exc:
            # Out of the group it would come wrapped, and be no answer to the client any more.
            refused = exc
        group.cancel_scope.cancel()
    if refused is not None:
        raise refused
    if result is None:
        # Ended by us: a result is how a stream ends gracefully.
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: ctx.request_id}}
    return result


async def _end_with(stopping: Callable[[], Awaitable[object]], group: TaskGroup) -> None:
    await stopping()
    group.cancel_scope.cancel()


async def _send_states(
    listening: Listening,
    stream: _Stream,
    to_params: Callable[[Message], Awaitable[dict[str, Any]]],
    end: End,
) -> None:
    await stream.acknowledged.wait()
    try:
        async with aclosing(listening.states(end)) as states:
            async for state in states:
                await stream.send_state(await to_params(state))
    except LimitExceeded as exc:
        logger.info("a listen stream ends: %s", exc)
        end()


class _Stream:
    """The session of one listen stream: the SDK's, but that its acknowledgement names the task ids."""

    def __init__(self, session: ServerSession, request_id: RequestId | None, listening: Listening) -> None:
        self._session = session
        self._request_id = request_id
        self._listening = listening
        self.acknowledged = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def send_notification(
        self, notification: ServerNotification, related_request_id: RequestId | None = None
    ) -> None:
        """Send what the SDK's handler sends."""
        if not isinstance(notification, SubscriptionsAcknowledgedNotification):
            await self._session.send_notification(notification, related_request_id)
            return
        honored = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
        task_ids = list(self._listening.task_ids)
        filter_ = SubscriptionFilter.model_validate({**honored, "taskIds": task_ids}, by_name=False)
        params = notification.params.model_copy(update={"notifications": filter_})
        await self._session.send_notification(notification.model_copy(update={"params": params}), related_request_id)
        self.acknowledged.set()

    async def send_state(self, params: dict[str, Any]) -> None:
        """Send the state of a task, with the id of this subscription."""
        meta = {**params.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self._request_id}
        notification = PlainNotification(method=self._listening.method, params={**params, "_meta": meta})
        await self._session.send_notification(cast(Any, notification), self._request_id)


class PlainNotification(BaseModel):
    """A notification whose params are a plain dict: the SDK drops nulls from models, and `ttlMs` may be one."""

    method: str
    params: dict[str, Any] | None
