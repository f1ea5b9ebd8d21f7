"""Answers to calls of tools whose caller speaks no tasks: the best way that the caller can follow.

The tool runs as a task. Its call waits; then a client of the newest era is told to come back, and everybody else, or a
client that has come back often enough, is told in words that the tool is still running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, cast

import anyio
from mcp.server.context import HandlerResult
from mcp_types import InputRequiredResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.errors import UnknownTask
from mcp_tasks.fallback.ends import plain_answer, told_answer
from mcp_tasks.fallback.legs import refused_state
from mcp_tasks.fallback.mine import session_of
from mcp_tasks.fallback.serving import ServingParts, WaitingRequest
from mcp_tasks.fallback.ways import Fallback
from mcp_tasks.protocol import Caller
from mcp_tasks.protocol.errors import refusing
from mcp_tasks.protocol.idempotency import CallKey
from mcp_tasks.runtime.launching import new_task_id
from mcp_tasks.tools.channel import UNKNOWN_CLIENT
from mcp_tasks.tools.creation import CallAnswer, Question, answer_call

FORGET_WITHIN: Final = timedelta(seconds=5)
"""A call that is answered with how its tool ended within this time leaves no task behind: nobody was told of one, and
nobody had the time to lose the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool whose caller takes no tasks.

    Attributes:
        settle: Runs the call up to the tool's body, where parameters are asked for before it; gives what the call is
            answered with, or None if the body was reached.
        asks_first: Whether the tool may begin by asking on the call.
        joined: What makes another call the same as this one, where a second is given the task of the first.
        key: The caller's own idempotency key: its call made again is given the same task.
        max_wait: How long a question of the tool may stay open, where its author said so.
    """

    ctx: RequestContext
    caller: Caller
    request: TaskRequest
    ways: Fallback
    owner: str | None
    retention: timedelta | None
    poll_interval: timedelta | None = None
    settle: Callable[[], Awaitable[HandlerResult | None]] | None = None
    asks_first: bool = False
    joined: str | None = None
    key: CallKey | None = None
    max_wait: timedelta | None = None


class FallbackCalls:
    """Answers such calls, for one server."""

    def __init__(self, parts: ServingParts) -> None:
        self._parts = parts

    async def answer(self, call: ToolCall) -> HandlerResult:
        """Answer one request of a call.

        Raises:
            RpcError: What the tool raised, or why the request is refused.
            StoreError: The task could not be kept.
        """
        joins = call.joined is not None
        waiting = WaitingRequest(self._parts, call.ctx, call.caller, call.ways, at_end=plain_answer, joins=joins)
        brought = None if waiting.leg is None else waiting.leg.brought
        if brought is not None and brought.task_id is not None:
            # Refused with an error of the protocol: to a model, it would sound as if the tool had not been called.
            with ExitStack() as waits:
                with refusing():
                    waits.enter_context(self._parts.limiting.waiting(call.owner, again=True))
                return await self._resume(call, waiting, brought.task_id)
        if call.settle is not None and waiting.leg is not None:
            settled = await call.settle()
            if isinstance(settled, InputRequiredResult):
                return await waiting.ask_before(settled.model_dump(by_alias=True, mode="json", exclude_none=True))
            if settled is not None:
                return settled
        with self._parts.limiting.waiting(call.owner):
            return await self._begin(call, waiting)

    async def wait_for(
        self,
        record: TaskRecord,
        ctx: RequestContext,
        caller: Caller,
        ways: Fallback,
        at_most: timedelta,
        since: float | None = None,
    ) -> dict[str, Any]:
        """Wait for a task that is there already, for a caller that asks how it is.

        Args:
            since: When its request came, in seconds of the monotonic clock; now, if it is not said.

        Raises:
            UnknownTask: The task is gone.
            LimitExceeded: As many requests of its owner wait as may.
        """
        waiting = WaitingRequest(self._parts, ctx, caller, ways, at_end=told_answer, at_most=at_most, since=since)
        with self._parts.limiting.waiting(record.owner):
            return await waiting.go_on(record)

    async def _begin(self, call: ToolCall, waiting: WaitingRequest) -> HandlerResult:
        task_id = new_task_id()
        with ExitStack() as opened:
            # Before the task is there: its tool may be at work before we hear of it.
            opened.enter_context(waiting.open(task_id))
            try:
                answer = await self._launch(call, waiting, task_id)
            except anyio.get_cancelled_exc_class():
                waiting.caller_left(task_id)
                raise
            if isinstance(answer, Question):
                return await waiting.ask_before(answer.question)
            try:
                return await waiting.answer(cast(TaskRecord, answer))
            finally:
                self._forget(call, waiting)

    async def _launch(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> CallAnswer:
        # One that was asked something first has its own key, and is not the same as another whose answers may differ.
        nonce = waiting.nonce
        joined = None if nonce is not None else call.joined
        return await answer_call(
            self._parts.runtime(),
            _request(call),
            owner=call.owner,
            retention=call.retention,
            poll_interval=call.poll_interval,
            asks_first=call.asks_first and waiting.leg is not None and joined is None,
            task_id=task_id,
            under=nonce,
            joined=joined,
            key=call.key,
            session=session_of(call.caller),
            goes_on=call.ways.when_caller_leaves == "continue",
        )

    def _forget(self, call: ToolCall, waiting: WaitingRequest) -> None:
        # Another request may have been given the task, where there is a key, or wait for it by its id.
        has_key = call.joined is not None or call.key is not None or waiting.nonce is not None
        given = waiting.given
        if given is None or waiting.time.waited > FORGET_WITHIN or has_key or waiting.others_wait(given.id):
            return
        # The answer does not wait for it.
        self._parts.later.do(self._parts.runtime().discard(given))

    async def _resume(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> HandlerResult:
        try:
            record = await waiting.find(task_id, call.owner)
            if record is None:
                # The store is away. The task is not, and to answer with an error would have the client start it twice.
                return await waiting.give_word(self._as_known(call, task_id))
            return await waiting.go_on(record)
        except UnknownTask as exc:
            # Kept for as long as was promised, and gone since.
            raise refused_state("its task is gone") from exc

    def _as_known(self, call: ToolCall, task_id: str) -> TaskRecord:
        """The task by what its call says of it."""
        now = self._parts.runtime().now()
        return TaskRecord(id=task_id, owner=call.owner, name=call.request.name, created_at=now, updated_at=now)


def _request(call: ToolCall) -> TaskRequest:
    """What the run is told of the call: how long its questions may stay open, and who may answer them."""
    request = replace(call.request, max_wait=call.max_wait or call.ways.answer_within)
    # Where there are no sessions, what an older client said of itself is not kept, and it cannot be asked. Others can:
    # whoever has the id of the task.
    is_unknown = request.client_info is None and request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    if not (call.ways.model_may_answer or is_unknown):
        return request
    # A model fills in forms, and whoever else has the id may follow a link as well.
    answerable: dict[str, Any] = {"form": {}, "url": {}} if is_unknown else {"form": {}}
    elicitation = request.client_capabilities.get("elicitation")
    declared = cast("dict[str, Any]", elicitation) if isinstance(elicitation, dict) else {}
    return replace(
        request,
        client_info=request.client_info or dict(UNKNOWN_CLIENT),
        client_capabilities={**request.client_capabilities, "elicitation": {**declared, **answerable}},
    )
