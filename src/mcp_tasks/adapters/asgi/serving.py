"""The methods that are served on the short way. What is refused is handed over; what has begun is seen to its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias, cast

from mcp.server import Server
from mcp.server.runner import modern_error_data
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import SERVER_INFO_META_KEY
from starlette.types import Send

from mcp_tasks.adapters.asgi.counts import HandedOver, Handover
from mcp_tasks.adapters.asgi.wire import RpcRequest, send_error, send_result
from mcp_tasks.adapters.sdk import request_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.errors import TasksError
from mcp_tasks.protocol import Caller, Message, RpcError, TasksProtocol, Texts
from mcp_tasks.tools.sdk_errors import to_mcp_error
from mcp_tasks.wire.headers import NAME_HEADER

logger: Final = logging.getLogger(__name__)

_CALL_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
"""What a plain call has. With anything else it may be one of several requests, or asks for something rare."""

_ENCODED: Final = "=?base64?"
"""How a name begins that is written in another way. A tool might be called so, and would be taken for another."""

Launch: TypeAlias = Callable[[], Awaitable[TaskRecord]]
"""Makes a task. Once it has begun, the call is answered by who began it, also with an error: were the call handed over
then, there might be two tasks."""


class Launches(Protocol):
    """Which calls become tasks: the author's rules, as they hold for every door."""

    def is_plain(self, name: str) -> bool:
        """Whether calls of the tool are known not to become tasks. Asked before a call is read."""
        ...

    async def plan(self, caller: Caller, request: TaskRequest) -> Launch | None:
        """How to make the task of this call, if it becomes one at once and whatever its tool does; None for any other
        call. Nothing has been done then."""
        ...


class Serving:
    """Serves the methods for one server."""

    def __init__(self, server: Server[Any], protocol: TasksProtocol, launches: Launches) -> None:
        self._server = server
        self._protocol = protocol
        self._launches = launches
        # As the SDK puts it into every result. It is fixed when a server is made.
        self._meta: Mapping[str, Any] = {SERVER_INFO_META_KEY: server.server_info_stamp}
        self._texts = Texts(self._meta)
        self._schemas: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def serve(self, request: RpcRequest, caller: Caller, send: Send) -> None:
        """Answer one request.

        Raises:
            HandedOver: It is for the SDK. Nothing has been sent, and nothing done that would be done twice.
        """
        match request.method:
            case "tasks/get":
                with _refusals_handed_over(request):
                    text = await self._protocol.get_text(caller, request.params, self._texts)
                await send_result(send, request.id, text)
            case "tools/call":
                await self._call(request, caller, send)
            case "tasks/update":
                await self._acknowledge(self._protocol.update, request, caller, send)
            case "tasks/cancel":
                await self._acknowledge(self._protocol.cancel, request, caller, send)
            case _:
                raise HandedOver(Handover.OTHER_METHOD)

    async def _acknowledge(
        self,
        method: Callable[[Caller, JsonObject], Awaitable[Message]],
        request: RpcRequest,
        caller: Caller,
        send: Send,
    ) -> None:
        # Handed over after it failed half-way it is done again, which changes nothing: an answer that was taken stays,
        # and so does a cancellation.
        with _refusals_handed_over(request):
            message = await method(caller, request.params)
        await self._send(request, message, send)

    async def _call(self, request: RpcRequest, caller: Caller, send: Send) -> None:
        with _refusals_handed_over(request):
            launch = await self._planned(request, caller)
        try:
            record = await launch()
        except Exception as exc:
            told = to_mcp_error(exc) if isinstance(exc, RpcError | TasksError) else exc
            await send_error(send, request.id, modern_error_data(told))
            return
        await self._send(request, self._protocol.created(caller, record), send)

    async def _planned(self, request: RpcRequest, caller: Caller) -> Launch:
        name, told = request.params.get("name"), request.params.get("arguments", {})
        if not (request.params.keys() <= _CALL_PARAMS and type(name) is str and type(told) is dict):
            raise HandedOver(Handover.PARAMS)
        arguments = cast("dict[str, Any]", told)
        # The SDK decodes a name that is encoded; one that is not needs no decoding.
        if caller.headers.get(NAME_HEADER) != name or self._has_header_params(name, arguments):
            raise HandedOver(Handover.PARAMS)
        asked = request_of(request.method, request.meta, caller, name=name, arguments=arguments)
        launch = await self._launches.plan(caller, asked)
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

    async def _send(self, request: RpcRequest, message: Message, send: Send) -> None:
        meta = {**message.fields.get("_meta", {}), **self._meta}
        stamped = Message(fields={**message.fields, "_meta": meta}, large=message.large)
        await send_result(send, request.id, stamped.encode())


@contextmanager
def _refusals_handed_over(request: RpcRequest) -> Generator[None]:
    """In here, whatever goes wrong is for the SDK to answer: it asks again, and words the refusal."""
    try:
        yield
    except HandedOver:
        raise
    except (RpcError, TasksError) as exc:
        raise HandedOver(Handover.REFUSED) from exc
    except Exception as exc:
        logger.debug("%s was handed over after a failure", request.method, exc_info=True)
        raise HandedOver(Handover.FAILED) from exc
