"""One task of a server as its handle drives it (`TaskBackend`), and the tasks methods of 2026-07-28 (`ModernTask`).

A handle knows how to wait, what a ledger keeps and who answers questions. The backend sends requests to the server.
`legacy.client` has the backend for tasks of 2025-11-25. Also here: which errors are worth another try, push by listen
streams, and calls that are repeated under an idempotency key.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias, TypeVar
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
    Request,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mcp_tasks.client.poller import Patience, Poller
from mcp_tasks.errors import InvalidOption, InvalidResponse, TasksError, UnknownTask, UsageError
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
    TaskParams,
    TaskSnapshot,
    UpdateTaskParams,
    parse_task,
)
from mcp_tasks.quiet import get_logger, what

T = TypeVar("T")

_log: Final = get_logger(__name__)

logger: Final = get_logger("mcp_tasks.client")
"""Tells the user what happens to calls and tasks."""

Finish: TypeAlias = Callable[[TaskSnapshot, str], Awaitable[JsonObject]]
"""Waits for the task that a call became: takes the new task and the tool's name, returns the tool's result."""


class Mailbox:
    """States of one task that were pushed, or became known on this side, for a wait between its looks."""

    def __init__(self) -> None:
        self.live: bool = False
        self.hinted: bool = False
        self.is_over: bool = False
        self.changed: asyncio.Event = asyncio.Event()
        self._pushed: TaskSnapshot | None = None
        self._shown: TaskSnapshot | None = None

    def put(self, snapshot: TaskSnapshot) -> None:
        """Keep a pushed state unless it is older than the one here; notifications may overtake each other."""
        self.live = True
        known = self._pushed
        if known is None or snapshot.is_final or (not known.is_final and known.updated_at <= snapshot.updated_at):
            self._pushed = snapshot
        self.changed.set()

    def show(self, snapshot: TaskSnapshot) -> None:
        """Keep progress or a question that became known beside the task's state. It does not move the next look."""
        self._shown = snapshot
        self.changed.set()

    def hint(self) -> None:
        """Something may have happened to the task; the sender cannot be sure."""
        self.hinted = True
        self.changed.set()

    def over(self) -> None:
        """The server says that the task has ended; a look tells how."""
        self.is_over = True
        self.changed.set()

    def end(self) -> None:
        """The listen stream ended."""
        self.live = False
        self.changed.set()

    def take(self) -> TaskSnapshot | None:
        """The state that was pushed since the last time."""
        self.changed.clear()
        self.hinted = self.is_over = False
        snapshot, self._pushed = self._pushed, None
        return snapshot

    def take_shown(self) -> TaskSnapshot | None:
        snapshot, self._shown = self._shown, None
        return snapshot


class TaskBackend(Protocol):
    """One task of a server, over one connection. There is one for each protocol version.

    Attributes:
        immediate_response: Text of a 2025-11-25 server for the model to read while the task runs.
    """

    immediate_response: str | None

    async def get(self) -> TaskSnapshot:
        """Look at the task, and at its outcome once it has one.

        Raises:
            UnknownTask: The server does not know the task (any more).
            InvalidResponse: The response is not a valid task.
            MCPError: The server, or the connection to it, failed.
        """
        ...

    async def state(self) -> TaskSnapshot:
        """Like `get`, but a task that has ended may come without its outcome if that is not available now."""
        ...

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Send answers to questions of the task, by their keys.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The task did not ask this over this connection.
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
        """Answer a question with an error; False if the protocol version does not allow that."""
        ...

    async def cancel(self) -> None:
        """Ask for the task to be cancelled.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The server does not cancel tasks.
        """
        ...

    def join(self, box: Mailbox, *, questions: bool) -> AbstractAsyncContextManager[None]:
        """Put whatever becomes known of the task into the box while this is entered.

        Args:
            questions: Whether the caller will answer. A 2025-11-25 server sends its questions to a client that fetches
                them, and some servers send each only once.
        """
        ...


# ---- errors
# What the errors of requests mean to a client that waits.


CONNECTION_OVER: Final = "Connection closed"
"""The SDK's message for a connection that has ended for good. A request over HTTP that was cut off has the same code
and another message."""

CUT_OFF: Final = "the server went away"
"""In the message of an error that our transport makes of an incomplete response."""

ACCESS_REFUSED: Final = -32098
"""The code of the error that our transport makes of a server that refuses our credentials."""

SENT_DATA_KEY: Final = "mcp-tasks/sent"
"""In the data of an error that our transport makes: whether the request may have reached the server."""

TRANSIENT_CODES = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR, PARSE_ERROR})
"""Errors after which the same request may succeed: the server restarts, is slow, or its store is busy; the SDK reports
an incomplete response as one that cannot be parsed."""

SHORTEST_PAUSE: Final = 0.05
"""Seconds before a refused request is sent again, whatever the server says."""

LONGEST_PAUSE: Final = 60.0
"""Total seconds for which a server may put a request off before the caller is told."""


def connection_closed() -> MCPError:
    """The error of a request whose connection has ended."""
    # In the SDK's own words, by which waits know that another try is useless.
    return MCPError(code=CONNECTION_CLOSED, message=CONNECTION_OVER)


def _is_over(exc: MCPError) -> bool:
    return exc.code == CONNECTION_CLOSED and exc.message == CONNECTION_OVER


def _data(exc: Exception) -> JsonObject:
    return (object_in(exc.error.data) or {}) if isinstance(exc, MCPError) else {}


def is_transient(exc: Exception) -> bool:
    """Whether the same request may succeed later by itself."""
    if isinstance(exc, MCPError):
        if retry_after(exc) is not None:
            return True
        return exc.code in TRANSIENT_CODES and exc.message != CONNECTION_OVER and not is_over_limit(exc)
    return isinstance(exc, httpx2.TransportError | OSError)


def is_unreadable(exc: Exception) -> bool:
    """Whether a complete response came that is not JSON-RPC; our transport marks the incomplete ones."""
    return isinstance(exc, MCPError) and exc.code == PARSE_ERROR and CUT_OFF not in exc.message


def retry_after(exc: MCPError) -> float | None:
    """Seconds after which a rate limit lets the client ask again; None for any other error."""
    wanted: Any = _data(exc).get("retryAfterMs") if exc.code == LIMIT_EXCEEDED else None
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and math.isfinite(wanted)
    return max(float(wanted), 0.0) / 1000 if is_number else None


def store_reason(exc: Exception) -> str | None:
    """The reason that a server gives when its task store does not respond; None for any other error."""
    reason = _data(exc).get("reason") if isinstance(exc, MCPError) and exc.code == INTERNAL_ERROR else None
    return reason if reason in (UNAVAILABLE, MAY_HAVE_HAPPENED) else None


async def past_outage(send: Callable[[], Awaitable[T]], patience: Patience | None) -> T:
    """Send a request that may be carried out twice, and repeat it while the server's store does not respond.

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
    """Send a request, and repeat it when a rate limit says that it may be sent again: it was not carried out before.

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


# ---- push
# Notifications instead of polls, where a server sends them.


GATHER = 0.02
"""Seconds that a stream waits for more tasks to share it; far below any poll interval."""

MAX_IDS_PER_STREAM = 100
"""The default limit of servers made with this package."""

CLOSING = 1.0
"""Seconds to wait at most for a stream to close."""


class PushHub:
    """The listen streams of one session."""

    def __init__(self, session: ClientSession) -> None:
        # Weakly: hubs are kept by their sessions, and must not keep the sessions alive.
        self._session = ref(session)
        self._offered = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._boxes: dict[str, set[Mailbox]] = {}
        self._unheard: set[str] = set()
        self._streams: dict[asyncio.Task[None], frozenset[str]] = {}
        self._opener: asyncio.Task[None] | None = None
        self._has_warned = False

    @asynccontextmanager
    async def join(self, task_id: str, box: Mailbox) -> AsyncGenerator[None]:
        """Put the states of a task into a mailbox while this is entered."""
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
        """Whether a wait is under way for the task of a notification."""
        return str(params.get("taskId")) in self._boxes

    def deliver(self, params: Mapping[str, Any]) -> None:
        """Hand a notification to the waits for its task."""
        try:
            snapshot = parse_task(params)
        except InvalidResponse as exc:
            # Warn once: a server may send as many as it likes.
            level = logging.DEBUG if self._has_warned else logging.WARNING
            _log.log(level, "ignored a notification: %s", type(exc).__name__)
            self._has_warned = True
            return
        for box in self._boxes.get(str(params.get("taskId")), ()):
            box.put(snapshot)

    def hint(self, params: Mapping[str, Any]) -> None:
        """A notification that may be another server's is only a reason to look at the task here."""
        for box in self._boxes.get(str(params.get("taskId")), ()):
            box.hint()

    async def _open_streams(self) -> None:
        while self._unheard and self._offered:
            await anyio.sleep(GATHER)
            ids = set(sorted(self._unheard)[:MAX_IDS_PER_STREAM])
            self._unheard -= ids
            session = self._session()
            if not ids or session is None:
                continue
            # The new stream takes over the tasks of smaller ones.
            for stream, of_stream in sorted(self._streams.items(), key=lambda item: len(item[1])):
                wanted = {task_id for task_id in of_stream if task_id in self._boxes}
                if len(wanted) <= len(ids) and len(wanted) + len(ids) <= MAX_IDS_PER_STREAM:
                    ids |= wanted
                    stream.cancel()
            opened = asyncio.create_task(self._keep_stream(session, ids))
            self._streams[opened] = frozenset(ids)
            opened.add_done_callback(self._streams.pop)

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
        """Run one stream to its end; returns whether anything came on it."""
        wanted = SubscriptionFilter.model_validate({"taskIds": ids}, by_name=False)
        request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
        try:
            # The response comes when the stream ends, which may be never.
            await session.send_request(request, _AnyResult, request_read_timeout_seconds=float("inf"))
        except MCPError as exc:
            # A rate limit means too many streams: there may be room for one later.
            if exc.code not in TRANSIENT_CODES and retry_after(exc) is None:
                # Not served, or not to this client: this session polls.
                _log.debug("the server does not push: %s", what(exc))
                self._offered = False
        except Exception as exc:
            _log.debug("a listen stream ended: %s", what(exc))
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
            # Until they are closed: a response that arrives while a client leaves is an error of the SDK's transport.
            with anyio.CancelScope(shield=True):
                await asyncio.wait(idle, timeout=CLOSING)


# ---- modern
# Tasks of 2026-07-28, through the SDK's own session.


class _AnyResult(Result):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class CreatedTask(_AnyResult):
    """A task in place of a tool's result, as far as a call needs it."""

    result_type: Literal["task"] = "task"
    task_id: str = Field(alias="taskId")
    status: str


class _TaskRequest(Request[Any, str]):
    # SEP-2663, "Routing Headers": the client MUST set Mcp-Name to the task's id.
    name_param: ClassVar[str | None] = "taskId"


_requests: TypeAdapter[InputRequest] = TypeAdapter(InputRequest)


class ModernTask:
    """One task of a server, as a `TaskBackend`."""

    immediate_response: str | None = None

    def __init__(self, session: ClientSession, task_id: str, *, hub: PushHub | None = None) -> None:
        self._session = session
        self._id = task_id
        self._hub = hub

    async def get(self) -> TaskSnapshot:
        snapshot = parse_task(await self._send("tasks/get", TaskParams(taskId=self._id)))
        if snapshot.id != self._id:
            raise InvalidResponse(f"asked for task {self._id}, and the server answered with task {snapshot.id}")
        return snapshot

    async def state(self) -> TaskSnapshot:
        # In this version the outcome is in the state.
        return await self.get()

    async def answer(self, responses: Mapping[str, Any]) -> None:
        request = _TaskRequest(
            method="tasks/update", params=UpdateTaskParams(taskId=self._id, inputResponses=dict(responses))
        )
        try:
            await in_time(lambda: self._session.send_request(request, _AnyResult))
        except MCPError as exc:
            if exc.code == INVALID_PARAMS:
                # The same code for an unknown task and an answer that does not fit: a look tells them apart.
                await self.get()
            raise

    async def cancel(self) -> None:
        await self._send("tasks/cancel", TaskParams(taskId=self._id))

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        try:
            # The SDK's models have their methods as defaults; a question without a method does not say what it is.
            typed = _requests.validate_python({"method": None, **request}, by_name=False)
        except (ValidationError, TypeError) as exc:
            raise InvalidResponse("the question is not a valid input request") from exc
        meta = typed.params.meta if typed.params else None
        context = ClientRequestContext(session=self._session, request_id=key, meta=meta)
        response = await self._session.dispatch_input_request(context, typed)
        if isinstance(response, ErrorData):
            raise MCPError.from_error_data(response)
        return response.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        # An input response of 2026-07-28 is always a result.
        return False

    @asynccontextmanager
    async def join(self, box: Mailbox, *, questions: bool) -> AsyncGenerator[None]:
        """Listen for changes, where the server pushes. Questions come with every look, whoever looks."""
        del questions
        if self._hub is None:
            yield
            return
        async with self._hub.join(self._id, box):
            yield

    async def _send(self, method: str, params: BaseModel) -> dict[str, Any]:
        request = _TaskRequest(method=method, params=params)
        try:
            result = await in_time(lambda: self._session.send_request(request, _AnyResult))
        except MCPError as exc:
            if exc.code == INVALID_PARAMS:
                raise UnknownTask(self._id, f"Task {self._id} not found") from exc
            raise
        except ValidationError as exc:
            raise InvalidResponse(f"the server answered {method} with something that is not a valid result") from exc
        return result.model_dump(by_alias=True, mode="json")


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
    """Answers as they are recorded and sent: models of the SDK, such as `ElicitResult`, become dictionaries.

    Raises:
        UsageError: One cannot be sent.
    """
    plain = {
        key: response.model_dump(by_alias=True, mode="json", exclude_none=True)
        if isinstance(response, BaseModel)
        else response
        for key, response in responses.items()
    }
    check_answer(plain)
    return plain


# ---- repeating
# Calls that are made once, also where the response to one is lost.


MOST_REPEATS: Final = 5
"""With the pauses of `Patience` in between these are some seconds; a server that restarts takes no longer."""

_CUT_OFF: Final = {CONNECTION_CLOSED: "SSE stream ", PARSE_ERROR: "Failed to parse "}
"""How the SDK's messages begin for an incomplete response. Servers use the same codes for other errors."""


class CallLost(TasksError, MCPError):
    """A call got no answer. Code that handles the `MCPError` of a plain call handles this one too.

    Attributes:
        tool: Which tool was called.
        may_have_run: Whether the call may have been made. If not, it was never sent.
        idempotency_key: The key that it was made under. Where the server honours it, another call under the same one
            comes to the same task. It is not in the text, as it may be all that keeps others from that task.
        error: The JSON-RPC error that the SDK made of it; `code`, `message` and `data` are its parts.
    """

    tool: str = ""
    may_have_run: bool = True
    idempotency_key: str | None = None
    _how_to_go_on: str = ""

    # No constructor of its own: the SDK builds errors by the parameters of its class, and so does unpickling.

    @classmethod
    def of(cls, exc: Exception, *, tool: str, key: str | None, may_have_run: bool, is_honoured: bool) -> Self:
        """The exception for a call that failed with this one."""
        code, data = (exc.code, exc.error.data) if isinstance(exc, MCPError) else (CONNECTION_CLOSED, None)
        lost = cls(code, exc.message if isinstance(exc, MCPError) else str(exc) or type(exc).__name__, data)
        lost.tool, lost.idempotency_key, lost.may_have_run = tool, key, may_have_run
        if not may_have_run:
            how = "It was never sent, so it was not made: call again when the server can be reached."
        elif is_honoured and key is not None:
            how = (
                "It may have been made. Make it again with idempotency_key=exc.idempotency_key: if it was, that gives "
                "its task, and nothing runs twice."
            )
        else:
            how = (
                "It may have been made, and this server does not say that it honours idempotency keys: find out before "
                "you make it again."
            )
        lost._how_to_go_on = how
        return lost

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.error.data), self.__dict__

    def __str__(self) -> str:
        return f"the call of {self.tool!r} got no answer: {self.message.rstrip('.')}. {self._how_to_go_on}"


def honours_keys(session: ClientSession) -> bool:
    """Whether the server of a session says that it honours idempotency keys."""
    capabilities = session.server_capabilities
    experimental = None if capabilities is None else capabilities.experimental
    return experimental is not None and IDEMPOTENCY_CAPABILITY in experimental


def check_key(key: object) -> None:
    """Check an idempotency key; None means a new one.

    Raises:
        InvalidOption: No server takes it.
    """
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= LONGEST_KEY):
        raise InvalidOption(f"idempotency_key must be a string of 1 to {LONGEST_KEY} characters, or None")


async def make_once(
    send: Callable[[dict[str, Any] | None], Awaitable[T]],
    *,
    tool: str,
    key: str | None,
    is_honoured: bool,
    patience: Patience | None,
) -> T:
    """Make a call, and make it again where its response was lost and that is safe.

    Args:
        send: Makes the call, with this `_meta`.
        key: The caller's own idempotency key; by default a new one, for a server that honours it.

    Raises:
        CallLost: There is no response. It says whether the call may have been made.
        MCPError: The server refuses the call; or its store cannot be used for too long, and the call was not made.
    """
    key = key or (secrets.token_urlsafe(16) if is_honoured else None)
    pauses = Poller(patience)
    lost: CallLost | None = None
    failure: Exception | None = None
    for repeats in itertools.count():
        meta = None if key is None else {IDEMPOTENCY_KEY: key, **({REPEATED_META_KEY: True} if repeats else {})}
        try:
            return await send(meta)
        except (MCPError, httpx2.TransportError) as exc:
            reason = _data(exc).get("reason")
            if failure is not None and reason == "call_not_kept":
                raise failure from exc
            if _is_lost(exc):
                may_have_run = _was_sent(exc) or (lost is not None and lost.may_have_run)
                lost = CallLost.of(exc, tool=tool, key=key, may_have_run=may_have_run, is_honoured=is_honoured)
            # A repeat that a limit refuses says nothing of the first call.
            elif not (store_reason(exc) == UNAVAILABLE or (lost is not None and reason == "limit")):
                raise
            # A server that does not make a call for now says nothing of an earlier one whose response was lost.
            failure = lost or exc
            is_safe = is_honoured and key is not None and not _is_at_an_end(exc)
            if not (is_safe and repeats < MOST_REPEATS and pauses.failed(anyio.current_time())):
                if failure is exc:
                    raise
                raise failure from exc
        cause = failure.__cause__ or failure
        why = f"error {cause.code}" if isinstance(cause, MCPError) else type(cause).__name__
        logger.warning("the call of %r got no answer or was refused for now (%s): making it again", tool, why)
        await anyio.sleep(max(0.0, pauses.next_look - anyio.current_time()))
    raise AssertionError("unreachable: the count never ends")


def _is_lost(exc: Exception) -> bool:
    """Whether the server did not respond, as far as can be told."""
    if not isinstance(exc, MCPError):
        return True
    if isinstance(exc, TasksError) or is_over_limit(exc):
        return False
    if store_reason(exc) == MAY_HAVE_HAPPENED or exc.code == REQUEST_TIMEOUT or _is_over(exc):
        return True
    if SENT_DATA_KEY in _data(exc):
        return True
    return exc.code in _CUT_OFF and exc.message.startswith(_CUT_OFF[exc.code])


def _is_at_an_end(exc: Exception) -> bool:
    """Whether the connection has ended, or the caller's time is up."""
    return isinstance(exc, MCPError) and (exc.code == REQUEST_TIMEOUT or _is_over(exc))


def _was_sent(exc: Exception) -> bool:
    if isinstance(exc, MCPError):
        return _data(exc).get(SENT_DATA_KEY) is not False
    return not isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)
