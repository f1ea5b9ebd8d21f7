"""Pieces of text for models: one line each, and short, whatever a tool or a person put into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json import list_in, object_in
from mcp_tasks.core.text import valid_text

LONGEST_TEXT: Final = 500
"""Characters of a message or a question: enough for a paragraph, and little beside what a model reads in one turn."""

LONGEST_NAME: Final = 128
"""Characters of a name, as the specification bounds those of tools."""

LONGEST_FIELD: Final = 240
"""Characters of what is said of one field of a form."""

MOST_FIELDS: Final = 12
"""Fields of a form that are described; what is wrong with the others is said when they are missing."""


def line(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text on one line, and shortened: no message can pass for a line of ours."""
    # Sliced before it is split, so that a huge text costs no more than a long one.
    flat = " ".join(valid_text(text[: 4 * longest]).split())
    return flat if len(flat) <= longest and len(text) <= 4 * longest else flat[: longest - 1] + "…"


def sentence(text: str) -> str:
    """The line with an end, so that another sentence can follow."""
    said = line(text)
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


def quoted(text: str, longest: int = LONGEST_TEXT) -> str:
    """The line in quotation marks, which nothing in it can end."""
    return json.dumps(line(text, longest), ensure_ascii=False)


def tool_name(name: str) -> str:
    """A tool as a text names it."""
    return quoted(name, LONGEST_NAME)


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else str(value)


_encoder: Final = json.JSONEncoder(ensure_ascii=False, default=_plain)


def as_json(value: Any, longest: int = LONGEST_FIELD) -> str:
    """A value as JSON on one line."""
    text = ""
    # Part by part, up to where it is cut: a caller's may have a million values, or be nested as deeply.
    for part in _encoder.iterencode(value):
        text += part
        if len(text) > 2 * longest:
            break
    return line(text, longest)


def is_form(request: InputRequest) -> bool:
    """Whether a question is one that a form answers, and so one that can be answered in words."""
    return request.method == "elicitation/create" and request.params.get("mode", "form") == "form"


def question_line(request: InputRequest) -> str:
    """What is asked, in one line."""
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
