"""`mcp-tasks answer`: answer what a task asks, on the command line or at the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from mcp import Client, MCPError

from mcp_tasks.cli.commands.wait import wait_for
from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.forms.arguments import read_arguments, read_object
from mcp_tasks.cli.forms.form import Later
from mcp_tasks.cli.forms.questions import describe, how_to_answer, how_to_answer_unseen
from mcp_tasks.cli.options import (
    TakesArguments,
    TaskOptions,
    takes_arguments,
    takes_on_abandon,
    takes_save,
    takes_task_options,
)
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.desk import Desk
from mcp_tasks.cli.terminal.exits import Detached, Exit, Problem
from mcp_tasks.cli.terminal.keyboard import is_terminal
from mcp_tasks.cli.terminal.outcomes import print_json, report, say
from mcp_tasks.cli.terminal.text import clean, command_line
from mcp_tasks.cli.terminal.views import LineBoard
from mcp_tasks.client import LedgerEntry, resume_task
from mcp_tasks.client.handle import OnAbandon
from mcp_tasks.client.looking import fetch_questions
from mcp_tasks.client.questions import Question, questions_of
from mcp_tasks.client.servers.connecting import ask_through_the_task
from mcp_tasks.client.servers.grouping import by_server
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UsageError

FETCH_LIMIT = timedelta(seconds=15)
"""For a server to send what a task asks."""

EPILOG = """\
\b
Examples:
  mcp-tasks answer task_AhLN                      (asks at the prompt)
  mcp-tasks answer task_AhLN confirm=yes
  mcp-tasks answer task_AhLN --question q2 --args '{"name": "Ann"}'
  mcp-tasks answer task_AhLN --decline --wait
"""


@click.command(cls=TakesArguments, epilog=EPILOG)
@click.argument("task_id", metavar="ID", shell_complete=task_ids)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -")
@takes_arguments("The whole answer")
@click.option("--question", "key", metavar="KEY", help="Which question, if the task asks several.")
@click.option(
    "--accept", "action", flag_value="accept", help="Accept a question that has no fields, or a page to visit."
)
@click.option("--decline", "action", flag_value="decline", help="Say no.")
@click.option(
    "--cancel", "action", flag_value="cancel", help="Dismiss the question. (The task is not cancelled by this.)"
)
@click.option("--wait", is_flag=True, help="Then wait for the task to end, as `wait` does.")
@takes_on_abandon
@takes_save
@takes_task_options
def command(
    *,
    task_id: str,
    words: Sequence[str],
    json_text: str | None,
    key: str | None,
    action: str | None,
    wait: bool,
    on_abandon: OnAbandon,
    save: Path | None,
    options: TaskOptions,
) -> int:
    """Answer what a task asks.

    Values are typed and checked by the question's own schema. Without any, the question is asked at the prompt.
    """
    if action in ("decline", "cancel") and (words or json_text):
        raise click.UsageError(f"--{action} takes no values")

    async def work() -> int:
        with opened_ledger(options.ledger_path) as ledger:
            [entry] = find_tasks(ledger, [task_id], options)
            [group] = by_server([entry], options.access.headers)
            async with connector(options.access, ledger=ledger, elicit=ask_through_the_task)(group) as client:
                repeated = options.access.repeated
                given = _Given(words=words, json_text=json_text, key=key, action=action, repeated=repeated)
                try:
                    answered = await given.send(client, entry)
                except Later:
                    answer = command_line("answer", short_id(entry.task_id), options=repeated)
                    say(f"The question is left open. Answer it with:\n  {answer}")
                    return Exit.OK
            if wait:
                outcomes = await wait_for(ledger, [entry], options.access, limit=None, on_abandon=on_abandon)
                return report(outcomes, options.output, options.access, save=save)
        if options.output == "json":
            print_json({"taskId": entry.task_id, "answered": answered})
        else:
            repeated = options.access.repeated
            say(f"Answered. Come back with:\n  {command_line('wait', short_id(entry.task_id), options=repeated)}")
        return Exit.OK

    return run(work)


class _Given:
    """What was given on the command line for an answer.

    Args:
        repeated: What a later command has to be given again.
    """

    def __init__(
        self, *, words: Sequence[str], json_text: str | None, key: str | None, action: str | None, repeated: str
    ) -> None:
        self._words = words
        self._json_text = json_text
        self._key = key
        self._action = action
        self._repeated = repeated

    async def send(self, client: Client, entry: LedgerEntry) -> list[str]:
        """Answer; gives the keys of what was answered."""
        handle = resume_task(client, entry.task_id, tool=entry.tool)
        snapshot = await handle.status()
        if snapshot.status is TaskStatus.INPUT_REQUIRED and not snapshot.input_requests:
            if not (self._words or self._json_text or self._action or is_terminal()):
                raise _nobody_to_ask(how_to_answer_unseen(entry.task_id, self._repeated)[1:])
            snapshot = await fetch_questions(handle, within=FETCH_LIMIT)
            if snapshot is None:
                raise Problem(
                    f"the task asks something, and its server did not send it within {FETCH_LIMIT.seconds} s",
                    Exit.FAILED,
                    hint="Some servers of 2025-11-25 send a question only once. Is somebody else about to answer it?",
                )
        questions = questions_of(snapshot.input_requests, entry.tool or entry.task_id, entry.server_label)
        if not questions:
            raise Problem(f"the task has no open question; it is {snapshot.status.value}", Exit.USAGE)
        answers = await self._answers(self._chosen(questions), entry)
        try:
            await handle.answer(answers)
        except UsageError as exc:
            raise Problem(str(exc), Exit.USAGE, hint="Nothing was sent; the task still waits for an answer.") from exc
        except MCPError as exc:
            raise Problem(
                f"the server refused the answer: {clean(str(exc))}",
                Exit.FAILED,
                hint="\n".join(["The task still waits for one:", *self._how_to_answer(entry, questions)]),
            ) from exc
        return list(answers)

    def _how_to_answer(self, entry: LedgerEntry, questions: Sequence[Question]) -> list[str]:
        return how_to_answer(entry.task_id, questions, self._repeated)

    def _chosen(self, questions: Sequence[Question]) -> Sequence[Question]:
        if self._key is None:
            return self._that_fit(questions) or questions
        chosen = [question for question in questions if question.key == self._key]
        if not chosen:
            keys = ", ".join(question.key for question in questions)
            raise Problem(
                f"the task has no open question {self._key!r}", Exit.USAGE, hint=f"Open questions: {clean(keys)}"
            )
        return chosen

    def _that_fit(self, questions: Sequence[Question]) -> Sequence[Question]:
        """The questions that have a field for everything that was given, if anything was."""
        names = {word.partition("=")[0].removesuffix(":") for word in self._words if "=" in word}
        return [q for q in questions if names and names <= {field.name for field in q.fields}]

    async def _answers(self, questions: Sequence[Question], entry: LedgerEntry) -> dict[str, Any]:
        if not (self._words or self._json_text or self._action):
            return await _ask_all(questions, self._how_to_answer(entry, questions))
        if len(questions) > 1 and self._action not in ("decline", "cancel"):
            lines = [line for question in questions for line in [f"{question.key}:", *describe(question)]]
            raise Problem(
                "the task has several open questions; choose one with --question", Exit.USAGE, hint="\n".join(lines)
            )
        return {question.key: self._answer(question) for question in questions}

    def _answer(self, question: Question) -> dict[str, Any]:
        if not question.is_elicitation:
            if self._json_text is None:
                raise Problem(f"a {clean(question.method)} request takes a whole result, with --args", Exit.USAGE)
            return read_object(self._json_text)
        if self._action in ("decline", "cancel"):
            return {"action": self._action}
        if question.url is not None:
            return {"action": "accept"}
        return {"action": "accept", "content": read_arguments(question.schema, self._words, self._json_text)}


async def _ask_all(questions: Sequence[Question], how_to_answer: Sequence[str]) -> dict[str, Any]:
    desk = Desk(LineBoard())
    if not desk.is_staffed:
        raise _nobody_to_ask([*(line for question in questions for line in describe(question)), *how_to_answer])

    async def ask() -> dict[str, Any]:
        return {question.key: await desk.ask(question) for question in questions}

    try:
        return await desk.supervise(ask())
    except Detached:
        raise Problem("nothing was answered", Exit.INTERRUPTED) from None


def _nobody_to_ask(hint: Sequence[str]) -> Problem:
    why = "there is no terminal to ask at, and no answer was given"
    return Problem(why, Exit.INPUT_REQUIRED, hint="\n".join(hint))
