"""`tasks/list`: which tasks a caller has, a page at a time.

A caller with a name has all that it owns. One without has what was made in its session, and what was brought into it by
presenting an id: what `tasks/get` finds, `tasks/list` shows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcp_types import INVALID_PARAMS

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import TaskUnreadable, UnknownTask
from mcp_tasks.legacy.server.sessions import Session
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import InSession, OwnedBy

PAGE_SIZE: Final = 50
"""Tasks on a page: some kilobytes, and enough that few callers need a second one."""

_STORED, _ADOPTED = "s", "a"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """Some tasks, and where the next ones start (None when there are no more)."""

    records: Sequence[TaskRecord]
    cursor: str | None


async def tasks_of_owner(runtime: TaskRuntime, owner: str, cursor: str | None) -> TaskPage:
    """A page of all that an owner has.

    Raises:
        RpcError: -32602, the cursor is not one of ours. So it is for the other listing.
    """
    kind, place = _opened(cursor)
    if kind != _STORED:
        raise _bad_cursor()
    return await _stored(runtime, OwnedBy(owner), None if cursor is None else place, owner)


async def tasks_in_session(runtime: TaskRuntime, session: Session, cursor: str | None) -> TaskPage:
    """A page of what a session without a name has: its own tasks, and then those that it adopted, in that order."""
    kind, place = _opened(cursor)
    if kind == _ADOPTED:
        return await _adopted(runtime, session, place, [])
    page = await _stored(runtime, InSession(session.id), None if cursor is None else place, None)
    # The last page of its own has room for what it adopted.
    return page if page.cursor is not None else await _adopted(runtime, session, None, page.records)


async def _stored(runtime: TaskRuntime, whose: OwnedBy | InSession, place: str | None, owner: str | None) -> TaskPage:
    try:
        page = await runtime.list(whose, cursor=place, limit=PAGE_SIZE)
    except ValueError as exc:
        raise _bad_cursor() from exc
    # Of a task that is not announced nobody has been told yet, and perhaps nobody will be.
    records = [record for record in page.records if record.announced and record.owner == owner]
    return TaskPage(records=records, cursor=None if page.cursor is None else _sealed(_STORED, page.cursor))


async def _adopted(runtime: TaskRuntime, session: Session, place: str | None, before: Sequence[TaskRecord]) -> TaskPage:
    records = list(before)
    try:
        last = 0 if place is None else int(place)
        adopted = session.adopted(last)
    except ValueError as exc:
        raise _bad_cursor() from exc
    for number, task_id in adopted:
        if len(records) >= PAGE_SIZE:
            return TaskPage(records=records, cursor=_sealed(_ADOPTED, str(last)))
        last = number
        try:
            records.append(await runtime.get(task_id, owner=None))
        except (UnknownTask, TaskUnreadable):
            # Gone by now, or not to be read: left out, as from any listing.
            continue
    return TaskPage(records=records, cursor=None)


def _sealed(kind: str, place: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}{place}".encode()).decode()


def _opened(cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        return _STORED, ""
    try:
        opened = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as exc:
        raise _bad_cursor() from exc
    if opened[:1] not in (_STORED, _ADOPTED):
        raise _bad_cursor()
    return opened[0], opened[1:]


def _bad_cursor() -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid cursor: give the nextCursor of an earlier page, or none to start over")
