"""What is wrong with one task as a server sent it.

Faults are what the protocol forbids, or what at least one widely used client refuses; quirks are the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import TaskStatus

OLD_NAMES: Final[Mapping[str, str]] = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
"""Fields of the 2025-11-25 protocol, and what they are called now."""

PAYLOADS: Final[Mapping[str, str]] = {"input_required": "inputRequests", "completed": "result", "failed": "error"}
"""What a status inlines."""

CLOCK_TOLERANCE: Final = timedelta(minutes=5)

SHORTEST_TTL_MS: Final = 1000

MIN_ID_LENGTH: Final = 16
"""Characters: a UUID without dashes has 32, 96 bits in base64 are 16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """One thing that is wrong."""

    says: str
    advice: str
    is_fault: bool = True


def flaws_of_created(task: JsonObject) -> list[Flaw]:
    """What is wrong with a `CreateTaskResult`."""
    if isinstance(task.get("task"), Mapping):
        return [
            Flaw(
                says="the task is nested under `task`, as in 2025-11-25",
                advice="Put the task's fields next to resultType: CreateTaskResult is Result & Task, flat.",
            )
        ]
    flaws = _flaws_of_task(task)
    inlined = sorted({"result", "error", "inputRequests"} & task.keys())
    if inlined:
        flaws.append(
            Flaw(
                says=f"the new task already carries {', '.join(inlined)}",
                advice="Leave it to tasks/get: clients do not look for an outcome in CreateTaskResult.",
                is_fault=False,
            )
        )
    return flaws


def flaws_of_detailed(task: JsonObject) -> list[Flaw]:
    """What is wrong with a task in a `tasks/get` result or a notification."""
    return [*_flaws_of_task(task), *_flaws_of_payload(task)]


def flaws_of_time(task: JsonObject, now: datetime) -> list[Flaw]:
    """What is wrong with the times of a task that was made just now."""
    flaws: list[Flaw] = []
    created = _instant(task.get("createdAt"))
    off = timedelta(0) if created is None else abs(now - _comparable(created))
    if off > CLOCK_TOLERANCE:
        flaws.append(
            Flaw(
                says=f"the server's clock is {off.total_seconds():.0f} s away from this machine's",
                advice="Set the clock of one of the two; clients that count down a ttl will be wrong.",
                is_fault=False,
            )
        )
    ttl: Any = task.get("ttlMs")
    if _is_whole(ttl) and ttl < SHORTEST_TTL_MS:
        says = f"ttlMs is {ttl}: the task may be gone before anybody asks"
        flaws.append(Flaw(says=says, advice="Keep tasks long enough for a client to come back for them."))
    return flaws


def flaw_of_id(task_id: str) -> Flaw | None:
    """Whether an id looks as if it could be guessed."""
    if task_id.isdigit() or len(task_id) < MIN_ID_LENGTH or len(set(task_id)) < MIN_ID_LENGTH // 2:
        return Flaw(
            says=f"the id {task_id!r} looks as if it could be guessed",
            advice="Make ids from at least 96 random bits: whoever knows one may be able to read the task.",
            is_fault=False,
        )
    return None


def flaws_of_ack(result: JsonObject) -> list[Flaw]:
    """What is wrong with the acknowledgement of an update or a cancel."""
    flaws: list[Flaw] = []
    if result.get("resultType") != "complete":
        flaws.append(_flaw(f"resultType is {result.get('resultType')!r}", 'Set resultType to "complete".'))
    extra = sorted(result.keys() - {"resultType", "_meta"})
    if extra:
        flaws.append(
            _flaw(f"it carries {', '.join(extra)}", "An acknowledgement is empty but for resultType and _meta.")
        )
    return flaws


def _flaws_of_task(task: JsonObject) -> list[Flaw]:
    flaws = [_flaw(f"{old} is the 2025-11-25 name", f"Call it {new}.") for old, new in OLD_NAMES.items() if old in task]
    if not isinstance(task.get("taskId"), str) or not task["taskId"]:
        flaws.append(_flaw("taskId is missing, or not a string", "Every task has a taskId."))
    if task.get("status") not in {status.value for status in TaskStatus}:
        flaws.append(
            _flaw(f"status is {task.get('status')!r}", f"Use one of {', '.join(s.value for s in TaskStatus)}.")
        )
    if "statusMessage" in task and not isinstance(task["statusMessage"], str):
        flaws.append(_flaw("statusMessage is not a string", "Leave it out when there is nothing to say."))
    return [*flaws, *_flaws_of_numbers(task), *_flaws_of_instants(task)]


def _flaws_of_numbers(task: JsonObject) -> list[Flaw]:
    flaws: list[Flaw] = []
    if "ttlMs" not in task:
        flaws.append(_flaw("ttlMs is missing", "It is always there; null stands for no limit."))
    elif task["ttlMs"] is not None and not _is_whole(task["ttlMs"]):
        flaws.append(_flaw(f"ttlMs is {task['ttlMs']!r}", "It is a whole number of milliseconds, or null."))
    if "pollIntervalMs" in task and not _is_whole(task["pollIntervalMs"]):
        flaws.append(_flaw(f"pollIntervalMs is {task['pollIntervalMs']!r}", "It is a whole number, or left out."))
    return flaws


def _flaws_of_instants(task: JsonObject) -> list[Flaw]:
    flaws: list[Flaw] = []
    for key in ("createdAt", "lastUpdatedAt"):
        instant = _instant(task.get(key))
        if instant is None:
            flaws.append(_flaw(f"{key} is {task.get(key)!r}", "Write ISO 8601, like 2026-07-28T12:00:00Z."))
        elif instant.tzinfo is None:
            flaws.append(_flaw(f"{key} has no offset", "End it with Z or an offset; clients refuse it otherwise."))
    created, updated = _instant(task.get("createdAt")), _instant(task.get("lastUpdatedAt"))
    if created is not None and updated is not None and _comparable(updated) < _comparable(created):
        flaws.append(_flaw("lastUpdatedAt is before createdAt", "A task is never updated before it is created."))
    return flaws


def _flaws_of_payload(task: JsonObject) -> list[Flaw]:
    status = str(task.get("status"))
    wanted = PAYLOADS.get(status)
    flaws = [
        _flaw(f"a {status} task carries {key}", f"Leave {key} out unless the status is {owner}.")
        for owner, key in PAYLOADS.items()
        if key in task and key != wanted
    ]
    if wanted is None:
        return flaws
    payload: Any = task.get(wanted)
    if not isinstance(payload, Mapping):
        return [*flaws, _flaw(f"a {status} task has no {wanted}", f"Inline {wanted} as an object.")]
    return [*flaws, *_flaws_of_outcome(status, cast("JsonObject", payload))]


def _flaws_of_outcome(status: str, payload: JsonObject) -> list[Flaw]:
    if status == "failed" and not (_is_whole(payload.get("code")) and isinstance(payload.get("message"), str)):
        return [_flaw("error is not a JSON-RPC error", "It needs a number as code and a text as message.")]
    if status == "completed" and payload.get("resultType") != "complete":
        advice = 'Set resultType to "complete" in the inlined result; strict clients refuse it otherwise.'
        return [Flaw(says="the inlined result has no resultType of its own", advice=advice, is_fault=False)]
    if status == "input_required":
        bad = [key for key, request in payload.items() if not _is_request(request)]
        if bad or not payload:
            what = f"inputRequests[{bad[0]!r}] is not a request" if bad else "inputRequests is empty"
            return [_flaw(what, "Every entry has a method and params, and there is at least one.")]
    return []


def _is_request(request: Any) -> bool:
    return isinstance(request, Mapping) and isinstance(cast("JsonObject", request).get("method"), str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _instant(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _comparable(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _flaw(says: str, advice: str) -> Flaw:
    return Flaw(says=says, advice=advice)
