"""What is wrong with one task as a server sent it.

Faults are what the protocol forbids, or what at least one widely used client refuses; quirks are the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeGuard

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.doctor.wire import object_in

OLD_NAMES: Final[Mapping[str, str]] = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
"""Fields of the 2025-11-25 protocol, and what they are called now."""

PAYLOADS: Final[Mapping[str, str]] = {"input_required": "inputRequests", "completed": "result", "failed": "error"}
"""What a status inlines."""

STATUSES: Final = tuple(status.value for status in TaskStatus)

CLOCK_TOLERANCE: Final = timedelta(minutes=5)

SHORTEST_TTL_MS: Final = 1000

MIN_ID_LENGTH: Final = 16
"""Characters: a UUID without dashes has 32, 96 bits in base64 are 16."""


class Flaw(NamedTuple):
    """One thing that is wrong."""

    says: str
    advice: str
    is_fault: bool = True


def flaws_of_created(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a `CreateTaskResult`."""
    if object_in(task, "task") is not None:
        advice = "Put the task's fields next to resultType: CreateTaskResult is Result & Task, flat."
        yield Flaw("the task is nested under `task`, as in 2025-11-25", advice)
        return
    yield from _flaws_of_task(task)
    if inlined := sorted(task.keys() & set(PAYLOADS.values())):
        advice = "Leave it to tasks/get: clients do not look for an outcome in CreateTaskResult."
        yield Flaw(f"the new task already carries {', '.join(inlined)}", advice, is_fault=False)


def flaws_of_detailed(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a task in a `tasks/get` result or a notification."""
    yield from _flaws_of_task(task)
    status = str(task.get("status"))
    wanted = PAYLOADS.get(status)
    for owner, key in PAYLOADS.items():
        if key in task and key != wanted:
            yield Flaw(f"a {status} task carries {key}", f"Leave {key} out unless the status is {owner}.")
    if wanted is None:
        return
    payload = object_in(task, wanted)
    if payload is None:
        yield Flaw(f"a {status} task has no {wanted}", f"Inline {wanted} as an object.")
    else:
        yield from _flaws_of_payload(status, payload)


def flaws_of_time(task: JsonObject, now: datetime) -> Iterator[Flaw]:
    """What is wrong with the times of a task that was made just now."""
    created, ttl = _instant(task.get("createdAt")), task.get("ttlMs")
    off = timedelta(0) if created is None else abs(now - _comparable(created))
    if off > CLOCK_TOLERANCE:
        advice = "Set the clock of one of the two; clients that count down a ttl will be wrong."
        says = f"the server's clock is {off.total_seconds():.0f} s away from this machine's"
        yield Flaw(says, advice, is_fault=False)
    if _is_whole(ttl) and ttl < SHORTEST_TTL_MS:
        says = f"ttlMs is {ttl}: the task may be gone before anybody asks"
        yield Flaw(says, "Keep tasks long enough for a client to come back for them.")


def flaws_of_id(task_id: str) -> Iterator[Flaw]:
    """Whether an id looks as if it could be guessed."""
    if task_id.isdigit() or len(task_id) < MIN_ID_LENGTH or len(set(task_id)) < MIN_ID_LENGTH // 2:
        advice = "Make ids from at least 96 random bits: whoever knows one may be able to read the task."
        yield Flaw(f"the id {task_id!r} looks as if it could be guessed", advice, is_fault=False)


def flaws_of_ack(result: JsonObject) -> Iterator[Flaw]:
    """What is wrong with the acknowledgement of an update or a cancel."""
    if result.get("resultType") != "complete":
        yield Flaw(f"resultType is {result.get('resultType')!r}", 'Set resultType to "complete".')
    if extra := sorted(result.keys() - {"resultType", "_meta"}):
        yield Flaw(f"it carries {', '.join(extra)}", "An acknowledgement is empty but for resultType and _meta.")


def _flaws_of_task(task: JsonObject) -> Iterator[Flaw]:
    for old, new in OLD_NAMES.items():
        if old in task:
            yield Flaw(f"{old} is the 2025-11-25 name", f"Call it {new}.")
    if not isinstance(task.get("taskId"), str) or not task["taskId"]:
        yield Flaw("taskId is missing, or not a string", "Every task has a taskId.")
    if task.get("status") not in STATUSES:
        yield Flaw(f"status is {task.get('status')!r}", f"Use one of {', '.join(STATUSES)}.")
    if not isinstance(task.get("statusMessage", ""), str):
        yield Flaw("statusMessage is not a string", "Leave it out when there is nothing to say.")
    if "ttlMs" not in task:
        yield Flaw("ttlMs is missing", "It is always there; null stands for no limit.")
    elif task["ttlMs"] is not None and not _is_whole(task["ttlMs"]):
        yield Flaw(f"ttlMs is {task['ttlMs']!r}", "It is a whole number of milliseconds, or null.")
    if not _is_whole(task.get("pollIntervalMs", 0)):
        yield Flaw(f"pollIntervalMs is {task['pollIntervalMs']!r}", "It is a whole number, or left out.")
    yield from _flaws_of_instants(task)


def _flaws_of_instants(task: JsonObject) -> Iterator[Flaw]:
    created, updated = (_instant(task.get(key)) for key in ("createdAt", "lastUpdatedAt"))
    for key, instant in {"createdAt": created, "lastUpdatedAt": updated}.items():
        if instant is None:
            yield Flaw(f"{key} is {task.get(key)!r}", "Write ISO 8601, like 2026-07-28T12:00:00Z.")
        elif instant.tzinfo is None:
            yield Flaw(f"{key} has no offset", "End it with Z or an offset; clients refuse it otherwise.")
    if created is not None and updated is not None and _comparable(updated) < _comparable(created):
        yield Flaw("lastUpdatedAt is before createdAt", "A task is never updated before it is created.")


def _flaws_of_payload(status: str, payload: JsonObject) -> Iterator[Flaw]:
    if status == "failed" and not (_is_whole(payload.get("code")) and isinstance(payload.get("message"), str)):
        yield Flaw("error is not a JSON-RPC error", "It needs a number as code and a text as message.")
    elif status == "completed" and payload.get("resultType") != "complete":
        advice = 'Set resultType to "complete" in the inlined result; strict clients refuse it otherwise.'
        yield Flaw("the inlined result has no resultType of its own", advice, is_fault=False)
    elif status == "input_required":
        bad = [key for key in payload if not isinstance((object_in(payload, key) or {}).get("method"), str)]
        if bad or not payload:
            what = f"inputRequests[{bad[0]!r}] is not a request" if bad else "inputRequests is empty"
            yield Flaw(what, "Every entry has a method and params, and there is at least one.")


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _instant(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _comparable(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
