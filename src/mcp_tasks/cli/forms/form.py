"""A question at the prompt: a form made from its schema, or a page to visit."""

from __future__ import annotations

import webbrowser
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from mcp_tasks.cli.terminal.keyboard import Keyboard
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.client import BadValue, Field, Form, Question
from mcp_tasks.client.conversions import as_text, chosen_word

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
