"""What a task (or a call, before it is one) asks, in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp_tasks.cli.forms.arguments import describe_field
from mcp_tasks.cli.forms.fields import Field, fields_of
from mcp_tasks.cli.terminal.links import link_to
from mcp_tasks.cli.terminal.text import clean, command_line, one_line
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.core.json import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One input request.

    Attributes:
        tool: The tool that asks, or its task.
        server: And where that is.
    """

    key: str
    method: str
    params: JsonObject
    tool: str
    server: str = ""

    @property
    def is_elicitation(self) -> bool:
        """Whether a person can answer it; the other kinds are for a model or a program."""
        return self.method == "elicitation/create"

    @property
    def url(self) -> str | None:
        """The page to visit, if that is what is asked."""
        return str(self.params.get("url", "")) if self.params.get("mode") == "url" else None

    @property
    def message(self) -> str:
        """What it says."""
        return clean(str(self.params.get("message") or f"(a {self.method} request)"))

    @property
    def schema(self) -> JsonObject:
        """The form of its answer."""
        schema: Any = self.params.get("requestedSchema")
        return cast("JsonObject", schema) if isinstance(schema, Mapping) else {}

    @property
    def fields(self) -> list[Field]:
        """The fields of its form."""
        return fields_of(self.schema)


def questions_of(requests: Mapping[str, JsonObject], tool: str, server: str = "") -> list[Question]:
    """The questions in a task's `inputRequests`."""
    return [
        Question(
            key=key,
            method=str(request.get("method", "")),
            params=cast("JsonObject", request.get("params") or {}),
            tool=tool,
            server=server,
        )
        for key, request in requests.items()
    ]


def describe(question: Question) -> list[str]:
    """The question and the fields of its answer, a line each."""
    lines = question.message.splitlines()
    if question.url is not None:
        link = link_to(question.url)
        notes = [*link.warnings, *([] if link.refusal is None else [link.refusal])]
        return [
            *lines,
            f"  visit: {one_line(question.url)}",
            f"  host:  {link.host}",
            *(f"  ! {note}" for note in notes),
        ]
    fields = question.fields
    width = max((len(field.name) for field in fields), default=0)
    return [*lines, *(f"  {one_line(field.name):<{width}}  {one_line(describe_field(field))}" for field in fields)]


def how_to_answer_unseen(task_id: str, repeated: str) -> list[str]:
    """The commands that answer a question which its server has not sent here, a line each."""
    words = (short_id(task_id),)
    return [
        command_line("answer", *words, options=repeated),
        command_line("answer", *words, "KEY=VALUE", options=repeated),
    ]


def how_to_answer(task_id: str, questions: Sequence[Question], repeated: str) -> list[str]:
    """The commands that answer questions, a line each, with what has to be `repeated` in them."""
    lines: list[str] = []
    for question in questions:
        options = f" --question={shlex.quote(one_line(question.key))}" if len(questions) > 1 else ""
        fields = [field for field in question.fields if field.required or len(question.fields) == 1]
        words = [f"{field.name}=..." for field in fields] if question.is_elicitation and question.url is None else []
        if not question.is_elicitation:
            options += " --json RESULT"
        elif not words:
            options += " --accept"
        lines.append(command_line("answer", short_id(task_id), *words, options=options + repeated))
    return lines
