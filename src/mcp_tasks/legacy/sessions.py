"""The sessions of clients of 2025-11-25: which tasks each has, and what it is told of them.

A session scopes listings and is told of its tasks. It owns nothing: an id that is presented in another session brings
the task into that one as well. Its id here is random and ours; the one that HTTP clients present is a secret, and is
not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, cast
from weakref import WeakSet

import anyio
import anyio.lowlevel
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INTERNAL_ERROR
from mcp_types import methods as mcp_methods
from pydantic import ValidationError
from starlette.types import ASGIApp

from mcp_tasks.errors import StoreError
from mcp_tasks.legacy.client_tasks import HostedQuestions
from mcp_tasks.legacy.shapes import (
    IMMEDIATE_RESPONSE,
    PROGRESS_NOTIFICATION,
    REQUEST_CANCELLED,
    STATUS_NOTIFICATION,
    VERSION,
    named_result,
    related_data,
    related_task,
    task_fields,
)
from mcp_tasks.legacy.streams import AskedTasks, SessionsApp, SessionStream, Subscribers
from mcp_tasks.model.json import JsonObject, rough_size, valid_text
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.record import Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.shapes import progress_meta, status_message
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.questions import ClientQuestions, StreamLost
from mcp_tasks.server.sdk import EraParts, Exchange, RequestContext, http_session_of, is_pipe
from mcp_tasks.server.tool_runner import PATIENCE, OpenCalls, in_older_words
from mcp_tasks.stores.base import Hint, Inbox

logger: Final = get_logger(__name__)

# ---- rendering


_LISTS: Final = ("content", "messages", "contents")
"""Lists in a result that may be long. They are validated in batches, so that other threads can run in between."""

_BATCH: Final = 500


def render_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`Task`, as it is in every answer and notification."""
    status, message = status_of(record), status_message(record)
    if not message and status == TaskStatus.FAILED.value:
        # 2025-11-25 asks for a message that says why a task failed.
        message = "The tool reported an error" if record.is_error else "The request failed"
    return task_fields(record, now, status=status, message=message)


def render_detailed(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`GetTaskResult`: the task, and the numbers of its progress."""
    task = render_task(record, now)
    if record.progress is not None:
        task["_meta"] = progress_meta(record.progress)
    return task


def render_created(record: TaskRecord, immediate_response: str | None, now: datetime) -> dict[str, Any]:
    """`CreateTaskResult`. 2025-11-25: tasks MUST begin as `working`, even if the task is further by now."""
    created: dict[str, Any] = {"task": {**render_task(record, now), "status": TaskStatus.WORKING.value}}
    if immediate_response is not None:
        created["_meta"] = {IMMEDIATE_RESPONSE: valid_text(immediate_response)}
    return created


def status_of(record: TaskRecord) -> str:
    """The status in this version, in which a tool that reports an error has failed."""
    return (TaskStatus.FAILED if record.is_error else record.status).value


def render_result(record: TaskRecord, result: JsonObject) -> dict[str, Any]:
    """The result of a task's request as a plain call of this version would have it, with the task named.

    Raises:
        RpcError: -32603, as in a plain call: this version cannot express the result.
    """
    fields = dict(result)
    # This version's schema accepts any object there, and it may be nearly all of a result.
    structured = fields.pop("structuredContent", None) if isinstance(fields.get("structuredContent"), dict) else None
    long = [name for name in _LISTS if isinstance(fields.get(name), list) and len(fields[name]) > _BATCH]
    rest = {**fields, **{name: list[Any]() for name in long}}
    try:
        # Drops the fields that this version does not have.
        shaped = mcp_methods.serialize_server_result(record.method, VERSION, rest)
        for name in long:
            items = cast("list[Any]", fields[name])
            shaped[name] = []
            for start in range(0, len(items), _BATCH):
                batch = {**rest, name: items[start : start + _BATCH]}
                shaped[name] += mcp_methods.serialize_server_result(record.method, VERSION, batch)[name]
    except ValidationError:
        raise RpcError(INTERNAL_ERROR, "Handler returned an invalid result") from None
    return named_result(shaped if structured is None else {**shaped, "structuredContent": structured}, record.id)


def render_error(record: TaskRecord, error: JsonObject) -> RpcError:
    """The error of a task's request, with the task named."""
    error = in_older_words(error)
    return RpcError(error["code"], error["message"], related_data(record.id, error.get("data")))


def render_cancelled(record: TaskRecord) -> RpcError:
    """The error of a cancelled task."""
    why = f": {record.status_message}" if record.status_message else ""
    return RpcError(REQUEST_CANCELLED, f"The task was cancelled{why}", related_data(record.id, None))


# ---- notifications of tools
# Log entries, changes of lists and other notifications that a tool sends beside progress and questions.


MAX_KEPT: Final = 100
"""Notifications of one task that wait to be sent to one session."""

MAX_KEPT_BYTES: Final = 256 * 1024
"""Their approximate size together."""

_OF_THE_SERVER: Final = ("/list_changed", "resources/updated")
"""Endings of methods that are about the server and not about the task that sends them."""


@dataclass(eq=False, frozen=True, slots=True)
class _Notice:
    method: str
    params: dict[str, Any] | None
    related: bool
    size: int


class Notices:
    """Sends the notifications of one task's tool to one session, in order, while there is a stream."""

    def __init__(self, task_id: str, session: Session, subscribers: Subscribers, calls: OpenCalls) -> None:
        self._task_id = task_id
        self._session = session
        self._subscribers = subscribers
        self._calls = calls
        self._kept: deque[_Notice] = deque()
        self._size = 0
        self._lost = 0
        self._is_known = False
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        calls.listen(task_id, self)

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Send a notification now or when that is possible. Waits for a slow client, up to a limit."""
        with anyio.move_on_after(PATIENCE):
            while self._sending is not None and (len(self._kept) >= MAX_KEPT or self._size >= MAX_KEPT_BYTES):
                self._sent.clear()
                await self._sent.wait()
        own = None if params is None else dict(params)
        notice = _Notice(method, own, related, rough_size(own))
        self._kept.append(notice)
        self._size += notice.size
        while len(self._kept) > MAX_KEPT or (self._size > MAX_KEPT_BYTES and len(self._kept) > 1):
            self._size -= self._kept.popleft().size
            self._lost += 1
        self.send()

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client, if it has an open stream."""
        stream = next(self._subscribers.open_streams(self._session, self._task_id), None)
        if stream is None:
            return False
        try:
            await stream.request("ping", {"_meta": related_task(self._task_id)}, timeout)
        except StreamLost:
            return False
        return True

    def send(self, *, known: bool = False) -> None:
        """Send the notifications that are kept, if there is a stream and the client is known to have the task's id."""
        self._is_known |= known
        if self._is_known and self._sending is None and self._next() is not None:
            # Not in the tool's context: the SDK passes a sender's context on, and its work would count as the tool's.
            self._sending = asyncio.get_running_loop().create_task(self._send(), context=Context())
            self._sending.add_done_callback(self._done)

    async def flush(self) -> None:
        """Return when all that can be sent has been, or the client is too slow."""
        self.send(known=True)
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=PATIENCE)

    def close(self) -> None:
        """The task or the session has ended. Notifications that are being sent still are."""
        self._calls.ignore(self._task_id, self)
        if self._sending is None:
            self._report()

    def _next(self) -> tuple[_Notice, SessionStream] | None:
        """The first notification that there is a stream for."""
        for notice in self._kept:
            for stream in self._subscribers.open_streams(self._session, self._task_id, related=notice.related):
                return notice, stream
        return None

    async def _send(self) -> None:
        while (found := self._next()) is not None:
            notice, stream = found
            self._kept.remove(notice)
            self._size -= notice.size
            params = notice.params
            if not notice.method.endswith(_OF_THE_SERVER):
                params = named_result(params or {}, self._task_id)
            try:
                async with asyncio.timeout(PATIENCE):
                    await stream.tell(notice.method, params)
            except Exception as exc:
                # The client does not read, or the stream is lost: do not wait again for each of the others.
                logger.debug("%s of task %s… was not sent: %s", notice.method, self._task_id[:12], what(exc))
                self._lost += 1 + len(self._kept)
                self._kept.clear()
                self._size = 0
            self._sent.set()

    def _done(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        self._sent.set()
        if not self._calls.hears(self._task_id, self):
            self._report()
        else:
            # A notification may have come after the last look.
            self.send()

    def _report(self) -> None:
        lost, self._lost = self._lost + len(self._kept), 0
        self._kept.clear()
        if lost:
            logger.info(
                "task %s…: its client missed %d notifications of its tool, as it had no stream open or did not read",
                *(self._task_id[:12], lost),
            )


# ---- sessions


HEAD_START: Final = 0.2
"""Seconds between the answer to a request and the first message about its task. Over HTTP they are on two streams,
which nothing orders, and ext-tasks refuses questions of a task that it does not know yet."""

ANSWER_LIMIT: Final = 5.0
"""Seconds to wait until that answer has been sent: a client may read slowly."""

MAX_BEFORE_HANDSHAKE: Final = 100
"""Tasks that are followed for a client that has not completed its handshake. It may never do so."""

MAX_MISFITS: Final = 3
"""Answers that may not fit a question; the last of them is given to the tool."""

LEAST_PAUSE: Final = 1.0
SHARE_OF_AGE: Final = 16
"""Between two statuses that only report progress are a second and a sixteenth of the task's age. So 2,000 reports give
fewer than 100 of them, however far apart they are. A client that wants each report sends a progress token."""


def pause_between(age: float) -> float:
    """The least seconds between two statuses that only report progress, for a task of that age in seconds."""
    return max(LEAST_PAUSE, age / SHARE_OF_AGE)


@dataclass(eq=False, slots=True)
class Followed:
    """A task that a session is told of, until it ends.

    Attributes:
        told: The last status that was sent, with the progress in `shown`.
        token: The progress token of the call, with the last value sent in `progress`. The next must be more, also after
            the run was started again.
        seen: The version of the task that was last read.
        next_status: The earliest time, in seconds of the event loop, for a status that only reports progress; `later`
            is its timer.
    """

    told: TaskStatus
    token: str | int | None = None
    progress: float | None = None
    seen: int = 0
    shown: Progress | None = None
    next_status: float = 0.0
    later: asyncio.TimerHandle | None = None


class Session:
    """One client's connection.

    Attributes:
        id: The session of its tasks' records.
        own: Its own stream; None before its handshake is complete.
        resumed: The streams that its client has resumed, as far as is known.
        asked: The questions that it was sent over Streamable HTTP.
        followed: Its tasks that have not ended.
    """

    def __init__(self, subscribers: Subscribers, calls: OpenCalls) -> None:
        self.id: str = secrets.token_urlsafe(16)
        self.own: SessionStream | None = None
        self.resumed: Sequence[SessionStream] = ()
        self.asked: AskedTasks = AskedTasks()
        self.followed: dict[str, Followed] = {}
        self._subscribers = subscribers
        self._calls = calls
        self._notices: dict[str, Notices] = {}
        # Tasks that it took in: their numbers, and until when they exist, if that is known.
        self._adopted: dict[str, tuple[int, datetime | None]] = {}
        self._adoptions = 0
        self._listening: tuple[TaskRuntime, Inbox] | None = None
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    # Notifications of tools

    def expect(self, task_id: str) -> None:
        """A task of this id is about to be made here; its tool may send something at once."""
        if task_id not in self._notices and not self._is_closed:
            self._notices[task_id] = Notices(task_id, self, self._subscribers, self._calls)

    def give_up(self, task_id: str) -> None:
        """That task was not made, or has ended."""
        if (notices := self._notices.pop(task_id, None)) is not None:
            notices.close()

    def send_notices(self, task_id: str, *, known: bool = False) -> None:
        """Send the notifications of a task's tool, if there is a stream; `known` once the client has the task's id."""
        if (notices := self._notices.get(task_id)) is not None:
            notices.send(known=known)

    def has_notices(self, task_id: str) -> bool:
        """Whether there may be notifications of the task's tool that were not sent."""
        return task_id in self._notices

    async def flush(self, task_id: str) -> None:
        """Send the notifications of a task's tool, before the client is told that the task has ended."""
        if (notices := self._notices.get(task_id)) is not None:
            await notices.flush()

    # Tasks

    def follow(
        self, record: TaskRecord, progress_token: str | int | None = None, *, after: Exchange | None = None
    ) -> None:
        """Tell the client of a task that it has just made.

        To be called last before the call is answered, so that the client hears of the task after it knows its id.
        """
        # The answer says `working`, even if the task is further by now.
        self._follow(record, Followed(told=TaskStatus.WORKING, token=progress_token), after)

    def adopt(self, record: TaskRecord, *, after: Exchange | None = None) -> None:
        """Take in a task whose id the client presented, and tell it of that task. Twice changes nothing."""
        if record.session != self.id and record.id not in self._adopted:
            self._adoptions += 1
            self._adopted[record.id] = self._adoptions, expires_at(record)
        # A task of its own may have been made by another of its tasks, and not by a call.
        if not record.is_final and record.id not in self.followed:
            self._follow(record, Followed(told=record.status), after)

    def adopted(self, after: int = 0) -> Sequence[tuple[int, str]]:
        """The tasks that were taken in after the one with this number and still exist, with their numbers.

        The numbers grow, so each is a place in the list even when its task is gone. `ValueError` if no task had it.
        """
        if not 0 <= after <= self._adoptions:
            raise ValueError(f"no task was taken in as number {after}")
        if self._listening is not None:
            now = self._listening[0].now()
            for task_id in [each for each, (_, until) in self._adopted.items() if until is not None and until <= now]:
                del self._adopted[task_id]
        return [(number, task_id) for task_id, (number, _) in self._adopted.items() if number > after]

    def ended(self, task_id: str, record: TaskRecord | None) -> None:
        """A task has ended, or (None) is gone: the client is told nothing more of it."""
        self._unfollow(task_id)
        if self._listening is not None:
            runtime, inbox = self._listening
            runtime.hints.remove(inbox, task_id)
        if record is None:
            self._adopted.pop(task_id, None)
        elif task_id in self._adopted:
            self._adopted[task_id] = self._adopted[task_id][0], expires_at(record)

    def doubt_own(self) -> None:
        """Messages on its own stream may not have arrived, and whether it is open is unknown."""
        if self.own is not None:
            self.own.is_open = False
            self.own = self.own.renewed()

    def close(self) -> None:
        """The connection has ended."""
        self._is_closed, self._listening = True, None
        for task_id in list(self.followed):
            self.ended(task_id, None)
        for task_id in list(self._notices):
            self.give_up(task_id)

    def _follow(self, record: TaskRecord, followed: Followed, after: Exchange | None) -> None:
        if self._is_closed:
            # The connection was lost while the task was made. Nothing would ever remove the task from here.
            return
        if self._listening is None and len(self.followed) >= MAX_BEFORE_HANDSHAKE:
            # The ends of tasks are not noticed yet.
            self._unfollow(next(iter(self.followed)))
        self.followed[record.id] = followed
        self._subscribers.join(record.id, self)
        self.expect(record.id)
        looking = self._look_after(record.id, after)
        self._starting[record.id] = asyncio.create_task(looking, name="mcp-tasks-head-start")

    def _unfollow(self, task_id: str) -> None:
        followed = self.followed.pop(task_id, None)
        if followed is not None and followed.later is not None:
            # For an old task it may be hours away, and would keep the session in memory.
            followed.later.cancel()
        self.give_up(task_id)
        self._subscribers.leave(task_id, self)

    async def _look_after(self, task_id: str, exchange: Exchange | None) -> None:
        if exchange is not None:
            with anyio.move_on_after(ANSWER_LIMIT):
                await exchange.over.wait()
        await asyncio.sleep(HEAD_START)
        self._starting.pop(task_id, None)
        self.send_notices(task_id, known=True)
        self._listen_to(task_id)

    def _listen_to(self, task_id: str) -> None:
        """Listen for changes of the task, and read it once: it may have changed before."""
        followed = self.followed.get(task_id)
        if self._listening is not None and followed is not None:
            runtime, inbox = self._listening
            runtime.hints.add(inbox, task_id)
            inbox.put(Hint(task_id, followed.seen + 1))

    # What the client is told

    async def keep_telling(self, runtime: TaskRuntime, questions: ClientQuestions) -> None:
        """Tell the client of every change of its tasks. Runs until it is cancelled."""
        with runtime.hints.listen(()) as inbox:
            self._listening = (runtime, inbox)
            for task_id in self.followed.keys() - self._starting.keys():
                self._listen_to(task_id)
            async for hint in inbox:
                # A store may answer without ever yielding, and so may a client.
                await anyio.lowlevel.checkpoint()
                followed = self.followed.get(hint.task_id)
                if followed is None or hint.version <= followed.seen:
                    continue
                try:
                    await self._look(runtime, hint.task_id, followed, questions)
                except StoreError as exc:
                    logger.debug("task %s… cannot be read now: %s", hint.task_id[:12], exc)
                    delay = runtime.settings.look_interval.total_seconds()
                    asyncio.get_running_loop().call_later(delay, inbox.put, hint)
                except Exception:
                    # The session is still told of its other tasks.
                    logger.error("status notification of task %s… failed", hint.task_id[:12], exc_info=quietly())

    async def _look(self, runtime: TaskRuntime, task_id: str, followed: Followed, questions: ClientQuestions) -> None:
        record = await runtime.store.get(task_id)
        if record is None:
            self.ended(task_id, None)
            return
        followed.seen = record.version
        questions.look(record)
        if record.is_final:
            await self.flush(task_id)
            self.ended(task_id, record)
        else:
            await self._tell_progress(record, followed)
        if record.status is followed.told and not self._is_progress_due(record, followed):
            return
        now = runtime.now()
        followed.told, followed.shown = record.status, record.progress
        pause = pause_between((now - record.created_at).total_seconds())
        followed.next_status = asyncio.get_running_loop().time() + pause
        if self.own is not None:
            status = render_task(record, now) if record.is_final else render_detailed(record, now)
            await self.own.tell(STATUS_NOTIFICATION, status)

    def _is_progress_due(self, record: TaskRecord, followed: Followed) -> bool:
        """Whether to send a status for its progress now. If it is too early, the task is read again later."""
        if record.is_final or record.progress in (None, followed.shown):
            return False
        loop = asyncio.get_running_loop()
        early = followed.next_status - loop.time()
        if early > 0 and followed.later is None:
            followed.later = loop.call_later(early, self._look_again, record.id, followed, context=Context())
        return early <= 0

    def _look_again(self, task_id: str, followed: Followed) -> None:
        followed.later = None
        if self._listening is not None:
            self._listening[1].put(Hint(task_id, followed.seen + 1))

    async def _tell_progress(self, record: TaskRecord, followed: Followed) -> None:
        progress = record.progress
        if followed.token is None or progress is None:
            return
        # 2025-11-25, "Progress": the value MUST increase with each notification. A run that was started again begins
        # anew, and is told of once it is further than the one before.
        if followed.progress is not None and progress.progress <= followed.progress:
            return
        stream = next(self._subscribers.open_streams(self, record.id), None)
        if stream is None:
            return
        followed.progress = progress.progress
        params: dict[str, Any] = {
            "progressToken": followed.token,
            "progress": progress.progress,
            "_meta": related_task(record.id),
        }
        if progress.total is not None:
            params["total"] = progress.total
        if progress.message is not None:
            params["message"] = valid_text(progress.message)
        await stream.tell(PROGRESS_NOTIFICATION, params)


_Key: TypeAlias = str | int
"""A connection: its HTTP session, or the identity of its handshake object."""


class Sessions:
    """The sessions of one server.

    Attributes:
        subscribers: The clients that have a task.
        questions: The questions of tasks.
    """

    def __init__(self, parts: EraParts) -> None:
        self.subscribers: Subscribers = Subscribers()
        self.questions: ClientQuestions = ClientQuestions(
            parts.runtime,
            HostedQuestions(parts.runtime).ask,
            self.subscribers.streams,
            max_misfits=MAX_MISFITS,
        )
        self._parts = parts
        self._sessions: dict[_Key, Session] = {}
        self._open_streams: Counter[str] = Counter()
        self._wrapped: WeakSet[StreamableHTTPSessionManager] = WeakSet()

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """Wrap the SDK's app of a server that starts, if it serves Streamable HTTP; once, however often it starts."""
        try:
            manager = server.session_manager
        except RuntimeError:
            # It has none: it is served in another way.
            return
        if manager not in self._wrapped:
            self._wrapped.add(manager)
            app = cast(ASGIApp, manager.asgi_app)
            # The SDK's type is narrower than it needs to be: any ASGI app works.
            manager.asgi_app = cast(Any, SessionsApp(app, manager, self, self._parts.protocol))

    def of(self, ctx: RequestContext) -> Session | None:
        """The session of a message; None over stateless HTTP."""
        params = ctx.session.client_params
        if params is None:
            return None
        key = _key(ctx)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(self.subscribers, self._parts.open_calls)
            # If a client never completes its handshake, only this tells that it is gone.
            loop = asyncio.get_running_loop()
            weakref.finalize(params, self._forget, key, session.id, loop).atexit = False
        return session

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> None:
        """Serve `notifications/initialized`: runs until the connection ends, when the SDK cancels this."""
        await call_next(ctx)
        session = self.of(ctx)
        if session is None or session.own is not None:
            # A client may send it twice.
            return
        key = _key(ctx)
        session.own = SessionStream(ctx.session, session=session)
        # If streams are not watched, expect that nothing arrives while it is unknown.
        session.own.is_open = is_pipe(ctx) or not isinstance(key, str) or self._open_streams[key] > 0
        try:
            await session.keep_telling(self._parts.runtime(), self.questions)
        finally:
            self._end(session, key)

    def asked(self, http_session: str) -> AskedTasks | None:
        """The questions that a session was sent; None if the session is not known."""
        session = self._sessions.get(http_session)
        return None if session is None else session.asked

    def stream_opened(self, http_session: str, *, resumed: bool) -> None:
        """A session has a stream of its own from now on: a new one, or one that was cut off and is resumed."""
        self._open_streams[http_session] += 1
        session = self._sessions.get(http_session)
        if session is None or session.own is None:
            # `serve` finds out whether it is open.
            return
        if resumed:
            # Only the SDK knows which stream: that of a `tasks/result`, if one of those was cut off. Messages on a
            # stream that is not resumed are kept for the client.
            results = [each for task_id in session.followed for each in self.subscribers.results_of(session, task_id)]
            session.resumed = [each for each in results if not each.is_open] or [session.own]
            for stream in session.resumed:
                stream.is_open = True
        else:
            session.own = session.own.renewed()
        self._send_waiting(session)

    def stream_closed(self, http_session: str) -> None:
        """A stream of a session's own was closed."""
        self._open_streams[http_session] -= 1
        if self._open_streams[http_session] > 0:
            return
        del self._open_streams[http_session]
        session = self._sessions.get(http_session)
        if session is not None and session.own is not None:
            for stream in (session.own, *session.resumed):
                stream.is_open = False
            session.resumed = ()
            self._send_waiting(session)

    def _send_waiting(self, session: Session) -> None:
        for task_id in list(session.followed):
            self.questions.send(task_id)
            session.send_notices(task_id)

    def _end(self, session: Session, key: _Key) -> None:
        if self._sessions.get(key) is session:
            del self._sessions[key]
        task_ids = list(session.followed)
        session.close()
        if session.own is not None:
            session.own.is_open = False
            # The SDK ends the requests on the stream itself.
            self.questions.take_back(session.own, cancel=False)
        for task_id in task_ids:
            self.questions.send(task_id)

    def _forget(self, key: _Key, session_id: str, loop: asyncio.AbstractEventLoop) -> None:
        """A handshake is gone. Called by the garbage collector, in any thread."""
        session = self._sessions.get(key)
        if session is None or session.id != session_id:
            return
        if isinstance(key, int) or session.own is None:
            # At once: the next handshake may be an object in the same place.
            del self._sessions[key]
        if session.own is None:
            # Unless the loop is closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, session, key)


def _key(ctx: RequestContext) -> _Key:
    return http_session_of(ctx) or id(ctx.session.client_params)
