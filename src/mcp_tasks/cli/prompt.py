"""A question at the prompt: a form made from its schema, or a page to visit. And values given on the command line."""

from __future__ import annotations

import json
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from typing import Any, Final, cast

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from mcp_tasks.cli.fields import NO, YES, Field, as_text, chosen_word, read_words
from mcp_tasks.cli.questions import Link, Question
from mcp_tasks.cli.terminal import Exit, Keyboard, Problem, clean, command_line, one_line
from mcp_tasks.client.ledger import short_id
from mcp_tasks.errors import BadValue
from mcp_tasks.model.json import JsonObject

_QUIET: Final = "bright_black"

_COMMANDS: Final = frozenset({"/decline", "/cancel", "/later", "/back", "/skip", "/help", "/?"})

_HELP: Final = """\
/decline   say no to the question; the task goes on and knows it
/cancel    dismiss the question without a choice; the task goes on and knows it
/later     leave the question open and stop waiting
/back      go back to the field before
/skip      leave this field out, if it may be left out
//...      a text that begins with a slash and is one of these words"""


class Form:
    """The fields of a question, one after the other, and then whether the answers are right.

    Any line may also be one of the commands of `_HELP`. A page to visit has no fields: it takes `visit`, `decline`,
    `cancel` or `later`, or their first letters. A question without fields or page is answered with yes or no.

    Attributes:
        link: The page to visit, if that is what is asked.
        answers: The values so far, by the names of the fields.
        is_over: Whether there is nothing left to ask.
        response: The answer, as `TaskHandle.answer` takes it, once it is over; None if the question is left open.
    """

    def __init__(self, question: Question) -> None:
        self.link: Link | None = None if question.url is None else Link.to(question.url)
        self.fields: list[Field] = [] if self.link else question.fields
        self.answers: dict[str, Any] = {}
        self.is_over: bool = False
        self.response: dict[str, Any] | None = None
        self._place = 0

    @property
    def field(self) -> Field | None:
        """The next field; None when only the confirmation is left."""
        return self.fields[self._place] if self._place < len(self.fields) else None

    @property
    def shown(self) -> list[str]:
        """Lines to show before the next prompt: the choices, or at the end all answers."""
        if self.field is None:
            return [f"{one_line(name)} = {one_line(as_text(value))}" for name, value in self.answers.items()]
        return [
            f"{number}. {one_line(str(choice.value))}"
            + (f"  ({one_line(choice.title)})" if choice.title != str(choice.value) else "")
            for number, choice in enumerate(self.field.choices, 1)
        ]

    @property
    def last_question(self) -> str:
        """The prompt when no field is next."""
        if self.link is not None:
            return "[v]isit it yourself, [d]ecline, [c]ancel, [l]ater"
        return "Send it? [Y]es, [n]o (edit)" if self.fields else "Accept? [y]es, [n]o (decline), /cancel, /later"

    @property
    def current(self) -> Any:
        """The value of an empty line: the answer that was given before, or the default; None for none."""
        if self.field is None:
            return True if self.fields else None
        default = self.field.default if self.field.has_default else None
        return self.answers.get(self.field.name, default)

    def take(self, line: str) -> None:
        """Take a line that was typed.

        Raises:
            BadValue: It does not fit the field. The field is still next.
        """
        text = line.strip()
        if self.link is not None:
            match chosen_word(text, ("visit", "decline", "cancel", "later")):
                case None:
                    raise BadValue("Type one of the letters, or the whole word.")
                case "later":
                    self._end(None)
                case word:
                    self._end({"action": "accept" if word == "visit" else word})
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
                elif not text and self.field.name not in self.answers and not self.field.has_default:
                    self._leave_out(self.field)
                else:
                    self.answers[self.field.name] = self.field.read_line(text) if text else self.current
                    self._next()

    def _leave_out(self, field: Field) -> None:
        if field.required:
            raise BadValue("this must be answered")
        self.answers.pop(field.name, None)
        self._next()

    def _next(self) -> None:
        self._place += 1
        if len(self.fields) == 1:
            self._end({"action": "accept", "content": self.answers})

    def _confirm(self, text: str) -> None:
        word = text.casefold() or ("yes" if self.fields else "")
        if word in YES:
            self._end({"action": "accept", "content": self.answers})
        elif word in NO and self.fields:
            self._place = 0
        elif word in NO:
            self._end({"action": "decline"})

    def _end(self, response: dict[str, Any] | None) -> None:
        self.response = response
        self.is_over = True


async def ask(question: Question, keyboard: Keyboard, console: Console) -> dict[str, Any] | None:
    """The answer that is typed, as it goes to the server; None if the question is left open.

    Raises:
        Interrupt: Ctrl-C.
    """
    keyboard.forget_typed()
    form = Form(question)
    may_open = form.link is not None and form.link.refusal is None
    console.print(_panel(question, form))
    before: Field | None = None
    if form.fields:
        enter = "Enter takes the [default]. " if any(field.has_default for field in form.fields) else ""
        _hint(f"{enter}/decline, /cancel or /later instead of an answer; /help for more.", console)
    while not form.is_over:
        field = form.field
        if field is not before:
            for shown in form.shown:
                console.print(Text(f"    {clean(shown)}", style="" if field else _QUIET))
        before = field
        line = await keyboard.line(_prompt(form, may_open=may_open), console)
        if line.strip() in ("/help", "/?") and form.link is None:
            _hint(_HELP, console)
            continue
        if may_open and chosen_word(line, ["open"]):
            if not webbrowser.open(str(question.url)):
                _complain("No browser could be opened; visit the address yourself.", console)
            line = "visit"
        try:
            form.take(line)
        except BadValue as exc:
            _complain(f"{'' if field is None else f'{field.title}: '}{exc}", console)
    return form.response


def _panel(question: Question, form: Form) -> Panel:
    body = Text(clean(question.message))
    if form.link is not None:
        body.append(f"\n\n{one_line(question.url)}", style="cyan")
        body.append(f"\nHost: {one_line(form.link.host)}", style="bold")
        for note in form.link.notes:
            body.append(f"\n! {note}", style="yellow")
    return Panel(
        body,
        title=Text(f"{one_line(question.tool)} asks", style="yellow"),
        title_align="left",
        subtitle=Text(one_line(question.server), style=_QUIET),
        subtitle_align="left",
        border_style="yellow",
        padding=(0, 1),
    )


def _prompt(form: Form, *, may_open: bool) -> Text:
    field = form.field
    if field is None:
        return Text(f"  {'[o]pen it in the browser, ' if may_open else ''}{form.last_question}: ")
    text = Text("  ")
    if field.description:
        text.append(f"{one_line(field.description)}\n  ", style=_QUIET)
    text.append(one_line(field.title), style="bold")
    text.append(f" ({one_line(field.wanted_line())}{'' if field.required else ', optional'})", style=_QUIET)
    if form.current is not None:
        text.append(f" [{one_line(as_text(form.current))}]", style="cyan")
    return text.append(": ")


def _hint(text: str, console: Console) -> None:
    console.print(Padding(Text(text, style=_QUIET), (0, 0, 0, 2), expand=False))


def _complain(text: str, console: Console) -> None:
    console.print(Text(f"    {one_line(text)}", style="red"))


# ---- arguments
# Values that are given on the command line: as `key=value` words and `--args`, and how those are written.


def read_arguments(schema: JsonObject, words: Sequence[str], json_text: str | None) -> dict[str, Any]:
    """The arguments that were typed, checked against `schema`.

    Args:
        words: `key=value`, typed by the schema; `key:=JSON`, of any type; or `-`, for JSON from stdin.
        json_text: An object to begin with; `-` for stdin. Words come on top of it.

    Raises:
        BadValue: Something is unknown, missing or wrong; it says what, and how to write it.
        Problem: The JSON is not valid.
    """
    words, known = read_known(words, json_text)
    return read_words(schema, words, known=known)


def read_known(words: Sequence[str], json_text: str | None) -> tuple[Sequence[str], dict[str, Any] | None]:
    """The words that are `key=value`, and the values that are given as JSON."""
    if "-" in words:
        words, json_text = [word for word in words if word != "-"], "-"
    if json_text is None:
        hint = "`call` and `answer` take a JSON object with --args."
        if whole := next((word for word in words if word.startswith("{")), None):
            raise Problem(f"{whole!r} is not KEY=VALUE", Exit.USAGE, hint=hint)
        return words, None
    try:
        value = json.loads(sys.stdin.read() if json_text == "-" else json_text)
    except ValueError as exc:
        what = "what stdin has" if json_text == "-" else "--args"
        raise Problem(f"{what} is not valid JSON: {exc}", Exit.USAGE) from exc
    if not isinstance(value, dict):
        raise Problem('--args takes an object, like \'{"key": "value"}\'', Exit.USAGE)
    return words, cast("dict[str, Any]", value)


def how_to_answer(task_id: str, questions: Sequence[Question], repeated: str) -> list[str]:
    """The commands that answer questions, a line each, with the options that must be `repeated`. Without questions, one
    for a question that the server has not sent here."""
    if not questions:
        return [command_line("answer", short_id(task_id), "KEY=VALUE", options=repeated)]
    lines: list[str] = []
    for question in questions:
        options = f" --question={shlex.quote(one_line(question.key))}" if len(questions) > 1 else ""
        fields = [field for field in question.fields if field.required or len(question.fields) == 1]
        words = [f"{field.name}=..." for field in fields] if question.is_elicitation and question.url is None else []
        if not question.is_elicitation:
            options += " --args RESULT"
        elif not words:
            options += " --accept"
        lines.append(command_line("answer", short_id(task_id), *words, options=options + repeated))
    return lines
