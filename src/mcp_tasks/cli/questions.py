"""What a task (or a call, before it is one) asks, in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from mcp_tasks.cli.arguments import describe_field
from mcp_tasks.cli.fields import Field, fields_of
from mcp_tasks.cli.remembered import short_id
from mcp_tasks.cli.views import clean
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
        return clean(str(self.params.get("url", ""))) if self.params.get("mode") == "url" else None

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
        return [*lines, f"  visit: {question.url}"]
    fields = question.fields
    width = max((len(field.name) for field in fields), default=0)
    return [*lines, *(f"  {clean(field.name):<{width}}  {clean(describe_field(field))}" for field in fields)]


def how_to_answer_unseen(task_id: str, repeated: str) -> list[str]:
    """The commands that answer a question which its server has not sent here, a line each."""
    name = f"mcp-tasks answer {short_id(task_id)}"
    return [f"{name}{repeated}", f"{name} KEY=VALUE{repeated}"]


def how_to_answer(task_id: str, questions: Sequence[Question], repeated: str) -> list[str]:
    """The commands that answer questions, a line each, with what has to be `repeated` in them."""
    name = f"mcp-tasks answer {short_id(task_id)}"
    lines: list[str] = []
    for question in questions:
        which = f" --question {shlex.quote(question.key)}" if len(questions) > 1 else ""
        if question.url is not None:
            example = " --accept"
        elif question.is_elicitation:
            example = "".join(
                f" {field.name}=..." for field in question.fields if field.required or len(question.fields) == 1
            )
        else:
            example = " --json RESULT"
        lines.append(f"{name}{which}{example or ' --accept'}{repeated}")
    return lines


def warnings_about(url: str) -> list[str]:
    """What somebody should know about a page before they go there."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    found: list[str] = []
    if parts.scheme != "https" and host not in ("localhost", "127.0.0.1", "::1"):
        found.append("This is not an https address: others can read along.")
    if "xn--" in host or not host.isascii():
        found.append("The host name has letters that can look like others.")
    if "@" in parts.netloc:
        found.append("The part before the @ is not the host; the page is on the host named below.")
    return found
