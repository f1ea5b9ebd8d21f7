"""A question at the prompt: a form made from its schema, or a page to visit."""

from __future__ import annotations

import webbrowser
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from mcp_tasks.cli.terminal.keyboard import Keyboard, choose
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.client import BadValue, Field, Form, Question, link_to
from mcp_tasks.client.conversions import as_text

_QUIET: Final = "bright_black"


async def ask(question: Question, keyboard: Keyboard, console: Console) -> dict[str, Any] | None:
    """The answer that somebody gives, as it goes to the server; None if they leave the question open.

    Raises:
        Interrupt: Ctrl-C.
    """
    keyboard.forget_typed()
    console.print(_panel(question))
    if question.url is not None:
        return await _visit(question.url, keyboard, console)
    form = Form(question)
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
        if line.strip() in ("/help", "/?"):
            _hint(Form.HELP, console)
            continue
        try:
            form.take(line)
        except BadValue as exc:
            _complain(f"{'' if field is None else field.title}: {exc}", console)
    return form.response


async def _visit(url: str, keyboard: Keyboard, console: Console) -> dict[str, Any] | None:
    may_open = link_to(url).refusal is None
    opening = "[o]pen it in the browser, [v]isit it yourself" if may_open else "[v]isit it yourself"
    words = (*(["open"] if may_open else []), "visit", "decline", "cancel", "later")
    match await choose(keyboard, Text(f"  {opening}, [d]ecline, [c]ancel, [l]ater: "), words, console):
        case "later":
            return None
        case "decline" | "cancel" as action:
            return {"action": action}
        case word:
            if word == "open" and not webbrowser.open(url):
                _complain("No browser could be opened; visit the address yourself.", console)
            return {"action": "accept"}


def _panel(question: Question) -> Panel:
    body = Text(clean(question.message))
    if question.url is not None:
        link = link_to(question.url)
        body.append(f"\n\n{one_line(question.url)}", style="cyan")
        body.append(f"\nHost: {one_line(link.host)}", style="bold")
        for note in link.notes:
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
        return Text(f"  {form.last_question}: ")
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
