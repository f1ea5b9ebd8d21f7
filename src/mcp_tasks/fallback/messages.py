"""Texts for models: a tool is still running, or ended without a result.

Models misread texts that leave room: they call the tool again, or take a first answer for the result. So each text says
first that this is not the result, then what not to do, then what to do. It names every tool that it mentions, and shows
the arguments to send. Text of a tool or a user comes after that, quoted and shortened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import JsonObject, list_in, object_in, valid_text
from mcp_tasks.model.record import InputRequest, TaskRecord, TaskStatus
from mcp_tasks.protocol.shapes import status_message

LONGEST_TEXT: Final = 500
"""Characters of a message or a question: enough for a paragraph."""

LONGEST_NAME: Final = 128
"""Characters of a name, as the specification limits names of tools."""

LONGEST_FIELD: Final = 240
"""Characters of the description of one form field."""

MOST_FIELDS: Final = 12
"""Form fields that are described; errors name the others when they are missing."""


def line(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text on one line, and shortened, so that it cannot look like a line of ours."""
    # Sliced before it is split: a huge text costs no more than a long one.
    flat = " ".join(valid_text(text[: 4 * longest]).split())
    return flat if len(flat) <= longest and len(text) <= 4 * longest else flat[: longest - 1] + "…"


def sentence(text: str) -> str:
    """The line, ended as a sentence."""
    said = line(text)
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


def quoted(text: str, longest: int = LONGEST_TEXT) -> str:
    """The line in quotation marks, which it cannot end itself."""
    return json.dumps(line(text, longest), ensure_ascii=False)


def tool_name(name: str) -> str:
    return quoted(name, LONGEST_NAME)


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else str(value)


_encoder: Final = json.JSONEncoder(ensure_ascii=False, default=_plain)


def as_json(value: Any, longest: int = LONGEST_FIELD) -> str:
    """A value as JSON on one line."""
    text = ""
    # Part by part, up to where it is cut: a caller's value may have a million parts, or be nested as deeply.
    for part in _encoder.iterencode(value):
        text += part
        if len(text) > 2 * longest:
            break
    return line(text, longest)


def is_form(request: InputRequest) -> bool:
    """Whether a question is answered by a form, and so can be answered in text."""
    return request.method == "elicitation/create" and request.params.get("mode", "form") == "form"


def question_line(request: InputRequest) -> str:
    """The question in one line."""
    message = request.params.get("message")
    if request.method != "elicitation/create":
        return f"It waits for this client itself to answer a {line(request.method, LONGEST_NAME)} request."
    asked = f"It asks: {quoted(message if isinstance(message, str) else '')}"
    url = request.params.get("url")
    return f"{asked} The user is to open {line(url)}" if not is_form(request) and isinstance(url, str) else asked


def field_lines(request: InputRequest) -> list[str]:
    """The fields of a form, one line each."""
    schema = object_in(request.params, "requestedSchema") or {}
    needed = list_in(schema, "required")
    fields = list((object_in(schema, "properties") or {}).items())
    lines = [
        f"- {quoted(name, LONGEST_NAME)} ({'required' if name in needed else 'optional'}): {as_json(field)}"
        for name, field in fields[:MOST_FIELDS]
    ]
    return [*lines, f"- and {len(fields) - MOST_FIELDS} more"] if len(fields) > MOST_FIELDS else lines


MOST_QUESTIONS: Final = 3
"""Open questions that are quoted."""


@dataclass(frozen=True, slots=True)
class CompanionNames:
    """The names of the companion tools. `answer` is None if models may not answer questions."""

    status: str
    cancel: str
    answer: str | None = None

    def all(self) -> frozenset[str]:
        return frozenset({self.status, self.cancel} | ({self.answer} if self.answer is not None else set()))


def handle_result(record: TaskRecord, companions: CompanionNames | None, *, joins: bool = False) -> dict[str, Any]:
    """The handle: an ordinary result that says that a tool is still running.

    Args:
        companions: The companion tools that the caller has, if any.
        joins: Whether a repeated call gets the same task.
    """
    tool = tool_name(record.name)
    again = "it would not be any quicker" if joins else "that would start the same work a second time"
    lines = [
        f"The tool {tool} {_doing(record)}. It has not finished, and this is not its result.",
        f"Do not call {tool} again: {again}.",
        _how_to_go_on(record, companions),
        f"Task: {record.id}",
        f"Status: {record.status.value} ({quoted(_message(record))})",
        *_questions(record, companions),
    ]
    return text_result(lines, facts(record))


def failed_result(record: TaskRecord, error: JsonObject | None = None) -> dict[str, Any]:
    """The result of a call whose tool failed with this error, was stopped or was cancelled."""
    if record.status is TaskStatus.CANCELLED:
        return _ended(record, f"was cancelled, and has no result. {_said(record)}", _CANCELLED)
    said = (error or {}).get("message")
    message = sentence(said) if isinstance(said, str) and said else _said(record)
    advice = _ADVICE.get(_reason(error))
    if advice is None:
        # The tool's own error.
        return _ended(record, f"failed: {message}", None, message)
    return _ended(record, f"was stopped before it had finished, and has no result. {message}", advice, message)


def text_result(lines: Sequence[str], structured: JsonObject) -> dict[str, Any]:
    """A result: lines for a model, and the same for a program."""
    text = valid_text("\n".join(lines))
    return {"content": [{"type": "text", "text": text}], "structuredContent": dict(structured), "isError": False}


def problem(text: str) -> dict[str, Any]:
    """A tool error, whose text says what to do."""
    return {"content": [{"type": "text", "text": valid_text(text)}], "isError": True}


def beyond_limit(tool: str, exc: LimitExceeded) -> dict[str, Any]:
    """A tool error: the call was refused by a limit before anything was done."""
    named = tool_name(tool)
    if exc.retry_after is None:
        advice = f"The same call will be refused again: call {named} with less."
    else:
        seconds = max(math.ceil(exc.retry_after.total_seconds()), 1)
        advice = f"Call {named} again, but not before {seconds} s have passed."
    return problem(f"The tool {named} was not called: {sentence(str(exc))} {advice}")


def facts(record: TaskRecord, message: str | None = None) -> dict[str, Any]:
    """The structured content of a handle."""
    return {
        "taskId": record.id,
        "status": record.status.value,
        "statusMessage": message if message is not None else line(_message(record)),
    }


def with_id(record: TaskRecord) -> str:
    """The arguments of a companion tool that takes only the id."""
    return as_json({"task_id": record.id}, 1_000)


_IN_PART = "Its work may be done in part."
_CHECK = "Find out what has been done before you call {tool} again, or ask the user."

_CANCELLED: Final = f"{_IN_PART} Do not call {{tool}} again unless the user wants that."
_ADVICE: Final[dict[str, str]] = {
    "interrupted": _CHECK,
    "max_runtime": f"{_IN_PART} The same call would take as long again. {_CHECK}",
    "max_wait": f"{_IN_PART} Call {{tool}} again only when somebody is there to answer it.",
    "task_age": f"{_IN_PART} {_CHECK}",
    "unannounced": f"{_IN_PART} {_CHECK}",
    "lost": f"{_IN_PART} Do not call {{tool}} again: the same is likely to happen. Tell the user.",
    "tool_version": "If the user wants it still, call {tool} again: the server has another version of it by now.",
    "cannot_start": "Do not call {tool} again for now. Tell the user that the server cannot run it.",
    "request": "Call {tool} again if the work is still wanted.",
    "journal": f"{_IN_PART} {_CHECK}",
    "replay": f"{_IN_PART} This is a mistake in the tool. {_CHECK}",
}
"""What to do, by the `reason` in the error of a stopped task."""

STOPPED: Final = frozenset(_ADVICE)
"""The `reason`s of errors for which a tool was stopped."""


_UNSAID: Final = {
    TaskStatus.WORKING: "running",
    TaskStatus.INPUT_REQUIRED: "waiting for an answer",
    TaskStatus.COMPLETED: "finished",
    TaskStatus.FAILED: "ended without a result",
    TaskStatus.CANCELLED: "ended without a result",
}
"""The status message of a task that has none."""


def _ended(record: TaskRecord, how: str, advice: str | None, message: str | None = None) -> dict[str, Any]:
    tool = tool_name(record.name)
    lines = [f"The tool {tool} {how}"]
    if advice is not None:
        begun = advice if record.attempt else advice.replace(_IN_PART, "Its work had not begun.")
        lines.append(begun.replace("{tool}", tool))
    lines.append(f"Task: {record.id}")
    return {**text_result(lines, facts(record, message)), "isError": True}


def _reason(error: JsonObject | None) -> str:
    reason = (object_in(error, "data") or {}).get("reason")
    return reason if isinstance(reason, str) else ""


def _doing(record: TaskRecord) -> str:
    if record.status is TaskStatus.INPUT_REQUIRED:
        return "is still running: it waits for an answer"
    return "is still running" if record.attempt else "is still running: it waits for its turn to begin"


def _how_to_go_on(record: TaskRecord, companions: CompanionNames | None) -> str:
    if companions is None:
        return "The work goes on. Its result cannot be fetched from here: tell the user that it is not finished yet."
    then = (
        f"call the tool {tool_name(companions.status)} with {with_id(record)}. It waits, and returns the result once "
        "there is one. If it says that the tool has not finished, call it again."
    )
    if record.status is not TaskStatus.INPUT_REQUIRED:
        return f"To get the result, {then}"
    if companions.answer is not None and any(map(is_form, record.inputs.outstanding.values())):
        return f"Answer the question below. Then, to get the result, {then}"
    return (
        f"The question below is for the user, and you cannot answer it: tell the user about it. Then {then} It also "
        "puts the question to the user, where this client can."
    )


def _questions(record: TaskRecord, companions: CompanionNames | None) -> list[str]:
    asked = list(record.inputs.outstanding.items())
    lines: list[str] = []
    for key, request in asked[:MOST_QUESTIONS]:
        lines.append(question_line(request))
        if companions is not None and companions.answer is not None and is_form(request):
            lines += _how_to_answer(record, key if len(asked) > 1 else None, request, companions.answer)
    if len(asked) > MOST_QUESTIONS:
        lines.append(f"It asks {len(asked) - MOST_QUESTIONS} more questions.")
    return lines


def _how_to_answer(record: TaskRecord, key: str | None, request: InputRequest, answer: str) -> list[str]:
    named: dict[str, Any] = {"task_id": record.id, **({} if key is None else {"question": key})}
    accept, decline = (as_json({**named, "action": action}, 1_000) for action in ("accept", "decline"))
    fields = field_lines(request)
    filled = "and a content that has these fields:" if fields else "and no content."
    return [
        "Answer as the user would. If you do not know what the user wants, ask the user first.",
        f"To refuse, call the tool {tool_name(answer)} with {decline}.",
        f"To answer, call the tool {tool_name(answer)} with {accept} {filled}",
        *fields,
    ]


def _message(record: TaskRecord) -> str:
    return status_message(record) or _UNSAID[record.status]


def _said(record: TaskRecord) -> str:
    return sentence(record.status_message or "No reason was given")


# ---- schema
# The output schema of a tool, widened so that it allows the handle as well.


HANDLE_SCHEMA: Final[JsonObject] = MappingProxyType(
    {
        "type": "object",
        "title": "StillRunning",
        "description": "The tool has not finished: this is not its result. The text says how to get that.",
        "properties": {
            "taskId": {"type": "string", "description": "The id of the running task."},
            "status": {"type": "string", "description": "Where the task stands."},
            "statusMessage": {"type": "string", "description": "The same, for people."},
        },
        "required": ["taskId", "status", "statusMessage"],
    }
)
"""The structured content of a call that is answered before its tool has finished."""

_OWN: Final = "#/anyOf/0"
"""The place of the tool's own schema in the wider one."""

_REFERENCES: Final = ("$ref", "$dynamicRef")

_DATA: Final = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are data, in which `$ref` has no meaning."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose values hold schemas by name; a property can be called `default`."""


def widened(schema: JsonObject) -> dict[str, Any]:
    """A schema that allows what this one does, and the handle as well. The given one is not changed."""
    own = _moved(schema)
    wider: dict[str, Any] = {}
    if (dialect := own.pop("$schema", None)) is not None:
        # Only the root of a document may say which JSON Schema it is written in.
        wider["$schema"] = dialect
    if own.get("type") == "object":
        # Before 2026-07-28 the root of every output schema says so, and clients insist on it.
        wider["type"] = "object"
    return {**wider, "anyOf": [own, _moved(HANDLE_SCHEMA)]}


def _moved(schema: JsonObject) -> dict[str, Any]:
    """A copy of the schema whose local references point to its new place."""
    own_id = schema.get("$id")
    if isinstance(own_id, str) and not own_id.startswith("#"):
        # A document of its own: its references start at its own root.
        return dict(schema)
    return {name: _keyword(name, value) for name, value in schema.items()}


def _keyword(name: str, value: Any) -> Any:
    if name in _DATA:
        return value
    if name in _REFERENCES and isinstance(value, str):
        # The root, or a path from it. `#name` is an anchor, which needs no path.
        return f"{_OWN}{value[1:]}" if value == "#" or value.startswith("#/") else value
    if name in _BY_NAME and isinstance(value, Mapping):
        return {key: _subschema(item) for key, item in cast("JsonObject", value).items()}
    return _subschema(value)


def _subschema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _moved(cast("JsonObject", value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_subschema(item) for item in cast("Sequence[Any]", value)]
    return value
