"""Calls that ask for a task with `params.task`: whether they get one, and what they are answered with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_types import methods as mcp_methods

from mcp_tasks.adapters.era import EraParts, Offer, RequestContext
from mcp_tasks.adapters.exchange import exchange_of
from mcp_tasks.adapters.sdk import caller_of, request_meta, request_of
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import StoreError
from mcp_tasks.legacy.server.parse import check_task, parse_retention, progress_token
from mcp_tasks.legacy.server.render import render_created
from mcp_tasks.legacy.server.sessions import Session, Sessions
from mcp_tasks.protocol.errors import RpcError, discreet, refusing
from mcp_tasks.protocol.idempotency import take_key
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.launching import new_task_id
from mcp_tasks.tools.creation import ANNOUNCE_AFTER

logger: Final = get_logger(__name__)

_NAMED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "tools/call": ("name", "Tool"),
    "prompts/get": ("name", "Prompt"),
    "resources/read": ("uri", "Resource"),
}
"""The methods that can be asked for as tasks: the param that says of what, and what that is called."""


class Creation:
    """Makes tasks of calls that ask for it."""

    def __init__(self, parts: EraParts, sessions: Sessions) -> None:
        self._parts = parts
        self._sessions = sessions

    async def answer(self, task: Any, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer a call whose `params.task` is there.

        Raises:
            RpcError: -32601 for what cannot be called as a task, -32602 for malformed params and refused arguments.
        """
        offers = self._parts.offers
        if ctx.method not in offers.methods():
            # 2025-11-25: where no capability was declared, the request MUST be processed as if it were not there.
            return await call_next(ctx)
        check_task(task)
        plain = {name: value for name, value in (ctx.params or {}).items() if name != "task"}
        # As the SDK does before it calls a handler; what it raises, it answers with -32602.
        mcp_methods.validate_client_request(ctx.method, ctx.protocol_version, plain)
        key, kind = _NAMED_BY[ctx.method]
        name: str = plain[key]
        arguments: Mapping[str, Any] = plain.get("arguments") or {}
        offer = await offers.find(ctx.method, name)
        if offer is None:
            # For the SDK to say.
            return await call_next(replace(ctx, params=plain))
        if offer.support == "forbidden":
            raise RpcError(METHOD_NOT_FOUND, f"{kind} {name!r} cannot be called as a task: call it without params.task")
        with discreet(ctx.method):
            caller = caller_of(ctx)
            request = request_of(ctx.method, request_meta(ctx), caller, name=name, arguments=arguments)
            try:
                owner = self._parts.protocol.owner(caller)
                # Before anything is done with its arguments, which are the caller's, and may be many.
                with refusing():
                    await self._parts.protocol.limiting.create(owner, request, connection=caller.connection)
                problem = offer.problem_with(arguments)
                if problem is not None:
                    raise RpcError(INVALID_PARAMS, f"{kind} {name!r} does not take these arguments: {problem}")
                record = await self._launch(ctx, offer, request, owner, task)
            except RpcError as exc:
                self._parts.protocol.refused(caller, ctx.method, exc)
                raise
        return render_created(record, offer, self._parts.runtime().now())

    async def check_plain(self, ctx: RequestContext) -> None:
        """Refuse a plain request for a prompt or a resource that must be a task.

        Raises:
            RpcError: -32601.
        """
        offers, (key, kind) = self._parts.offers, _NAMED_BY[ctx.method]
        name = (ctx.params or {}).get(key)
        if ctx.method not in offers.methods() or not isinstance(name, str):
            return
        offer = await offers.find(ctx.method, name)
        if offer is not None and offer.support == "required":
            raise RpcError(METHOD_NOT_FOUND, f"{kind} {name!r} can only be called as a task: add params.task")

    async def _launch(
        self, ctx: RequestContext, offer: Offer, request: TaskRequest, owner: str | None, task: Any
    ) -> TaskRecord:
        session = self._sessions.of(ctx)
        task_id = new_task_id()
        if session is not None:
            # Before there is a task: its tool may say something at once.
            session.expect(task_id)
        try:
            record = await self._launched(request, offer, owner, task, session=session, task_id=task_id)
        except BaseException:
            if session is not None:
                session.give_up(task_id)
            raise
        if session is not None:
            if record.id != task_id:
                # It stood under the key of the call.
                session.give_up(task_id)
            session.follow(record, progress_token(request_meta(ctx)), after=exchange_of(ctx))
        return record

    async def _launched(
        self,
        request: TaskRequest,
        offer: Offer,
        owner: str | None,
        task: Any,
        *,
        session: Session | None,
        task_id: str,
    ) -> TaskRecord:
        runtime = self._parts.runtime()
        with refusing():
            asked, own = take_key(request, owner)
            record = await runtime.launch(
                asked,
                owner=owner,
                retention=parse_retention(task, offer),
                poll_interval=offer.poll_interval,
                session=None if session is None else session.id,
                key=None if own is None else own.key,
                fingerprint=None if own is None else own.fingerprint,
                task_id=task_id,
            )
            if offer.may_refuse(request.arguments):
                await self._refuse(record, offer, keep=own is not None)
        return record

    async def _refuse(self, record: TaskRecord, offer: Offer, *, keep: bool) -> None:
        """Refuse a call whose arguments do not fit the tool's schema, once the SDK has refused them as well.

        A tool may take more than its schema says ("7" for a number), so only the attempt tells. A tool that was entered
        keeps its task, whatever it reports: it may have done its work.

        Args:
            keep: Whether the call may be made again, to be refused in the same way.

        Raises:
            RpcError: -32602, with what the SDK said; there is no task then.
        """
        runtime = self._parts.runtime()
        try:
            ended = await runtime.wait_until(record.id, _is_settled, ANNOUNCE_AFTER)
        except StoreError as exc:
            # The task is kept and may be running; to answer with an error now would have the client start it twice.
            logger.warning("task %s… is not waited for any longer: %s", record.id[:12], exc)
            return
        told = None if ended is None or not ended.is_error else ended.status_message
        if ended is not None and told is not None and offer.is_refusal(told):
            if not keep:
                await runtime.discard(ended)
            raise RpcError(INVALID_PARAMS, told)


def _is_settled(task: TaskRecord) -> bool:
    return task.status is not TaskStatus.WORKING
