"""Tasks of 2025-11-25 on a server: the same runtime as for the newest version, in other messages.

Here the caller decides which calls become tasks (`params.task`), a result is fetched with `tasks/result`, tasks can be
listed, and the questions of a tool are sent to the client as requests.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
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
    Session,
    Sessions,
    render_cancelled,
    render_created,
    render_detailed,
    render_error,
    render_result,
    render_task,
    status_of,
)
from mcp_tasks.legacy.shapes import RESULT_INTERRUPTED, VERSION, related_data
from mcp_tasks.legacy.streams import SessionStream
from mcp_tasks.model.json import JsonObject, is_large
from mcp_tasks.model.record import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.protocol.answers import ASKED_WITHIN, Action, send_input
from mcp_tasks.protocol.errors import RpcError, discreet, refusing
from mcp_tasks.protocol.listen import expiry
from mcp_tasks.protocol.methods import CANCELLED_BY_CLIENT, actor_of
from mcp_tasks.protocol.outcomes import decoded, outcome_to_send
from mcp_tasks.protocol.owners import take_key
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.server.catalog import Served
from mcp_tasks.server.creation import ANNOUNCE_AFTER
from mcp_tasks.server.sdk import (
    EraParts,
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

logger: Final = get_logger(__name__)

# ---- params
# Malformed params are refused with -32602, and an explanation.


def parse_task_id(params: JsonObject) -> str:
    """The task that a request names. Only the param counts, and not `_meta`."""
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
    return task_id


def parse_input(params: JsonObject) -> tuple[str | None, Mapping[str, Any]]:
    """The key of the question that `tasks/sendInput` answers, or None for the only one; and the answer."""
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


def check_task(task: Any) -> None:
    """Refuse a malformed `params.task`."""
    if not isinstance(task, Mapping):
        raise RpcError(INVALID_PARAMS, 'params.task must be an object, such as {"ttl": 60000}')
    ttl = cast("Mapping[str, Any]", task).get("ttl")
    # A bool is an int to Python.
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    # Not `isfinite`: it raises for a whole number that is larger than any float.
    if ttl is not None and not (is_number and 0 <= ttl <= sys.float_info.max):
        raise RpcError(INVALID_PARAMS, "params.task.ttl must be a number of milliseconds, not negative, or null")


def retention_of(task: Mapping[str, Any], offer: Served) -> timedelta | None:
    """How long the task of a call is kept after its end.

    Without a `ttl`, as long as the author keeps such tasks; with null, as long as is allowed.
    """
    if "ttl" not in task:
        return offer.retention
    longest = offer.max_retention
    try:
        asked = longest if task["ttl"] is None else timedelta(milliseconds=task["ttl"])
    except OverflowError:
        # Longer than there are dates.
        return longest
    return asked if longest is None or asked is None else min(asked, longest)


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """The token of progress notifications, if the caller wants them."""
    token = meta.get("progressToken")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


# ---- tasks/list


PAGE_SIZE: Final = 50
"""Tasks on a page: some kilobytes, and enough that few callers need a second one."""

_STORED, _ADOPTED = "s", "a"

_BAD_CURSOR: Final = "Invalid cursor: give the nextCursor of an earlier page, or none to start over"


async def list_tasks(
    runtime: TaskRuntime, owner: str | None, session: Session | None, cursor: object
) -> tuple[list[TaskRecord], str | None]:
    """A page of an owner's tasks, or without one of a session's: its own, then those that it adopted; and the cursor of
    the next page."""
    kind, place = _opened(cursor)
    if kind == _ADOPTED:
        if owner is not None or session is None:
            raise RpcError(INVALID_PARAMS, _BAD_CURSOR)
        return await _adopted(runtime, session, place, [])
    scope = InSession(session.id) if owner is None and session is not None else OwnedBy(owner or "")
    try:
        page = await runtime.list(scope, cursor=place, limit=PAGE_SIZE)
    except ValueError as exc:
        raise RpcError(INVALID_PARAMS, _BAD_CURSOR) from exc
    # No client knows of a task that is not announced yet.
    records = [record for record in page.records if record.announced and record.owner == owner]
    if page.cursor is not None:
        return records, _sealed(_STORED, page.cursor)
    if owner is not None or session is None:
        return records, None
    # The last page of its own tasks has room for adopted ones.
    return await _adopted(runtime, session, None, records)


async def _adopted(
    runtime: TaskRuntime, session: Session, place: str | None, records: list[TaskRecord]
) -> tuple[list[TaskRecord], str | None]:
    try:
        last = 0 if place is None else int(place)
        adopted = session.adopted(last)
    except ValueError as exc:
        raise RpcError(INVALID_PARAMS, _BAD_CURSOR) from exc
    for number, task_id in adopted:
        if len(records) >= PAGE_SIZE:
            return records, _sealed(_ADOPTED, str(last))
        last = number
        try:
            records.append(await runtime.get(task_id, owner=None))
        except (UnknownTask, TaskUnreadable):
            continue
    return records, None


def _sealed(kind: str, place: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}{place}".encode()).decode()


def _opened(cursor: object) -> tuple[str, str | None]:
    if cursor is None:
        return _STORED, None
    if not isinstance(cursor, str):
        raise RpcError(INVALID_PARAMS, "params.cursor must be a string: the nextCursor of an earlier page")
    try:
        opened = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as exc:
        raise RpcError(INVALID_PARAMS, _BAD_CURSOR) from exc
    if opened[:1] not in (_STORED, _ADOPTED):
        raise RpcError(INVALID_PARAMS, _BAD_CURSOR)
    return opened[0], opened[1:]


# ---- era


STOPPING: Final = "server_stopping"
LEFT: Final = "client_left"
EXPIRED: Final = "token_expired"

_INTERRUPTED: Final[Mapping[str, str]] = {
    STOPPING: "The server is stopping. The task goes on: ask for its result again, in a new session if need be",
    LEFT: "The client left before the task ended",
    EXPIRED: "The access token of this request has expired. The task goes on: ask again with a new one",
}
"""Why a `tasks/result` ends before its task: `data.reason` and the message."""

_CREATED_BY: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "tools/call": ("name", "Tool", "tools", "call"),
    "prompts/get": ("name", "Prompt", "prompts", "get"),
    "resources/read": ("uri", "Resource", "resources", "read"),
}
"""The methods that can be called as tasks: the param that names the subject, the kind of subject, and the path of the
method in `capabilities.tasks.requests`."""

_Handler: TypeAlias = Callable[[RequestContext, CallNext], Awaitable[HandlerResult]]


class LegacyEra:
    """Tasks of 2025-11-25 on one server."""

    versions: frozenset[str] = frozenset({VERSION})

    def __init__(self, parts: EraParts) -> None:
        self._parts = parts
        self._protocol = parts.protocol
        self._sessions = Sessions(parts)
        self._is_stateless = False
        self._handlers: Mapping[str, _Handler] = {
            "tools/list": self._list_tools,
            "tasks/get": _answering(self._get),
            "tasks/result": _answering(self._result),
            "tasks/list": _answering(self._list),
            "tasks/cancel": _answering(self._cancel),
            "notifications/initialized": self._sessions.serve,
            **({"tasks/sendInput": _answering(self._send_input)} if parts.send_input else {}),
        }

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts: see how it is served."""
        try:
            self._is_stateless = server.session_manager.stateless
        except RuntimeError:
            # It is not served over Streamable HTTP, or not by an app of its own.
            self._is_stateless = False
        self._sessions.start(server)

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Declare `capabilities.tasks`."""
        requests: dict[str, dict[str, Any]] = {}
        for method in sorted(self._parts.offers.methods() & _CREATED_BY.keys()):
            *_, group, verb = _CREATED_BY[method]
            requests.setdefault(group, {})[verb] = {}
        tasks: dict[str, Any] = {"cancel": {}, "requests": requests}
        if self._can_list(ctx):
            tasks["list"] = {}
        result["capabilities"] = {**result.get("capabilities", {}), "tasks": tasks}

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message. Messages that have nothing to do with tasks are passed on."""
        if ctx.method in _CREATED_BY:
            task = None if ctx.params is None else ctx.params.get("task")
            # First the most frequent case, a plain call of a tool: whether a tool must be a task is checked elsewhere,
            # for every version.
            if (task is None and ctx.method == "tools/call") or not _is_open(ctx):
                return await call_next(ctx)
            with _answered():
                if task is not None:
                    return await self._create(task, ctx, call_next)
                await self._check_plain(ctx)
            return await call_next(ctx)
        handler = self._handlers.get(ctx.method)
        return await (call_next(ctx) if handler is None else handler(ctx, call_next))

    # tools/list

    async def _list_tools(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """`tools/list`, with whether each tool may be called as a task."""
        result = await call_next(ctx)
        if isinstance(result, dict):
            for tool in cast("list[dict[str, Any]]", result.get("tools", [])):
                offer = await self._parts.offers.find("tools/call", tool["name"])
                support = "forbidden" if offer is None else offer.support
                # Without it, a tool is forbidden. What the server's own listing says is replaced by what holds.
                if support != "forbidden" or "taskSupport" in tool.get("execution", {}):
                    tool["execution"] = {**tool.get("execution", {}), "taskSupport": support}
        return result

    def _can_list(self, ctx: RequestContext) -> bool:
        """Whether the caller's tasks can be told from those of others."""
        # A session manager of the author's own cannot be asked whether it is stateless. There, a handshake that starts
        # with a guess other than the newest version came without a session.
        is_stateless = self._is_stateless or ctx.protocol_version != LATEST_HANDSHAKE_VERSION
        return ctx.request is None or not is_stateless or self._protocol.owners.known(caller_of(ctx)) is not None

    # Creation

    async def _create(self, task: Any, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer a call with `params.task`: -32601 if it cannot be a task, -32602 for malformed or refused params."""
        offers = self._parts.offers
        if ctx.method not in offers.methods():
            # 2025-11-25: where no capability was declared, the request MUST be processed as if `task` were not there.
            return await call_next(ctx)
        check_task(task)
        plain = {name: value for name, value in (ctx.params or {}).items() if name != "task"}
        # As the SDK does before it calls a handler. It answers the error with -32602.
        mcp_methods.validate_client_request(ctx.method, ctx.protocol_version, plain)
        key, kind, *_ = _CREATED_BY[ctx.method]
        name: str = plain[key]
        arguments: Mapping[str, Any] = plain.get("arguments") or {}
        offer = await offers.find(ctx.method, name)
        if offer is None:
            # The SDK answers that there is none.
            return await call_next(replace(ctx, params=plain))
        if offer.support == "forbidden":
            raise RpcError(METHOD_NOT_FOUND, f"{kind} {name!r} cannot be called as a task: call it without params.task")
        with discreet(ctx.method):
            caller = caller_of(ctx)
            request = request_of(ctx.method, request_meta(ctx), caller, name=name, arguments=arguments)
            try:
                owner = self._protocol.owners.of(caller)
                # Before any work on the arguments, which may be large.
                with refusing():
                    await self._protocol.limiting.create(owner, request, connection=caller.connection)
                # Parameters that the SDK asks for are not there yet, and cannot be checked.
                problem = None if offer.resolves else offer.problem_with(arguments)
                if problem is not None:
                    raise RpcError(INVALID_PARAMS, f"{kind} {name!r} does not take these arguments: {problem}")
                record = await self._launch(ctx, offer, request, owner, task)
            except RpcError as exc:
                self._protocol.refused(caller, ctx.method, exc)
                raise
        return render_created(record, offer.options.immediate_response, self._parts.runtime().now())

    async def _check_plain(self, ctx: RequestContext) -> None:
        """Refuse a plain request for a prompt or a resource that must be a task, with -32601."""
        offers, (key, kind, *_) = self._parts.offers, _CREATED_BY[ctx.method]
        name = (ctx.params or {}).get(key)
        if ctx.method not in offers.methods() or not isinstance(name, str):
            return
        offer = await offers.find(ctx.method, name)
        if offer is not None and offer.support == "required":
            raise RpcError(METHOD_NOT_FOUND, f"{kind} {name!r} can only be called as a task: add params.task")

    async def _launch(
        self, ctx: RequestContext, offer: Served, request: TaskRequest, owner: str | None, task: Mapping[str, Any]
    ) -> TaskRecord:
        session, task_id = self._sessions.of(ctx), new_task_id()
        if session is not None:
            # Before there is a task: its tool may send something at once.
            session.expect(task_id)
        try:
            with refusing():
                asked, own = take_key(request, owner)
                record = await self._parts.runtime().launch(
                    LaunchSpec(
                        request=asked,
                        owner=owner,
                        retention=retention_of(task, offer),
                        policy=offer.options.settled,
                        session=None if session is None else session.id,
                        key=None if own is None else own.key,
                        fingerprint=None if own is None else own.fingerprint,
                        task_id=task_id,
                    )
                )
                if offer.may_refuse(request.arguments):
                    await self._refuse_misfits(record, offer, keep=own is not None)
        except BaseException:
            if session is not None:
                session.give_up(task_id)
            raise
        if session is not None:
            if record.id != task_id:
                # The call's idempotency key had a task already.
                session.give_up(task_id)
            session.follow(record, progress_token(request_meta(ctx)), after=exchange_of(ctx))
        return record

    async def _refuse_misfits(self, record: TaskRecord, offer: Served, *, keep: bool) -> None:
        """Refuse a call with -32602 if the SDK refuses its arguments, and delete its task unless it is to be kept.

        A tool may take more than its schema says ("7" for a number), so only the attempt tells. A tool that was entered
        keeps its task, even if it reports an error: it may have done its work.
        """
        runtime = self._parts.runtime()
        try:
            ended = await runtime.follow(
                record.id, lambda task: task.status is not TaskStatus.WORKING, timeout=ANNOUNCE_AFTER
            )
        except (StoreError, UnknownTask) as exc:
            # The task is kept and may be running: after an error now, the client would start it twice.
            logger.warning("task %s… is not waited for any longer: %s", record.id[:12], exc)
            return
        told = None if ended is None or not ended.is_error else ended.status_message
        if ended is not None and told is not None and offer.is_refusal(record.name, told):
            if not keep:
                await runtime.discard(ended)
            raise RpcError(INVALID_PARAMS, told)

    # tasks/*

    async def _get(self, ctx: RequestContext) -> dict[str, Any]:
        record, _ = await self._find(ctx, is_poll=True)
        self._protocol.saw(record, "tasks/get")
        return render_detailed(record, self._parts.runtime().now())

    async def _cancel(self, ctx: RequestContext) -> dict[str, Any]:
        """The task, whose cancellation is durable before this answers. One that has ended is refused."""
        record, _ = await self._find(ctx, to_cancel=True)
        runtime = self._parts.runtime()
        ended = record
        if not record.is_final:
            with refusing():
                ended = await runtime.cancel(record, CANCELLED_BY_CLIENT, actor=actor_of(record))
        if record.is_final or ended.status is not TaskStatus.CANCELLED:
            # In the second case it ended by itself before the store had it cancelled.
            raise RpcError(INVALID_PARAMS, f"Cannot cancel task: already in terminal status {status_of(ended)!r}")
        return render_task(ended, runtime.now())

    async def _send_input(self, ctx: RequestContext) -> dict[str, Any]:
        """Answer an open question, waiting a moment for it; the task as it is then."""
        key, response = parse_input(ctx.params or {})
        record, _ = await self._find(ctx)
        runtime, limits = self._parts.runtime, self._protocol.limiting.limits

        def find(current: TaskRuntime) -> Awaitable[TaskRecord]:
            return current.get(record.id, owner=record.owner)

        with refusing():
            await self._protocol.count_answers(record.owner, response)
            try:
                answered = await send_input(runtime, find, response, key=key, seconds=ASKED_WITHIN, limits=limits)
            except UsageError as exc:
                raise RpcError(INVALID_PARAMS, str(exc)) from exc
        return render_detailed(answered, runtime().now())

    async def _list(self, ctx: RequestContext) -> dict[str, Any]:
        caller = caller_of(ctx)
        try:
            owner = await self._protocol.admit(caller)
        except RpcError as exc:
            self._protocol.refused(caller, ctx.method, exc)
            raise
        runtime, session = self._parts.runtime(), self._sessions.of(ctx)
        with refusing():
            if owner is None and session is None:
                # It was not declared either: callers without an owner cannot be told apart.
                raise RpcError(METHOD_NOT_FOUND, "tasks/list needs authentication, or a transport with sessions")
            records, cursor = await list_tasks(runtime, owner, session, (ctx.params or {}).get("cursor"))
        self._protocol.saw_list(owner, "tasks/list", len(records))
        now = runtime.now()
        listed: dict[str, Any] = {"tasks": [render_task(record, now) for record in records]}
        return listed if cursor is None else {**listed, "nextCursor": cursor}

    async def _find(
        self, ctx: RequestContext, *, until_answered: bool = True, is_poll: bool = False, to_cancel: bool = False
    ) -> tuple[TaskRecord, Session | None]:
        """The task that a request names, which the caller's session has from now on."""
        caller, protocol = caller_of(ctx), self._protocol
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

    # tasks/result

    async def _result(self, ctx: RequestContext) -> dict[str, Any]:
        """The answer of the task's request, once the task has ended."""
        # The session is told of the task while this waits.
        record, session = await self._find(ctx, until_answered=False)
        with _naming(record.id), refusing():
            with nullcontext() if record.is_final else self._protocol.limiting.waiting(record.owner):
                record = await self._until_final(ctx, record, session)
            outcome = await outcome_to_send(self._parts.runtime(), record, self._protocol.limiting.unread)
        self._protocol.saw(record, "tasks/result")
        if outcome is None:
            raise render_cancelled(record)
        body = await decoded(outcome.body)
        if record.status is TaskStatus.FAILED:
            raise render_error(record, body)
        if outcome.meta is not None:
            body["_meta"] = await decoded(outcome.meta)
        with _naming(record.id):
            if not is_large(body):
                return render_result(record, body)
            return await with_parts(ctx, await asyncio.to_thread(render_result, record, body))

    async def _until_final(self, ctx: RequestContext, record: TaskRecord, session: Session | None) -> TaskRecord:
        """The task once it has ended. Until then, its questions are sent on the stream of this request if possible.

        Raises -32802 if the process has to exit, the client has left for good, or its token has expired.
        """
        if not ctx.session.can_send_request:
            # The answer can carry nothing else.
            return record if record.is_final else await self._wait(ctx, record, None)
        if record.is_final and (session is None or not session.has_notices(record.id)):
            return record
        subscribers, questions = self._sessions.subscribers, self._sessions.questions
        if session is not None and not is_pipe(ctx) and exchange_of(ctx) is None:
            # Streams are not watched on this server. The client asks again, so it may have disconnected before.
            for earlier in subscribers.results_of(session, record.id):
                earlier.is_open = False
            session.doubt_own()
        stream = SessionStream(ctx.session, ctx.request_id, session=session)
        try:
            with subscribers.waiting(record.id, stream):
                if session is not None:
                    session.send_notices(record.id, known=True)
                seen = record if record.is_final else await self._wait(ctx, record, stream)
                if session is not None:
                    # After its answer, a stream carries nothing more.
                    await session.flush(record.id)
                return seen
        finally:
            if stream.is_open:
                # On a stream that was cut off nothing can be cancelled, and the client may answer what it has read.
                questions.take_back(stream)
            stream.is_open = False
            await questions.leave(record.id, stream)

    async def _wait(self, ctx: RequestContext, record: TaskRecord, stream: SessionStream | None) -> TaskRecord:
        exchange, questions = exchange_of(ctx), self._sessions.questions
        found: TaskRecord | Exception | None = None
        async with anyio.create_task_group() as group:

            async def end_with(event: Callable[[], Awaitable[object]], reason: str) -> None:
                nonlocal found
                await event()
                if reason == LEFT and stream is not None:
                    stream.is_open = False
                if ctx.close_sse_stream is not None:
                    # The SDK gives this only if the client can resume the stream.
                    await ctx.close_sse_stream()
                    return
                data = related_data(record.id, {"reason": reason})
                found = RpcError(RESULT_INTERRUPTED, _INTERRUPTED[reason], data)
                group.cancel_scope.cancel()

            async def cut_off(ended: Callable[[], Awaitable[object]], stream: SessionStream) -> None:
                # The client may come back: its questions stay with it, unless another stream can ask them.
                await ended()
                stream.is_open = False
                questions.send(record.id)

            async def see(seen: TaskRecord) -> None:
                questions.look(seen)

            group.start_soon(end_with, self._parts.exiting, STOPPING)
            if exchange is not None and not exchange.can_resume:
                group.start_soon(end_with, exchange.ended, LEFT)
            elif exchange is not None and stream is not None:
                group.start_soon(cut_off, exchange.ended, stream)
            expired = anyio.Event()
            group.start_soon(end_with, expired.wait, EXPIRED)
            # Not after `Limits.stream_life`. 2025-11-25: MUST block until the task reaches a terminal status.
            with self._protocol.stream_ends.ending(expiry(caller_of(ctx).identity), expired.set):
                try:
                    found = await self._parts.runtime().follow(
                        record.id, lambda task: task.is_final, see=see, patient=True
                    )
                except (UnknownTask, TaskUnreadable) as exc:
                    # Out of the group it would be raised in an exception group.
                    found = exc
            group.cancel_scope.cancel()
        if isinstance(found, TaskRecord):
            return found
        raise UnknownTask(record.id) if found is None else found


def _is_open(ctx: RequestContext) -> bool:
    """Whether the caller may send requests: after its handshake, or without one if there are no sessions.

    A connection that can be sent requests has a handshake. The SDK refuses what comes before it.
    """
    return ctx.session.client_params is not None or not ctx.session.can_send_request


def _answering(method: Callable[[RequestContext], Awaitable[dict[str, Any]]]) -> _Handler:
    async def handler(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if not _is_open(ctx):
            return await call_next(ctx)
        with _answered(), discreet(ctx.method):
            return await method(ctx)

    return handler


@contextmanager
def _answered() -> Generator[None]:
    """Raise our refusals as errors of the SDK."""
    try:
        yield
    except (RpcError, TasksError) as exc:
        raise to_mcp_error(exc) from exc


@contextmanager
def _naming(task_id: str) -> Generator[None]:
    """Name the task in refusals of a request for its result."""
    try:
        yield
    except RpcError as exc:
        if exc.code == INVALID_PARAMS:
            # The task is gone: the answer is the same for every id.
            raise
        raise RpcError(exc.code, exc.message, related_data(task_id, exc.data)) from exc
