"""Driving tasks of a 2025-11-25 server, over one connection and beside the session.

Here is what concerns the connection as a whole: what the server offers, which tools take tasks, which message belongs
to which task. `driven_task` is one task, `driven_calls` the session's own calls.

In this era the client decides: a call asks for a task with `params.task`. A `TasksClient` asks for one wherever the
server offers it, as a server of the newer era would have decided by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.errors import InvalidResponse, TasksError, UsageError
from mcp_tasks.legacy.client.connection import Connection
from mcp_tasks.legacy.client.driven_calls import DrivenCalls
from mcp_tasks.legacy.client.driven_task import TIMEOUT, DrivenTask
from mcp_tasks.legacy.client.reading import (
    mapping,
    read_created,
    read_immediate_response,
    read_progress,
    read_task,
    related_task_id,
)
from mcp_tasks.legacy.client.slots import Bounded, Slots
from mcp_tasks.legacy.client.tool_support import ToolSupport
from mcp_tasks.legacy.shapes import STATUS_NOTIFICATION, VERSION, named_result, related_data
from mcp_tasks.quiet import get_logger, shielded, short_id, what
from mcp_tasks.wire.parse import TaskSnapshot
from mcp_tasks.wire.render import milliseconds

logger: Final = get_logger(__name__)

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
        self._answered_there: Bounded[RequestId, str] = Bounded(MAX_ANSWERED_THERE)

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
