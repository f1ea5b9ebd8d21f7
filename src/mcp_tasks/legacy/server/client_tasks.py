"""Sampling and elicitation as tasks that the client hosts, for the author of a tool.

    approval = await elicit_as_task(ctx, "Publish?", Publish, ttl=timedelta(hours=1))
    ...                                              # other work, while the person thinks
    answer = await approval.result()

    approval = client_task(ctx, task_id, Publish)    # another call, another day

Only a client that declared it in its 2025-11-25 handshake hosts tasks. In a tool that runs as a task, any other client
is asked plainly, as with `ctx.elicit`: the question waits in the server's task, whatever the client speaks. In a plain
call the functions raise `ClientTasksUnsupported` before anything is sent, and `ctx.elicit` is the way to ask.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

import anyio
from mcp.server import ServerRequestContext
from mcp.server.elicitation import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
    ElicitationResult,
    render_elicitation_schema,
)
from mcp.server.mcpserver import Context
from mcp.server.session import ServerSession
from mcp.server.validation import validate_sampling_tools, wants_sampling_tools
from mcp_types import (
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitResult,
    SamplingMessage,
)
from pydantic import BaseModel, ValidationError

from mcp_tasks.core.durations import check_duration
from mcp_tasks.errors import InvalidResponse, UsageError
from mcp_tasks.legacy.server.client_driver import Driver, task_params
from mcp_tasks.legacy.server.client_task_errors import ClientTasksUnsupported, ClientTaskTimedOut, for_tools
from mcp_tasks.legacy.shapes import VERSION
from mcp_tasks.runtime import current_task
from mcp_tasks.tools.raw import raw_request
from mcp_tasks.wire.parse import TaskSnapshot

T = TypeVar("T")
SchemaT = TypeVar("SchemaT", bound=BaseModel)

AnyContext: TypeAlias = Context[Any, Any] | ServerRequestContext[Any, Any]
"""The context of a tool, or of a low-level handler."""

Parse: TypeAlias = Callable[[dict[str, Any]], T]
"""Makes an answer of what the client sent."""

_IN_TASK: Final = (
    "a task sees to its questions itself, in whatever session its client has: in a task, await the result of "
    "elicit_as_task or sample_as_task, and nothing else"
)

_ELICITATION: Final = "elicitation/create"
_SAMPLING: Final = "sampling/createMessage"


class ClientTask(Generic[T]):
    """A task that the client hosts for this server.

    Attributes:
        id: Its id, by which `client_task` finds it again. Empty in a task of this server, which finds it by itself.
    """

    def __init__(self, driver: Driver, task_id: str, parse: Parse[T], *, check_cancel: Callable[[], object]) -> None:
        self.id = task_id
        self._driver = driver
        self._parse = parse
        self._check_cancel = check_cancel

    async def status(self) -> TaskSnapshot:
        """The task as the client shows it now.

        Raises:
            UnknownTask: The client does not have it (any more).
        """
        with for_tools():
            return await self._driver.get(self.id)

    async def result(self, timeout: timedelta | None = None) -> T:
        """Wait for the answer, looking as often as the client suggests.

        Args:
            timeout: How long to wait; None for as long as it takes.

        Raises:
            ClientTaskTimedOut: It takes longer. The task goes on.
            TaskWasCancelled: It was cancelled.
            UnknownTask: The client does not have it (any more).
            MCPError: The client answered with this error, as a plain request would have raised it.
            InvalidResponse: The client answered with something that is not an answer.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, zero=True).total_seconds()
        with anyio.move_on_after(seconds), for_tools():
            return self._parse(await self._driver.result(self.id))
        message = f"The client's task did not end within {seconds:.15g} s. It goes on: come back with client_task"
        raise ClientTaskTimedOut(REQUEST_TIMEOUT, message, task_id=self.id)

    async def cancel(self) -> TaskSnapshot:
        """Cancel the task at the client.

        Raises:
            ClientTasksUnsupported: The client did not declare that tasks can be cancelled.
            UnknownTask: The client does not have it (any more).
            MCPError: The client refused, for one because the task has ended.
        """
        self._check_cancel()
        with for_tools():
            return await self._driver.cancel(self.id)


class AskedInTask(ClientTask[T]):
    """A question of a task of this server: the task keeps it, and sees to it that the client is asked for a task once.

    A client that hosts no tasks is asked plainly. The question is put when its result is awaited, and is part of the
    task from then on: the run may leave memory, and after a restart the answer is fetched from the client's task,
    whatever session the client then has.
    """

    def __init__(self, ask: Callable[[float | None], Awaitable[dict[str, Any]]], parse: Parse[T]) -> None:
        self.id = ""
        self._ask = ask
        self._parse = parse

    async def status(self) -> TaskSnapshot:
        """Raises:
        UsageError: The task sees to the question; all that a tool can do is to await its result.
        """
        raise UsageError(_IN_TASK)

    async def result(self, timeout: timedelta | None = None) -> T:
        """Ask, unless an earlier run did, and wait for the answer.

        Raises:
            QuestionTimedOut: It takes longer than `timeout`, restarts included.
            MCPError: The client answered with this error.
            InvalidResponse: The client answered with something that is not an answer.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout).total_seconds()
        with for_tools():
            return self._parse(await self._ask(seconds))

    async def cancel(self) -> TaskSnapshot:
        """Raises:
        UsageError: A question is taken back by cancelling the await of its result.
        """
        raise UsageError(_IN_TASK)


async def elicit_as_task(
    ctx: AnyContext, message: str, schema: type[SchemaT], *, ttl: timedelta | None = None
) -> ClientTask[ElicitationResult[SchemaT]]:
    """Ask the person behind the client something, as a task of the client: it may take days and outlive the session.

    In a tool that runs as a task, a client that does not host such tasks is asked plainly, as with `ctx.elicit`.

    Args:
        ttl: How long the client is to keep the answer. It may decide otherwise.

    Raises:
        ClientTasksUnsupported: The tool does not run as a task, and the client does not host any. Nothing was sent.
        MCPError: The client refused.
    """
    params = ElicitRequestFormParams(message=message, requested_schema=render_elicitation_schema(schema))
    return await _create(ctx, _ELICITATION, params, _elicited(schema), ttl)


async def sample_as_task(
    ctx: AnyContext,
    messages: Sequence[SamplingMessage],
    *,
    max_tokens: int,
    ttl: timedelta | None = None,
    **options: Any,
) -> ClientTask[CreateMessageResult]:
    """Have the client's model write something, as a task of the client.

    In a tool that runs as a task, a client that does not host such tasks is asked plainly, as by a plain request.

    Args:
        ttl: How long the client is to keep the answer. It may decide otherwise.
        options: The other fields of the SDK's `CreateMessageRequestParams`: `system_prompt`, `temperature` and so on.
            With `tools` or `tool_choice`, the result is a `CreateMessageResultWithTools`.

    Raises:
        ClientTasksUnsupported: The tool does not run as a task, and the client does not host any. Nothing was sent.
        MCPError: The client refused.
    """
    params = CreateMessageRequestParams(messages=list(messages), max_tokens=max_tokens, **options)
    validate_sampling_tools(ctx.session.client_capabilities, params.tools, params.tool_choice)
    with_tools = wants_sampling_tools(params.tools, params.tool_choice)
    return await _create(ctx, _SAMPLING, params, _sampled_with_tools if with_tools else _sampled, ttl)


@overload
def client_task(ctx: AnyContext, task_id: str) -> ClientTask[dict[str, Any]]: ...


@overload
def client_task(ctx: AnyContext, task_id: str, schema: type[SchemaT]) -> ClientTask[ElicitationResult[SchemaT]]: ...


def client_task(ctx: AnyContext, task_id: str, schema: type[BaseModel] | None = None) -> ClientTask[Any]:
    """A task of the client by its id: from another call, or another session with the same client. Nothing is sent.

    Args:
        schema: What was asked for, if it was an elicitation; without it the result is the client's, as it came.

    Raises:
        ClientTasksUnsupported: The client hosts no tasks.
    """
    _require(ctx.session)
    if current_task().id is not None:
        raise UsageError(_IN_TASK)
    return _handle(ctx, task_id, dict if schema is None else _elicited(schema))


def list_client_tasks(ctx: AnyContext) -> AsyncIterator[TaskSnapshot]:
    """The tasks that the client hosts for this server.

    Raises:
        ClientTasksUnsupported: The client did not declare that its tasks can be listed. Nothing was sent.
    """
    _require(ctx.session, "list")
    if current_task().id is not None:
        raise UsageError(_IN_TASK)
    return _listed(_driver(ctx))


async def _listed(driver: Driver) -> AsyncGenerator[TaskSnapshot]:
    with for_tools():
        async for state in driver.list():
            yield state


async def _create(
    ctx: AnyContext, method: str, params: BaseModel, parse: Parse[T], ttl: timedelta | None
) -> ClientTask[T]:
    if ttl is not None:
        check_duration("ttl", ttl)
    asked = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    needed = ("requests", *method.split("/"))
    if current_task().id is not None:
        # The task keeps the question open for as long as it takes, whoever hosts it.
        is_hosted = _why_not(ctx.session, *needed) is None
        return _in_task(ctx, method, {**asked, "task": task_params(ttl)} if is_hosted else asked, parse)
    _require(ctx.session, *needed)
    driver = _driver(ctx)
    with for_tools():
        created = await driver.create(method, asked, ttl)
    return _handle(ctx, created.id, parse, driver)


def _in_task(ctx: AnyContext, method: str, params: Mapping[str, Any], parse: Parse[T]) -> ClientTask[T]:
    async def ask(seconds: float | None) -> dict[str, Any]:
        return await raw_request(ctx.session, method, params, request_id=ctx.request_id, timeout=seconds)

    return AskedInTask(ask, parse)


def _handle(ctx: AnyContext, task_id: str, parse: Parse[T], driver: Driver | None = None) -> ClientTask[T]:
    return ClientTask(driver or _driver(ctx), task_id, parse, check_cancel=lambda: _require(ctx.session, "cancel"))


def _driver(ctx: AnyContext) -> Driver:
    async def send(method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        # On the stream of the call while that is open, which is sure to arrive; then on the session's own.
        request_id = ctx.request_id if ctx.session.can_send_request else None
        return await raw_request(ctx.session, method, params, request_id=request_id, timeout=timeout)

    return Driver(send)


def _require(session: ServerSession, *path: str) -> None:
    """Refuse what the client did not declare: a requestor MUST NOT try."""
    why = _why_not(session, *path)
    if why is not None:
        raise ClientTasksUnsupported(INVALID_REQUEST, f"Tasks of the client cannot be used here: {why}.")


def _why_not(session: ServerSession, *path: str) -> str | None:
    if session.protocol_version != VERSION:
        return f"the client speaks {session.protocol_version}, and only {VERSION} has tasks of clients"
    if session.client_capabilities is None:
        return f"this server is stateless, where a client of {VERSION} cannot be asked anything; serve with sessions"
    declared = session.client_capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
    for name in ("tasks", *path):
        if not isinstance(declared.get(name), dict):
            return f"the client did not declare {'.'.join(('tasks', *path))}"
        declared = declared[name]
    return None


def _elicited(schema: type[SchemaT]) -> Parse[ElicitationResult[SchemaT]]:
    def parse(raw: dict[str, Any]) -> ElicitationResult[SchemaT]:
        try:
            answer = ElicitResult.model_validate(raw, by_name=False)
            if answer.action == "accept":
                return AcceptedElicitation(data=schema.model_validate(answer.content))
        except ValidationError as exc:
            raise InvalidResponse(
                "the client answered with something that is not an answer to what it was asked"
            ) from exc
        return DeclinedElicitation() if answer.action == "decline" else CancelledElicitation()

    return parse


def _sampled(raw: dict[str, Any]) -> CreateMessageResult:
    return _message(CreateMessageResult, raw)


def _sampled_with_tools(raw: dict[str, Any]) -> Any:
    return _message(CreateMessageResultWithTools, raw)


def _message(kind: type[SchemaT], raw: dict[str, Any]) -> SchemaT:
    try:
        return kind.model_validate(raw, by_name=False)
    except ValidationError as exc:
        raise InvalidResponse("the client answered with something that is not a message") from exc
