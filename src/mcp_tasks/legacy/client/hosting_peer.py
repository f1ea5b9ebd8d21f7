"""One connection of a client that hosts tasks: it declares them, and answers what the server asks about them.

It sits on the wire between transport and session. A request that is to be a task never reaches the session as such: the
server gets the task at once, and the session the plain request, under an id of ours. So the client's own callback
answers, as it would any other time, and the answer is caught on its way out and kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TasksError
from mcp_tasks.legacy.client.hosting_runs import CallbackFailed, ConnectionEnded
from mcp_tasks.legacy.client.hosting_tasks import HostedTasks, ServerTasks
from mcp_tasks.legacy.client.hosting_wire import (
    AUGMENTABLE,
    cursor_at,
    plain_request,
    position_of,
    question_of,
    refusal,
    render_end,
    task_id_of,
    tasks_capability,
    ttl_of,
)
from mcp_tasks.legacy.shapes import STATUS_NOTIFICATION, VERSION, related_task, task_fields
from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

MAX_OPEN: Final = 256
"""Requests about tasks that a server may have open on one connection, waits for results above all."""

MAX_UNREAD: Final = 1024
"""Answers that a server may leave unread before its requests are dropped."""

LAST_TOKENS: Final = 1024
"""Progress tokens that are remembered after their tasks."""

FAREWELL: Final = 1.0
"""Seconds to hand the cancellation of a callback to the session, which may be gone itself."""

_METHODS: Final = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"})


class HostingWire(Protocol):
    """What is needed of the connection."""

    def new_id(self) -> str: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    async def deliver(self, message: JSONRPCMessage) -> None: ...
    async def reply(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None: ...
    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None: ...


class HostedPeer:
    """A handler of the messages of one connection.

    Raises:
        StoreError: The ledger cannot be used.
    """

    def __init__(self, wire: HostingWire, hosted: HostedTasks, tasks: ServerTasks) -> None:
        self._wire = wire
        self._hosted = hosted
        self._tasks = tasks
        self._handshake: RequestId | None = None
        self._offered: frozenset[str] = frozenset()
        self._speaks_tasks = False
        self._is_active = False
        self._callbacks: dict[RequestId, asyncio.Future[dict[str, Any]]] = {}
        self._answering: dict[RequestId, asyncio.Task[Any]] = {}
        self._tokens: OrderedDict[Any, tuple[str, bool]] = OrderedDict()
        hosted.open()
        wire.spawn(self._live())

    async def _live(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self._tasks.detach(self)
                await self._hosted.close()

    # Messages of the session

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the session, and take the answers of callbacks out of the stream."""
        match message:
            case JSONRPCRequest(method="initialize"):
                return self._declare(message)
            case JSONRPCNotification(method="notifications/initialized") if self._speaks_tasks:
                self._is_active = True
                self._tasks.attach(self)
            case JSONRPCNotification(method="notifications/progress"):
                return self._tie_progress(message)
            case JSONRPCResponse(id=request_id, result=result) if request_id in self._callbacks:
                self._settle(request_id, result)
                return None
            case JSONRPCError(id=request_id, error=error) if request_id in self._callbacks:
                self._settle(request_id, error)
                return None
            case _:
                pass
        return message

    def _declare(self, message: JSONRPCRequest) -> JSONRPCRequest:
        params = dict(message.params or {})
        capabilities = dict(params.get("capabilities") or {})
        tasks = tasks_capability(capabilities)
        if tasks is None:
            return message
        self._handshake = message.id
        self._offered = frozenset(method for method, (name, _) in AUGMENTABLE.items() if name in tasks["requests"])
        params["capabilities"] = {**capabilities, "tasks": tasks}
        return message.model_copy(update={"params": params})

    def _settle(self, request_id: RequestId, outcome: dict[str, Any] | ErrorData) -> None:
        answer = self._callbacks[request_id]
        if answer.done():
            return
        if not isinstance(outcome, ErrorData):
            answer.set_result(outcome)
        elif outcome.code == CONNECTION_CLOSED and outcome.message == "Connection closed":
            # What the SDK answers in place of a callback that it cancels on its way out.
            answer.set_exception(ConnectionEnded())
        else:
            answer.set_exception(CallbackFailed(outcome.model_dump(mode="json", exclude_none=True)))

    def _tie_progress(self, message: JSONRPCNotification) -> JSONRPCNotification | None:
        params = dict(message.params or {})
        task_id, is_running = self._tokens.get(params.get("progressToken"), (None, True))
        if task_id is None:
            return message
        if not is_running:
            return None
        params["_meta"] = {**(params.get("_meta") or {}), **related_task(task_id)}
        return message.model_copy(update={"params": params})

    # Messages of the server

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the server, and take what is about tasks."""
        match message:
            case JSONRPCResponse(id=request_id, result=result) if request_id == self._handshake:
                self._speaks_tasks = result.get("protocolVersion") == VERSION
            case JSONRPCRequest(method=method) if self._is_active and self._is_ours(method, message.params):
                self._take(message)
                return None
            case JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
                answering = self._answering.get(_hashable(params.get("requestId")))
                if answering is not None:
                    answering.cancel()
                    return None
            case _:
                pass
        return message

    def _is_ours(self, method: str, params: Mapping[str, Any] | None) -> bool:
        # 002: a request of a kind that is not declared is processed as if it had no `task`.
        return method in _METHODS or (method in self._offered and "task" in (params or {}))

    def _take(self, message: JSONRPCRequest) -> None:
        if len(self._answering) >= MAX_UNREAD:
            logger.warning("dropped a %s: the server has %d open", message.method, len(self._answering))
            return
        is_busy = len(self._answering) >= MAX_OPEN
        answering = self._wire.spawn(self._answer(message, is_busy=is_busy))
        self._answering[message.id] = answering
        answering.add_done_callback(lambda _: self._answered(message.id, answering))

    def _answered(self, request_id: RequestId, answering: asyncio.Task[Any]) -> None:
        if self._answering.get(request_id) is answering:
            del self._answering[request_id]

    async def _answer(self, message: JSONRPCRequest, *, is_busy: bool) -> None:
        outcome: Mapping[str, Any] | ErrorData
        try:
            if is_busy:
                raise MCPError(code=INTERNAL_ERROR, message=f"{MAX_OPEN} requests about tasks are open; try later")
            outcome = await self._result(message.method, message.params or {})
        except MCPError as exc:
            outcome = exc.error
        except TasksError as exc:
            logger.info("refused a %s: %s", message.method, exc)
            outcome = refusal(exc).error
        except Exception:
            logger.error("a %s could not be answered", message.method, exc_info=quietly())
            outcome = ErrorData(code=INTERNAL_ERROR, message="The client failed")
        try:
            await self._wire.reply(message.id, outcome)
        except MCPError:
            logger.debug("the connection ended before a %s was answered", message.method)

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "tasks/get":
                return self._render(self._tasks.get(task_id_of(params)))
            case "tasks/cancel":
                return self._render(self._tasks.cancel(task_id_of(params)))
            case "tasks/list":
                return self._list(position_of(params))
            case "tasks/result":
                return render_end(*await self._tasks.end_of(task_id_of(params)))
            case _:
                return self._create(method, params)

    def _create(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        ttl = ttl_of(params)
        request = plain_request(method, params)
        record = self._tasks.create(method, request, ttl, question=question_of(request))
        # Tasks MUST begin as `working`, also one that is found again and has got further by now.
        return {"task": {**self._render(record), "status": TaskStatus.WORKING.value}}

    def _list(self, position: int) -> dict[str, Any]:
        records, next_position = self._tasks.page(position)
        page: dict[str, Any] = {"tasks": [self._render(record) for record in records]}
        if next_position is not None:
            page["nextCursor"] = cursor_at(next_position)
        return page

    def _render(self, record: TaskRecord) -> dict[str, Any]:
        return task_fields(record, self._hosted.now(), status=record.status.value, message=record.status_message)

    # What runs over this connection

    async def run(self, record: TaskRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the session answer the plain request, and give its result."""
        request_id = self._wire.new_id()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._callbacks[request_id] = answer
        token = _hashable((request.get("_meta") or {}).get("progressToken"))
        self._remember(token, record.id, is_running=True)
        plain = JSONRPCRequest(jsonrpc="2.0", id=request_id, method=record.method, params=dict(request))
        try:
            await self._wire.deliver(plain)
            return await answer
        except asyncio.CancelledError:
            await self._cancel_callback(request_id)
            raise
        finally:
            self._remember(token, record.id, is_running=False)
            self._callbacks.pop(request_id, None)

    async def _cancel_callback(self, request_id: str) -> None:
        params = {"requestId": request_id, "reason": "the task was cancelled"}
        with anyio.move_on_after(FAREWELL, shield=True):
            await self._wire.deliver(
                JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
            )

    def _remember(self, token: Any, task_id: str, *, is_running: bool) -> None:
        if token is None:
            return
        self._tokens[token] = (task_id, is_running)
        self._tokens.move_to_end(token)
        while len(self._tokens) > LAST_TOKENS:
            self._tokens.popitem(last=False)

    def ended(self, record: TaskRecord) -> None:
        """Tell the server that a task has ended. Without `related-task`: the id is in the task."""
        # From now on nothing of its progress goes out, though its callback may take a while to end.
        for token in [token for token, (task_id, _) in self._tokens.items() if task_id == record.id]:
            self._tokens[token] = (record.id, False)
        self._wire.spawn(self._wire.notify(STATUS_NOTIFICATION, self._render(record)))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
