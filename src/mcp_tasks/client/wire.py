"""A connection to a server, seen message by message: what the SDK's session cannot send, or must not see, passes here.

The session of the SDK knows the methods and results of its own tables only. In 2025-11-25 a call becomes a task by a
field that the session cannot send, is answered with a result that it refuses, and a server may send it requests about
tasks that it does not know. So each connection of our transports has a `Wire`, between the transport's streams and the
session's:

    session  ──send──▶  Wire.outgoing  ──▶  transport  ──▶  server
    session  ◀─receive─  Wire.incoming  ◀──  transport  ◀──  server

A `Handler` that is added to the wire is shown every message in both directions, and returns the message, another in its
place, or None to swallow it. It decides without waiting, because the whole connection waits with it; slow work is
started with `spawn`, which ends with the connection. A wire can:

- `request` something of the server, with ids that no session uses, and get the bare result, or the server's error as
  an `MCPError`. A request that is given up is cancelled at the server.
- `notify` the server, and `reply` to a request of the server that a handler swallowed.
- `forward` a message of the session that a handler swallowed, `answer` it in the server's place, `deliver` any other
  message as if the server had sent it, and `ask` the session something as a server would: its callbacks answer.

The exception of a handler is logged, and the message goes on as it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

from mcp_tasks._utils import BackgroundTasks, short_id
from mcp_tasks.client.backend import SENT_DATA_KEY, connection_closed
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

FAREWELL = 1.0
"""Seconds to tell the server that a request is given up, while its caller is already leaving."""

_Closed = (anyio.ClosedResourceError, anyio.BrokenResourceError)


def request_message(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> JSONRPCRequest:
    """A request. Params are left out, not null: JSON-RPC has no null there."""
    given = {} if params is None else {"params": dict(params)}
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, **given)


def notification(method: str, params: Mapping[str, Any] | None) -> JSONRPCNotification:
    given = {} if params is None else {"params": dict(params)}
    return JSONRPCNotification(jsonrpc="2.0", method=method, **given)


def reply_to(request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> JSONRPCResponse | JSONRPCError:
    """The response to a request."""
    if isinstance(outcome, ErrorData):
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=outcome)
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=dict(outcome))


def _unreadable_answer(exc: Exception) -> JSONRPCError | None:
    """The error in place of a response that is not JSON-RPC, if it still says to which request it belongs, which would
    wait for ever. None for anything else that a transport could not read."""
    for error in exc.errors(include_url=False, include_context=False) if isinstance(exc, ValidationError) else ():
        given = error["input"]
        try:
            # Python's own parser reads texts that are not valid Unicode.
            message = object_in(json.loads(given) if isinstance(given, str | bytes) else given) or {}
        except (ValueError, RecursionError):
            continue
        if isinstance(request_id := message.get("id"), str | int) and message.keys() & {"result", "error"}:
            why = f"The answer is no JSON-RPC message: {error['msg']}"
            answer = ErrorData(code=PARSE_ERROR, message=why, data={SENT_DATA_KEY: True})
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=answer)
    return None


class Handler(Protocol):
    """Sees every message of a connection; returns what goes on in its place, or None for nothing."""

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """A message of the session to the server."""
        ...

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """A message of the server to the session."""
        ...


class Wire:
    """One connection. Made by a transport of ours when its client enters it.

    Args:
        read: The transport's stream of messages from the server.
        write: The transport's stream of messages to the server.
    """

    def __init__(self, read: Any, write: Any) -> None:
        self._read = read
        self._write = write
        self._handlers: list[Handler] = []
        self._to_session, from_server = anyio.create_memory_object_stream[tuple[Any, Context | None]](0)
        self._ids = 0
        # Random: a session may choose ids of its own.
        self._prefix = f"mcp-tasks-{secrets.token_hex(4)}"
        self._pending: dict[RequestId, _Pending] = {}
        self._asked: dict[RequestId, _Pending] = {}
        self._background = BackgroundTasks(
            lambda exc: logger.error("background work of a connection failed", exc_info=quietly(exc))
        )
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self._log = _RequestLog() if request_log.isEnabledFor(logging.DEBUG) else None
        self.streams: tuple[_FromServer, _ToServer] = _FromServer(from_server, self), _ToServer(self)
        """The session's streams, in place of the transport's."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed

    def add(self, handler: Handler) -> None:
        """Show a handler every message from now on, after those that were added before it."""
        self._handlers.append(handler)

    def start(self) -> None:
        """Begin to pass on what the server sends."""
        self._pump = asyncio.create_task(self._pass_on())

    async def close(self) -> None:
        """End what was started here. Safe to call twice.

        The transport's streams stay open until it has ended itself, and messages that still come are taken: the SDK's
        transports over HTTP make errors of responses that are not.
        """
        self.end()
        await _cancel([*self._background])
        self._to_session.close()
        self.streams[0].close()

    async def drop(self) -> None:
        """The transport has ended."""
        await _cancel([] if self._pump is None else [self._pump])
        if self._log is not None:
            self._log.end()
        await self._read.aclose()
        await self._write.aclose()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start slow work; it is cancelled when the connection ends."""
        return self._background.start(work)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Send the server a request, and wait for the bare result.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.
            on_result: Called with the result before the server's next message is passed on.

        Raises:
            MCPError: The server's own error; `REQUEST_TIMEOUT` if there was no response in time; `CONNECTION_CLOSED` if
                the connection has ended.
        """
        request_id = self.new_id()
        pending = self._pending[request_id] = _Pending(on_result)
        try:
            await self._send(request_message(request_id, method, params))
            with anyio.fail_after(timeout):
                return await pending.outcome
        except TimeoutError:
            await self._give_up(request_id, "timed out")
            raise MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out") from None
        except asyncio.CancelledError:
            await self._give_up(request_id, "the caller has left")
            raise
        finally:
            self._pending.pop(request_id, None)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the session something as the server would, and wait for the answer of its callbacks.

        Raises:
            MCPError: The session's own error; `CONNECTION_CLOSED` if the connection has ended.
        """
        request_id = self.new_id()
        pending = self._asked[request_id] = _Pending()
        try:
            if self._closed:
                raise connection_closed()
            await self.deliver(request_message(request_id, method, params))
            return await pending.outcome
        except asyncio.CancelledError:
            with anyio.move_on_after(FAREWELL, shield=True):
                await self.deliver(notification("notifications/cancelled", {"requestId": request_id}))
            raise
        finally:
            self._asked.pop(request_id, None)

    def new_id(self) -> str:
        """An id that no request of this connection has; a progress token for one, which shares the ids' space."""
        self._ids += 1
        return f"{self._prefix}-{self._ids}"

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send the server a notification. Dropped if the connection has ended."""
        try:
            await self._send(notification(method, params))
        except MCPError:
            logger.debug("dropped %s: the connection has ended", method)

    async def reply(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None:
        """Answer a request of the server that a handler swallowed.

        Raises:
            MCPError: `CONNECTION_CLOSED`: the connection has ended.
        """
        await self._send(reply_to(request_id, outcome))

    async def forward(self, message: JSONRPCMessage) -> None:
        """Send a message of the session that a handler swallowed on to the server after all."""
        try:
            await self._send(message)
        except MCPError as exc:
            if isinstance(message, JSONRPCRequest):
                await self.answer(message.id, exc.error)

    async def answer(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None:
        """Answer a request of the session that a handler swallowed."""
        await self.deliver(reply_to(request_id, outcome))

    async def deliver(self, message: JSONRPCMessage) -> None:
        """Hand a message to the session as if the server had sent it; no handler sees it."""
        try:
            await self._to_session.send((SessionMessage(message), None))
        except _Closed:
            logger.debug("a message for the session came after its end")

    async def from_session(self, item: SessionMessage) -> None:
        """Take a message of the session, for the server."""
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._asked:
            self._asked[message.id].settle(message)
        elif (seen := self._seen(message, "outgoing")) is not None:
            await self._put(SessionMessage(seen, item.metadata))

    def end(self) -> None:
        """The session receives nothing more, and no response comes any more."""
        self._closed = True
        for pending in (*self._pending.values(), *self._asked.values()):
            pending.fail(connection_closed())

    async def _pass_on(self) -> None:
        try:
            async with self._to_session:
                async for item in self._read:
                    if self._log is not None:
                        self._log.saw(item, "←", "→")
                    if self._closed:
                        continue
                    context: Context | None = getattr(self._read, "last_context", None)
                    if (kept := self._incoming(item)) is not None:
                        try:
                            await self._to_session.send((kept, context))
                        except _Closed:
                            self.end()
        except _Closed:
            logger.debug("the connection was closed on one side")
        finally:
            self.end()
            if self._log is not None:
                self._log.end()

    def _incoming(self, item: SessionMessage | Exception) -> SessionMessage | Exception | None:
        if isinstance(item, Exception):
            answer = _unreadable_answer(item)
            if answer is None:
                return item
            item = SessionMessage(answer)
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._pending:
            self._pending[message.id].settle(message)
            return None
        seen = self._seen(message, "incoming")
        if seen is None or seen is message:
            return None if seen is None else item
        return SessionMessage(seen, item.metadata)

    def _seen(self, message: JSONRPCMessage, way: Literal["incoming", "outgoing"]) -> JSONRPCMessage | None:
        """What is left of a message when all handlers have seen it."""
        for handler in self._handlers:
            try:
                seen = handler.incoming(message) if way == "incoming" else handler.outgoing(message)
            except Exception:
                logger.error("a message could not be handled; it goes on as it was", exc_info=quietly())
                continue
            if seen is None:
                return None
            message = seen
        return message

    async def _send(self, message: JSONRPCMessage) -> None:
        if self._closed:
            raise connection_closed()
        try:
            await self._put(SessionMessage(message))
        except _Closed:
            raise connection_closed() from None

    async def _put(self, item: SessionMessage) -> None:
        if self._log is not None:
            self._log.saw(item, "→", "←")
        await self._write.send(item)

    async def _give_up(self, request_id: str, reason: str) -> None:
        with anyio.move_on_after(FAREWELL, shield=True):
            await self.notify("notifications/cancelled", {"requestId": request_id, "reason": reason})


class _Stream:
    """One of the session's streams, as an async context manager."""

    async def aclose(self) -> None:
        """Nothing, for `_ToServer`: the wire closes the transport's own stream."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _FromServer(_Stream):
    """The session's end for what the server sends."""

    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire
        self.last_context: Context | None = None
        """The context that the last message was sent in, for a dispatcher that continues in it."""

    async def receive(self) -> SessionMessage | Exception:
        item, self.last_context = await self._inner.receive()
        return item

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        self.close()
        self._wire.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _ToServer(_Stream):
    """The session's end for what it sends."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, item: SessionMessage, /) -> None:
        await self._wire.from_session(item)


class _Pending:
    """A request that waits for its response."""

    def __init__(self, on_result: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # An error after its caller has left is not reported by the event loop.
        self.outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._on_result = on_result

    def settle(self, message: JSONRPCResponse | JSONRPCError) -> None:
        """Take the response."""
        if isinstance(message, JSONRPCError):
            self.fail(MCPError.from_error_data(message.error))
        elif not self.outcome.done():
            try:
                if self._on_result is not None:
                    self._on_result(message.result)
            except Exception as exc:
                self.outcome.set_exception(exc)
            else:
                self.outcome.set_result(message.result)

    def fail(self, exc: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(exc)


async def _cancel(works: Collection[asyncio.Task[Any]]) -> None:
    for work in works:
        work.cancel()
    if works:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(set(works), timeout=FAREWELL)


# ---- question limit
# How many questions of a server are put to a session at a time, where they do not come from tasks.


AT_ONCE: Final = 32
"""As many as a task of ours may have open: no well-behaved server asks more at a time."""

MOST_WAITING: Final = 1_000

_QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class QuestionLimit:
    """A handler that bounds the open questions of one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: set[RequestId] = set()
        self._waiting: OrderedDict[RequestId, JSONRPCRequest] = OrderedDict()

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """Let a question pass, or have it wait."""
        match message:
            case JSONRPCRequest(method=method) if method in _QUESTIONS:
                return self._asked(message)
            case JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
                return None if self._withdrawn(params.get("requestId")) else message
            case JSONRPCResponse(id=request_id, result=result) if result.get("resultType") == "input_required":
                asked: object = result.get("inputRequests")
                number = len(cast("Mapping[str, Any]", asked)) if isinstance(asked, Mapping) else 0
                if number > AT_ONCE:
                    why = f"The server asks {number} questions in one answer, and this client takes at most {AT_ONCE}"
                    error = ErrorData(code=INVALID_REQUEST, message=why)
                    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
            case _:
                pass
        return message

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """After an answer of the session, the next question has its turn."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._open:
            self._done(message.id)
        return message

    def _asked(self, question: JSONRPCRequest) -> JSONRPCRequest | None:
        if len(self._open) < AT_ONCE:
            self._open.add(question.id)
            return question
        if len(self._waiting) < MOST_WAITING:
            self._waiting[question.id] = question
            return None
        why = f"This client has {AT_ONCE} questions open and {MOST_WAITING} waiting, and takes no more"
        self._wire.spawn(self._wire.reply(question.id, ErrorData(code=INVALID_REQUEST, message=why)))
        return None

    def _withdrawn(self, request_id: object) -> bool:
        """The server no longer wants an answer. Returns whether the session was never shown the question."""
        if not isinstance(request_id, str | int):
            return False
        if self._waiting.pop(request_id, None) is not None:
            return True
        if request_id in self._open:
            self._done(request_id)
        return False

    def _done(self, request_id: RequestId) -> None:
        self._open.discard(request_id)
        if self._waiting:
            _, question = self._waiting.popitem(last=False)
            self._open.add(question.id)
            self._wire.spawn(self._wire.deliver(question))


# ---- request log
# A line for each request on a connection: its method, the tool or task, how long it took and its outcome.


request_log: Final = get_logger("mcp_tasks.client.requests")

_LONGEST: Final = 120
_MOST: Final = 1_000
"""Requests without a response that are remembered."""


class _RequestLog:
    """The open requests of one connection, by the side that sent them (an arrow)."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, RequestId], tuple[str, float]] = {}

    def saw(self, item: Any, arrow: str, back: str) -> None:
        """A message passes; `back` is the side that its request came from, if it is a response."""
        message: JSONRPCMessage | None = item.message if isinstance(item, SessionMessage) else None
        match message:
            case JSONRPCRequest():
                if len(self._open) < _MOST:
                    self._open[arrow, message.id] = _about(message), time.monotonic()
            case JSONRPCNotification():
                request_log.debug("%s %s", arrow, _about(message))
            case JSONRPCResponse():
                self._answered(back, message.id, arrow, _result(message.result))
            case JSONRPCError(id=request_id) if request_id is not None:
                self._answered(back, request_id, arrow, f"error {message.error.code}: {message.error.message}")
            case _:
                pass

    def end(self) -> None:
        """The connection has ended."""
        for (arrow, _), (what, since) in self._open.items():
            # The response to a stream comes when it ends, and this side ends it.
            how = "open for" if what.startswith("subscriptions/listen") else "no answer in"
            request_log.debug("%s %s   %s %s", arrow, what, how, _took(since))
        self._open.clear()

    def _answered(self, asked: str, request_id: RequestId, arrow: str, outcome: str) -> None:
        what, since = self._open.pop((asked, request_id), ("an unknown request", time.monotonic()))
        request_log.debug("%s %s   %s %s  %s", asked, what, arrow, _cut(outcome), _took(since))


def _about(message: JSONRPCRequest | JSONRPCNotification) -> str:
    params: JsonObject = message.params or {}
    if message.method == "tools/call":
        return f"{message.method} {_cut(str(params.get('name', '')))}"
    return f"{message.method} {_task(params)}".rstrip()


def _task(fields: JsonObject) -> str:
    """The task of a message, by the beginning of its id and its status, if there is one."""
    held = object_in(fields, "task") or fields
    task_id, status = held.get("taskId"), held.get("status")
    if not isinstance(task_id, str):
        return ""
    return f"{short_id(task_id)} {_cut(status)}" if isinstance(status, str) else short_id(task_id)


def _result(result: JsonObject) -> str:
    task = _task(result)
    if result.get("resultType") == "task" or "task" in result:
        return f"task {task}"
    if result.get("isError"):
        return "a result that is an error"
    return str(result["status"]) if task and "status" in result else "ok"


def _took(since: float) -> str:
    seconds = time.monotonic() - since
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
