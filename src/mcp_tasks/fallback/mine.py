"""A caller's own tasks, found without an id: for a host that lost the answer which had it.

Over a pipe there is one client, and it is whoever started the server: its tasks have one session for good, so that they
are found again after a restart. Over HTTP a caller has a name, or nobody can tell whose tasks are whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus
from mcp_tasks.fallback.phrases import LONGEST_NAME, as_json, line, quoted, tool_name
from mcp_tasks.fallback.words import CompanionNames, facts, text_result
from mcp_tasks.protocol import Caller
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import InSession, OwnedBy
from mcp_tasks.wire.render import timestamp

STDIO_SESSION: Final = "stdio"
"""The session of tasks that were made over a pipe by callers without tasks."""

MOST_TASKS: Final = 20
"""Tasks that are listed: a model looks for the one it lost, which is among the last."""

PAGE_SIZE: Final = 100
"""Tasks that are read in each status, the newest first. Some of them may not be shown."""

_UNFINISHED: Final = (TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mine:
    """Whose tasks are a caller's own."""

    owner: str | None
    whose: OwnedBy | InSession


def session_of(caller: Caller) -> str | None:
    """The session that a caller's tasks are made in; None over HTTP, whose sessions end, or are not there at all."""
    return None if caller.headers else STDIO_SESSION


def mine(caller: Caller, owner: str | None) -> Mine | None:
    """What can be told of whose tasks are the caller's own; None if nothing can."""
    if owner is not None:
        return Mine(owner=owner, whose=OwnedBy(owner))
    session = session_of(caller)
    return None if session is None else Mine(owner=None, whose=InSession(session))


async def my_tasks(runtime: TaskRuntime, whose: Mine) -> Sequence[TaskRecord]:
    """The caller's tasks: those that have not ended first, and the newest of each first. No more than some."""
    found = await _newest(runtime, whose, _UNFINISHED)
    if len(found) < MOST_TASKS:
        ended = await _newest(runtime, whose, sorted(FINAL_STATUSES))
        # One that ended between the two looks is in both.
        over = {record.id for record in ended}
        found = [*(record for record in found if record.id not in over), *ended]
    return found[:MOST_TASKS]


async def _newest(runtime: TaskRuntime, whose: Mine, statuses: Sequence[TaskStatus]) -> list[TaskRecord]:
    # Each once, as it was seen last: a task may get another status between two looks.
    found = {record.id: record for status in statuses for record in await _last(runtime, whose, status)}
    return sorted(found.values(), key=lambda record: (record.created_at, record.id), reverse=True)


async def _last(runtime: TaskRuntime, whose: Mine, status: TaskStatus) -> Sequence[TaskRecord]:
    page = await runtime.list(whose.whose, status=status, limit=PAGE_SIZE, newest_first=True)
    return [record for record in page.records if _is_shown(record, whose)][:MOST_TASKS]


def _is_shown(record: TaskRecord, whose: Mine) -> bool:
    # Of a task that is not announced nobody has been told yet. One of a prompt or a resource has no tool's result.
    return record.announced and record.owner == whose.owner and record.method == "tools/call"


def list_result(records: Sequence[TaskRecord], names: CompanionNames) -> dict[str, Any]:
    """The tasks of a caller, as a model reads them."""
    if not records:
        said = "You have no tasks here: none was started, or those that were have ended and expired."
        return text_result([said], {"tasks": []})
    lines = [
        f"You have these tasks here, unfinished ones first, newest first (at most {MOST_TASKS} are listed).",
        f"To get the result of one, call the tool {tool_name(names.status)} with its task_id. Do not start its tool "
        "again for that.",
        *map(_line, records),
    ]
    return text_result(lines, {"tasks": [_facts(record) for record in records]})


def _line(record: TaskRecord) -> str:
    shown = _facts(record)
    return (
        f"- {as_json({'task_id': record.id}, 1_000)}: the tool {tool_name(record.name)}, {shown['status']} "
        f"({quoted(shown['statusMessage'], 120)}), started {shown['createdAt']}"
    )


def _facts(record: TaskRecord) -> dict[str, Any]:
    return {**facts(record), "tool": line(record.name, LONGEST_NAME), "createdAt": timestamp(record.created_at)}
