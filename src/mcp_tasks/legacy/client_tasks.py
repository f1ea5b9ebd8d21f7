"""Sampling and elicitation as tasks that the client hosts, for the author of a tool.

    approval = await elicit_as_task(ctx, "Publish?", Publish, ttl=timedelta(hours=1))
    ...                                              # other work, while the user thinks
    answer = await approval.result()

    approval = client_task(ctx, task_id, Publish)    # another call, another day

Only a client that declared it in its 2025-11-25 handshake hosts tasks. In a tool that runs as a task, any other client
is asked plainly, as with `ctx.elicit`: the question waits in the server's task, whatever the client supports. In a
plain call the functions raise `ClientTasksUnsupported` before anything is sent; use `ctx.elicit` there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast, overload

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

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import (
    AnswerRefused,
    InvalidResponse,
    StoreError,
    TasksError,
    TaskWasCancelled,
    UnknownTask,
    UsageError,
)
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED, VERSION, plain_data, read_task, related_task
from mcp_tasks.model.json import valid_json
from mcp_tasks.model.record import Actor, TaskRecord, TaskStatus
from mcp_tasks.model.values import check_duration
from mcp_tasks.protocol.shapes import QUESTION_META_KEY, TaskSnapshot, milliseconds
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime, current_task
from mcp_tasks.server.questions import SentQuestion, StreamLost
from mcp_tasks.server.tool_runner import raw_request

logger: Final = get_logger(__name__)

# ---- driver
# The requestor's side of a task that a client hosts: create it, poll it, fetch its result.


ANSWER_LIMIT: Final = 30.0
"""Seconds for a client to answer requests about tasks, all of which it can answer at once."""

MAX_SILENCES: Final = 3
"""How many polls in a row may go unanswered before the client counts as gone."""

DEFAULT_POLL: Final = timedelta(seconds=1)
FASTEST_POLL: Final = timedelta(milliseconds=50)
"""The least interval, whatever a client suggests."""

MAX_PAGES: Final = 1000
"""Pages of a listing that are read."""

Send: TypeAlias = Callable[[str, Mapping[str, Any], float | None], Awaitable[dict[str, Any]]]
"""Sends a request (method, params, timeout) to the client, and returns its result."""


class Driver:
    """Drives the tasks that one client hosts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._seen: dict[str, tuple[TaskSnapshot, float]] = {}

    async def create(self, method: str, params: Mapping[str, Any], ttl: timedelta | None) -> TaskSnapshot:
        """Have the client take a request as a task."""
        result = await self._send(method, {**params, "task": task_params(ttl)}, ANSWER_LIMIT)
        if not isinstance(result.get("task"), Mapping):
            raise InvalidResponse(f"the client declared tasks for {method}, and answered with something else")
        return self._saw(_checked(result["task"]))

    async def get(self, task_id: str) -> TaskSnapshot:
        """The task as it is now. Raises `UnknownTask` if the client does not have it."""
        try:
            # No related-task: in 2025-11-25 only the id in the params counts.
            return self._saw(_checked(await self._send("tasks/get", {"taskId": task_id}, ANSWER_LIMIT), task_id))
        except MCPError as exc:
            if exc.error.code == INVALID_PARAMS:
                raise UnknownTask(task_id, "The client has no such task") from exc
            raise

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel the task. Raises `UnknownTask`, or the client's error if the task has ended."""
        try:
            return self._saw(_checked(await self._send("tasks/cancel", {"taskId": task_id}, ANSWER_LIMIT), task_id))
        except MCPError as exc:
            if exc.error.code == INVALID_PARAMS:
                # An unknown task and one that has ended have the same code.
                await self.get(task_id)
            raise

    async def list(self) -> AsyncGenerator[TaskSnapshot]:
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
            MCPError: The request ended in this error, or the client is gone.
        """
        if task_id not in self._seen:
            await self.get(task_id)
        state, at = self._seen[task_id]
        silences = 0
        while not state.is_final:
            if silences == 0:
                await anyio.sleep(at + pause(state).total_seconds() - anyio.current_time())
            try:
                await self.get(task_id)
                silences = 0
            except MCPError as exc:
                silences += 1
                if exc.error.code != REQUEST_TIMEOUT or silences == MAX_SILENCES:
                    raise
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


def task_params(ttl: timedelta | None) -> dict[str, Any]:
    """The `task` param of a request for a task."""
    return {} if ttl is None else {"ttl": milliseconds(ttl)}


def pause(state: TaskSnapshot) -> timedelta:
    """The time between two polls: as the client suggests."""
    return max(state.poll_interval or DEFAULT_POLL, FASTEST_POLL)


def _checked(data: object, task_id: str | None = None) -> TaskSnapshot:
    try:
        state = read_task(data)
    except InvalidResponse as exc:
        raise InvalidResponse("the client answered with something that is not a valid task") from exc
    if task_id not in (None, state.id):
        raise InvalidResponse("the client answered with another task than the one it was asked for")
    return state


# ---- questions
# Questions of the server's tasks, which clients may take as tasks of their own.


MAX_FORGOTTEN: Final = 3
"""How often a client may forget a question before the tool gets an error."""

REMEMBERED: Final = 10_000
"""Questions whose tasks are known here before the record has them. The record is the truth."""

CANCEL_LIMIT: Final = 4.0
"""Seconds to cancel a client's task."""


class HostedQuestions:
    """Asks clients what tasks of the server ask, as a task of the client if the tool wants that and the client can."""

    def __init__(self, runtime: Callable[[], TaskRuntime]) -> None:
        self._runtime = runtime
        self._known: BoundedDict[tuple[str, str], str] = BoundedDict(REMEMBERED)

    async def ask(self, sent: SentQuestion) -> dict[str, Any]:
        """The client's answer. Raises what `ClientStream.ask` raises."""
        # After an answer that did not fit, it is another question: a client may keep its answers by this key, and would
        # give the same one again.
        key = sent.key if sent.misfits == 0 else f"{sent.key}~{sent.misfits + 1}"
        params: dict[str, Any] = {name: each for name, each in sent.question.params.items() if name != "task"}
        params = valid_json(params)
        params["_meta"] = {**params.get("_meta", {}), **related_task(sent.record.id), QUESTION_META_KEY: key}
        try:
            if sent.stream.hosts(sent.question):
                return await self._drive(Driver(sent.stream.request), sent, params)
            return await sent.stream.request(sent.question.method, params)
        except TaskWasCancelled as exc:
            raise AnswerRefused(REQUEST_CANCELLED, str(exc)) from exc
        except (UnknownTask, InvalidResponse) as exc:
            raise AnswerRefused(INTERNAL_ERROR, str(exc)) from exc
        except MCPError as exc:
            raise AnswerRefused(exc.error.code, exc.error.message, plain_data(exc.error.data)) from exc

    async def _drive(self, driver: Driver, sent: SentQuestion, params: dict[str, Any]) -> dict[str, Any]:
        record, key, question = sent.record, sent.key, sent.question
        # After an answer that did not fit, the task in the record is the one with that answer.
        task_id = self._known.get((record.id, key)) or (question.hosted_as if sent.misfits == 0 else None)
        milliseconds_kept: Any = question.params["task"].get("ttl")
        ttl = None if milliseconds_kept is None else timedelta(milliseconds=milliseconds_kept)
        creating: asyncio.Future[TaskSnapshot] | None = None
        for forgotten in range(MAX_FORGOTTEN):
            try:
                if task_id is None:
                    # Goes on if this is cancelled: the client may have taken the question already.
                    creating = asyncio.ensure_future(driver.create(question.method, params, ttl))
                    task_id = (await asyncio.shield(creating)).id
                    await self._note(record, key, task_id)
                result = await driver.result(task_id)
            except asyncio.CancelledError:
                with anyio.move_on_after(CANCEL_LIMIT, shield=True):
                    await self._cancel_unless_open(driver, record, key, creating)
                raise
            except UnknownTask:
                # It has expired, or the client has lost it, or is another client.
                task_id = None
                if forgotten == MAX_FORGOTTEN - 1:
                    raise
            else:
                self._known.pop((record.id, key), None)
                return {name: value for name, value in result.items() if name != "_meta"}
        raise AssertionError("the last time raises")  # pragma: no cover - only a defect of ours comes here

    async def _note(self, record: TaskRecord, key: str, task_id: str) -> None:
        self._known[record.id, key] = task_id
        try:
            await self._runtime().host(record, key, task_id, actor=Actor("client", record.owner))
        except (StoreError, UnknownTask) as exc:
            # After a crash the user would be asked again, which is better than not at all.
            logger.warning("task %s…: that its client holds a question is not stored: %s", record.id[:12], exc)

    async def _cancel_unless_open(
        self, driver: Driver, record: TaskRecord, key: str, creating: asyncio.Future[TaskSnapshot] | None
    ) -> None:
        """Cancel the client's task if the question is closed. While it is open, another stream will ask for it."""
        try:
            if creating is not None:
                self._known[record.id, key] = (await creating).id
            task_id = self._known.get((record.id, key))
            seen = await self._runtime().store.get(record.id)
            if seen is not None and key in seen.inputs.outstanding:
                return
            self._known.pop((record.id, key), None)
            if task_id is not None:
                await driver.cancel(task_id)
        except (TasksError, MCPError, StreamLost) as exc:
            logger.debug("a task of a client is left to expire: %s", what(exc))


# ---- errors
# Errors of client tasks, as tools get them. The SDK builds errors by the parameters of its own class, which come first.


class ClientTasksUnsupported(TasksError, MCPError):
    """The client does not host such tasks, and nothing was sent. Use `ctx.elicit`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)


class ClientTaskTimedOut(TasksError, MCPError, TimeoutError):
    """The client's task did not end in the given time. It goes on: come back for it with `client_task`.

    Attributes:
        task_id: The id of the task.
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
def _for_tools() -> Generator[None]:
    """Raise our errors as errors that a tool may let pass: the same types, which the SDK sends with their text."""
    try:
        yield
    except UnknownTask as exc:
        raise _Unknown(INTERNAL_ERROR, str(exc), task_id=exc.task_id) from exc
    except TaskWasCancelled as exc:
        raise _Cancelled(REQUEST_CANCELLED, str(exc), task_id=exc.task_id) from exc
    except InvalidResponse as exc:
        raise _Invalid(INTERNAL_ERROR, str(exc)) from exc


# ---- for tools


T = TypeVar("T")
SchemaT = TypeVar("SchemaT", bound=BaseModel)

AnyContext: TypeAlias = Context[Any, Any] | ServerRequestContext[Any, Any]
"""The context of a tool, or of a low-level handler."""

Parse: TypeAlias = Callable[[dict[str, Any]], T]
"""Parses an answer of the client."""

_IN_TASK: Final = (
    "a task sees to its questions itself, in whatever session its client has: in a task, await the result of "
    "elicit_as_task or sample_as_task, and nothing else"
)


class ClientTask(Generic[T]):
    """A task that the client hosts for this server.

    In a tool that runs as a task of this server, it is a question of that task: it is put when its result is awaited,
    and once. The run may be suspended meanwhile, and after a restart the answer is fetched from the client's task,
    whatever session the client then has. There `status` and `cancel` raise `UsageError`; a question is withdrawn by
    cancelling the await of its result.

    Attributes:
        id: Its id, by which `client_task` finds it again. Empty in a task of this server, which finds it by itself.
    """

    def __init__(
        self,
        ctx: AnyContext,
        parse: Parse[T],
        *,
        driver: Driver | None = None,
        task_id: str = "",
        question: tuple[str, Mapping[str, Any]] = ("", {}),
    ) -> None:
        self.id = task_id
        self._ctx = ctx
        self._parse = parse
        self._maybe_driver = driver
        # The method and params, in a task of this server.
        self._question = question

    async def status(self) -> TaskSnapshot:
        """The task as the client shows it now.

        Raises:
            UnknownTask: The client does not have it (any more).
        """
        with _for_tools():
            return await self._driver.get(self.id)

    async def result(self, timeout: timedelta | None = None) -> T:
        """Wait for the answer, polling as often as the client suggests.

        Args:
            timeout: How long to wait; None for as long as it takes. In a task of this server, restarts are included.

        Raises:
            ClientTaskTimedOut: It takes longer. The task goes on. (In a task of this server, `QuestionTimedOut`.)
            TaskWasCancelled: It was cancelled.
            UnknownTask: The client does not have it (any more).
            MCPError: The client answered with this error, as a plain request would have raised it.
            InvalidResponse: The client answered with something that is not an answer.
        """
        driver = self._maybe_driver
        is_hosted = driver is not None
        seconds = None if timeout is None else check_duration("timeout", timeout, zero=is_hosted).total_seconds()
        if driver is None:
            (method, params), ctx = self._question, self._ctx
            with _for_tools():
                answer = raw_request(ctx.session, method, params, request_id=ctx.request_id, timeout=seconds)
                return self._parse(await answer)
        with anyio.move_on_after(seconds), _for_tools():
            return self._parse(await driver.result(self.id))
        message = f"The client's task did not end within {seconds:.15g} s. It goes on: come back with client_task"
        raise ClientTaskTimedOut(REQUEST_TIMEOUT, message, task_id=self.id)

    async def cancel(self) -> TaskSnapshot:
        """Cancel the task at the client.

        Raises:
            ClientTasksUnsupported: The client did not declare that tasks can be cancelled.
            UnknownTask: The client does not have it (any more).
            MCPError: The client refused, for example because the task has ended.
        """
        driver = self._driver
        _require(self._ctx.session, "cancel")
        with _for_tools():
            return await driver.cancel(self.id)

    @property
    def _driver(self) -> Driver:
        if self._maybe_driver is None:
            raise UsageError(_IN_TASK)
        return self._maybe_driver


async def elicit_as_task(
    ctx: AnyContext, message: str, schema: type[SchemaT], *, ttl: timedelta | None = None
) -> ClientTask[ElicitationResult[SchemaT]]:
    """Ask the user of the client something, as a task of the client: it may take days and outlive the session.

    In a tool that runs as a task, a client that does not host such tasks is asked plainly, as with `ctx.elicit`.

    Args:
        ttl: How long the client should keep the answer. It may decide otherwise.

    Raises:
        ClientTasksUnsupported: The tool does not run as a task, and the client does not host any. Nothing was sent.
        MCPError: The client refused.
    """
    params = ElicitRequestFormParams(message=message, requested_schema=render_elicitation_schema(schema))
    return await _create(ctx, "elicitation/create", params, _elicited(schema), ttl)


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
        ttl: How long the client should keep the answer. It may decide otherwise.
        options: The other fields of the SDK's `CreateMessageRequestParams`: `system_prompt`, `temperature` and so on.
            With `tools` or `tool_choice`, the result is a `CreateMessageResultWithTools`.

    Raises:
        ClientTasksUnsupported: The tool does not run as a task, and the client does not host any. Nothing was sent.
        MCPError: The client refused.
    """
    params = CreateMessageRequestParams(messages=list(messages), max_tokens=max_tokens, **options)
    validate_sampling_tools(ctx.session.client_capabilities, params.tools, params.tool_choice)
    with_tools = wants_sampling_tools(params.tools, params.tool_choice)
    kind: Any = CreateMessageResultWithTools if with_tools else CreateMessageResult
    return await _create(ctx, "sampling/createMessage", params, _sampled(kind), ttl)


@overload
def client_task(ctx: AnyContext, task_id: str) -> ClientTask[dict[str, Any]]: ...


@overload
def client_task(ctx: AnyContext, task_id: str, schema: type[SchemaT]) -> ClientTask[ElicitationResult[SchemaT]]: ...


def client_task(ctx: AnyContext, task_id: str, schema: type[BaseModel] | None = None) -> ClientTask[Any]:
    """A task of the client by its id: from another call, or another session with the same client. Nothing is sent.

    Args:
        schema: The schema of an elicitation; without it the result is the client's, as it came.

    Raises:
        ClientTasksUnsupported: The client hosts no tasks.
    """
    _require(ctx.session)
    if current_task().id is not None:
        raise UsageError(_IN_TASK)
    return ClientTask(ctx, dict if schema is None else _elicited(schema), driver=_driver(ctx), task_id=task_id)


def list_client_tasks(ctx: AnyContext) -> AsyncIterator[TaskSnapshot]:
    """The tasks that the client hosts for this server.

    Raises:
        ClientTasksUnsupported: The client did not declare that its tasks can be listed. Nothing was sent.
    """
    _require(ctx.session, "list")
    if current_task().id is not None:
        raise UsageError(_IN_TASK)

    async def listed() -> AsyncGenerator[TaskSnapshot]:
        with _for_tools():
            async for state in _driver(ctx).list():
                yield state

    return listed()


async def _create(
    ctx: AnyContext, method: str, params: BaseModel, parse: Parse[T], ttl: timedelta | None
) -> ClientTask[T]:
    if ttl is not None:
        check_duration("ttl", ttl)
    asked = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    needed = ("requests", *method.split("/"))
    if current_task().id is not None:
        if _why_not(ctx.session, *needed) is None:
            asked["task"] = task_params(ttl)
        return ClientTask(ctx, parse, question=(method, asked))
    _require(ctx.session, *needed)
    driver = _driver(ctx)
    with _for_tools():
        created = await driver.create(method, asked, ttl)
    return ClientTask(ctx, parse, driver=driver, task_id=created.id)


def _driver(ctx: AnyContext) -> Driver:
    async def send(method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        # On the stream of the call while that is open, where it is sure to arrive; then on the session's own.
        request_id = ctx.request_id if ctx.session.can_send_request else None
        return await raw_request(ctx.session, method, params, request_id=request_id, timeout=timeout)

    return Driver(send)


def _require(session: ServerSession, *path: str) -> None:
    """Refuse requests that the client did not declare: a requestor MUST NOT send them."""
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


def _sampled(kind: type[SchemaT]) -> Parse[SchemaT]:
    def parse(raw: dict[str, Any]) -> SchemaT:
        try:
            return kind.model_validate(raw, by_name=False)
        except ValidationError as exc:
            raise InvalidResponse("the client answered with something that is not a message") from exc

    return parse
