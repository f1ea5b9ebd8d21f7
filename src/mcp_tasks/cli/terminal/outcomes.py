"""What became of a call or a task: in words, as JSON, and as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from mcp_tasks.cli.forms.arguments import how_to_answer, how_to_answer_unseen
from mcp_tasks.cli.options import Access, Options
from mcp_tasks.cli.terminal.exits import WHAT_BECAME, Exit, Problem, problem_of
from mcp_tasks.cli.terminal.text import clean, command_line, fields, json_text, one_line, without_secrets
from mcp_tasks.cli.terminal.views import state_of, stderr
from mcp_tasks.client import Followed, LedgerEntry, ServerAddress, result_texts, save_files, short_id
from mcp_tasks.core.json import JsonObject

HOW_TO_SAVE: Final = "--save DIR writes it to a file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a call or a task stands when a command ends.

    Attributes:
        saved: Files that were written with `--save`, by the number of their block in the result.
        not_saved: Why one of them could not be.
    """

    followed: Followed
    saved: Mapping[int, Path] = field(default_factory=dict[int, Path])
    not_saved: Problem | None = None

    @property
    def problem(self) -> Problem | None:
        """What kept us from knowing more."""
        followed = self.followed
        if followed.problem is not None:
            return problem_of(followed.problem)
        if followed.status == "input_required" and followed.fate in ("cancelled", "not cancelled"):
            why = "the task asks something and there is no terminal to ask at"
            return Problem(why + WHAT_BECAME[followed.fate], Exit.INPUT_REQUIRED)
        return None

    @property
    def exit(self) -> Exit:
        """The exit code."""
        followed, problem = self.followed, self.problem
        if problem is not None:
            return problem.code
        match followed.status:
            case "completed" | "failed" if followed.is_error:
                # What is a result to newer servers is a failure to those of 2025-11-25.
                return Exit.TOOL_ERROR
            case "failed":
                return Exit.FAILED
            case "cancelled":
                return Exit.CANCELLED
            case "input_required":
                # What somebody has chosen is no failure.
                is_chosen = followed.left_open and all(question.is_elicitation for question in followed.questions)
                return Exit.OK if is_chosen else Exit.INPUT_REQUIRED
            case _:
                return Exit.OK if self.not_saved is None else self.not_saved.code

    def to_json(self) -> dict[str, Any]:
        """The value that `--output json` prints."""
        problem = self.problem or self.not_saved
        return self.followed.to_json() | fields(
            problem=None if problem is None else problem.message,
            saved=[str(path) for path in self.saved.values()] or None,
        )


def report(followed: Sequence[Followed], options: Options, *, save: Path | None = None, as_list: bool = False) -> int:
    """Print how calls or tasks stand; gives the exit code: that of the first that is not well."""
    outcomes = [outcome_of(each, save) for each in followed]
    if options.output == "json":
        values = [outcome.to_json() for outcome in outcomes]
        print_json(values if as_list else values[0])
    else:
        for outcome in outcomes:
            _print(outcome, options.access, named=as_list and len(outcomes) > 1)
    return next((outcome.exit for outcome in outcomes if outcome.exit), Exit.OK)


def outcome_of(followed: Followed, save: Path | None = None) -> Outcome:
    """The outcome, after the files in its result were written into a folder. If they cannot be, that is said, and the
    result is printed all the same: it may be nowhere else."""
    if followed.result is None or save is None:
        return Outcome(followed=followed)
    saved, failure = save_files(followed.result, save, followed.entry.tool)
    problem = None if failure is None else Problem(f"--save: {failure}", problem_of(failure).code)
    for path in saved.values():
        say(f"Saved {path}")
    if problem is not None:
        problem.show()
    return Outcome(followed=followed, saved=saved, not_saved=problem)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def say(text: str, style: str = "") -> None:
    """A line on stderr, or several. What is in it of a server's is on one line each, or meant to be on several."""
    stderr().print(Text(clean(text), style=style), soft_wrap=True)


def say_how_to_return(entries: Sequence[LedgerEntry], access: Access) -> None:
    """The command that comes back to tasks that go on."""
    goes_on = "The task goes on" if len(entries) == 1 else "The tasks go on"
    names = [short_id(entry.task_id) for entry in entries]
    say(f"{goes_on}. Come back with:\n  {command_line('wait', *names, options=access.repeated)}")
    if len(entries) == 1 and ServerAddress.parse(entries[0].server).url is None:
        say("It is worked on while its stdio server runs: from when you come back, or in another client of it.")


def _print(outcome: Outcome, access: Access, *, named: bool) -> None:
    followed, problem = outcome.followed, outcome.problem
    entry = followed.entry
    if named:
        say(f"── {short_id(entry.task_id)}  {one_line(entry.tool)}: {state_of(followed).replace('_', ' ')}", "bold")
    if problem is not None:
        say(one_line(problem.message), "red")
        if problem.code is Exit.TIMEOUT and followed.task_id is not None and followed.fate != "cancelled":
            say_how_to_return([entry], access)
        return
    match followed.status:
        case "completed" | "failed" if followed.error is None and followed.result is not None:
            print_result(followed.result, outcome.saved)
        case "failed":
            say(f"The call failed: {_error_text(followed)}", "red")
        case "cancelled":
            say(f"The task was cancelled{f': {one_line(followed.message)}' if followed.message else '.'}")
        case "input_required":
            _print_questions(followed, access)
        case _:
            pass


def print_result(result: JsonObject, saved: Mapping[int, Path]) -> None:
    """A tool's result, as text: on stdout, or on stderr if it is an error."""
    failed = bool(result.get("isError"))
    if failed:
        say("The tool failed:", "red")
    stream = sys.stderr if failed else sys.stdout
    for text in result_texts(result, saved, unsaved=HOW_TO_SAVE):
        # What goes into a file or a pipe goes there as it came; on stderr it is for people to read, at once or later.
        click.echo(clean(text) if failed or stream.isatty() else without_secrets(text), file=stream)


def _error_text(followed: Followed) -> str:
    error = followed.error or {}
    code = f" (code {error['code']})" if "code" in error else ""
    return one_line(str(error.get("message") or followed.message or "the server does not say why")) + code


def _print_questions(followed: Followed, access: Access) -> None:
    task_id, repeated = followed.entry.task_id, access.repeated
    questions = followed.questions
    if questions:
        _say_all("The task asks:", [line for question in questions for line in question.describe()])
        wait = command_line("wait", short_id(task_id), options=repeated)
        answers = how_to_answer(task_id, questions, repeated)
        _say_all("Answer with (or --decline, or --cancel), then come back:", [*answers, wait])
    else:
        # A server of 2025-11-25 says what to whoever stays to answer.
        unseen = how_to_answer_unseen(task_id, repeated)
        _say_all("The task asks something. Answer it on a terminal, or without one:", unseen)


def _say_all(title: str, lines: Sequence[str]) -> None:
    say("\n  ".join([title, *lines]))
