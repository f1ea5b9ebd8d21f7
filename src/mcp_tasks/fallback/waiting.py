"""One request that waits for a task: for how long, what is sent and asked meanwhile, and what it is answered with."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, cast

import anyio
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import NoBackChannelError
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel

from mcp_tasks.errors import AnswerRefused, LimitExceeded, StoreError, StoreUnavailable, TaskUnreadable, UnknownTask
from mcp_tasks.fallback.messages import LONGEST_NAME, STOPPED, CompanionNames, failed_result, handle_result, line
from mcp_tasks.fallback.options import (
    Fallback,
    Host,
    Patience,
    host_of,
    patience_of_call,
    patience_of_leg,
    patience_of_status,
)
from mcp_tasks.fallback.progress import ProgressRelay
from mcp_tasks.fallback.questions import CallQuestions
from mcp_tasks.fallback.request_state import CallState, Leg, current_leg
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.record import TaskRecord, TaskStatus
from mcp_tasks.protocol.answers import answers_to, misfits, take_answer
from mcp_tasks.protocol.dialect import decoded, outcome_to_send
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.limits import Limiting, Unread
from mcp_tasks.protocol.methods import actor_of
from mcp_tasks.protocol.owners import Caller, without_key
from mcp_tasks.protocol.shapes import render_question
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.sdk import RequestContext, exchange_of
from mcp_tasks.server.sdk import RequestContext as SdkRequestContext
from mcp_tasks.server.tool_runner import CloseStream, OpenCalls, in_older_words, raw_request, require_capability

# ---- waiting
# Waiting for a task on an open call, for as long as its caller can.


logger: Final = get_logger(__name__)

AT_FIRST: Final = 0.05
"""Seconds for which a task is waited for and nothing else."""


async def wait_for(
    runtime: TaskRuntime,
    record: TaskRecord,
    until: Callable[[TaskRecord], bool],
    limit: timedelta | None,
    *,
    see: Callable[[TaskRecord], Awaitable[None]],
    beside: Callable[[], Coroutine[Any, Any, None]],
    over: Sequence[Callable[[], Awaitable[object]]],
) -> TaskRecord:
    """The task once `until` holds for it, or as it was seen last when the time is over or one of `over` returns.

    Args:
        see: Called with each state of the task that is seen.
        beside: What goes on meanwhile; cancelled in the end.
        over: Each returns when there is no use in waiting any longer.

    Raises:
        UnknownTask: The task is gone.
        TaskUnreadable: Its row cannot be read.
    """
    seen = record

    async def note(found: TaskRecord) -> None:
        nonlocal seen
        seen = found
        await see(found)

    async def follow(seconds: float) -> bool:
        timeout = None if seconds == math.inf else timedelta(seconds=seconds)
        return await runtime.follow(record.id, until, timeout=timeout, see=note, patient=True) is not None

    deadline = math.inf if limit is None else time.monotonic() + limit.total_seconds()
    # Most tools are quick, and what goes on beside is set up in vain for them.
    if await follow(min(AT_FIRST, deadline - time.monotonic())) or deadline <= time.monotonic():
        return seen
    problem: Exception | None = None
    async with anyio.create_task_group() as group:

        async def end_after(event: Callable[[], Awaitable[object]]) -> None:
            await event()
            group.cancel_scope.cancel()

        group.start_soon(beside)
        for event in over:
            group.start_soon(end_after, event)
        try:
            await follow(deadline - time.monotonic())
        except (UnknownTask, TaskUnreadable) as exc:
            # Out of the group it would come wrapped.
            problem = exc
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return seen


# ---- open request
# A request of the SDK that is still open, as the run of its tool sees it.


class OpenRequest:
    """What a tool sends, sent where a plain call would send it: an `OpenCall`. To be made where the request is handled.

    Args:
        relay: What keeps the order among the values of progress.
    """

    def __init__(self, ctx: SdkRequestContext, relay: ProgressRelay) -> None:
        self._ctx = ctx
        self._relay = relay
        self.name: str | None = (ctx.params or {}).get("name")
        self.meta: Mapping[str, Any] = without_key(ctx.meta or {})
        self.request: Any = ctx.request
        self.user: Any = auth_context_var.get()
        self.close_stream: CloseStream | None = ctx.close_sse_stream
        self.close_connection_stream: CloseStream | None = ctx.close_standalone_sse_stream

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the call, if its caller asked for any."""
        await self._relay.report(progress, total, message)

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the request's own stream, or on that of its connection; a log entry only if this
        request asked for entries of its level."""
        if method == "notifications/message" and not self._wants(params or {}):
            return
        notification = _Notification(method=method, params=None if params is None else dict(params))
        await self._ctx.session.send_notification(cast(Any, notification), self._ctx.request_id if related else None)

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client on the stream of the call, if its era can be asked there."""
        if not self._ctx.session.can_send_request:
            return False
        try:
            await raw_request(self._ctx.session, "ping", {}, request_id=self._ctx.request_id, timeout=timeout)
        except NoBackChannelError:
            return False
        return True

    def _wants(self, entry: Mapping[str, Any]) -> bool:
        return entry.get("level") in allowed_log_levels(self._ctx.protocol_version, self._ctx.meta)


class _Notification(BaseModel):
    """Any notification: the session sends what is dumped from it."""

    method: str
    params: dict[str, Any] | None


# ---- timing
# How much time one request of a call has, by what is known of its caller's host and of the requests before it.


USUAL_WAIT: Final = Fallback().wait


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHosts:
    """What is known of hosts.

    Attributes:
        by_name: By their names.
        unknown: What is assumed of those that are not known.
    """

    by_name: Mapping[str, Host]
    unknown: Host

    def of(self, caller: Caller, ctx: RequestContext) -> Host | None:
        """The host of a caller; None for one that is not known."""
        return host_of(caller.client_info, self.by_name, over_stdio=ctx.request is None)


class RequestTime:
    """The time that one request has.

    Args:
        host: The caller's host; None for one that is not known.
        unknown: What is assumed of such a host.
        leg: Which request of its call it is; None where the caller cannot be told to come back.
        began: When it began, in seconds of the monotonic clock.
        now: The time as people tell it, which states carry from one request of a call to the next.
        wanted: How long the caller wants to wait, where it says so.
        is_sent_progress: Whether the caller asked for progress, and its connection carries any.

    Attributes:
        window: Since when the host's limit for the whole call counts.
        patience: How long the request may wait, from its beginning, and what may come after.
    """

    def __init__(
        self,
        ways: Fallback,
        host: Host | None,
        unknown: Host,
        *,
        leg: Leg | None,
        now: datetime,
        began: float,
        wanted: timedelta | None,
        is_sent_progress: bool,
    ) -> None:
        self._began = began
        assumed = host or unknown
        brought = None if leg is None else leg.brought
        self.window: datetime = now if brought is None else _window(brought.window, assumed.limit, now)
        # What it has waited itself is told apart.
        elapsed = max(now - self.window - self.waited, timedelta(0))
        legs = 0 if brought is None else brought.legs
        # Progress that comes too seldom keeps nobody.
        has_progress = is_sent_progress and (assumed.limit is None or ways.heartbeat < assumed.limit)
        self.patience: Patience
        if wanted is not None:
            # As the call itself, or as is usual: the author may have said that a call is answered at once.
            bound = max(ways.wait, USUAL_WAIT) if leg is None and host is None else wanted
            # At least once, where a call may not be told to come back: nobody else would ask.
            asks = leg is not None and legs < max(ways.legs, 1)
            self.patience = patience_of_status(
                min(wanted, bound), assumed, elapsed=elapsed, asks=asks, has_progress=has_progress
            )
        elif leg is None:
            self.patience = patience_of_call(ways, host, unknown, has_progress=has_progress)
        else:
            self.patience = patience_of_leg(ways, assumed, legs=legs, elapsed=elapsed, has_progress=has_progress)

    @property
    def waited(self) -> timedelta:
        """How long the request has been there."""
        return timedelta(seconds=time.monotonic() - self._began)

    @property
    def remaining(self) -> timedelta | None:
        """How long it may go on waiting; None for as long as it takes."""
        limit = self.patience.limit
        return None if limit is None else max(limit - self.waited, timedelta(0))


def _window(since: datetime, limit: timedelta | None, now: datetime) -> datetime:
    """Since when the limit counts. A host that comes back after it does not count what its person takes."""
    return now if limit is not None and now - since >= limit else min(since, now)


# ---- ends
# How a task ended, as the answer to a call that waited for it.


async def plain_answer(runtime: TaskRuntime, record: TaskRecord, version: str, unread: Unread) -> dict[str, Any]:
    """What a plain call of that version would have answered. A tool that was stopped is a tool error that says so.

    Raises:
        RpcError: What the tool raised, or what it could not be given.
        UnknownTask: The task is gone.
        LimitExceeded: Its caller has not read what it was sent before.
    """
    result, error = await _end_of(runtime, record, unread)
    if result is not None:
        return result
    if error is None or _was_stopped(error):
        return failed_result(record, error)
    told = in_older_words(error) if version in HANDSHAKE_PROTOCOL_VERSIONS else error
    raise RpcError(told["code"], told["message"], told.get("data"))


async def told_answer(runtime: TaskRuntime, record: TaskRecord, version: str, unread: Unread) -> dict[str, Any]:
    """The same for a caller that asks how the task ended: whatever happened is a result.

    Raises:
        UnknownTask: The task is gone.
        LimitExceeded: Its caller has not read what it was sent before.
    """
    result, error = await _end_of(runtime, record, unread)
    return failed_result(record, error) if result is None else result


async def _end_of(
    runtime: TaskRuntime, record: TaskRecord, unread: Unread
) -> tuple[dict[str, Any] | None, JsonObject | None]:
    """What the task ended with: a result, or an error, or neither for one that was cancelled."""
    outcome = await outcome_to_send(runtime, record, unread)
    if outcome is None:
        return None, None
    told: dict[str, Any] = await decoded(outcome.body)
    if record.status is not TaskStatus.COMPLETED:
        return None, told
    return told if outcome.meta is None else {**told, "_meta": await decoded(outcome.meta)}, None


def _was_stopped(error: JsonObject) -> bool:
    """Whether the work ended before it had an outcome, through nothing that the tool raised."""
    reason = (object_in(error, "data") or {}).get("reason")
    # A tool may give reasons of its own, of any kind.
    return error["code"] == INTERNAL_ERROR and isinstance(reason, str) and reason in STOPPED


# ---- later
# What a request leaves to be done whatever becomes of it.


class Later:
    """Work that goes on after the request that began it."""

    def __init__(self) -> None:
        # asyncio itself keeps no task alive.
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin it."""
        task = asyncio.create_task(work, name="mcp-tasks-later")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # The server stops, most likely.
            logger.debug("what a request left to be done was not: %s", what(problem))


# ---- brought
# What a request that comes back for its task brings along: the id of the task, and answers.


SOON: Final = timedelta(milliseconds=50)
SELDOM: Final = timedelta(seconds=2)
"""Pauses between looks at a store that is away: at first, and in the end."""


async def find_patiently(
    runtime: TaskRuntime, task_id: str, owner: str | None, limit: timedelta | None
) -> TaskRecord | None:
    """The owner's task of that id; None if the store is away for as long as `limit`.

    Raises:
        UnknownTask: There is no such task for this owner.
    """
    with anyio.move_on_after(None if limit is None else limit.total_seconds()):
        for failures in itertools.count():
            try:
                return await runtime.get(task_id, owner=owner)
            except StoreUnavailable as exc:
                logger.debug("task %s… cannot be looked at now: %s", task_id[:12], exc)
            await anyio.sleep(backoff(failures, base=SOON, limit=SELDOM).total_seconds())
    return None


class BroughtAnswers:
    """Takes the answers that requests of one server bring."""

    def __init__(self, runtime: Callable[[], TaskRuntime], later: Later) -> None:
        self._runtime = runtime
        self._later = later
        self._writing: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def take(self, record: TaskRecord, params: JsonObject, limit: timedelta | None) -> bool:
        """Write down the answers among the params of a request; whether they are within `limit`.

        One that does not fit its question is for the tool to see. One that cannot be written yet is written later,
        whatever becomes of the request: its person is not asked again, by the requests that come after it either.
        """
        brought = params.get("inputResponses")
        answers: Mapping[str, Any] = cast("Mapping[str, Any]", brought) if isinstance(brought, Mapping) else {}
        # One that is being written is there already: the first counts.
        new = {key: each for key, each in answers_to(record, answers).items() if (record.id, key) not in self._writing}
        for key, refused in misfits(record, new, self._runtime().limits).items():
            self._write(record, key, refused or new[key])
        outstanding = ((record.id, key) for key in record.inputs.outstanding)
        writing = [self._writing[which] for which in outstanding if which in self._writing]
        if not writing:
            return True
        _, unwritten = await asyncio.wait(writing, timeout=None if limit is None else limit.total_seconds())
        return not unwritten

    def _write(self, record: TaskRecord, key: str, answer: dict[str, Any] | AnswerRefused) -> None:
        """Begin to write an answer down."""
        which = (record.id, key)
        self._writing[which] = self._later.do(take_answer(self._runtime, record, key, answer))
        self._writing[which].add_done_callback(lambda _: self._writing.pop(which))


# ---- gone
# Callers that went away before they were answered, and whose tools are to stop with them.


LEFT: Final = "The caller went away"

MOMENT: Final = 2.0
"""Seconds in which a server that stops is known to do so. It cancels its requests first, as if their callers had left,
gives them a second to say so to clients that do not read any more, and only then ends its lifespan."""


class GoneCallers:
    """Stops the work of such callers.

    Args:
        stopping: Returns when the server stops.
    """

    def __init__(self, stopping: Callable[[], Awaitable[object]], later: Later) -> None:
        self._stopping = stopping
        self._later = later

    def left(self, runtime: TaskRuntime, task_id: str, is_wanted: Callable[[], bool]) -> None:
        """A caller has left: cancel its task, unless it is the server that stops, or somebody else wants the result.

        This goes on by itself: the server does not stop before its requests have ended, and its tools are to go on.
        """
        self._later.do(self._cancel(runtime, task_id, is_wanted))

    async def _cancel(self, runtime: TaskRuntime, task_id: str, is_wanted: Callable[[], bool]) -> None:
        with anyio.move_on_after(MOMENT):
            await self._stopping()
            return
        if is_wanted():
            return
        try:
            record = await runtime.find(task_id)
            await runtime.cancel(record, LEFT, actor=actor_of(record))
        except UnknownTask:
            # It left before there was one.
            pass
        except StoreError as exc:
            logger.warning("task %s… was not cancelled, though its caller went away: %s", task_id[:12], exc)


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
        with self.open(record.id):
            try:
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
            if seen.is_final:
                # Still open: a call that has the result as well deletes the task, unless others wait for it.
                return await self._answer_at_end(seen)
        return await self.give_word(seen)

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
