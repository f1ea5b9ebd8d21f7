"""The questions of a task (or of a call, before it is one), as a person is asked them and answers in text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit

from mcp_tasks.cli.fields import Field, field_lines, fields_of, keys_of, read_words
from mcp_tasks.client.ledger import on_one_line, printable
from mcp_tasks.errors import BadValue, InvalidInput
from mcp_tasks.model.json import JsonObject, object_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A page that the person is asked to visit.

    Attributes:
        host: Where it leads, in ASCII: letters that look like others cannot pass for them.
        refusal: Why it is not opened from here; None if it may be.
        warning: What to know before visiting it; empty if there is nothing.
    """

    host: str
    refusal: str | None
    warning: str = ""

    @classmethod
    def to(cls, url: str) -> Link:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
            # As it is looked up.
            shown = host if host.isascii() else host.encode("idna").decode()
        except ValueError:
            return cls(host="?", refusal="This is not an address that can be opened.")
        is_odd = shown != host or "xn--" in shown
        warning = "The host name has letters that can look like others." if is_odd else ""
        refusal = None
        if parts.scheme not in ("https", "http") or not shown:
            refusal = "Only web addresses (https) are opened from here."
        elif parts.scheme == "http" and not is_loopback(shown):
            refusal = "This is not an https address: others can read along, and change it. It is not opened from here."
        elif "@" in parts.netloc:
            refusal = (
                "The part before the @ is not the host, and there is no reason for it. It is not opened from here."
            )
        elif not url.isprintable() or any(char in " \\" for char in url):
            # One program skips such a character, and another takes it for the end of the host.
            refusal = "It has characters that no address has. It is not opened from here."
        return cls(host=shown or "?", refusal=refusal, warning=warning)

    @property
    def notes(self) -> list[str]:
        return [note for note in (self.warning, self.refusal) if note]


def is_loopback(host: str) -> bool:
    """Whether a host name is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One input request.

    Attributes:
        tool: The tool that asks, or its task.
        server: Where that is.
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
        """The message, as the server wrote it."""
        return str(self.params.get("message") or f"(a {on_one_line(self.method)} request)")

    @property
    def schema(self) -> JsonObject:
        return object_in(self.params, "requestedSchema") or {}

    @property
    def fields(self) -> list[Field]:
        return fields_of(self.schema)

    def answer(
        self, words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
    ) -> dict[str, Any]:
        """The answer that is given in words, as `TaskHandle.answer` takes it.

        Args:
            words: `KEY=VALUE` for the fields of its form, as `read_words` takes them.
            known: Values to begin with. For a question to a model or a program, its whole result.
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
        link = Link.to(self.url)
        page = [f"  visit: {on_one_line(self.url)}", f"  host:  {link.host}"]
        return [*lines, *page, *(f"  ! {note}" for note in link.notes)]


def questions_of(requests: Mapping[str, JsonObject], tool: str, server: str = "") -> list[Question]:
    """The questions in a task's `inputRequests`."""
    return [
        Question(
            key=key,
            method=str(request.get("method", "")),
            params=cast("JsonObject", object_in(request, "params") or {}),
            tool=tool,
            server=server,
        )
        for key, request in requests.items()
    ]


def questions_for(words: Iterable[str], questions: Sequence[Question], *, key: str | None = None) -> Sequence[Question]:
    """The questions that words may be meant for: those with a field for each; all if there is none, or without words.
    With a `key`, the one that has it.

    Raises:
        InvalidInput: None has this key.
    """
    if key is not None:
        named = [each for each in questions if each.key == key]
        if not named:
            hint = f"Open questions: {', '.join(each.key for each in questions)}"
            raise InvalidInput("no_question", f"the task has no open question {key!r}", hint)
        return named
    names = keys_of(words)
    return [each for each in questions if names and names <= {field.name for field in each.fields}] or questions


def answers_to(
    questions: Sequence[Question], words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
) -> dict[str, dict[str, Any]]:
    """The answers that are given in words, by the keys of the questions, as `TaskHandle.answer` takes them. All
    questions can be declined or dismissed at once, and one be accepted.

    Raises:
        InvalidInput: There are several questions, and they are not declined or dismissed.
        BadValue: Something is unknown, missing or wrong.
    """
    if len(questions) > 1 and action == "accept":
        lines = [line for question in questions for line in [f"{question.key}:", *question.describe()]]
        raise InvalidInput("several_questions", "the task has several open questions", "\n".join(lines))
    return {question.key: question.answer(words, known=known, action=action) for question in questions}
