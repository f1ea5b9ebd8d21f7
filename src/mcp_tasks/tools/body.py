"""Runs a tool from its record, the same in the server that took the call, after a restart, and in a worker.

The tool gets the SDK's own context, built by hand over a `TaskChannel`, so it works in a task as in a call. Prompts and
resources are run in the same way; where nothing else is said, a tool here is any of the three.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast
from weakref import WeakSet

from mcp.server import ServerRequestContext
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    LOG_LEVEL_META_KEY,
    CallToolRequestParams,
    GetPromptRequestParams,
    InputRequiredResult,
    ReadResourceRequestParams,
    RequestParamsMeta,
)
from mcp_types import methods as mcp_methods
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from mcp_tasks.core import InputRequest, JsonObject, TaskRequest
from mcp_tasks.core.text import valid_json
from mcp_tasks.errors import AnswerRefused, UsageError
from mcp_tasks.protocol.errors import RpcError, describe
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import AskedOnCall, Ending, Failure, Run, Success
from mcp_tasks.runtime.context import current_run
from mcp_tasks.tools.channel import ConnectionChannel, TaskChannel, check_askable
from mcp_tasks.tools.clients import ClientCache
from mcp_tasks.tools.host import Params, RequestContext, ToolHost
from mcp_tasks.tools.lone import lone_context
from mcp_tasks.tools.open_calls import OpenCall, OpenCalls

logger: Final = get_logger(__name__)

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
