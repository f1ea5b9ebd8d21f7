"""Tasks in every state, in pairs: one for each way, equal but for their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from harness.auth import owner_of
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.record import InputBook, InputRequest, Outcome, Progress, TaskRecord, TaskRequest, TaskStatus
from tests.short.servers import NAME, Twins

STAND_IN: Final = "twin-_______-"
"""What the id of a task begins with in a request before it is known which of the two ways it goes."""

_FORM = {
    "mode": "form",
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
_ASKED = InputBook().ask(
    {
        "who": InputRequest(method="elicitation/create", params=_FORM),
        "where": InputRequest(method="roots/list", params={"task": {"ttl": 1}}),
    }
)
_TEXT = {"content": [{"type": "text", "text": "Grüße \U0001f600"}], "isError": False}
_STRANGE: Mapping[str, Any] = {
    "content": [],
    "structuredContent": {"null": None, "big": 2**70, "float": 1.0, "small": 1e-300, "\u2028": ["\x00"]},
}


@dataclass(frozen=True, kw_only=True)
class State:
    """A state that a task may be in, as what differs from a new one.

    Attributes:
        outcome: How it ended, if it has.
        expires: After how long from now it is gone, for one that has ended.
    """

    fields: Mapping[str, Any]
    outcome: Outcome | None = None
    expires: timedelta = timedelta(hours=2)
    token: str | None = "alice"


def _ended(status: TaskStatus, told: object = None, meta: object = None, **fields: Any) -> State:
    outcome = (
        None if told is None else Outcome(body=encode_json(told), meta=None if meta is None else encode_json(meta))
    )
    expires = fields.pop("expires", timedelta(hours=2))
    return State(fields={"status": status, "attempt": 1, **fields}, outcome=outcome, expires=expires)


_AT_WORK: Mapping[str, Any] = {"worker": "somebody", "attempt": 1}

STATES: Final[Mapping[str, State]] = {
    "queued": State(fields={}),
    "at-work": State(fields={**_AT_WORK, "poll_interval": timedelta(seconds=7)}),
    "progress": State(fields={**_AT_WORK, "progress": Progress(progress=1, total=3.5, message="some way\u2028")}),
    "half": State(fields={**_AT_WORK, "progress": Progress(progress=0.5)}),
    "forever": State(fields={**_AT_WORK, "retention": None, "status_message": 'quoted "so" \x7f'}),
    "asks": State(fields={"status": TaskStatus.INPUT_REQUIRED, "attempt": 1, "inputs": _ASKED}),
    "asks-at-work": State(fields={**_AT_WORK, "status": TaskStatus.INPUT_REQUIRED, "inputs": _ASKED}),
    "parked": State(fields={"attempt": 1, "wake_at": timedelta(minutes=5)}),
    "done": _ended(TaskStatus.COMPLETED, _TEXT),
    "done-meta": _ended(TaskStatus.COMPLETED, _STRANGE, {"a": {"b": None}}, status_message="all of it"),
    "done-empty": _ended(TaskStatus.COMPLETED, {}),
    "is-error": _ended(TaskStatus.COMPLETED, {**_TEXT, "isError": True}, is_error=True),
    "failed": _ended(TaskStatus.FAILED, {"code": -32099, "message": "no", "data": {"hint": None}}),
    "cancelled": _ended(TaskStatus.CANCELLED, status_message="Cancelled by the client"),
    "large": _ended(TaskStatus.COMPLETED, {"content": [{"type": "text", "text": "x" * 70_000}]}),
    "huge": _ended(TaskStatus.COMPLETED, {"content": [{"type": "text", "text": "ü" * 300_000}]}),
    "expiring": _ended(TaskStatus.COMPLETED, _TEXT, expires=timedelta(seconds=1)),
    "expired": _ended(TaskStatus.COMPLETED, _TEXT, expires=-timedelta(seconds=1)),
    "unannounced": State(fields={"announced": False}),
    "elsewhere": State(fields={"namespace": "another"}),
    "prompt": State(fields={"method": "prompts/get"}),
    "of-bob": State(fields={}, token="bob"),
    "of-nobody": State(fields={}, token=None),
}


def task_id(side: str, number: int, state: str) -> str:
    """The id of one of the two; of one length for both, so that requests are of one length too."""
    return f"{_prefix(side, number)}{state}"


def _prefix(side: str, number: int) -> str:
    return f"twin-{side}{number:06d}-"


def for_side(text: bytes, side: str, number: int) -> bytes:
    """What is written with the stand-in, for the tasks of one side."""
    return text.replace(STAND_IN.encode(), _prefix(side, number).encode())


def neutral(text: bytes, side: str, number: int) -> bytes:
    """What came back, as it would be on either side."""
    return text.replace(_prefix(side, number).encode(), STAND_IN.encode())


async def put(pair: Twins, number: int, states: Mapping[str, State] = STATES) -> None:
    """Keep a task in each of the states, for either side."""
    now = pair.clock()
    for side in "ab":
        for name, state in states.items():
            record = _record(task_id(side, number, name), state, now, auth=pair.setup.auth)
            request = TaskRequest(name=record.name, arguments={}, method=record.method)
            await pair.store.create(replace(record, version=1), request)
            if state.outcome is not None or record.version > 1:
                await pair.store.save(record, expected=1, outcome=state.outcome)
    pair.store.written.clear()


def _record(identifier: str, state: State, now: datetime, *, auth: bool) -> TaskRecord:
    fields: dict[str, Any] = {"retention": timedelta(hours=3), "namespace": NAME, "version": 2, **state.fields}
    is_ours = state.token is not None and (auth or state.token == "bob")
    record = TaskRecord(
        id=identifier,
        owner=owner_of(state.token) if is_ours and state.token else None,
        name="marked",
        created_at=now - timedelta(hours=4),
        updated_at=now - timedelta(minutes=1),
        **fields,
    )
    if record.wake_at is not None:
        record = replace(record, wake_at=now + timedelta(minutes=5))
    if not record.is_final:
        return record
    kept = record.retention or timedelta(0)
    return replace(record, finished_at=now + state.expires - kept, updated_at=now + state.expires - kept)
