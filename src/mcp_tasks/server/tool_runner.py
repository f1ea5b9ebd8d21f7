"""Runs a tool from its record, in the same way in the server that took the call, after a restart, and in a worker.

The tool gets the SDK's own context, built over a `TaskChannel`, so it works in a task as in a call. Prompts and
resources are run in the same way; "tool" stands for all three here.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast
from weakref import WeakSet

from mcp.server import ServerRequestContext
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import Connection
from mcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation
from mcp.server.mcpserver import Context
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    ErrorData,
    GetPromptRequestParams,
    InputRequiredResult,
    ReadResourceRequestParams,
    RequestId,
    RequestParamsMeta,
)
from mcp_types import methods as mcp_methods
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import BaseModel, Field, RootModel, ValidationError, create_model

from mcp_tasks._utils import BoundedDict, short_id
from mcp_tasks.errors import AnswerRefused, QuestionTimedOut, TasksError, UsageError
from mcp_tasks.model import JsonObject, Progress, TaskRequest
from mcp_tasks.model.json import decode_json, valid_json, valid_text
from mcp_tasks.model.record import InputRequest
from mcp_tasks.protocol.answers import warn_of_schema
from mcp_tasks.protocol.errors import RpcError, describe, to_error_data
from mcp_tasks.protocol.shapes import encode_plain
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime import AskedOnCall, Asking, Ending, Failure, Run, Success
from mcp_tasks.runtime.context import current_run
from mcp_tasks.server.tool_host import LoneChannel, Params, RequestContext, ToolHost, lone_context

logger: Final = get_logger(__name__)

# ---- open calls
# Calls that are still open while a task does their work: the client gets what the tool sends.

PATIENCE: Final = 2.0
"""Seconds that a client has to take a message. One that reads needs milliseconds."""


CloseStream: TypeAlias = Callable[[], Awaitable[None]]


class OpenCall(Protocol):
    """A call that has not been answered yet.

    Attributes:
        name: The called tool: the task's own, or one that waits for the task.
        meta: The `_meta` of the request as the SDK has it, with the progress token.
        request: The transport's request, with its headers; None where there is none.
        user: The authenticated user of the request, as the SDK's `auth_context_var` has it.
        close_stream: Ends the call's stream, so that its client reconnects; None where it could not.
        close_connection_stream: The same for the stream of its connection.
    """

    name: str | None
    meta: Mapping[str, Any]
    request: Any
    user: Any
    close_stream: CloseStream | None
    close_connection_stream: CloseStream | None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the call, if its caller asked for any."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the call's own stream, or with `related=False` on that of its connection."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client and wait for its answer; False if it cannot be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        ...


class Listener(Protocol):
    """A client that gets messages of a task's tool while no call is open for the task."""

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Take a notification; `related` as in `OpenCall.notify`."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """As for an open call."""
        ...


class OpenCalls:
    """The open calls of this process, by the task that does their work.

    Args:
        patience: Seconds for which a tool waits until a call has taken its message.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lines: dict[str, list[_Line]] = {}
        self.tasks: Collection[str] = self._lines.keys()
        """The tasks that have an open call."""
        self._listeners: dict[str, list[Listener]] = {}

    @contextmanager
    def open(self, task_id: str, call: OpenCall) -> Generator[None]:
        """Send messages of the task's tool to the call until the block ends, in the context in which this is entered.
        Entered again for the same call inside such a block, it changes nothing."""
        lines = self._lines.setdefault(task_id, [])
        if any(line.call is call for line in lines):
            yield
            return
        line = _Line(call, self._patience)
        lines.append(line)
        try:
            yield
        finally:
            lines.remove(line)
            if not lines:
                del self._lines[task_id]
            line.close()

    def of(self, task_id: str) -> Sequence[OpenCall]:
        """The open calls of a task, oldest first."""
        return [line.call for line in self._lines.get(task_id, ())]

    def listen(self, task_id: str, listener: Listener) -> None:
        """Send messages of the task's tool to the listener while no call is open for it, until `ignore`."""
        self._listeners.setdefault(task_id, []).append(listener)

    def hears(self, task_id: str, listener: Listener) -> bool:
        """Whether the listener gets them."""
        return listener in self._listeners.get(task_id, ())

    def ignore(self, task_id: str, listener: Listener) -> None:
        """Send nothing more to a listener. Does nothing if it is unknown."""
        if self.hears(task_id, listener):
            self._listeners[task_id].remove(listener)
            if not self._listeners[task_id]:
                del self._listeners[task_id]

    def reaches(self, task_id: str) -> bool:
        """Whether a notification of the task's tool has a recipient."""
        return task_id in self._lines or task_id in self._listeners

    async def progress(self, task_id: str, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the task's open calls."""
        await self._send(task_id, lambda call: call.progress(progress, total, message))

    async def notify(
        self, task_id: str, method: str, params: Mapping[str, Any] | None, *, related: bool = True
    ) -> None:
        """Send a notification on the task's open calls, or to its listeners if there are none."""
        if task_id in self._lines:
            await self._send(task_id, lambda call: call.notify(method, params, related=related))
        else:
            for listener in list(self._listeners.get(task_id, ())):
                await listener.take(method, params, related=related)

    async def ping(self, task_id: str, timeout: float | None) -> bool:
        """Ping the client of the task and wait for its answer; False if there is none that can be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        for peer in (*self.of(task_id), *self._listeners.get(task_id, ())):
            if await peer.ping(timeout):
                return True
        return False

    async def _send(self, task_id: str, send: Callable[[OpenCall], Coroutine[Any, Any, None]]) -> None:
        sent = [line.send(send) for line in self._lines.get(task_id, ()) if not line.is_stuck]
        if sent:
            await asyncio.wait(sent, timeout=self._patience)


class _Line:
    """Sends to one call."""

    def __init__(self, call: OpenCall, patience: float) -> None:
        self.call = call
        self._patience = patience
        # The tool's own context must not travel: the SDK passes a sender's context to the receiver, and asyncio tasks
        # that are started in it would count as the tool's.
        self._context = contextvars.copy_context()
        self._sending: dict[asyncio.Task[None], float] = {}

    @property
    def is_stuck(self) -> bool:
        """Whether the call does not take messages: one that is still being sent has waited too long."""
        oldest = next(iter(self._sending.values()), None)
        return oldest is not None and asyncio.get_running_loop().time() - oldest >= self._patience

    def send(self, send: Callable[[OpenCall], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin to send a message."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(_sent(send, self.call), context=self._context)
        self._sending[sending] = loop.time()
        sending.add_done_callback(self._sending.pop)
        return sending

    def close(self) -> None:
        """Give up messages that are still being sent."""
        for sending in self._sending:
            sending.cancel()


async def _sent(send: Callable[[OpenCall], Coroutine[Any, Any, None]], call: OpenCall) -> None:
    try:
        await send(call)
    except Exception as exc:
        # An error of the client or the transport, which in a plain call often ends the tool.
        logger.debug("not sent on an open call: %s", what(exc))


# ---- clients

MOST_CLIENTS: Final = 32
"""Kinds of clients that are remembered; a server has few."""

LARGEST_CLIENT: Final = 8 * 1024
"""Bytes of JSON in which a remembered client describes itself: clients choose the size, and the parsed form may take
twenty times as much."""


class ClientCache:
    """Clients as the SDK parses them, once for each kind of client instead of once for each task."""

    def __init__(self) -> None:
        self._known: BoundedDict[tuple[str, bytes, bytes], Connection] = BoundedDict(MOST_CLIENTS)

    def client_of(self, request: TaskRequest) -> Connection:
        """The client that made the request. Read-only: other tasks have the same."""
        version, info = request.protocol_version, encode_plain(request.client_info)
        capabilities = encode_plain(dict(request.client_capabilities))
        key = (version, info, capabilities)
        client = self._known.get(key)
        if client is None:
            client = Connection.from_envelope(version, decode_json(info), decode_json(capabilities))
        if len(info) + len(capabilities) <= LARGEST_CLIENT:
            # Again for a known client, which is then the last that makes room.
            self._known[key] = client
        return client


# ---- requests to a client
# The SDK does not know these questions in these versions, so they pass through it unchecked.


class _Request(BaseModel):
    # The SDK checks answers by this method, and knows none of that name.
    method: ClassVar[str] = "mcp_tasks/question"
    asked: str = Field(serialization_alias="method")
    params: dict[str, Any]


async def raw_request(
    session: ServerSession,
    method: str,
    params: Mapping[str, Any],
    *,
    request_id: RequestId | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """The client's result, unchecked. If this is cancelled, the request is cancelled at the client.

    Args:
        request_id: The request on whose stream it goes out; None for the session's own.
        timeout: Seconds to wait for the answer; None for as long as it takes.

    Raises:
        MCPError: The client answered with this error, did not answer in time, or is gone.
    """
    request = _Request(asked=method, params=dict(params))
    metadata = None if request_id is None else ServerMessageMetadata(related_request_id=request_id)
    return (await session.send_request(cast(Any, request), RootModel[dict[str, Any]], timeout, metadata)).root


class AnswerTimedOut(MCPError, QuestionTimedOut):
    """`QuestionTimedOut` as a tool gets it: caught as a `TimeoutError`, and with a text for the client if it is not."""

    def __init__(self, error: ErrorData, timeout: timedelta | None) -> None:
        MCPError.__init__(self, code=error.code, message=error.message, data=error.data)
        self.timeout = timeout


def to_mcp_error(exc: Exception) -> MCPError:
    """The exception that the SDK answers with the error of `exc`: only an `MCPError` passes through it with its text.
    It is `exc` itself if that can be sent."""
    error = to_error_data(exc)
    if isinstance(exc, QuestionTimedOut):
        return AnswerTimedOut(error, exc.timeout)
    return exc if isinstance(exc, MCPError) and exc.error == error else MCPError.from_error_data(error)


# ---- the client of a task

_CHANNEL_NEEDED = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""The requests a task may make of its client, and the capability that says the client takes them."""

UNKNOWN_CLIENT: Final[JsonObject] = MappingProxyType({"name": "unknown", "version": ""})
"""Stands for an unknown client where the SDK needs a name."""

_PROGRESS: Final = "notifications/progress"
_ASKS_WITH: Final = "The tool asks with "


class TaskChannel(LoneChannel):
    """Takes the messages of a tool to its client into the task.

    Args:
        related: Whether notifications go to the stream of the call; otherwise to that of its connection.
    """

    transport: TransportContext = TransportContext(kind="task", can_send_request=True)
    can_send_request = True

    def __init__(self, run: Run, calls: OpenCalls, *, related: bool = True) -> None:
        self.request_id: RequestId | None = run.record.id
        self._run = run
        self._calls = calls
        self._related = related

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Ask the client and wait for its answer."""
        timeout = None if opts is None else opts.get("timeout")
        if method == "ping":
            # If no client can be reached, the task answers for it.
            await self._calls.ping(self._run.record.id, timeout)
            return {}
        if method not in _CHANNEL_NEEDED:
            raise NoBackChannelError(method)
        question = InputRequest(method=method, params=valid_json(params or {}))
        try:
            check_askable(question, self._run.request)
            warn_of_schema(question.params)
            asking = None if timeout is None else Asking(timeout=timedelta(seconds=timeout))
            return dict(await self._run.ask(question, asking))
        except (RpcError, TasksError) as exc:
            # The SDK treats any other exception of a tool as a crash, and withholds its text.
            raise to_mcp_error(exc) from exc

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send it on the open calls, or to the sessions of 2025-11-25 that have the task. Otherwise it is dropped:
        SEP-2663 has no log or progress notifications for tasks."""
        task_id = self._run.record.id
        if not self._calls.reaches(task_id):
            logger.debug("dropped %s: not sent for a task", method)
        elif method == _PROGRESS:
            # The other way to report progress: with the token that came with the call.
            report = params or {}
            token = report.get("progressToken")
            if token is not None and token in [call.meta.get("progress_token") for call in self._calls.of(task_id)]:
                await self.progress(report["progress"], report.get("total"), report.get("message"))
        else:
            said = None if params is None else valid_json(params)
            await self._calls.notify(task_id, method, said, related=self._related)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Make it the task's progress. Numbers that JSON cannot hold are ignored."""
        done = _json_number(progress)
        if done is None:
            return
        said = None if message is None else valid_text(message)
        reported = Progress(progress=done, total=_json_number(total), message=said)
        # First to the calls, which then recognise it in the record.
        await self._calls.progress(self._run.record.id, reported.progress, reported.total, said)
        await self._run.report(reported)


def _json_number(value: float | None) -> float | None:
    """The number as JSON can hold it, of any type of number; None for one that it cannot."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Whole numbers stay exact, which a float is not beyond 2**53; a bool is an int to Python, not to JSON.
    return int(value) if isinstance(value, int) else number if math.isfinite(number) else None


def check_askable(question: InputRequest, request: TaskRequest) -> None:
    """Refuse a question that the client of the request cannot be asked.

    Raises:
        RpcError: -32021, with the reason.
    """
    try:
        require_capability(question, request.client_capabilities)
    except RpcError as exc:
        # The capabilities came with a handshake that was not kept, and there is no way back to the client.
        is_unknown = request.client_info in (None, UNKNOWN_CLIENT)
        if is_unknown and not version_of(request.protocol_version).describes_client:
            raise RpcError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"{_ASKS_WITH}{question.method}, and this server is stateless: over it, a client of "
                f"{request.protocol_version} cannot be asked that. Serve with sessions (stateless_http=False).",
                {"requiredCapabilities": {_CHANNEL_NEEDED[question.method]: {}}},
            ) from exc
        raise


def require_capability(question: InputRequest, declared: JsonObject) -> None:
    """Refuse a question of a kind that the client did not declare on its request.

    Raises:
        RpcError: -32021, with the capability that was missing.
    """
    name = _CHANNEL_NEEDED[question.method]
    capability = declared.get(name)
    required: dict[str, Any] = {name: {}}
    missing = name
    if name == "elicitation" and isinstance(capability, Mapping):
        mode = question.params.get("mode", "form")
        required = {name: {mode: {}}}
        missing = f"{name}.{mode}"
        # An empty object stands for form mode, which came first.
        if mode in capability or (mode == "form" and "url" not in capability):
            return
    elif capability is not None:
        return
    raise RpcError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"{_ASKS_WITH}{question.method}, and the client did not declare the {missing} capability. "
        "Only a client that declares it can be asked.",
        {"requiredCapabilities": required},
    )


def in_older_words(error: JsonObject) -> JsonObject:
    """The error as versions before the newest have it.

    They know neither the code nor the data of a missing capability: in a plain call the client would have refused the
    question itself. An error with the same code that a tool raised itself stays.
    """
    data = error.get("data")
    is_ours = (
        error["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
        and error["message"].startswith(_ASKS_WITH)
        and isinstance(data, Mapping)
        and set(cast("Mapping[str, Any]", data)) == {"requiredCapabilities"}
    )
    return {"code": INVALID_REQUEST, "message": error["message"]} if is_ours else error


# ---- the run

_COMPLETE = "complete"

_ALL_LOGS: RequestParamsMeta = cast(Any, {LOG_LEVEL_META_KEY: "debug"})
"""A run passes on all log messages: each open call filters them by its own level."""

_NEEDED = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}
"""The member that a result of each method has, and a question does not."""

_PARAMS: dict[str, type[Params]] = {
    "tools/call": CallToolRequestParams,
    "prompts/get": GetPromptRequestParams,
    "resources/read": ReadResourceRequestParams,
}

Answering: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]
"""Has a question answered that a tool asked by returning it."""

body_at_work: ContextVar[ToolBody | None] = ContextVar("mcp_tasks_body_at_work", default=None)
"""The `ToolBody` that runs the calling code."""


class ToolBody:
    """The body of every run: calls the tool that the record names.

    Args:
        states: The states that the server's lifespan yielded. Tools see the first.
        calls: The calls that are open in this process.
    """

    def __init__(self, host: ToolHost, states: Sequence[Any], calls: OpenCalls) -> None:
        self.host = host
        self._states = states
        self._calls = calls
        self._clients = ClientCache()
        self._had: WeakSet[OpenCall] = WeakSet()

    async def __call__(self, run: Run) -> Ending:
        """Call the tool, again after each question that it asks by returning, and say how it ended."""

        async def answered(question: JsonObject) -> JsonObject:
            # A client may be waiting on the original call, in this process or another. The record decides which came
            # first: this question, which is then asked on the call, or the announcement of the task.
            if await run.ask_on_call(question):
                raise _IsAskedOnCall
            return await run.ask_all(questions_in(question, run.request))

        body_at_work.set(self)
        call = self._first_call(run) if run.record.id in self._calls.tasks else None
        if call is not None:
            auth_context_var.set(call.user)
        try:
            return Success(await self._result(run.request, self._context(run, run.request, call), answered))
        except _IsAskedOnCall:
            return AskedOnCall()
        except Exception as exc:
            if not isinstance(exc, MCPError | RpcError | UsageError | AnswerRefused):
                logger.error("the run of task %s failed", short_id(run.record.id), exc_info=quietly())
            return Failure(describe(exc))

    async def call(self, request: TaskRequest) -> JsonObject:
        """The tool's result, called now and without a task of its own.

        In a tool that runs as a task the call is a part of that: the task asks its questions.

        Raises:
            MCPError: The tool raised it.
            RpcError: The tool's result is invalid.
            UsageError: It asks something, and no client can answer.
        """
        run = current_run.get()

        async def answered(question: JsonObject) -> JsonObject:
            if run is None:
                raise UsageError(
                    f"{request.name!r} asks something before it has a result, and no client can answer a call in "
                    "this process: start it as a task, and answer with send_input"
                )
            return await run.ask_all(questions_in(question, run.request))

        if run is None:
            context = lone_context(request.method, self._states[0], _fields(request))
        else:
            context = self._context(run, request, self._first_call(run))
        return await self._result(request, context, answered)

    async def _result(self, request: TaskRequest, context: RequestContext, answered: Answering) -> JsonObject:
        responses, state = request.input_responses, request.request_state
        while True:
            fields = _fields(request)
            if responses is not None:
                fields["inputResponses"] = dict(responses)
            if state is not None:
                fields["requestState"] = state
            params = _PARAMS[request.method].model_validate(fields, by_name=False)
            result = await self.host.call(context, params)
            if not mcp_methods.is_input_required(result):
                return _neutral_result(request, result)
            question = _question(request, result)
            responses, state = await answered(question), question.get("requestState")

    def _context(self, run: Run, request: TaskRequest, call: OpenCall | None) -> RequestContext:
        """The SDK's context for a request in a run."""
        own = run.request
        client = self._clients.client_of(own)
        connection = Connection(
            TaskChannel(run, self._calls, related=False),
            protocol_version=own.protocol_version,
            client_params=client.client_params,
        )
        connection.client_capabilities = client.client_capabilities
        connection.initialized.set()
        return ServerRequestContext(
            session=ServerSession(TaskChannel(run, self._calls), connection, request_meta=_ALL_LOGS),
            lifespan_context=self._states[0],
            protocol_version=own.protocol_version,
            method=request.method,
            params=_fields(request),
            request_id=run.record.id,
            meta=cast(Any, dict(own.meta if call is None else call.meta)),
            request=None if call is None else call.request,
            close_sse_stream=None if call is None else call.close_stream,
            close_standalone_sse_stream=None if call is None else call.close_connection_stream,
        )

    def _first_call(self, run: Run) -> OpenCall | None:
        """The call of the first run of a task, if it is open here.

        Later runs have it while it is the very same call: a tool that was suspended continues with what it had. They
        get no other call of the same task, or a tool would come to depend on something that a restart takes away.
        """
        there = [call for call in self._calls.of(run.record.id) if call.name == run.record.name]
        if run.attempt == 1:
            self._had.update(there[:1])
        return next((call for call in there if call in self._had), None)


def _fields(request: TaskRequest) -> dict[str, Any]:
    if request.method == "resources/read":
        return {"uri": request.name}
    return {"name": request.name, "arguments": dict(request.arguments)}


def questions_in(question: JsonObject, request: TaskRequest) -> dict[str, InputRequest]:
    """The questions that a tool asked by returning them, by its own keys.

    Raises:
        RpcError: -32021, if the client cannot be asked one of them.
    """
    questions: dict[str, InputRequest] = {}
    for key, asked in question.get("inputRequests", {}).items():
        questions[key] = InputRequest(method=asked["method"], params=asked.get("params", {}))
        check_askable(questions[key], request)
    return questions


class _IsAskedOnCall(Exception):
    """The original call is answered with a question, and the task is over."""


def _neutral_result(request: TaskRequest, result: Any) -> JsonObject:
    """The result as the newest version has it, which can express most, without its mark."""
    is_modern = version_of(request.protocol_version).marks_results
    with _returned_by(request.name):
        if isinstance(result, BaseModel):
            dumped = _dumped(result)
        elif result is None or isinstance(result, dict):
            dumped = dict(cast("dict[str, Any]", result or {}))
        else:
            raise TypeError(f"a tool returned {type(result).__name__}; expected a model, a dict or None")
        mark, task = dumped.get("resultType"), dumped.get("task")
        # The answer to a call that became a task, as any version has it.
        is_task = (
            isinstance(task, Mapping) and "taskId" in task and not any(name in dumped for name in _NEEDED.values())
        )
        if mark == "task" or is_task:
            raise UsageError(
                f"{request.name!r} returned a CreateTaskResult. A marked tool returns its own result, and becomes a "
                "task by its mark"
            )
        if not is_modern:
            # A plain call of a version without marks drops any mark.
            dumped["resultType"] = _COMPLETE
        elif isinstance(mark, str) and mark != _COMPLETE:
            # A plain call may have the mark of an extension; the result of a task cannot.
            raise UsageError(
                f"The result of tool {request.name!r} has the resultType {mark!r}, and a task ends with 'complete'"
            )
        # Structured content may be nearly all of a result, and has no schema here. That of a model is plain JSON by
        # now, so another pass over it gains nothing.
        structured = dumped.pop("structuredContent", None) if isinstance(result, BaseModel) else None
        neutral = mcp_methods.serialize_server_result(request.method, LATEST_MODERN_VERSION, dumped)
        if _NEEDED[request.method] not in neutral:
            # The schema takes it for a question, which has no required members.
            raise _InvalidResult
    del neutral["resultType"]
    if not is_modern:
        _restore_nulls(neutral, dumped)
    return neutral if structured is None else {**neutral, "structuredContent": structured}


def _restore_nulls(neutral: Any, dumped: Any) -> None:
    """Put back the nulls of each `_meta`: the newest version drops them, and a plain call of an older one does not."""
    if isinstance(neutral, list) and isinstance(dumped, list):
        for kept, given in zip(cast("list[Any]", neutral), cast("list[Any]", dumped), strict=False):
            _restore_nulls(kept, given)
    if not isinstance(neutral, dict) or not isinstance(dumped, dict):
        return
    given = cast("dict[str, Any]", dumped)
    for key, kept in cast("dict[str, Any]", neutral).items():
        if key == "_meta":
            meta = cast("dict[str, Any]", given.get(key) or {})
            kept.update({name: value for name, value in meta.items() if value is None})
        elif key != "structuredContent":
            _restore_nulls(kept, given.get(key))


def _question(request: TaskRequest, result: InputRequiredResult | dict[str, Any]) -> JsonObject:
    """The question that a tool returned, in text that every client can parse, and without the version's mark."""
    with _returned_by(request.name):
        asked = InputRequiredResult.model_validate(result, by_name=False)
    question = valid_json(_dumped(asked))
    del question["resultType"]
    return question


class _InvalidResult(Exception):
    """A result lacks a member that its schema requires."""


@contextmanager
def _returned_by(tool: str) -> Generator[None]:
    """Turn pydantic's errors about a result into the SDK's own; their details would quote the result.

    A result of the right shape that cannot be written as JSON has an error of its own: nothing else would say why.
    """
    try:
        yield
    except (ValidationError, _InvalidResult):
        logger.error("tool %r returned an invalid result", tool, exc_info=quietly())
        raise RpcError(INTERNAL_ERROR, "Handler returned an invalid result") from None
    except UnicodeEncodeError as exc:
        raise UsageError(f"The result of tool {tool!r} holds text that is not valid Unicode") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"The result of tool {tool!r} cannot be stored: {exc}") from exc


def _dumped(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


# ---- elicit

T = TypeVar("T")

_PLAIN: Final = (bool, str, int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted(Generic[T]):
    """An accepted answer, with the value of the type that was asked for."""

    data: T
    action: Literal["accept"] = "accept"


Elicited: TypeAlias = Accepted[T] | DeclinedElicitation | CancelledElicitation
"""The answer to a question: `action` is `"accept"`, `"decline"` or `"cancel"`."""


async def elicit(ctx: Context[Any, Any], message: str, schema: type[T]) -> Elicited[T]:
    """Ask the user for one value: as `ctx.elicit(message, schema)`, where the schema may also be a plain type.

    In the form, a plain value is the only field, `value`. So an answer by hand has `{"value": ...}` as its content.

    Args:
        ctx: The tool's context.
        schema: `bool`, `str`, `int`, `float`, or a model as `ctx.elicit` takes it.

    Raises:
        UsageError: The schema is none of these.
        MCPError: The client cannot be asked.
    """
    if schema in _PLAIN:
        answer = await ctx.elicit(message, _form(schema))
        return Accepted(data=answer.data.model_dump()["value"]) if isinstance(answer, AcceptedElicitation) else answer
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"elicit takes bool, str, int, float or a Pydantic model, got {schema!r}")
    answer = await ctx.elicit(message, schema)
    return Accepted(data=answer.data) if isinstance(answer, AcceptedElicitation) else answer


@lru_cache(len(_PLAIN))
def _form(schema: type[Any]) -> type[BaseModel]:
    return create_model("Answer", value=(schema, ...))
