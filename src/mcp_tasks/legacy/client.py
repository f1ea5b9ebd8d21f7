"""Tasks of a 2025-11-25 server, over one connection and beside the SDK's session.

In this version the client decides: a call asks for a task with `params.task`. A `TasksClient` asks for one wherever the
server offers it, as a server of the newer version would have decided by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
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

from mcp_tasks._utils import BackgroundTasks, BoundedDict, shielded, short_id
from mcp_tasks.errors import InvalidResponse, TasksError, UnknownTask, UsageError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.legacy.shapes import (
    IMMEDIATE_RESPONSE,
    PROGRESS_NOTIFICATION,
    RESULT_INTERRUPTED,
    STATUS_NOTIFICATION,
    VERSION,
    mapping,
    named_result,
    plain_data,
    read_progress,
    read_task,
    related_data,
    related_task_id,
)
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.record import Progress, TaskStatus
from mcp_tasks.protocol.shapes import QUESTION_META_KEY, TaskSnapshot, milliseconds
from mcp_tasks.quiet import get_logger, what

if TYPE_CHECKING:
    from mcp_tasks.client.backend import Mailbox
    from mcp_tasks.client.wire import Wire

logger: Final = get_logger(__name__)

# ---- one task


TIMEOUT: Final = 60.0
"""Seconds for an answer that the server can give at once."""

MOST_RESULTS: Final = 20
"""Requests `tasks/result` that are open on one connection, not counting those of tasks that ask."""

MAX_QUESTIONS: Final = 100
"""Questions of one task that are kept. Those beyond go to the session like any other request."""

LINGER: Final = 5.0
"""Seconds for which `tasks/result` stays open when nothing waits for it any more. Besides saving a request, this avoids
cancelling one that is being answered, over which the Python SDK 1.30 ends the whole session."""

TRIES: Final = 3
"""How often a failed task may give an error that looks like a lost connection, before it is taken for its outcome."""

HELD_BACK: Final = 0.5
"""Seconds to wait for the questions of a task that asks: they come on another stream than its status."""

LOOKS: Final = (0.1, 0.4)
"""Seconds after which a task that its server seems not to know is read again."""

BY_SESSION: Final = "some servers of 2025-11-25 keep a task only for the session that made it"

_CUT: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, RESULT_INTERRUPTED})
"""Errors of an answer that did not arrive, or not completely, or that the server could not wait for."""

_REFUSED: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR})
"""Errors that may be about the request and not the task, unless the task's status says that it failed."""


def _shown(question: JSONRPCRequest) -> JsonObject:
    """A request of the server as a task's state shows it."""
    return {"method": question.method, "params": {k: v for k, v in (question.params or {}).items() if k != "_meta"}}


class LegacyTask:
    """One task of a server, as a handle uses it.

    Args:
        slots: The tasks of the connection whose `tasks/result` is open.
        can_cancel: Whether the server declared that it cancels tasks.

    Attributes:
        immediate_response: The server's text for the model while the task runs.
    """

    def __init__(self, wire: Wire, task_id: str, *, slots: set[LegacyTask], can_cancel: bool) -> None:
        self.id = task_id
        self.immediate_response: str | None = None
        self._wire = wire
        self._slots = slots
        self._can_cancel = can_cancel
        self._boxes: set[Mailbox] = set()
        self._waiting = 0
        self._last: TaskSnapshot | None = None
        self._progress: Progress | None = None
        # Requests of the server that wait for their answers here.
        self._questions: dict[str, JSONRPCRequest] = {}
        # Bounded: a server may ask without end.
        self._given: BoundedDict[str, Mapping[str, Any] | ErrorData] = BoundedDict(MAX_QUESTIONS)
        self._asked: BoundedDict[str, bool] = BoundedDict(10 * MAX_QUESTIONS)
        self._keeper: asyncio.Task[None] | None = None
        self._outcome: JsonObject | ErrorData | None = None
        # The last answer to `tasks/result`, which counts if the server forgets the task meanwhile.
        self._heard: JsonObject | ErrorData | None = None
        self._cuts = 0
        # Set when a question or the end has arrived.
        self._stirred = asyncio.Event()
        self._held_back = False

    # For the handle

    async def get(self) -> TaskSnapshot:
        """`tasks/get`, and `tasks/result` once the task has ended."""
        snapshot = await self._state()
        return await self._with_outcome(snapshot) if snapshot.is_final else snapshot

    async def state(self) -> TaskSnapshot:
        """As `get`, but without the outcome if that cannot be fetched now."""
        snapshot = await self._state()
        try:
            return await self._with_outcome(snapshot) if snapshot.is_final else snapshot
        except MCPError as exc:
            status = snapshot.status.value
            logger.info("task %s is %s, and its result could not be fetched: %s", short_id(self.id), status, what(exc))
            return snapshot

    async def _state(self) -> TaskSnapshot:
        snapshot = await self._look()
        if not snapshot.is_final:
            self._outcome = None
            self._keep(asks=snapshot.status is TaskStatus.INPUT_REQUIRED)
            if await self._ends_unasked(snapshot):
                snapshot = await self._look()
        if snapshot.is_final:
            self._questions.clear()
        return self._with_news(snapshot)

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Reply to the requests with these questions."""
        unknown = responses.keys() - self._asked.keys()
        if unknown:
            raise UsageError(
                f"task {self.id} has not asked {', '.join(map(repr, sorted(unknown)))} over this connection: a server "
                "of 2025-11-25 sends its questions to one who waits; watch() the task until it shows them"
            )
        for key, response in responses.items():
            question = self._questions.get(key)
            # A question that was withdrawn, or answered before, needs no reply.
            if question is not None:
                await self._reply(key, question, named_result(response, self.id))
        # A reply is not acknowledged. The server has read it when it answers a later request, so that a client that
        # only came to answer can leave.
        try:
            await self._wire.request("ping", timeout=TIMEOUT)
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
        self._let_go()

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Have the session's callbacks answer a question, as they would without us."""
        question = self._questions.get(key)
        if question is None:
            return await self._wire.ask(str(request.get("method")), mapping(request.get("params")))
        return await self._wire.ask(question.method, question.params)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Answer a question with an error, as the session does outside of tasks."""
        question = self._questions.get(key)
        if question is not None:
            named = error.model_copy(update={"data": related_data(self.id, error.data)})
            await self._reply(key, question, named)
        return True

    async def _reply(self, key: str, question: JSONRPCRequest, outcome: Mapping[str, Any] | ErrorData) -> None:
        await self._wire.reply(question.id, outcome)
        self._questions.pop(key, None)
        self._given[key] = outcome
        self._held_back = False

    async def cancel(self) -> None:
        """`tasks/cancel`. A task that has ended is left as it is."""
        if not self._can_cancel:
            raise UsageError(f"task {self.id} cannot be cancelled: its server does not offer that (tasks.cancel)")
        try:
            await self._wire.request("tasks/cancel", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            # An unknown task and one that has ended have the same code.
            if exc.code != INVALID_PARAMS or not read_task(await self._request("tasks/get")).is_final:
                raise

    @asynccontextmanager
    async def join(self, box: Mailbox, *, questions: bool) -> AsyncGenerator[None]:
        """Put news of the task into the box; with `questions`, keep `tasks/result` open meanwhile."""
        self._boxes.add(box)
        self._waiting += questions
        self._keep()
        self._show()
        try:
            yield
        finally:
            self._boxes.discard(box)
            self._waiting -= questions
            self._let_go()

    # For the connection

    def asks(self, request: JSONRPCRequest) -> bool:
        """Keep a question; False if there are too many."""
        said = mapping((request.params or {}).get("_meta")).get(QUESTION_META_KEY)
        # Otherwise the question has no name outside of this connection.
        key = said if isinstance(said, str) and said else f"{self._wire.new_id()}-asked"
        if key in self._given:
            # The answer was lost, or sent at the same time.
            self._wire.spawn(self._wire.reply(request.id, self._given[key]))
            return True
        if key not in self._questions and len(self._questions) >= MAX_QUESTIONS:
            return False
        self._asked[key] = True
        self._questions[key] = request
        self._stirred.set()
        self._show()
        return True

    def withdrawn(self, request_id: RequestId) -> bool:
        """The server cancels a request; whether it was a question of this task."""
        for key, question in self._questions.items():
            if question.id == request_id:
                del self._questions[key]
                self._show()
                return True
        return False

    def progressed(self, progress: Progress) -> None:
        """The server reports progress."""
        self._progress = progress
        self._show()

    def told(self, state: Mapping[str, Any]) -> None:
        """The server reports the task's state. If it has ended, its outcome is fetched by a look."""
        try:
            snapshot = read_task(state)
        except InvalidResponse:
            return
        if snapshot.is_final:
            self._tell()
        elif self._last is None or not self._last.is_final:
            self._last = snapshot
            self._keep(asks=snapshot.status is TaskStatus.INPUT_REQUIRED)
            self._show()

    # State

    async def _look(self) -> TaskSnapshot:
        try:
            self._last = read_task(await self._request("tasks/get"))
        except UnknownTask:
            if self._keeper is not None:
                # It may have ended and expired at once; then its result is on its way.
                await asyncio.wait([self._keeper], timeout=HELD_BACK)
            if self._heard is None:
                raise
            # The server told of its end, and has forgotten it since.
            self._outcome = self._heard
            failed = isinstance(self._heard, ErrorData) or self._heard.get("isError") is True
            now = datetime.now(UTC)
            last = self._last or TaskSnapshot(id=self.id, status=TaskStatus.WORKING, created_at=now, updated_at=now)
            return replace(last, status=TaskStatus.FAILED if failed else TaskStatus.COMPLETED, updated_at=now)
        if self._last.id != self.id:
            raise InvalidResponse(f"asked for task {self.id}, and the server answered with task {self._last.id}")
        return self._last

    async def _ends_unasked(self, snapshot: TaskSnapshot) -> bool:
        """Wait a moment for the questions of a task that asks, once each time that it begins to; whether it seems to
        have ended instead."""
        if snapshot.status is not TaskStatus.INPUT_REQUIRED:
            self._held_back = False
        elif self._keeper is not None and not self._questions and not self._held_back:
            self._held_back = True
            self._stirred.clear()
            with anyio.move_on_after(HELD_BACK):
                await self._stirred.wait()
                return not self._questions
        return False

    def _show(self) -> None:
        if self._last is not None and not self._last.is_final:
            shown = self._with_news(self._last)
            for box in self._boxes:
                box.show(shown)

    def _with_news(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        """The state, with the progress and the questions that came beside it."""
        if snapshot.progress is None:
            snapshot = replace(snapshot, progress=self._progress)
        if snapshot.is_final or not self._questions:
            return snapshot
        asked = {key: _shown(question) for key, question in self._questions.items()}
        # A question that waits here counts, whatever status the server gives.
        return replace(snapshot, status=TaskStatus.INPUT_REQUIRED, input_requests=asked)

    # Outcome

    async def _with_outcome(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        if snapshot.status is TaskStatus.CANCELLED:
            return snapshot
        outcome = self._outcome if self._outcome is not None else await self._fetch()
        if isinstance(outcome, ErrorData) and snapshot.status is TaskStatus.COMPLETED:
            # A completed task has a result, so the error was about the request for it.
            self._outcome = None
            outcome = await self._request("tasks/result")
            self._outcome = outcome
        if isinstance(outcome, ErrorData):
            error = outcome.model_copy(update={"data": plain_data(outcome.data)})
            return replace(snapshot, error=error.model_dump(by_alias=True, mode="json", exclude_none=True))
        if snapshot.status is TaskStatus.FAILED and "content" not in outcome:
            # Some servers say no more of a failure than the state does.
            return replace(snapshot, error={"code": INTERNAL_ERROR, "message": snapshot.message or "The task failed"})
        return replace(snapshot, result=outcome)

    async def _fetch(self) -> JsonObject | ErrorData:
        """`tasks/result` of a task that has ended.

        Raises:
            MCPError: The connection was cut off, as far as can be told.
        """
        try:
            self._outcome = await self._wire.request("tasks/result", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            if is_over_limit(exc) or self._wire.is_closed:
                raise
            self._cuts += exc.code in _CUT
            if exc.code in _CUT and self._cuts < TRIES:
                # Not in the words of a connection that has ended for good: this one has not.
                raise MCPError(exc.code, f"tasks/result of {self.id} was cut off: {exc.message}") from exc
            self._outcome = exc.error
        return self._outcome

    def _keep(self, *, asks: bool = False) -> None:
        """Keep `tasks/result` open while there is a wait. A task that asks needs no slot."""
        if not self._waiting or self._keeper is not None:
            return
        if not asks:
            if self not in self._slots and len(self._slots) >= MOST_RESULTS:
                return
            self._slots.add(self)
        self._keeper = self._wire.spawn(self._await_result())
        self._keeper.add_done_callback(self._kept)

    def _let_go(self) -> None:
        """There is no wait now: a caller that has answered or watched often comes back for the result."""
        if self._keeper is not None and not self._waiting:
            asyncio.get_running_loop().call_later(LINGER, self._close)

    def _close(self) -> None:
        # With an open question it stays: some servers take no answer without it.
        if self._keeper is not None and not self._waiting and not self._questions:
            self._keeper.cancel()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        self._slots.discard(self)
        if self._keeper is keeper:
            self._keeper = None

    async def _await_result(self) -> None:
        failures = 0
        while not self._wire.is_closed:
            try:
                self._outcome = self._heard = await self._wire.request("tasks/result", {"taskId": self.id})
                break
            except MCPError as exc:
                if is_over_limit(exc):
                    # It would be again. The wait is told when the state says that this was the result.
                    break
                if exc.code not in _CUT:
                    # The task's own error, if its state says that it failed.
                    self._outcome = exc.error
                    if exc.code not in _REFUSED:
                        self._heard = exc.error
                    break
                logger.debug("tasks/result of %s was cut off: %s", short_id(self.id), what(exc))
                pause = backoff(failures, base=timedelta(milliseconds=250), limit=timedelta(seconds=10))
                failures += 1
                await anyio.sleep(pause.total_seconds())
        self._tell()

    def _tell(self) -> None:
        """The task seems to have ended: have it read at once, a few times at most."""
        self._stirred.set()
        for box in self._boxes:
            box.over()

    async def _request(self, method: str) -> dict[str, Any]:
        """A request that the server can answer at once.

        Servers of the Python SDK 1 refuse requests that they fail to process with the code of an unknown task. So
        unless the message says that, they are asked again.

        Raises:
            UnknownTask: The server does not know the task (any more).
        """
        for pause in (*LOOKS, None):
            try:
                return await self._wire.request(method, {"taskId": self.id}, timeout=TIMEOUT)
            except MCPError as exc:
                if exc.code != INVALID_PARAMS:
                    raise
                if pause is None or _says_unknown(exc):
                    raise UnknownTask(self.id, f"Task {self.id} not found", hint=BY_SESSION) from exc
                await anyio.sleep(pause)
        raise AssertionError("unreachable: the last look ends it")


def _says_unknown(exc: MCPError) -> bool:
    said = exc.message.lower()
    return any(words in said for words in ("not found", "unknown", "not exist", "no such", "expired"))


# ---- one connection


Support: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether a tool may be called as a task."""

MAX_TOOL_PAGES: Final = 100
"""Pages of a server's list of tools that are read."""

LIST_TIMEOUT: Final = 60.0

MAX_PAGES: Final = 10_000
"""Pages of tasks that a server may list."""

MAX_ANSWERED_THERE: Final = 1_000
"""Requests of other tasks that the session answers and that are remembered."""

MAX_EARLY: Final = 100
"""Questions that may arrive before the tasks that ask them."""


class LegacyTasks:
    """The tasks of one server, and a handler of the messages of the connection to it.

    Attributes:
        version: The version of the protocol with these tasks.
        finish: Waits for the end of a task that a call of the session became, and returns its result. Without it, the
            session's calls become no tasks.
    """

    version: ClassVar[str] = VERSION

    def __init__(self, wire: Wire) -> None:
        self.finish: Callable[[TaskSnapshot, str], Awaitable[JsonObject]] | None = None
        self._wire = wire
        self._handshake: RequestId | None = None
        self._capabilities: JsonObject | None = None
        # Requests of the session for a page of the tools.
        self._lists: set[RequestId] = set()
        self._support: dict[str, Support] = {}
        self._listing = anyio.Lock()
        self._slots: set[LegacyTask] = set()
        self._tasks: WeakValueDictionary[str, LegacyTask] = WeakValueDictionary()
        self._tokens: WeakValueDictionary[str | int, LegacyTask] = WeakValueDictionary()
        # Keeps new tasks until their callers come for them.
        self._new: deque[LegacyTask] = deque(maxlen=100)
        # The session's own calls that run as tasks.
        self._calls: dict[RequestId, asyncio.Task[None]] = {}
        # Progress that comes before the answer that tells its task: over HTTP, that is on another stream.
        self._creating: dict[str | int, Progress | None] = {}
        self._creations = BackgroundTasks()
        self._early: list[JSONRPCRequest] = []
        # The tasks of requests that the session answers, because nothing here follows them.
        self._answered_there: BoundedDict[RequestId, str] = BoundedDict(MAX_ANSWERED_THERE)

    @property
    def is_spoken(self) -> bool:
        """Whether the server has tasks of this version."""
        return self._capabilities is not None

    @property
    def is_offered(self) -> bool:
        """Whether calls of tools may be tasks."""
        return "call" in mapping(mapping(mapping(self._capabilities).get("requests")).get("tools"))

    def task(self, task_id: str) -> LegacyTask:
        """The task of that id. Nothing is sent."""
        known = self._tasks.get(task_id)
        if known is None:
            can_cancel = "cancel" in mapping(self._capabilities)
            known = self._tasks[task_id] = LegacyTask(self._wire, task_id, slots=self._slots, can_cancel=can_cancel)
        return known

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

        Raises:
            MCPError: The call failed.
            InvalidResponse: The server answered with something that is not a valid task.
        """
        params: dict[str, Any] = {"name": tool} if arguments is None else {"name": tool, "arguments": dict(arguments)}
        return await self._start(params if meta is None else {**params, "_meta": dict(meta)}, ttl=ttl, timeout=timeout)

    async def tasks(self) -> AsyncIterator[TaskSnapshot]:
        """The tasks that the server lists, without their outcomes. `UsageError` if it does not list them."""
        if "list" not in mapping(self._capabilities):
            raise UsageError("this server does not list its tasks (tasks.list); a ledger has those that you started")
        cursor: object = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._wire.request("tasks/list", params, timeout=TIMEOUT)
            listed: object = page.get("tasks")
            if not isinstance(listed, list):
                raise InvalidResponse("the server answered tasks/list without a list of tasks")
            for task in cast("list[object]", listed):
                yield read_task(task)
            cursor = page.get("nextCursor")
            if cursor is None:
                return
        raise InvalidResponse(f"the server's list of tasks has not ended after {MAX_PAGES} pages")

    # Messages of the session

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the session. Its calls that become tasks are kept here."""
        match message:
            case JSONRPCRequest(method="initialize", id=request_id):
                self._handshake = request_id
            case JSONRPCRequest(method="tools/list", id=request_id):
                self._lists.add(request_id)
            case JSONRPCRequest(method="tools/call", id=request_id) if self._takes_over(message):
                self._calls[request_id] = self._wire.spawn(self._drive(message))
                return None
            case JSONRPCNotification(method="notifications/cancelled", params=params):
                call = self._calls.get((params or {}).get("requestId", ""))
                if call is not None:
                    call.cancel()
                    return None
            case JSONRPCResponse() | JSONRPCError() if message.id is not None and message.id in self._answered_there:
                return _naming(message, self._answered_there.pop(message.id))
            case _:
                pass
        return message

    def _takes_over(self, request: JSONRPCRequest) -> bool:
        params = request.params or {}
        # A message that asks for a task itself is left alone.
        wanted = self.finish is not None and self.is_offered and "task" not in params
        return wanted and self._support.get(str(params.get("name"))) != "forbidden"

    async def _drive(self, request: JSONRPCRequest) -> None:
        """Answer a call of the session by a task; send it on if its tool takes no tasks."""
        answer: JsonObject | ErrorData | None
        try:
            answer = await self._call(request.params or {})
        except MCPError as exc:
            answer = exc.error
        except TasksError as exc:
            # The session knows JSON-RPC errors only; the data says which error of ours it is.
            answer = ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"mcp-tasks/error": type(exc).__name__})
        except Exception as exc:
            answer = ErrorData(code=INTERNAL_ERROR, message=f"the call could not be seen to its end: {exc!r}")
        finally:
            del self._calls[request.id]
        if answer is None:
            await self._wire.forward(request)
        else:
            await self._wire.answer(request.id, answer)

    async def _call(self, params: Mapping[str, Any]) -> JsonObject | None:
        tool = str(params.get("name"))
        try:
            await self._support_of(tool)
        except MCPError as exc:
            # Then the tool is called as it would have been without us.
            logger.info("the server does not list its tools, so they are not called as tasks: %s", what(exc))
            return None
        started = await self._start(params)
        if not isinstance(started, TaskSnapshot):
            return started
        return None if self.finish is None else await self.finish(started, tool)

    # Messages of the server

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the server, and keep the questions of its tasks."""
        match message:
            case JSONRPCResponse(id=request_id, result=result) if request_id == self._handshake:
                declared = mapping(result.get("capabilities"))
                has_tasks = result.get("protocolVersion") == VERSION and "tasks" in declared
                self._capabilities = mapping(declared["tasks"]) if has_tasks else None
            case JSONRPCResponse(id=request_id, result=result) if request_id in self._lists:
                self._lists.discard(request_id)
                self._saw_tools(result)
            case JSONRPCError(id=request_id) if request_id is not None:
                self._lists.discard(request_id)
            case JSONRPCNotification(method="notifications/tools/list_changed"):
                self._support.clear()
            case JSONRPCNotification():
                return None if self._noticed(message.method, message.params or {}) else message
            case JSONRPCRequest():
                if "task" not in (message.params or {}) and self._is_kept(message):
                    return None
                self._pass_on(message)
            case _:
                pass
        return message

    def _noticed(self, method: str, params: Mapping[str, Any]) -> bool:
        """Take in a notification; whether the session has no use for it."""
        match method:
            case _ if method == PROGRESS_NOTIFICATION:
                return self._progressed(params)
            case "notifications/cancelled":
                request_id = params.get("requestId")
                return any(task.withdrawn(request_id) for task in list(self._tasks.values()) if request_id is not None)
            case _:
                task = self._tasks.get(str(params.get("taskId"))) if method == STATUS_NOTIFICATION else None
                if task is not None:
                    task.told(params)
                return False

    def _progressed(self, params: Mapping[str, Any]) -> bool:
        token = params.get("progressToken")
        if not isinstance(token, str | int):
            # Not valid; a task may still be named beside it.
            token = ""
        by_token = self._tokens.get(token)
        task = by_token or self._tasks.get(related_task_id(params) or "")
        progress = read_progress(params)
        if task is not None and progress is not None:
            task.progressed(progress)
        elif token in self._creating:
            self._creating[token] = progress
        # The session has use for its own tokens.
        return isinstance(token, str) and by_token is not None

    def _is_kept(self, request: JSONRPCRequest) -> bool:
        """Whether a request of the server is a question of a task, which waits here for its answer."""
        task_id = related_task_id(request.params)
        known = self._tasks.get(task_id or "")
        if known is not None:
            return known.asks(request)
        if task_id is None or not self._creating or len(self._early) >= MAX_EARLY:
            return False
        self._early.append(request)
        return True

    def _pass_on(self, request: JSONRPCRequest) -> None:
        """The session answers a request of the server. Its response has to name the task that the request names."""
        task_id = related_task_id(request.params)
        if task_id is not None:
            self._answered_there[request.id] = task_id

    # Tools

    def _saw_tools(self, page: Mapping[str, Any]) -> None:
        tools: object = page.get("tools")
        for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
            name, said = mapping(tool).get("name"), mapping(mapping(tool).get("execution")).get("taskSupport")
            if isinstance(name, str):
                # Without it, or with an unknown value, a tool is forbidden.
                self._support[name] = cast(Support, said) if said in ("optional", "required") else "forbidden"

    async def _support_of(self, tool: str) -> Support:
        """Whether a tool takes tasks. Raises the server's error if it does not list its tools."""
        async with self._listing:
            cursor: object = None
            for _ in range(0 if tool in self._support else MAX_TOOL_PAGES):
                params = {} if cursor is None else {"cursor": cursor}
                page = await self._wire.request("tools/list", params, timeout=LIST_TIMEOUT)
                self._saw_tools(page)
                cursor = page.get("nextCursor")
                if cursor is None:
                    break
        return self._support.get(tool, "forbidden")

    # Creation

    async def _start(
        self, params: Mapping[str, Any], *, ttl: timedelta | None = None, timeout: float | None = None
    ) -> TaskSnapshot | JsonObject | None:
        tool = str(params.get("name"))
        if not self.is_offered or await self._support_of(tool) == "forbidden":
            return None
        creation = self._creations.start(self._create(params, ttl=ttl, timeout=timeout))
        try:
            return await shielded(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(self._unwanted)
            raise
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
            # The tool took tasks when it was listed. Not every server says when its tools change.
            self._support.clear()
            if await self._support_of(tool) == "forbidden":
                return None
            raise

    async def _create(
        self, params: Mapping[str, Any], *, ttl: timedelta | None, timeout: float | None
    ) -> TaskSnapshot | JsonObject:
        meta = dict(mapping(params.get("_meta")))
        token: str | int = meta.setdefault("progressToken", self._wire.new_id())
        made: list[TaskSnapshot] = []

        def register(result: dict[str, Any]) -> None:
            # Before the next message, which may be a question of this task.
            if "task" in result:
                made.append(read_task(result["task"]))
                text = mapping(result.get("_meta")).get(IMMEDIATE_RESPONSE)
                self._begin(made[0].id, token).immediate_response = text if isinstance(text, str) else None

        wanted = {} if ttl is None else {"ttl": milliseconds(ttl)}
        self._creating[token] = None
        try:
            result = await self._wire.request(
                "tools/call", {**params, "_meta": meta, "task": wanted}, timeout=timeout, on_result=register
            )
        finally:
            self._creating.pop(token, None)
            self._sort_early()
        return made[0] if made else result

    def _unwanted(self, creation: asyncio.Task[TaskSnapshot | JsonObject]) -> None:
        """The caller left before there was a task. 2025-11-25: such a call MUST NOT be cancelled as others are, but
        with `tasks/cancel`, which needs the id."""
        if creation.cancelled() or creation.exception() is not None or self._wire.is_closed:
            return
        if isinstance(created := creation.result(), TaskSnapshot):
            self._wire.spawn(self._cancel(created.id))

    async def _cancel(self, task_id: str) -> None:
        try:
            await self.task(task_id).cancel()
        except (TasksError, MCPError) as exc:
            logger.warning("task %s, whose caller has left, could not be cancelled: %s", short_id(task_id), what(exc))

    def _begin(self, task_id: str, token: str | int) -> LegacyTask:
        task = self._tokens[token] = self.task(task_id)
        self._new.append(task)
        progress = self._creating.get(token)
        if progress is not None:
            task.progressed(progress)
        self._sort_early()
        return task

    def _sort_early(self) -> None:
        """Give early questions to their tasks; those of unknown tasks to the session, when no task is being made."""
        early, self._early = self._early, []
        for request in early:
            if not self._is_kept(request):
                self._pass_on(request)
                self._wire.spawn(self._wire.deliver(request))


def _naming(message: JSONRPCResponse | JSONRPCError, task_id: str) -> JSONRPCMessage:
    if isinstance(message, JSONRPCResponse):
        return message.model_copy(update={"result": named_result(message.result, task_id)})
    error = message.error.model_copy(update={"data": related_data(task_id, message.error.data)})
    return message.model_copy(update={"error": error})
