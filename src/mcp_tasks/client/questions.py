"""What a task (or a call, before it is one) asks, for a host that asks a person in text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp_tasks.client.fields import Field, field_lines, fields_of
from mcp_tasks.client.pages import link_to
from mcp_tasks.client.printable import on_one_line, printable
from mcp_tasks.client.words import keys_of, read_words
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import AmbiguousAnswer, BadValue, NoOpenQuestion


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
        """What it says, as the server wrote it."""
        return str(self.params.get("message") or f"(a {on_one_line(self.method)} request)")

    @property
    def schema(self) -> JsonObject:
        """The form of its answer."""
        schema: Any = self.params.get("requestedSchema")
        return cast("JsonObject", schema) if isinstance(schema, Mapping) else {}

    @property
    def fields(self) -> list[Field]:
        """The fields of its form."""
        return fields_of(self.schema)

    def answer(
        self, words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
    ) -> dict[str, Any]:
        """The answer that somebody gives in words, as `TaskHandle.answer` takes it.

        Args:
            words: `KEY=VALUE` for the fields of its form, as `read_words` takes them.
            known: Values to begin with. For a model or a program that is asked, its whole result.
            action: `accept`, `decline` or `cancel`.

        Raises:
            BadValue: Something is unknown, missing or wrong.
        """
        if not self.is_elicitation:
            if known is None:
                raise BadValue(f"a {on_one_line(self.method)} request takes a whole result, as JSON")
            return dict(known)
        if action != "accept" or self.url is not None:
            return {"action": action}
        return {"action": "accept", "content": read_words(self.schema, words, known=known)}

    def describe(self) -> list[str]:
        """The question, and the fields of its answer or the page to visit: a line each, fit for a terminal."""
        lines = printable(self.message).splitlines()
        if self.url is None:
            return [*lines, *field_lines(self.fields)]
        link = link_to(self.url)
        page = [f"  visit: {on_one_line(self.url)}", f"  host:  {link.host}"]
        return [*lines, *page, *(f"  ! {note}" for note in link.notes)]


def questions_of(requests: Mapping[str, JsonObject], tool: str, server: str = "") -> list[Question]:
    """The questions in a task's `inputRequests`."""
    return [
        Question(
            key=key,
            method=str(request.get("method", "")),
            params=cast("JsonObject", params) if isinstance(params := request.get("params"), Mapping) else {},
            tool=tool,
            server=server,
        )
        for key, request in requests.items()
    ]


def questions_for(words: Iterable[str], questions: Sequence[Question], *, key: str | None = None) -> Sequence[Question]:
    """Those of some questions that words may be meant for: which have a field for each; all if none has, or without
    words. With a `key`, the one that has it.

    Raises:
        NoOpenQuestion: None has this key.
    """
    if key is not None:
        named = [each for each in questions if each.key == key]
        if not named:
            hint = f"Open questions: {', '.join(each.key for each in questions)}"
            raise NoOpenQuestion(f"the task has no open question {key!r}", hint)
        return named
    names = keys_of(words)
    return [each for each in questions if names and names <= {field.name for field in each.fields}] or questions


def answers_to(
    questions: Sequence[Question], words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
) -> dict[str, dict[str, Any]]:
    """The answers that somebody gives in words, by the keys of the questions, as `TaskHandle.answer` takes them.

    Args:
        questions: All can be declined or dismissed at once, and one be accepted.
        words: For the fields of its form, and `known` and `action`, as `Question.answer` takes them.

    Raises:
        AmbiguousAnswer: There are several questions, and they are not declined or dismissed.
        BadValue: Something is unknown, missing or wrong.
    """
    if len(questions) > 1 and action == "accept":
        lines = [line for question in questions for line in [f"{question.key}:", *question.describe()]]
        raise AmbiguousAnswer("the task has several open questions", "\n".join(lines))
    return {question.key: question.answer(words, known=known, action=action) for question in questions}
