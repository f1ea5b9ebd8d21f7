"""The tasks methods as the SDK's session sends them, and what their errors mean to a wait."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    Request,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_tasks.client.messages import CONNECTION_OVER, CUT_OFF
from mcp_tasks.client.poller import Patience, Poller
from mcp_tasks.errors import InvalidResponse, UnknownTask, UsageError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.wire.models import (
    LIMIT_EXCEEDED,
    MAY_HAVE_HAPPENED,
    UNAVAILABLE,
    CancelTaskParams,
    GetTaskParams,
    UpdateTaskParams,
)
from mcp_tasks.wire.parse import TaskSnapshot, parse_task

TRANSIENT_CODES = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR, PARSE_ERROR})
"""Errors after which the same request may well succeed: the server restarts, is slow, or its store is busy; the SDK
reports an answer that was cut off as one that cannot be parsed."""

T = TypeVar("T")

SHORTEST_PAUSE: Final = 0.05
"""Seconds before a request that was refused is sent again, whatever the server says."""

LONGEST_PAUSE: Final = 60.0
"""Seconds that a request may be put off in all by a server that says when to come back, before who waits is told."""


class AnyResult(Result):
    """A result as it came; what is in it is looked at here."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class CreatedTask(Result):
    """A task in place of a tool's result, as far as a call needs it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"
    task_id: str = Field(alias="taskId")
    status: str


class _TaskRequest(Request[Any, str]):
    # SEP-2663, "Routing Headers": the client MUST set Mcp-Name to the task's id.
    name_param: ClassVar[str | None] = "taskId"


class _GetTask(_TaskRequest):
    method: str = "tasks/get"
    params: GetTaskParams


class _UpdateTask(_TaskRequest):
    method: str = "tasks/update"
    params: UpdateTaskParams


class _CancelTask(_TaskRequest):
    method: str = "tasks/cancel"
    params: CancelTaskParams


async def get_task(session: ClientSession, task_id: str) -> TaskSnapshot:
    """Look at a task.

    Raises:
        UnknownTask: The server does not know the task (any more).
        InvalidResponse: The server answered with something that is not a valid task.
        MCPError: The server, or the connection to it, failed.
    """
    result = await _send(session, task_id, _GetTask(params=GetTaskParams(taskId=task_id)))
    snapshot = parse_task(result)
    if snapshot.id != task_id:
        raise InvalidResponse(f"asked for task {task_id}, and the server answered with task {snapshot.id}")
    return snapshot


async def update_task(session: ClientSession, task_id: str, responses: Mapping[str, Any]) -> None:
    """Answer questions of a task.

    Raises:
        UnknownTask: The server does not know the task (any more).
        MCPError: The server refuses an answer.
    """
    params = UpdateTaskParams(taskId=task_id, inputResponses=dict(responses))
    try:
        await _send_in_time(session, _UpdateTask(params=params))
    except MCPError as exc:
        if exc.code == INVALID_PARAMS:
            # The same code for a task that is not there and an answer that does not fit: a look tells them apart.
            await get_task(session, task_id)
        raise


def check_answer(responses: Mapping[str, Any]) -> None:
    """Check that answers can be sent at all, before anything is recorded or sent.

    Raises:
        UsageError: They cannot; the SDK would close the connection over them.
    """
    what = f"the answer to {', '.join(map(repr, responses))}"
    try:
        json.dumps(dict(responses), ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{what} contains text that is not valid Unicode") from exc
    except (TypeError, ValueError) as exc:
        raise UsageError(f"{what} cannot be written as JSON: {exc}") from exc


def plain_answers(responses: Mapping[str, Any]) -> dict[str, Any]:
    """Answers as they are recorded and sent: models of the SDK, such as `ElicitResult`, become what they stand for.

    Raises:
        UsageError: One cannot be sent.
    """
    plain = {key: _plain(response) for key, response in responses.items()}
    check_answer(plain)
    return plain


def _plain(response: Any) -> Any:
    if isinstance(response, BaseModel):
        return response.model_dump(by_alias=True, mode="json", exclude_none=True)
    return response


async def cancel_task(session: ClientSession, task_id: str) -> None:
    """Ask for a task to be cancelled."""
    await _send(session, task_id, _CancelTask(params=CancelTaskParams(taskId=task_id)))


async def listen_to_tasks(session: ClientSession, task_ids: Sequence[str]) -> None:
    """Keep a stream open on which the server tells of these tasks. Returns when the server ends it."""
    wanted = SubscriptionFilter.model_validate({"taskIds": list(task_ids)}, by_name=False)
    request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
    # The answer comes when the stream ends, which may be never.
    await session.send_request(request, AnyResult, request_read_timeout_seconds=float("inf"))


def is_transient(exc: Exception) -> bool:
    """Whether the same request may succeed later, without anybody fixing anything."""
    if isinstance(exc, MCPError):
        if retry_after(exc) is not None:
            return True
        return exc.code in TRANSIENT_CODES and exc.message != CONNECTION_OVER and not is_over_limit(exc)
    return isinstance(exc, httpx2.TransportError | OSError)


def is_unreadable(exc: Exception) -> bool:
    """Whether an answer came that is no JSON-RPC, and was not cut off: a transport of ours says where it was."""
    return isinstance(exc, MCPError) and exc.code == PARSE_ERROR and CUT_OFF not in exc.message


def retry_after(exc: MCPError) -> float | None:
    """Seconds after which a server wants to be asked again that was asked for too much; None if it does not say so."""
    data: Any = exc.data
    if exc.code != LIMIT_EXCEEDED or not isinstance(data, Mapping):
        return None
    wanted: Any = cast("Mapping[str, Any]", data).get("retryAfterMs")
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and math.isfinite(wanted)
    return max(float(wanted), 0.0) / 1000 if is_number else None


def store_reason(exc: Exception) -> str | None:
    """What a server says of its store that gave no answer, in one word; None if the error is another one."""
    data: Any = exc.data if isinstance(exc, MCPError) and exc.code == INTERNAL_ERROR else None
    reason: Any = cast("Mapping[str, Any]", data).get("reason") if isinstance(data, Mapping) else None
    return reason if reason in (UNAVAILABLE, MAY_HAVE_HAPPENED) else None


async def past_outage(send: Callable[[], Awaitable[T]], patience: Patience | None) -> T:
    """Send a request that may be carried out twice, and again while the server's store gives no answer.

    Raises:
        MCPError: The server refuses for another reason, or its store is away for longer than the patience.
    """
    retries = Poller(patience)
    while True:
        try:
            return await send()
        except MCPError as exc:
            now = anyio.current_time()
            if store_reason(exc) is None or not retries.failed(now):
                raise
        await anyio.sleep(retries.next_look - now)


async def in_time(send: Callable[[], Awaitable[T]], longest: float = LONGEST_PAUSE) -> T:
    """Send a request, and again when the server says that it may be: nothing was done until then.

    Args:
        longest: Seconds that it may be put off in all.

    Raises:
        MCPError: The server refuses for another reason, or for longer.
    """
    waited = 0.0
    while True:
        try:
            return await send()
        except MCPError as exc:
            wanted = retry_after(exc)
            if wanted is None or waited + wanted > longest:
                raise
        # A little later than the server says: its other clients were told the same.
        pause = max(wanted, SHORTEST_PAUSE) * random.uniform(1, 1.25)  # noqa: S311  chance, and no secret
        waited += pause
        await anyio.sleep(pause)


async def _send_in_time(session: ClientSession, request: _TaskRequest) -> AnyResult:
    return await in_time(lambda: session.send_request(request, AnyResult))


async def _send(session: ClientSession, task_id: str, request: _TaskRequest) -> dict[str, Any]:
    try:
        result = await _send_in_time(session, request)
    except MCPError as exc:
        if exc.code == INVALID_PARAMS:
            raise UnknownTask(task_id, f"Task {task_id} not found") from exc
        raise
    except ValidationError as exc:
        raise InvalidResponse(
            f"the server answered {request.method} with something that is not a valid result"
        ) from exc
    return result.model_dump(by_alias=True, mode="json")
