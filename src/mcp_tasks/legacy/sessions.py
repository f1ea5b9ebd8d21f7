"""The sessions of clients: which tasks each has, and its own stream.

A session scopes listings and is told of its tasks. It owns nothing: an id that is presented in another session brings
the task into that one as well. Its name here is random and ours; the one that HTTP clients present is a secret, and
nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias, cast
from weakref import WeakSet

import anyio
import anyio.lowlevel
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types import methods as mcp_methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks.errors import LimitExceeded, StoreError
from mcp_tasks.legacy.questions import OpenQuestions
from mcp_tasks.legacy.shapes import (
    IMMEDIATE_RESPONSE,
    REQUEST_CANCELLED,
    RESULT_INTERRUPTED,
    VERSION,
    related_data,
    related_task,
    task_fields,
)
from mcp_tasks.legacy.streams import AskedTasks, Audience, Carrier, Holder, Streams
from mcp_tasks.model.json import JsonObject, rough_size, valid_text
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.record import Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.errors import RpcError, to_error_data
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.shapes import progress_meta, status_message
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.catalog import Served
from mcp_tasks.server.sdk import EraParts, Exchange, RequestContext, authenticated, http_session_of, is_pipe
from mcp_tasks.server.tool_runner import PATIENCE, OpenCalls, StreamLost, in_older_words
from mcp_tasks.stores.base import Hint, Inbox

# ---- render
# Record to wire, for 2025-11-25: another word for some ends, `ttl` always there, and whatever is of a task says so.


_LISTS: Final = ("content", "messages", "contents")
"""What may be long in a result, and is validated part by part: in between, other threads have their turn."""

_BATCH: Final = 500


def render_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`Task`, as it stands in every answer and notification."""
    return task_fields(record, now, status=status_of(record), message=_message(record))


def render_detailed(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`GetTaskResult`: the task, and the numbers behind its progress message."""
    task = render_task(record, now)
    if record.progress is not None:
        task["_meta"] = progress_meta(record.progress)
    return task


def render_created(record: TaskRecord, offer: Served, now: datetime) -> dict[str, Any]:
    """`CreateTaskResult`. 2025-11-25: tasks MUST begin as `working`, also one that has got further by now."""
    task = {**render_task(record, now), "status": TaskStatus.WORKING.value}
    created: dict[str, Any] = {"task": task}
    if offer.options.immediate_response is not None:
        created["_meta"] = {IMMEDIATE_RESPONSE: valid_text(offer.options.immediate_response)}
    return created


def status_of(record: TaskRecord) -> str:
    """The status in the words of this era, in which a tool that reports an error has failed."""
    return (TaskStatus.FAILED if record.is_error else record.status).value


def render_result(record: TaskRecord, result: JsonObject) -> dict[str, Any]:
    """The result of the request behind a task as a plain call of this era would have it, and whose it is.

    Raises:
        RpcError: -32603, as in a plain call: this era cannot say such a thing.
    """
    shaped = _shaped(record.method, result)
    own = shaped.get("_meta")
    meta = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
    return {**shaped, "_meta": {**meta, **related_task(record.id)}}


def render_error(record: TaskRecord, error: JsonObject) -> RpcError:
    """The error of the request behind a task. Whose it is stands in `data._meta`, where `data` can take it."""
    error = in_older_words(error)
    return RpcError(error["code"], error["message"], related_data(record.id, error.get("data")))


@contextmanager
def related(task_id: str) -> Generator[None]:
    """In here, the refusal of a request for a result names its task."""
    try:
        yield
    except RpcError as exc:
        if exc.code == INVALID_PARAMS:
            # The task is gone, and that is said in the same words of every id.
            raise
        raise RpcError(exc.code, exc.message, related_data(task_id, exc.data)) from exc


def render_cancelled(record: TaskRecord) -> RpcError:
    """What there is to get of a cancelled task."""
    why = f": {record.status_message}" if record.status_message else ""
    return RpcError(REQUEST_CANCELLED, f"The task was cancelled{why}", related_data(record.id, None))


def render_interrupted(task_id: str, reason: str, message: str) -> RpcError:
    """Why a request for the result of a task is answered before there is one. The task goes on."""
    return RpcError(RESULT_INTERRUPTED, message, related_data(task_id, {"reason": reason}))


def _shaped(method: str, result: JsonObject) -> dict[str, Any]:
    """The result without what this era does not know: kept is what the newest can say."""
    fields = dict(result)
    # It may be nearly all of a result, and in this era it is an object of which the schema says no more.
    structured = fields.pop("structuredContent", None) if isinstance(fields.get("structuredContent"), dict) else None
    long = [name for name in _LISTS if isinstance(fields.get(name), list) and len(fields[name]) > _BATCH]
    rest = {**fields, **{name: list[Any]() for name in long}}
    try:
        shaped = mcp_methods.serialize_server_result(method, VERSION, rest)
        for name in long:
            items = cast("list[Any]", fields[name])
            batches = [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]
            parts = [mcp_methods.serialize_server_result(method, VERSION, {**rest, name: batch}) for batch in batches]
            shaped[name] = [item for part in parts for item in part[name]]
    except ValidationError:
        raise RpcError(INTERNAL_ERROR, "Handler returned an invalid result") from None
    return shaped if structured is None else {**shaped, "structuredContent": structured}


def _message(record: TaskRecord) -> str | None:
    """The status message. 2025-11-25 asks for one that says why a task failed."""
    message = status_message(record)
    if message or status_of(record) != TaskStatus.FAILED.value:
        return message
    return "The tool reported an error" if record.is_error else "The request failed"


# ---- pushing
# What a session is told of its tasks without asking: their status, their progress, their questions.


logger: Final = get_logger(__name__)

STATUS: Final = "notifications/tasks/status"
PROGRESS: Final = "notifications/progress"

LEAST_PAUSE: Final = 1.0
SHARE_OF_AGE: Final = 16
"""Between two statuses that only tell of progress are a second and a sixteenth of the task's age. So 2,000 reports give
fewer than 100 of them, however far apart they are. Whoever wants each report sends a progress token."""


def pause_between(age: float) -> float:
    """The least seconds between two statuses that tell of progress, for a task of so many seconds."""
    return max(LEAST_PAUSE, age / SHARE_OF_AGE)


@dataclass(eq=False, slots=True)
class Followed:
    """A task that a session has, as far as it has been told of it.

    Attributes:
        told: The status that it was last told.
        token: Under what it asked for progress, if it did.
        progress: The progress that it was last told: the next must be more, whatever a run that was started again says.
        seen: The version of the task that was last looked at.
        shown: The progress that it was last told with the status.
        next_status: The earliest time, on the event loop's clock, at which it is told of progress alone.
        later: The look at it then, if there is to be one.
    """

    told: TaskStatus
    token: str | int | None = None
    progress: float | None = None
    seen: int = 0
    shown: Progress | None = None
    next_status: float = 0.0
    later: asyncio.TimerHandle | None = None


class Follower(Holder, Protocol):
    """A session, as far as it follows tasks."""

    @property
    def followed(self) -> Mapping[str, Followed]:
        """The tasks that it is told of."""
        ...

    def ended(self, task_id: str, record: TaskRecord | None) -> None:
        """A task has ended, or is gone: there is no more to tell of it."""
        ...

    async def flush(self, task_id: str) -> None:
        """Send what the tool of a task has said, as far as that can be sent now."""
        ...


class Pushes:
    """Tells one session of its tasks, for as long as it lives."""

    def __init__(
        self, follower: Follower, runtime: TaskRuntime, *, audience: Audience, questions: OpenQuestions, inbox: Inbox
    ) -> None:
        self._follower = follower
        self._runtime = runtime
        self._audience = audience
        self._questions = questions
        self._inbox = inbox

    async def keep_telling(self) -> None:
        """Tell of every change. Never ends by itself."""
        async for hint in self._inbox:
            # A store may answer without ever giving way, and so may a client.
            await anyio.lowlevel.checkpoint()
            followed = self._follower.followed.get(hint.task_id)
            if followed is None or hint.version <= followed.seen:
                continue
            try:
                await self._look(hint.task_id, followed)
            except StoreError as exc:
                logger.debug("task %s… cannot be looked at now: %s", hint.task_id[:12], exc)
                self._look_later(hint)
            except Exception:
                # Whatever it is about one task, the others are told of.
                logger.error("task %s… is not told of", hint.task_id[:12], exc_info=quietly())

    def _look_later(self, hint: Hint) -> None:
        delay = self._runtime.settings.look_interval.total_seconds()
        asyncio.get_running_loop().call_later(delay, self._inbox.put, hint)

    async def _look(self, task_id: str, followed: Followed) -> None:
        record = await self._runtime.store.get(task_id)
        if record is None:
            self._follower.ended(task_id, None)
            return
        followed.seen = record.version
        self._questions.look(record)
        if record.is_final:
            await self._follower.flush(task_id)
            self._follower.ended(task_id, record)
        else:
            await self._tell_progress(record, followed)
        if record.status is not followed.told or self._shows_progress(record, followed):
            now = self._runtime.now()
            followed.told, followed.shown = record.status, record.progress
            pause = pause_between((now - record.created_at).total_seconds())
            followed.next_status = asyncio.get_running_loop().time() + pause
            status = render_task(record, now) if record.is_final else render_detailed(record, now)
            await self._tell(self._follower.own, STATUS, status)

    def _shows_progress(self, record: TaskRecord, followed: Followed) -> bool:
        """Whether a status is to be sent for its progress now. If it is too early, the task is looked at again."""
        if record.is_final or record.progress in (None, followed.shown):
            return False
        loop = asyncio.get_running_loop()
        early = followed.next_status - loop.time()
        if early > 0 and followed.later is None:
            followed.later = loop.call_later(early, self._look_again, record.id, followed, context=Context())
        return early <= 0

    def _look_again(self, task_id: str, followed: Followed) -> None:
        followed.later = None
        self._inbox.put(Hint(task_id, followed.seen + 1))

    async def _tell_progress(self, record: TaskRecord, followed: Followed) -> None:
        progress = record.progress
        if followed.token is None or progress is None:
            return
        # 2025-11-25, "Progress": the value MUST increase with each notification. A run that was started again begins
        # anew, and is told of where it gets further than the one before.
        if followed.progress is not None and progress.progress <= followed.progress:
            return
        carrier = self._progress_carrier(record.id)
        if carrier is not None:
            followed.progress = progress.progress
            await self._tell(carrier, PROGRESS, _progress_params(record.id, followed.token, progress))

    def _progress_carrier(self, task_id: str) -> Carrier | None:
        results = [result.carrier for result in self._audience.results_of(self._follower, task_id)]
        own = self._follower.own
        return next((each for each in (*results, own) if each is not None and each.is_open), None)

    async def _tell(self, carrier: Carrier | None, method: str, params: dict[str, Any]) -> None:
        if carrier is not None:
            await carrier.tell(method, params)


def _progress_params(task_id: str, token: str | int, progress: Progress) -> dict[str, Any]:
    params: dict[str, Any] = {"progressToken": token, "progress": progress.progress, "_meta": related_task(task_id)}
    if progress.total is not None:
        params["total"] = progress.total
    if progress.message is not None:
        params["message"] = valid_text(progress.message)
    return params


# ---- notices
# What the tool of a task sends to its client beside progress and questions: log entries, changes of lists, and more.


MAX_KEPT: Final = 100
"""Notifications of one task that wait to be sent to one session."""

MAX_KEPT_BYTES: Final = 256 * 1024
"""About how large they may be together."""

_OF_THE_SERVER: Final = ("/list_changed", "resources/updated")
"""How the methods end that are not about the task, whoever sends them."""


@dataclass(eq=False, frozen=True, slots=True)
class _Notice:
    method: str
    params: dict[str, Any] | None
    related: bool
    size: int


class Notices:
    """What one task sends to one session."""

    def __init__(self, task_id: str, holder: Holder, audience: Audience, calls: OpenCalls) -> None:
        self._task_id = task_id
        self._holder = holder
        self._audience = audience
        self._calls = calls
        self._kept: deque[_Notice] = deque()
        self._size = 0
        self._lost = 0
        self._is_known = False
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        calls.listen(task_id, self)

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Send it, now or as soon as that can be done. Waits for a client that is slow, though not for long."""
        with anyio.move_on_after(PATIENCE):
            while self._is_full and self._is_sending:
                self._sent.clear()
                await self._sent.wait()
        own = None if params is None else dict(params)
        self._keep(_Notice(method, own, related, rough_size(own)))
        self.send()

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client, if it has a stream open."""
        carrier = next(self._open_carriers(related=True), None)
        if carrier is None:
            return False
        try:
            await carrier.request("ping", {"_meta": related_task(self._task_id)}, timeout)
        except StreamLost:
            return False
        return True

    def known(self) -> None:
        """The client knows the task from now on."""
        self._is_known = True
        self.send()

    def send(self) -> None:
        """Send what is kept, if there is a stream for it."""
        if self._is_known and self._sending is None and self._next() is not None:
            # Not in the context of the tool: the SDK hands a sender's context on, and what starts in it is the tool's.
            self._sending = asyncio.get_running_loop().create_task(self._send(), context=Context())
            self._sending.add_done_callback(self._done)

    async def flush(self) -> None:
        """Return when what can be sent has been, or the client is too slow."""
        self.known()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=PATIENCE)

    def close(self) -> None:
        """The task has ended, or its session has. What is on its way is still sent."""
        self._calls.ignore(self._task_id, self)
        if self._sending is None:
            self._report()

    @property
    def _is_sending(self) -> bool:
        return self._sending is not None

    @property
    def _is_full(self) -> bool:
        return len(self._kept) >= MAX_KEPT or self._size >= MAX_KEPT_BYTES

    def _keep(self, notice: _Notice) -> None:
        self._kept.append(notice)
        self._size += notice.size
        while len(self._kept) > MAX_KEPT or (self._size > MAX_KEPT_BYTES and len(self._kept) > 1):
            self._size -= self._kept.popleft().size
            self._lost += 1

    def _open_carriers(self, *, related: bool) -> Iterator[Carrier]:
        results = self._audience.results_of(self._holder, self._task_id) if related else ()
        for carrier in (*(result.carrier for result in results), self._holder.own):
            if carrier is not None and carrier.is_open:
                yield carrier

    def _next(self) -> tuple[_Notice, Carrier] | None:
        """The first that there is a stream for."""
        for notice in self._kept:
            for carrier in self._open_carriers(related=notice.related):
                return notice, carrier
        return None

    async def _send(self) -> None:
        while (found := self._next()) is not None:
            notice, carrier = found
            self._kept.remove(notice)
            self._size -= notice.size
            try:
                async with asyncio.timeout(PATIENCE):
                    await carrier.tell(notice.method, self._params(notice))
            except Exception as exc:
                # The client does not read, or its stream has gone: it is not tried again for each of them.
                logger.debug("%s of task %s… was not sent: %s", notice.method, self._task_id[:12], what(exc))
                self._lost += 1 + len(self._kept)
                self._kept.clear()
                self._size = 0
            self._sent.set()

    def _params(self, notice: _Notice) -> dict[str, Any] | None:
        if notice.method.endswith(_OF_THE_SERVER):
            return notice.params
        params = notice.params or {}
        return {**params, "_meta": {**(params.get("_meta") or {}), **related_task(self._task_id)}}

    def _done(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        self._sent.set()
        if not self._calls.hears(self._task_id, self):
            self._report()
        else:
            # Something may have come after its last look.
            self.send()

    def _report(self) -> None:
        """Say once what a client that had no stream open, or did not read, has missed."""
        lost, self._lost = self._lost + len(self._kept), 0
        self._kept.clear()
        if lost:
            logger.info(
                "task %s…: its client missed %d notifications of its tool, as it had no stream open or did not read",
                *(self._task_id[:12], lost),
            )


_Key: TypeAlias = str | int
"""What tells connections apart: the HTTP session, or which object the handshake is."""

HEAD_START: Final = 0.2
"""Seconds that the answer to a request has before its session is told of the task that it is about. Over HTTP they are
on two streams, and nothing orders those: ext-tasks refuses a question about a task that it does not know yet."""

ANSWER_LIMIT: Final = 5.0
"""Seconds to wait until that answer has been sent: a client may read as slowly as it likes."""

MAX_BEFORE_HANDSHAKE: Final = 100
"""Tasks that are followed for a client that has not said that its handshake is complete. It may never say so."""


@dataclass(slots=True)
class _Adopted:
    """A task that a session took in, as which of them, and until when it is there if that is known."""

    number: int
    until: datetime | None


class Session:
    """One client's connection.

    Attributes:
        id: What its tasks have as their session.
        own: Its own stream; None before its handshake is complete.
        resumed: The streams that its client has taken up again, as far as is known.
        asked: Which questions it was sent over Streamable HTTP.
        followed: The tasks that it is told of: those that it has and that have not ended.
    """

    def __init__(self, audience: Audience, calls: OpenCalls) -> None:
        self.id: str = secrets.token_urlsafe(16)
        self.own: Carrier | None = None
        self.resumed: Sequence[Carrier] = ()
        self.asked: AskedTasks = AskedTasks()
        self._audience = audience
        self._calls = calls
        self._notices: dict[str, Notices] = {}
        self._followed: dict[str, Followed] = {}
        self._adopted: dict[str, _Adopted] = {}
        self._adoptions = 0
        self._listening: tuple[TaskRuntime, Inbox] | None = None
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def followed(self) -> Mapping[str, Followed]:
        """The tasks that it is told of, with what it has been told."""
        return self._followed

    def expect(self, task_id: str) -> None:
        """A task of this id is about to be made here, and what its tool says from the first is for this client."""
        if task_id not in self._notices and not self._is_closed:
            self._notices[task_id] = Notices(task_id, self, self._audience, self._calls)

    def give_up(self, task_id: str) -> None:
        """That task was not made, or has ended."""
        if (notices := self._notices.pop(task_id, None)) is not None:
            notices.close()

    def send_notices(self, task_id: str, *, known: bool = False) -> None:
        """Send what the tool of a task has said, if a stream is there: one that just opened, or now that the client is
        `known` to have the id of the task."""
        if (notices := self._notices.get(task_id)) is not None:
            notices.known() if known else notices.send()

    def has_notices(self, task_id: str) -> bool:
        """Whether the tool of a task may have said what the client has not been sent."""
        return task_id in self._notices

    async def flush(self, task_id: str) -> None:
        """The client, which knows the task, is about to be told of its end: first, what its tool has said."""
        if (notices := self._notices.get(task_id)) is not None:
            await notices.flush()

    def follow(
        self, record: TaskRecord, progress_token: str | int | None = None, *, after: Exchange | None = None
    ) -> None:
        """Tell the client what happens to a task that it has just made.

        Last of all before the call is answered, so that the client does not hear of the task before it knows it.
        """
        # What the call is answered with, whatever the task is by now.
        self._follow(record, Followed(told=TaskStatus.WORKING, token=progress_token), after)

    def adopt(self, record: TaskRecord, *, after: Exchange | None = None) -> None:
        """Take in a task whose id the client presented, and tell it what happens to it. Does nothing if it has it."""
        if record.session != self.id and record.id not in self._adopted:
            self._adoptions += 1
            self._adopted[record.id] = _Adopted(self._adoptions, expires_at(record))
        # Also one of its own that it did not make by a call: a child of one of its tasks.
        if not record.is_final and record.id not in self._followed:
            self._follow(record, Followed(told=record.status), after)

    def adopted(self, after: int = 0) -> Sequence[tuple[int, str]]:
        """The tasks that were taken in after the one with this number and are still there, with their numbers.

        The numbers grow, and none is given twice, so each is a place in the list even when its task is gone.

        Raises:
            ValueError: No task had that number.
        """
        if not 0 <= after <= self._adoptions:
            raise ValueError(f"no task was taken in as number {after}")
        if self._listening is not None:
            now = self._listening[0].now()
            gone = [task_id for task_id, task in self._adopted.items() if task.until is not None and task.until <= now]
            for task_id in gone:
                del self._adopted[task_id]
        return [(task.number, task_id) for task_id, task in self._adopted.items() if task.number > after]

    def ended(self, task_id: str, record: TaskRecord | None) -> None:
        """A task has ended, or is gone: there is no more to tell of it."""
        self._unfollow(task_id)
        if self._listening is not None:
            runtime, inbox = self._listening
            runtime.hints.remove(inbox, task_id)
        if record is None:
            self._adopted.pop(task_id, None)
        elif task_id in self._adopted:
            self._adopted[task_id].until = expires_at(record)

    def listen(self, runtime: TaskRuntime, inbox: Inbox) -> None:
        """Have the hints of its tasks put into an inbox from now on."""
        self._listening = (runtime, inbox)
        for task_id in self._followed:
            if task_id not in self._starting:
                self._look_at(task_id)

    def doubt_own(self) -> None:
        """What was sent on its own stream, of which nobody tells whether it is open, may not have arrived."""
        if self.own is not None:
            self.own.is_open = False
            self.own = self.own.renewed()

    def close(self) -> None:
        """The connection is gone, and nobody is told of anything any more."""
        self._is_closed, self._listening = True, None
        for task_id in list(self._followed):
            self.ended(task_id, None)
        for task_id in list(self._notices):
            self.give_up(task_id)

    def _follow(self, record: TaskRecord, followed: Followed, after: Exchange | None) -> None:
        if self._is_closed:
            # Its connection was lost while the task was being made. Nothing would ever let go of it.
            return
        if self._listening is None and len(self._followed) >= MAX_BEFORE_HANDSHAKE:
            # Nothing tells of their ends yet.
            self._unfollow(next(iter(self._followed)))
        self._followed[record.id] = followed
        self._audience.join(record.id, self)
        self.expect(record.id)
        looking = self._look_after(record.id, after)
        self._starting[record.id] = asyncio.create_task(looking, name="mcp-tasks-head-start")

    def _unfollow(self, task_id: str) -> None:
        followed = self._followed.pop(task_id, None)
        if followed is not None and followed.later is not None:
            # Of an old task it may be hours away, and has hold of the session.
            followed.later.cancel()
        self.give_up(task_id)
        self._audience.leave(task_id, self)

    async def _look_after(self, task_id: str, exchange: Exchange | None) -> None:
        if exchange is not None:
            with anyio.move_on_after(ANSWER_LIMIT):
                await exchange.over.wait()
        await asyncio.sleep(HEAD_START)
        self._starting.pop(task_id, None)
        self.send_notices(task_id, known=True)
        self._look_at(task_id)

    def _look_at(self, task_id: str) -> None:
        """Have the task looked at: it may have changed before it was listened to."""
        followed = self._followed.get(task_id)
        if self._listening is not None and followed is not None:
            runtime, inbox = self._listening
            runtime.hints.add(inbox, task_id)
            inbox.put(Hint(task_id, followed.seen + 1))


class Sessions:
    """The sessions of one server.

    Attributes:
        audience: Who has which task.
        questions: What tasks ask, on its way.
    """

    def __init__(self, parts: EraParts) -> None:
        self.audience: Audience = Audience()
        self.questions: OpenQuestions = OpenQuestions(parts.runtime, self.audience)
        self._parts = parts
        self._streams = Streams(self, parts.protocol.stream_ends)
        self._sessions: dict[_Key, Session] = {}

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts."""
        self._streams.watch(server)

    def of(self, ctx: RequestContext) -> Session | None:
        """The session of a message; None where there are none."""
        params = ctx.session.client_params
        if params is None:
            return None
        key = _key(ctx)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(self.audience, self._parts.open_calls)
            # Of a client that never says that its handshake is complete, only this tells that it is gone.
            loop = asyncio.get_running_loop()
            weakref.finalize(params, self._forget, key, session.id, loop).atexit = False
        return session

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> None:
        """Serve `notifications/initialized`: returns when the connection ends, with which the SDK cancels this."""
        await call_next(ctx)
        session = self.of(ctx)
        if session is None or session.own is not None:
            # A client may say it twice.
            return
        key = _key(ctx)
        session.own = Carrier(ctx.session)
        # Where nobody watches streams there is no telling, and what is not sent does not arrive for sure.
        session.own.is_open = is_pipe(ctx) or not isinstance(key, str) or self._streams.is_open(key)
        try:
            await self._tell(session)
        finally:
            self._end(session, key)

    def stream_opened(self, http_session: str, *, resumed: bool) -> None:
        """A session has a stream of its own from now on."""
        session = self._sessions.get(http_session)
        if session is None or session.own is None:
            # Whether it is open is asked when the session begins.
            return
        if resumed:
            self._resume(session, session.own)
        else:
            session.own = session.own.renewed()
        self._send_questions(session)

    def _resume(self, session: Session, own: Carrier) -> None:
        """A client takes a stream up where it was cut off; what is sent on one that it does not is kept for it.

        Which one, only the SDK knows: that of a `tasks/result`, as long as one of those was cut off.
        """
        results = [result.carrier for each in session.followed for result in self.audience.results_of(session, each)]
        session.resumed = [carrier for carrier in results if not carrier.is_open] or [own]
        for carrier in session.resumed:
            carrier.is_open = True

    def asked(self, http_session: str) -> AskedTasks | None:
        """Which questions a session was sent."""
        session = self._sessions.get(http_session)
        return None if session is None else session.asked

    def stream_closed(self, http_session: str) -> None:
        """A session has no stream of its own any more."""
        session = self._sessions.get(http_session)
        if session is not None and session.own is not None:
            for carrier in (session.own, *session.resumed):
                carrier.is_open = False
            session.resumed = ()
            self._send_questions(session)

    def _send_questions(self, session: Session) -> None:
        for task_id in list(session.followed):
            self.questions.send(task_id)
            session.send_notices(task_id)

    async def _tell(self, session: Session) -> None:
        runtime = self._parts.runtime()
        with runtime.hints.listen(()) as inbox:
            session.listen(runtime, inbox)
            await Pushes(session, runtime, audience=self.audience, questions=self.questions, inbox=inbox).keep_telling()

    def _end(self, session: Session, key: _Key) -> None:
        if self._sessions.get(key) is session:
            del self._sessions[key]
        task_ids = list(session.followed)
        session.close()
        self.questions.lose(session.own, task_ids)

    def _forget(self, key: _Key, session_id: str, loop: asyncio.AbstractEventLoop) -> None:
        """A handshake is gone. Called by the garbage collector, from whichever thread it runs in."""
        session = self._sessions.get(key)
        if session is None or session.id != session_id:
            return
        if isinstance(key, int) or session.own is None:
            # At once: the next handshake may be an object in the same place.
            del self._sessions[key]
        if session.own is None:
            # Unless the loop is closed, and everything with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, session, key)


def _key(ctx: RequestContext) -> _Key:
    return http_session_of(ctx) or id(ctx.session.client_params)


# ---- owned sessions
# Only the owner of an HTTP session uses it, and an owner has only so many of them.


AFTER_IDLE: Final = 1.0
"""Seconds for which a session is kept here after the SDK has ended it for not being used. The SDK must be first: what
is not known here is not let through."""

_SESSION_HEADER: Final = MCP_SESSION_ID_HEADER.encode()


class OwnedSessions:
    """The HTTP sessions of one `Tasks` object.

    Args:
        protocol: Says whose tasks a caller's are, and how many sessions an owner may have.
    """

    def __init__(self, protocol: TasksProtocol) -> None:
        self._protocol = protocol
        self._managers: WeakSet[StreamableHTTPSessionManager] = WeakSet()

    def put_before(self, server: MCPServer[Any] | Server[Any]) -> None:
        """Stand before the SDK's app of a server that starts, if it serves Streamable HTTP; once, however often."""
        try:
            manager = server.session_manager
        except RuntimeError:
            # It has none: it serves something else.
            return
        if manager not in self._managers:
            self._managers.add(manager)
            # Any ASGI app does; the SDK only says so less generally than it means it.
            manager.asgi_app = cast(Any, _OwnersApp(cast(ASGIApp, manager.asgi_app), manager, self._protocol))


class _Session:
    """One session.

    Attributes:
        in_flight: Requests that are being served, the open GET included.
        used: When the last of them ended.
    """

    __slots__ = ("close", "in_flight", "owner", "used")

    def __init__(self, owner: str | None, close: Callable[[], None]) -> None:
        self.owner = owner
        self.close = close
        self.in_flight = 0
        self.used = 0.0


class _OwnersApp:
    """The SDK's ASGI app, where every session has its owner."""

    def __init__(self, app: ASGIApp, manager: StreamableHTTPSessionManager, protocol: TasksProtocol) -> None:
        self._app = app
        self._manager = manager
        self._protocol = protocol
        self._sessions: dict[str, _Session] = {}
        self._swept = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        # There are no sessions in newer versions.
        has_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if scope["type"] != "http" or not has_sessions or self._manager.stateless:
            await self._app(scope, receive, send)
            return
        session_id, owner = headers.get(MCP_SESSION_ID_HEADER), self._owner(headers)
        if session_id is None:
            await self._open(owner, scope, receive, send)
            return
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            await self._app(_without_session(scope), receive, send)
        else:
            await self._use(session_id, session, scope, receive, send)

    def _owner(self, headers: Headers) -> str | None:
        # A GET says nothing of its client, so that is left out on every method; and so is which version it speaks,
        # which the first request does not say.
        principal, identity = authenticated()
        caller = Caller(protocol_version=VERSION, principal=principal, identity=identity, headers=headers)
        return self._protocol.known_owner(caller)

    async def _open(self, owner: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may open a session."""
        self._sweep()
        try:
            close = self._protocol.limiting.open_session(owner)
        except LimitExceeded as exc:
            await _refusal(exc)(scope, receive, send)
            return
        session = _Session(owner, close)
        opened: str | None = None

        async def watched(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                opened = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                if opened is not None:
                    # Before it is said: the next request may come at once.
                    self._sessions[opened] = session
            await send(message)

        session.in_flight += 1
        is_answered = False
        try:
            await self._app(scope, receive, watched)
            is_answered = True
        finally:
            session.in_flight -= 1
            session.used = time.monotonic()
            if opened is None:
                close()
            elif not is_answered:
                # The SDK ends a session whose first request was cut off.
                self._forget(opened)

    async def _use(self, session_id: str, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        statuses: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        session.in_flight += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            session.in_flight -= 1
            session.used = time.monotonic()
            is_deleted = scope["method"] == "DELETE" and any(200 <= status < 300 for status in statuses)
            if is_deleted or 404 in statuses:
                self._forget(session_id)

    def _sweep(self) -> None:
        """Forget the sessions that the SDK has ended because nobody used them."""
        now, idle = time.monotonic(), self._manager.session_idle_timeout
        if idle is None or now < self._swept + 1:
            return
        self._swept = now
        over = now - idle - AFTER_IDLE
        for session_id in [each for each, it in self._sessions.items() if not it.in_flight and it.used < over]:
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()


def _without_session(scope: Scope) -> Scope:
    """The request with the id of a session that there is not."""
    unknown = uuid.uuid4().hex.encode()
    return {
        **scope,
        "headers": [(name, unknown if name.lower() == _SESSION_HEADER else value) for name, value in scope["headers"]],
    }


def _refusal(exc: LimitExceeded) -> JSONResponse:
    error = to_error_data(exc)
    told = error.model_dump(mode="json", by_alias=True, exclude_none=True)
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": told}, status_code=429)
