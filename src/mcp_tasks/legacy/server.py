"""Tasks of 2025-11-25 on a server: one runtime with the newest era, other words on the wire.

Here the caller decides what becomes a task (`params.task`), a result is fetched with `tasks/result`, tasks can be
listed, and what a tool asks goes to the client as a request.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias, cast, get_args

import anyio
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_types import methods as mcp_methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from mcp_tasks.errors import StoreError, TasksError, TaskUnreadable, UnknownTask, UsageError
from mcp_tasks.legacy.client_tasks import (
    ClientTask,
    ClientTasksUnsupported,
    ClientTaskTimedOut,
    client_task,
    elicit_as_task,
    list_client_tasks,
    sample_as_task,
)
from mcp_tasks.legacy.sessions import (
    OwnedSessions,
    Session,
    Sessions,
    related,
    render_cancelled,
    render_created,
    render_detailed,
    render_error,
    render_interrupted,
    render_result,
    render_task,
    status_of,
)
from mcp_tasks.legacy.shapes import VERSION
from mcp_tasks.legacy.streams import Carrier, OpenResult
from mcp_tasks.model.json import JsonObject, is_large
from mcp_tasks.model.record import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.protocol.answers import ASKED_WITHIN, Action, send_input
from mcp_tasks.protocol.dialect import decoded, outcome_to_send
from mcp_tasks.protocol.errors import RpcError, discreet, refusing
from mcp_tasks.protocol.listen import expiry
from mcp_tasks.protocol.methods import CANCELLED_BY_CLIENT, actor_of
from mcp_tasks.protocol.owners import take_key
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.server.catalog import Served
from mcp_tasks.server.creation import ANNOUNCE_AFTER
from mcp_tasks.server.sdk import (
    EraParts,
    Exchange,
    RequestContext,
    caller_of,
    exchange_of,
    is_pipe,
    request_meta,
    request_of,
    with_parts,
)
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.stores.base import InSession, OwnedBy

__all__ = [
    "ClientTask",
    "ClientTaskTimedOut",
    "ClientTasksUnsupported",
    "client_task",
    "elicit_as_task",
    "list_client_tasks",
    "sample_as_task",
]

# ---- listing
# `tasks/list`: which tasks a caller has, a page at a time.


PAGE_SIZE: Final = 50
"""Tasks on a page: some kilobytes, and enough that few callers need a second one."""

_STORED, _ADOPTED = "s", "a"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """Some tasks, and where the next ones start (None when there are no more)."""

    records: Sequence[TaskRecord]
    cursor: str | None


async def tasks_of_owner(runtime: TaskRuntime, owner: str, cursor: str | None) -> TaskPage:
    """A page of all that an owner has.

    Raises:
        RpcError: -32602, the cursor is not one of ours. So it is for the other listing.
    """
    kind, place = _opened(cursor)
    if kind != _STORED:
        raise _bad_cursor()
    return await _stored(runtime, OwnedBy(owner), None if cursor is None else place, owner)


async def tasks_in_session(runtime: TaskRuntime, session: Session, cursor: str | None) -> TaskPage:
    """A page of what a session without a name has: its own tasks, and then those that it adopted, in that order."""
    kind, place = _opened(cursor)
    if kind == _ADOPTED:
        return await _adopted(runtime, session, place, [])
    page = await _stored(runtime, InSession(session.id), None if cursor is None else place, None)
    # The last page of its own has room for what it adopted.
    return page if page.cursor is not None else await _adopted(runtime, session, None, page.records)


async def _stored(runtime: TaskRuntime, whose: OwnedBy | InSession, place: str | None, owner: str | None) -> TaskPage:
    try:
        page = await runtime.list(whose, cursor=place, limit=PAGE_SIZE)
    except ValueError as exc:
        raise _bad_cursor() from exc
    # Of a task that is not announced nobody has been told yet, and perhaps nobody will be.
    records = [record for record in page.records if record.announced and record.owner == owner]
    return TaskPage(records=records, cursor=None if page.cursor is None else _sealed(_STORED, page.cursor))


async def _adopted(runtime: TaskRuntime, session: Session, place: str | None, before: Sequence[TaskRecord]) -> TaskPage:
    records = list(before)
    try:
        last = 0 if place is None else int(place)
        adopted = session.adopted(last)
    except ValueError as exc:
        raise _bad_cursor() from exc
    for number, task_id in adopted:
        if len(records) >= PAGE_SIZE:
            return TaskPage(records=records, cursor=_sealed(_ADOPTED, str(last)))
        last = number
        try:
            records.append(await runtime.get(task_id, owner=None))
        except (UnknownTask, TaskUnreadable):
            # Gone by now, or not to be read: left out, as from any listing.
            continue
    return TaskPage(records=records, cursor=None)


def _sealed(kind: str, place: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}{place}".encode()).decode()


def _opened(cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        return _STORED, ""
    try:
        opened = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as exc:
        raise _bad_cursor() from exc
    if opened[:1] not in (_STORED, _ADOPTED):
        raise _bad_cursor()
    return opened[0], opened[1:]


def _bad_cursor() -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid cursor: give the nextCursor of an earlier page, or none to start over")


# ---- relay
# `tasks/result` of a task that has not ended: it waits, and what the task asks meanwhile goes out on its stream.


logger: Final = get_logger(__name__)

STOPPING: Final = "server_stopping"
LEFT: Final = "client_left"
EXPIRED: Final = "token_expired"

_WORDS: Final[Mapping[str, str]] = {
    STOPPING: "The server is stopping. The task goes on: ask for its result again, in a new session if need be",
    LEFT: "The client left before the task ended",
    EXPIRED: "The access token of this request has expired. The task goes on: ask again with a new one",
}
"""Why a request ends before its task: `data.reason`, and what it says."""


class Relay:
    """Lets `tasks/result` wait for the end of a task."""

    def __init__(self, parts: EraParts, sessions: Sessions) -> None:
        self._parts = parts
        self._audience = sessions.audience
        self._questions = sessions.questions

    async def until_final(self, ctx: RequestContext, record: TaskRecord, session: Session | None) -> TaskRecord:
        """The task once it has ended. Until then, what it asks goes out on the stream of this request if it can.

        Raises:
            UnknownTask: The task is gone.
            TaskUnreadable: It cannot be read.
            RpcError: -32802, the process has to exit, the client has left for good, or its token has expired.
        """
        if not ctx.session.can_send_request:
            # The answer will be all there is room for.
            return record if record.is_final else await self._wait(ctx, record, None)
        if record.is_final and (session is None or not session.has_notices(record.id)):
            return record
        carrier = Carrier(ctx.session, ctx.request_id)
        if not is_pipe(ctx) and exchange_of(ctx) is None:
            self._supersede(record.id, session)
        try:
            with self._audience.waiting(OpenResult(record.id, carrier, session)):
                if session is not None:
                    session.send_notices(record.id, known=True)
                seen = record if record.is_final else await self._wait(ctx, record, carrier)
                if session is not None:
                    # After its answer, a stream carries nothing more.
                    await session.flush(record.id)
                return seen
        finally:
            await self._questions.leave(carrier, record.id)

    def _supersede(self, task_id: str, session: Session | None) -> None:
        """A client asks again on a server where nobody tells whether it has hung up before: it has, for all we know."""
        if session is not None:
            for result in self._audience.results_of(session, task_id):
                result.carrier.is_open = False
            session.doubt_own()

    async def _wait(self, ctx: RequestContext, record: TaskRecord, carrier: Carrier | None) -> TaskRecord:
        exchange = exchange_of(ctx)
        found: TaskRecord | Exception | None = None
        async with anyio.create_task_group() as group:

            async def end_with(event: Callable[[], Awaitable[object]], reason: str) -> None:
                nonlocal found
                await event()
                if ctx.close_sse_stream is not None:
                    # The SDK gives this only where the client can take the stream up again.
                    await ctx.close_sse_stream()
                    return
                found = render_interrupted(record.id, reason, _WORDS[reason])
                group.cancel_scope.cancel()

            group.start_soon(end_with, self._parts.exiting, STOPPING)
            if exchange is not None and not exchange.can_resume:
                group.start_soon(end_with, partial(_until_left, exchange, carrier), LEFT)
            elif exchange is not None and carrier is not None:
                group.start_soon(self._cut_off, exchange.ended, carrier, record.id)
            expired = anyio.Event()
            group.start_soon(end_with, expired.wait, EXPIRED)
            # Not after `Limits.stream_life`. 2025-11-25: MUST block until the task reaches a terminal status.
            with self._ending_in(expiry(caller_of(ctx).identity), expired.set):
                found = await self._follow(self._parts.runtime(), record)
            group.cancel_scope.cancel()
        if isinstance(found, TaskRecord):
            return found
        raise UnknownTask(record.id) if found is None else found

    @contextmanager
    def _ending_in(self, second: int | None, end: Callable[[], None]) -> Generator[None]:
        """In here, `end` is called in that second."""
        ends = self._parts.protocol.stream_ends
        if second is None:
            yield
            return
        ends.add(second, end)
        try:
            yield
        finally:
            ends.leave(second, end)

    async def _cut_off(self, over: Callable[[], Awaitable[object]], carrier: Carrier, task_id: str) -> None:
        """The client has left and may come back: what it was asked stays asked, unless there is another way to it."""
        await over()
        carrier.is_open = False
        self._questions.send(task_id)

    async def _follow(self, runtime: TaskRuntime, record: TaskRecord) -> TaskRecord | Exception | None:
        """The task once it has ended; None if it is gone. Nothing is raised: out of a group it would come wrapped."""

        async def see(seen: TaskRecord) -> None:
            self._questions.look(seen)

        try:
            return await runtime.follow(record.id, lambda seen: seen.is_final, see=see, patient=True)
        except UnknownTask:
            return None
        except TaskUnreadable as exc:
            return exc


async def _until_left(exchange: Exchange, carrier: Carrier | None) -> None:
    """Return when the client has left, and nothing on its stream arrives any more."""
    await exchange.ended()
    if carrier is not None:
        carrier.is_open = False


# ---- parse
# What requests of 2025-11-25 say of tasks. What is malformed is refused with -32602, in words.


def parse_task_id(params: JsonObject) -> str:
    """The task that `tasks/get`, `tasks/result` or `tasks/cancel` names. Whatever `_meta` says is not looked at.

    Raises:
        RpcError: There is no id, or it is not a string.
    """
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
    return task_id


def parse_input(params: JsonObject) -> tuple[str | None, Mapping[str, Any]]:
    """The key of the question that `tasks/sendInput` answers, None for the only one; and the answer.

    Raises:
        RpcError: One of the params is not of its type.
    """
    action, content, key, response = (params.get(name) for name in ("action", "content", "key", "response"))
    if key is not None and not isinstance(key, str):
        raise RpcError(INVALID_PARAMS, "params.key must be a string: the key of a question")
    for name, given in (("content", content), ("response", response)):
        if given is not None and not isinstance(given, Mapping):
            raise RpcError(INVALID_PARAMS, f"params.{name} must be an object")
    if response is not None:
        return key, cast("Mapping[str, Any]", response)
    if action not in (None, *get_args(Action)):
        raise RpcError(INVALID_PARAMS, f"params.action must be one of {', '.join(get_args(Action))}")
    answer: dict[str, Any] = {"action": action or "accept"}
    return key, answer if content is None else {**answer, "content": content}


def parse_cursor(params: JsonObject) -> str | None:
    """Where `tasks/list` is to go on; None for the first page.

    Raises:
        RpcError: It is not a string.
    """
    cursor = params.get("cursor")
    if cursor is not None and not isinstance(cursor, str):
        raise RpcError(INVALID_PARAMS, "params.cursor must be a string: the nextCursor of an earlier page")
    return cursor


def parse_retention(task: Any, offer: Served) -> timedelta | None:
    """How long the task of a call is kept after its end, by its `params.task` and what the author allows.

    `ttl` is what the caller asks for: left out, as long as the author keeps such tasks; null, as long as is allowed.

    Raises:
        RpcError: `params.task` is not an object, or its `ttl` not a number of milliseconds.
    """
    check_task(task)
    wish = cast("Mapping[str, Any]", task)
    if "ttl" not in wish:
        return offer.retention
    return _capped(wish["ttl"], offer.max_retention)


def check_task(task: Any) -> None:
    """Refuse a malformed `params.task`.

    Raises:
        RpcError: It is not an object, or its `ttl` is not a number of milliseconds.
    """
    if not isinstance(task, Mapping):
        raise RpcError(INVALID_PARAMS, 'params.task must be an object, such as {"ttl": 60000}')
    ttl = cast("Mapping[str, Any]", task).get("ttl")
    # A bool is an int to Python, and no number of milliseconds.
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    # Not `isfinite`: it raises for a whole number that no float can hold, which is no more a duration than infinity.
    if ttl is not None and not (is_number and 0 <= ttl <= sys.float_info.max):
        raise RpcError(INVALID_PARAMS, "params.task.ttl must be a number of milliseconds, not negative, or null")


def _capped(ttl: float | None, longest: timedelta | None) -> timedelta | None:
    if ttl is None:
        return longest
    try:
        asked = timedelta(milliseconds=ttl)
    except OverflowError:
        # Longer than there are dates for.
        return longest
    return asked if longest is None else min(asked, longest)


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """The token under which a caller wants to hear of progress; None if it does not."""
    token = meta.get("progressToken")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


# ---- creation
# Calls that ask for a task with `params.task`: whether they get one, and what they are answered with.


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
                # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
                problem = None if offer.resolves else offer.problem_with(arguments)
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
        self, ctx: RequestContext, offer: Served, request: TaskRequest, owner: str | None, task: Any
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
        offer: Served,
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
                LaunchSpec(
                    request=asked,
                    owner=owner,
                    retention=parse_retention(task, offer),
                    poll_interval=offer.options.poll_interval,
                    session=None if session is None else session.id,
                    key=None if own is None else own.key,
                    fingerprint=None if own is None else own.fingerprint,
                    task_id=task_id,
                )
            )
            if offer.may_refuse(request.arguments):
                await self._refuse(record, offer, keep=own is not None)
        return record

    async def _refuse(self, record: TaskRecord, offer: Served, *, keep: bool) -> None:
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
            ended = await runtime.follow(record.id, _is_settled, timeout=ANNOUNCE_AFTER)
        except (StoreError, UnknownTask) as exc:
            # The task is kept and may be running; to answer with an error now would have the client start it twice.
            logger.warning("task %s… is not waited for any longer: %s", record.id[:12], exc)
            return
        told = None if ended is None or not ended.is_error else ended.status_message
        if ended is not None and told is not None and offer.is_refusal(record.name, told):
            if not keep:
                await runtime.discard(ended)
            raise RpcError(INVALID_PARAMS, told)


def _is_settled(task: TaskRecord) -> bool:
    return task.status is not TaskStatus.WORKING


# ---- methods
# `tasks/get`, `tasks/result`, `tasks/list` and `tasks/cancel` as 2025-11-25 has them.


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


# ---- era
# `LegacyEra`: what a server of the SDK says and answers to clients of 2025-11-25.


_Handler: TypeAlias = Callable[[RequestContext, CallNext], Awaitable[HandlerResult]]

_REQUESTS: Mapping[str, tuple[str, str]] = {
    "tools/call": ("tools", "call"),
    "prompts/get": ("prompts", "get"),
    "resources/read": ("resources", "read"),
}
"""How `capabilities.tasks.requests` names the methods."""


class LegacyEra:
    """Tasks of 2025-11-25 on one server."""

    versions: frozenset[str] = frozenset({VERSION})

    def __init__(self, parts: EraParts) -> None:
        self._parts = parts
        self._sessions = Sessions(parts)
        self._owned_sessions = OwnedSessions(parts.protocol)
        self._creation = Creation(parts, self._sessions)
        self._is_stateless = False
        methods = Methods(parts, self._sessions, Relay(parts, self._sessions))
        self._handlers: Mapping[str, _Handler] = {
            "tools/list": self._list_tools,
            "tasks/get": _answering(methods.get),
            "tasks/result": _answering(methods.result),
            "tasks/list": _answering(methods.list),
            "tasks/cancel": _answering(methods.cancel),
            "notifications/initialized": self._sessions.serve,
            **({"tasks/sendInput": _answering(methods.send_input)} if parts.send_input else {}),
        }

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts: see how it is served."""
        self._is_stateless = _is_stateless(server)
        self._sessions.start(server)
        self._owned_sessions.put_before(server)

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Declare `capabilities.tasks`."""
        requests: dict[str, dict[str, Any]] = {}
        for method in sorted(self._parts.offers.methods() & _REQUESTS.keys()):
            group, verb = _REQUESTS[method]
            requests.setdefault(group, {})[verb] = {}
        tasks: dict[str, Any] = {"cancel": {}, "requests": requests}
        if self._can_list(ctx):
            tasks["list"] = {}
        result["capabilities"] = {**result.get("capabilities", {}), "tasks": tasks}

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message: what has nothing to do with tasks goes on as it is."""
        if ctx.method in _REQUESTS:
            task = None if ctx.params is None else ctx.params.get("task")
            # A plain call of a tool, first: it is what is called most, and whether it must be a task the server says by
            # itself, to every era.
            if (task is None and ctx.method == "tools/call") or not _is_open(ctx):
                return await call_next(ctx)
            with _answered():
                if task is not None:
                    return await self._creation.answer(task, ctx, call_next)
                await self._creation.check_plain(ctx)
            return await call_next(ctx)
        handler = self._handlers.get(ctx.method)
        return await (call_next(ctx) if handler is None else handler(ctx, call_next))

    async def _list_tools(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """`tools/list`, with whether each tool may be called as a task."""
        result = await call_next(ctx)
        if isinstance(result, dict):
            for tool in cast("list[dict[str, Any]]", result.get("tools", [])):
                await self._describe(tool)
        return result

    async def _describe(self, tool: dict[str, Any]) -> None:
        offer = await self._parts.offers.find("tools/call", tool["name"])
        support = "forbidden" if offer is None else offer.support
        # Left out, it means forbidden. What a server's own listing says of it holds only where it is true.
        if support != "forbidden" or "taskSupport" in tool.get("execution", {}):
            tool["execution"] = {**tool.get("execution", {}), "taskSupport": support}

    def _can_list(self, ctx: RequestContext) -> bool:
        """Whether there is anything by which a caller's tasks can be told from those of others."""
        # A server over a session manager of the author's own cannot be asked how it is served. There, a handshake that
        # begins with a guess other than the newest version came without a session.
        is_stateless = self._is_stateless or ctx.protocol_version != LATEST_HANDSHAKE_VERSION
        return ctx.request is None or not is_stateless or self._parts.protocol.has_owner(caller_of(ctx))


def _is_open(ctx: RequestContext) -> bool:
    """Whether the caller may ask for anything yet: after its handshake, or without one where there are no sessions.

    A connection that can be spoken to is one that has a handshake. What comes before it is for the SDK to refuse.
    """
    return ctx.session.client_params is not None or not ctx.session.can_send_request


def _is_stateless(server: MCPServer[Any] | Server[Any]) -> bool:
    try:
        return server.session_manager.stateless
    except RuntimeError:
        # Not served over Streamable HTTP, or not by an app of its own.
        return False


def _answering(method: Callable[[RequestContext], Awaitable[dict[str, Any]]]) -> _Handler:
    async def handler(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if not _is_open(ctx):
            return await call_next(ctx)
        with _answered(), discreet(ctx.method):
            return await method(ctx)

    return handler


@contextmanager
def _answered() -> Generator[None]:
    """In here, a refusal of ours is raised as the SDK knows it."""
    try:
        yield
    except (RpcError, TasksError) as exc:
        raise to_mcp_error(exc) from exc
