"""`mcp-tasks answer`: answer what a task asks, on the command line or at the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
from mcp import MCPError

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.commands.wait import wait_for
from mcp_tasks.cli.forms.arguments import how_to_answer, read_known
from mcp_tasks.cli.options import Access, Waiting, takes_arguments, takes_waiting, taking
from mcp_tasks.cli.remembered import Chosen, takes_tasks
from mcp_tasks.cli.terminal.attending import Attending
from mcp_tasks.cli.terminal.boards import LineBoard
from mcp_tasks.cli.terminal.exits import Detached, Exit, Problem
from mcp_tasks.cli.terminal.keyboard import is_terminal
from mcp_tasks.cli.terminal.text import command_line
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.client import (
    LedgerEntry,
    Question,
    QuestionUnseen,
    TaskHandle,
    answers_to,
    open_questions,
    questions_for,
    short_id,
    still_asked,
)
from mcp_tasks.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What is given on the command line for an answer. What contradicts itself is refused before a task is looked for.

    Attributes:
        key: Of the question that it is for, if that is said.
        action: `accept`, `decline` or `cancel`, if one of them is said.
        wait: Whether to wait for the task then, as `waiting` says.
    """

    words: Sequence[str]
    json_text: str | None
    key: str | None
    action: str | None
    wait: bool
    waiting: Waiting

    def __post_init__(self) -> None:
        if self.action in ("decline", "cancel") and (self.words or self.json_text):
            raise click.UsageError(f"--{self.action} takes no values")
        if not self.wait and (self.waiting.timeout or self.waiting.save):
            raise click.UsageError("--timeout and --save are for a result: give --wait as well")

    def __bool__(self) -> bool:
        return bool(self.words or self.json_text or self.action)

    def answers(self, questions: Sequence[Question]) -> dict[str, dict[str, Any]]:
        """The answers to these questions, by key."""
        words, known = read_known(self.words, self.json_text)
        if known is None and (method := next((each.method for each in questions if not each.is_elicitation), None)):
            raise Problem(f"a {method} request takes a whole result, with --args", Exit.USAGE)
        return answers_to(questions, words, known=known, action=self.action or "accept")


takes_answer: Final = taking(
    click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -"),
    takes_arguments("The whole answer"),
    click.option("--question", "key", metavar="KEY", help="Which question, if the task asks several."),
    click.option(
        "--accept", "action", flag_value="accept", help="Accept a question that has no fields, or a page to visit."
    ),
    click.option("--decline", "action", flag_value="decline", help="Say no."),
    click.option(
        "--cancel", "action", flag_value="cancel", help="Dismiss the question. (The task is not cancelled by this.)"
    ),
    click.option("--wait", is_flag=True, help="Then wait for the task to end, as `wait` does."),
    takes_waiting("waiting (with --wait)"),
    into=Given,
    name="given",
)


@click.command()
@click.argument("ids", metavar="ID", shell_complete=task_ids)
@takes_answer
@takes_tasks
async def command(*, chosen: Chosen, given: Given) -> int:
    """Answer what a task asks.

    Values are typed and checked by the question's own schema. Without any, the question is asked at the prompt.

    Examples:
      mcp-tasks answer task_AhLN                      (asks at the prompt)
      mcp-tasks answer task_AhLN confirm=yes
      mcp-tasks answer task_AhLN --question q2 --args '{"name": "Ann"}'
      mcp-tasks answer task_AhLN --decline --wait
    """
    options, [entry] = chosen.options, chosen.entries
    task, repeated = short_id(entry.task_id), options.access.repeated
    answer = partial(_answer, entry=entry, given=given, access=options.access)
    answered = (await chosen.at_each(answer, asks=True))[entry.key]
    if isinstance(answered, Exception):
        raise answered
    if answered is None:
        say(f"The question is left open. Answer it with:\n  {command_line('answer', task, options=repeated)}")
    elif given.wait:
        return await wait_for(chosen, given.waiting)
    elif options.output == "json":
        print_json({"taskId": entry.task_id, "answered": answered})
    else:
        say(f"Answered. Come back with:\n  {command_line('wait', task, options=repeated)}")
    return Exit.OK


async def _answer(handle: TaskHandle, entry: LedgerEntry, given: Given, access: Access) -> list[str] | None:
    """Answer what a task asks; gives the keys of what was answered, or None if it was left open."""
    can_answer, repeated = bool(given) or is_terminal(), access.repeated
    questions: Sequence[Question] = ()
    chosen: Sequence[Question] = ()
    try:
        questions = await open_questions(handle, server=entry.server_label, fetch=can_answer)
        chosen = questions_for(given.words, questions, key=given.key)
    except QuestionUnseen:
        if can_answer:
            raise
    if not can_answer:
        asked = [line for question in chosen for line in question.describe()]
        hint = "\n".join([*asked, *how_to_answer(entry.task_id, chosen, repeated)])
        raise Problem("there is no terminal to ask at, and no answer was given", Exit.INPUT_REQUIRED, hint=hint)
    answers = given.answers(chosen) if given else await _ask_all(chosen, access)
    if answers is None:
        return None
    if not given:
        answers = await still_asked(handle, answers)
    try:
        await handle.answer(answers)
    except UsageError as exc:
        raise Problem(str(exc), Exit.USAGE, hint="Nothing was sent; the task still waits for an answer.") from exc
    except MCPError as exc:
        lines = ["The task still waits for one:", *how_to_answer(entry.task_id, questions, repeated)]
        raise Problem(f"the server refused the answer: {exc}", Exit.FAILED, hint="\n".join(lines)) from exc
    return list(answers)


async def _ask_all(questions: Sequence[Question], access: Access) -> dict[str, Any] | None:
    """The answers that somebody gives at the prompt; None if they leave a question open."""
    attending = Attending(LineBoard(), access, Waiting())

    async def ask() -> dict[str, Any] | None:
        answers: dict[str, Any] = {}
        for question in questions:
            answers[question.key] = await attending.ask(question)
            if answers[question.key] is None:
                return None
        return answers

    try:
        return await attending.stay(ask())
    except Detached:
        raise Problem("nothing was answered", Exit.INTERRUPTED) from None
