"""The idempotency key of a call that joins others.

Its task stands under what the calls have in common, and in a store a task stands under one key. So the client's own
key has a place of its own: a record that has ended before it began, and says which task the call came to. It is made
before the task is, so that a key that is another call's, or spent, is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio

from mcp_tasks.core import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.core.pacing import is_expired
from mcp_tasks.errors import (
    CallNotKept,
    KeySpent,
    KeyTaken,
    LimitExceeded,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from mcp_tasks.protocol.idempotency import CallKey
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.changes import KEY_OUTLIVES
from mcp_tasks.runtime.launching import new_task_id
from mcp_tasks.stores.repeats import new_write_id

LONGEST_LIFE: Final = timedelta(days=30)
"""How long a task may take, where there is no limit: its key is to be there when it ends."""


async def joined_under(
    runtime: TaskRuntime,
    request: TaskRequest,
    key: CallKey,
    launch: Callable[[bool], Awaitable[TaskRecord]],
    *,
    owner: str | None,
    retention: timedelta | None,
) -> TaskRecord:
    """The task of a call that joins others, under the key of its client.

    Args:
        launch: Joins a task that runs, or makes one; with True also one that has ended.

    Raises:
        KeyRefused: The key is of another call, or of a task that is gone.
        CallNotKept: The call may have been made, and nobody knows which task it came to.
    """
    place = _place(runtime, request, key, owner, retention)
    about = replace(request, arguments={}, meta={}, input_responses=None, request_state=None)
    hidden = await runtime.hidden_keys.hide(key.key)
    standing = await runtime.store.create(place, about, key=hidden, key_outlives=KEY_OUTLIVES)
    if standing.fingerprint != key.fingerprint:
        raise KeyTaken
    is_new = standing.id == place.id
    if not is_new and (standing.announced or standing.status_message is not None):
        return await _came_to(runtime, standing)
    try:
        # Whoever began with it before may have died, or be at it right now: then the task is joined, however it stands.
        made = await launch(not is_new)
    except LimitExceeded:
        if is_new:
            with anyio.CancelScope(shield=True), suppress(StoreError):
                # As if it were gone for as long as its key outlives it: nothing was started, and the key is free.
                gone = place.created_at - KEY_OUTLIVES
                await runtime.store.delete(place.id, expected=place.version, now=gone)
        raise
    if not is_new and made.is_final:
        raise CallNotKept
    told = standing.but(version=standing.version + 1, status_message=made.id).written(new_write_id())
    # If it is not kept, a repeat joins what runs, or is told that its call was not kept. This call has its answer.
    with suppress(VersionConflict, StoreUnavailable):
        await runtime.store.save(told, expected=standing.version)
    return made


async def _came_to(runtime: TaskRuntime, standing: TaskRecord) -> TaskRecord:
    """The task that a call under this key has come to."""
    if standing.announced:
        # The tool did not join calls when this one was made.
        return standing
    found = await runtime.store.get(standing.status_message or "")
    if found is None or is_expired(found, runtime.now()):
        raise KeySpent
    return found


def _place(
    runtime: TaskRuntime, request: TaskRequest, key: CallKey, owner: str | None, retention: timedelta | None
) -> TaskRecord:
    now = runtime.now()
    life = runtime.limits.task_age or LONGEST_LIFE
    return TaskRecord(
        id=new_task_id(),
        owner=owner,
        method=request.method,
        name=request.name,
        namespace=runtime.namespace,
        created_at=now,
        updated_at=now,
        finished_at=now,
        status=TaskStatus.CANCELLED,
        announced=False,
        retention=None if retention is None else life + retention,
        fingerprint=key.fingerprint,
    ).written(new_write_id())
