"""One request that waits for a task: for how long, what is sent and asked meanwhile, and what it is answered with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, cast

import anyio

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.adapters.exchange import exchange_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import LimitExceeded, StoreError, StoreUnavailable
from mcp_tasks.fallback.asking import CallQuestions
from mcp_tasks.fallback.brought import BroughtAnswers, find_patiently
from mcp_tasks.fallback.gone import GoneCallers
from mcp_tasks.fallback.later import Later
from mcp_tasks.fallback.legs import Leg, current_leg
from mcp_tasks.fallback.open_request import OpenRequest
from mcp_tasks.fallback.phrases import LONGEST_NAME, line
from mcp_tasks.fallback.relay import ProgressRelay
from mcp_tasks.fallback.state import CallState
from mcp_tasks.fallback.timing import KnownHosts, RequestTime
from mcp_tasks.fallback.waiting import wait_for
from mcp_tasks.fallback.ways import Fallback
from mcp_tasks.fallback.words import CompanionNames, handle_result
from mcp_tasks.protocol import Caller, RpcError
from mcp_tasks.protocol.limiting import Limiting
from mcp_tasks.protocol.unread import Unread
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.tools.channel import require_capability
from mcp_tasks.tools.open_calls import OpenCalls
from mcp_tasks.wire.render import render_question

logger: Final = get_logger(__name__)

UNREADABLE: Final = "it has ended, and its result cannot be read right now"

ROOM_WITHIN: Final = timedelta(seconds=5)
LOOK_FOR_ROOM: Final = timedelta(seconds=0.5)
"""For how long, and how often, an answer waits until its caller has read those that were sent before."""

PLACEHOLDER: Final = ""
"""A state where the SDK wants one. The real one is put in its place outside (see `legs`)."""

AnswerAtEnd: TypeAlias = Callable[[TaskRuntime, TaskRecord, str, Unread], Awaitable[dict[str, Any]]]
"""What is answered for a task that has ended, in a version of the protocol."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingParts:
    """What requests that wait are given of their server.

    Attributes:
        limiting: How many requests may wait.
        hosts: What is known of hosts.
        stopping: Returns when the process is told to stop.
        is_stopping: Whether it has been.
        companions: The names of the companion tools, for calls that are answered in these ways, and for this caller
            (None: one that has called a companion); None if it is shown none.
        seal: Seals what the next request of a call is to bring.
        answers: Takes the answers that requests bring.
        later: Does what a request leaves to be done.
        gone: Stops the work of callers that went away, where it is to stop.
    """

    runtime: Callable[[], TaskRuntime]
    open_calls: OpenCalls
    limiting: Limiting
    hosts: KnownHosts
    stopping: Callable[[], Awaitable[object]]
    is_stopping: Callable[[], bool]
    companions: Callable[[Fallback, Caller | None], CompanionNames | None]
    seal: Callable[[RequestContext, CallState], Awaitable[str]]
    answers: BroughtAnswers
    later: Later
    gone: GoneCallers


class WaitingRequest:
    """A request that waits for one task, and answers.

    Args:
        at_end: What it answers once the task has ended.
        at_most: The longest that it waits, where its caller said so; it is not told to come back for more then.
        joins: Whether another call like this one would be given the same task.
        since: When it began, in seconds of the monotonic clock; now, if it is not said.

    Attributes:
        leg: Which request of its call it is; None where the caller cannot be told to come back.
        given: The task whose result the request was answered with, if that reached its caller for all that is known.
        time: How much time it has.
    """

    def __init__(
        self,
        parts: ServingParts,
        ctx: RequestContext,
        caller: Caller,
        ways: Fallback,
        *,
        at_end: AnswerAtEnd,
        at_most: timedelta | None = None,
        joins: bool = False,
        since: float | None = None,
    ) -> None:
        self.leg: Leg | None = current_leg.get()
        self.given: TaskRecord | None = None
        self._parts = parts
        self._runtime = parts.runtime()
        self._ctx = ctx
        self._caller = caller
        self._ways = ways
        self._at_end = at_end
        self._at_most = at_most
        self._joins = joins
        brought = None if self.leg is None else self.leg.brought
        self._relay = ProgressRelay(ctx, heartbeat=ways.heartbeat, last=None if brought is None else brought.progress)
        self._open_request = OpenRequest(ctx, self._relay)
        self._questions = CallQuestions(self._runtime, ctx) if self.leg is None else None
        self._exchange = exchange_of(ctx)
        self._has_left = False
        self._is_answered = True
        self._host = parts.hosts.of(caller, ctx)
        is_json = self._exchange is not None and self._exchange.receive is not None
        self.time: RequestTime = RequestTime(
            ways,
            self._host,
            parts.hosts.unknown,
            leg=self.leg,
            now=self._runtime.now(),
            began=time.monotonic() if since is None else since,
            wanted=at_most,
            # Answers of plain JSON carry none.
            is_sent_progress=self._relay.has_token and not is_json,
        )

    def open(self, task_id: str) -> AbstractContextManager[None]:
        """While the block lasts, a run of that task in this process has the call."""
        return self._parts.open_calls.open(task_id, self._open_request)

    async def ask_before(self, question: JsonObject) -> dict[str, Any]:
        """Ask for what the tool needs before there is a task; only where the caller can come back."""
        return await self._come_back(None, question.get("inputRequests"), inner=question.get("requestState"))

    @property
    def nonce(self) -> str | None:
        """What a task is made under that this request begins, if it came with one."""
        return None if self.leg is None or self.leg.brought is None else self.leg.brought.nonce

    async def find(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The task that the request came back for; None if the store is away for as long as the request can wait.

        Raises:
            UnknownTask: It is gone.
        """
        return await find_patiently(self._runtime, task_id, owner, self.time.remaining)

    async def go_on(self, record: TaskRecord) -> dict[str, Any]:
        """Take what the request brought for a task that is there, and answer. Raises what `answer` raises."""
        self._is_answered = await self._parts.answers.take(record, self._ctx.params or {}, self.time.remaining)
        return await self.answer(record)

    async def answer(self, record: TaskRecord) -> dict[str, Any]:
        """Wait for the task, and answer.

        Raises:
            RpcError: What the tool raised.
            UnknownTask: The task is gone.
        """
        try:
            with self.open(record.id):
                seen = await self._wait(record, self.time.remaining)
                while not (seen.is_final or self._has_word(seen)):
                    # No word is to be given before the end: the caller may give up, which is what the author wants.
                    seen = await self._wait(seen, None)
                if self._has_left and not seen.is_final:
                    self.caller_left(record.id)
        except anyio.get_cancelled_exc_class():
            if self._questions is not None:
                self._questions.take_back()
            self.caller_left(record.id)
            raise
        finally:
            if self._questions is not None:
                await self._questions.leave()
        return await (self._answer_at_end(seen) if seen.is_final else self.give_word(seen))

    async def give_word(self, seen: TaskRecord) -> dict[str, Any]:
        """What the caller is told of a tool that has not ended: to come back, or that it still runs."""
        questions = self._for_caller(seen)
        # A server that stops may not be there again when its client comes back, which would be all that it heard.
        comes_back = not (self._parts.is_stopping() and self._ways.handle)
        if (questions or self.time.patience.comes_back) and comes_back:
            try:
                deadlines = [question.deadline for question in seen.inputs.outstanding.values() if question.deadline]
                return await self._come_back(seen.id, questions, deadlines=deadlines)
            except StoreError as exc:
                # The tool is at work: to answer with an error now would have the client start it twice.
                logger.warning("a caller of %r cannot be told to come back: %s", seen.name, exc)
        self._log_word(seen)
        caller = self._caller if self._at_most is None else None
        return handle_result(seen, self._parts.companions(self._ways, caller), joins=self._joins)

    def _log_word(self, seen: TaskRecord) -> None:
        """What whoever looks after the server has to know to make the host's limit known."""
        name = (self._caller.client_info or {}).get("name")
        host = "a host without a name" if name is None else f"{line(str(name), LONGEST_NAME)!r}"
        known = "" if self._host is not None else " (a host that is not known)"
        logger.info(
            "a call of %r by %s%s was answered after %.3g s that the tool is still running: task %s…",
            *(seen.name, host, known, self.time.waited.total_seconds(), seen.id[:12]),
        )

    async def _answer_at_end(self, ended: TaskRecord) -> dict[str, Any]:
        await self._relay.finish()
        try:
            result = await self._at_end_with_room(ended)
        except RpcError:
            self.given = None if self._has_left else ended
            raise
        except (StoreUnavailable, LimitExceeded) as exc:
            # What it ended with is there, and cannot be read or sent now.
            logger.warning("how task %s… ended cannot be told now: %s", ended.id[:12], exc)
            return await self.give_word(replace(ended, status=TaskStatus.WORKING, status_message=UNREADABLE))
        if ended.status is TaskStatus.COMPLETED and not self._has_left:
            self.given = ended
        return result

    async def _at_end_with_room(self, ended: TaskRecord) -> dict[str, Any]:
        unread, most = self._parts.limiting.unread, self.time.remaining
        patience = ROOM_WITHIN if most is None else min(most, ROOM_WITHIN)
        deadline = anyio.current_time() + patience.total_seconds()
        while True:
            before = unread.given_back
            try:
                return await self._at_end(self._runtime, ended, self._ctx.protocol_version, unread)
            except LimitExceeded:
                # To try is to read all of it.
                while unread.given_back == before:
                    if anyio.current_time() >= deadline:
                        raise
                    await anyio.sleep(LOOK_FOR_ROOM.total_seconds())

    async def _wait(self, record: TaskRecord, limit: timedelta | None) -> TaskRecord:
        return await wait_for(
            self._runtime,
            record,
            lambda task: task.is_final or self._asks(task),
            limit,
            see=self._see,
            beside=self._relay.keep_alive,
            over=(self._parts.stopping, self._until_left),
        )

    async def _until_left(self) -> None:
        """Return when the caller has left, where that is to cancel and the SDK does not: it answers with plain JSON.

        On older wires a client that lost its connection has not cancelled. Its answer does not reach it, though.
        """
        if self._exchange is None or self._exchange.can_resume:
            await anyio.sleep_forever()
        else:
            await self._exchange.ended()
            self._has_left = True
            if self.leg is None:
                await anyio.sleep_forever()

    async def _see(self, record: TaskRecord) -> None:
        await self._relay.look(record)
        if self._questions is not None:
            self._questions.look(record)

    def _has_word(self, seen: TaskRecord) -> bool:
        """Whether the caller is told something although the tool has not ended."""
        return (
            self._ways.handle
            or self._at_most is not None
            or self._has_left
            or self.time.patience.comes_back
            or bool(self._for_caller(seen))
            or self._parts.is_stopping()
        )

    def _asks(self, task: TaskRecord) -> bool:
        """Whether there is no use in waiting: the tool asks, and what it asks is not asked while the call is open."""
        if not task.inputs.outstanding:
            return False
        # Who asks how the work is knows of the question, and waits for whoever answers it.
        tells = self._ways.handle and self._at_most is None
        if self._questions is not None:
            return tells and not self._questions.reaches(task)
        return bool(self._for_caller(task)) or (tells and self._is_answered)

    def _for_caller(self, task: TaskRecord) -> dict[str, Any]:
        """What the tool asks and the caller can come back with."""
        if not self.time.patience.asks or not self._is_answered:
            return {}
        questions: dict[str, Any] = {}
        for key, question in task.inputs.outstanding.items():
            try:
                require_capability(question, self._caller.capabilities)
            except RpcError:
                continue
            questions[key] = render_question(question)
        return questions

    async def _come_back(
        self,
        task_id: str | None,
        questions: Mapping[str, Any] | None,
        inner: str | None = None,
        deadlines: Sequence[datetime] = (),
    ) -> dict[str, Any]:
        leg = cast(Leg, self.leg)
        state = CallState(
            task_id=task_id,
            legs=1 + (0 if leg.brought is None else leg.brought.legs),
            window=self.time.window,
            # A question that the tool gave a timeout of its own can be answered until then.
            expires=max([self._runtime.now() + self._ways.answer_within, *deadlines]),
            progress=self._relay.last,
            inner=inner,
            nonce=secrets.token_urlsafe(16) if task_id is None else None,
        )
        leg.takes = await self._parts.seal(self._ctx, state)
        asked = {"inputRequests": dict(questions)} if questions else {"requestState": PLACEHOLDER}
        return {"resultType": "input_required", **asked}

    def caller_left(self, task_id: str) -> None:
        """The request is cancelled.

        On older wires a client that only lost its connection has not left: there, to cancel is to say so (2025-11-25).
        """
        # Who only asked how the work is had been told that it goes on.
        if self._ways.when_caller_leaves == "cancel" and self._at_most is None:
            self._parts.gone.left(self._runtime, task_id, lambda: self.others_wait(task_id))

    def others_wait(self, task_id: str) -> bool:
        """Whether another call is open for the same work, in this process."""
        return any(call is not self._open_request for call in self._parts.open_calls.of(task_id))
