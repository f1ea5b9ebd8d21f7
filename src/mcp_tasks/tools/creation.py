"""What a call that becomes a task is answered with.

As a rule with the task. A tool that may ask by returning can do so on the call first (see `guard`), and within the
grace a tool that is quick enough answers as it would in a plain call.
"""

from __future__ import annotations

from datetime import timedelta

import anyio
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import InputRequiredResult

from mcp_tasks.core import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.body import questions_of
from mcp_tasks.server.guard import ANNOUNCE_AFTER, STARTED_VERSION, Guard, Guards, readable
from mcp_tasks.server.options import TaskOptions
from mcp_tasks.wire import render_created


async def answer_with_task(
    runtime: TaskRuntime,
    guards: Guards,
    request: TaskRequest,
    *,
    owner: str | None,
    ttl: timedelta | None,
    grace: timedelta | None,
    options: TaskOptions,
) -> HandlerResult:
    """Make the task, and answer the call that it was made for."""
    with guards.call() as guard:
        # SEP-2663: not answered before the task is durably created; `launch` returns no sooner.
        record = await runtime.launch(
            request,
            owner=owner,
            ttl=ttl,
            poll_interval=options.poll_interval,
            before_start=guard.open if options.asks_first else None,
        )
        if options.asks_first:
            asked = await _asked_on_call(runtime, record, guard)
            if asked is not None:
                return asked
    if grace:
        # A caller that goes away meanwhile leaves the task: closing a stream cancels the request, never its task.
        settled = await runtime.wait_until(record.id, _is_settled, grace)
        if settled is not None and settled.status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
            await runtime.discard(settled)
            return _inline(settled)
    return render_created(record, runtime.now())


async def _asked_on_call(runtime: TaskRuntime, record: TaskRecord, guard: Guard) -> InputRequiredResult | None:
    """What the tool asks by returning, before it works; None if it works."""
    try:
        await runtime.wait_until(record.id, lambda task: task.version > STARTED_VERSION, ANNOUNCE_AFTER)
    except anyio.get_cancelled_exc_class():
        guard.close()
        with anyio.CancelScope(shield=True):
            # The caller went away while the tool may still ask it something; nobody could ever answer that.
            await runtime.cancel(record, "The caller went away before the task was announced")
        raise
    asked = guard.close()
    if asked is None:
        return None
    withdrawn = await runtime.wait_until(record.id, lambda task: task.is_final, ANNOUNCE_AFTER)
    if withdrawn is not None:
        await runtime.discard(withdrawn)
    questions_of(asked, record.request.client_capabilities)
    return readable(asked)


def _is_settled(task: TaskRecord) -> bool:
    """Whether there is nothing to wait for on the call: the task has ended, or its tool asks, which may take days."""
    return task.is_final or task.status is TaskStatus.INPUT_REQUIRED


def _inline(record: TaskRecord) -> HandlerResult:
    """What the plain call would have answered."""
    if record.error is not None:
        error = record.error
        raise MCPError(code=error["code"], message=error["message"], data=error.get("data"))
    return dict(record.result or {})
