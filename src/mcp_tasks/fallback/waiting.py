"""One request that waits for a task: for how long, what it sends and asks meanwhile, and its answer."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import NoBackChannelError
from mcp_types import INTERNAL_ERROR

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import AnswerRefused, LimitExceeded, StoreError, StoreUnavailable, TaskUnreadable, UnknownTask
from mcp_tasks.fallback.messages import LONGEST_NAME, STOPPED, failed_result, handle_result, line
from mcp_tasks.fallback.options import Host, host_of
from mcp_tasks.fallback.progress import ProgressRelay
from mcp_tasks.fallback.request_state import CallState, RoundTrip, current_trip
from mcp_tasks.model.json import JsonObject, object_in, valid_json
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.options import Fallback
from mcp_tasks.model.record import InputRequest, TaskRecord, TaskStatus
from mcp_tasks.protocol.answers import answers_to, misfits, take_answer
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.outcomes import decoded, outcome_to_send
from mcp_tasks.protocol.owners import Caller, without_key
from mcp_tasks.protocol.shapes import render_question
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.questions import ClientStream, SentQuestion
from mcp_tasks.server.sdk import PlainNotification, RequestContext, exchange_of, is_pipe
from mcp_tasks.server.tool_runner import CloseStream, in_older_words, raw_request, require_capability

if TYPE_CHECKING:
    from mcp_tasks.fallback.service import FallbackService

logger: Final = get_logger(__name__)


class OpenRequest:
    """An `OpenCall`: sends what a tool sends where a plain call would send it. To be made where the request is handled.

    Args:
        relay: Sends progress in order.
    """

    def __init__(self, ctx: RequestContext, relay: ProgressRelay) -> None:
        self._ctx = ctx
        self._relay = relay
        self.name: str | None = (ctx.params or {}).get("name")
        self.meta: Mapping[str, Any] = without_key(ctx.meta or {})
        self.request: Any = ctx.request
        self.user: Any = auth_context_var.get()
        self.close_stream: CloseStream | None = ctx.close_sse_stream
        self.close_connection_stream: CloseStream | None = ctx.close_standalone_sse_stream

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the caller asked for it."""
        await self._relay.report(progress, total, message)

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the request's own stream, or on that of its connection; a log entry only if this
        request asked for entries of its level."""
        levels = allowed_log_levels(self._ctx.protocol_version, self._ctx.meta)
        if method == "notifications/message" and (params or {}).get("level") not in levels:
            return
        notification = PlainNotification(method=method, params=None if params is None else dict(params))
        await self._ctx.session.send_notification(cast(Any, notification), self._ctx.request_id if related else None)

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client on the stream of the call; whether it could be asked there."""
        if not self._ctx.session.can_send_request:
            return False
        try:
            await raw_request(self._ctx.session, "ping", {}, request_id=self._ctx.request_id, timeout=timeout)
        except NoBackChannelError:
            return False
        return True


# ---- questions
# A client of an older version is asked on the stream of its call, as by a plain call.


AGAIN_AFTER: Final = 300.0
"""Seconds after which a client may be asked again what it was asked on a call that has ended. It still has the
question, unless it closes its dialogs with their calls without a word."""


class CallStream(ClientStream):
    """The stream of one call.

    A question outlives its call: the client has it, and the user may answer after the call was answered in another way.
    """

    def __init__(self, ctx: RequestContext) -> None:
        super().__init__(ctx.session, ctx.request_id)
        # Equal for streams of one connection.
        self._connection: object = ctx.session.client_params
        self._is_pipe = is_pipe(ctx)
        self._exchange = exchange_of(ctx)
        self._is_lost = False
        self._was_cut_off = False
        self._has_ended = False

    @property
    def is_cut_off(self) -> bool:
        """Whether the client disconnected before the call was answered, so that it may have read nothing."""
        return self._was_cut_off or (self._session.can_send_request and self._is_over())

    def takes(self, question: InputRequest) -> bool:
        """Whether the client can be asked this here."""
        return not self._is_lost and not self.is_cut_off and super().takes(question)

    def has(self, sent: SentQuestion, other: ClientStream) -> bool:
        """Whether the client still has the question, so that the other stream need not ask it as well."""
        # A pipe stays open after a call; a client may close its dialogs with the call all the same.
        is_open = not self._has_ended if self._is_pipe else self._session.can_send_request and not self.is_cut_off
        if is_open:
            return True
        is_same_client = isinstance(other, CallStream) and self._connection is other._connection
        return is_same_client and not self.is_cut_off and asyncio.get_running_loop().time() < sent.at + AGAIN_AFTER

    def lose(self) -> None:
        """Nothing more is sent here."""
        self._is_lost = True

    def end(self) -> None:
        """The call is about to be answered: if the stream closes after that, the client was not cut off."""
        self._was_cut_off = self._is_over()
        self._has_ended = True

    def _is_over(self) -> bool:
        # A client that can come back for the rest of a stream is expected to.
        return self._exchange is not None and not self._exchange.can_resume and self._exchange.over.is_set()


async def ask_plainly(sent: SentQuestion) -> dict[str, Any]:
    """Send a question as in a plain call, whose client knows of no task, of the server's or of its own."""
    params: dict[str, Any] = valid_json(sent.question.params)
    return await sent.stream.ask(sent.question.method, {key: value for key, value in params.items() if key != "task"})


# ---- deadlines


USUAL_WAIT: Final = Fallback().wait

LAST_STRETCH: Final = 1.2
"""The last wait may be this much longer than usual: a short one after it is not worth a request."""


class RequestDeadline:
    """How long one request may wait, and what may come after.

    Args:
        host: The caller's host; None if it is not known, when `unknown` is expected of it.
        trip: The round trip that this is; None if the caller cannot come back.
        began: When the request began, in seconds of the monotonic clock.
        wanted: How long the caller wants to wait, if it says so.

    Attributes:
        window: Since when the host's limit for the whole call counts.
        limit: How long the request may wait from its beginning; None for as long as the tool takes.
        may_come_back: Whether the caller can be asked to come back when the wait is over.
        may_ask: Whether it can be asked to come back with answers.
    """

    def __init__(
        self,
        options: Fallback,
        host: Host | None,
        unknown: Host,
        *,
        trip: RoundTrip | None,
        now: datetime,
        began: float,
        wanted: timedelta | None,
        is_sent_progress: bool,
    ) -> None:
        self._began = began
        assumed = host or unknown
        state = None if trip is None else trip.state
        self.window: datetime = now if state is None else min(state.window, now)
        if assumed.limit is not None and now - self.window >= assumed.limit:
            # A host that comes back after its limit does not count the time that its user took.
            self.window = now
        # Progress that comes too seldom does not extend a limit.
        has_progress = is_sent_progress and (assumed.limit is None or options.heartbeat < assumed.limit)
        within = assumed.answer_within(has_progress=has_progress)
        # The time that this request has waited itself is counted separately.
        elapsed = max(now - self.window - self.waited, timedelta(0))
        left = None if within is None else max(within - elapsed, timedelta(0))
        legs = 0 if state is None else state.legs
        self.limit: timedelta | None
        self.may_come_back: bool = False
        self.may_ask: bool = False
        if wanted is not None:
            # Without a known host at most as long as a call waits; at least the usual time, as `wait` may be 0.
            longest = max(options.wait, USUAL_WAIT) if trip is None and host is None else wanted
            self.limit = _shorter(min(wanted, longest), left)
            # At least once, also where calls are never asked to come back: no other request would ask.
            self.may_ask = trip is not None and legs < max(options.legs, 1)
        elif trip is None:
            self.limit = left if host is not None else _shorter(options.wait, left)
        else:
            is_last = left is not None and left <= options.wait * LAST_STRETCH
            self.limit = left if is_last else options.wait
            self.may_ask = legs < options.legs
            self.may_come_back = self.may_ask and not is_last

    @property
    def waited(self) -> timedelta:
        """How long ago the request began."""
        return timedelta(seconds=time.monotonic() - self._began)

    @property
    def remaining(self) -> timedelta | None:
        """How long it may go on waiting; None for as long as the tool takes."""
        return None if self.limit is None else max(self.limit - self.waited, timedelta(0))


def _shorter(one: timedelta, other: timedelta | None) -> timedelta:
    return one if other is None else min(one, other)


SOON: Final = timedelta(milliseconds=50)
SELDOM: Final = timedelta(seconds=2)
"""The first and the longest pause between two reads while the store is unavailable."""


class ResumedAnswers:
    """Writes down the answers that requests come back with."""

    def __init__(self, runtime: Callable[[], TaskRuntime], background: BackgroundTasks) -> None:
        self._runtime = runtime
        self._background = background
        self._writing: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def take(self, record: TaskRecord, params: JsonObject, limit: timedelta | None) -> bool:
        """Write down the answers in the params of a request; whether they are written within `limit`.

        An answer that does not fit its question is given to the tool. One that cannot be written yet is written after
        the request: its user is not asked again.
        """
        brought = params.get("inputResponses")
        answers: Mapping[str, Any] = cast("Mapping[str, Any]", brought) if isinstance(brought, Mapping) else {}
        # The first answer to a question counts.
        new = {key: each for key, each in answers_to(record, answers).items() if (record.id, key) not in self._writing}
        for key, refused in misfits(record, new, self._runtime().limits).items():
            self._write((record.id, key), record, refused or new[key])
        outstanding = ((record.id, key) for key in record.inputs.outstanding)
        writing = [self._writing[which] for which in outstanding if which in self._writing]
        if not writing:
            return True
        _, unwritten = await asyncio.wait(writing, timeout=None if limit is None else limit.total_seconds())
        return not unwritten

    def _write(self, which: tuple[str, str], record: TaskRecord, answer: dict[str, Any] | AnswerRefused) -> None:
        writing = self._background.start(take_answer(self._runtime, record, which[1], answer))
        self._writing[which] = writing
        writing.add_done_callback(lambda _: self._writing.pop(which))


# ---- waiting


AT_FIRST: Final = 0.05
"""Seconds for which only the task is followed. Most tools are quick, and need none of the rest."""

UNREADABLE: Final = "it has ended, and its result cannot be read right now"

ROOM_WITHIN: Final = timedelta(seconds=5)
LOOK_FOR_ROOM: Final = timedelta(seconds=0.5)
"""How long, and how often, an answer waits until its caller has read earlier ones."""

PLACEHOLDER: Final = ""
"""A state where the SDK needs one. `RequestStates.outside` replaces it."""


class WaitingRequest:
    """A request that waits for one task, and answers.

    Args:
        at_most: The longest that it waits, if its caller asks about a task (`task_status`) and says so.
        joins: Whether a repeated call would get the same task.
        since: When it began, in seconds of the monotonic clock; now by default.

    Attributes:
        trip: The round trip that this is; None if the caller cannot come back.
        given: The task whose result the caller was given, as far as is known.
        time: How long the request may wait.
    """

    def __init__(
        self,
        service: FallbackService,
        ctx: RequestContext,
        caller: Caller,
        options: Fallback,
        *,
        at_most: timedelta | None = None,
        joins: bool = False,
        since: float | None = None,
    ) -> None:
        self.trip: RoundTrip | None = current_trip.get()
        self.given: TaskRecord | None = None
        self._service = service
        self._runtime = service.runtime()
        self._ctx = ctx
        self._caller = caller
        self._options = options
        self._is_status = at_most is not None
        self._joins = joins
        self._state = None if self.trip is None else self.trip.state
        last = None if self._state is None else self._state.progress
        self._relay = ProgressRelay(ctx, heartbeat=options.heartbeat, last=last)
        self._open_request = OpenRequest(ctx, self._relay)
        self._stream: CallStream | None = None
        self._exchange = exchange_of(ctx)
        self._has_left = False
        self._is_answered = True
        self._host = host_of(caller.client_info, service.hosts, over_stdio=ctx.request is None)
        # Answers of plain JSON carry no progress.
        is_json = self._exchange is not None and self._exchange.receive is not None
        self.time: RequestDeadline = RequestDeadline(
            options,
            self._host,
            service.unknown_host,
            trip=self.trip,
            now=self._runtime.now(),
            began=time.monotonic() if since is None else since,
            wanted=at_most,
            is_sent_progress=self._relay.has_token and not is_json,
        )

    def open(self, task_id: str) -> AbstractContextManager[None]:
        """Inside this block, a run of the task in this process has the call."""
        return self._service.open_calls.open(task_id, self._open_request)

    @property
    def nonce(self) -> str | None:
        """The key of the task that this request begins, if it came with one."""
        return None if self._state is None else self._state.nonce

    async def find(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The owner's task that the request came back for; None if the store is unavailable for as long as it can wait.

        Raises:
            UnknownTask: The task is gone.
        """
        limit = self.time.remaining
        with anyio.move_on_after(None if limit is None else limit.total_seconds()):
            for failures in itertools.count():
                try:
                    return await self._runtime.get(task_id, owner=owner)
                except StoreUnavailable as exc:
                    logger.debug("task %s… cannot be read now: %s", task_id[:12], exc)
                await anyio.sleep(backoff(failures, base=SOON, limit=SELDOM).total_seconds())
        return None

    async def resume(self, record: TaskRecord) -> dict[str, Any]:
        """Take the answers that the request came with, and answer. Raises what `answer` raises."""
        self._is_answered = await self._service.answers.take(record, self._ctx.params or {}, self.time.remaining)
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
                while not (seen.is_final or self._may_answer_early(seen)):
                    # With `handle=False` the caller may give up, as the author wants.
                    seen = await self._wait(seen, None)
                if self._has_left and not seen.is_final:
                    self.caller_left(record.id)
            except anyio.get_cancelled_exc_class():
                if self._stream is not None:
                    # As in a plain call, the client closes the questions with the call that it cancelled.
                    self._service.questions.take_back(self._stream)
                self.caller_left(record.id)
                raise
            finally:
                await self._end_stream(record.id)
            if seen.is_final:
                # Inside the block: another call that has the result deletes the task, unless others wait for it.
                return await self._answer_at_end(seen)
        return await self.answer_early(seen)

    async def answer_early(self, seen: TaskRecord) -> dict[str, Any]:
        """The answer if the tool has not ended: to come back, or that the tool is still running."""
        questions = self._for_caller(seen)
        # A server that stops may not be there when the client comes back; then the handle is worth more.
        may_come_back = not (self._service.is_stopping() and self._options.handle)
        if (questions or self.time.may_come_back) and may_come_back:
            try:
                deadlines = [question.deadline for question in seen.inputs.outstanding.values() if question.deadline]
                return await self._come_back(seen.id, questions, deadlines=deadlines)
            except StoreError as exc:
                # The tool is running: after an error now, the client would start it twice.
                logger.warning("a caller of %r cannot be asked to come back: %s", seen.name, exc)
        self._log_handle(seen)
        caller = None if self._is_status else self._caller
        return handle_result(seen, self._service.companions.names_for(self._options, caller), joins=self._joins)

    async def ask_before(self, question: JsonObject) -> dict[str, Any]:
        """Ask for what the tool needs before there is a task. The caller must be able to come back."""
        return await self._come_back(None, question.get("inputRequests"), inner=question.get("requestState"))

    def caller_left(self, task_id: str) -> None:
        """The request was cancelled: cancel the task too, if the options say so.

        In older versions a client that only lost its connection has not cancelled: it says so if it does (2025-11-25).
        """
        # A `task_status` caller that disconnects does not cancel the task.
        if self._options.when_caller_leaves == "cancel" and not self._is_status:
            self._service.cancel_after_disconnect(task_id, lambda: self.others_wait(task_id))

    def others_wait(self, task_id: str) -> bool:
        """Whether another call of this process waits for the same task."""
        return any(call is not self._open_request for call in self._service.open_calls.of(task_id))

    # Waiting

    async def _wait(self, record: TaskRecord, limit: timedelta | None) -> TaskRecord:
        """The task once it has ended or waiting is of no use; as it was last seen, if the time is over, the server
        stops or the caller has left.

        Raises:
            UnknownTask: The task is gone.
            TaskUnreadable: Its row cannot be read.
        """
        seen = record

        async def see(found: TaskRecord) -> None:
            nonlocal seen
            seen = found
            await self._relay.look(found)
            self._ask(found)

        async def follow(seconds: float) -> bool:
            timeout = None if seconds == math.inf else timedelta(seconds=seconds)
            until = self._is_settled
            return await self._runtime.follow(record.id, until, timeout=timeout, see=see, patient=True) is not None

        deadline = time.monotonic() + (math.inf if limit is None else limit.total_seconds())
        if await follow(min(AT_FIRST, deadline - time.monotonic())) or deadline <= time.monotonic():
            return seen
        problem: Exception | None = None
        async with anyio.create_task_group() as group:

            async def end_after(event: Callable[[], Awaitable[object]]) -> None:
                await event()
                group.cancel_scope.cancel()

            group.start_soon(self._relay.keep_alive)
            group.start_soon(end_after, self._service.stopping)
            group.start_soon(end_after, self._until_left)
            try:
                await follow(deadline - time.monotonic())
            except (UnknownTask, TaskUnreadable) as exc:
                # Out of the group it would be raised in an exception group.
                problem = exc
            group.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return seen

    async def _until_left(self) -> None:
        """Return when the caller has left, if that cancels the call and the SDK does not: it answers with plain JSON.

        In older versions a client that lost its connection has not cancelled, but its answer does not reach it.
        """
        if self._exchange is None or self._exchange.can_resume:
            await anyio.sleep_forever()
        else:
            await self._exchange.ended()
            self._has_left = True
            if self.trip is None:
                await anyio.sleep_forever()

    def _ask(self, record: TaskRecord) -> None:
        """Send what the task asks on the stream of this call, unless a client has it already.

        A client of 2026-07-28 comes back with the answers instead. Over stateless HTTP, and in answers of plain JSON,
        there is no way to ask.
        """
        if self.trip is not None:
            return
        if self._stream is None and record.inputs.outstanding and self._ctx.session.can_send_request:
            self._stream = CallStream(self._ctx)
            self._service.streams.setdefault(record.id, []).append(self._stream)
        self._service.questions.look(record)

    async def _end_stream(self, task_id: str) -> None:
        stream = self._stream
        if stream is None:
            return
        stream.end()
        streams = self._service.streams[task_id]
        streams.remove(stream)
        if not streams:
            del self._service.streams[task_id]
        await self._service.questions.leave(task_id, stream)
        self._service.watch_questions(task_id)

    def _is_settled(self, task: TaskRecord) -> bool:
        """Whether waiting is of no use: the task has ended, or asks what is not asked while the call is open."""
        if task.is_final or not task.inputs.outstanding:
            return task.is_final
        # A `task_status` caller knows of the question, and waits for its answer.
        has_handle = self._options.handle and not self._is_status
        if self.trip is None:
            return has_handle and not self._can_be_answered(task)
        return bool(self._for_caller(task)) or (has_handle and self._is_answered)

    def _can_be_answered(self, task: TaskRecord) -> bool:
        """Whether a client was asked a question of the task, or can be on this call."""
        stream, can_ask = self._stream, self._ctx.session.can_send_request
        return any(
            self._service.questions.is_sent(task.id, key) or (can_ask and stream is not None and stream.takes(question))
            for key, question in task.inputs.outstanding.items()
        )

    def _for_caller(self, task: TaskRecord) -> dict[str, Any]:
        """The questions that the caller can come back with answers to."""
        if not self.time.may_ask or not self._is_answered:
            return {}
        questions: dict[str, Any] = {}
        for key, question in task.inputs.outstanding.items():
            try:
                require_capability(question, self._caller.capabilities)
            except RpcError:
                continue
            questions[key] = render_question(question)
        return questions

    def _may_answer_early(self, seen: TaskRecord) -> bool:
        """Whether the call may be answered although the tool has not ended."""
        return (
            self._options.handle
            or self._is_status
            or self._has_left
            or self.time.may_come_back
            or bool(self._for_caller(seen))
            or self._service.is_stopping()
        )

    # Answers

    async def _come_back(
        self,
        task_id: str | None,
        questions: Mapping[str, Any] | None,
        inner: str | None = None,
        deadlines: Sequence[datetime] = (),
    ) -> dict[str, Any]:
        state = CallState(
            task_id=task_id,
            legs=1 + (0 if self._state is None else self._state.legs),
            window=self.time.window,
            # A question with a timeout of its own can be answered until then.
            expires=max([self._runtime.now() + self._options.answer_within, *deadlines]),
            progress=self._relay.last,
            inner=inner,
            nonce=secrets.token_urlsafe(16) if task_id is None else None,
        )
        cast(RoundTrip, self.trip).next_state = await self._service.states.seal(self._ctx, state)
        asked = {"inputRequests": dict(questions)} if questions else {"requestState": PLACEHOLDER}
        return {"resultType": "input_required", **asked}

    async def _answer_at_end(self, ended: TaskRecord) -> dict[str, Any]:
        await self._relay.finish()
        try:
            result = await self._result_with_room(ended)
        except RpcError:
            self.given = None if self._has_left else ended
            raise
        except (StoreUnavailable, LimitExceeded) as exc:
            # The result is stored, and cannot be read or sent now.
            logger.warning("the result of task %s… cannot be sent now: %s", ended.id[:12], exc)
            return await self.answer_early(replace(ended, status=TaskStatus.WORKING, status_message=UNREADABLE))
        if ended.status is TaskStatus.COMPLETED and not self._has_left:
            self.given = ended
        return result

    async def _result_with_room(self, ended: TaskRecord) -> dict[str, Any]:
        """The result, once the caller has read enough of earlier ones."""
        unread = self._service.limiting.unread
        limit = _shorter(ROOM_WITHIN, self.time.remaining)
        deadline = anyio.current_time() + limit.total_seconds()
        while True:
            before = unread.given_back
            try:
                return await self._result(ended)
            except LimitExceeded:
                # Each attempt reads all of it, so only when there is more room than before.
                while unread.given_back == before:
                    if anyio.current_time() >= deadline:
                        raise
                    await anyio.sleep(LOOK_FOR_ROOM.total_seconds())

    async def _result(self, ended: TaskRecord) -> dict[str, Any]:
        """The answer that a plain call would have got; a result for a stopped tool, and always for `task_status`.

        Raises:
            RpcError: What the tool raised, or why the caller cannot be given its result.
            UnknownTask: The task is gone.
            LimitExceeded: The caller has not read enough of earlier answers.
        """
        outcome = await outcome_to_send(self._runtime, ended, self._service.limiting.unread)
        body: Any = None if outcome is None else await decoded(outcome.body)
        if outcome is not None and ended.status is TaskStatus.COMPLETED:
            return body if outcome.meta is None else {**body, "_meta": await decoded(outcome.meta)}
        if body is None or self._is_status or _was_stopped(body):
            return failed_result(ended, body)
        error = body if version_of(self._ctx.protocol_version).marks_results else in_older_words(body)
        raise RpcError(error["code"], error["message"], error.get("data"))

    def _log_handle(self, seen: TaskRecord) -> None:
        """Tell operators of a host whose limit they may want to configure."""
        name = (self._caller.client_info or {}).get("name")
        host = "a host without a name" if name is None else f"{line(str(name), LONGEST_NAME)!r}"
        known = "" if self._host is not None else " (a host that is not known)"
        logger.info(
            "a call of %r by %s%s was answered after %.3g s that the tool is still running: task %s…",
            *(seen.name, host, known, self.time.waited.total_seconds(), seen.id[:12]),
        )


def _was_stopped(error: JsonObject) -> bool:
    """Whether the tool was stopped before it had an outcome."""
    reason = (object_in(error, "data") or {}).get("reason")
    # A tool may give reasons of its own, of any type.
    return error["code"] == INTERNAL_ERROR and isinstance(reason, str) and reason in STOPPED
