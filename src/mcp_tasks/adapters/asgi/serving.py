"""The methods that are served on the short way. What is refused is handed over; what has begun is seen to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

from mcp.server import Server
from mcp.server.runner import modern_error_data
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import INTERNAL_ERROR, SERVER_INFO_META_KEY
from starlette.types import Send

from mcp_tasks.adapters.asgi.counts import HandedOver, Handover
from mcp_tasks.adapters.asgi.listening import Listener, Listeners
from mcp_tasks.adapters.asgi.wire import RpcRequest, send_error, send_result
from mcp_tasks.adapters.sdk import request_of
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.errors import TasksError
from mcp_tasks.protocol import Caller, Listening, Message, RpcError, TasksProtocol, Texts
from mcp_tasks.protocol.answers import AnswerMisfit
from mcp_tasks.tools.sdk_errors import to_mcp_error
from mcp_tasks.wire.headers import NAME_HEADER
from mcp_tasks.wire.models import LIMIT_EXCEEDED

_CALL_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
"""What a plain call has. With anything else it may be one of several requests, or asks for something rare."""

_ENCODED: Final = "=?base64?"
"""How a name begins that is written in another way. A tool might be called so, and would be taken for another."""

_LISTEN_PARAMS: Final = frozenset({"notifications", "_meta"})
_TASKS_ALONE: Final = frozenset({"taskIds"})
"""What a stream is about that is served here: nothing of the SDK's own."""

_LONGEST_ID: Final = 256
"""Of a stream that is served here: a listener keeps it, and there may be thousands. The SDK serves fewer."""

Launch: TypeAlias = Callable[[], Awaitable[TaskRecord]]
"""Makes a task. Once it has begun, the call is answered by who began it, also with an error: were the call handed over
then, there might be two tasks."""


class Launches(Protocol):
    """Which calls become tasks: the author's rules, as they hold for every door."""

    def is_plain(self, name: str) -> bool:
        """Whether calls of the tool are known not to become tasks. Asked before a call is read."""
        ...

    def plan(self, caller: Caller, request: TaskRequest) -> Launch | None:
        """How to make the task of this call, if it becomes one at once and whatever its tool does; None for any other
        call. Nothing has been done then."""
        ...


class Serving:
    """Serves the methods for one server.

    Args:
        listeners: Where streams are kept.
    """

    def __init__(self, server: Server[Any], protocol: TasksProtocol, launches: Launches, listeners: Listeners) -> None:
        self._server = server
        self._protocol = protocol
        self._launches = launches
        self._listeners = listeners
        # As the SDK puts it into every result. It is fixed when a server is made.
        self._meta: Mapping[str, Any] = {SERVER_INFO_META_KEY: server.server_info_stamp}
        self._texts = Texts(self._meta)
        self._schemas: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def serve(
        self, request: RpcRequest, caller: Caller, send: Send, failed: Callable[[Exception], None] | None = None
    ) -> Listener | None:
        """Answer one request. If that begins a stream, give it to be seen to its end.

        Args:
            failed: Called with what a request comes to that is answered with an error.

        Raises:
            HandedOver: It is for the SDK. Nothing has been sent, and nothing done that would be done twice.
        """
        try:
            answer = await self._answer(request, caller)
        except Exception as exc:
            told = _told_in_place_of(exc)
            if isinstance(told, HandedOver):
                if isinstance(exc, RpcError):
                    self._protocol.hands_over(caller, request.method, exc)
                if told is exc:
                    raise
                raise told from exc
            why = exc.__cause__ if isinstance(exc, _Failed) and isinstance(exc.__cause__, Exception) else exc
            self._protocol.refused(caller, request.method, why, task_id=request.params.get("taskId"))
            if failed is not None:
                failed(told)
            await send_error(send, request.id, modern_error_data(told))
            return None
        if isinstance(answer, Listening):
            try:
                return await self._listeners.open(answer, request.id, send)
            except BaseException:
                answer.close()
                raise
        await send_result(send, request.id, answer)
        return None

    async def _answer(self, request: RpcRequest, caller: Caller) -> bytes | Listening:
        protocol = self._protocol
        match request.method:
            case "tasks/get":
                return await protocol.get_text(caller, request.params, self._texts)
            case "tools/call":
                return await self._call(request, caller)
            case "tasks/update":
                return self._encoded(await protocol.update(caller, request.params))
            case "tasks/cancel":
                return self._encoded(await protocol.cancel(caller, request.params))
            case "subscriptions/listen":
                return await self._listen(request, caller)
            case _:
                raise HandedOver(Handover.OTHER_METHOD)

    async def _call(self, request: RpcRequest, caller: Caller) -> bytes:
        launch = self._planned(request, caller)
        try:
            return self._encoded(self._protocol.created(caller, await launch()))
        except Exception as exc:
            raise _Failed(to_mcp_error(exc) if isinstance(exc, RpcError | TasksError) else exc) from exc

    def _planned(self, request: RpcRequest, caller: Caller) -> Launch:
        name, told = request.params.get("name"), request.params.get("arguments", {})
        if not (request.params.keys() <= _CALL_PARAMS and type(name) is str and type(told) is dict):
            raise HandedOver(Handover.PARAMS)
        arguments = cast("dict[str, Any]", told)
        # The SDK decodes a name that is encoded; one that is not needs no decoding.
        is_named = caller.headers.get(NAME_HEADER) == name and not name.startswith(_ENCODED)
        if not is_named or self._has_header_params(name, arguments):
            raise HandedOver(Handover.PARAMS)
        asked = request_of(request.method, request.meta, caller, name=name, arguments=arguments)
        launch = self._launches.plan(caller, asked)
        if launch is None:
            raise HandedOver(Handover.CALL)
        return launch

    def _has_header_params(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether arguments of the tool have to be in headers as well, which the SDK compares."""
        if not arguments:
            return False
        lookup = self._server.get_tool_input_schema
        schema = None if lookup is None else lookup(tool)
        if schema is None:
            # The SDK lists the tools to find out, or has nothing to compare.
            return True
        known = self._schemas.get(tool)
        if known is None or known[0] is not schema:
            known = self._schemas[tool] = (schema, bool(x_mcp_header_map(schema)))
        return known[1]

    async def _listen(self, request: RpcRequest, caller: Caller) -> Listening:
        if not _is_slight(request):
            raise HandedOver(Handover.PARAMS)
        self._listeners.require_room()
        return await self._protocol.listen(caller, request.params)

    def _encoded(self, message: Message) -> bytes:
        meta = {**message.fields.get("_meta", {}), **self._meta}
        return Message(fields={**message.fields, "_meta": meta}, large=message.large).encode()


def _is_slight(request: RpcRequest) -> bool:
    """Whether a listener is for tasks alone, and keeps little while it lasts."""
    wanted = request.params.get("notifications")
    if not (request.params.keys() <= _LISTEN_PARAMS and isinstance(wanted, dict)):
        return False
    named = cast("dict[str, Any]", wanted)
    if named.keys() != _TASKS_ALONE:
        return False
    return not (isinstance(request.id, str) and len(request.id) > _LONGEST_ID)


class _Failed(Exception):
    """The request is answered with an error, here."""

    def __init__(self, told: Exception) -> None:
        super().__init__(told)
        self.told = told


def _told_in_place_of(exc: Exception) -> Exception:
    """What the SDK would meet, and answer with an error, where this was raised; or `HandedOver`, if it is refused, or
    was not understood after all: the SDK asks again, and words the refusal.

    What fails for a reason of the server's is answered here: asked again, a store that is away would be waited for
    twice. So is what is beyond a limit, or answers that do not fit: asked again, they would count and cost twice.
    """
    match exc:
        case HandedOver():
            return exc
        case _Failed():
            return exc.told
        case RpcError():
            is_told = exc.code in (INTERNAL_ERROR, LIMIT_EXCEEDED) or isinstance(exc, AnswerMisfit)
            return to_mcp_error(exc) if is_told else HandedOver(Handover.REFUSED)
        case _:
            return HandedOver(Handover.FAILED)
