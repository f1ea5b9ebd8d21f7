"""The task of a call, and what the call is answered with.

As a rule with the task, at once. There are two reasons to keep the call open for a moment, and while it is open the
task is not announced:

- The tool may ask by returning (`asks_first`). Nobody can tell from outside where the asking ends, so the tool has some
  time to ask: then the question is the answer, and the task is forgotten. If it shows that it is at work, it is not
  waited for any longer.
- The call has a grace: a tool that ends within it is answered as in a plain call, and its task is forgotten too.

Under an idempotency key of the client's neither is forgotten: the same request again gets the same answer.

The tool may run in another process, so all of this goes through the store: the announcement is a change of the record
like any other, and so is the question. Whichever is written first stands. A question that comes second is asked in the
task; an announcement that comes second finds the task ended.

Should this process die while the call is open, nobody was told of the task. What it leaves ends, at the latest where it
would ask, and expires like any other.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

import anyio
from mcp.server.context import HandlerResult
from mcp.server.mcpserver.resolve import find_resolved_parameters, returns_input_required
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequiredResult

from mcp_tasks.errors import (
    KeyRefused,
    KeySpent,
    LimitExceeded,
    StoreError,
    StoreUnavailable,
    UnknownTask,
    VersionConflict,
    WiringError,
)
from mcp_tasks.model import JsonObject, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import decode_json, valid_json
from mcp_tasks.model.limits import backoff, is_expired
from mcp_tasks.model.record import Actor
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.changes import KEY_OUTLIVES
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.server.tool_runner import questions_in
from mcp_tasks.stores.codec import new_write_id

# ---- joining
# The idempotency key of a call that joins others.


LONGEST_LIFE: Final = timedelta(days=30)
"""How long a task may take, where there is no limit: its key is to be there when it ends."""


async def _launch_joined(runtime: TaskRuntime, spec: LaunchSpec, joined: str) -> TaskRecord:
    """The task of a call that joins others, under the key of its client.

    Under that key stands a small record of its own, which ends up naming the task that the call came to.

    Raises:
        KeyRefused: The key is of another call, or of a task that is gone.
        KeyRefused: The call may have been made, and it is not known which task it came to.
    """
    now = runtime.now()
    life = runtime.limits.task_age or LONGEST_LIFE
    place = TaskRecord(
        id=new_task_id(),
        owner=spec.owner,
        method=spec.request.method,
        name=spec.request.name,
        namespace=runtime.namespace,
        created_at=now,
        updated_at=now,
        finished_at=now,
        status=TaskStatus.CANCELLED,
        announced=False,
        retention=None if spec.retention is None else life + spec.retention,
        fingerprint=spec.fingerprint,
    ).written(new_write_id())
    about = replace(spec.request, arguments={}, meta={}, input_responses=None, request_state=None)
    hidden = await runtime.hidden_keys.hide(spec.key or "")
    standing = await runtime.store.create(place, about, key=hidden, key_outlives=KEY_OUTLIVES)
    if standing.fingerprint != spec.fingerprint:
        raise KeyRefused("key_taken")
    is_new = standing.id == place.id
    if not is_new and standing.announced:
        # The tool did not join calls when this one was made.
        return standing
    if not is_new and standing.status_message is not None:
        found = await runtime.store.get(standing.status_message)
        if found is None or is_expired(found, runtime.now()):
            raise KeySpent
        return found
    try:
        # An earlier request that began with it may have died, or be at it right now: then the task is joined, however
        # it stands.
        made = await runtime.launch(replace(spec, key=joined, key_until_end=is_new, fingerprint=None))
    except LimitExceeded:
        if is_new:
            with anyio.CancelScope(shield=True), suppress(StoreError):
                # As if it were gone for as long as its key outlives it: nothing was started, and the key is free.
                gone = place.created_at - KEY_OUTLIVES
                await runtime.store.delete(place.id, expected=place.version, now=gone)
        raise
    if not is_new and made.is_final:
        raise KeyRefused("call_not_kept")
    told = standing.but(version=standing.version + 1, status_message=made.id).written(new_write_id())
    # If it is not kept, a repeat joins what runs, or is told that its call was not kept. This call has its answer.
    with suppress(VersionConflict, StoreUnavailable):
        await runtime.store.save(told, expected=standing.version)
    return made


logger: Final = get_logger(__name__)

ANNOUNCE_AFTER: Final = timedelta(seconds=1)
"""How long a tool that may ask by returning is given to do so before its task is announced. A check that takes longer
is not lost: the question is then asked in the task."""

STARTED_VERSION: Final = 2
"""Created is version 1, claimed by a run is 2: anything after that is the tool at work."""


@dataclass(frozen=True, slots=True)
class Question:
    """The tool asks, and there is no task: an `InputRequiredResult` without its `resultType`."""

    question: JsonObject


@dataclass(frozen=True, slots=True)
class InlineResult:
    """The tool has ended, and there is no task: its result, as it would have been kept."""

    outcome: Outcome


CallAnswer: TypeAlias = TaskRecord | Question | InlineResult
"""What a call is answered with: its task, or what a plain call would have answered."""


async def answer_call(
    runtime: TaskRuntime,
    spec: LaunchSpec,
    *,
    asks_first: bool = False,
    grace: timedelta | None = None,
    joined: str | None = None,
    goes_on: bool = False,
) -> CallAnswer:
    """Make the task of a call, and say how the call is answered.

    Args:
        spec: The task. Under a key of the client's own the answer is kept, whatever it is: the client may have lost it,
            and come for it again.
        joined: A key for other calls, too, while the task runs. A task that several calls may have is announced at
            once.
        goes_on: Whether the tool is to go on where its caller goes away before the task is announced.

    Raises:
        RpcError: The error of the plain call, if that became clear while the call was open.
        KeyRefused: The client's key is of another call, or of a task that is gone.
        StoreError: The task could not be kept.
    """
    has_key = spec.fingerprint is not None
    if joined is not None:
        if has_key:
            return await _launch_joined(runtime, spec, joined)
        return await runtime.launch(replace(spec, key=joined, key_until_end=True))
    task_id = spec.task_id or (new_task_id() if has_key else None)
    # SEP-2663: not answered before the task is durably created; `launch` returns no sooner.
    created = await runtime.launch(replace(spec, task_id=task_id, announced=not (asks_first or grace)))
    if created.announced:
        return created
    request = spec.request
    try:
        if task_id is not None and created.id != task_id:
            return await _of_earlier_request(runtime, created, request, grace)
        seen = created
        if asks_first:
            seen = await _wait_for_question(runtime, seen, goes_on=goes_on or has_key)
        if grace:
            # A caller that goes away meanwhile leaves the task: closing a stream cancels the request, never its task.
            seen = await _wait(runtime, seen, _is_settled, grace)
        record = await _announce(runtime, seen)
        if record.announced:
            return created
        return await _instead_of_task(runtime, record, request, in_grace=bool(grace), keep=has_key) or created
    except StoreUnavailable as exc:
        # The request that failed may only have read, but the task was made and its tool may have run.
        raise StoreUnavailable(str(exc), may_have_happened=True) from exc


async def _of_earlier_request(
    runtime: TaskRuntime, created: TaskRecord, request: TaskRequest, grace: timedelta | None
) -> CallAnswer:
    """What an earlier request of the same call comes to, which is being answered, or whose answer was lost."""
    limit = grace or 2 * ANNOUNCE_AFTER
    seen = await _wait(runtime, created, lambda task: task.announced or _is_settled(task), limit)
    record = await _announce(runtime, seen)
    if record.announced:
        return record
    return await _instead_of_task(runtime, record, request, in_grace=bool(grace), keep=True) or record


async def _wait_for_question(runtime: TaskRuntime, created: TaskRecord, *, goes_on: bool) -> TaskRecord:
    try:
        return await _wait(runtime, created, lambda task: task.version > STARTED_VERSION, ANNOUNCE_AFTER)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            if goes_on:
                await _announce(runtime, created)
            else:
                await _cancel(runtime, created, "The caller went away before the task was announced")
        raise


async def _announce(runtime: TaskRuntime, seen: TaskRecord) -> TaskRecord:
    """Announce the task, however long the store takes to be there again: the tool may be at work, and to answer with an
    error now would have the client start it twice."""
    for failures in itertools.count():
        try:
            return await runtime.announce(seen)
        except StoreUnavailable as exc:
            logger.warning("task %s… cannot be announced yet: %s", seen.id[:12], exc)
        pause = backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=5))
        await anyio.sleep(pause.total_seconds())
    raise AssertionError("the count never ends")


async def _wait(
    runtime: TaskRuntime, seen: TaskRecord, condition: Callable[[TaskRecord], bool], limit: timedelta
) -> TaskRecord:
    """The task once the condition holds for it; as it was seen last, if that takes too long."""
    try:
        return await runtime.follow(seen.id, condition, timeout=limit) or seen
    except (StoreError, UnknownTask) as exc:
        # The task is kept and may be running; to answer with an error now would have the client start it twice.
        logger.warning("task %s… is not waited for any longer: %s", seen.id[:12], exc)
        return seen


async def _cancel(runtime: TaskRuntime, created: TaskRecord, reason: str) -> None:
    """Cancel a task that may still ask its caller something, which nobody could ever answer."""
    try:
        await runtime.cancel(created, reason, actor=Actor("client", created.owner))
    except StoreError as exc:
        # It ends by itself, at the latest where it asks.
        logger.warning("task %s… was not cancelled, though its caller went away: %s", created.id[:12], exc)


def _is_settled(task: TaskRecord) -> bool:
    """Whether there is nothing to wait for on the call: the task has ended, or its tool asks, which may take days."""
    return task.is_final or task.status is TaskStatus.INPUT_REQUIRED


async def _instead_of_task(
    runtime: TaskRuntime, ended: TaskRecord, request: TaskRequest, *, in_grace: bool, keep: bool
) -> Question | InlineResult | None:
    """What the call is answered with in place of a task that ended before it was announced; None for the task itself.

    Without a grace that is only a question: who wants a task for a call gets one, however quick the tool is.

    Args:
        keep: Whether somebody may come for the same answer again.
    """
    if ended.status is not TaskStatus.CANCELLED and not in_grace:
        return None
    outcome = await runtime.store.outcome(ended.id)
    if outcome is None:
        # Cancelled from outside, and not by asking.
        return None
    if not keep:
        await runtime.discard(ended)
    if ended.status is TaskStatus.COMPLETED:
        return InlineResult(outcome)
    told = decode_json(outcome.body)
    if ended.status is TaskStatus.FAILED:
        raise RpcError(told["code"], told["message"], told.get("data"))
    questions_in(told, request)
    return Question(told)


# ---- before body
# Parameters that are asked for before the tool's body (SEP-2663, "Composition with Multi Round-Trip Requests").


_only_parameters: ContextVar[bool] = ContextVar("mcp_tasks_only_parameters", default=False)
"""Whether the tool's function is not to be entered."""


class _BodyReached(MCPError):
    """Everything before the tool's body is settled. An `MCPError`, because only those pass through the SDK's tool."""

    def __init__(self) -> None:
        super().__init__(code=INTERNAL_ERROR, message="the body of the tool was reached while only its parameters ran")


def resolves_parameters(function: Callable[..., Any]) -> bool:
    """Whether the SDK asks for parameters of this function."""
    return bool(_inspect(find_resolved_parameters, function))


def asks_by_returning(function: Callable[..., Any]) -> bool:
    """Whether the function declares that it may return an `InputRequiredResult`."""
    return bool(_inspect(returns_input_required, function))


def stop_at_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a stop at its first line while only its parameters are wanted."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def stopping_async(*args: Any, **kwargs: Any) -> Any:
            _stop_if_only_parameters()
            return await function(*args, **kwargs)

        return stopping_async

    @functools.wraps(function)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        _stop_if_only_parameters()
        return function(*args, **kwargs)

    return stopping


async def settle_parameters(call: Callable[[], Awaitable[HandlerResult]], tool: str) -> HandlerResult | None:
    """Run a call of a tool whose function has a stop at its body, up to there.

    Returns what the call is answered with (a question, or an error in its arguments); None if the body was reached, and
    the work can begin.

    Raises:
        WiringError: The body ran, so it is not the one with the stop: the decorators are in the wrong order.
    """
    token = _only_parameters.set(True)
    try:
        result = await call()
    except _BodyReached:
        return None
    finally:
        _only_parameters.reset(token)
    if isinstance(result, InputRequiredResult):
        return _readable(result)
    if isinstance(result, CallToolResult) and result.is_error:
        return result
    raise WiringError(
        f"tool {tool!r} has Resolve(...) parameters and was registered before it was marked: "
        "put @server.tool() above @tasks.task()"
    )


def _stop_if_only_parameters() -> None:
    if _only_parameters.get():
        raise _BodyReached


def _readable(asked: InputRequiredResult) -> InputRequiredResult:
    """The question in text that every client can parse."""
    dumped = asked.model_dump(by_alias=True, mode="json", exclude_none=True)
    valid = valid_json(dumped)
    return asked if valid == dumped else InputRequiredResult.model_validate(valid, by_name=False)


def _inspect(question: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    try:
        return question(function)
    except Exception:
        # A signature that cannot be read is for the SDK to report, when the tool is registered.
        return None
