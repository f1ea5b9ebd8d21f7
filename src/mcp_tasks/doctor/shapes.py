"""What is wrong with one task as a server sent it.

Faults are what the protocol forbids, or what at least one widely used client refuses; quirks are the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.doctor.report import Flaw

PAYLOADS: Final[Mapping[str, str]] = {"input_required": "inputRequests", "completed": "result", "failed": "error"}
"""What a status inlines."""

MIN_ID_LENGTH: Final = 16
"""Characters: a UUID without dashes has 32, 96 bits in base64 are 16."""


def flaws_of_created(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a `CreateTaskResult`."""
    if object_in(task, "task") is not None:
        advice = "Put the task's fields next to resultType: CreateTaskResult is Result & Task, flat."
        yield Flaw("the task is nested under `task`, as in 2025-11-25", advice)
        return
    yield from _flaws_of_task(task)
    if inlined := sorted(task.keys() & set(PAYLOADS.values())):
        advice = "Leave it to tasks/get: clients do not look for an outcome in CreateTaskResult."
        yield Flaw(f"the new task already carries {', '.join(inlined)}", advice, "warn")


def flaws_of_detailed(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a task in a `tasks/get` result or a notification."""
    yield from _flaws_of_task(task)
    status = str(task.get("status"))
    wanted = PAYLOADS.get(status, "")
    for owner, key in PAYLOADS.items():
        if key in task and key != wanted:
            yield Flaw(f"a {status} task carries {key}", f"Leave {key} out unless the status is {owner}.")
    payload = object_in(task, wanted) or {}
    if wanted and object_in(task, wanted) is None:
        yield Flaw(f"a {status} task has no {wanted}", f"Inline {wanted} as an object.")
    elif status == "failed" and not (is_whole(payload.get("code")) and isinstance(payload.get("message"), str)):
        yield Flaw("error is not a JSON-RPC error", "It needs a number as code and a text as message.")
    elif status == "completed" and payload.get("resultType") != "complete":
        advice = 'Set resultType to "complete" in the inlined result; strict clients refuse it otherwise.'
        yield Flaw("the inlined result has no resultType of its own", advice, "warn")
    elif status == "input_required":
        bad = [key for key in payload if not isinstance((object_in(payload, key) or {}).get("method"), str)]
        if bad or not payload:
            what = f"inputRequests[{bad[0]!r}] is not a request" if bad else "inputRequests is empty"
            yield Flaw(what, "Every entry has a method and params, and there is at least one.")


def flaws_of_first_look(task: JsonObject, created: JsonObject) -> Iterator[Flaw]:
    """What is wrong with the first `tasks/get` of a new task."""
    if task.get("taskId") != created.get("taskId") or task.get("createdAt") != created.get("createdAt"):
        yield Flaw("it is not the task that was created", "Give the same taskId and createdAt every time.")
    elif task.get("resultType") != "complete":
        advice = 'tasks/get always answers with resultType "complete", whatever the task\'s status.'
        yield Flaw(f"resultType is {task.get('resultType')!r}", advice)


def flaws_of_time(task: JsonObject, now: datetime) -> Iterator[Flaw]:
    """What is wrong with the times of a task that was made just now."""
    created, ttl = _instant(task.get("createdAt")), task.get("ttlMs")
    off = 0.0 if created is None else abs((now - created).total_seconds())
    if off > 300:
        advice = "Set the clock of one of the two; clients that count down a ttl will be wrong."
        yield Flaw(f"the server's clock is {off:.0f} s away from this machine's", advice, "warn")
    if is_whole(ttl) and ttl < 1000:
        says = f"ttlMs is {ttl}: the task may be gone before anybody asks"
        yield Flaw(says, "Keep tasks long enough for a client to come back for them.")


def flaws_of_id(task_id: str) -> Iterator[Flaw]:
    """Whether an id looks as if it could be guessed."""
    if task_id.isdigit() or len(task_id) < MIN_ID_LENGTH or len(set(task_id)) < MIN_ID_LENGTH // 2:
        advice = "Make ids from at least 96 random bits: whoever knows one may be able to read the task."
        yield Flaw(f"the id {task_id!r} looks as if it could be guessed", advice, "warn")


def flaws_of_ack(result: JsonObject) -> Iterator[Flaw]:
    """What is wrong with the acknowledgement of an update or a cancel."""
    if result.get("resultType") != "complete":
        yield Flaw(f"resultType is {result.get('resultType')!r}", 'Set resultType to "complete".')
    if extra := sorted(result.keys() - {"resultType", "_meta"}):
        yield Flaw(f"it carries {', '.join(extra)}", "An acknowledgement is empty but for resultType and _meta.")


def _flaws_of_task(task: JsonObject) -> Iterator[Flaw]:
    task_id, status, said = task.get("taskId"), task.get("status"), task.get("statusMessage", "")
    ttl, pause, statuses = task.get("ttlMs"), task.get("pollIntervalMs", 0), [known.value for known in TaskStatus]
    checks = [
        ("ttl" in task, "ttl is the 2025-11-25 name", "Call it ttlMs."),
        ("pollInterval" in task, "pollInterval is the 2025-11-25 name", "Call it pollIntervalMs."),
        (not isinstance(task_id, str) or not task_id, "taskId is missing, or not a string", "Every task has a taskId."),
        (status not in statuses, f"status is {status!r}", f"Use one of {', '.join(statuses)}."),
        (not isinstance(said, str), "statusMessage is not a string", "Leave it out when there is nothing to say."),
        ("ttlMs" not in task, "ttlMs is missing", "It is always there; null stands for no limit."),
        (ttl is not None and not is_whole(ttl), f"ttlMs is {ttl!r}", "It is a whole number of milliseconds, or null."),
        (not is_whole(pause), f"pollIntervalMs is {pause!r}", "It is a whole number, or left out."),
    ]
    yield from (Flaw(says, advice) for is_wrong, says, advice in checks if is_wrong)
    created, updated = _instant(task.get("createdAt")), _instant(task.get("lastUpdatedAt"))
    for key, instant in {"createdAt": created, "lastUpdatedAt": updated}.items():
        if instant is None:
            yield Flaw(f"{key} is {task.get(key)!r}", "Write ISO 8601, like 2026-07-28T12:00:00Z.")
        elif datetime.fromisoformat(task[key]).tzinfo is None:
            yield Flaw(f"{key} has no offset", "End it with Z or an offset; clients refuse it otherwise.")
    if created is not None and updated is not None and updated < created:
        yield Flaw("lastUpdatedAt is before createdAt", "A task is never updated before it is created.")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that every client can read: beyond 2**53 many read another."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def _instant(text: Any) -> datetime | None:
    """The instant that a text names, in UTC if it does not say; None if it names none."""
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
