"""`tasks/get`, `tasks/result`, `tasks/list` and `tasks/cancel` as 2025-11-25 has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Any

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.adapters.exchange import exchange_of
from mcp_tasks.adapters.sdk import caller_of
from mcp_tasks.adapters.spliced import with_parts
from mcp_tasks.core.json_bytes import is_large
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UsageError
from mcp_tasks.legacy.server.listing import tasks_in_session, tasks_of_owner
from mcp_tasks.legacy.server.parse import parse_cursor, parse_input, parse_task_id
from mcp_tasks.legacy.server.relay import Relay
from mcp_tasks.legacy.server.render import (
    related,
    render_cancelled,
    render_detailed,
    render_error,
    render_result,
    render_task,
    status_of,
)
from mcp_tasks.legacy.server.sessions import Session, Sessions
from mcp_tasks.protocol.errors import RpcError, refusing
from mcp_tasks.protocol.input import ASKED_WITHIN, send_input
from mcp_tasks.protocol.methods import CANCELLED_BY_CLIENT, actor_of
from mcp_tasks.protocol.outcome import decoded, outcome_to_send
from mcp_tasks.runtime import TaskRuntime


class Methods:
    """Answers requests about tasks. Each raises `RpcError` for what it refuses."""

    def __init__(self, parts: EraParts, sessions: Sessions, relay: Relay) -> None:
        self._parts = parts
        self._sessions = sessions
        self._relay = relay

    async def get(self, ctx: RequestContext) -> dict[str, Any]:
        """`tasks/get`: the task as it is now."""
        record, _ = await self._find(ctx, is_poll=True)
        self._parts.protocol.saw(record, "tasks/get")
        return render_detailed(record, self._parts.runtime().now())

    async def cancel(self, ctx: RequestContext) -> dict[str, Any]:
        """`tasks/cancel`: the task, cancelled and kept so before this answers. One that has ended is refused."""
        record, _ = await self._find(ctx, to_cancel=True)
        runtime = self._parts.runtime()
        ended = record
        if not record.is_final:
            with refusing():
                ended = await runtime.cancel(record, CANCELLED_BY_CLIENT, actor=actor_of(record))
        if record.is_final or ended.status is not TaskStatus.CANCELLED:
            # The second is a race: it ended by itself before the store had it cancelled.
            raise RpcError(INVALID_PARAMS, f"Cannot cancel task: already in terminal status {status_of(ended)!r}")
        return render_task(ended, runtime.now())

    async def send_input(self, ctx: RequestContext) -> dict[str, Any]:
        """`tasks/sendInput`: answer an open question; the task as it is then. It waits a moment for the question."""
        key, response = parse_input(ctx.params or {})
        record, _ = await self._find(ctx)

        def find(runtime: TaskRuntime) -> Awaitable[TaskRecord]:
            return runtime.get(record.id, owner=record.owner)

        runtime, limits = self._parts.runtime, self._parts.protocol.limiting.limits
        with refusing():
            await self._parts.protocol.count_answers(record.owner, response)
            try:
                answered = await send_input(runtime, find, response, key=key, seconds=ASKED_WITHIN, limits=limits)
            except UsageError as exc:
                raise RpcError(INVALID_PARAMS, str(exc)) from exc
        return render_detailed(answered, runtime().now())

    async def result(self, ctx: RequestContext) -> dict[str, Any]:
        """`tasks/result`: once the task has ended, what the request behind it would have been answered with."""
        # Whoever waits here is told all the while.
        record, session = await self._find(ctx, until_answered=False)
        with related(record.id), refusing():
            waits = nullcontext() if record.is_final else self._parts.protocol.limiting.waiting(record.owner)
            with waits:
                record = await self._relay.until_final(ctx, record, session)
            unread = self._parts.protocol.limiting.unread
            outcome = await outcome_to_send(self._parts.runtime(), record, unread)
        self._parts.protocol.saw(record, "tasks/result")
        if outcome is None:
            raise render_cancelled(record)
        body = await decoded(outcome.body)
        if record.status is TaskStatus.FAILED:
            raise render_error(record, body)
        if outcome.meta is not None:
            body["_meta"] = await decoded(outcome.meta)
        with related(record.id):
            if not is_large(body):
                return render_result(record, body)
            return await with_parts(ctx, await asyncio.to_thread(render_result, record, body))

    async def list(self, ctx: RequestContext) -> dict[str, Any]:
        """`tasks/list`: the caller's tasks, a page at a time."""
        caller = caller_of(ctx)
        try:
            owner = await self._parts.protocol.admit(caller)
        except RpcError as exc:
            self._parts.protocol.refused(caller, ctx.method, exc)
            raise
        session = self._sessions.of(ctx)
        runtime = self._parts.runtime()
        with refusing():
            if owner is not None:
                page = await tasks_of_owner(runtime, owner, parse_cursor(ctx.params or {}))
            elif session is not None:
                page = await tasks_in_session(runtime, session, parse_cursor(ctx.params or {}))
            else:
                # It was not advertised either: there is nothing that would tell callers without a name apart.
                raise RpcError(METHOD_NOT_FOUND, "tasks/list needs authentication, or a transport with sessions")
        self._parts.protocol.saw_list(owner, "tasks/list", len(page.records))
        now = runtime.now()
        listed: dict[str, Any] = {"tasks": [render_task(record, now) for record in page.records]}
        if page.cursor is not None:
            listed["nextCursor"] = page.cursor
        return listed

    async def _find(
        self, ctx: RequestContext, *, until_answered: bool = True, is_poll: bool = False, to_cancel: bool = False
    ) -> tuple[TaskRecord, Session | None]:
        """The task that a request names, which from now on belongs to the caller's session as well."""
        caller, protocol = caller_of(ctx), self._parts.protocol
        try:
            record = await protocol.find(caller, parse_task_id(ctx.params or {}), to_cancel=to_cancel)
            if is_poll:
                with refusing():
                    await protocol.count_poll(record)
        except RpcError as exc:
            protocol.refused(caller, ctx.method, exc, task_id=(ctx.params or {}).get("taskId"))
            raise
        session = self._sessions.of(ctx)
        if session is not None:
            session.adopt(record, after=exchange_of(ctx) if until_answered else None)
        return record, session
