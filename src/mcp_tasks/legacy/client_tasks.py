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

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast, overload

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
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
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

from mcp_tasks.errors import InvalidResponse, TasksError, TaskWasCancelled, UnknownTask, UsageError
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED, VERSION, plain_data, read_task
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.model.values import check_duration
from mcp_tasks.protocol.shapes import TaskSnapshot, milliseconds
from mcp_tasks.runtime import current_task
from mcp_tasks.server.tool_runner import raw_request

# ---- client driver
# Driving a task that a client hosts: create it, poll it, fetch its result. The requestor's side of 2025-11-25.


ANSWER_LIMIT: Final = 30.0
"""Seconds for a client to answer what it can answer at once: everything but the request itself."""

MAX_SILENCES: Final = 3
"""How many looks in a row may go unanswered before the client counts as gone."""

DEFAULT_POLL: Final = timedelta(seconds=1)
FASTEST_POLL: Final = timedelta(milliseconds=50)
"""Whatever a client suggests, this is no busy loop."""

MAX_PAGES: Final = 1000
"""Pages of a listing: a client that never stops turning them is not followed further."""


class Send(Protocol):
    """Sends a request to the client, and gives its result as it came."""

    async def __call__(self, method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]: ...


class Driver:
    """Drives the tasks that one client hosts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._seen: dict[str, tuple[TaskSnapshot, float]] = {}

    async def create(self, method: str, params: Mapping[str, Any], ttl: timedelta | None) -> TaskSnapshot:
        """Have the client take a request as a task.

        Raises:
            InvalidResponse: It answered with something else.
            MCPError: It refused.
        """
        result = await self._send(method, {**params, "task": task_params(ttl)}, ANSWER_LIMIT)
        created = result.get("task")
        if not isinstance(created, Mapping):
            raise InvalidResponse(f"the client declared tasks for {method}, and answered with something else")
        return self._saw(_checked(result["task"]))

    async def get(self, task_id: str) -> TaskSnapshot:
        """The task as it is now.

        Raises:
            UnknownTask: The client does not have it.
        """
        return self._saw(_same(task_id, await self._about(task_id, "tasks/get")))

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel the task.

        Raises:
            UnknownTask: The client does not have it.
            MCPError: The client refused, for one because it has ended.
        """
        try:
            return self._saw(_same(task_id, await self._send("tasks/cancel", {"taskId": task_id}, ANSWER_LIMIT)))
        except MCPError as exc:
            if exc.error.code != INVALID_PARAMS:
                raise
            # The same code for one that is not there and one that has ended: a look tells them apart.
            await self.get(task_id)
            raise

    async def list(self) -> AsyncGenerator[TaskSnapshot]:
        """The tasks that the client hosts for this server, a page after the other."""
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._send("tasks/list", {} if cursor is None else {"cursor": cursor}, ANSWER_LIMIT)
            tasks: object = page.get("tasks")
            if not isinstance(tasks, list):
                raise InvalidResponse("the client answered tasks/list without tasks")
            for task in cast("list[object]", tasks):
                yield _checked(task)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return

    async def result(self, task_id: str) -> dict[str, Any]:
        """The result of the request, once the task has ended.

        Raises:
            UnknownTask: The client does not have the task.
            TaskWasCancelled: It was cancelled.
            MCPError: The request ended in this error; or the client is gone.
        """
        if task_id not in self._seen:
            await self.get(task_id)
        state, at = self._seen[task_id]
        while not state.is_final:
            await anyio.sleep(at + pause(state).total_seconds() - anyio.current_time())
            await self._look(task_id)
            state, at = self._seen[task_id]
        if state.status is TaskStatus.CANCELLED:
            raise TaskWasCancelled(task_id, state.message)
        try:
            return await self._send("tasks/result", {"taskId": task_id}, ANSWER_LIMIT)
        except MCPError as exc:
            raise MCPError(exc.error.code, exc.error.message, plain_data(exc.error.data)) from exc

    def _saw(self, state: TaskSnapshot) -> TaskSnapshot:
        self._seen[state.id] = (state, anyio.current_time())
        return state

    async def _look(self, task_id: str) -> TaskSnapshot:
        """Look at the task; one lost answer is not the end."""
        for _ in range(MAX_SILENCES - 1):
            try:
                return await self.get(task_id)
            except MCPError as exc:
                if exc.error.code != REQUEST_TIMEOUT:
                    raise
        return await self.get(task_id)

    async def _about(self, task_id: str, method: str) -> dict[str, Any]:
        # No related-task: 2025-11-25 has the id in the params as the only truth.
        try:
            return await self._send(method, {"taskId": task_id}, ANSWER_LIMIT)
        except MCPError as exc:
            if exc.error.code == INVALID_PARAMS:
                raise UnknownTask(task_id, "The client has no such task") from exc
            raise


def task_params(ttl: timedelta | None) -> dict[str, Any]:
    """What makes a request one for a task."""
    return {} if ttl is None else {"ttl": milliseconds(ttl)}


def _same(task_id: str, data: Any) -> TaskSnapshot:
    state = _checked(data)
    if state.id != task_id:
        raise InvalidResponse("the client answered with another task than the one it was asked for")
    return state


def _checked(data: object) -> TaskSnapshot:
    try:
        return read_task(data)
    except InvalidResponse as exc:
        raise InvalidResponse("the client answered with something that is not a valid task") from exc


def pause(state: TaskSnapshot) -> timedelta:
    """How long to wait until the next look: as the client suggests."""
    return max(state.poll_interval or DEFAULT_POLL, FASTEST_POLL)


# ---- client task errors
# What can go wrong with a task of the client, for the tool that asked for it.


# The parameters of the SDK's own class come first in each of these: it builds errors by them.


class ClientTasksUnsupported(TasksError, MCPError):
    """The client does not host such tasks; nothing was sent. `ctx.elicit` is the way to ask."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)


class ClientTaskTimedOut(TasksError, MCPError, TimeoutError):
    """The client's task did not end in the time given. It goes on: come back for it with `client_task`.

    Attributes:
        task_id: Which task.
    """

    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        super().__init__(code, message, data)
        self.task_id = task_id


class _Unknown(UnknownTask, MCPError):
    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class _Cancelled(TaskWasCancelled, MCPError):
    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class _Invalid(InvalidResponse, MCPError):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        MCPError.__init__(self, code, message, data)


@contextmanager
def for_tools() -> Generator[None]:
    """In here, our own errors are raised as what a tool may let pass: caught as what they are, and with their text."""
    try:
        yield
    except UnknownTask as exc:
        raise _Unknown(INTERNAL_ERROR, str(exc), task_id=exc.task_id) from exc
    except TaskWasCancelled as exc:
        raise _Cancelled(REQUEST_CANCELLED, str(exc), task_id=exc.task_id) from exc
    except InvalidResponse as exc:
        raise _Invalid(INTERNAL_ERROR, str(exc)) from exc


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
