"""A question at the prompt: a form made from its schema, or a page to visit."""

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

from mcp_tasks.cli.fields import Field, as_text, chosen_word, read_words
from mcp_tasks.cli.questions import Form, Question
from mcp_tasks.cli.terminal import Exit, Keyboard, Problem, clean, command_line, one_line
from mcp_tasks.client.ledger import short_id
from mcp_tasks.errors import BadValue
from mcp_tasks.model.json import JsonObject

_QUIET: Final = "bright_black"


async def ask(question: Question, keyboard: Keyboard, console: Console) -> dict[str, Any] | None:
    """The answer that somebody gives, as it goes to the server; None if they leave the question open.

    Raises:
        Interrupt: Ctrl-C.
    """
    keyboard.forget_typed()
    form = Form(question)
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
        line = await keyboard.line(_prompt(form), console)
        if line.strip() in ("/help", "/?") and form.link is None:
            _hint(Form.HELP, console)
            continue
        if _may_open(form) and chosen_word(line, ["open"]):
            if not webbrowser.open(str(question.url)):
                _complain("No browser could be opened; visit the address yourself.", console)
            line = "visit"
        try:
            form.take(line)
        except BadValue as exc:
            _complain(f"{'' if field is None else f'{field.title}: '}{exc}", console)
    return form.response


def _may_open(form: Form) -> bool:
    return form.link is not None and form.link.refusal is None


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


def _prompt(form: Form) -> Text:
    field = form.field
    if field is None:
        return Text(f"  {'[o]pen it in the browser, ' if _may_open(form) else ''}{form.last_question}: ")
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
        Problem: What should be JSON is none.
    """
    words, known = read_known(words, json_text)
    return read_words(schema, words, known=known)


def read_known(words: Sequence[str], json_text: str | None) -> tuple[Sequence[str], dict[str, Any] | None]:
    """The words that are `key=value`, and what is given as JSON."""
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
    """The commands that answer questions, a line each, with what has to be `repeated` in them. Without questions, one
    for what a server has not sent here."""
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
