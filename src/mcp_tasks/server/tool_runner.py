"""Runs a tool from its record, the same in the server that took the call, after a restart, and in a worker.

The tool gets the SDK's own context, built by hand over a `TaskChannel`, so it works in a task as in a call. Prompts and
resources are run in the same way; where nothing else is said, a tool here is any of the three.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast
from weakref import WeakSet

import anyio
from mcp.server import ServerRequestContext
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import Connection
from mcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation
from mcp.server.mcpserver import Context
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import MessageMetadata, ServerMessageMetadata
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
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, RootModel, ValidationError, create_model

from mcp_tasks.errors import AnswerRefused, QuestionTimedOut, TasksError, UsageError
from mcp_tasks.model import JsonObject, Progress, TaskRequest
from mcp_tasks.model.json import decode_json, valid_json, valid_text
from mcp_tasks.model.record import InputRequest
from mcp_tasks.protocol.answers import warn_of_schema
from mcp_tasks.protocol.errors import RpcError, describe, to_error_data
from mcp_tasks.protocol.shapes import encode_plain
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime import AskedOnCall, Asking, Ending, Failure, Run, Success
from mcp_tasks.runtime.context import current_run
from mcp_tasks.server.tool_host import Params, RequestContext, ToolHost, lone_context

# ---- open calls
# Calls that are still open while a task does their work: what its tool sends to its client reaches them.


logger: Final = get_logger(__name__)

PATIENCE: Final = 2.0
"""Seconds that a client has to take what is sent to it. One that reads needs milliseconds."""


CloseStream: TypeAlias = Callable[[], Awaitable[None]]


class OpenCall(Protocol):
    """A call that has not been answered yet."""

    @property
    def name(self) -> str | None:
        """What is called: the tool of the task, or one that waits for it."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the request as the SDK has it, with the progress token."""
        ...

    @property
    def request(self) -> Any:
        """The transport's request, with its headers; None where there is none."""
        ...

    @property
    def user(self) -> Any:
        """Who was authenticated for the request, as the SDK's `auth_context_var` has it."""
        ...

    @property
    def close_stream(self) -> CloseStream | None:
        """Ends the call's stream, for its client to come back on another; None where it could not."""
        ...

    @property
    def close_connection_stream(self) -> CloseStream | None:
        """The same for the stream of its connection."""
        ...

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the call, if its caller asked for any."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the call's own stream, or with `related=False` on that of its connection."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client, and wait for its answer; whether it could be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        ...


class Listener(Protocol):
    """A client that hears the tool of a task while no call is open for it."""

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Take a notification: one that a plain call would send on its own stream, if it is `related`, or on its
        connection's."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """As for an open call."""
        ...


_Send: TypeAlias = Callable[[OpenCall], Coroutine[Any, Any, None]]


class OpenCalls:
    """The open calls of this process, by the task that does their work.

    Args:
        patience: Seconds for which a tool waits until a call has taken what it sends.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lines: dict[str, list[_Line]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    @contextmanager
    def open(self, task_id: str, call: OpenCall) -> Generator[None]:
        """Have the call reached by what the task's tool sends, until the block ends. To be entered by the call itself:
        what is sent is sent in its context. Entered again inside such a block, it changes nothing."""
        if any(line.call is call for line in self._lines.get(task_id, ())):
            yield
            return
        line = _Line(call, self._patience)
        self._lines.setdefault(task_id, []).append(line)
        try:
            yield
        finally:
            self._close(task_id, line)

    def of(self, task_id: str) -> Sequence[OpenCall]:
        """The open calls of a task, the one that was opened first in front."""
        return [line.call for line in self._lines.get(task_id, ())]

    def listen(self, task_id: str, listener: Listener) -> None:
        """Have a listener hear what the task's tool sends while no call is open for it, until `ignore`."""
        self._listeners.setdefault(task_id, []).append(listener)

    def hears(self, task_id: str, listener: Listener) -> bool:
        """Whether it does."""
        return listener in self._listeners.get(task_id, ())

    def ignore(self, task_id: str, listener: Listener) -> None:
        """Let a listener hear no more. Does nothing if it does not."""
        listeners = self._listeners.get(task_id, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[task_id]

    def reaches(self, task_id: str) -> bool:
        """Whether a notification of the task's tool reaches anybody."""
        return task_id in self._lines or task_id in self._listeners

    async def progress(self, task_id: str, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the task's open calls."""
        await self._send(task_id, lambda call: call.progress(progress, total, message))

    async def notify(
        self, task_id: str, method: str, params: Mapping[str, Any] | None, *, related: bool = True
    ) -> None:
        """Send a notification on the task's open calls, or to those who listen if there are none."""
        if task_id not in self._lines:
            for listener in list(self._listeners.get(task_id, ())):
                await listener.take(method, params, related=related)
            return
        await self._send(task_id, lambda call: call.notify(method, params, related=related))

    async def ping(self, task_id: str, timeout: float | None) -> bool:
        """Ping the client of the task, and wait for its answer; False if there is none that could be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        for peer in (*self.of(task_id), *self._listeners.get(task_id, ())):
            if await peer.ping(timeout):
                return True
        return False

    def _close(self, task_id: str, line: _Line) -> None:
        lines = self._lines[task_id]
        lines.remove(line)
        if not lines:
            del self._lines[task_id]
        line.close()

    async def _send(self, task_id: str, send: _Send) -> None:
        sent = [line.send(send) for line in self._lines.get(task_id, ()) if line.takes]
        if sent:
            await asyncio.wait(sent, timeout=self._patience)


class _Line:
    """The way to one call."""

    def __init__(self, call: OpenCall, patience: float) -> None:
        self.call = call
        self._patience = patience
        # The tool's own context must not travel: the SDK hands a sender's context on to the receiver, and asyncio tasks
        # that are started in it would count as the tool's.
        self._context = contextvars.copy_context()
        self._sending: dict[asyncio.Task[None], float] = {}

    @property
    def takes(self) -> bool:
        """Whether the call takes anything: not while it keeps something for too long that was sent before."""
        oldest = next(iter(self._sending.values()), None)
        return oldest is None or asyncio.get_running_loop().time() - oldest < self._patience

    def send(self, send: _Send) -> asyncio.Task[None]:
        """Begin to send something."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._sent(send), context=self._context)
        self._sending[sending] = loop.time()
        sending.add_done_callback(self._sending.pop)
        return sending

    def close(self) -> None:
        """Give up what is still being sent."""
        for sending in self._sending:
            sending.cancel()

    async def _sent(self, send: _Send) -> None:
        try:
            await send(self.call)
        except Exception as exc:
            # The client's doing or the transport's, and in a plain call often the end of the tool.
            logger.debug("not sent on an open call: %s", what(exc))


# ---- clients
# Who a client is, parsed by the SDK once for each kind of client, and not once for each of its tasks.


ROOM = 256 * 1024
"""Bytes of text that are kept with what was parsed from them, which may take twenty times that. A server has few kinds
of clients, and each says little of itself; but what it says is up to the client."""


ClientKey: TypeAlias = tuple[str, bytes, bytes]
"""Version, client info and capabilities: equal for clients that say the same of themselves."""


class ClientCache:
    """The clients that were seen last, within `room` bytes of what they say of themselves."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._used = 0
        self._known: OrderedDict[ClientKey, Connection] = OrderedDict()

    def client_of(self, request: TaskRequest) -> Connection:
        """The client that made the request. To be read only: other tasks have the same."""
        key = (
            request.protocol_version,
            encode_plain(request.client_info),
            encode_plain(dict(request.client_capabilities)),
        )
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        version, info, capabilities = key
        client = Connection.from_envelope(version, decode_json(info), decode_json(capabilities))
        self._keep(key, client)
        return client

    def _keep(self, key: ClientKey, client: Connection) -> None:
        if _size(key) > self._room:
            return
        self._known[key] = client
        self._used += _size(key)
        while self._used > self._room:
            oldest, _ = self._known.popitem(last=False)
            self._used -= _size(oldest)


def _size(key: ClientKey) -> int:
    return sum(map(sys.getsizeof, key))


# ---- raw
# Requests to a client whose answers the SDK's tables do not know: sent through the SDK, and answered as they come.


async def raw_request(
    session: ServerSession,
    method: str,
    params: Mapping[str, Any],
    *,
    request_id: RequestId | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """The client's result, whatever it is. Cancelled, the request is cancelled at the client.

    Args:
        request_id: The request on whose stream it goes out; None for the session's own.
        timeout: Seconds to wait for the answer; None for as long as it takes.

    Raises:
        MCPError: The client answered with this error, or did not answer in time, or is gone.
    """
    request = _Request(asked=method, params=dict(params))
    metadata = None if request_id is None else ServerMessageMetadata(related_request_id=request_id)
    return (await session.send_request(cast(Any, request), _Answer, timeout, metadata)).root


class _Request(BaseModel):
    """A request whose answer the SDK hands on unchecked: it checks by `method`, and knows none of that name."""

    method: ClassVar[str] = "mcp_tasks/question"
    asked: str = Field(serialization_alias="method")
    params: dict[str, Any]


class _Answer(RootModel[dict[str, Any]]):
    """Whatever a client answers."""


# ---- sdk errors
# Our errors as exceptions of the SDK: the only ones that pass through it with their text.


class AnswerTimedOut(MCPError, QuestionTimedOut):
    """`QuestionTimedOut` as a tool gets it: caught as a `TimeoutError`, and with a text for the client if it is not."""

    def __init__(self, error: ErrorData, timeout: timedelta | None) -> None:
        MCPError.__init__(self, code=error.code, message=error.message, data=error.data)
        self.timeout = timeout


def to_mcp_error(exc: Exception) -> MCPError:
    """The exception that the SDK answers with the error of `exc`: `exc` itself, if it can be sent as it is."""
    error = to_error_data(exc)
    if isinstance(exc, QuestionTimedOut):
        return AnswerTimedOut(error, exc.timeout)
    return exc if isinstance(exc, MCPError) and exc.error == error else MCPError.from_error_data(error)


# ---- channel
# The client as a tool in a task sees it: the shape of `mcp.shared.dispatcher.DispatchContext`.


_CHANNEL_NEEDED = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""The requests a task may make of its client, and the capability that says the client takes them."""

UNKNOWN_CLIENT: Final[JsonObject] = MappingProxyType({"name": "unknown", "version": ""})
"""A client that nobody knows, where the SDK needs one that has a name."""

_PROGRESS: Final = "notifications/progress"
_ASKS_WITH: Final = "The tool asks with "


class TaskChannel:
    """What a tool sends to its client, taken into its task."""

    def __init__(self, run: Run, calls: OpenCalls | None = None) -> None:
        self._run = run
        self._calls = calls
        self._transport = TransportContext(kind="task", can_send_request=True)

    @property
    def transport(self) -> TransportContext:
        """There is no transport: the request has been answered long ago."""
        return self._transport

    @property
    def can_send_request(self) -> bool:
        """Requests become questions, so they can always be sent."""
        return True

    @property
    def request_id(self) -> RequestId | None:
        """The task stands in for the request."""
        return self._run.record.id

    @property
    def message_metadata(self) -> MessageMetadata:
        """Nothing of the original message is kept."""
        return None

    @property
    def cancel_requested(self) -> anyio.Event:
        """Cancellation reaches the body itself; nobody waits for this."""
        return anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Put a question to the client and wait for its answer."""
        if method == "ping":
            # Where no client can be reached, the task stands in for it: it takes whatever the tool has to say.
            if self._calls is not None:
                await self._calls.ping(self._run.record.id, None if opts is None else opts.get("timeout"))
            return {}
        if method not in _CHANNEL_NEEDED:
            raise NoBackChannelError(method)
        question = InputRequest(method=method, params=valid_json(params or {}))
        try:
            check_askable(question, self._run.request)
            warn_of_schema(question.params)
            return dict(await self._run.ask(question, _asking(opts)))
        except (RpcError, TasksError) as exc:
            # As an `MCPError`, because any other exception of a tool is a crash to the SDK, and its text is withheld.
            raise to_mcp_error(exc) from exc

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send it on the calls that are open, or to the sessions of 2025-11-25 that have the task. SEP-2663 has no log
        or progress notifications for tasks, so it is dropped where there are none."""
        await self.notify_calls(method, params, related=True)

    async def notify_calls(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """The same, on the streams of the calls or on those of their connections."""
        calls = () if self._calls is None else self._calls.of(self._run.record.id)
        if self._calls is None or not self._calls.reaches(self._run.record.id):
            logger.debug("dropped %s: not sent for a task", method)
        elif method == _PROGRESS:
            # The other way to report progress: with the token, as it came with the call.
            report = params or {}
            token = report.get("progressToken")
            if token is not None and token in [call.meta.get("progress_token") for call in calls]:
                await self.progress(report["progress"], report.get("total"), report.get("message"))
        else:
            said = None if params is None else valid_json(params)
            await self._calls.notify(self._run.record.id, method, said, related=related)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Make it the task's progress. Numbers that JSON cannot hold say nothing about progress either."""
        done = _json_number(progress)
        if done is None:
            return
        said = None if message is None else valid_text(message)
        reported = Progress(progress=done, total=_json_number(total), message=said)
        if self._calls is not None:
            # First, so that a call hears of it from the tool, and knows it when it shows in the record.
            await self._calls.progress(self._run.record.id, reported.progress, reported.total, said)
        await self._run.report(reported)


class ConnectionChannel:
    """What a tool sends to its client beside its request: `Connection.outbound`."""

    def __init__(self, channel: TaskChannel) -> None:
        self._channel = channel

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Put a question to the client: in a task all questions go one way."""
        return await self._channel.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send it where a plain call would, while a call is open."""
        await self._channel.notify_calls(method, params, related=False)


def _asking(opts: CallOptions | None) -> Asking | None:
    """What the SDK's own call says of the question: how long it may take."""
    seconds = None if opts is None else opts.get("timeout")
    return None if seconds is None else Asking(timeout=timedelta(seconds=seconds))


def _json_number(value: float | None) -> float | None:
    """The number as JSON can hold it, whatever type of number the tool used; None for one that it cannot."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Whole numbers stay exact, of which a float is not capable beyond 2**53; a bool is one to Python, not to JSON.
    return int(value) if isinstance(value, int) else number if math.isfinite(number) else None


def check_askable(question: InputRequest, request: TaskRequest) -> None:
    """Refuse a question that whoever made the request cannot be asked.

    Raises:
        RpcError: -32021, with the reason.
    """
    try:
        require_capability(question, request.client_capabilities)
    except RpcError as exc:
        # A handshake says who the client is. Where it was not kept, nobody knows what it said, and no way leads back.
        if request.client_info in (None, UNKNOWN_CLIENT) and request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
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
    """The error as eras before the newest have it.

    They know neither the code nor the data of a missing capability: in a plain call the client would have refused the
    question itself. Where a tool raises the same code for itself, it stays.
    """
    return {"code": INVALID_REQUEST, "message": error["message"]} if _is_missing_capability(error) else error


def _is_missing_capability(error: JsonObject) -> bool:
    """Whether an error is that of `check_askable`, and not one with its code that a tool raised."""
    data = error.get("data")
    return (
        error["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
        and error["message"].startswith(_ASKS_WITH)
        and isinstance(data, Mapping)
        and set(cast("Mapping[str, Any]", data)) == {"requiredCapabilities"}
    )


_COMPLETE = "complete"

_ALL_LOGS: RequestParamsMeta = cast(Any, {LOG_LEVEL_META_KEY: "debug"})
"""A run hands on whatever is logged: each open call says for itself what it wants to see."""

_NEEDED = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}
"""What a result of each method has, and a question does not."""

_PARAMS: dict[str, type[Params]] = {
    "tools/call": CallToolRequestParams,
    "prompts/get": GetPromptRequestParams,
    "resources/read": ReadResourceRequestParams,
}

Answering: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]
"""Has a question answered that a tool asked by returning it."""

body_at_work: ContextVar[ToolBody | None] = ContextVar("mcp_tasks_body_at_work", default=None)
"""What runs the tool that the calling code is part of."""


class ToolBody:
    """The body of every run: calls the tool that the record names.

    Args:
        calls: The calls that are open in this process; None where no call waits for a task.
    """

    def __init__(self, host: ToolHost, lifespan_state: Callable[[], Any], calls: OpenCalls | None = None) -> None:
        self._host = host
        self._lifespan_state = lifespan_state
        self._calls = calls
        self._clients = ClientCache()
        self._had: WeakSet[OpenCall] = WeakSet()

    async def __call__(self, run: Run) -> Ending:
        """Call the tool, as often as it takes to answer what it asks by returning, and say how it ended."""

        async def answered(question: JsonObject) -> JsonObject:
            # Somebody may be waiting on the original call, in this process or another. The record decides who was
            # first: the question, or the announcement of the task; after that it is asked in the task.
            if await run.ask_on_call(question):
                raise _IsAskedOnCall
            return await run.ask_all(questions_in(question, run.request))

        body_at_work.set(self)
        call = self._first_call(run)
        if call is not None:
            auth_context_var.set(call.user)
        try:
            return Success(await self._result(run.request, self._context(run), answered))
        except _IsAskedOnCall:
            return AskedOnCall()
        except Exception as exc:
            if not isinstance(exc, MCPError | RpcError | UsageError | AnswerRefused):
                # The id is cut short: whoever knows all of it can see the task.
                logger.error("the run of task %s… failed", run.record.id[:12], exc_info=quietly())
            return Failure(describe(exc))

    async def call(self, request: TaskRequest) -> JsonObject:
        """What the tool gives, called here and now, and without a task of its own.

        In a tool that runs as a task it is a part of that: what it asks, the task asks.

        Raises:
            MCPError: The tool raised it.
            RpcError: What it returned is not a result.
            UsageError: It asks something, and there is nobody to answer.
        """
        run = current_run.get()
        if run is None:
            context = lone_context(request.method, self._lifespan_state(), _fields(request))
            return await self._result(request, context, _unanswerable(request))

        async def answered(question: JsonObject) -> JsonObject:
            return await run.ask_all(questions_in(question, run.request))

        context = replace(self._context(run), method=request.method, params=_fields(request))
        return await self._result(request, context, answered)

    async def _result(self, request: TaskRequest, context: RequestContext, answered: Answering) -> JsonObject:
        params = _params(request, request.input_responses, request.request_state)
        while True:
            result = await self._host.call(context, params)
            if not mcp_methods.is_input_required(result):
                return _neutral_result(request, result)
            question = _question(request, result)
            params = _params(request, await answered(question), question.get("requestState"))

    def _context(self, run: Run) -> RequestContext:
        request = run.request
        channel = TaskChannel(run, self._calls)
        client = self._clients.client_of(request)
        connection = Connection(
            ConnectionChannel(channel), protocol_version=request.protocol_version, client_params=client.client_params
        )
        connection.client_capabilities = client.client_capabilities
        connection.initialized.set()
        call = self._first_call(run)
        return ServerRequestContext(
            session=ServerSession(channel, connection, request_meta=_ALL_LOGS),
            lifespan_context=self._lifespan_state(),
            protocol_version=request.protocol_version,
            method=request.method,
            params=_fields(request),
            request_id=run.record.id,
            meta=cast(Any, dict(request.meta if call is None else call.meta)),
            request=None if call is None else call.request,
            close_sse_stream=None if call is None else call.close_stream,
            close_standalone_sse_stream=None if call is None else call.close_connection_stream,
        )

    def _first_call(self, run: Run) -> OpenCall | None:
        """The call that the first run of a task has, if that is open here.

        Later runs have it for as long as it is the very same: a tool that was parked goes on with what it had. Other
        calls of the same work are not theirs, or a tool would come to depend on what is not there after a restart.
        """
        if self._calls is None:
            return None
        there = [call for call in self._calls.of(run.record.id) if call.name == run.record.name]
        if run.attempt == 1:
            self._had.update(there[:1])
        return next((call for call in there if call in self._had), None)


def questions_in(question: JsonObject, request: TaskRequest) -> dict[str, InputRequest]:
    """What a tool asked by returning, by its own keys.

    Raises:
        RpcError: -32021, if the client cannot be asked such a thing.
    """
    questions: dict[str, InputRequest] = {}
    for key, asked in question.get("inputRequests", {}).items():
        questions[key] = InputRequest(method=asked["method"], params=asked.get("params", {}))
        check_askable(questions[key], request)
    return questions


class _IsAskedOnCall(Exception):
    """The original call is answered with a question, and the task is over."""


def _unanswerable(request: TaskRequest) -> Answering:
    async def refused(question: JsonObject) -> JsonObject:
        raise UsageError(
            f"{request.name!r} asks something before it has a result, and a call in this process has nobody to answer: "
            f"start it as a task, and answer with send_input"
        )

    return refused


def _fields(request: TaskRequest) -> dict[str, Any]:
    if request.method == "resources/read":
        return {"uri": request.name}
    return {"name": request.name, "arguments": dict(request.arguments)}


def _params(request: TaskRequest, responses: JsonObject | None, state: str | None) -> Params:
    fields = _fields(request)
    if responses is not None:
        fields["inputResponses"] = dict(responses)
    if state is not None:
        fields["requestState"] = state
    return _PARAMS[request.method].model_validate(fields, by_name=False)


def _neutral_result(request: TaskRequest, result: Any) -> JsonObject:
    """The result as the newest era has it, which is the one that can say most, without its mark."""
    with _returned_by(request.name):
        returned = _as_object(result)
        if is_created_task(returned):
            raise UsageError(
                f"{request.name!r} returned a CreateTaskResult. A marked tool returns its own result, and becomes a "
                "task by its mark"
            )
        dumped = _marked(request, returned)
        # Structured content may be nearly all of a result, and no schema says anything about it. That of a model is
        # plain JSON by now, and there is nothing to gain from another pass over it.
        structured = dumped.pop("structuredContent", None) if isinstance(result, BaseModel) else None
        neutral = mcp_methods.serialize_server_result(request.method, LATEST_MODERN_VERSION, dumped)
        if _NEEDED[request.method] not in neutral:
            # The schema takes it for a question, of which nothing is required.
            raise _InvalidResult
    del neutral["resultType"]
    if request.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        _restore_nulls(neutral, dumped)
    return neutral if structured is None else {**neutral, "structuredContent": structured}


def _restore_nulls(neutral: Any, dumped: Any) -> None:
    """Put back what is null in a `_meta`: the newest era drops it, and a plain call of an older one does not."""
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


def _as_object(result: Any) -> dict[str, Any]:
    """What a handler returned, as the SDK reads it."""
    if isinstance(result, BaseModel):
        return _dumped(result)
    if result is None or isinstance(result, dict):
        return dict(cast("dict[str, Any]", result or {}))
    raise TypeError(f"a tool returned {type(result).__name__}; expected a model, a dict or None")


def is_created_task(result: Mapping[str, Any]) -> bool:
    """Whether a result is the answer to a call that became a task, in the words of any era."""
    task = result.get("task")
    if result.get("resultType") == "task":
        return True
    return isinstance(task, Mapping) and "taskId" in task and not any(needed in result for needed in _NEEDED.values())


def _marked(request: TaskRequest, dumped: dict[str, Any]) -> dict[str, Any]:
    """The result with the mark of the newest era.

    In that era a plain call is refused that has none, and one that is the mark of an extension is sent as it is; the
    result of a task can have no such mark. In an era without marks a plain call drops whatever stands there.
    """
    if request.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return {**dumped, "resultType": _COMPLETE}
    mark = dumped.get("resultType")
    if isinstance(mark, str) and mark != _COMPLETE:
        raise UsageError(
            f"The result of tool {request.name!r} has the resultType {mark!r}, and a task ends with 'complete'"
        )
    return dumped


def _question(request: TaskRequest, result: InputRequiredResult | dict[str, Any]) -> JsonObject:
    """What a tool asked by returning, in text that every client can parse, and without the era's mark."""
    with _returned_by(request.name):
        asked = InputRequiredResult.model_validate(result, by_name=False)
    question = valid_json(_dumped(asked))
    del question["resultType"]
    return question


class _InvalidResult(Exception):
    """A result does not have what its schema asks for."""


@contextmanager
def _returned_by(tool: str) -> Generator[None]:
    """Turn what pydantic says of a result into the SDK's own error for it; the details would quote the result.

    A result that has the right shape, and cannot be written as JSON, is told apart: nothing else would say why.
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


# ---- elicitation
# `elicit`: ask for one plain value, without a model of a form.


T = TypeVar("T")

_PLAIN: Final = (bool, str, int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted(Generic[T]):
    """An answer to a question that was accepted.

    Attributes:
        data: The value, of the type that was asked for.
    """

    data: T
    action: Literal["accept"] = "accept"


Elicited: TypeAlias = Accepted[T] | DeclinedElicitation | CancelledElicitation
"""What a question is answered with: `action` is `"accept"`, `"decline"` or `"cancel"`."""


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
