"""What is kept of a task, in words and as JSON: whole if its secrets are asked for, and otherwise by size and shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from mcp_tasks.core.pacing import expires_at
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.runtime.operator import Dossier

MOST_NAMES: Final = 20
"""Names in an object that are shown."""


def shape_of(value: Any, *, inside: bool = True) -> str:
    """What a value looks like, and nothing of what it says: names in an object are those of the tool."""
    match value:
        case None:
            return "null"
        case bool():
            return "yes or no"
        case int() | float():
            return "number"
        case str():
            return f"text of {len(value)}"
        case Mapping() if inside:
            held = cast("Mapping[str, Any]", value)
            names = [f"{name}: {shape_of(part, inside=False)}" for name, part in list(held.items())[:MOST_NAMES]]
            return f"{{{', '.join(names)}{', …' if len(held) > MOST_NAMES else ''}}}"
        case Mapping():
            return f"object of {len(cast('Mapping[str, Any]', value))}"
        case _:
            return f"list of {len(cast('Sequence[Any]', value))}"


def told(value: Any, *, secrets: bool) -> Any:
    """A value, or its shape."""
    return value if secrets or value is None else shape_of(value)


def record_json(record: TaskRecord, *, secrets: bool = False) -> dict[str, Any]:
    """A task's row as JSON, in the protocol's words where it has some."""
    fields: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status.value,
        "statusMessage": told(record.status_message, secrets=secrets),
        "isError": record.is_error or None,
        "tool": record.name,
        "method": record.method,
        "namespace": record.namespace,
        "owner": record.owner,
        "session": record.session,
        "parent": record.parent,
        "rerunOf": record.rerun_of,
        "queue": record.queue,
        "priority": record.priority or None,
        "worker": record.worker,
        "pause": record.pause,
        "toolVersion": record.tool_version,
        "runs": record.attempt,
        "lostRuns": record.lost or None,
        "openQuestions": len(record.inputs.outstanding) or None,
        "createdAt": _iso(record.created_at),
        "startedAt": _iso(record.started_at),
        "wakesAt": _iso(record.wake_at) if record.wake_at is not None and record.wake_at.year > 1 else None,
        "lastUpdatedAt": _iso(record.updated_at),
        "finishedAt": _iso(record.finished_at),
        "expiresAt": _iso(expires_at(record)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def dossier_json(dossier: Dossier, now: datetime, *, secrets: bool) -> dict[str, Any]:
    """All that is kept of a task."""
    record, request, outcome = dossier.record, dossier.request, dossier.outcome
    fields: dict[str, Any] = {
        **record_json(record, secrets=secrets),
        "timings": timings_of(record, now),
        "progress": _progress(record, secrets=secrets),
        "questions": {
            key: {"method": ask.method, "params": told(ask.params, secrets=secrets)}
            for key, ask in record.inputs.outstanding.items()
        }
        or None,
        "journal": [
            {"number": entry.number, "kind": entry.kind, "key": entry.key, "value": told(entry.value, secrets=secrets)}
            for entry in dossier.journal
        ],
        "unreadable": dict(dossier.unreadable) or None,
    }
    if request is not None:
        fields["request"] = {
            "bytes": _size(request.arguments),
            "arguments": told(dict(request.arguments), secrets=secrets),
            "protocolVersion": request.protocol_version,
            "client": _client(request.client_info),
            "answersBefore": told(request.input_responses, secrets=secrets),
        }
    if outcome is not None:
        value: Any = json.loads(outcome.body)
        is_error: Any = None
        if not secrets and isinstance(value, dict):
            is_error = cast("dict[str, Any]", value).pop("isError", None)
        fields["outcome"] = {
            "bytes": len(outcome.body),
            # Nothing of what it is about, and what an operator looks for first.
            "isError": is_error if isinstance(is_error, bool) else None,
            "value": told(value, secrets=secrets),
        }
    return {name: value for name, value in fields.items() if value is not None}


def timings_of(record: TaskRecord, now: datetime) -> dict[str, float]:
    """How long what took, in seconds."""
    end = record.finished_at or now
    spans: dict[str, timedelta] = {"age": now - record.created_at, "total": end - record.created_at}
    if record.started_at is not None:
        spans["untilLastRun"] = record.started_at - record.created_at
        spans["lastRun"] = end - record.started_at
    return {name: round(max(span.total_seconds(), 0.0), 3) for name, span in spans.items()}


def _progress(record: TaskRecord, *, secrets: bool) -> dict[str, Any] | None:
    progress = record.progress
    if progress is None:
        return None
    message = told(progress.message, secrets=secrets)
    return {"progress": progress.progress, "total": progress.total, "message": message}


def _client(info: Mapping[str, Any] | None) -> str | None:
    return None if info is None else f"{info.get('name', '?')} {info.get('version', '')}".strip()


def _size(value: Any) -> int:
    return len(json.dumps(value, default=str).encode(errors="surrogatepass"))


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
