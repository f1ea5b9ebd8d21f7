"""A question at the prompt: a form made from its schema, or a page to visit.

At any prompt `/decline` and `/cancel` answer the question that way, and `/later` leaves it open.
"""

from __future__ import annotations

import webbrowser
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from mcp_tasks.cli.terminal.keyboard import Keyboard
from mcp_tasks.cli.terminal.menus import chosen
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.client.conversions import NO, YES, as_text
from mcp_tasks.client.fields import Field
from mcp_tasks.client.pages import link_to
from mcp_tasks.client.questions import Question
from mcp_tasks.errors import BadValue

_LONG_HELP: Final = """\
  /decline   say no to the question; the task goes on and knows it
  /cancel    dismiss the question without a choice; the task goes on and knows it
  /later     leave the question open and stop waiting
  /back      go back to the field before
  /skip      leave this field out, if it may be left out
  //...      a text that begins with a slash and is one of these words"""


class Later(Exception):
    """The question stays open."""


class _Chosen(Exception):
    def __init__(self, action: str) -> None:
        self.action = action


class _Back(Exception):
    pass


class Form:
    """One question at the prompt."""

    def __init__(self, question: Question, keyboard: Keyboard, console: Console) -> None:
        self._question = question
        self._keyboard = keyboard
        self._console = console

    async def fill_in(self) -> dict[str, Any]:
        """The answer, as it goes to the server.

        Raises:
            Later: Nobody answers now.
            Interrupt: Ctrl-C.
        """
        self._keyboard.forget_typed()
        self._show_question()
        try:
            if self._question.url is not None:
                return await self._visit(self._question.url)
            return {"action": "accept", "content": await self._answers()}
        except _Chosen as chosen:
            return {"action": chosen.action}

    def _show_question(self) -> None:
        body = Text(clean(self._question.message))
        if self._question.url is not None:
            link = link_to(self._question.url)
            body.append(f"\n\n{one_line(self._question.url)}", style="cyan")
            body.append(f"\nHost: {one_line(link.host)}", style="bold")
            for warning in (*link.warnings, *([] if link.refusal is None else [link.refusal])):
                body.append(f"\n! {warning}", style="yellow")
        panel = Panel(
            body,
            title=Text(f"{one_line(self._question.tool)} asks", style="yellow"),
            title_align="left",
            subtitle=Text(one_line(self._question.server), style="bright_black"),
            subtitle_align="left",
            border_style="yellow",
            padding=(0, 1),
        )
        self._console.print(panel)

    # A page to visit

    async def _visit(self, url: str) -> dict[str, Any]:
        may_open = link_to(url).refusal is None
        opening = "[o]pen it in the browser, [v]isit it yourself" if may_open else "[v]isit it yourself"
        words = (*(["open"] if may_open else []), "visit", "decline", "cancel", "later")
        while True:
            match chosen(await self._command(Text(f"  {opening}, [d]ecline, [c]ancel, [l]ater: ")), words):
                case None:
                    self._complain("Type one of the letters, or the whole word.")
                case "later":
                    raise Later
                case "decline" | "cancel" as action:
                    return {"action": action}
                case word:
                    if word == "open" and not webbrowser.open(url):
                        self._complain("No browser could be opened; visit the address yourself.")
                    return {"action": "accept"}

    # A form

    async def _answers(self) -> dict[str, Any]:
        fields = self._question.fields
        if not fields:
            return await self._consent()
        self._console.print(Text(f"  {_short_help(fields)}", style="bright_black"))
        answers: dict[str, Any] = {}
        while True:
            await self._ask_all(fields, answers)
            if len(fields) == 1 or await self._is_right(answers):
                return answers

    async def _consent(self) -> dict[str, Any]:
        while True:
            text = await self._command(Text("  Accept? [y]es, [n]o (decline), /cancel, /later: "))
            if text.casefold() in YES:
                return {}
            if text.casefold() in NO:
                raise _Chosen("decline")

    async def _ask_all(self, fields: list[Field], answers: dict[str, Any]) -> None:
        index = 0
        while index < len(fields):
            try:
                await self._ask_one(fields[index], answers)
                index += 1
            except _Back:
                index = max(0, index - 1)

    async def _ask_one(self, field: Field, answers: dict[str, Any]) -> None:
        for number, choice in enumerate(field.choices, 1):
            title = f"  ({one_line(choice.title)})" if choice.title != str(choice.value) else ""
            self._console.print(Text(f"    {number}. {one_line(str(choice.value))}{title}"))
        while True:
            text = await self._command(_prompt(field, answers), may_go_back=True)
            try:
                self._take(field, text, answers)
            except BadValue as exc:
                self._complain(f"{field.title}: {exc}")
                continue
            return

    def _take(self, field: Field, text: str, answers: dict[str, Any]) -> None:
        if text == "/skip" or (not text and field.name not in answers and not field.has_default):
            if field.required:
                raise BadValue("this must be answered")
            answers.pop(field.name, None)
        elif text:
            answers[field.name] = field.read_line(text)
        elif field.name not in answers:
            answers[field.name] = field.default

    async def _is_right(self, answers: dict[str, Any]) -> bool:
        for name, value in answers.items():
            self._console.print(Text(f"    {one_line(name)} = {one_line(as_text(value))}", style="bright_black"))
        while True:
            text = (await self._command(Text("  Send it? [Y]es, [n]o (edit): "))).casefold()
            if not text or text in YES:
                return True
            if text in NO:
                return False

    async def _command(self, prompt: Text, *, may_go_back: bool = False) -> str:
        """The next line that is not a command."""
        while True:
            text = (await self._keyboard.line(prompt, self._console)).strip()
            match text:
                case "/decline" | "/cancel":
                    raise _Chosen(text[1:])
                case "/later":
                    raise Later
                case "/back" if may_go_back:
                    raise _Back
                case "/help" | "/?":
                    self._console.print(Text(_LONG_HELP, style="bright_black"))
                case _:
                    return text.removeprefix("/") if text.startswith("//") else text

    def _complain(self, text: str) -> None:
        self._console.print(Text(f"    {one_line(text)}", style="red"))


def _short_help(fields: list[Field]) -> str:
    enter = "Enter takes the [default]. " if any(field.has_default for field in fields) else ""
    return f"{enter}/decline, /cancel or /later instead of an answer; /help for more."


def _prompt(field: Field, answers: dict[str, Any]) -> Text:
    text = Text("  ")
    if field.description:
        text.append(f"{one_line(field.description)}\n  ", style="bright_black")
    text.append(one_line(field.title), style="bold")
    wanted = "a number or a name" if field.choices else field.wanted()
    if field.multiple:
        wanted = "numbers or names, with commas"
    elif field.is_list:
        wanted = f"{wanted}, with commas"
    text.append(f" ({one_line(wanted)}{'' if field.required else ', optional'})", style="bright_black")
    current = answers.get(field.name, field.default if field.has_default else None)
    if current is not None:
        text.append(f" [{one_line(as_text(current))}]", style="cyan")
    return text.append(": ")
