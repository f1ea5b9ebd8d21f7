"""A form that somebody fills in line by line, for a host that asks in text: a terminal, a chat, a ticket.

It reads and writes nothing itself: it says which field is next, and takes what was typed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from mcp_tasks.client.conversions import NO, YES, as_text, chosen_word
from mcp_tasks.client.fields import Field
from mcp_tasks.client.pages import Link, link_to
from mcp_tasks.client.printable import on_one_line
from mcp_tasks.client.questions import Question
from mcp_tasks.errors import BadValue

_COMMANDS: Final = frozenset({"/decline", "/cancel", "/later", "/back", "/skip", "/help", "/?"})
"""The last two are for whoever shows the form."""


class Form:
    """The fields of a question, one after the other, and then whether the answer is right.

    Any line may also be `/decline` or `/cancel`, which answer the question that way, `/later`, which leaves it open,
    and `/back`, for the field before. `/skip` leaves out a field that may be left out. A text that is one of these
    words is typed with two slashes. A page to visit has no fields: it takes `visit`, `decline`, `cancel` or `later`, or
    their first letters.

    Attributes:
        HELP: What these words mean, a line each, for whoever shows the form.
        link: The page to visit, if that is what is asked. It is opened by whoever shows the form, if at all.
        fields: What is asked for. A question without any, and without a page, is answered with yes or no.
        answers: What was given so far, by the names of the fields.
        is_over: Whether nothing is left to ask.
        response: The answer, as `TaskHandle.answer` takes it, once it is over; None if the question is left open.
    """

    HELP: ClassVar[str] = """\
/decline   say no to the question; the task goes on and knows it
/cancel    dismiss the question without a choice; the task goes on and knows it
/later     leave the question open and stop waiting
/back      go back to the field before
/skip      leave this field out, if it may be left out
//...      a text that begins with a slash and is one of these words"""

    def __init__(self, question: Question) -> None:
        self.link: Link | None = None if question.url is None else link_to(question.url)
        self.fields: list[Field] = [] if self.link else question.fields
        self.answers: dict[str, Any] = {}
        self.is_over: bool = False
        self.response: dict[str, Any] | None = None
        self._place = 0

    @property
    def field(self) -> Field | None:
        """The field that is next; None if that is whether to accept, or whether the answers are right."""
        return self.fields[self._place] if self._place < len(self.fields) else None

    @property
    def shown(self) -> list[str]:
        """What somebody should see before the next line, fit for a terminal: the choices, or at the end all answers."""
        if self.field is None:
            return [f"{on_one_line(name)} = {on_one_line(as_text(value))}" for name, value in self.answers.items()]
        return [
            f"{number}. {on_one_line(str(choice.value))}"
            + (f"  ({on_one_line(choice.title)})" if choice.title != str(choice.value) else "")
            for number, choice in enumerate(self.field.choices, 1)
        ]

    @property
    def last_question(self) -> str:
        """What is asked when no field is next."""
        if self.link is not None:
            return "[v]isit it yourself, [d]ecline, [c]ancel, [l]ater"
        return "Send it? [Y]es, [n]o (edit)" if self.fields else "Accept? [y]es, [n]o (decline), /cancel, /later"

    @property
    def current(self) -> Any:
        """What an empty line stands for: the answer that was given before, or the default; None for nothing."""
        if self.field is None:
            return True if self.fields else None
        default = self.field.default if self.field.has_default else None
        return self.answers.get(self.field.name, default)

    def take(self, line: str) -> None:
        """Take what was typed.

        Raises:
            BadValue: It does not fit the field. The field is still next.
        """
        text = line.strip()
        if self.link is not None:
            self._choose(text)
            return
        match text:
            case "/decline" | "/cancel":
                self._end({"action": text[1:]})
            case "/later":
                self._end(None)
            case "/back":
                self._place = max(0, self._place - 1)
            case "/skip" if self.field is not None:
                self._leave_out(self.field)
            case _:
                unslashed = text.removeprefix("/")
                text = unslashed if unslashed in _COMMANDS else text
                if self.field is None:
                    self._confirm(text)
                else:
                    self._fill_in(self.field, text)

    def _fill_in(self, field: Field, text: str) -> None:
        if not text and field.name not in self.answers and not field.has_default:
            self._leave_out(field)
        else:
            self.answers[field.name] = field.read_line(text) if text else self.current
            self._next()

    def _leave_out(self, field: Field) -> None:
        if field.required:
            raise BadValue("this must be answered")
        self.answers.pop(field.name, None)
        self._next()

    def _next(self) -> None:
        self._place += 1
        if len(self.fields) == 1:
            self._accept()

    def _choose(self, text: str) -> None:
        match chosen_word(text, ("visit", "decline", "cancel", "later")):
            case None:
                raise BadValue("Type one of the letters, or the whole word.")
            case "later":
                self._end(None)
            case word:
                self._end({"action": "accept" if word == "visit" else word})

    def _confirm(self, text: str) -> None:
        word = text.casefold() or ("yes" if self.fields else "")
        if word in YES:
            self._accept()
        elif word in NO and self.fields:
            self._place = 0
        elif word in NO:
            self._end({"action": "decline"})

    def _accept(self) -> None:
        self._end({"action": "accept", "content": self.answers})

    def _end(self, response: dict[str, Any] | None) -> None:
        self.response = response
        self.is_over = True
