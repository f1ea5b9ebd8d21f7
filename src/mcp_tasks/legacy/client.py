"""Driving tasks of a 2025-11-25 server, over one connection and beside the session.

Here is what concerns the connection as a whole: what the server offers, which tools take tasks, which message belongs
to which task. `driven_task` is one task, `driven_calls` the session's own calls.

In this era the client decides: a call asks for a task with `params.task`. A `TasksClient` asks for one wherever the
server offers it, as a server of the newer era would have decided by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, cast
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

from mcp_tasks._utils import BoundedDict, shielded, short_id
from mcp_tasks.errors import InvalidResponse, TasksError, UnknownTask, UsageError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.legacy.shapes import (
    RESULT_INTERRUPTED,
    STATUS_NOTIFICATION,
    VERSION,
    mapping,
    named_result,
    plain_data,
    read_created,
    read_immediate_response,
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

# ---- slots
# Limits: on what a connection keeps open, and on what is kept of what a server says.


MOST: Final = 20


class Slots:
    """The slots of one connection."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken: set[object] = set()

    def take(self, who: object) -> bool:
        """Take a slot; whether there is one."""
        if who not in self._taken and len(self._taken) >= self._most:
            return False
        self._taken.add(who)
        return True

    def give_back(self, who: object) -> None:
        """Give the slot back, if there is one to give."""
        self._taken.discard(who)


# ---- connection
# What is needed of a connection to drive tasks over it; a `Wire` of the client has it.


class Connection(Protocol):
    """One connection to a server, beside the session."""

    @property
    def is_closed(self) -> bool: ...
    def new_id(self) -> str: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]: ...
    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    async def reply(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None: ...
    async def deliver(self, message: JSONRPCMessage) -> None: ...
    async def forward(self, message: JSONRPCMessage) -> None: ...
    async def answer(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None: ...


class Box(Protocol):
    """Where a wait for a task is told what becomes known of it."""

    def show(self, snapshot: TaskSnapshot) -> None: ...
    def over(self) -> None: ...


# ---- driven task
# One task of a 2025-11-25 server, driven over one connection.


logger: Final = get_logger(__name__)

TIMEOUT: Final = 60.0
"""Seconds for an answer that the server has at hand."""

MAX_QUESTIONS: Final = 100
"""Questions of one task that are kept; whatever is asked beyond that goes to the session like any other request."""

LINGER: Final = 5.0
"""Seconds for which `tasks/result` stays open when nobody waits any more. Besides sparing a request, this keeps from
cancelling one that is being answered: the Python SDK 1.30 breaks off the whole session over that."""

TRIES: Final = 3
"""How often a failed task may give an error that looks like a broken connection, before it is taken for its outcome."""

HELD_BACK: Final = 0.5
"""Seconds for the questions of a task that is said to ask something; they come on another stream than that."""

LOOKS: Final = (0.1, 0.4)
"""Seconds after which a task that its server seems not to know is looked at again."""

BY_SESSION: Final = "some servers of 2025-11-25 keep a task only for the session that made it"

_CUT: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, RESULT_INTERRUPTED})
"""What a transport makes of an answer that did not come, or not as a whole; and a server that could not wait for it."""

_REFUSED: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR})
"""Errors that say nothing of the task unless its state says that it failed: the request itself may be what failed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request of the server that waits for its answer here."""

    request_id: RequestId
    method: str
    params: JsonObject

    @property
    def shown(self) -> JsonObject:
        """As the state of a task shows it."""
        return {"method": self.method, "params": {k: v for k, v in self.params.items() if k != "_meta"}}


class DrivenTask:
    """One task of a server, as a handle drives it.

    Args:
        can_cancel: Whether the server says that it cancels tasks.

    Attributes:
        immediate_response: What the server gave the model to read while the task runs.
    """

    def __init__(self, wire: Connection, task_id: str, *, slots: Slots, can_cancel: bool) -> None:
        self.id = task_id
        self.immediate_response: str | None = None
        self._wire = wire
        self._slots = slots
        self._can_cancel = can_cancel
        self._boxes: set[Box] = set()
        self._waiting = 0
        self._last: TaskSnapshot | None = None
        self._progress: Progress | None = None
        self._questions: dict[str, Question] = {}
        # The last ones are enough: a server that asks without end gets no more of our memory than that.
        self._given: BoundedDict[str, Mapping[str, Any] | ErrorData] = BoundedDict(MAX_QUESTIONS)
        self._asked: BoundedDict[str, bool] = BoundedDict(10 * MAX_QUESTIONS)
        self._keeper: asyncio.Task[None] | None = None
        self._outcome: JsonObject | ErrorData | None = None
        # What `tasks/result` last gave; it counts when the server has forgotten the task meanwhile.
        self._heard: JsonObject | ErrorData | None = None
        self._cuts = 0
        # A question has come, or the end.
        self._stirred = asyncio.Event()
        self._held_back = False

    # For the handle

    async def get(self) -> TaskSnapshot:
        """`tasks/get`, and `tasks/result` once the task has ended."""
        snapshot = await self._state()
        return await self._with_outcome(snapshot) if snapshot.is_final else snapshot

    async def state(self) -> TaskSnapshot:
        """As `get`, but for an outcome that cannot be had now: the state is known without it."""
        snapshot = await self._state()
        try:
            return await self._with_outcome(snapshot) if snapshot.is_final else snapshot
        except MCPError as exc:
            logger.info(
                "task %s is %s, and its result could not be fetched: %s",
                short_id(self.id),
                snapshot.status.value,
                what(exc),
            )
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
        """Reply to the requests that ask."""
        unknown = responses.keys() - self._asked.keys()
        if unknown:
            raise UsageError(
                f"task {self.id} has not asked {', '.join(map(repr, sorted(unknown)))} over this connection: a server "
                "of 2025-11-25 sends its questions to one who waits; watch() the task until it shows them"
            )
        for key, response in responses.items():
            question = self._questions.get(key)
            # One that was withdrawn, or answered before, is no longer anybody's business.
            if question is not None:
                await self._reply(key, question, named_result(response, self.id))
        # A reply is not acknowledged. The server has it when it answers what is sent after it, and then a client that
        # only came to answer may leave.
        try:
            await self._wire.request("ping", timeout=TIMEOUT)
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
        self._let_go()

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Have the session's callbacks answer, as they would have without us."""
        question = self._questions.get(key)
        if question is None:
            return await self._wire.ask(str(request.get("method")), mapping(request.get("params")))
        return await self._wire.ask(question.method, question.params)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Answer a request that asks with an error, as the session does outside of tasks."""
        question = self._questions.get(key)
        if question is not None:
            named = error.model_copy(update={"data": related_data(self.id, error.data)})
            await self._reply(key, question, named)
        return True

    async def _reply(self, key: str, question: Question, outcome: Mapping[str, Any] | ErrorData) -> None:
        await self._wire.reply(question.request_id, outcome)
        self._questions.pop(key, None)
        self._given[key] = outcome
        self._held_back = False

    async def cancel(self) -> None:
        """`tasks/cancel`. One that has ended is left as it is."""
        if not self._can_cancel:
            raise UsageError(f"task {self.id} cannot be cancelled: its server does not offer that (tasks.cancel)")
        try:
            await self._wire.request("tasks/cancel", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            # The same code for a task that is not there and one that has ended: a look tells them apart.
            if exc.code != INVALID_PARAMS or not read_task(await self._request("tasks/get")).is_final:
                raise

    @asynccontextmanager
    async def join(self, box: Box, *, questions: bool) -> AsyncGenerator[None]:
        """Put what becomes known into the box; with `questions`, keep `tasks/result` open meanwhile."""
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
        """Keep a question; whether it was."""
        params = request.params or {}
        said = mapping(params.get("_meta")).get(QUESTION_META_KEY)
        # The id of a request means something on this connection only, and so does the key then.
        key = said if isinstance(said, str) and said else f"{self._wire.new_id()}-asked"
        if key in self._given:
            # It did not get there, or crossed the question.
            self._wire.spawn(self._wire.reply(request.id, self._given[key]))
            return True
        if key not in self._questions and len(self._questions) >= MAX_QUESTIONS:
            return False
        self._asked[key] = True
        self._questions[key] = Question(request.id, request.method, dict(params))
        self._stirred.set()
        self._show()
        return True

    def withdrawn(self, request_id: RequestId) -> bool:
        """The server no longer wants an answer; whether it asked here."""
        for key, question in self._questions.items():
            if question.request_id == request_id:
                del self._questions[key]
                self._show()
                return True
        return False

    def progressed(self, progress: Progress) -> None:
        """The task got on."""
        self._progress = progress
        self._show()

    def told(self, state: Mapping[str, Any]) -> None:
        """The server tells of the task's state. Of one that has ended, a look tells the rest."""
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

    # Looks

    async def _look(self) -> TaskSnapshot:
        try:
            self._last = read_task(await self._request("tasks/get"))
        except UnknownTask:
            if self._keeper is not None:
                # It may have ended and expired at once; then its result is on its way.
                await asyncio.wait([self._keeper], timeout=HELD_BACK)
            if self._heard is None:
                raise
            return self._forgotten(self._heard)
        if self._last.id != self.id:
            raise InvalidResponse(f"asked for task {self.id}, and the server answered with task {self._last.id}")
        return self._last

    def _forgotten(self, heard: JsonObject | ErrorData) -> TaskSnapshot:
        """The end of a task that its server told of and has forgotten since."""
        failed = isinstance(heard, ErrorData) or heard.get("isError") is True
        now = datetime.now(UTC)
        last = self._last or TaskSnapshot(id=self.id, status=TaskStatus.WORKING, created_at=now, updated_at=now)
        self._outcome = heard
        return replace(last, status=TaskStatus.FAILED if failed else TaskStatus.COMPLETED, updated_at=now)

    async def _ends_unasked(self, snapshot: TaskSnapshot) -> bool:
        """Give the questions of a state that is about to be shown a moment to come, once for each time that the task
        begins to ask; whether the task seems to have ended instead."""
        if snapshot.status is not TaskStatus.INPUT_REQUIRED:
            self._held_back = False
        elif self._keeper is not None and not self._questions and not self._held_back:
            self._held_back = True
            self._stirred.clear()
            with anyio.move_on_after(HELD_BACK):
                await self._stirred.wait()
                return not self._questions
        return False

    # The outcome

    async def _with_outcome(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        if snapshot.status is TaskStatus.CANCELLED:
            return snapshot
        outcome = self._outcome if self._outcome is not None else await self._fetch()
        if isinstance(outcome, ErrorData) and snapshot.status is TaskStatus.COMPLETED:
            # A task that completed has a result; this was an error of the question for it.
            self._outcome = None
            outcome = await self._request("tasks/result")
            self._outcome = outcome
        if isinstance(outcome, ErrorData):
            error = outcome.model_copy(update={"data": plain_data(outcome.data)})
            return replace(snapshot, error=error.model_dump(by_alias=True, mode="json", exclude_none=True))
        if snapshot.status is TaskStatus.FAILED and "content" not in outcome:
            # Some servers have nothing more to say of a failure than the state says.
            return replace(snapshot, error={"code": INTERNAL_ERROR, "message": snapshot.message or "The task failed"})
        return replace(snapshot, result=outcome)

    async def _fetch(self) -> JsonObject | ErrorData:
        """Ask how the task ended, which its server has at hand.

        Raises:
            MCPError: The connection was cut, as far as can be told.
        """
        try:
            self._outcome = await self._wire.request("tasks/result", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            if is_over_limit(exc) or self._wire.is_closed:
                raise
            self._cuts += exc.code in _CUT
            if exc.code in _CUT and self._cuts < TRIES:
                # In other words than those of a connection that is gone for good: this one is there.
                raise MCPError(exc.code, f"tasks/result of {self.id} was cut off: {exc.message}") from exc
            self._outcome = exc.error
        return self._outcome

    def _keep(self, *, asks: bool = False) -> None:
        """See to it that `tasks/result` is open, if somebody waits. One that asks is served before all others."""
        if self._waiting and self._keeper is None and (asks or self._slots.take(self)):
            self._keeper = self._wire.spawn(self._await_result())
            self._keeper.add_done_callback(self._kept)

    def _let_go(self) -> None:
        """Nobody waits, for now: whoever has answered or watched often comes back for the result."""
        if self._keeper is not None and not self._waiting:
            asyncio.get_running_loop().call_later(LINGER, self._close)

    def _close(self) -> None:
        # With a question in hand it stays: to some servers an answer is worth nothing without it.
        if self._keeper is not None and not self._waiting and not self._questions:
            self._keeper.cancel()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        self._slots.give_back(self)
        if self._keeper is keeper:
            self._keeper = None

    async def _await_result(self) -> None:
        failures = 0
        while not self._wire.is_closed:
            try:
                self._outcome = self._heard = await self._wire.request("tasks/result", {"taskId": self.id})
            except MCPError as exc:
                if is_over_limit(exc):
                    # It would be again. Whoever waits is told when the state says that this was the result.
                    return self._tell()
                if exc.code not in _CUT:
                    # The task's own error, if the task has failed: a look tells.
                    self._outcome = exc.error
                    if exc.code not in _REFUSED:
                        self._heard = exc.error
                    return self._tell()
                logger.debug("tasks/result of %s was cut off: %s", short_id(self.id), what(exc))
                pause = backoff(failures, base=timedelta(milliseconds=250), limit=timedelta(seconds=10))
                failures += 1
                await anyio.sleep(pause.total_seconds())
            else:
                break
        return self._tell()

    def _tell(self) -> None:
        """The task seems to have ended: it is looked at ahead of its pace, a few times at most."""
        self._stirred.set()
        for box in self._boxes:
            box.over()

    # What becomes known

    def _show(self) -> None:
        if self._last is not None and not self._last.is_final:
            shown = self._with_news(self._last)
            for box in self._boxes:
                box.show(shown)

    def _with_news(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        """The state, with what came beside it."""
        if snapshot.progress is None:
            snapshot = replace(snapshot, progress=self._progress)
        if snapshot.is_final or not self._questions:
            return snapshot
        asked = {key: question.shown for key, question in self._questions.items()}
        # A question that waits here is a fact, whatever the server calls the state it is in.
        return replace(snapshot, status=TaskStatus.INPUT_REQUIRED, input_requests=asked)

    async def _request(self, method: str) -> dict[str, Any]:
        """Ask for something that the server has at hand.

        Servers of the Python SDK 1 refuse whatever they fail to process with the code that an unknown task has. So
        unless that is what they say, they are asked again before they are believed.

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


# ---- driven calls
# Calls of the session that become tasks although the session knows of none: `client.call_tool`, as it is.


Outcome: TypeAlias = Callable[[JSONRPCRequest], Awaitable[JsonObject | None]]
"""Sees a call to its end as a task: the tool's result, or None if the tool takes no tasks."""


class DrivenCalls:
    """The calls of one session that are under way as tasks."""

    def __init__(self, wire: Connection, outcome: Outcome) -> None:
        self._wire = wire
        self._outcome = outcome
        self._calls: dict[RequestId, asyncio.Task[None]] = {}

    def begin(self, request: JSONRPCRequest) -> None:
        """Take a call over."""
        self._calls[request.id] = self._wire.spawn(self._drive(request))

    def cancelled(self, notification: JSONRPCNotification) -> bool:
        """The session gives a request up; whether it is one of ours."""
        call = self._calls.get((notification.params or {}).get("requestId", ""))
        if call is None:
            return False
        call.cancel()
        return True

    async def _drive(self, request: JSONRPCRequest) -> None:
        try:
            answer = await self._answer(request)
        finally:
            del self._calls[request.id]
        if answer is None:
            await self._wire.forward(request)
        else:
            await self._wire.answer(request.id, answer)

    async def _answer(self, request: JSONRPCRequest) -> JsonObject | ErrorData | None:
        try:
            return await self._outcome(request)
        except MCPError as exc:
            return exc.error
        except TasksError as exc:
            # The session has room for a JSON-RPC error only; which of ours it is, is in its data.
            return ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"mcp-tasks/error": type(exc).__name__})
        except Exception as exc:
            return ErrorData(code=INTERNAL_ERROR, message=f"the call could not be seen to its end: {exc!r}")


# ---- tool support
# Which tools of a server may be called as tasks: what `tools/list` says of each.


Support: TypeAlias = Literal["forbidden", "optional", "required"]

TOOL_SUPPORT_MAX_PAGES: Final = 100
"""A server whose list never ends keeps nobody waiting."""

LIST_TIMEOUT: Final = 60.0


class ToolSupport:
    """What is known of the tools of one server."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._known: dict[str, Support] = {}
        self._listing = anyio.Lock()

    def known(self, tool: str) -> Support | None:
        """What a list said of the tool; None if none did yet."""
        return self._known.get(tool)

    def saw(self, page: Mapping[str, Any]) -> None:
        """Take in a page of the list, whoever asked for it."""
        tools: object = page.get("tools")
        for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
            name, said = mapping(tool).get("name"), mapping(mapping(tool).get("execution")).get("taskSupport")
            if isinstance(name, str):
                # Absent means forbidden, and so does what nobody knows the meaning of.
                self._known[name] = cast(Support, said) if said in ("optional", "required") else "forbidden"

    def forget(self) -> None:
        """The list has changed."""
        self._known.clear()

    async def find(self, tool: str) -> Support:
        """What the server says of the tool; one that it does not list is `forbidden`.

        Raises:
            MCPError: The server does not list its tools.
        """
        if tool not in self._known:
            async with self._listing:
                if tool not in self._known:
                    await self._list()
        return self._known.get(tool, "forbidden")

    async def _list(self) -> None:
        cursor: object = None
        for _ in range(TOOL_SUPPORT_MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._wire.request("tools/list", params, timeout=LIST_TIMEOUT)
            self.saw(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return


MAX_PAGES: Final = 10_000
"""Pages of tasks that a server may list; more is a list that never ends."""

MAX_ANSWERED_THERE: Final = 1_000
"""Requests of tasks that are not driven here which the session may be answering; only the last ones are remembered."""

MAX_EARLY: Final = 100
"""Questions that may be there before the tasks that ask them."""


class LegacyTasks:
    """The tasks of one server, and a handler of the messages of the connection to it.

    Attributes:
        version: The version of the protocol that has these tasks.
        finish: Sees the tasks to their ends that the session's own calls become; without it, they become none.
    """

    version: ClassVar[str] = VERSION

    def __init__(self, wire: Connection) -> None:
        self.finish: Callable[[TaskSnapshot, str], Awaitable[JsonObject]] | None = None
        self._wire = wire
        self._handshake: RequestId | None = None
        self._lists: set[RequestId] = set()
        self._capabilities: JsonObject | None = None
        self._tools = ToolSupport(wire)
        self._slots = Slots()
        self._tasks: WeakValueDictionary[str, DrivenTask] = WeakValueDictionary()
        self._tokens: WeakValueDictionary[str | int, DrivenTask] = WeakValueDictionary()
        # Until whoever had them made comes for them; the last ones are enough, should somebody never come.
        self._new: deque[DrivenTask] = deque(maxlen=100)
        self._calls = DrivenCalls(wire, self._call)
        # What comes before the answer that says which task it belongs to: over HTTP that is another stream.
        self._creating: dict[str | int, Progress | None] = {}
        self._creations: set[asyncio.Task[TaskSnapshot | JsonObject]] = set()
        self._early: list[JSONRPCRequest] = []
        # The tasks of requests that the session answers: those of tasks that are not driven here.
        self._answered_there: BoundedDict[RequestId, str] = BoundedDict(MAX_ANSWERED_THERE)

    @property
    def is_spoken(self) -> bool:
        """Whether the server speaks this era, and has tasks at all."""
        return self._capabilities is not None

    @property
    def is_offered(self) -> bool:
        """Whether calls of tools may be tasks."""
        return "call" in mapping(mapping(mapping(self._capabilities).get("requests")).get("tools"))

    def task(self, task_id: str) -> DrivenTask:
        """The task of that id. Nothing is sent."""
        known = self._tasks.get(task_id)
        if known is None:
            can_cancel = "cancel" in mapping(self._capabilities)
            known = self._tasks[task_id] = DrivenTask(self._wire, task_id, slots=self._slots, can_cancel=can_cancel)
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
        """The tasks that the server lists, without their outcomes.

        Raises:
            UsageError: The server does not list tasks.
            InvalidResponse: It lists something else, or never ends.
        """
        if "list" not in mapping(self._capabilities):
            raise UsageError("this server does not list its tasks (tasks.list); a ledger has those that you started")
        cursor: object = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._wire.request("tasks/list", params, timeout=TIMEOUT)
            listed: object = page.get("tasks")
            if not isinstance(listed, list):
                raise InvalidResponse("the server answered tasks/list without a list of tasks")
            for task in listed:  # pyright: ignore[reportUnknownVariableType]
                yield read_task(task)  # pyright: ignore[reportUnknownArgumentType]
            cursor = page.get("nextCursor")
            if cursor is None:
                return
        raise InvalidResponse(f"the server's list of tasks has not ended after {MAX_PAGES} pages")

    # Messages of the session

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the session, and take over its calls that become tasks."""
        match message:
            case JSONRPCRequest(method="initialize", id=request_id):
                self._handshake = request_id
            case JSONRPCRequest(method="tools/list", id=request_id):
                self._lists.add(request_id)
            case JSONRPCRequest(method="tools/call") if self._takes_over(message):
                self._calls.begin(message)
                return None
            case JSONRPCNotification(method="notifications/cancelled") if self._calls.cancelled(message):
                return None
            case JSONRPCResponse() | JSONRPCError() if message.id is not None and message.id in self._answered_there:
                return _naming(message, self._answered_there.pop(message.id))
            case _:
                pass
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the server, and keep back what its tasks ask."""
        match message:
            case JSONRPCResponse(id=request_id, result=result) if request_id == self._handshake:
                self._shake_hands(result)
            case JSONRPCResponse(id=request_id, result=result) if request_id in self._lists:
                self._lists.discard(request_id)
                self._tools.saw(result)
            case JSONRPCError(id=request_id) if request_id is not None:
                self._lists.discard(request_id)
            case JSONRPCNotification(method="notifications/tools/list_changed"):
                self._tools.forget()
            case JSONRPCNotification():
                return None if self._noticed(message.method, message.params or {}) else message
            case JSONRPCRequest():
                if "task" not in (message.params or {}) and self._kept_back(message):
                    return None
                self._passes_on(message)
            case _:
                pass
        return message

    def _shake_hands(self, result: Mapping[str, Any]) -> None:
        declared = mapping(result.get("capabilities"))
        has_tasks = result.get("protocolVersion") == VERSION and "tasks" in declared
        self._capabilities = mapping(declared["tasks"]) if has_tasks else None

    def _noticed(self, method: str, params: Mapping[str, Any]) -> bool:
        """Take in a notification about a task; whether the session has no use for it."""
        match method:
            case "notifications/progress":
                return self._progressed(params)
            case "notifications/cancelled":
                request_id = params.get("requestId")
                return any(task.withdrawn(request_id) for task in list(self._tasks.values()) if request_id is not None)
            case _:
                task = self._tasks.get(str(params.get("taskId"))) if method == STATUS_NOTIFICATION else None
                if task is not None:
                    task.told(params)
                return False

    def _kept_back(self, request: JSONRPCRequest) -> bool:
        """Whether a request of the server is a question of a task, which waits here for its answer."""
        task_id = related_task_id(request.params)
        known = self._tasks.get(task_id or "")
        if known is not None:
            return known.asks(request)
        if task_id is None or not self._creating or len(self._early) >= MAX_EARLY:
            return False
        self._early.append(request)
        return True

    def _passes_on(self, request: JSONRPCRequest) -> None:
        """The session answers a request of the server. Its response has to name the task that the request names."""
        task_id = related_task_id(request.params)
        if task_id is not None:
            self._answered_there[request.id] = task_id

    def _progressed(self, params: Mapping[str, Any]) -> bool:
        token = params.get("progressToken")
        if not isinstance(token, str | int):
            # Nobody's; a task may still be named beside it.
            token = ""
        by_token = self._tokens.get(token)
        task = by_token or self._tasks.get(related_task_id(params) or "")
        progress = read_progress(params)
        if task is not None and progress is not None:
            task.progressed(progress)
        elif token in self._creating:
            self._creating[token] = progress
        # A token of the session's own is the session's as well.
        return isinstance(token, str) and by_token is not None

    # Calls

    def _takes_over(self, request: JSONRPCRequest) -> bool:
        params = request.params or {}
        # Whoever asks for a task in a message of their own knows what they do.
        wanted = self.finish is not None and self.is_offered and "task" not in params
        return wanted and self._tools.known(str(params.get("name"))) != "forbidden"

    async def _call(self, request: JSONRPCRequest) -> JsonObject | None:
        params = request.params or {}
        try:
            await self._tools.find(str(params.get("name")))
        except MCPError as exc:
            # Nothing is known of the tool, so it is called as it would have been without us.
            logger.info("the server does not list its tools, so they are not called as tasks: %s", what(exc))
            return None
        started = await self._start(params)
        if not isinstance(started, TaskSnapshot) or self.finish is None:
            return started if not isinstance(started, TaskSnapshot) else None
        return await self.finish(started, str(params.get("name")))

    async def _start(
        self, params: Mapping[str, Any], *, ttl: timedelta | None = None, timeout: float | None = None
    ) -> TaskSnapshot | JsonObject | None:
        tool = str(params.get("name"))
        if not self.is_offered or await self._tools.find(tool) == "forbidden":
            return None
        creation = asyncio.create_task(self._create(params, ttl=ttl, timeout=timeout))
        self._creations.add(creation)
        creation.add_done_callback(self._creations.discard)
        try:
            return await shielded(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(self._unwanted)
            raise
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
            # The tool took tasks when it was listed. Tools change, and not every server says so.
            self._tools.forget()
            if await self._tools.find(tool) == "forbidden":
                return None
            raise

    async def _create(
        self, params: Mapping[str, Any], *, ttl: timedelta | None, timeout: float | None
    ) -> TaskSnapshot | JsonObject:
        meta = dict(mapping(params.get("_meta")))
        token: str | int = meta.setdefault("progressToken", self._wire.new_id())
        made: list[TaskSnapshot] = []

        def register(result: dict[str, Any]) -> None:
            # Before the next message is looked at: it may be a question of this very task.
            snapshot = read_created(result)
            if snapshot is not None:
                made.append(snapshot)
                self._begin(snapshot.id, token).immediate_response = read_immediate_response(result)

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
        with `tasks/cancel`, for which its id is needed."""
        if creation.cancelled() or creation.exception() is not None or self._wire.is_closed:
            return
        if isinstance(created := creation.result(), TaskSnapshot):
            self._wire.spawn(self._cancel(created.id))

    async def _cancel(self, task_id: str) -> None:
        try:
            await self.task(task_id).cancel()
        except (TasksError, MCPError) as exc:
            logger.warning("task %s, whose caller has left, could not be cancelled: %s", short_id(task_id), what(exc))

    def _begin(self, task_id: str, token: str | int) -> DrivenTask:
        task = self._tokens[token] = self.task(task_id)
        self._new.append(task)
        progress = self._creating.get(token)
        if progress is not None:
            task.progressed(progress)
        self._sort_early()
        return task

    def _sort_early(self) -> None:
        """Hand early questions to their tasks; those of unknown tasks to the session, when no task is being made."""
        early, self._early = self._early, []
        for request in early:
            if not self._kept_back(request):
                self._passes_on(request)
                self._wire.spawn(self._wire.deliver(request))


def _naming(message: JSONRPCResponse | JSONRPCError, task_id: str) -> JSONRPCMessage:
    if isinstance(message, JSONRPCResponse):
        return message.model_copy(update={"result": named_result(message.result, task_id)})
    error = message.error.model_copy(update={"data": related_data(task_id, message.error.data)})
    return message.model_copy(update={"error": error})
