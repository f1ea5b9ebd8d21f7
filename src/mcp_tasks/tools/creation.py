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

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import anyio

from mcp_tasks.core import JsonObject, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.core.actor import Actor
from mcp_tasks.core.json_bytes import decode_json
from mcp_tasks.core.pacing import backoff
from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.idempotency import CallKey
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launching import new_task_id
from mcp_tasks.tools.body import questions_in
from mcp_tasks.tools.joining import joined_under

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
    request: TaskRequest,
    *,
    owner: str | None,
    retention: timedelta | None,
    poll_interval: timedelta | None = None,
    asks_first: bool = False,
    grace: timedelta | None = None,
    task_id: str | None = None,
    under: str | None = None,
    joined: str | None = None,
    key: CallKey | None = None,
    session: str | None = None,
    goes_on: bool = False,
) -> CallAnswer:
    """Make the task of a call, and say what the call is answered with.

    Args:
        task_id: The id of the task, where the caller of this has to know it before.
        under: What the task stands under: whoever comes with the same one gets the same task.
        joined: The same for other calls, too, and only while the task runs. A task that several calls may have is
            announced at once.
        key: The client's own key for the call. Whatever it comes to is kept then: the client may have lost the answer,
            and come for it again.
        session: The session in which the task is made.
        goes_on: Whether the tool is to go on where its caller goes away before the task is announced.

    Raises:
        RpcError: What the plain call would have failed with, if that became clear while the call was open.
        KeyRefused: The client's key is of another call, or of a task that is gone.
        StoreError: The task could not be kept.
    """
    joins, own = joined is not None, key if joined is None else None
    is_kept = own is not None
    task_id = task_id or (None if key is None else new_task_id())

    # SEP-2663: not answered before the task is durably created; `launch` returns no sooner.
    async def launch(also_ended: bool = False) -> TaskRecord:
        return await runtime.launch(
            request,
            owner=owner,
            retention=retention,
            poll_interval=poll_interval,
            announced=joins or not (asks_first or grace),
            task_id=task_id,
            key=joined or (under if own is None else own.key),
            key_until_end=joins and not also_ended,
            fingerprint=None if own is None else own.fingerprint,
            session=session,
        )

    if joins and key is not None:
        return await joined_under(runtime, request, key, launch, owner=owner, retention=retention)
    created = await launch()
    if created.announced:
        return created
    try:
        if task_id is not None and created.id != task_id:
            return await _of_earlier_request(runtime, created, request, grace)
        seen = created
        if asks_first:
            seen = await _wait_for_question(runtime, seen, goes_on=goes_on or is_kept)
        if grace:
            # A caller that goes away meanwhile leaves the task: closing a stream cancels the request, never its task.
            seen = await _wait(runtime, seen, _is_settled, grace)
        record = await _announce(runtime, seen)
        if record.announced:
            return created
        return await _instead_of_task(runtime, record, request, in_grace=bool(grace), keep=is_kept) or created
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
        return await runtime.wait_until(seen.id, condition, limit) or seen
    except StoreError as exc:
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
    outcome = await runtime.outcome(ended.id)
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
