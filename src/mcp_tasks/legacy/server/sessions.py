"""The sessions of clients: which tasks each has, and its own stream.

A session scopes listings and is told of its tasks. It owns nothing: an id that is presented in another session brings
the task into that one as well. Its name here is random and ours; the one that HTTP clients present is a secret, and
nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import anyio
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.adapters.exchange import Exchange, http_session_of, is_pipe
from mcp_tasks.core.pacing import expires_at
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.legacy.server.asking import OpenQuestions
from mcp_tasks.legacy.server.audience import Audience
from mcp_tasks.legacy.server.cancels import AskedTasks
from mcp_tasks.legacy.server.carriers import Carrier
from mcp_tasks.legacy.server.notices import Notices
from mcp_tasks.legacy.server.pushing import Followed, Pushes
from mcp_tasks.legacy.server.streams import Streams
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.hints import Inbox
from mcp_tasks.tools.open_calls import OpenCalls

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
