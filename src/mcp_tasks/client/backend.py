"""One task of a server as its handle drives it: the seam between handles and the eras of the protocol.

A handle knows how to wait, what a ledger keeps and who answers questions. What is said to the server for that is the
port's: `client.modern` for 2026-07-28, and whatever `client.eras` passes in for older versions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar, cast
from weakref import ref

import anyio
import httpx2
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    InputRequest,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    Request,
    RequestId,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from mcp_tasks.client.poller import CallLost, Patience, Poller, call_repeated
from mcp_tasks.errors import CallNotKept, InvalidOption, InvalidResponse, TasksError, UnknownTask, UsageError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import backoff
from mcp_tasks.protocol.shapes import (
    IDEMPOTENCY_CAPABILITY,
    IDEMPOTENCY_KEY,
    LIMIT_EXCEEDED,
    LONGEST_KEY,
    MAY_HAVE_HAPPENED,
    REPEATED_META_KEY,
    UNAVAILABLE,
    CancelTaskParams,
    GetTaskParams,
    TaskSnapshot,
    UpdateTaskParams,
    parse_task,
)
from mcp_tasks.quiet import get_logger, what

# ---- mailbox
# What a wait for a task is told between its looks.


class Mailbox:
    """The newest state that was pushed for one task, or became known here."""

    def __init__(self) -> None:
        self.live: bool = False
        self.hinted: bool = False
        self.is_over: bool = False
        self.changed: asyncio.Event = asyncio.Event()
        self._snapshot: TaskSnapshot | None = None
        self._shown: TaskSnapshot | None = None

    def put(self, snapshot: TaskSnapshot) -> None:
        """Keep a state that is not older than the one we have; notifications may overtake each other."""
        self.live = True
        known = self._snapshot
        if known is None or snapshot.is_final or (not known.is_final and known.updated_at <= snapshot.updated_at):
            self._snapshot = snapshot
        self.changed.set()

    def show(self, snapshot: TaskSnapshot) -> None:
        """Keep what became known of the task beside its state: progress, a question. It says nothing of the pace."""
        self._shown = snapshot
        self.changed.set()

    def hint(self) -> None:
        """Something may have happened to the task, says somebody who may not know."""
        self.hinted = True
        self.changed.set()

    def over(self) -> None:
        """The task has ended, says its server; a look tells how."""
        self.is_over = True
        self.changed.set()

    def take(self) -> TaskSnapshot | None:
        """What was pushed since the last time."""
        self.changed.clear()
        self.hinted = self.is_over = False
        snapshot, self._snapshot = self._snapshot, None
        return snapshot

    def take_shown(self) -> TaskSnapshot | None:
        """What became known here since the last time."""
        snapshot, self._shown = self._shown, None
        return snapshot

    def end(self) -> None:
        """The stream ended."""
        self.live = False
        self.changed.set()


class TaskPort(Protocol):
    """One task of a server, over one connection.

    Attributes:
        immediate_response: What a server of 2025-11-25 gave the model to read while the task runs.
    """

    immediate_response: str | None

    async def get(self) -> TaskSnapshot:
        """Look at the task, and at its outcome once it has one.

        Raises:
            UnknownTask: The server does not know the task (any more).
            InvalidResponse: The server answered with something that is not a valid task.
            MCPError: The server, or the connection to it, failed.
        """
        ...

    async def state(self) -> TaskSnapshot:
        """As `get`, but a task that has ended may come without its outcome, if that cannot be had now."""
        ...

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Give the server answers to questions of the task, by their keys.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The task asks nothing of the kind, or not over this connection.
            MCPError: The server refuses an answer.
        """
        ...

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Put a question of the task to the client's own callbacks.

        Raises:
            InvalidResponse: It is not a valid question.
            MCPError: The callback refuses.
        """
        ...

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Answer a question with an error, where the protocol version allows that. Whether it does.

        Raises:
            MCPError: The connection has ended.
        """
        ...

    async def cancel(self) -> None:
        """Ask for the task to be cancelled.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The server does not cancel tasks.
        """
        ...

    def join(self, box: Mailbox, *, questions: bool) -> AbstractAsyncContextManager[None]:
        """While this is entered, whatever becomes known of the task is put into the box.

        Args:
            questions: Whether somebody is there to answer. Questions of an older server go to one who fetches them,
                and some send each only once.
        """
        ...


Finish: TypeAlias = Callable[[TaskSnapshot, str], Awaitable[JsonObject]]
"""Sees a task that a call became to its end: the task as it was made, the tool's name, and the tool's result."""


class OlderTasks(Protocol):
    """Tasks of an era that the SDK's session does not know, over one connection.

    Attributes:
        finish: Sees the tasks to their ends that the session's own calls become; without it, they become none.
    """

    finish: Finish | None

    @property
    def is_offered(self) -> bool:
        """Whether the server speaks this era, and takes calls of tools as tasks."""
        ...

    @property
    def is_spoken(self) -> bool:
        """Whether the server speaks this era, and has tasks at all."""
        ...

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """As a handler of the wire."""
        ...

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """As a handler of the wire."""
        ...

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        *,
        ttl: timedelta | None,
        timeout: float | None,
        meta: Mapping[str, Any] | None = None,
    ) -> TaskSnapshot | JsonObject | None:
        """Call a tool as a task: the task, the result if the server answered inline, None if the tool takes no tasks.

        Args:
            timeout: Seconds for the server to answer, which is not to end the task.

        Raises:
            MCPError: The call failed.
        """
        ...

    def task(self, task_id: str) -> TaskPort:
        """The task of that id. Nothing is sent."""
        ...

    def tasks(self) -> AsyncIterator[TaskSnapshot]:
        """The tasks that the server lists, without their outcomes.

        Raises:
            UsageError: The server does not list tasks.
        """
        ...


# ---- messages
# JSON-RPC messages as a `Wire` sends and delivers them.


CONNECTION_OVER: Final = "Connection closed"
"""What the SDK says of a connection that is gone for good, a stdio server that ended for one. A request over HTTP that
was cut off has the same code and says something else."""

CUT_OFF: Final = "the server went away"
"""What a transport of ours says of an answer whose end did not come."""

ACCESS_REFUSED: Final = -32098
"""The code of the error that a transport of ours makes of a server that refuses our credentials."""

SENT_DATA_KEY: Final = "mcp-tasks/sent"
"""In the data of an error that a transport of ours made in place of an answer: whether the request may have reached the
server."""


def request_message(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> JSONRPCRequest:
    """A request."""
    # Params are left out, not null: JSON-RPC has no null there.
    if params is None:
        return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method)
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=dict(params))


def notification(method: str, params: Mapping[str, Any] | None) -> JSONRPCNotification:
    """A notification."""
    if params is None:
        return JSONRPCNotification(jsonrpc="2.0", method=method)
    return JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params))


def reply_to(request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> JSONRPCResponse | JSONRPCError:
    """The answer to a request."""
    if isinstance(outcome, ErrorData):
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=outcome)
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=dict(outcome))


async def messages_in(response: httpx2.Response) -> AsyncGenerator[JsonObject]:
    """The messages in an answer over HTTP, as they come: it is one, or a stream of events. What is no JSON object is
    passed over."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        if (message := _strict(await response.aread())) is not None:
            yield message
        return
    async for event in httpx2.EventSource(response):
        if (message := _strict(event.data)) is not None:
            yield message


def unreadable_answer(exc: Exception) -> JSONRPCError | None:
    """The error in place of an answer that cannot be read, if it still says to which request: whoever made that would
    wait for ever. None for anything else that a transport could not read."""
    if not isinstance(exc, ValidationError):
        return None
    for error in exc.errors(include_url=False, include_context=False):
        message = _lenient(error["input"])
        if isinstance(request_id := message.get("id"), str | int) and message.keys() & {"result", "error"}:
            why = f"The answer is no JSON-RPC message: {error['msg']}"
            answer = ErrorData(code=PARSE_ERROR, message=why, data={SENT_DATA_KEY: True})
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=answer)
    return None


def _strict(text: str | bytes) -> JsonObject | None:
    """The JSON object in a text, if it is one as the standard has it."""
    try:
        return object_in(from_json(text, allow_inf_nan=False))
    except ValueError:
        return None


def _lenient(given: Any) -> JsonObject:
    """A message as far as it is one: Python reads texts that are no Unicode."""
    try:
        return object_in(json.loads(given) if isinstance(given, str | bytes) else given) or {}
    except (ValueError, RecursionError):
        return {}


def connection_closed() -> MCPError:
    """What a request fails with whose connection has ended."""
    # In the SDK's own words: whoever waits is told by them that trying again is no use.
    return MCPError(code=CONNECTION_CLOSED, message=CONNECTION_OVER)


# ---- requests
# The tasks methods as the SDK's session sends them, and what their errors mean to a wait.


TRANSIENT_CODES = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR, PARSE_ERROR})
"""Errors after which the same request may well succeed: the server restarts, is slow, or its store is busy; the SDK
reports an answer that was cut off as one that cannot be parsed."""

T = TypeVar("T")

SHORTEST_PAUSE: Final = 0.05
"""Seconds before a request that was refused is sent again, whatever the server says."""

LONGEST_PAUSE: Final = 60.0
"""Seconds that a request may be put off in all by a server that says when to come back, before who waits is told."""


class AnyResult(Result):
    """A result as it came; what is in it is looked at here."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class CreatedTask(Result):
    """A task in place of a tool's result, as far as a call needs it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"
    task_id: str = Field(alias="taskId")
    status: str


class _TaskRequest(Request[Any, str]):
    # SEP-2663, "Routing Headers": the client MUST set Mcp-Name to the task's id.
    name_param: ClassVar[str | None] = "taskId"


class _GetTask(_TaskRequest):
    method: str = "tasks/get"
    params: GetTaskParams


class _UpdateTask(_TaskRequest):
    method: str = "tasks/update"
    params: UpdateTaskParams


class _CancelTask(_TaskRequest):
    method: str = "tasks/cancel"
    params: CancelTaskParams


async def get_task(session: ClientSession, task_id: str) -> TaskSnapshot:
    """Look at a task.

    Raises:
        UnknownTask: The server does not know the task (any more).
        InvalidResponse: The server answered with something that is not a valid task.
        MCPError: The server, or the connection to it, failed.
    """
    result = await _send(session, task_id, _GetTask(params=GetTaskParams(taskId=task_id)))
    snapshot = parse_task(result)
    if snapshot.id != task_id:
        raise InvalidResponse(f"asked for task {task_id}, and the server answered with task {snapshot.id}")
    return snapshot


async def update_task(session: ClientSession, task_id: str, responses: Mapping[str, Any]) -> None:
    """Answer questions of a task.

    Raises:
        UnknownTask: The server does not know the task (any more).
        MCPError: The server refuses an answer.
    """
    params = UpdateTaskParams(taskId=task_id, inputResponses=dict(responses))
    try:
        await _send_in_time(session, _UpdateTask(params=params))
    except MCPError as exc:
        if exc.code == INVALID_PARAMS:
            # The same code for a task that is not there and an answer that does not fit: a look tells them apart.
            await get_task(session, task_id)
        raise


def check_answer(responses: Mapping[str, Any]) -> None:
    """Check that answers can be sent at all, before anything is recorded or sent.

    Raises:
        UsageError: They cannot; the SDK would close the connection over them.
    """
    what = f"the answer to {', '.join(map(repr, responses))}"
    try:
        json.dumps(dict(responses), ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{what} contains text that is not valid Unicode") from exc
    except (TypeError, ValueError) as exc:
        raise UsageError(f"{what} cannot be written as JSON: {exc}") from exc


def plain_answers(responses: Mapping[str, Any]) -> dict[str, Any]:
    """Answers as they are recorded and sent: models of the SDK, such as `ElicitResult`, become what they stand for.

    Raises:
        UsageError: One cannot be sent.
    """
    plain = {key: _plain(response) for key, response in responses.items()}
    check_answer(plain)
    return plain


def _plain(response: Any) -> Any:
    if isinstance(response, BaseModel):
        return response.model_dump(by_alias=True, mode="json", exclude_none=True)
    return response


async def cancel_task(session: ClientSession, task_id: str) -> None:
    """Ask for a task to be cancelled."""
    await _send(session, task_id, _CancelTask(params=CancelTaskParams(taskId=task_id)))


async def listen_to_tasks(session: ClientSession, task_ids: Sequence[str]) -> None:
    """Keep a stream open on which the server tells of these tasks. Returns when the server ends it."""
    wanted = SubscriptionFilter.model_validate({"taskIds": list(task_ids)}, by_name=False)
    request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
    # The answer comes when the stream ends, which may be never.
    await session.send_request(request, AnyResult, request_read_timeout_seconds=float("inf"))


def is_transient(exc: Exception) -> bool:
    """Whether the same request may succeed later, without anybody fixing anything."""
    if isinstance(exc, MCPError):
        if retry_after(exc) is not None:
            return True
        return exc.code in TRANSIENT_CODES and exc.message != CONNECTION_OVER and not is_over_limit(exc)
    return isinstance(exc, httpx2.TransportError | OSError)


def is_unreadable(exc: Exception) -> bool:
    """Whether an answer came that is no JSON-RPC, and was not cut off: a transport of ours says where it was."""
    return isinstance(exc, MCPError) and exc.code == PARSE_ERROR and CUT_OFF not in exc.message


def retry_after(exc: MCPError) -> float | None:
    """Seconds after which a server wants to be asked again that was asked for too much; None if it does not say so."""
    data: Any = exc.data
    if exc.code != LIMIT_EXCEEDED or not isinstance(data, Mapping):
        return None
    wanted: Any = cast("Mapping[str, Any]", data).get("retryAfterMs")
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and math.isfinite(wanted)
    return max(float(wanted), 0.0) / 1000 if is_number else None


def store_reason(exc: Exception) -> str | None:
    """What a server says of its store that gave no answer, in one word; None if the error is another one."""
    data: Any = exc.data if isinstance(exc, MCPError) and exc.code == INTERNAL_ERROR else None
    reason: Any = cast("Mapping[str, Any]", data).get("reason") if isinstance(data, Mapping) else None
    return reason if reason in (UNAVAILABLE, MAY_HAVE_HAPPENED) else None


async def past_outage(send: Callable[[], Awaitable[T]], patience: Patience | None) -> T:
    """Send a request that may be carried out twice, and again while the server's store gives no answer.

    Raises:
        MCPError: The server refuses for another reason, or its store is away for longer than the patience.
    """
    retries = Poller(patience)
    while True:
        try:
            return await send()
        except MCPError as exc:
            now = anyio.current_time()
            if store_reason(exc) is None or not retries.failed(now):
                raise
        await anyio.sleep(retries.next_look - now)


async def in_time(send: Callable[[], Awaitable[T]], longest: float = LONGEST_PAUSE) -> T:
    """Send a request, and again when the server says that it may be: nothing was done until then.

    Args:
        longest: Seconds that it may be put off in all.

    Raises:
        MCPError: The server refuses for another reason, or for longer.
    """
    waited = 0.0
    while True:
        try:
            return await send()
        except MCPError as exc:
            wanted = retry_after(exc)
            if wanted is None or waited + wanted > longest:
                raise
        # A little later than the server says: its other clients were told the same.
        pause = max(wanted, SHORTEST_PAUSE) * random.uniform(1, 1.25)  # noqa: S311  chance, and no secret
        waited += pause
        await anyio.sleep(pause)


async def _send_in_time(session: ClientSession, request: _TaskRequest) -> AnyResult:
    return await in_time(lambda: session.send_request(request, AnyResult))


async def _send(session: ClientSession, task_id: str, request: _TaskRequest) -> dict[str, Any]:
    try:
        result = await _send_in_time(session, request)
    except MCPError as exc:
        if exc.code == INVALID_PARAMS:
            raise UnknownTask(task_id, f"Task {task_id} not found") from exc
        raise
    except ValidationError as exc:
        raise InvalidResponse(
            f"the server answered {request.method} with something that is not a valid result"
        ) from exc
    return result.model_dump(by_alias=True, mode="json")


# ---- push
# Notifications instead of polls, where a server sends them.


logger: Final = get_logger(__name__)

GATHER = 0.02
"""Seconds a stream waits for more tasks to share it; far below any poll interval."""

MAX_IDS_PER_STREAM = 100
"""What servers of ours take, unless their author says otherwise."""

CLOSING = 1.0
"""Seconds to wait at most for a stream to close."""


class PushHub:
    """The listen streams of one session."""

    def __init__(self, session: ClientSession) -> None:
        # Weakly: whoever keeps hubs by their sessions must not keep the sessions alive by that.
        self._session = ref(session)
        self._offered = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._boxes: dict[str, set[Mailbox]] = {}
        self._unheard: set[str] = set()
        self._streams: dict[asyncio.Task[None], frozenset[str]] = {}
        self._opener: asyncio.Task[None] | None = None
        self._has_warned = False

    @asynccontextmanager
    async def join(self, task_id: str, box: Mailbox) -> AsyncGenerator[None]:
        """Put the states of a task into a mailbox, for as long as this is entered."""
        boxes = self._boxes.setdefault(task_id, set())
        boxes.add(box)
        if self._offered and len(boxes) == 1:
            self._unheard.add(task_id)
            if self._opener is None or self._opener.done():
                self._opener = asyncio.create_task(self._open_streams())
        try:
            yield
        finally:
            boxes.discard(box)
            if not boxes:
                del self._boxes[task_id]
                self._unheard.discard(task_id)
                await self._close_idle_streams()

    def awaits(self, params: Mapping[str, Any]) -> bool:
        """Whether somebody waits for the task of a notification."""
        return str(params.get("taskId")) in self._boxes

    def deliver(self, params: Mapping[str, Any]) -> None:
        """Hand a notification to whoever waits for its task."""
        boxes = self._boxes.get(str(params.get("taskId")))
        if not boxes:
            return
        try:
            snapshot = parse_task(params)
        except InvalidResponse as exc:
            # Once at that level: a server may send as many as it likes.
            logger.log(
                logging.DEBUG if self._has_warned else logging.WARNING, "ignored a notification: %s", type(exc).__name__
            )
            self._has_warned = True
            return
        for box in boxes:
            box.put(snapshot)

    def hint(self, params: Mapping[str, Any]) -> None:
        """A notification that may be of another server: no more than a reason to look at the task here."""
        for box in self._boxes.get(str(params.get("taskId")), ()):
            box.hint()

    async def _open_streams(self) -> None:
        while self._unheard and self._offered:
            await anyio.sleep(GATHER)
            new = sorted(self._unheard)[:MAX_IDS_PER_STREAM]
            if new:
                self._unheard.difference_update(new)
                self._open(self._with_smaller_streams(set(new)))

    def _with_smaller_streams(self, ids: set[str]) -> frozenset[str]:
        """These tasks, and those of streams that the new one takes over."""
        for stream, of_stream in sorted(self._streams.items(), key=lambda item: len(item[1])):
            wanted = {task_id for task_id in of_stream if task_id in self._boxes}
            if len(wanted) <= len(ids) and len(wanted) + len(ids) <= MAX_IDS_PER_STREAM:
                ids |= wanted
                stream.cancel()
        return frozenset(ids)

    def _open(self, ids: frozenset[str]) -> None:
        session = self._session()
        if session is not None:
            stream = asyncio.create_task(self._keep_stream(session, ids))
            self._streams[stream] = ids
            stream.add_done_callback(self._streams.pop)

    async def _keep_stream(self, session: ClientSession, ids: Iterable[str]) -> None:
        failures = 0
        while wanted := [task_id for task_id in ids if task_id in self._boxes]:
            lasted = await self._stream_once(session, wanted)
            if not self._offered:
                return
            failures = 0 if lasted else failures + 1
            pause = backoff(failures, base=timedelta(milliseconds=500), limit=timedelta(seconds=30))
            await anyio.sleep(pause.total_seconds())

    async def _stream_once(self, session: ClientSession, ids: list[str]) -> bool:
        """One stream from its beginning to its end; whether anything came on it."""
        try:
            await listen_to_tasks(session, ids)
        except MCPError as exc:
            # As many streams as may be: there may be room for one later.
            if exc.code not in TRANSIENT_CODES and retry_after(exc) is None:
                # Not served, or not to us: this session polls.
                logger.debug("the server does not push: %s", what(exc))
                self._offered = False
        except Exception as exc:
            logger.debug("a listen stream ended: %s", what(exc))
        boxes = [box for task_id in ids for box in self._boxes.get(task_id, ())]
        lasted = any(box.live for box in boxes)
        for box in boxes:
            box.end()
        return lasted

    async def _close_idle_streams(self) -> None:
        idle = [s for s, ids in self._streams.items() if not any(task_id in self._boxes for task_id in ids)]
        for stream in idle:
            stream.cancel()
        if idle:
            # Until they are closed: an answer that arrives while a client leaves is an error of the SDK's transport.
            with anyio.CancelScope(shield=True):
                await asyncio.wait(idle, timeout=CLOSING)


# ---- modern
# Tasks of 2026-07-28, through the SDK's own session.


_requests: TypeAdapter[InputRequest] = TypeAdapter(InputRequest)


class ModernTask:
    """One task of a server, as `TaskPort` has it."""

    immediate_response: str | None = None

    def __init__(self, session: ClientSession, task_id: str, *, hub: PushHub | None = None) -> None:
        self._session = session
        self._id = task_id
        self._hub = hub

    async def get(self) -> TaskSnapshot:
        """`tasks/get`."""
        return await get_task(self._session, self._id)

    async def state(self) -> TaskSnapshot:
        """The same: here the outcome is in the state."""
        return await self.get()

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """`tasks/update`."""
        await update_task(self._session, self._id, responses)

    async def cancel(self) -> None:
        """`tasks/cancel`."""
        await cancel_task(self._session, self._id)

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Put a question to the session's callbacks."""
        try:
            # The SDK's models have their methods as defaults; a question without one says nothing about what it is.
            typed = _requests.validate_python({"method": None, **request}, by_name=False)
        except (ValidationError, TypeError) as exc:
            raise InvalidResponse("the question is not a valid input request") from exc
        context = ClientRequestContext(
            session=self._session, request_id=key, meta=typed.params.meta if typed.params else None
        )
        response = await self._session.dispatch_input_request(context, typed)
        if isinstance(response, ErrorData):
            raise MCPError.from_error_data(response)
        return response.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Never: an input response of 2026-07-28 is a result."""
        return False

    @asynccontextmanager
    async def join(self, box: Mailbox, *, questions: bool) -> AsyncGenerator[None]:
        """Listen for changes, where the server pushes. Its questions come with every look, whoever looks."""
        del questions
        if self._hub is None:
            yield
            return
        async with self._hub.join(self._id, box):
            yield


# ---- repeating
# Calls that are made once, also where the answer to one is lost.


MOST_REPEATS: Final = 5
"""With the pauses of `Patience` in between, that is some seconds; a server that restarts takes no longer."""

_CUT_OFF: Final = {CONNECTION_CLOSED: "SSE stream ", PARSE_ERROR: "Failed to parse "}
"""How the SDK's words begin for an answer that was cut off. A server has the same codes for other things."""


Send: TypeAlias = Callable[[dict[str, Any] | None], Awaitable[T]]
"""Makes the call, with this `_meta`."""


def honours_keys(session: ClientSession) -> bool:
    """Whether the server of a session says that it honours idempotency keys."""
    capabilities = session.server_capabilities
    experimental = None if capabilities is None else capabilities.experimental
    return experimental is not None and IDEMPOTENCY_CAPABILITY in experimental


def check_key(key: object) -> None:
    """Refuse what no server takes for an idempotency key.

    Raises:
        InvalidOption: It is not one; None is, and means a new one.
    """
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= LONGEST_KEY):
        raise InvalidOption(f"idempotency_key must be a string of 1 to {LONGEST_KEY} characters, or None")


async def make_once(send: Send[T], *, tool: str, key: str | None, is_honoured: bool, patience: Patience | None) -> T:
    """Make a call, and make it again where its answer was lost and that is safe.

    Args:
        key: The caller's own idempotency key; by default a new one, for a server that honours it.

    Raises:
        CallLost: There is no answer. It says whether the call may have been made.
        MCPError: The server refuses the call; or its store cannot be used for too long, and the call was not made.
    """
    key = key or (secrets.token_urlsafe(16) if is_honoured else None)
    pauses = Poller(patience)
    lost: CallLost | None = None
    failure: Exception | None = None
    for repeats in itertools.count():
        try:
            return await send(_meta(key, repeated=repeats > 0))
        except (MCPError, httpx2.TransportError) as exc:
            if failure is not None and _is_not_kept(exc):
                raise failure from exc
            if _is_lost(exc):
                may_have_run = _was_sent(exc) or (lost is not None and lost.may_have_run)
                lost = CallLost.of(exc, tool=tool, key=key, may_have_run=may_have_run, is_honoured=is_honoured)
            elif not (store_reason(exc) == UNAVAILABLE or (lost is not None and _may_come_later(exc))):
                raise
            # A server that does not make a call for now says nothing of an earlier one whose answer was lost.
            failure = lost or exc
            is_safe = is_honoured and key is not None and _may_come_back(exc)
            if not (is_safe and repeats < MOST_REPEATS and pauses.failed(anyio.current_time())):
                if failure is exc:
                    raise
                raise failure from exc
        call_repeated(tool, failure)
        await anyio.sleep(max(0.0, pauses.next_look - anyio.current_time()))
    raise AssertionError("unreachable: the count never ends")


def _meta(key: str | None, *, repeated: bool) -> dict[str, Any] | None:
    if key is None:
        return None
    return {IDEMPOTENCY_KEY: key, REPEATED_META_KEY: True} if repeated else {IDEMPOTENCY_KEY: key}


def _is_lost(exc: Exception) -> bool:
    """Whether nobody answered, as far as can be told."""
    if not isinstance(exc, MCPError):
        return True
    if isinstance(exc, TasksError) or is_over_limit(exc):
        return False
    if store_reason(exc) == MAY_HAVE_HAPPENED:
        return True
    if exc.code == REQUEST_TIMEOUT or _sent(exc) is not None or _is_over(exc):
        return True
    return exc.code in _CUT_OFF and exc.message.startswith(_CUT_OFF[exc.code])


def _may_come_back(exc: Exception) -> bool:
    """Whether the connection is there for another try, and the caller has the time for it."""
    return not (isinstance(exc, MCPError) and (exc.code == REQUEST_TIMEOUT or _is_over(exc)))


def _is_over(exc: MCPError) -> bool:
    return exc.code == CONNECTION_CLOSED and exc.message == CONNECTION_OVER


def _was_sent(exc: Exception) -> bool:
    if isinstance(exc, MCPError):
        return _sent(exc) is not False
    return not isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)


def _sent(exc: MCPError) -> object:
    """What our own transport says of a request that got no answer; None if it says nothing."""
    return _data(exc).get(SENT_DATA_KEY)


def _may_come_later(exc: Exception) -> bool:
    """Whether the server refuses a repeat for now, because of a limit: that says nothing of the first call."""
    return isinstance(exc, MCPError) and _data(exc).get("reason") == "limit"


def _is_not_kept(exc: Exception) -> bool:
    return isinstance(exc, MCPError) and _data(exc).get("reason") == CallNotKept.reason


def _data(exc: MCPError) -> JsonObject:
    return object_in(exc.error.data) or {}
