"""Push: `notifications/tasks` on a `subscriptions/listen` stream that names task ids (SEP-2663, "Task Status
Notifications").

The SDK's own handler serves the stream. This middleware rides beside it: it adds the ids that are honoured to the
acknowledgement, and after that sends a task's full state, at once and on every change. A reader that is slow gets
fewer states, never older ones: what waits for it is at most one hint per task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup
from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver.server import require_client_extension
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INVALID_PARAMS,
    RequestId,
    ServerNotification,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from mcp_tasks.errors import StoreError, TasksError, TaskUnreadable, UnknownTask
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.rpc_errors import to_mcp_error
from mcp_tasks.wire import EXTENSION_ID, render_detailed

logger = logging.getLogger(__name__)

RequestContext = ServerRequestContext[Any, Any]

MAX_TASK_IDS = 1_000
"""Ids one stream may name: each is looked up before the stream is acknowledged."""


class TaskPush:
    """Middleware that serves the `taskIds` of `subscriptions/listen`."""

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        principal: Callable[[RequestContext], str | None],
        stopping: Callable[[], asyncio.Event],
    ) -> None:
        self._runtime = runtime
        self._principal = principal
        self._stopping = stopping

    async def __call__(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve the stream, with task notifications if it asks for them; everything else passes."""
        asked = _asked_ids(ctx)
        if asked is None:
            return await call_next(ctx)
        own = await self._own(asked, self._principal(ctx))
        stream = _Stream(ctx.session, ctx.request_id, own)
        return await self._serve(stream, partial(call_next, replace(ctx, session=cast(ServerSession, stream))))

    async def _serve(self, stream: _Stream, serve: Callable[[], Awaitable[HandlerResult]]) -> HandlerResult:
        refused: MCPError | None = None
        result: HandlerResult = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._pump, stream)
            group.start_soon(self._end_when_stopping, group)
            try:
                result = await serve()
            except MCPError as exc:
                # Out of the group it would come wrapped, and be no answer to the client any more.
                refused = exc
            group.cancel_scope.cancel()
        if refused is not None:
            raise refused
        # Ended by us: a result is how a stream ends gracefully.
        return stream.end_result() if result is None else result

    async def _end_when_stopping(self, group: TaskGroup) -> None:
        await self._stopping().wait()
        group.cancel_scope.cancel()

    async def _own(self, asked: Sequence[str], owner: str | None) -> list[str]:
        """The caller's own tasks among those asked for. The others are left out, whatever they are.

        Ids alone: a stream lasts long, and a record may be megabytes.
        """
        own: dict[str, None] = {}
        for task_id in asked:
            try:
                await self._runtime().get(task_id, owner=owner)
            except UnknownTask:
                continue
            except TaskUnreadable as exc:
                # Told to whoever asks for it; the stream is for the others.
                logger.error("no notifications for a task: %s", exc)
                continue
            except TasksError as exc:
                raise to_mcp_error(exc) from exc
            own[task_id] = None
        return list(own)

    async def _pump(self, stream: _Stream) -> None:
        runtime = self._runtime()
        sent = dict.fromkeys(stream.task_ids, 0)
        with runtime.changes.listen(sent.keys()) as hints:
            await stream.acknowledged.wait()
            for task_id in stream.task_ids:
                # As it is by now; a change before we listened would otherwise never be told.
                sent[task_id] = await self._send(stream, task_id, after=0)
            async for hint in hints:
                if hint.version > sent[hint.task_id]:
                    sent[hint.task_id] = await self._send(stream, hint.task_id, after=sent[hint.task_id])

    async def _send(self, stream: _Stream, task_id: str, *, after: int) -> int:
        """Send the task's state if it is newer than `after`; the version that the client has now."""
        runtime = self._runtime()
        try:
            record = await runtime.store.get(task_id)
        except StoreError:
            # The client polls as well; the next change is told again.
            return after
        if record is None or record.version <= after:
            return after
        await stream.send_task(render_detailed(record, runtime.now()))
        return record.version


class _Stream:
    """The session of one listen stream: the SDK's, but that its acknowledgement names the task ids."""

    def __init__(self, session: ServerSession, request_id: RequestId | None, task_ids: Sequence[str]) -> None:
        self._session = session
        self._request_id = request_id
        self.task_ids = task_ids
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
        filter_ = SubscriptionFilter.model_validate({**honored, "taskIds": list(self.task_ids)}, by_name=False)
        params = notification.params.model_copy(update={"notifications": filter_})
        await self._session.send_notification(notification.model_copy(update={"params": params}), related_request_id)
        self.acknowledged.set()

    def end_result(self) -> dict[str, Any]:
        """The answer to the listen request, which ends its stream."""
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: self._request_id}}

    async def send_task(self, task: Mapping[str, Any]) -> None:
        """Send the state of a task, with the id of this subscription."""
        meta = {**task.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self._request_id}
        notification = _TaskNotification(params={**task, "_meta": meta})
        await self._session.send_notification(cast(Any, notification), self._request_id)


class _TaskNotification(BaseModel):
    """`notifications/tasks`. The params are a plain dict: the SDK drops nulls from models, and `ttlMs` may be one."""

    method: str = "notifications/tasks"
    params: dict[str, Any]


def _asked_ids(ctx: RequestContext) -> Sequence[str] | None:
    """The task ids a listen request names; None if this is none, or it names none.

    Raises:
        MCPError: -32021, if the client did not declare the extension; -32602, if `taskIds` is not a list of strings,
            or too long.
    """
    if ctx.method != "subscriptions/listen" or ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return None
    wanted = (ctx.params or {}).get("notifications")
    ids: Any = cast("Mapping[str, Any]", wanted).get("taskIds") if isinstance(wanted, Mapping) else None
    if ids is None:
        return None
    # Before the ids are looked at: to a client that has no tasks they are not malformed, but none of its business.
    require_client_extension(ctx, EXTENSION_ID)
    if not isinstance(ids, list) or not all(isinstance(task_id, str) for task_id in cast("list[Any]", ids)):
        raise MCPError(code=INVALID_PARAMS, message="notifications.taskIds must be a list of strings")
    named = cast("list[str]", ids)
    if len(named) > MAX_TASK_IDS:
        raise MCPError(code=INVALID_PARAMS, message=f"notifications.taskIds may name at most {MAX_TASK_IDS} tasks")
    return named
